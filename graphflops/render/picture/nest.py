"""What a picture shows, before it has positions: boxes with the figures of the calls in them, and the lines between.

Calls are in boxes of their modules, as `Fold` groups them: sheets within sheets, and one box for equal modules in a row.
Differences between two programs, or between a run and its analysis, are statuses of the nodes of one graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import networkx
from msgspec import Struct

from graphflops.base.aligned import equal_at_start
from graphflops.base.units import numbered, unnumbered
from graphflops.render.text import count_of, short_type
from graphflops.structure.build import Program, marks
from graphflops.structure.wiring import Fold, Part, Turn
from graphflops.tensor import grouped

if TYPE_CHECKING:
    from graphflops.comparison.result import Comparison
    from graphflops.report import Report
    from graphflops.runtime.validation import Validation

FIGURES = ("flops", "bytes", "time", "memory", "parameters")
_WORST = ("unknown", "at least", "exact")


class Item(Struct):
    """One box."""

    label: str
    # The attributes of its node in the graph; figures are sums over all `count` equal parts.
    facts: Mapping[str, Any]
    what: str = ""  # beside its label, the type of a module, or the module of a call
    times: int = 1  # how often the part around the box is repeated
    inside: Sheet | None = None  # what it holds when it is opened

    @property
    def count(self) -> int:
        """How many equal parts of the program are this one box."""
        return int(self.facts.get("count", 1))


class Sheet(Struct):
    """Boxes in program order; by the places of two, the values that pass from one to the other, with their attributes."""

    items: list[Item] = []
    links: dict[tuple[int, int], dict[str, Mapping[str, Any]]] = {}

    def link(self, source: int, target: int, facts: Mapping[str, Any]) -> None:
        self.links.setdefault((source, target), {})[str(facts.get("value", ""))] = facts


def shown(graph: networkx.MultiDiGraph) -> list[Any]:
    """The nodes of a picture, each after those that it depends on, without weights and unread calls that cost nothing."""
    order = {name: place for place, name in enumerate(graph)}
    try:
        names = list(networkx.lexicographical_topological_sort(graph, key=order.__getitem__))
    except networkx.NetworkXUnfeasible:  # folded modules may depend on each other; then lines go up
        names = list(graph)
    idle: set[Any] = set()
    for name in reversed(names):
        facts = graph.nodes[name]
        costs = any(facts.get(figure) for figure in FIGURES[:2]) or facts.get("exact", "exact") != "exact"
        is_unread = facts.get("kind") == "call" and not costs and idle.issuperset(graph[name])
        if facts.get("kind") == "weight" or is_unread:
            idle.add(name)
    return [name for name in names if name not in idle]


def flat(graph: networkx.MultiDiGraph) -> Sheet:
    """The graph as it is."""
    sheet = Sheet()
    place = {name: index for index, name in enumerate(shown(graph))}
    for name in place:
        facts = graph.nodes[name]
        is_module = facts.get("kind") == "module"
        what = short_type(facts.get("module_type", "")) if is_module else facts.get("module", "")
        sheet.items.append(Item(str(facts.get("label", name)), facts, what))
    for source, target, facts in graph.edges(data=True):
        if source in place and target in place:
            sheet.link(place[source], place[target], facts)
    return sheet


def together(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of several nodes added up; a lower bound where one of them is unknown."""
    every = list(parts)
    found = marks(every)
    known = {"exact"}
    for facts in every:
        if facts.get("status") == "gone" and found.get("status") != "gone":
            continue
        known.add(str(facts.get("exact", "exact")))
        for name in FIGURES:
            if facts.get(name) is not None:
                joined = max if name == "memory" else sum
                found[name] = joined((found.get(name, 0), facts[name]))
    worst = next(mark for mark in _WORST if mark in known)
    found["exact"] = "at least" if worst == "unknown" and any(found.get(n) for n in FIGURES[:2]) else worst
    return found


MOST = 200  # boxes of one sheet; if there are more, boxes of consecutive ones are made
# From so many boxes of a sheet on, calls without FLOPs are joined, if there are at least so many.
_READABLE, _FEW = (25, 4)


def nested(graph: networkx.MultiDiGraph, types: Mapping[str, str]) -> Sheet:
    """A graph of calls as the sheet of the outermost modules. types: of modules by path."""
    nest = _Nest(graph, types)
    return nest.sheet(nest.fold.top, nest.boxes(nest.fold.top))


