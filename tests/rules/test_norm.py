"""Normalisations: work per element, statistics, and gradients."""

from __future__ import annotations

import pytest

from graphflops.cost import Estimate
from graphflops.dims import symbol
from graphflops.errors import ShapeError
from graphflops.rules.registry import ForwardCall, find_backward
from graphflops.tensor import TensorType
from tests.support import price, shapes, t

X = t(2, 6, 5)
N = 2 * 6 * 5
ROW, CHANNEL = t(5), t(6)
RUNNING = (CHANNEL, CHANNEL)


def gradient(op: str, wants: str, **arguments: object) -> Estimate:
    """What the backward rule says of this forward call."""
    rule = find_backward(op)
    assert rule is not None
    return rule(ForwardCall(price(op, **arguments), arguments, frozenset(wants.split())))


@pytest.mark.parametrize(
    ("op", "arguments", "flops", "functions"),
    [
        ("layer_norm", ((5,), ROW, ROW), 7 * N, 2 * 6),
        ("layer_norm", ((5,), ROW), 6 * N, 2 * 6),
        ("layer_norm", ((6, 5),), 5 * N, 2),
        ("native_layer_norm", ((5,), ROW, ROW, 1e-5), 7 * N, 2 * 6),
        ("rms_norm", ((5,), ROW), 4 * N, 2 * 6),
        ("_fused_rms_norm", ((5,), None, None), 3 * N, 2 * 6),
        ("group_norm", (3, CHANNEL, CHANNEL), 7 * N, 2 * 3),
        ("native_group_norm", (None, None, 2, 6, 5, 3, 1e-5), 5 * N, 2 * 3),
        ("instance_norm", (None, None, None, None, True, 0.1, 1e-5, True), 5 * N, 2 * 6),
        ("instance_norm", (None, None, *RUNNING, False, 0.1, 1e-5, True), 2 * N, 6),
        ("batch_norm", (*RUNNING, *RUNNING, False, 0.1, 1e-5, True), 2 * N, 6),
        ("batch_norm", (*RUNNING, None, None, True, 0.1, 1e-5, True), 7 * N, 6),
        ("batch_norm", (*RUNNING, *RUNNING, True, 0.1, 1e-5, True), 7 * N + 2 * 3 * 6, 6),
        ("_native_batch_norm_legit_no_training", (*RUNNING, *RUNNING, 0.1, 1e-5), 2 * N, 6),
        ("_batch_norm_with_update", (*RUNNING, *RUNNING, 0.1, 1e-5), 7 * N + 2 * 3 * 6, 6),
        ("batch_norm_elemt", (*RUNNING, *RUNNING, 1e-5), 2 * N, 0),
        ("batch_norm_stats", (1e-5,), 4 * N, 6),
    ],
)
def test_work_per_element(op: str, arguments: tuple[object, ...], flops: int, functions: int) -> None:
    estimate = price(f"aten.{op}.default", X, *arguments)
    assert (estimate.vector_flops, estimate.transcendentals) == (flops, functions)
    assert estimate.matrix_flops == 0


@pytest.mark.parametrize(
    ("op", "arguments", "results"),
    [
        ("native_layer_norm", ((5,), ROW, ROW, 1e-5), [(2, 6, 5), (2, 6, 1), (2, 6, 1)]),
        ("native_layer_norm", ((6, 5), None, None, 1e-5), [(2, 6, 5), (2, 1, 1), (2, 1, 1)]),
        ("_fused_rms_norm", ((5,), None, None), [(2, 6, 5), (2, 6, 1)]),
        ("native_group_norm", (None, None, 2, 6, 5, 3, 1e-5), [(2, 6, 5), (2, 3), (2, 3)]),
        ("native_batch_norm", (*RUNNING, *RUNNING, True, 0.1, 1e-5), [(2, 6, 5), (6,), (6,)]),
        ("_batch_norm_with_update", (*RUNNING, *RUNNING, 0.1, 1e-5), [(2, 6, 5), (6,), (6,), (0,)]),
        (
            "_native_batch_norm_legit_functional",
            (*RUNNING, *RUNNING, True, 0.1, 1e-5),
            [(2, 6, 5), (6,), (6,), (6,), (6,)],
        ),
    ],
)
def test_statistics_are_results(
    op: str, arguments: tuple[object, ...], results: list[tuple[int, ...]]
) -> None:
    assert shapes(price(f"aten.{op}.default", X, *arguments)) == results


