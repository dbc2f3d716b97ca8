"""Collectives that PyTorch writes in place: three calls of an export that are one, and what keeps them three."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops import Training
from graphflops.execution.export_only import in_place
from graphflops.graph import Graph, Input, Node, Output, Ref
from graphflops.passes.attention import facts_of
from graphflops.passes.bind import bind
from graphflops.passes.price import price
from tests.one_call import g

SUM = ("all_reduce", "sum", "0")
GATHER = ("all_gather_into_tensor", 2, "0")
LINE = '  File "model.py", line 1, in forward\n    {}'


def run(
    collective: tuple[Any, ...],
    *,
    over: str = "y",
    more: tuple[Node, ...] = (),
    line: str = "",
    trained: bool = False,
) -> list[tuple[str, tuple[str, ...]]]:
    """The calls as they run, with what they read: y = 2 x is sent, and what comes is copied over a value."""
    name, *rest = collective
    whole = Node("whole", "aten.cat.default", ((Ref("x"), Ref("x")),), (), outputs=("whole",))
    nodes = (
        Node("y", "aten.mul.Tensor", (Ref("x"), 2), (), outputs=("y",)),
        whole,
        Node("sent", f"_c10d_functional.{name}.default", (Ref("y"), *rest), (), outputs=("sent",)),
        Node("came", "_c10d_functional.wait_tensor.default", (Ref("sent"),), (), outputs=("came",)),
        Node(
            "copied",
            "aten.copy_.default",
            (Ref(over), Ref("came")),
            (),
            outputs=("copied",),
            python_stack=line,
        ),
        *more,
    )
    graph = Graph(nodes, {"x": g(4, 64)}, (Input("x", "user"),), (Output(Ref("copied")),))
    training = Training(grad_inputs=("x",), optimizer="none") if trained else None
    calls = in_place(price(graph, bind(graph, {}, {}), facts_of, training=training).main.calls)
    found = [call for call in calls if call.node.name not in ("y", "whole")]
    for call in found:
        if call.node.name == "sent" and len(found) == 1:
            assert (call.node.outputs, call.estimate.alias, call.form) == (("copied",), True, None)
            if trained:
                assert call.gradient is not None
                (gradient,) = call.gradient.gradients
                assert gradient[0] == (0 if over == "y" else 1)  # the tensor that is written comes first
    return [(call.node.op.split(".")[1], call.uses) for call in found]


THREE = ["wait_tensor", "copy_"]


@pytest.mark.parametrize("trained", [False, True])
def test_a_sum_is_written_over_what_it_adds_up(trained: bool) -> None:
    assert run(SUM, trained=trained) == [("all_reduce_", ("y",))]


@pytest.mark.parametrize("trained", [False, True])
def test_what_is_gathered_is_written_into_the_tensor_that_is_given(trained: bool) -> None:
    assert run(GATHER, over="whole", trained=trained) == [("all_gather_into_tensor", ("whole", "y"))]


def test_a_copy_over_another_tensor_stays() -> None:
    assert [name for name, _ in run(SUM, over="x")] == ["all_reduce", *THREE]


@pytest.mark.parametrize("value", ["came", "sent"])
def test_what_another_call_reads_stays(value: str) -> None:
    more = (Node("read", "aten.neg.default", (Ref(value),), (), outputs=("read",)),)
    assert [name for name, _ in run(SUM, more=more)] == ["all_reduce", *THREE, "neg"]


@pytest.mark.parametrize(("line", "count"), [("y.copy_(came)", 3), ("dist.all_reduce(y)", 1)])
def test_a_copy_that_the_code_spells_stays(line: str, count: int) -> None:
    assert len(run(SUM, line=LINE.format(line))) == count
