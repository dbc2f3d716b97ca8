"""Losses: work per element, reductions, picked classes, label recursions, and gradients."""

from __future__ import annotations

import pytest

from graphflops.cost import Estimate
from graphflops.dims import symbol
from graphflops.errors import ShapeError
from graphflops.rules.registry import ForwardCall, find_backward
from graphflops.tensor import TensorType
from tests.support import price, shapes, t

NONE, MEAN, SUM = 0, 1, 2
X = t(4, 10)
N = 4 * 10
LABELS = t(4, dtype="int64")
COLUMN = t(10)


def gradient(op: str, wants: str, **arguments: object) -> Estimate:
    """What the backward rule says of this forward call."""
    rule = find_backward(op)
    assert rule is not None
    return rule(ForwardCall(price(op, **arguments), arguments, frozenset(wants.split())))


@pytest.mark.parametrize(
    ("op", "arguments", "flops", "functions"),
    [
        ("mse_loss", (X, NONE), 2, 0),
        ("l1_loss", (X, NONE), 2, 0),
        ("smooth_l1_loss", (X, NONE, 0.5), 7, 0),
        ("huber_loss", (X, NONE, 0.5), 8, 0),
        ("soft_margin_loss", (X, NONE), 2, 2),
        ("binary_cross_entropy", (X, None, NONE), 7, 2),
        ("binary_cross_entropy", (X, COLUMN, NONE), 8, 2),
        ("binary_cross_entropy_with_logits", (X, None, None, NONE), 7, 2),
        ("binary_cross_entropy_with_logits", (X, COLUMN, COLUMN, NONE), 11, 2),
        ("kl_div", (X, NONE), 3, 1),
        ("poisson_nll_loss", (X, True, False, 1e-8, NONE), 2, 1),
        ("poisson_nll_loss", (X, False, True, 1e-8, NONE), 11, 3),
        ("hinge_embedding_loss", (X, 1.0, NONE), 7, 0),
        ("margin_ranking_loss", (X, X, 0.0, NONE), 5, 0),
    ],
)
def test_work_per_element(op: str, arguments: tuple[object, ...], flops: int, functions: int) -> None:
    estimate = price(f"aten.{op}.default", X, *arguments)
    assert (estimate.vector_flops, estimate.transcendentals) == (flops * N, functions * N)
    assert shapes(estimate) == [(4, 10)]


@pytest.mark.parametrize(
    ("reduction", "more", "shape"), [(NONE, 0, (4, 10)), (MEAN, N + 1, ()), (SUM, N, ())]
)
def test_reductions(reduction: int, more: int, shape: tuple[int, ...]) -> None:
    estimate = price("aten.mse_loss.default", X, X, reduction)
    assert estimate.vector_flops == 2 * N + more
    assert shapes(estimate) == [shape]


def test_operands_broadcast_and_promote() -> None:
    estimate = price("aten.mse_loss.default", t("b", 10, dtype="float16"), COLUMN, NONE)
    assert str(estimate.out[0]) == f"float32[{symbol('b')}, 10]"
    assert estimate.vector_flops == 2 * 10 * symbol("b")


@pytest.mark.parametrize(
    ("op", "arguments", "flops", "shape"),
    [
        # three products and sums per element; twelve per row
        ("cosine_embedding_loss", (X, t(4), 0.0, NONE), 6 * N + 12 * 4, (4,)),
        # two distances of four operations per element; add, subtract, clamp per row
        ("triplet_margin_loss", (X, X, 1.0, 2.0, 1e-6, False, NONE), 2 * 4 * N + 3 * 4, (4,)),
        ("triplet_margin_loss", (X, X, 1.0, 2.0, 1e-6, True, NONE), 3 * 4 * N + 4 * 4, (4,)),
        ("multi_margin_loss", (LABELS, 1, 1, None, NONE), 5 * N + 4, (4,)),
        ("multi_margin_loss", (LABELS, 2, 1, COLUMN, NONE), 7 * N + 4, (4,)),
        ("multilabel_margin_loss", (t(4, 10, dtype="int64"), NONE), 5 * N * 10 + 4, (4,)),
    ],
)
def test_losses_of_rows(op: str, arguments: tuple[object, ...], flops: int, shape: tuple[int, ...]) -> None:
    estimate = price(f"aten.{op}.default", X, *arguments)
    assert estimate.vector_flops == flops
    assert shapes(estimate) == [shape]


