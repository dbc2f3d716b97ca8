"""A change of wiring that keeps all costs is a change, said in words; what computes the same is none."""

from __future__ import annotations

from graphflops import analyze, compare
from graphflops.base.record import replace
from graphflops.graph import Graph, Input, Node, Output, Ref
from graphflops.report import Report
from tests.support import t

LAYERS = 3


def relu(name: str, read: str, module: str) -> Node:
    return Node(name, "aten.relu.default", (Ref(read),), (), (name,), module)


def add(name: str, a: str, b: str, module: str) -> Node:
    return Node(name, "aten.add.Tensor", (Ref(a), Ref(b)), (), (name,), module)


def residual(
    skips: set[int] = frozenset(range(LAYERS)), extra: tuple[Node, ...] = (), swapped: bool = False
) -> Graph:
    """Layers `x = x + relu(x)`; those without a skip connection add the branch to itself, which costs the same."""
    nodes, x = [*extra], "x"
    for layer in range(LAYERS):
        nodes.append(relu(f"relu{layer}", x, f"layers.{layer}.act"))
        operands = [x if layer in skips else f"relu{layer}", f"relu{layer}"]
        nodes.append(add(f"add{layer}", *(operands[::-1] if swapped else operands), f"layers.{layer}"))
        x = f"add{layer}"
    types = dict.fromkeys(["x", *(node.name for node in nodes)], t(8, 8))
    return Graph(tuple(nodes), types, (Input("x", "user"),), (Output(Ref(x)),), modules={"": "Model"})


def wiring(old: Graph | Report, new: Graph | Report) -> str:
    found = compare(old, new)
    said = [remark.message for remark in found.remarks if remark.name == "rewired"]
    assert found.same == (not said)
    return "".join(said)


def test_a_skip_connection_that_is_gone_is_a_change():
    said = wiring(residual(), residual(skips={0, 2}))
    assert said == "wiring: add of layers.1 reads relu of layers.1.act, no longer add of layers.0"
    assert said in compare(residual(), residual(skips={0, 2})).summary(width=200)


def test_those_of_repeated_layers_are_told_together():
    said = wiring(residual(), residual(skips=set()))
    assert "add of layers.1-2 reads relu of layers.1-2.act, no longer add of layers.0-1" in said
    assert "add of layers.0 reads relu of layers.0.act, no longer input x" in said


def test_saved_reports_tell_it_too():
    old, new = (Report.from_json(analyze(graph).to_json()) for graph in (residual(), residual(skips={0, 2})))
    assert "no longer add of layers.0" in wiring(old, new)


def test_equal_wiring_is_no_change():
    assert wiring(residual(), residual()) == ""
    assert wiring(residual(), residual(swapped=True)) == "", "the order of what is added"


def test_views_are_looked_through():
    def viewed(name: str) -> Graph:
        nodes = (
            relu("a", "x", "m"),
            Node("v", "aten.view.default", (Ref("a"), (8, 8)), (), ("v",), "m"),
            Node("n", "aten.neg.default", (Ref(name),), (), ("n",), "m"),
        )
        return Graph(nodes, dict.fromkeys("xavn", t(8, 8)), (Input("x", "user"),), (Output(Ref("n")),))

    assert wiring(viewed("a"), viewed("v")) == ""


def test_equal_calls_of_equal_operands_are_one_value():
    def twice(read: str) -> Graph:
        nodes = (
            relu("a", "x", "m"),
            relu("b", "x", "m"),
            Node("n", "aten.neg.default", (Ref(read),), (), ("n",), "m"),
        )
        return Graph(nodes, dict.fromkeys("xabn", t(8, 8)), (Input("x", "user"),), (Output(Ref("n")),))

    assert wiring(twice("a"), twice("b")) == ""


def test_a_program_that_returns_more_is_not_the_same() -> None:
    one = residual()
    two = replace(one, outputs=(*one.outputs, Output(Ref("add0"))))
    found = compare(one, two)
    assert not found.same
    assert [remark.message for remark in found.remarks] == ["the program returns 2 results, 1 before"]
    assert compare(two, two).same
