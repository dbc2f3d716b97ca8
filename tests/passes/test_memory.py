"""Peak memory: which values are alive together, in inference and in training. Graphs are written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.analysis import analyze
from graphflops.dims import evaluate, symbol
from graphflops.graph import Graph, Input, Node, Output, Ref, Symbol
from graphflops.report import Report
from graphflops.tensor import TensorType
from tests.support import t

UNIT = 4 * 8 * 8  # bytes of every tensor here but the loss: an (8, 8) of float32


def run(*calls: tuple[str, str, tuple[Any, ...]], outputs: str = "loss", **types: TensorType) -> Report:
    """Analyze calls (result, operator, operands) for training; `w...` are parameters, x is the input; results are (8, 8)."""
    nodes = tuple(
        Node(
            name.split()[0],
            f"aten.{op}",
            tuple(Ref(a) if isinstance(a, str) else a for a in args),
            outputs=tuple(name.split()),
        )
        for name, op, args in calls
    )
    made = [name for call in calls for name in call[0].split()]
    given = dict.fromkeys(
        (arg for _, _, args in calls for arg in args if isinstance(arg, str) and arg not in made), t(8, 8)
    )
    values = {**given, **dict.fromkeys(made, t(8, 8)), "loss": t(), **types}
    inputs = tuple(Input(name, "parameter" if name.startswith("w") else "user", name) for name in given)
    trained = {
        name: TensorType(
            value.shape, value.dtype, requires_grad=name.startswith("w") and "_frozen" not in name
        )
        for name, value in values.items()
    }
    returned = tuple(Output(Ref(name)) for name in outputs.split())
    graph = Graph(nodes, trained, inputs, returned, symbols={"n": Symbol("n")})
    report = analyze(graph, training=True)
    assert not report.coverage.unknown
    return report


def peak(report: Report) -> int:
    assert report.backward is not None
    assert isinstance(report.backward.peak_bytes, int)
    return report.backward.peak_bytes


LOSS = ("loss", "sum.default", ("y",))
SCALAR = 4  # the loss; its gradient is another, which that of the summed y is a view of


def test_a_product_keeps_the_operand_of_a_wanted_weight() -> None:
    # x and the gradient of w; y is dropped after the sum
    assert peak(run(("y", "mm.default", ("x", "w")), LOSS)) == 2 * SCALAR + 2 * UNIT


def test_a_frozen_weight_keeps_no_operand() -> None:
    frozen = (("b", "mm.default", ("a", "w_frozen1")), ("y", "mm.default", ("b", "w_frozen2")))
    # x and two gradients at a time: none reads a, b or y
    assert peak(run(("a", "mm.default", ("x", "w")), *frozen, LOSS)) == SCALAR + 3 * UNIT


@pytest.mark.parametrize(
    "op, expected",
    [
        # both results are kept for the next product anyway: at a product x, them, gradients of the last weight, result
        # and operand, and in the middle one another weight's in place of the second result
        *((op, SCALAR + (1 + 2 + 3) * UNIT) for op in ("relu.default", "tanh.default", "sigmoid.default")),
        # x, both operands, both results; the gradients of the last weight and of the second result
        *((op, 2 * SCALAR + (1 + 4 + 2) * UNIT) for op in ("gelu.default", "silu.default")),
    ],
)
def test_activations_keep_their_operand_or_their_result(op: str, expected: int) -> None:
    first = (("p1", "mm.default", ("x", "w1")), ("h1", op, ("p1",)))
    second = (("p2", "mm.default", ("h1", "w2")), ("h2", op, ("p2",)))
    assert peak(run(*first, *second, ("y", "mm.default", ("h2", "w3")), LOSS)) == expected


def test_an_addition_keeps_nothing_and_its_gradient_is_the_results() -> None:
    chain = (("a", "mm.default", ("x", "w")), ("y", "add.Tensor", ("a", "x")), LOSS)
    # x, a and y at the addition; backward: x and the gradient of w
    assert peak(run(*chain)) == 3 * UNIT


def test_a_view_of_a_result_has_no_gradient_of_its_own() -> None:
    flat = {"v": t(64), "y": t(64)}
    chain = (
        ("a", "mm.default", ("x", "w")),
        ("v", "view.default", ("a", (64,))),
        ("y", "exp.default", ("v",)),
    )
    # x, y and the gradient of v, which is a's too
    assert peak(run(*chain, LOSS, **flat)) == 2 * SCALAR + 3 * UNIT


def test_a_second_gradient_is_added_in_place() -> None:
    chain = (
        ("a", "mm.default", ("x", "w")),
        ("e", "exp.default", ("a",)),
        ("y", "mul.Tensor", ("e", "e")),
        LOSS,
    )
    # x, e, both gradients of e; then one of them and that of a
    assert peak(run(*chain)) == 2 * SCALAR + 4 * UNIT


def test_a_gradient_that_others_hold_is_added_to_in_new_memory() -> None:
    chain = (
        ("a", "mm.default", ("x", "w")),
        ("e", "exp.default", ("a",)),
        ("y", "add.Tensor", ("e", "e")),
        LOSS,
    )
    # both gradients of e are that of y, a view of the loss's; x, e, their sum, the gradient of a
    assert peak(run(*chain)) == SCALAR + 4 * UNIT


def test_a_mask_made_on_the_way_is_kept() -> None:
    chain = (("a", "mm.default", ("x", "w")), ("y", "dropout.default", ("a", 0.5, True)), LOSS)
    # x, a, y and one byte per element
    assert peak(run(*chain)) == 3 * UNIT + 64


def test_logits_live_in_four_places_at_a_cross_entropy() -> None:
    target = {"t": t(8, dtype="int64")}
    chain = (("a", "mm.default", ("x", "w")), ("loss", "cross_entropy_loss.default", ("a", "t")))
    report = run(*chain, **target)
    # x, t, the logarithms, their gradient, that of a
    assert peak(report) == 2 * SCALAR + 8 * 8 + 4 * UNIT
    assert report.backward is not None
    assert report.backward.peak_node == "loss"
    # without gradients: x, t, a and its logarithms
    assert report.totals.peak_bytes == SCALAR + 8 * 8 + 3 * UNIT


def test_several_results_bring_a_gradient_each() -> None:
    chain = (("a", "mm.default", ("x", "w1")), ("b", "mm.default", ("x", "w2")))
    # x, both results and their gradients, both gradients of weights
    assert peak(run(*chain, outputs="a b")) == 6 * UNIT


def test_a_symbolic_peak_holds_for_small_and_large_sizes() -> None:
    """Of many layers: the last call has the most gradients of parameters, the first the most activations."""
    n = symbol("n")
    calls: list[tuple[str, str, tuple[Any, ...]]] = []
    for layer in range(40):
        calls += [
            (f"p{layer}", "mm.default", (f"h{layer}", f"w{layer}")),
            (f"h{layer + 1}", "relu.default", (f"p{layer}",)),
        ]
    calls += [("y", "mm.default", ("h40", "w40")), LOSS]
    rows = {name: t(n, 8) for call in calls for name in (call[0], call[2][0]) if name != "loss"}
    symbolic = run(*calls, **rows)
    assert symbolic.backward is not None
    for size in (1, 2, 8, 64, 10**6):
        plain = run(*calls, **{name: t(size, 8) for name in rows})
        assert evaluate(symbolic.backward.peak_bytes, {"n": size}) == peak(plain)
