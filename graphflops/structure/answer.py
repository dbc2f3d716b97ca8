"""Answers to questions about the structure of a model, as a graph and a finding; and where to cut a program into stages.

The calls that depend on an input are cut in program order. Among all cuts whose stages exceed an equal share by at most the
tolerance, those with the fewest crossing bytes are found, then of these the best balanced; both are exact.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Union

from graphflops.base.record import Record
from graphflops.dims.solving import first_from
from graphflops.errors import ModelError, OptionError, shown
from graphflops.report import GraphLevel, Report
from graphflops.structure import queries
from graphflops.structure.build import Program

if TYPE_CHECKING:
    import networkx

TOLERANCE = 5.0  # percent by which a stage may pass an equal share of the cost where that saves bytes


class Crossing(NamedTuple):
    """A value that one stage passes to a later one. bytes: None where they are not known."""

    value: str
    maker: str
    bytes: int | None


class Stage(NamedTuple):
    """Calls that run together, by name in program order. crossing: the values that this stage hands on."""

    calls: tuple[str, ...]
    cost: float
    weight_bytes: int
    crossing: tuple[Crossing, ...]


class Cuts(NamedTuple):
    """A program in stages. by: what is balanced. whole: the cost of all calls; unknown: calls whose cost is not known."""

    by: queries.Quantity
    stages: tuple[Stage, ...]
    whole: float
    unknown: int

    @property
    def imbalance(self) -> float:
        """By how much the most costly stage exceeds an equal share, as a fraction of that share."""
        return max(stage.cost for stage in self.stages) * len(self.stages) / self.whole - 1


def cuts(
    graph: networkx.MultiDiGraph, number: int, by: queries.Quantity = "flops", tolerance: float = TOLERANCE
) -> Cuts:
    """The graph of calls in so many stages.

    A value that depends on no input, such as a table of positions, does not cross: each stage computes it; its cost is in
    the first stage that reads it. Neither does an input, which each stage may be given.
    tolerance: percent by which a stage may pass an equal share of the cost where that saves bytes.

    Raises ModelError where there are fewer calls to part than stages, or no costs; OptionError for times without a device.
    """
    queries.refuse_open(graph, by)
    flow = queries.data_flow(graph)
    names = [name for name in flow if graph.nodes[name]["kind"] == "call"]
    every = [name for name, data in graph.nodes(data=True) if data["kind"] == "call"]
    whole, unknown = queries.cost(graph, every, by)
    # The position of each call among those that are cut; a call that depends on no input has its first reader's.
    place = {name: position for position, name in enumerate(names)}
    last = _last_readers(flow, place)
    for name in reversed(every):
        users = (place[user] for user in graph.succ[name] if user in place)
        place.setdefault(name, min(users, default=len(names) - 1))
    costs = [0] * len(names)
    for name in every if names else ():
        costs[place[name]] += queries.ticks(graph.nodes[name], by)
    if number > (most := sum(map(bool, costs))):
        what = f"calls that have a known cost and depend on an input: {most:,}"
        raise ModelError(f"cannot cut the program into {number:,} stages: {what}")
    # Bytes that cross before each position; unknown ones count as 0, and the result says so.
    changes = [0] * (len(names) + 1)
    for value, position in last.items():
        changes[place[value.maker] + 1] += value.bytes or 0
        changes[position + 1] -= value.bytes or 0
    stages = []
    for first, end in pairwise(_bounds(costs, [*accumulate(changes)], number, tolerance)):
        calls = [name for name in every if first <= place[name] < end]
        crossing = [value for value, position in last.items() if place[value.maker] < end <= position]
        weights = sum(graph.nodes[name].get("memory", 0) for name in _weights_of(graph, calls))
        stages.append(Stage(tuple(calls), queries.cost(graph, calls, by)[0], weights, tuple(crossing)))
    return Cuts(by, tuple(stages), whole, unknown)


def _weights_of(graph: networkx.MultiDiGraph, calls: Iterable[str]) -> set[str]:
    return {maker for name in calls for maker in graph.pred[name] if graph.nodes[maker]["kind"] == "weight"}


def _last_readers(flow: networkx.MultiDiGraph, place: Mapping[str, int]) -> dict[Crossing, int]:
    """The values that calls make and other calls read, each with the position of the last reader."""
    last: dict[Crossing, int] = {}
    for maker, user, data in flow.out_edges(place, data=True):
        if user in place:
            value = Crossing(data["value"], maker, data.get("bytes"))
            last[value] = max(last.get(value, 0), place[user])
    return last


def _bounds(costs: Sequence[int], across: Sequence[int], number: int, tolerance: float) -> list[int]:
    """Where stages begin, with 0 first and the end last.

    Of places with no cost between them, only the one with the fewest bytes is tried.
    """
    sums = [0, *accumulate(costs)]
    best: dict[int, int] = {}
    for place in range(1, len(costs)):
        if 0 < sums[place] < sums[-1] and across[place] < across[best.setdefault(sums[place], place)]:
            best[sums[place]] = place
    places = [*best.values()]
    ends, ahead = [0, *best, sums[-1]], [0, *(across[place] for place in places), 0]

    def covers(limit: int) -> bool:  # whether so many stages within the limit cover all
        at = 0
        for _ in range(number):
            at = bisect_right(ends, ends[at] + limit) - 1
        return at == len(ends) - 1

    least = first_from(-(-sums[-1] // number), sums[-1], covers)
    limit = max(least, int(sums[-1] * (1 + tolerance / 100) / number))
    fewest, _ = _fewest(ends, ahead, number, limit)
    tight = first_from(least, limit, lambda tried: _fewest(ends, ahead, number, tried)[0] == fewest)
    chosen = _fewest(ends, ahead, number, tight)[1]
    return [0, *(places[index - 1] for index in chosen), len(costs)]


def _fewest(
    ends: Sequence[int], ahead: Sequence[int], number: int, limit: int
) -> tuple[int | None, list[int]]:
    """The fewest crossing bytes if no stage exceeds the limit (None if one must), and the places of the cuts."""
    sums: list[int | None] = [0] + [None] * (len(ends) - 1)
    taken: list[list[int]] = []
    for _ in range(number):
        # Bytes and place of earlier cuts within the limit, the fewest bytes first.
        window: deque[tuple[int, int]] = deque()
        after: list[int | None] = [None] * len(ends)
        chosen = [0] * len(ends)
        for place in range(1, len(ends)):
            if (earlier := sums[place - 1]) is not None:
                while window and window[-1][0] >= earlier:
                    window.pop()
                window.append((earlier, place - 1))
            while window and ends[place] - ends[window[0][1]] > limit:
                window.popleft()
            if window:
                after[place], chosen[place] = window[0][0] + ahead[place], window[0][1]
        sums = after
        taken.append(chosen)
    cut = [len(ends) - 1]
    for chosen in reversed(taken):
        cut.append(chosen[cut[-1]])
    return sums[-1], cut[-2:0:-1]


Colour = Literal["flops", "bytes", "time", "memory"]


class Part(Record, frozen=True):
    """A part of the program, or all of it: its calls and what they need and make. title: what was asked for."""

    title: str
    names: frozenset[str]


class Unused(Part, frozen=True):
    """Weights and inputs that nothing reads, and calls that no result depends on."""


Found = Union[Part, queries.CriticalPath, queries.Bottlenecks, Cuts]


class Answer(Record, frozen=True):
    """An answer."""

    report: Report
    # As `Report.graph` gives it: the part that was asked for. A path, bottlenecks, stages or unused nodes are marked in the
    # whole graph, by a `stage` or by the `status` on path, bottleneck or unused.
    graph: networkx.MultiDiGraph
    calls: networkx.MultiDiGraph  # the graph of all of them
    found: Found  # what was found, by names of calls
    by: Colour  # what it is coloured by


def ask(
    report: Report,
    *,
    level: GraphLevel = "module",
    depth: int | None = None,
    by: Colour = "flops",
    tolerance: float = TOLERANCE,
    **asked: Any,
) -> Answer:
    """The answer to the one question that is neither None nor False; without a question, the whole graph.

    only: these modules. first and last: what lies between them. uses, needs: what depends on a weight, what a module depends
    on. path: the critical path by a quantity. narrow: bottlenecks. stages: cuts into so many, within the tolerance.
    unused: what nothing reads. Names are those of modules, calls, weights and inputs.

    Raises ModelError for a name that there is not, OptionError for several questions and for times without a device.
    """
    given = {name: value for name, value in asked.items() if value is not None and value is not False}
    ends = given.keys() & {"first", "last"}
    if len(given) > max(1, len(ends)):
        raise OptionError("one question at a time")
    if len(ends) == 1:
        raise OptionError("what lies between two modules takes both, --from and --to")
    program = Program(report)
    graph = program.calls
    queries.cost(graph, (), by)  # refuses times without a device
    found = _found(graph, by, tolerance, **given)
    for name, mark in _marks(found):
        graph.nodes[name]["stage" if isinstance(found, Cuts) else "status"] = mark
    is_part = type(found) is Part and len(found.names) < len(graph)
    names = found.names if isinstance(found, Part) and is_part else None
    if level == "module":
        return Answer(report, program.modules(depth, names), graph, found, by)
    return Answer(report, graph if names is None else queries.part(graph, names), graph, found, by)


def _found(graph: networkx.MultiDiGraph, by: Colour, tolerance: float, **asked: Any) -> Found:
    """What a question finds in the graph of calls: a part, with the weights that its calls read, or another finding."""
    match asked:
        case {"path": quantity}:
            return queries.critical_path(graph, quantity)
        case {"narrow": _}:
            return queries.bottlenecks(graph)
        case {"unused": _}:
            return Unused("what nothing reads", frozenset(queries.unused(graph)))
        case {"stages": number}:
            if by == "memory":
                what = "what is in memory at once does not add up"
                raise OptionError(f"stages are balanced by flops, bytes or time: {what}")
            return cuts(graph, number, by, tolerance)
        case {"uses": name}:
            return _beside(graph, f"what depends on {name}", queries.uses(graph, queries.named(graph, name)))
        case {"needs": name}:
            return _beside(graph, f"what {name} depends on", queries.needs(graph, queries.named(graph, name)))
        case {"only": name}:
            return _beside(graph, name, queries.named(graph, name))
        case {"first": first, "last": last}:
            found = queries.between(graph, queries.named(graph, first), queries.named(graph, last))
            if not found:
                what = f"nothing lies between {shown(first)} and {shown(last)}"
                raise ModelError(f"{what}, or one does not lead to the other")
            return _beside(graph, f"what lies between {first} and {last}", found)
    return Part("", frozenset(graph))


def _marks(found: Found) -> Iterator[tuple[str, str | int]]:
    """Nodes that an answer marks, each with its stage or status; none if the answer is a part of the graph."""
    if isinstance(found, queries.CriticalPath):
        yield from ((name, "on path") for name in found.calls)
    elif isinstance(found, queries.Bottlenecks):
        yield from ((one.call, "bottleneck") for one in found.found)
    elif isinstance(found, Cuts):
        yield from ((name, place) for place, stage in enumerate(found.stages, 1) for name in stage.calls)
    elif isinstance(found, Unused):
        yield from ((name, "unused") for name in found.names)


def _beside(graph: networkx.MultiDiGraph, title: str, names: set[str]) -> Part:
    calls = [name for name in names if graph.nodes[name]["kind"] == "call"]
    return Part(title, frozenset(names | queries.tied(graph, _weights_of(graph, calls))))
