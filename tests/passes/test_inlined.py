"""Graphs that run once within a call: their calls run in place of it, in memory, in time and under torch.compile."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from graphflops import Training, analyze
from graphflops.analysis import as_graph
from graphflops.passes.bind import bind
from graphflops.passes.price import price
from graphflops.passes.program import PricedGraph

Tensor = torch.Tensor
SIDE = 64
WHOLE = SIDE * SIDE * 4


class Called(torch.nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(SIDE))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x * self.weight)


def main_of(function: Callable[[Tensor], Tensor]) -> PricedGraph:
    program = torch.export.export(Called(function), (torch.ones(SIDE, SIDE),), strict=False)
    graph = as_graph(program)
    return price(graph, bind(graph, {}, {}), training=Training(optimizer="none")).main


def not_recorded(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x.cos()
    return x * y


def branched(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.sin().cos() * 3, lambda x: x * 2, (x,))


def test_calls_run_in_place_of_the_call_that_held_them() -> None:
    main = main_of(not_recorded)
    (outer,) = [call for call in main.calls if call.estimate.regions]
    first, inner, last = main.inlined.calls
    assert inner.node.name == f"{outer.node.name}/cos"
    assert inner.node.outputs == outer.node.outputs  # what later calls read
    assert inner.uses == first.node.outputs
    assert last.uses == (*first.node.outputs, *inner.node.outputs)
    assert main.rows[inner.row].node == inner.node.name
    assert inner.gradient is None
    assert last.gradient is not None


def test_an_inlined_graph_is_found_once_and_others_stay_as_they_are() -> None:
    main = main_of(not_recorded)
    assert main.inlined is main.inlined
    plain = main_of(torch.relu)
    assert plain.inlined is plain


def test_the_caller_of_a_branch_holds_its_operands() -> None:
    """The branch's own last call is its product; what `torch.cond` was given lives until then, a `with` holds nothing."""
    main = main_of(branched)
    (outer,) = [call for call in main.calls if call.estimate.regions]
    assert main.inlined.until == dict.fromkeys(outer.uses, main.inlined.calls[-1].node.name)
    assert main_of(not_recorded).inlined.until == {}


@pytest.mark.parametrize(
    ("function", "peak"),
    [
        (not_recorded, 4 * WHOLE),  # x, the product, the cosine and the result
        (
            branched,
            4 * WHOLE,
        ),  # x, the product, which the caller of the branch holds, the sine and the cosine
    ],
)
def test_peaks_have_each_value_once(function: Callable[[Tensor], Tensor], peak: int) -> None:
    program = torch.export.export(Called(function), (torch.ones(SIDE, SIDE),), strict=False)
    found = analyze(program).totals.peak_bytes
    assert found == peak + (function is branched)  # the condition is one byte


def test_compiled_calls_are_computed_in_the_kernel_of_their_reader() -> None:
    """inductor traces through `torch.no_grad()`: product, cosine and product are one kernel."""
    program = torch.export.export(Called(not_recorded), (torch.ones(SIDE, SIDE),), strict=False)
    report = analyze(program, device="h200", execution="compiled")
    timed = [row.node for row in report.rows if row.time is not None and row.time.seconds > 0]
    assert len(timed) == 1
