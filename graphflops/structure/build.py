"""The graph of a report: a node for each call, input, weight and result; an edge for each use of a value.

Folded to modules, repeated layers are one node.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, get_args

from graphflops.base.numbered import numbered, unnumbered
from graphflops.dims import total
from graphflops.errors import OptionError, require_choice, shown
from graphflops.ops import operator
from graphflops.report import GraphLevel
from graphflops.structure.measures import Measures
from graphflops.structure.repeats import layers
from graphflops.structure.wiring import wiring

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Hashable, Iterable, Sequence

    import networkx

    from graphflops.report import Report
    from graphflops.structure.measures import Attributes
    from graphflops.structure.repeats import Run
    from graphflops.structure.wiring import Use, Wiring
    from graphflops.tensor import TensorType


MARKS = ("stage", "status")  # attributes by which answers to questions are marked
_NAMED = 3  # operators in the label of a run


def folded(
    calls: networkx.MultiDiGraph, report: Report, found: Wiring, measures: Measures, depth: int | None
) -> networkx.MultiDiGraph:
    """The graph of modules `depth` levels in, of the calls that are in the wiring."""
    stages = {name: data["stage"] for name, data in calls.nodes(data=True) if "stage" in data}
    fold = _Fold(calls, report, found, measures)
    fold.modules(layers(report, found.calls, depth, stages))
    fold.ends()
    fold.edges()
    fold.graph.graph |= {"level": "module"} | ({} if depth is None else {"depth": depth})
    return fold.graph


class _Fold:
    """One graph of modules. of: by node of the graph of calls, the node that stands for it."""

    def __init__(
        self, calls: networkx.MultiDiGraph, report: Report, found: Wiring, measures: Measures
    ) -> None:
        self.calls, self.report, self.found, self.measures = calls, report, found, measures
        self.graph = type(calls)(**calls.graph)
        self.of: dict[str, str] = {}
        self.runs: dict[str, Run] = {}  # by call

    def unique(self, name: str) -> str:
        """The name, or one with a number where a node has it already."""
        unused, times = name, 1
        while unused in self.graph:
            times += 1
            unused = f"{name} ({times})"
        return unused

    def modules(self, columns: Sequence[Sequence[Run]]) -> None:
        """A node for each list of equal runs."""
        for runs in columns:
            first, rows = runs[0], [self.report.rows[call.row] for run in runs for call in run.calls]
            path = numbered([run.path for run in runs])
            ops = Counter(self.calls.nodes[call.name]["label"] for call in first.calls)
            label = ", ".join([*ops][:_NAMED]) + (" …" if len(ops) > _NAMED else "")
            type_ = self.report.modules.get(first.path, "")
            name = self.unique(f"{path or '(model)'}: {label}" if first.own else path or "(model)")
            own = {"op": label} if first.own else {"module_type": type_} if type_ else {}
            live = [self.calls.nodes[call.name].get("memory") for run in runs for call in run.calls]
            memory = [size for size in live if size is not None]
            marks = [
                (key, self.calls.nodes[call.name].get(key))
                for run in runs
                for call in run.calls
                for key in MARKS
            ]
            self.graph.add_node(
                name,
                label=label if first.own else path or "(model)",
                kind="module",
                **({"module": path} if path else {}),
                **own,
                count=len(runs),
                calls=len(first.calls),
                first_call=first.calls[0].name,
                **self.measures.costs(rows),
                **self.measures.seconds(rows),
                **({"memory": max(memory)} if memory else {}),
                **{key: mark for key, mark in marks if mark is not None},
                **self.measures.no_parameters,
            )
            for run in runs:
                for call in run.calls:
                    self.of[call.name], self.runs[call.name] = name, run

    def ends(self) -> None:
        """Inputs, weights and results. A weight that one module alone reads is part of its node."""
        readers: dict[str, dict[str, None]] = {}
        makers: dict[str, dict[str, None]] = {}
        for use in self.found.uses:
            if use.user in self.of and use.maker in self.found.inputs:
                readers.setdefault(use.maker, {})[self.of[use.user]] = None
            if use.user in self.found.outputs and use.maker in self.of:
                makers.setdefault(use.user, {})[self.of[use.maker]] = None
        holders = {self.graph.nodes[name].get("module", ""): name for name in reversed([*self.graph])}
        others = []
        for name in self.found.inputs:
            node = self.calls.nodes[name]
            reading = [*readers.get(name, ())]
            holder = (
                reading[0]
                if len(reading) == 1
                else holders.get(node.get("module", ""))
                if not reading
                else None
            )
            if node["kind"] != "weight" or holder is None:
                others.append(name)
                continue
            self.of[name] = holder
            held, own = self.graph.nodes[holder], {**node, "weight_bytes": node.get("memory", 0)}
            held |= {key: held.get(key, 0) + own[key] for key in ("parameters", "weight_bytes") if key in own}
        self.alike(others, lambda name: tuple(readers.get(name, ())))
        self.alike(self.found.outputs, lambda name: tuple(makers.get(name, ())))

    def alike(self, names: Iterable[str], beside: Callable[[str], Hashable]) -> None:
        """One node for ends beside the same modules whose names differ in their numbers only."""
        groups: dict[Hashable, list[str]] = {}
        for name in names:
            node = self.calls.nodes[name]
            same = (node["role"], node.get("shape"), node.get("dtype"), unnumbered(node["label"]))
            groups.setdefault((*same, beside(name)), []).append(name)
        for group in groups.values():
            nodes = [self.calls.nodes[name] for name in group]
            made = self.unique(numbered(group))
            sums = {
                key: sum(node[key] for node in nodes) for key in ("memory", "parameters") if key in nodes[0]
            }
            label = numbered([node["label"] for node in nodes])
            self.graph.add_node(made, **nodes[0] | sums | {"label": label, "count": len(group)})
            self.of.update(dict.fromkeys(group, made))

    def edges(self) -> None:
        """Edges summed, a value once for every run that reads it; what goes from turn to turn of a repetition is none."""
        seen: set[tuple[str, str, int | str]] = set()
        summed: dict[tuple[str, str, TensorType | None], list[Use]] = {}
        passed: dict[str, list[Use]] = {}
        for use in self.found.uses:
            maker, user = self.of[use.maker], self.of[use.user]
            run = self.runs.get(use.user)
            key = (use.maker, use.value, use.user if run is None else id(run))
            if key in seen or (run is not None and run is self.runs.get(use.maker)):
                continue
            if maker == user and use.maker in self.found.inputs:
                continue
            seen.add(key)
            if run is not None and use.maker in self.runs and _in_other_turns(self.runs[use.maker], run):
                passed.setdefault(maker, []).append(use)
            else:
                summed.setdefault((maker, user, use.type), []).append(use)
        for maker, uses in passed.items():
            bytes_ = total(use.type.nbytes for use in uses if use.type is not None)
            self.graph.nodes[maker].update(self.measures.amount("passed_bytes", bytes_))
        for number, ((maker, user, typed), uses) in enumerate(summed.items()):
            sums: dict[str, Any] = {"value": uses[0].value, "count": len(uses)}
            if typed is not None:
                sums |= self.measures.tensor(typed) | self.measures.amount("bytes", typed.nbytes * len(uses))
            weight = self.calls.nodes[uses[0].maker]["kind"] == "weight"
            self.graph.add_edge(maker, user, number, weight=weight, **sums)


def _in_other_turns(maker: Run, user: Run) -> bool:
    return any(user.repeats.get(found, turn) != turn for found, turn in maker.repeats.items())


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
        label = {"label": operator(row.op).word, "kind": "call", "op": row.op, "results": len(row.outputs)}
        graph.add_node(name, **label, count=1, **_told(where), **measures.row(row), **memory)
    for name, output in found.outputs.items():
        graph.add_node(name, label=output.target or name, kind="output", role=output.role, count=1)


def _told(texts: dict[str, str]) -> Attributes:
    return {name: text for name, text in texts.items() if text}
