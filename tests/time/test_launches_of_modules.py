"""Modules of torch.nn that are one operator where nothing wants a gradient: what they launch and hold."""

from __future__ import annotations

from typing import Any

import pytest

import graphflops
from graphflops.analysis import as_graph
from graphflops.devices import HOPPER
from graphflops.execution.runs import Runs
from graphflops.memory.on_gpu import Eager, GraphOnGpu, OnGpu
from graphflops.passes.attention import facts_of
from graphflops.passes.bind import bind
from graphflops.passes.price import price
from tests.time.test_launches_by_hand import launcher

torch = pytest.importorskip("torch")


class Attends(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: Any) -> Any:
        y, _ = self.attention(x, x, x, need_weights=False)
        return torch.relu(y)


@pytest.fixture(scope="module")
def program() -> Any:
    graph = as_graph(graphflops.capture(Attends().eval(), (torch.zeros(2, 5, 16),)))
    return price(graph, bind(graph, {}, {}), facts_of)


def test_calls_inside_of_a_module_cost_the_kernels_that_they_launch(program: Any) -> None:
    """11 for each; but what stands before the operator, and all with gradients, are calls of Python, of 100 or 3."""
    first, *inside, last = launcher(program).forward(records=False)[1:]
    assert (first.host_seconds, last.host_seconds) == (3 + 2 * 0.25, 100)  # two modules are entered
    assert [launch.host_seconds for launch in inside] == [11 * len(launch.kernels or ()) for launch in inside]
    assert sum(len(launch.kernels or ()) for launch in inside) == 3  # two products and the attention
    found = launcher(program).forward(records=True)[1:]
    assert all(launch.host_seconds >= (100 if launch.kernels else 3) for launch in found)


def test_a_module_is_one_call_where_nothing_wants_a_gradient(program: Any) -> None:
    def calls(kind: type[OnGpu], training: bool) -> int:
        return len(kind(program.main, training, Runs((), HOPPER, is_eager=True)).calls)

    assert calls(Eager, False) == 2  # the attention, and the relu
    assert calls(Eager, True) == len(program.main.calls) > 10
    assert calls(GraphOnGpu, False) == calls(GraphOnGpu, True) == calls(Eager, True)
