"""Launches of graphs that run inside of calls: where their rows stand, how often they run, in which order."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops import Training
from graphflops.devices import HOPPER, device
from graphflops.execution.runs import Runs
from graphflops.graph import Graph, Input, Node, Output, Ref
from graphflops.passes.attention import facts_of
from graphflops.passes.bind import bind
from graphflops.passes.price import price
from graphflops.tensor import TensorType
from graphflops.time.launches import Launcher
from tests.one_call import g
from tests.support import t


def node(name: str, op: str, *args: Any) -> Node:
    return Node(name, op, args, (), outputs=(name,))


def graph(*nodes: Node, given: dict[str, TensorType], name: str = "") -> Graph:
    inputs = tuple(Input(each, "user") for each in given)
    return Graph(nodes, given, inputs, (Output(Ref(nodes[-1].name)),), name=name)


def inner(name: str, *calls: str) -> Graph:
    """Calls one after the other on a row of four numbers."""
    made, value = [], "s"
    for place, call in enumerate(calls):
        made.append(node(f"{name}{place}", f"aten.{call}.default", Ref(value)))
        value = f"{name}{place}"
    return graph(*made, given={"s": g(4)}, name=name)


def launched(outer: Graph, *, is_backward: bool = False, turns: int = 0) -> list[tuple[int, int, int]]:
    """Row, how often, and how many kernels, but for what begins a phase."""
    wanted = tuple(name for name, value in outer.types.items() if getattr(value, "requires_grad", False))
    training = Training(grad_inputs=wanted, optimizer="none", loss="given") if wanted else None
    program = price(outer, bind(outer, {}, {}), facts_of, training=training)
    host = device("h200").host
    assert host is not None
    (loop,) = [call.estimate.regions for call in program.main.calls if "while" in call.node.op] or [()]
    values = {name: turns for _, often in loop for name in getattr(often, "symbols", ())}
    launcher = Launcher(program, values, Runs((), HOPPER, is_eager=True), host.seconds)
    found = launcher.backward() if is_backward else launcher.forward(records=training is not None)
    assert [launch.row for launch in found].count(-1) == 1
    return [(launch.row, launch.times, len(launch.kernels or ())) for launch in found if launch.row >= 0]


def mapped(*, trained: bool) -> Graph:
    """sin, then for each of five rows relu and neg, then cos: rows 0, 1, 2 and 3 within 1, and 4."""
    x = g(5, 4) if trained else t(5, 4)
    return graph(
        node("a", "aten.sin.default", Ref("x")),
        node("m", "higher_order.map_impl", inner("body", "relu", "neg"), (Ref("a"),), ()),
        node("c", "aten.cos.default", Ref("m")),
        given={"x": x},
    )


def test_a_map_runs_its_body_as_often_as_there_are_rows() -> None:
    found = launched(mapped(trained=False))
    assert found == [(0, 1, 1), (1, 1, 0), (2, 5, 1), (3, 5, 1), (4, 1, 1)]


def test_its_gradients_run_from_the_last_to_the_first() -> None:
    found = launched(mapped(trained=True), is_backward=True)
    # of cos and sin three and two kernels: minus the sine, and a product; of relu and neg one each
    assert [entry for entry in found if entry[2]] == [(4, 1, 3), (3, 5, 1), (2, 5, 1), (0, 1, 2)]


@pytest.mark.parametrize("longer", [0, 1])
def test_of_two_branches_the_one_that_costs_more_runs(longer: int) -> None:
    branches = [inner("short", "exp"), inner("brief", "exp")]
    branches[longer] = inner("long", "exp", "exp", "exp")
    outer = graph(
        node("y", "higher_order.cond", Ref("p"), *branches, (Ref("x"),)),
        given={"p": t(dtype="bool"), "x": t(4)},
    )
    assert [entry for entry in launched(outer) if entry[2]] == [(1, 1, 1), (2, 1, 1), (3, 1, 1)]


@pytest.mark.parametrize(
    ("turns", "often"), [(3, [(1, 3, 1), (2, 4, 1), (3, 4, 1)]), (0, [(2, 1, 1), (3, 1, 1)])]
)
def test_a_loop_asks_once_more_than_it_runs(turns: int, often: list[tuple[int, int, int]]) -> None:
    """The body has row 1, the condition the two behind it."""
    total = node("total", "aten.sum.default", Ref("s"))
    asks = graph(total, node("less", "aten.lt.Scalar", Ref("total"), 9.0), given={"s": t(4)}, name="asks")
    body = inner("body", "exp")
    outer = graph(node("w", "higher_order.while_loop", asks, body, (Ref("x"),), ()), given={"x": t(4)})
    assert [entry for entry in launched(outer, turns=turns) if entry[2]] == often
