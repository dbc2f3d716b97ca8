"""The verifier of graphs: one line for each defect, none for a well-formed graph."""

from __future__ import annotations

from dataclasses import replace

import pytest
from click.testing import CliRunner

from graphflops.cli import main
from graphflops.dims import symbol
from graphflops.errors import ModelError
from graphflops.exporters import load
from graphflops.graph import Graph, Input, Node, Output, Ref, Symbol
from graphflops.verify import defects, verify
from tests.support import t

INNER = Graph(
    (Node("inner", "aten.relu.default", (Ref("a"),), outputs=("inner",)),),
    {"a": t(4), "inner": t(4)},
    (Input("a", "user"),),
    (Output(Ref("inner")),),
    name="branch",
    captures=("x",),
)
RELU = Node("y", "aten.relu.default", (Ref("x"),), outputs=("y",))
GOOD = Graph((RELU,), {"x": t(4), "y": t(4)}, (Input("x", "user", "x"),), (Output(Ref("y")),))


def calling(nested: Graph) -> Graph:
    """The good graph with a call of a nested graph."""
    call = Node("z", "higher_order.wrap", (nested, Ref("y")), outputs=("z",))
    return replace(GOOD, nodes=(RELU, call), types={**GOOD.types, "z": t(4)})


@pytest.mark.parametrize(
    ("graph", "found"),
    [
        (GOOD, []),
        (calling(INNER), []),
        (
            replace(GOOD, nodes=(replace(RELU, args=(Ref("w"),)),)),
            ["y: operand 0 is w, which is not defined before"],
        ),
        (replace(GOOD, nodes=(RELU, replace(RELU, name="y2"))), ["y is defined twice"]),
        (replace(GOOD, nodes=(RELU, replace(RELU, outputs=()))), ["two calls have the name y"]),
        (replace(GOOD, types={"x": t(4)}), ["y has no type"]),
        (replace(GOOD, types={"x": t(4), "y": [4]}), ["y has the type list, which is none"]),
        (
            replace(GOOD, types={"x": t(symbol("n")), "y": t(4)}),
            ["the type of x has the unknown size n"],
        ),
        (replace(GOOD, symbols={"n": Symbol("n", 8, 4)}), ["size n has the empty range 8..4"]),
        (replace(GOOD, outputs=(Output(Ref("q")),)), ["output 0 is q, which is not defined"]),
        (replace(GOOD, outputs=(Output(Ref("y"), "mutation"),)), ["output 0 is a mutation of nothing"]),
        (replace(GOOD, inputs=(Input("x", "weight"),)), ["input x has the unknown role weight"]),
        (
            replace(GOOD, inputs=(Input("x", "parameter", "x", alias_of="v"),)),
            ["input x shares memory with v, which is no input"],
        ),
        (
            calling(replace(INNER, captures=("w",))),
            ["z: operand 0.w is w, which is not defined before"],
        ),
        (
            calling(replace(INNER, nodes=(replace(INNER.nodes[0], args=(Ref("y"),)),))),
            ["z/branch: inner: operand 0 is y, which is not defined before"],
        ),
    ],
)
def test_each_defect_is_one_line(graph, found):
    assert defects(graph) == found


def test_an_ill_formed_graph_is_refused_with_all_of_its_defects():
    with pytest.raises(ModelError, match=r"^y is defined twice\noutput 0 is q, which is not defined$"):
        verify(replace(GOOD, nodes=(RELU, replace(RELU, name="y2")), outputs=(Output(Ref("q")),)))


def test_types_that_an_onnx_file_leaves_out_are_no_defect():
    assert defects(replace(GOOD, types={"x": t(4)}, declared={})) == []


@pytest.mark.ill_formed
def test_the_command_line_verifies_what_a_reader_made(monkeypatch):
    good = load("samples/convnet.pt2")
    monkeypatch.setattr("graphflops.exporters.load", lambda *_: good)
    command = ["analyze", "samples/convnet.pt2", "--verify"]
    assert CliRunner().invoke(main, command).exit_code == 0
    bad = replace(good, nodes=good.nodes[1:])
    monkeypatch.setattr("graphflops.exporters.load", lambda *_: bad)
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 1
    assert f"operand 0 is {good.nodes[0].outputs[0]}, which is not defined before" in result.output
