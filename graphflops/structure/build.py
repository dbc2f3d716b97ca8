"""The graph of a report: a node for each call, input, weight and result; an edge for each use of a value.

Costs and sizes are attributes of nodes and edges. The graph of modules has one node for repeated layers.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from functools import cache
from operator import itemgetter
from typing import Any, get_args

import networkx

from graphflops.base.units import numbered, unnumbered
from graphflops.cost import Cost
from graphflops.dims import Dim, Expr, total
from graphflops.errors import OptionError, require_choice, shown
from graphflops.graph import Input
from graphflops.ops import operator
from graphflops.report import GraphLevel, Report, Row
from graphflops.report.size_names import called
from graphflops.structure.queries import part as part_of
from graphflops.structure.wiring import Fold, Part, Turn, Use, Wiring, unique
from graphflops.tensor import TensorType

_NAMED = 3  # operators in the label of a run
# Statuses that a part has if any of its calls does, the most important first.
_OF_ANY = ("different", "not executed", "changed", "explained", "on path", "bottleneck", "unused")


def graph_of(report: Report, level: GraphLevel = "call", depth: int | None = 2) -> networkx.MultiDiGraph:
    """The program of a report as `Report.graph` describes it."""
    require_choice("level", level, get_args(GraphLevel))
    program = Program(report)
    return program.calls if level == "call" else program.modules(depth)


class Program:
    """The program of a report. calls: its graph of calls, which the graph of modules is folded from."""

    def __init__(self, report: Report) -> None:
        self.report, self.measures, self.found = report, Measures(report), Wiring(report)
        told: Attributes = {"name": report.origin.path} if report.origin.path else {}
        told |= {"saved": True} if report.program is None else {}
        self.calls = graph = networkx.MultiDiGraph(level="call", **told, **self.measures.totals())
        self._add_nodes()
        described = cache(self.measures.tensor)
        for number, (maker, user, slot, value, typed) in enumerate(self.found.uses):
            weight = graph.nodes[maker]["kind"] == "weight"
            edge = {"slot": slot, "value": value, "weight": weight, "count": 1, **described(typed)}
            graph.add_edge(maker, user, number, **edge)

    def _add_nodes(self) -> None:
        graph, found, measures = self.calls, self.found, self.measures
        for name, entry in found.inputs.items():
            typed = found.types.get(entry.name)
            known = measures.tensor(typed)
            of_type = {key: known[key] for key in ("shape", "dtype") if key in known}
            label = {"label": entry.target or entry.name, "count": 1}
            if entry.role in ("parameter", "buffer", "constant"):
                module = entry.target.rpartition(".")[0]
                holder = {"module": module} if module else {}
                own = {"kind": "weight", **holder, **measures.weight(entry, typed)}
            else:
                size = {} if typed is None else measures.amount("memory", typed.nbytes)
                own = {"kind": "input", "role": entry.role, **size}
            graph.add_node(name, **label, **own, **of_type)
        live = measures.live()
        for name, place in found.calls.items():
            row = self.report.rows[place]
            where = {"module": row.module, "module_type": row.module_type, "source": row.source}
            memory = {"memory": live[place]} if place in live else {}
            label = {"label": operator(row.op).word, "kind": "call", "op": row.op}
            told = {name: text for name, text in where.items() if text} | measures.row(row) | memory
            graph.add_node(name, **label, results=len(row.outputs), count=1, **told)
        for name, output in found.outputs.items():
            graph.add_node(name, label=output.target or name, kind="output", role=output.role, count=1)

    def modules(self, depth: int | None, names: Iterable[str] | None = None) -> networkx.MultiDiGraph:
        """The graph of modules; with `names`, of these calls, inputs and results only.

        A program of one module gives the graph of its calls. Stages stay apart. Raises OptionError for a depth below 1.
        """
        if depth is not None and depth < 1:
            raise OptionError(f"depth is {shown(str(depth))}: levels of modules, at least 1")
        graph = _Modules(self, self.calls if names is None else part_of(self.calls, names), depth).graph
        nodes = sum(data["kind"] == "module" for _, data in graph.nodes(data=True))
        return self.calls if names is None and nodes < 2 else graph


class _Modules:
    """The graph of modules `depth` levels in. of: the module's node by node of the graph of calls."""

    def __init__(self, program: Program, calls: networkx.MultiDiGraph, depth: int | None) -> None:
        self.report, self.found, self.measures = program.report, program.found, program.measures
        self.calls = calls
        self.graph = type(program.calls)(**calls.graph)
        self.of: dict[str, str] = {}
        self.taken: dict[str, int] = {}
        self.turns: dict[str, Turn] = {}  # by call
        self.rows = {name: self.report.rows[place] for name, place in self.found.calls.items()}
        inside = [name for name, data in calls.nodes(data=True) if data["kind"] == "call"]
        fold = Fold.of(calls, inside)
        for part in fold.at_depth(depth) if inside else ():
            self.module(part, [".".join(fold.path[turn.calls[0]][: part.level]) for turn in part.turns])
        self.ends()
        self.edges()
        self.graph.graph |= {"level": "module"} | ({} if depth is None else {"depth": depth})

    def module(self, part: Part, paths: list[str]) -> None:
        """Adds a node for one or more equal modules, or for a module's own calls between its submodules."""
        names, first, path = [*part.calls()], part.turns[0].calls, numbered(paths)
        nodes, rows = [self.calls.nodes[name] for name in names], [self.rows[name] for name in names]
        ops = [*Counter(self.calls.nodes[name]["label"] for name in first)]
        label = ", ".join(ops[:_NAMED]) + (" …" if len(ops) > _NAMED else "")
        type_ = self.report.modules.get(paths[0], "")
        title = path or "(model)"
        made = unique(f"{title}: {label}" if part.is_own else title, self.taken)
        own = {"op": label} if part.is_own else {"module_type": type_} if type_ else {}
        memory = [node["memory"] for node in nodes if "memory" in node]
        self.graph.add_node(
            made,
            label=label if part.is_own else title,
            kind="module",
            **({"module": path} if path else {}),
            **own,
            count=len(part.turns),
            calls=len(first),
            first_call=first[0],
            **self.measures.costs(rows),
            **self.measures.seconds(rows),
            **({"memory": max(memory)} if memory else {}),
            **marks(nodes),
            **self.measures.no_parameters,
        )
        for turn in part.turns:
            for name in turn.calls:
                self.of[name], self.turns[name] = made, turn

    def ends(self) -> None:
        """Adds inputs, weights and results. A weight that only one module reads is part of its node; others with the same
        modules are one node if their names differ only in numbers.
        """
        holders = {self.graph.nodes[name].get("module", ""): name for name in reversed([*self.graph])}
        groups: dict[Hashable, list[str]] = {}
        for name, node in self.calls.nodes(data=True):
            if node["kind"] == "call":
                continue
            near = self.calls.pred[name] if node["kind"] == "output" else self.calls.succ[name]
            modules = tuple(dict.fromkeys(self.of[one] for one in near if one in self.of))
            holder = modules[0] if len(modules) == 1 else holders.get(node.get("module", ""))
            if node["kind"] != "weight" or holder is None or len(modules) > 1:
                same = (node["role"], node.get("shape"), node.get("dtype"), unnumbered(node["label"]))
                groups.setdefault((node["kind"] == "output", *same, modules), []).append(name)
                continue
            self.of[name] = holder
            held, own = self.graph.nodes[holder], {**node, "weight_bytes": node.get("memory", 0)}
            held |= {key: held.get(key, 0) + own[key] for key in ("parameters", "weight_bytes") if key in own}
        for group in groups.values():
            nodes = [self.calls.nodes[name] for name in group]
            made, label = unique(numbered(group), self.taken), numbered([node["label"] for node in nodes])
            sums = {x: sum(node[x] for node in nodes) for x in ("memory", "parameters") if x in nodes[0]}
            self.graph.add_node(made, **nodes[0] | sums | {"label": label, "count": len(group)})
            self.of.update(dict.fromkeys(group, made))

    def edges(self) -> None:
        """Adds edges, a value once for every turn that reads it, but none to another turn of a repetition."""
        seen: set[tuple[str, str, int | str]] = set()
        summed: dict[tuple[str, str, TensorType | None], list[Use]] = {}
        passed: dict[str, list[Use]] = {}
        for *_, number in sorted(self.calls.edges(keys=True), key=itemgetter(2)):
            use = self.found.uses[number]
            maker, user = self.of[use.maker], self.of[use.user]
            turn, before = self.turns.get(use.user), self.turns.get(use.maker)
            key = (use.maker, use.value, use.user if turn is None else id(turn))
            if key in seen or (turn is not None and turn is before) or (maker == user and before is None):
                continue
            seen.add(key)
            repeats = {} if turn is None or before is None else before.repeats
            if turn is not None and any(turn.repeats.get(one, at) != at for one, at in repeats.items()):
                passed.setdefault(maker, []).append(use)
            else:
                summed.setdefault((maker, user, use.type), []).append(use)
        for maker, uses in passed.items():
            bytes_ = total(use.type.nbytes for use in uses if use.type is not None)
            self.graph.nodes[maker].update(self.measures.amount("passed_bytes", bytes_))
        for number, ((maker, user, typed), uses) in enumerate(summed.items()):
            sums: dict[str, Any] = {"value": uses[0].value, "count": len(uses)}
            sums["values"] = len({use.value for use in uses})
            if typed is not None:
                sums |= self.measures.tensor(typed) | self.measures.amount("bytes", typed.nbytes * len(uses))
            weight = self.calls.nodes[uses[0].maker]["kind"] == "weight"
            self.graph.add_edge(maker, user, number, weight=weight, **sums)