@pytest.mark.parametrize(
    ("x", "target", "shape"),
    [
        (X, LABELS, (4,)),
        (t(10), t(dtype="int64"), ()),
        (t(4, 10, 3, 5), t(4, 3, 5, dtype="int64"), (4, 3, 5)),
        (t("b", 10, "s"), t("b", "s", dtype="int64"), (symbol("b"), symbol("s"))),
    ],
)
def test_picked_classes(x: TensorType, target: TensorType, shape: tuple[object, ...]) -> None:
    estimate = price("aten.nll_loss_nd.default", x, target, None, NONE)
    assert shapes(estimate) == [shape]
    assert estimate.vector_flops == 2 * target.numel
    assert estimate.cost.read_bytes == (4 + 8) * target.numel  # one score and one label each


def test_weights_of_picked_classes() -> None:
    estimate = price("aten.nll_loss_forward.default", X, LABELS, COLUMN, MEAN, -100)
    assert shapes(estimate) == [(), ()]
    assert (
        estimate.vector_flops == 4 * (2 + 1 + 1) + 4 + 1
    )  # negate, compare, weight, its sum; sum and divide
    assert estimate.cost.read_bytes == 4 * (4 + 8 + 4)


def test_target_of_another_shape() -> None:
    with pytest.raises(ShapeError, match="does not fit"):
        price("aten.nll_loss_nd.default", t(4, 10, 3), t(4, 5, dtype="int64"))


@pytest.mark.parametrize(
    ("target", "options", "flops"),
    [
        (LABELS, (None, NONE), 4 * N + 2 * 4),
        (LABELS, (None, NONE, -100, 0.1), 4 * N + 2 * 4 + N + 3 * 4),
        (LABELS, (COLUMN, NONE), 4 * N + 3 * 4),
        (LABELS, (None, MEAN), 4 * N + 3 * 4 + 4 + 1),
        (X, (None, NONE), 4 * N + 2 * N + 4),
        (X, (COLUMN, NONE, -100, 0.1), 4 * N + 5 * N + 4),
    ],
)
def test_cross_entropy(target: TensorType, options: tuple[object, ...], flops: int) -> None:
    estimate = price("aten.cross_entropy_loss.default", X, target, *options)
    assert (estimate.vector_flops, estimate.transcendentals) == (flops, N + 4)


def test_cross_entropy_reads_all_scores_and_each_label() -> None:
    estimate = price("aten.cross_entropy_loss.default", t("b", 10, "s"), t("b", "s", dtype="int64"))
    assert estimate.cost.read_bytes == symbol("b") * symbol("s") * (10 * 4 + 8)
    assert shapes(estimate) == [()]


@pytest.mark.parametrize(
    ("op", "arguments", "flops", "functions"),
    [
        ("mse_loss", (X, MEAN), 3, 0),
        ("smooth_l1_loss", (X, MEAN, 1.0), 8, 0),
        ("huber_loss", (X, MEAN, 1.0), 6, 0),
        ("soft_margin_loss", (X, MEAN), 6, 1),
        ("binary_cross_entropy", (X,), 6, 0),
        ("binary_cross_entropy", (X, COLUMN), 7, 0),
        ("multi_margin_loss", (LABELS, 1, 1), 6, 0),
    ],
)
def test_operators_of_a_joint_graph(
    op: str, arguments: tuple[object, ...], flops: int, functions: int
) -> None:
    estimate = price(f"aten.{op}_backward.default", t(), X, *arguments)
    assert (estimate.vector_flops, estimate.transcendentals) == (flops * N, functions * N)
    assert shapes(estimate) == [(4, 10)]


def test_gradient_of_picked_classes_writes_all_scores() -> None:
    estimate = price("aten.nll_loss_backward.default", t(), X, LABELS, None, MEAN, -100, t())
    assert estimate.vector_flops == 2 * 4
    assert estimate.cost.written_bytes == 4 * N
    assert estimate.cost.read_bytes == 4 + 8 * 4
    assert gradient("aten.nll_loss_nd.default", "x", x=X, target=LABELS).vector_flops == 2 * 4


