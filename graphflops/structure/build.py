"""The graph of a report: a node for each call, input, weight and result; an edge for each use of a value."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from graphflops.errors import OptionError, require_choice, shown
from graphflops.ops import operator
from graphflops.report import GraphLevel
from graphflops.structure.fold import folded
from graphflops.structure.measures import Measures
from graphflops.structure.wiring import wiring

if TYPE_CHECKING:
    from collections.abc import Container

    import networkx

    from graphflops.report import Report
    from graphflops.structure.measures import Attributes
    from graphflops.structure.wiring import Wiring


def graph_of(report: Report, level: GraphLevel = "call", depth: int | None = 2) -> networkx.MultiDiGraph:
    """The program of a report as `Report.graph` describes it."""
    require_choice("level", level, get_args(GraphLevel))
    program = Program(report)
    return program.calls if level == "call" else program.modules(depth)


class Program:
    """The program of a report. calls: its graph of calls, which the graph of modules is folded from."""

    def __init__(self, report: Report) -> None:
        import networkx

        self.report, self.measures, self.found = report, Measures(report), wiring(report)
        told: Attributes = {"name": report.origin.path} if report.origin.path else {}
        told |= {"saved": True} if report.program is None else {}
        self.calls = graph = networkx.MultiDiGraph(level="call", **told, **self.measures.totals())
        _add_nodes(graph, report, self.found, self.measures)
        types: dict[int, Attributes] = {}
        for number, (maker, user, slot, value, typed) in enumerate(self.found.uses):
            known = types.get(id(typed))
            if known is None:
                known = types[id(typed)] = self.measures.tensor(typed)
            weight = graph.nodes[maker]["kind"] == "weight"
            graph.add_edge(maker, user, number, slot=slot, value=value, weight=weight, count=1, **known)

    def modules(self, depth: int | None, part: Container[str] | None = None) -> networkx.MultiDiGraph:
        """The graph of modules, or of those of its calls, inputs and results that are in a part.

        That of calls where all are in one module. Layers whose calls have a `stage` stand in that stage alone. Raises
        OptionError for a depth below 1.
        """
        if depth is not None and depth < 1:
            raise OptionError(f"depth is {shown(str(depth))}: levels of modules, at least 1")
        found = self.found if part is None else self.found.within(part)
        graph = folded(self.calls, self.report, found, self.measures, depth)
        nodes = sum(data["kind"] == "module" for _, data in graph.nodes(data=True))
        return self.calls if part is None and nodes < 2 else graph


def _add_nodes(graph: networkx.MultiDiGraph, report: Report, found: Wiring, measures: Measures) -> None:
    """Inputs and weights, calls in program order, results."""
    for name, entry in found.inputs.items():
        typed = found.types.get(entry.name)
        of_type = {key: value for key, value in measures.tensor(typed).items() if key in ("shape", "dtype")}
        label = {"label": entry.target or entry.name, "count": 1}
        if entry.role in ("parameter", "buffer", "constant"):
            holder = _told({"module": entry.target.rpartition(".")[0]})
            own = {"kind": "weight", **holder, **measures.weight(entry, typed)}
        else:
            size = {} if typed is None else measures.amount("memory", typed.nbytes)
            own = {"kind": "input", "role": entry.role, **size}
        graph.add_node(name, **label, **own, **of_type)
    live = measures.live()
    for name, place in found.calls:
        row = report.rows[place]
        where = {"module": row.module, "module_type": row.module_type, "source": row.source}
        memory = {"memory": live[place]} if place in live else {}
        label = {
            "label": operator(row.op).word,
            "kind": "call",
            "op": row.op,
            "results": len(row.outputs),
        }
        graph.add_node(name, **label, count=1, **_told(where), **measures.row(row), **memory)
    for name, output in found.outputs.items():
        graph.add_node(name, label=output.target or name, kind="output", role=output.role, count=1)


def _told(texts: dict[str, str]) -> Attributes:
    return {name: text for name, text in texts.items() if text}