@pytest.mark.parametrize(
    ("dtype", "op", "arguments", "statistic"),
    [
        ("float16", "native_layer_norm", ((5,), None, None, 1e-5), "float16[2, 6, 1]"),
        ("bfloat16", "_fused_rms_norm", ((5,), None, None), "float32[2, 6, 1]"),
        ("float64", "_fused_rms_norm", ((5,), None, None), "float64[2, 6, 1]"),
        ("bfloat16", "native_group_norm", (None, None, 2, 6, 5, 3, 1e-5), "bfloat16[2, 3]"),
    ],
)
def test_types_of_statistics(dtype: str, op: str, arguments: tuple[object, ...], statistic: str) -> None:
    estimate = price(f"aten.{op}.default", t(2, 6, 5, dtype=dtype), *arguments)
    assert str(estimate.out[1]) == statistic


def test_running_statistics_are_read_and_written_in_training() -> None:
    training = price("aten.batch_norm.default", X, *RUNNING, *RUNNING, True, 0.1, 1e-5, True)
    assert training.cost.read_bytes == 4 * (N + 4 * 6)
    assert training.cost.written_bytes == 4 * (N + 2 * 6)
    inference = price("aten.batch_norm.default", X, *RUNNING, *RUNNING, False, 0.1, 1e-5, True)
    assert inference.cost.read_bytes == 4 * (N + 4 * 6)
    assert inference.cost.written_bytes == 4 * N


def test_inference_writes_no_statistics_whose_size_only_the_device_tells() -> None:
    estimate = price("aten._native_batch_norm_legit_no_training.default", X, *RUNNING, *RUNNING, 0.1, 1e-5)
    assert estimate.cost.written_bytes == 4 * N


def test_symbolic_sizes() -> None:
    b, s = symbol("b"), symbol("s")
    x = t("b", "s", 64)
    estimate = price("aten.layer_norm.default", x, (64,), t(64), t(64))
    assert (estimate.vector_flops, estimate.transcendentals) == (7 * 64 * b * s, b * s)
    assert shapes(price("aten.rms_norm.default", x, (64,))) == [(b, s, 64)]
    assert price("aten.group_norm.default", t("b", 8, "s"), 2).transcendentals == 2 * b


@pytest.mark.parametrize(
    ("op", "arguments", "says"),
    [
        ("layer_norm", ((4,),), "is not the end of"),
        ("layer_norm", ((9, 2, 6, 5),), "is not the end of"),
        ("layer_norm", ((5,), ROW, t(6)), "and float32.6. do not scale .5."),
        ("rms_norm", ((6, 5), ROW), "float32.5. and None do not scale .6, 5."),
        ("group_norm", (4,), "6 channels do not make 4 groups"),
        ("group_norm", (3, t(6), t(5)), "bias float32.5. for 6 channels"),
        ("native_group_norm", (None, None, 2, 6, 4, 3, 1e-5), "elements"),
    ],
)
def test_what_cannot_be_normalised(op: str, arguments: tuple[object, ...], says: str) -> None:
    with pytest.raises(ShapeError, match=says):
        price(f"aten.{op}.default", X, *arguments)


ALL = (True, True, True)


@pytest.mark.parametrize(
    ("op", "arguments", "flops"),
    [
        ("native_layer_norm", ((5,), ROW, ROW, ROW, ROW, ALL), 13 * N),
        ("native_layer_norm", ((5,), ROW, ROW, ROW, ROW, (True, False, False)), 10 * N),
        ("native_layer_norm", ((5,), ROW, ROW, ROW, ROW, (False, True, True)), 5 * N),
        ("native_layer_norm", ((5,), ROW, ROW, None, None, ALL), 9 * N),
        ("_fused_rms_norm", ((5,), ROW, ROW, (True, True)), 9 * N),
        ("native_group_norm", (t(2, 3), t(2, 3), CHANNEL, 2, 6, 5, 3, ALL), 7 * N),
        ("native_batch_norm", (CHANNEL, *RUNNING, *RUNNING, True, 1e-5, ALL), 8 * N),
        ("native_batch_norm", (CHANNEL, *RUNNING, *RUNNING, False, 1e-5, ALL), 5 * N),
        ("native_batch_norm", (CHANNEL, *RUNNING, *RUNNING, False, 1e-5, (True, False, False)), N),
        (
            "batch_norm",
            (CHANNEL, *RUNNING, *RUNNING, True, 1e-5, (False, False, True), t(0, dtype="uint8")),
            N,
        ),
    ],
)
def test_operators_of_a_joint_graph(op: str, arguments: tuple[object, ...], flops: int) -> None:
    assert price(f"aten.{op}_backward.default", X, X, *arguments).vector_flops == flops