class _Nest:
    def __init__(self, graph: networkx.MultiDiGraph, types: Mapping[str, str]) -> None:
        self.types = types
        names = shown(graph)
        self.fold = Fold.of(graph, names)
        self.facts: dict[str, dict[str, Any]] = {name: dict(graph.nodes[name]) for name in names}
        self.labels: dict[Part, str] = {}  # of parts that are put together here
        self.uses: dict[str, list[tuple[str, Mapping[str, Any]]]] = {name: [] for name in names}
        self.users: dict[str, list[tuple[str, Mapping[str, Any]]]] = {name: [] for name in names}
        held = set()  # weights; each is part of the first call that reads it
        for source, target, facts in graph.edges(data=True):
            if source in self.facts and target in self.facts:
                self.uses[target].append((source, facts))
                self.users[source].append((target, facts))
            elif target in self.facts and source not in held:
                held.add(source)
                own = self.facts[target]
                own["parameters"] = own.get("parameters", 0) + graph.nodes[source].get("parameters", 0)

    def boxes(self, part: Part) -> list[Part]:
        """The parts in a part, with the module's own calls one by one; some are joined if there are many."""
        inside = self.fold.within(part)
        groups = [[inner] for inner in inside]
        for at, inner in enumerate(inside):
            if inner.is_own:
                rows = zip(*(turn.calls for turn in inner.turns), strict=True)
                groups[at] = [Part(inner.level, True, [Turn([call]) for call in row]) for row in rows]
        if sum(map(len, groups)) > _READABLE:
            groups = [self.gathered(part, one) if one[0].is_own else one for one in groups]
        parts = [box for group in groups for box in group]
        if len(parts) > MOST:
            size = max(MOST, -(-len(parts) // MOST))
            groups = [parts[start : start + size] for start in range(0, len(parts), size)]
            parts = [self.joined(part, one, f"part {n} of {len(groups)}") for n, one in enumerate(groups, 1)]
        return parts

    def label(self, part: Part, times: int) -> str:
        """The name of a part in its module, for `times` equal ones."""
        if part in self.labels:
            return self.labels[part]
        calls = _share(part, 0, times)
        if part.is_own:
            return str(self.facts[calls[0]].get("label", calls[0]))
        place = part.level - (not part.cycle)
        names = [name for call in calls for name in self.fold.path[call][place : place + 1]]
        return ", ".join(map(numbered, grouped((unnumbered(name), name) for name in names).values()))

    def gathered(self, around: Part, calls: list[Part]) -> list[Part]:
        """Single calls, where connected ones without FLOPs in a row are joined: those that compute a mask, or positions."""
        found: list[Part] = []
        for is_free, row in groupby(calls, lambda part: self.is_free(part.turns[0].calls[0])):
            of = {part.turns[0].calls[0]: part for part in row}
            small = networkx.Graph()
            small.add_nodes_from(of.values())
            links = ((of[one], of[call]) for call in of for one, _ in self.uses[call] if one in of)
            small.add_edges_from(links)
            for group in networkx.connected_components(small):
                inside = [part for part in of.values() if part in group]
                names = [*dict.fromkeys(self.label(part, len(part.turns)) for part in inside)]
                is_one = is_free and len(inside) >= _FEW
                found += [self.joined(around, inside, f"{', '.join(names[:2])} …")] if is_one else inside
        return found

    def is_free(self, call: str) -> bool:
        facts = self.facts[call]
        return facts.get("kind") == "call" and facts.get("flops") == 0 and facts.get("exact") == "exact"

    def joined(self, around: Part, parts: list[Part], label: str) -> Part:
        times = len(around.turns)
        calls = ([call for part in parts for call in _share(part, turn, times)] for turn in range(times))
        made = Part(around.level, False, [Turn(each) for each in calls], parts)
        self.labels[made] = label
        return made

    def sheet(self, around: Part, parts: list[Part]) -> Sheet:
        """The parts of a part's first turn, after what comes in from outside and before what goes out."""
        sheet, times = Sheet(), len(around.turns)
        path = self.fold.path[around.turns[0].calls[0]][: around.level] if parts else ()
        of = {call: place for place, part in enumerate(parts) for call in _share(part, 0, times)}
        inputs: dict[str, int] = {}
        outputs: dict[str, int] = {}
        for call in [call for part in parts for call in part.turns[0].calls]:
            for one, _ in self.uses[call]:
                if one not in of and one not in inputs:
                    inputs[one] = len(sheet.items)
                    sheet.items.append(Item(f"from {self.named(one, path)}", {"kind": "port"}))
        first = len(sheet.items)
        sheet.items += [self.item(part, times) for part in parts]
        for call, place in of.items():
            for one, facts in self.uses[call]:
                source = of[one] + first if one in of else inputs.get(one)
                if source is not None and source != place + first:
                    sheet.link(source, place + first, facts)
            for one, facts in self.users[call]:
                if one not in of:
                    if call not in outputs:
                        outputs[call] = len(sheet.items)
                        sheet.items.append(Item(f"to {self.named(one, path)}", {"kind": "port"}))
                    sheet.link(place + first, outputs[call], facts)
        return sheet

    def named(self, call: str, around: Sequence[str]) -> str:
        """The name of a call outside of a sheet: its module's, or its own if its module is around the sheet."""
        path = self.fold.path[call]
        alike = equal_at_start(path, around)
        return ".".join(path[: alike + 1]) if len(path) > alike else str(self.facts[call].get("label", call))

    def item(self, part: Part, times: int) -> Item:
        """The box of a call or of modules; modules that hold only one part share its box."""
        labels, turns = [self.label(part, times)], times
        if part.is_own:
            return Item(labels[0], self.facts[part.turns[0].calls[0]], "", times)
        while len(inside := self.boxes(part)) == 1 and not inside[0].is_own:
            turns, part = len(part.turns), inside[0]
            labels.append(self.label(part, turns))
        first = part.turns[0].calls[0]
        path = ".".join(self.fold.path[first][: part.level])
        facts = {
            **(self.facts[first] if len(inside) == 1 else {"kind": "module", "op": ""}),
            **together(self.facts[call] for call in _share(part, 0, times)),
            "module": path,
            "count": len(part.turns) // times,
        }
        own = self.facts[first].get("module_type", "") if len(inside) == 1 else ""
        facts["module_type"] = self.types.get(path) or own
        what = short_type(facts["module_type"])
        if part.cycle:
            what = count_of(len(inside), "part") if part in self.labels else f"{len(inside)} in turn"
        sheet = self.sheet(part, inside) if len(inside) > 1 else None
        return Item(".".join(labels), facts, what, times, sheet)


def _share(part: Part, turn: int, times: int) -> list[str]:
    """The calls of a part that belong to one turn of the part around it."""
    count = len(part.turns) // times
    return [call for own in part.turns[turn * count : (turn + 1) * count] for call in own.calls]


def joined(found: Comparison, old: Report) -> networkx.MultiDiGraph:
    """Both programs in one graph: calls and edges `new`, `gone`, `changed` or neither. old: under the new module paths."""
    programs = Program(old), Program(found.new)
    before, graph = (program.calls for program in programs)
    pairs = _pairs(found, *programs)
    same = {*pairs.values()}
    changed = {id(call.after) for change in found.modules for call in change.calls if call.before is not None}
    places = dict(programs[1].found.calls)
    for name, facts in graph.nodes(data=True):
        if facts["kind"] == "call" and name not in same:
            facts["status"] = "new"
        elif facts["kind"] == "call" and id(found.new.rows[places[name]]) in changed:
            facts["status"] = "changed"
    for name, facts in before.nodes(data=True):
        if facts["kind"] == "call" and name not in pairs:
            pairs[name] = f"{name} (gone)"
            graph.add_node(pairs[name], **facts, status="gone")
            continue
        now = graph.nodes.get(pairs.setdefault(name, name), {})
        if now.get("status") == "changed" and "flops" in facts:
            now["note"] = f"before, {facts['flops']:,} FLOPs"
    made = {name for name, facts in graph.nodes(data=True) if facts.get("status") in ("new", "gone")}
    was = {(pairs[a], pairs[b]) for a, b in before.edges() if pairs[a] in graph and pairs[b] in graph}
    for start, end, facts in graph.edges(data=True):
        if (start, end) not in was and not facts["weight"]:
            _rewired(graph, facts, end, made, "new")
    for start, end, facts in before.edges(data=True):
        ends = pairs[start], pairs[end]
        if ends in was and not facts["weight"] and not graph.has_edge(*ends):
            own = dict(facts)
            _rewired(graph, own, ends[1], made, "gone")
            graph.add_edge(*ends, **own)
    return graph


def _rewired(
    graph: networkx.MultiDiGraph, facts: dict[str, object], end: str, made: set[str], status: str
) -> None:
    facts["status"] = status
    if end not in made and graph.nodes[end]["kind"] == "call":
        graph.nodes[end].setdefault("status", "changed")


def _pairs(found: Comparison, before: Program, after: Program) -> dict[str, str]:
    """Nodes of the new program by those of the old one: calls, those that only moved within their module, and ends."""
    names, others = ({place: name for name, place in side.found.calls.items()} for side in (before, after))
    pairs = {names[ours]: others[theirs] for ours, theirs in found.calls.items()}
    same, others = {*pairs.values()}, after.calls.nodes
    free = grouped((_likeness(others[name]), name) for name in others if name not in same)
    for name, facts in before.calls.nodes(data=True):
        if name not in pairs and (alike := free.get(_likeness(facts))):
            pairs[name] = alike.pop(0)
    return pairs


def _likeness(facts: Mapping[str, object]) -> object:
    ends = facts["label"] if facts["kind"] != "call" else ""
    return ends, facts["kind"], *map(facts.get, ("module", "op", "flops", "bytes") if not ends else ())


def validated(report: Report, found: Validation) -> networkx.MultiDiGraph:
    """The calls of a report with the verdicts of a run of it, where these are not `equal`."""
    graph = report.graph(level="call")
    for node in found.nodes:
        if node.node in graph and node.verdict != "equal":
            graph.nodes[node.node].update(status=node.verdict, note=node.reason or node.verdict)
    return graph
