"""How the calls of a composite stand in the place of it: names, forms, lifetimes and gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from graphflops.execution.composed_losses import expanded
from graphflops.execution.composites import Calls, Operand
from graphflops.graph import Graph, Input, Node, Output, Ref
from graphflops.passes.bind import bind
from graphflops.passes.price import price
from graphflops.tensor import TensorType
from tests.one_call import g, program_of
from tests.support import t

X = g(3, 4)


def several() -> Any:
    """A relu, a loss of four calls (difference, magnitude, mean), and a relu of another value."""
    values = {"x": g(3, 4), "z": t(3, 4)}
    nodes = (
        Node("a", "aten.relu.default", (Ref("x"),), outputs=("a",)),
        Node("b", "aten.l1_loss.default", (Ref("a"), Ref("z")), outputs=("b",)),
        Node("c", "aten.relu.default", (Ref("z"),), outputs=("c",)),
    )
    inputs = tuple(Input(name, "user") for name in values)
    graph = Graph(nodes, values, inputs, (Output(Ref("b")), Output(Ref("c"))))
    return price(graph, bind(graph, {}, {})).main


def test_calls_stand_in_the_place_of_a_composite() -> None:
    main = several()
    found = expanded(main.calls, main.values)
    words = [call.node.operator.word for call in found.calls]
    assert words == ["relu", "sub", "abs", "mean", "relu"]
    assert [place for _, place in found.given] == [0, 3, 4]
    assert [call.node.name for call, _ in found.given] == ["a", "b", "c"]
    assert {name: node.name for name, node in found.outer.items()} == dict.fromkeys(
        (call.node.name for call in found.calls[1:4]), "b"
    )
    assert found.calls[3].node.outputs == ("b",)  # the last makes the result of the loss
    assert found.calls[1].uses == ("a", "z")


def test_values_of_a_composite_live_to_its_end() -> None:
    """And so do its operands; what is made before and after is not bound by it."""
    main = several()
    found = expanded(main.calls, main.values)
    difference, magnitude = (call.node.outputs[0] for call in found.calls[1:3])
    assert {found.until[name] for name in (difference, magnitude, "a", "z")} == {3}  # type: ignore[index]
    assert "c" not in found.until
    sizes = [found.values[name] for name in (difference, magnitude)]  # type: ignore[index]
    assert [x.shape for x in sizes if isinstance(x, TensorType)] == [(3, 4), (3, 4)]


def test_what_functions_let_go_lives_to_their_end() -> None:
    """Of a margin loss the difference and its product end with the expression, before the loss does."""
    main = program_of("aten.margin_ranking_loss.default", X, X, t(3, 4)).main
    found = expanded(main.calls, main.values)
    words = [call.node.operator.word for call in found.calls]
    assert words == ["neg", "sub", "mul", "add", "clamp_min_", "mean"]
    until = [found.until[name] for call in found.calls[:-1] for name in call.node.outputs]  # type: ignore[index]
    assert until == [3, 3, 3, 5, 5]


def test_a_program_without_composites_is_as_it_was() -> None:
    main = program_of("aten.relu.default", X).main
    found = expanded(main.calls, main.values)
    assert (found.calls, found.values, found.until, found.outer) == (main.calls, main.values, {}, {})
    assert [*found.given] == [(main.calls[0], 0)]


@pytest.mark.parametrize(
    "change",
    [
        lambda call: replace(call, estimate=replace(call.estimate, unknown="no rule")),
        lambda call: replace(call, node=replace(call.node, outputs=(None,))),
        lambda call: replace(call, node=replace(call.node, outputs=("y0", "y1"))),
        lambda call: replace(call, node=replace(call.node, args=(*call.node.args, "none", 7, 8, 9))),
    ],
)
def test_calls_that_are_not_atens_function_stay_whole(change: Any) -> None:
    main = program_of("aten.l1_loss.default", X, t(3, 4)).main
    call = change(main.calls[0])
    assert [*expanded((call,), main.values).calls] == [call]


def test_forms_of_inner_calls_are_those_of_the_outer_one() -> None:
    """No two forms share a number; a call without a form has inner ones without."""
    main = program_of("aten.l1_loss.default", X, t(3, 4)).main
    (call,) = main.calls
    forms = [
        [each.form for each in expanded((replace(call, form=form),), main.values).calls] for form in (0, 1, 7)
    ]
    assert len({number for each in forms for number in each}) == 3 * 3
    assert all(number >= 2**32 for each in forms for number in each if number is not None)
    assert forms[0] == [2**32, 2**32 + 1, 2**32 + 2]
    bare = expanded((replace(call, form=None),), main.values).calls
    assert [each.form for each in bare] == [None] * 3


@pytest.mark.parametrize(("operand", "trained"), [(X, True), (t(3, 4), False)])
def test_gradients_of_inner_calls(operand: TensorType, trained: bool) -> None:
    main = program_of("aten.l1_loss.default", operand, t(3, 4)).main
    found = expanded(main.calls, main.values).calls
    assert [call.gradient is not None for call in found] == [trained] * 3


def calls(*, records: bool = True, op: str = "aten.sinc.default") -> Calls:
    main = program_of(op, X).main
    return Calls(main.calls[0], main.values, records=records)


def test_autograd_sees_no_calls_of_a_kernel_or_a_gradient() -> None:
    seen, unseen = calls(), calls(records=False)
    for each in (seen, unseen):
        each.mul(Operand("x0", X), 2.0)
        assert (each.out.name, each.g.name) == ("y0", "y0/gradient")
        assert each.g.type.shape == (3, 4)
    assert seen.calls[0].gradient is not None
    assert unseen.calls[0].gradient is None


def test_in_place_calls_write_over_their_operand() -> None:
    """An operator of its own name in place, and one that is priced as the other is."""
    made = calls()
    first = made.mul(Operand("x0", X), 2.0)
    made.add_(first, 1.0)
    assert [call.in_place for call in made.calls] == [False, True]
    assert made.beside(0) == 4 * 3 * 4  # one tensor for both
    made.add(first, 1.0)
    assert made.beside(0) == 2 * 4 * 3 * 4
    assert made.beside(4 * 3 * 4) == 4 * 3 * 4
    assert made.beside(10**6) == 0