def test_unwanted_gradients_do_not_exist() -> None:
    arguments = (X, X, (5,), t(2, 6, 1), t(2, 6, 1), ROW, ROW, (True, False, True))
    estimate = price("aten.native_layer_norm_backward.default", *arguments)
    assert [value if value is None else str(value) for value in estimate.out] == [
        "float32[2, 6, 5]",
        None,
        "float32[5]",
    ]
    assert estimate.cost.written_bytes == 4 * (N + 5)


@pytest.mark.parametrize(
    ("op", "wants", "arguments", "flops"),
    [
        ("layer_norm", "x weight bias", {"normalized_shape": (5,), "weight": ROW, "bias": ROW}, 13 * N),
        ("layer_norm", "x", {"normalized_shape": (5,)}, 9 * N),
        ("rms_norm", "x weight", {"normalized_shape": (5,), "weight": ROW}, 9 * N),
        ("group_norm", "weight bias", {"num_groups": 3, "weight": CHANNEL, "bias": CHANNEL}, 3 * N),
    ],
)
def test_gradients_of_a_forward_call(op: str, wants: str, arguments: dict[str, object], flops: int) -> None:
    estimate = gradient(f"aten.{op}.default", wants, x=X, **arguments)
    assert estimate.vector_flops == flops
    assert len(estimate.out) == len(wants.split())


@pytest.mark.parametrize(("training", "flops"), [(True, 8 * N), (False, 5 * N)])
def test_gradients_of_batch_norm(training: bool, flops: int) -> None:
    names = ("weight", "bias", "running_mean", "running_var")
    arguments = {**dict.fromkeys(names, CHANNEL), "training": training, "momentum": 0.1, "eps": 1e-5}
    assert gradient("aten.batch_norm.default", "x weight bias", x=X, **arguments).vector_flops == flops


@pytest.mark.parametrize(
    ("op", "arguments", "flops", "functions", "results"),
    [
        ("cosine_similarity", (X, 2), 8 * N + 2 * 12, 2 * 12, [(2, 6)]),
        ("renorm", (2, 1, 1.0), 3 * N + 2 * 6, 6, [(2, 6, 5)]),
        ("_weight_norm", (t(2, 1, 1),), 3 * N + 2, 2, [(2, 6, 5)]),
        ("_weight_norm_interface", (t(1, 1, 5), 2), 3 * N + 5, 5, [(2, 6, 5), (1, 1, 5)]),
        ("norm_except_dim", (2, 1), 2 * N, 6, [(1, 6, 1)]),
        ("norm_except_dim", (2, -1), 2 * N, 1, [()]),
    ],
)
def test_operators_made_of_norms(
    op: str, arguments: tuple[object, ...], flops: int, functions: int, results: list[tuple[int, ...]]
) -> None:
    estimate = price(f"aten.{op}.default", X, *arguments)
    assert (estimate.vector_flops, estimate.transcendentals) == (flops, functions)
    assert shapes(estimate) == results


def test_gradients_of_weight_norm() -> None:
    v, g = t(2, 6, 5), t(2, 1, 1)
    assert gradient("aten._weight_norm.default", "v g", v=v, g=g).vector_flops == 5 * N
    assert gradient("aten._weight_norm.default", "g", v=v, g=g).vector_flops == 2 * N


def test_types_agree_with_torch() -> None:
    torch = pytest.importorskip("torch")
    for dtype in ("float32", "bfloat16"):
        x, row, channel = (t(*shape, dtype=dtype) for shape in ((2, 6, 5), (5,), (6,)))
        calls: dict[str, tuple[object, ...]] = {
            "native_layer_norm": (x, (5,), row, row, 1e-5),
            "native_group_norm": (x, channel, channel, 2, 6, 5, 3, 1e-5),
            "_fused_rms_norm": (x, (5,), row, None),
            "_native_batch_norm_legit": (x, channel, channel, channel, channel, True, 0.1, 1e-5),
            "_weight_norm_interface": (x, t(2, 1, 1, dtype=dtype)),
            "cosine_similarity": (x, x, 2),
            "renorm": (x, 2, 1, 1.0),
        }
        for name, arguments in calls.items():
            real = [
                torch.ones(tuple(a.shape), dtype=getattr(torch, a.dtype.name))
                if isinstance(a, TensorType)
                else a
                for a in arguments
            ]
            recorded = getattr(torch.ops.aten, name)(*real)
            recorded = recorded if isinstance(recorded, tuple) else (recorded,)
            found = [f"{str(r.dtype)[6:]}{list(r.shape)}" for r in recorded]
            assert found == [str(value) for value in price(f"aten.{name}.default", *arguments).out], name