Attributes = dict[str, Any]


class Measures:
    """Costs and sizes as attributes: numbers at the known sizes, and formulas where they depend on an open size.

    Formulas name sizes as the report and `--dim` do (`ids[0]`), because names that exporters make up mean nothing outside of
    a file. Unknown and empty attributes are left out: GraphML has neither None nor an empty text.
    """

    def __init__(self, report: Report) -> None:
        self.report = report
        self.names = report.names
        # A saved report does not say which values are parameters.
        self.no_parameters: Attributes = {} if report.program is None else {"parameters": 0}
        self.known: dict[tuple[str, int, int], Attributes] = {}

    def amount(self, name: str, quantity: Dim) -> Attributes:
        value = self.report.value(quantity)
        found: Attributes = {} if value is None else {name: value}
        if isinstance(quantity, Expr):
            found[f"{name}_formula"] = called(str(quantity), self.names)
        return found

    def tensor(self, typed: TensorType | None) -> Attributes:
        """Shape, element type and bytes of a tensor; nothing for another value."""
        if typed is None:
            return {}
        shape = called(f"[{', '.join(map(str, typed.shape))}]", self.names)
        return {"shape": shape, "dtype": typed.dtype.name, **self.amount("bytes", typed.nbytes)}

    def row(self, row: Row) -> Attributes:
        key = (row.state, id(row.cost), id(row.backward))
        if key not in self.known:
            self.known[key] = self.costs([row])
        if row.time is None or row.state == "unknown":
            return self.known[key]
        return self.known[key] | self.seconds([row])

    def costs(self, rows: Iterable[Row]) -> Attributes:
        """The sum of the calls' costs. exact: whether all of them are known."""
        listed = [*rows]
        known = [row for row in listed if row.state != "unknown"]
        if not known and listed:
            return {"exact": "unknown"}
        exact = "exact" if len(known) == len(listed) else "at least"
        found = self.cost(Cost.sum(row.cost for row in known)) | {"exact": exact}
        backward = [row.backward for row in known if row.backward is not None]
        if backward:
            found |= {f"backward_{name}": value for name, value in self.cost(Cost.sum(backward)).items()}
        return found

    def cost(self, cost: Cost) -> Attributes:
        work = self.amount("flops", cost.matrix_flops) | self.amount("vector_flops", cost.vector_flops)
        return work | self.amount("bytes", cost.moved_bytes)

    def seconds(self, rows: Iterable[Row]) -> Attributes:
        """Time of calls on the device; a call that launches nothing takes none."""
        if not self.report.device:
            return {}
        return {"time": float(sum(row.time.seconds for row in rows if row.time is not None))}

    def weight(self, entry: Input, typed: TensorType | None) -> Attributes:
        """The number of a weight's parameters, counted once if it is tied, and its bytes."""
        found: Attributes = {"role": entry.role} | self.no_parameters
        if typed is not None:
            found |= self.amount("memory", typed.nbytes)
            if entry.role == "parameter" and not entry.alias_of:
                found |= self.amount("parameters", typed.numel)
        return found | ({"tied_to": entry.alias_of} if entry.alias_of else {})

    def totals(self) -> Attributes:
        report, time = self.report, self.report.totals.time
        found = {
            **self.cost(report.totals.cost),
            **self.amount("memory", report.totals.peak_bytes),
            "parameters": report.parameters,
            "exact": "at least" if report.coverage.unknown else "exact",
        }
        if time is not None:
            found["time"] = time.seconds
        return {f"total_{name}": value for name, value in found.items()}

    def live(self) -> dict[int, int]:
        """By row: bytes of activations alive while it runs; nothing where a size is not known."""
        timeline = self.report.memory
        if (sizes := timeline.sizes(self.report.value)) is None:
            return {}
        found: dict[int, int] = {}
        for row, size in zip(timeline.rows, timeline.live_bytes(sizes), strict=True):
            found[row] = max(size, found.get(row, 0))
        return found


def marks(nodes: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The stage of calls if they share one, and their status: one that all share, the most important, or `changed`."""
    every = [*nodes]
    stages = {data.get("stage") for data in every}
    statuses = {str(data.get("status", "")) for data in every}
    worst = next((one for one in _OF_ANY if one in statuses), "changed" if statuses & {"new", "gone"} else "")
    status = worst if len(statuses) > 1 else next(iter(statuses), "")
    found = {"stage": stages.pop() if len(stages) == 1 else None, "status": status}
    return {key: mark for key, mark in found.items() if mark}
