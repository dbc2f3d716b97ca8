"""The calls of a program's graphs as a GPU runs them, and how their values lie; memory and time are found from the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from graphflops.memory.export_only import as_run
from graphflops.memory.fast_path import with_fast_paths
from graphflops.memory.layouts import Layouts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.attention import AttentionUse
    from graphflops.passes.program import PricedCall, PricedGraph


class Run(NamedTuple):
    """The calls of one graph in the order in which they run, and how their values lie in memory."""

    calls: Sequence[PricedCall]
    layouts: Layouts


class Runs:
    """The runs of the graphs of one program, each found once.

    is_eager: Python runs the program, so the masks are not built that only an export has.
    """

    def __init__(self, attentions: Sequence[AttentionUse], *, is_eager: bool) -> None:
        self.attentions = attentions
        self.is_eager = is_eager
        self.known: dict[tuple[PricedGraph, bool], Run] = {}

    def of(self, graph: PricedGraph, *, has_fast_paths: bool = False) -> Run:
        """The run of a graph. has_fast_paths: modules that have one are a single call, as where nothing wants a gradient."""
        key = (graph, has_fast_paths)
        if key not in self.known:
            self.known[key] = self._found(graph, has_fast_paths)
        return self.known[key]

    def _found(self, graph: PricedGraph, has_fast_paths: bool) -> Run:
        calls: Sequence[PricedCall] = graph.calls
        if has_fast_paths:
            weights = {entry.name for entry in graph.graph.inputs if entry.role != "user"}
            calls = with_fast_paths(graph.calls, graph.values, weights, graph.graph.returned)
            if calls is graph.calls:
                return self.of(graph)
        calls = as_run(calls, self.attentions) if self.is_eager else calls
        return Run(calls, Layouts(calls, graph.values, graph.graph.orders))
