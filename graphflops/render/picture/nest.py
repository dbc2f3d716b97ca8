"""What a picture shows, before it has positions: boxes with the figures of the calls in them, and the lines between.

Calls stand by the modules they are made in: sheets within sheets, equal modules in a row as one box.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from graphflops.base.numbered import spans
from graphflops.render.text import count_of, short_type
from graphflops.structure.repeats import repetition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import networkx


FIGURES = ("flops", "bytes", "time", "memory", "parameters")
_OF_ANY = ("different", "not executed", "changed", "explained", "on path", "bottleneck")
_WORST = ("unknown", "at least", "exact")


@dataclass(slots=True)
class Item:
    """One box.

    what: beside its label, the type of a module, or the module of a call. facts: the attributes of its node in the graph;
    figures of all `count` equal parts together. times: how often what the box stands in is repeated. inside: what it holds
    when it is opened.
    """

    label: str
    facts: Mapping[str, Any]
    what: str = ""
    times: int = 1
    inside: Sheet | None = None

    @property
    def count(self) -> int:
        """How many equal parts of the program are this one box."""
        return int(self.facts.get("count", 1))


@dataclass(slots=True)
class Sheet:
    """Boxes in program order; by the places of two, the values that pass from one to the other, with their attributes."""

    items: list[Item] = field(default_factory=list)
    links: dict[tuple[int, int], dict[str, Mapping[str, Any]]] = field(default_factory=dict)

    def link(self, source: int, target: int, facts: Mapping[str, Any]) -> None:
        """Another use of a value."""
        self.links.setdefault((source, target), {})[str(facts.get("value", ""))] = facts


def shown(graph: networkx.MultiDiGraph) -> list[Any]:
    """The nodes that a picture shows, each after those that it depends on.

    Weights are part of the calls that read them; calls that cost nothing and whose results nobody reads are left out.
    """
    import networkx

    order = {name: place for place, name in enumerate(graph)}
    try:
        names = list(networkx.lexicographical_topological_sort(graph, key=order.__getitem__))
    except networkx.NetworkXUnfeasible:  # folded modules may lead to one another: lines go up, then
        names = list(graph)
    idle: set[Any] = set()
    for name in reversed(names):
        facts = graph.nodes[name]
        costs = any(facts.get(figure) for figure in FIGURES[:2]) or facts.get("exact", "exact") != "exact"
        if facts.get("kind") == "weight" or (
            facts.get("kind") == "call" and not costs and idle.issuperset(graph[name])
        ):
            idle.add(name)
    return [name for name in names if name not in idle]


def flat(graph: networkx.MultiDiGraph) -> Sheet:
    """The graph as it is."""
    sheet = Sheet()
    place = {name: index for index, name in enumerate(shown(graph))}
    for name in place:
        facts = graph.nodes[name]
        what = (
            facts.get("module_type", "").rpartition(".")[2]
            if facts.get("kind") == "module"
            else facts.get("module", "")
        )
        sheet.items.append(Item(str(facts.get("label", name)), facts, what))
    for source, target, facts in graph.edges(data=True):
        if source in place and target in place:
            sheet.link(place[source], place[target], facts)
    return sheet


def _status(statuses: set[str]) -> str:
    """The status of several parts: the one of all, the worst, or that they changed."""
    if len(statuses) == 1:
        return next(iter(statuses))
    return next((one for one in _OF_ANY if one in statuses), "changed" if statuses & {"new", "gone"} else "")


def together(parts: Iterable[Mapping[str, Any]], count: int = 1) -> dict[str, Any]:
    """The figures of several nodes as those of one; where one of them is unknown, they are at least that."""
    every = list(parts)
    statuses, stages = (
        {str(facts.get("status", "")) for facts in every},
        {facts.get("stage") for facts in every},
    )
    found: dict[str, Any] = {"status": _status(statuses), "stage": stages.pop() if len(stages) == 1 else None}
    marks = {"exact"}
    for facts in every:
        if facts.get("status") == "gone" and statuses != {"gone"}:
            continue
        marks.add("unknown" if facts.get("exact") == "unknown" else facts.get("exact", "exact"))
        for name in FIGURES:
            if facts.get(name) is not None:
                joined = max if name == "memory" else sum
                found[name] = joined((found.get(name, 0), facts[name]))
    for name in FIGURES:
        if name in found and name != "memory":
            found[name] *= count
    worst = next(mark for mark in _WORST if mark in marks)
    found["exact"] = "at least" if worst == "unknown" and any(found.get(n) for n in FIGURES[:2]) else worst
    return {name: each for name, each in found.items() if each is not None}


MOST = 200  # boxes of one sheet; more are put into boxes of consecutive ones
# Boxes of a sheet from which on calls without FLOPs are put together, so many at least.
_READABLE, _FEW = (25, 4)
_DEEPEST = 40  # modules within modules
_ALIKE = ("op", "status", "stage", "exact", "flops", "bytes")


@dataclass(eq=False, slots=True)
class _Part:
    """A call, or what runs of a module at one time: a module that is used again later is another part.

    depth: of its module; above: the parts of the sheet that it depends on, as bits. first: the calls of the first of
    `count` equal modules; inside: the parts that are repeated together.
    """

    label: str
    depth: int
    calls: list[int]
    is_call: bool = False
    above: int = 0
    count: int = 1
    first: list[int] = field(default_factory=list)
    inside: list[_Part] = field(default_factory=list)


def nested(graph: networkx.MultiDiGraph, types: Mapping[str, str]) -> Sheet:
    """A graph of calls as the sheet of the outermost modules. types: of modules by path."""
    nest = _Nest(graph, types)
    return nest.drawn(nest.folded(nest.parts(range(len(nest.names)), 0)), 0, 1)


class _Nest:
    def __init__(self, graph: networkx.MultiDiGraph, types: Mapping[str, str]) -> None:
        self.types = types
        self.names = shown(graph)
        self.facts: list[dict[str, Any]] = [dict(graph.nodes[name]) for name in self.names]
        at = {name: place for place, name in enumerate(self.names)}
        self.paths = [_path(facts) for facts in self.facts]
        self.uses: list[list[tuple[int, Mapping[str, Any]]]] = [[] for _ in self.names]
        self.users: list[list[tuple[int, Mapping[str, Any]]]] = [[] for _ in self.names]
        held = set()  # weights, which the first call that reads them holds
        for source, target, facts in graph.edges(data=True):
            if target in at and source not in at and source not in held:
                held.add(source)
                own = self.facts[at[target]]
                own["parameters"] = own.get("parameters", 0) + graph.nodes[source].get("parameters", 0)
            if source in at and target in at:
                self.uses[at[target]].append((at[source], facts))
                self.users[at[source]].append((at[target], facts))

    def parts(self, calls: Sequence[int], depth: int) -> list[_Part]:
        """The calls by the modules of the next level, cut where a module would both lead to and depend on another part."""
        parts: list[_Part] = []
        of: dict[int, int] = {}
        latest: dict[str, int] = {}
        flat = all(len(self.paths[call]) <= depth for call in calls)
        for call in calls:
            path, above = self.paths[call], 0
            for one in {of[one] for one, _ in self.uses[call] if one in of and not flat}:
                above |= 1 << one | parts[one].above
            if len(path) <= depth:
                of[call] = len(parts)
                parts.append(_Part(self.label(call), depth, [call], is_call=True, above=above))
                continue
            place = latest.get(path[depth], -1)
            later = above >> place + 1 if place >= 0 else 0
            if place < 0 or any(
                later >> p & 1 and part.above >> place & 1 for p, part in enumerate(parts[place + 1 :])
            ):
                place = latest[path[depth]] = len(parts)
                parts.append(_Part(path[depth], depth + 1, []))
            above &= ~(1 << place)
            if above & ~parts[place].above:
                for part in parts[place + 1 :]:
                    part.above |= above if part.above >> place & 1 else 0
                parts[place].above |= above
            parts[place].calls.append(call)
            of[call] = place
        return parts

    def label(self, call: int) -> str:
        return str(self.facts[call].get("label", self.names[call]))

    def signature(self, part: _Part) -> object:
        """Equal for modules that do the same at the same cost, wired alike inside."""
        at = {call: place for place, call in enumerate(part.calls)}
        return tuple(
            (
                *self.paths[call][part.depth :],
                *map(self.facts[call].get, _ALIKE),
                *(at.get(one, -1) for one, _ in self.uses[call]),
            )
            for call in part.calls
        )

    def folded(self, parts: list[_Part]) -> list[_Part]:
        """Numbered modules that repeat, alone or several in turn, as one part each."""
        numbered = [part for part in parts if part.label.isdecimal() and not part.is_call]
        kinds: dict[object, int] = {}
        row = [kinds.setdefault(self.signature(part), len(kinds)) for part in numbered]
        made: dict[_Part, _Part] = {}
        start = 0
        while start < len(row):
            period, times = repetition(
                row, start, [place for place in range(len(row)) if row[place] == row[start]]
            )
            members = numbered[start : start + period * times]
            if times > 1:
                label = spans(sorted(int(part.label) for part in members))
                calls = [call for part in members for call in part.calls]
                inside = members[:period] if period > 1 else []
                depth = members[0].depth - (period > 1)
                joined = _Part(label, depth, calls, count=times, first=members[0].calls, inside=inside)
                made.update(dict.fromkeys(members, joined))
            start += len(members)
        found = list(dict.fromkeys(made.get(part, part) for part in parts))
        return self.ordered(found) or parts if made else parts

    def gathered(self, parts: list[_Part]) -> list[_Part]:
        """The parts, connected calls without FLOPs as one: what computes a mask, or positions."""
        import networkx

        small = networkx.Graph()
        of = {part.calls[0]: part for part in parts if part.is_call and self.is_free(part.calls[0])}
        for call, part in of.items():
            small.add_edges_from((of[one], part) for one, _ in self.uses[call] if one in of)
        for group in networkx.connected_components(small):
            inside = [part for part in parts if part in group]
            if _FEW <= len(inside) < len(parts):
                calls = [part.calls[0] for part in inside]
                names = dict.fromkeys(map(self.label, calls))
                joined = _Part(f"{', '.join([*names][:2])} …", inside[0].depth, calls, inside=inside)
                fewer = list(dict.fromkeys(joined if part in group else part for part in parts))
                parts = self.ordered(fewer) or parts
        return parts

    def is_free(self, call: int) -> bool:
        """Whether it is a call without FLOPs."""
        facts = self.facts[call]
        return facts.get("kind") == "call" and facts.get("flops") == 0 and facts.get("exact") == "exact"

    def ordered(self, parts: Sequence[_Part]) -> list[_Part]:
        """The parts, each after those that it depends on; none where two depend on one another."""
        import networkx

        of = {call: place for place, part in enumerate(parts) for call in part.calls}
        graph = networkx.DiGraph()
        graph.add_nodes_from(range(len(parts)))
        for call, place in of.items():
            graph.add_edges_from(
                (of[one], place) for one, _ in self.uses[call] if of.get(one, place) != place
            )
        try:
            return [parts[place] for place in networkx.lexicographical_topological_sort(graph)]
        except networkx.NetworkXUnfeasible:
            return []

    def drawn(self, parts: list[_Part], depth: int, times: int) -> Sheet:
        """The parts as boxes, with what comes in from outside before and what goes out after them."""
        parts = self.gathered(parts) if len(parts) > _READABLE else parts
        if len(parts) > MOST:
            parts = _chunks(sorted(parts, key=lambda part: part.above.bit_count()))
        sheet = Sheet()
        around = self.paths[parts[0].calls[0]][:depth] if parts else []
        of = {call: place for place, part in enumerate(parts) for call in part.calls}
        inputs: dict[int, int] = {}
        outputs: dict[int, int] = {}
        shown = {call for part in parts for call in part.first or part.calls}
        for call in sorted(shown):
            for one, _ in self.uses[call]:
                if one not in of and one not in inputs:
                    inputs[one] = len(sheet.items)
                    sheet.items.append(Item(f"from {self.named(one, around)}", {"kind": "port"}))
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
                        sheet.items.append(Item(f"to {self.named(one, around)}", {"kind": "port"}))
                    sheet.link(place + first, outputs[call], facts)
        return sheet

    def named(self, call: int, around: Sequence[str]) -> str:
        """A call outside of a sheet by its module, or by itself where it is of a module around the sheet."""
        path = self.paths[call]
        alike = next(
            (n for n, pair in enumerate(zip(path, around, strict=False)) if len({*pair}) > 1), len(around)
        )
        return ".".join(path[: alike + 1]) if len(path) > alike else self.label(call)

    def item(self, part: _Part, times: int) -> Item:
        """A call, or modules; those that hold one thing share a box with it."""
        if part.is_call:
            return Item(part.label, self.facts[part.calls[0]], "", times)
        labels, count = [part.label], part.count
        while True:
            inside = part.inside or self.folded(self.parts(part.first or part.calls, part.depth))
            if len(inside) != 1 or inside[0].is_call:
                break
            part = inside[0]
            labels.append(part.label)
            count *= part.count
        calls = part.first or part.calls
        path = ".".join(self.paths[calls[0]][: part.depth])
        facts = {
            **(self.facts[calls[0]] if len(inside) == 1 else {"kind": "module", "op": ""}),
            **together([self.facts[call] for one in inside for call in one.calls], count),
            "module": path,
            "count": count,
        }
        kind = self.types.get(path) or (
            self.facts[calls[0]].get("module_type", "") if len(inside) == 1 else ""
        )
        what = short_type(kind)
        if part.inside:
            what = f"{len(inside)} in turn" if part.count > 1 else count_of(len(inside), "part")
        sheet = self.drawn(inside, part.depth, times * count) if len(inside) > 1 else None
        return Item(".".join(labels), {**facts, "module_type": kind}, what, times, sheet)


def _path(facts: Mapping[str, Any]) -> list[str]:
    path = str(facts.get("module", "")) if facts.get("kind") == "call" else ""
    return path.split(".", _DEEPEST) if path else []


def _chunks(parts: Sequence[_Part]) -> list[_Part]:
    """Consecutive parts, as many boxes of them as fit."""
    size = max(MOST, -(-len(parts) // MOST))
    groups = [parts[start : start + size] for start in range(0, len(parts), size)]
    return [
        _Part(
            f"part {number} of {len(groups)}",
            group[0].depth - (not group[0].is_call),
            [call for part in group for call in part.calls],
            inside=[*group],
        )
        for number, group in enumerate(groups, 1)
    ]
