"""Which calls are believed, and what is said of lifetimes that nothing tells: of toy graphs, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace as Space
from typing import Any

import pytest

from graphflops.devices import HOPPER
from graphflops.dims import Dim, symbol
from graphflops.execution.runs import Runs, consistent
from graphflops.graph import Graph, Input, Node, Output, Ref
from graphflops.passes.attention import facts_of
from graphflops.passes.bind import bind
from graphflops.passes.price import price
from tests.one_call import program_of
from tests.support import t


def graph_of(**changes: Any) -> Any:
    """A graph of one addition, whose call is changed: its results, and what was derived of them."""
    graph = program_of("aten.add.Tensor", t(4, 8), t(4, 8)).main
    (call,) = graph.calls
    estimate = replace(
        call.estimate,
        out=changes.get("derived", call.estimate.out),
        unknown=changes.get("unknown", call.estimate.unknown),
    )
    node = replace(call.node, outputs=changes.get("outputs", call.node.outputs))
    changed = replace(call, node=node, estimate=estimate, uses=changes.get("uses", call.uses))
    return Space(
        calls=(changed,),
        values=changes.get("values", graph.values),
        graph=Space(used=changes.get("used", {"y0"})),
    )


@pytest.mark.parametrize(
    ("changes", "believed"),
    [
        ({}, True),
        ({"derived": (t(4, 8),)}, True),
        ({"derived": (t(4, 8, dtype="bfloat16"),)}, True),  # as autocasting chose
        ({"derived": (t(4, 9),)}, False),
        ({"derived": (t(4, 8, 1),)}, False),
        ({"derived": (None,)}, False),
        ({"outputs": (), "derived": ()}, False),  # nothing tells what it is for
        ({"outputs": (), "derived": (), "uses": ()}, True),
        ({"values": {}}, False),
        ({"derived": (None,), "values": {}}, True),
        ({"derived": (None,), "values": {}, "unknown": ("shape",)}, False),
        ({"unknown": ("shape",)}, True),
        ({"outputs": ("y0", None), "derived": (t(4, 8), t(3))}, True),
    ],
)
def test_calls_that_contradict_their_results(changes: dict[str, Any], believed: bool) -> None:
    graph = graph_of(**changes)
    (found,) = consistent(graph)
    assert (found.node.op == graph.calls[0].node.op) is believed
    assert (found.form is None) >= (not believed)


def test_a_call_that_is_not_believed_makes_what_the_file_records() -> None:
    (unknown,) = consistent(graph_of(derived=(), unknown=("shape",)))
    assert unknown.estimate.out == (t(4, 8),)


@pytest.mark.parametrize(
    ("shape", "used", "believed"),
    [
        ((1, 3), {"y0", "y1"}, True),
        ((1, 1, 3), {"y0", "y1"}, True),  # as PyTorch 2.11 records the states of an LSTM
        ((2, 3), {"y0", "y1"}, False),
        ((symbol("s0"), 1, 3), {"y0", "y1"}, False),  # as many for one size only
        ((2, 3), {"y0"}, True),  # nobody reads it
    ],
)
def test_a_further_result_has_as_many_elements_as_recorded(
    shape: tuple[Dim, ...], used: set[str], believed: bool
) -> None:
    values = {**dict.fromkeys(("x0", "x1", "y0"), t(4, 8)), "y1": t(*shape)}
    graph = graph_of(outputs=("y0", "y1"), derived=(t(4, 8), t(1, 3)), values=values, used=used)
    (found,) = consistent(graph)
    assert (found.node.op == graph.calls[0].node.op) is believed
    assert found.estimate.out[1].shape == shape  # type: ignore[union-attr]


def test_a_graph_without_contradictions_keeps_its_calls() -> None:
    graph = graph_of()
    assert consistent(graph) is graph.calls


def said(peak: int, **run: Any) -> list[str]:
    """The codes of what is said where one run has these fields, and the peak of the forward is so many bytes."""
    runs = Runs((), None, is_eager=True)  # type: ignore[arg-type]
    layouts = Space(typed=lambda name: {"a": t(10), "b": t(4), "open": t("n")}[name])
    runs.found = [Space(layouts=layouts, **run)]  # type: ignore[list-item]
    codes: list[str] = []
    notes = Space(say=lambda code, _place, text: codes.append(f"{code} {text.split(',')[0]}"))
    program = Space(binding=Space(examples={}), notes=notes)
    runs.say_assumed(program, Space(forward=Space(bytes=peak)))  # type: ignore[arg-type]
    return [
        code.replace("what eager execution holds is as a run of the module recorded it", "") for code in codes
    ]


RECORDED = "GF129 "


@pytest.mark.parametrize(
    ("peak", "run", "expected"),
    [
        # Ten numbers are 40 bytes: said from a hundredth of the peak on, which 4000 bytes are not above.
        (3999, {"lifetimes": Space(assumed=("a",)), "eager": None}, ["GF125 1 result"]),
        (4000, {"lifetimes": Space(assumed=("a",)), "eager": None}, []),
        (5599, {"lifetimes": Space(assumed=("a", "b")), "eager": None}, ["GF125 2 results"]),
        (5600, {"lifetimes": Space(assumed=("a", "b")), "eager": None}, []),
        (0, {"lifetimes": Space(assumed=()), "eager": None}, []),
        (0, {"lifetimes": Space(assumed=("open",)), "eager": None}, []),  # of no known size
        (0, {"lifetimes": Space(assumed=()), "eager": object()}, [RECORDED]),
        (0, {"eager": object()}, []),  # nobody asked how long it holds
        (0, {"eager": None}, []),
    ],
)
def test_lifetimes_that_nothing_tells_are_said(peak: int, run: dict[str, Any], expected: list[str]) -> None:
    assert said(peak, **run) == expected


@pytest.mark.parametrize(
    ("op", "given", "owner"),
    [
        ("view.default", ((6, 4),), "x"),
        ("relu.default", (), "y"),
        ("clone.default", (), "y"),
        ("reshape.default", ((6, 4),), "x"),
        ("reshape.default", ((3, 8),), "y"),  # the axes that it merges do not lie together
        ("contiguous.default", (), "y"),
    ],
)
def test_whose_memory_a_result_has(op: str, given: Any, owner: str) -> None:
    """What is made of a view that exchanges two axes: itself a view, or a copy."""
    turned = Node("a", "aten.transpose.int", (Ref("x"), 0, 1), (), outputs=("a",))
    node = Node("y", f"aten.{op}", (Ref("a"), *given), (), outputs=("y",))
    graph = Graph((turned, node), {"x": t(4, 6)}, (Input("x", "user"),), (Output(Ref("y")),))
    run = Runs((), HOPPER, is_eager=True).of(price(graph, bind(graph, {}, {}), facts_of).main)
    assert run.owners == {"a": "x", "y": owner}


def test_tensors_that_are_broadcast_together_have_memory_of_their_own() -> None:
    """Each result is a view of its own operand; the parts of one operand are all views of it."""
    given = {"x": t(4, 1), "w": t(1, 6)}
    both = Node("b", "aten.broadcast_tensors.default", ((Ref("x"), Ref("w")),), (), outputs=("y", "z"))
    parts = Node("c", "aten.split.Tensor", (Ref("z"), 3, 1), (), outputs=("p", "q"))
    inputs = tuple(Input(name, "user") for name in given)
    graph = Graph((both, parts), given, inputs, (Output(Ref("y")), Output(Ref("p"))))
    run = Runs((), HOPPER, is_eager=True).of(price(graph, bind(graph, {}, {}), facts_of).main)
    assert run.owners == {"y": "x", "z": "w", "p": "w", "q": "w"}
