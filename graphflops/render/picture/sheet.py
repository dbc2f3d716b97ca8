"""What a picture shows, before it has positions: boxes with the figures of the calls in them, and the lines between."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
