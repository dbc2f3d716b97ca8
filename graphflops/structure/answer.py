"""Answers to questions about the structure of a model: a graph to look at, and what was found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Union

from graphflops.errors import ModelError, OptionError, shown
from graphflops.structure import queries
from graphflops.structure.build import Program
from graphflops.structure.cuts import TOLERANCE, Cuts, cuts
from graphflops.structure.queries import Bottlenecks, CriticalPath, bottlenecks, critical_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    import networkx

    from graphflops.report import GraphLevel, Report

Colour = Literal["flops", "bytes", "time", "memory"]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the program, or all of it: its calls and what they need and make. title: what was asked for."""

    title: str
    names: frozenset[str]


class Unused(Part):
    """Weights and inputs that nothing reads, and calls that no result depends on."""


Found = Union[Part, CriticalPath, Bottlenecks, Cuts]


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer.

    graph: as `Report.graph` gives it, the part that was asked for; where a path, bottlenecks, stages or what is unused were,
    all of it, its nodes with a `stage`, or with the `status` on path, bottleneck or unused. by: what it is coloured by.
    found: what was found, by names of calls; calls: the graph of all of them.
    """

    report: Report
    graph: networkx.MultiDiGraph
    calls: networkx.MultiDiGraph
    found: Found
    by: Colour


def ask(
    report: Report,
    *,
    level: GraphLevel = "module",
    depth: int | None = None,
    by: Colour = "flops",
    tolerance: float = TOLERANCE,
    **asked: Any,
) -> Answer:
    """The answer to the one question that is neither None nor False; to none, the whole graph.

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
    """What a question finds in the graph of calls: a part with the weights that its calls read, or more than a part."""
    match asked:
        case {"path": quantity}:
            return critical_path(graph, quantity)
        case {"narrow": _}:
            return bottlenecks(graph)
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
    """Nodes that an answer is about, where it is not a part of the graph: each with its stage, or with its status."""
    if isinstance(found, CriticalPath):
        yield from ((name, "on path") for name in found.calls)
    elif isinstance(found, Bottlenecks):
        yield from ((one.call, "bottleneck") for one in found.found)
    elif isinstance(found, Cuts):
        yield from ((name, place) for place, stage in enumerate(found.stages, 1) for name in stage.calls)
    elif isinstance(found, Unused):
        yield from ((name, "unused") for name in found.names)


def _beside(graph: networkx.MultiDiGraph, title: str, names: set[str]) -> Part:
    calls = [name for name in names if graph.nodes[name]["kind"] == "call"]
    read = {maker for name in calls for maker in graph.pred[name] if graph.nodes[maker]["kind"] == "weight"}
    return Part(title, frozenset(names | queries.tied(graph, read)))
