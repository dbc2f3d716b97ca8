"""The softmax family and dropout."""

from __future__ import annotations

import pytest

from graphflops.cost import Estimate
from graphflops.dims import symbol
from graphflops.errors import ShapeError
from graphflops.rules.registry import ForwardCall, find_backward
from graphflops.tensor import FLOAT16, FLOAT32
from tests.support import price, shapes, t

N = 4 * 10


def gradient(op: str, **arguments: object) -> Estimate:
    """What the backward rule says of this forward call, whose `x` wants a gradient."""
    rule = find_backward(op)
    assert rule is not None
    return rule(ForwardCall(price(op, **arguments), arguments, frozenset({"x"})))


@pytest.mark.parametrize(
    ("op", "arguments", "flops", "functions"),
    [
        ("softmax.int", (1,), 4 * N, N),
        ("special_softmax.default", (-1,), 4 * N, N),
        ("_softmax.default", (1, False), 4 * N, N),
        ("_safe_softmax.default", (1,), 7 * N, N),
        ("_masked_softmax.default", (t(4, 10, dtype="bool"), 1), 5 * N, N),
        ("log_softmax.int", (1,), 4 * N, N + 4),
        ("log_softmax.int", (0,), 4 * N, N + 10),
        ("_log_softmax.default", (-1, False), 4 * N, N + 4),
        ("_softmax_backward_data.default", (t(4, 10), 1, FLOAT32), 4 * N, 0),
        ("_log_softmax_backward_data.default", (t(4, 10), 1, FLOAT32), 3 * N, N),
    ],
)
def test_work_per_element(op: str, arguments: tuple[object, ...], flops: int, functions: int) -> None:
    estimate = price(f"aten.{op}", t(4, 10), *arguments)
    assert (estimate.vector_flops, estimate.transcendentals) == (flops, functions)
    assert shapes(estimate) == [(4, 10)]
    assert estimate.matrix_flops == 0


def test_change_of_type_is_one_operation_more() -> None:
    half = t(4, 10, dtype="float16")
    estimate = price("aten._softmax.default", half, 1, True)
    assert (str(estimate.out[0]), estimate.vector_flops) == ("float32[4, 10]", 5 * N)
    back = price("aten._softmax_backward_data.default", t(4, 10), t(4, 10), 1, FLOAT16)
    assert (str(back.out[0]), back.vector_flops) == ("float16[4, 10]", 5 * N)


def test_symbolic_rows() -> None:
    s = symbol("s")
    assert price("aten.log_softmax.int", t("s", 8), -1).transcendentals == 8 * s + s


def test_scalar_and_missing_axis() -> None:
    assert shapes(price("aten.softmax.int", t(), 0)) == [()]
    with pytest.raises(ShapeError):
        price("aten.softmax.int", t(4, 10), 2)


@pytest.mark.parametrize(("op", "flops"), [("aten.softmax.int", 4), ("aten.log_softmax.int", 3)])
def test_gradient_reads_the_result_instead_of_the_operand(op: str, flops: int) -> None:
    estimate = gradient(op, x=t(4, 10), dim=1)
    assert estimate.vector_flops == flops * N
    assert estimate.cost.read_bytes == 2 * N * 4


@pytest.mark.parametrize(
    ("op", "flops"),
    [
        ("dropout", 3 * 24 * 5),
        ("alpha_dropout", 7 * 24 * 5),
        ("feature_dropout", 24 * 2 + 24 * 5),
        ("feature_alpha_dropout", 24 * 5 + 24 * 5 * 2),
    ],
)
def test_dropout_in_training(op: str, flops: int) -> None:
    estimate = price(f"aten.{op}.default", t(4, 6, 5), 0.5, True)
    assert estimate.vector_flops == flops
    assert (estimate.cost.read_bytes, estimate.cost.written_bytes) == (480, 480)


@pytest.mark.parametrize("op", ["dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout"])
@pytest.mark.parametrize(("p", "train"), [(0.5, False), (0.0, True)])
def test_dropout_that_drops_nothing_is_free(op: str, p: float, train: bool) -> None:
    estimate = price(f"aten.{op}.default", t("b", 6), p, train)
    assert estimate.alias
    assert not estimate.cost


def test_stored_mask_of_dropout() -> None:
    estimate = price("aten.native_dropout.default", t(4, 6), 0.5, True)
    assert [str(value) for value in estimate.out] == ["float32[4, 6]", "bool[4, 6]"]
    assert estimate.cost.written_bytes == 24 * 4 + 24
    inference = price("aten.native_dropout.default", t(4, 6), 0.5, False)
    assert (inference.vector_flops, inference.cost.read_bytes, inference.cost.written_bytes) == (0, 0, 24)
    backward = price("aten.native_dropout_backward.default", t(4, 6), t(4, 6, dtype="bool"), 2.0)
    assert (backward.vector_flops, backward.cost.read_bytes) == (2 * 24, 24 * 4 + 24)


def test_gradient_of_dropout() -> None:
    estimate = gradient("aten.dropout.default", x=t(4, 6), p=0.5, train=True)
    assert estimate.vector_flops == 2 * 24
    assert not gradient("aten.dropout.default", x=t(4, 6), p=0.5, train=False).cost
    channels = gradient("aten.feature_dropout.default", x=t(4, 6, 5), p=0.5, train=True)
    assert (channels.vector_flops, channels.cost.read_bytes) == (120, 4 * (120 + 24))