@pytest.mark.parametrize(
    ("op", "arguments", "wants", "flops", "functions"),
    [
        ("mse_loss", {"target": X}, "x", 3 * N, 0),
        ("mse_loss", {"target": X}, "x target", 6 * N, 0),
        ("mse_loss", {"target": COLUMN}, "target", 4 * N, 0),  # summed over the rows
        ("binary_cross_entropy_with_logits", {"target": X}, "x", 2 * N, N),
        ("kl_div", {"target": X, "log_target": True}, "x", 2 * N, N),
        ("cross_entropy_loss", {"target": LABELS}, "x", 3 * N + 2 * 4, N),
        ("cross_entropy_loss", {"target": X}, "x", 4 * N, N),
    ],
)
def test_gradients_of_a_forward_call(
    op: str, arguments: dict[str, object], wants: str, flops: int, functions: int
) -> None:
    estimate = gradient(f"aten.{op}.default", wants, x=X, **arguments)
    assert (estimate.vector_flops, estimate.transcendentals) == (flops, functions)
    assert len(estimate.out) == len(wants.split())


def test_label_recursion_visits_each_step_of_each_extended_label() -> None:
    scores, labels = t(50, 2, 20), t(2, 30, dtype="int64")
    estimate = price("aten._ctc_loss.default", scores, labels, (50, 40), (30, 10))
    states = 50 * (2 * 30 + 1) + 40 * (2 * 10 + 1)
    assert (estimate.vector_flops, estimate.transcendentals) == (9 * states, 4 * states)
    assert shapes(estimate) == [(2,), (2, 50, 61)]


def test_label_recursion_of_unknown_lengths_is_bounded_by_the_padding() -> None:
    lengths = t(2, dtype="int64")
    padded = price("aten.ctc_loss.Tensor", t(50, 2, 20), t(2, 30, dtype="int64"), lengths, lengths, 0, NONE)
    assert padded.transcendentals == 4 * 50 * 2 * 61
    assert shapes(padded) == [(2,)]
    joined = price("aten.ctc_loss.Tensor", t(50, 2, 20), t(40, dtype="int64"), lengths, lengths, 0, SUM)
    assert joined.transcendentals == 4 * 50 * (2 * 40 + 2)


def test_linear_layer_within_its_loss() -> None:
    x, weight, bias = t(8, 16), t(100, 16), t(100)
    shared = (x, weight, t(8, dtype="int64"), bias, None)
    op = "torch_nn._linear_cross_entropy_batch_chunked"
    policy = (4, "auto", None)
    estimate = price(f"{op}.default", *shared, "mean", -100, 0.0, *policy, True, True, True, False)
    assert estimate.matrix_flops == 3 * 2 * 8 * 16 * 100  # scores, and two gradients in the same pass
    assert shapes(estimate) == [(), (8, 16), (100, 16), (0,)]
    rows = price(f"{op}_no_reduction.default", *shared, -100, *policy)
    assert rows.matrix_flops == 2 * 8 * 16 * 100
    assert shapes(rows) == [(8,)]


def test_types_agree_with_torch() -> None:
    torch = pytest.importorskip("torch")
    scores, probabilities = torch.rand(4, 10), torch.rand(4, 10)
    labels = torch.arange(4)
    calls = {
        "nll_loss_forward": (scores, labels, None, MEAN, -100),
        "nll_loss2d_forward": (
            torch.rand(4, 10, 3, 5),
            torch.zeros(4, 3, 5, dtype=torch.int64),
            None,
            NONE,
            -100,
        ),
        "cross_entropy_loss": (scores, probabilities, None, NONE),
        "multilabel_margin_loss_forward": (scores, torch.zeros(4, 10, dtype=torch.int64), NONE),
        "binary_cross_entropy": (probabilities, probabilities, None, MEAN),
        "cosine_embedding_loss": (scores, scores, torch.ones(4), 0.0, NONE),
        "triplet_margin_loss": (scores, scores, scores, 1.0, 2.0, 1e-6, False, NONE),
        "margin_ranking_loss": (*(torch.ones(4, 10, dtype=torch.int64),) * 3, 0.0, NONE),
        "pairwise_distance": (torch.ones(4, 10, dtype=torch.complex64),) * 2,
        "_ctc_loss": (torch.rand(50, 2, 20), torch.ones(2, 30, dtype=torch.int64), (50, 40), (30, 10)),
    }
    for name, arguments in calls.items():
        types = (t(*a.shape, dtype=str(a.dtype)[6:]) if isinstance(a, torch.Tensor) else a for a in arguments)
        recorded = getattr(torch.ops.aten, name)(*arguments)
        recorded = recorded if isinstance(recorded, tuple) else (recorded,)
        found = [f"{str(r.dtype)[6:]}{list(r.shape)}" for r in recorded]
        assert found == [str(value) for value in price(f"aten.{name}.default", *types).out], name
