"""Answers to questions about the structure of a model: a graph to look at, and what was found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Union

from graphflops.errors import ModelError, OptionError, shown
from graphflops.structure import queries
from graphflops.structure.build import Program
from graphflops.structure.cuts import TOLERANCE, Cuts, cuts
from graphflops.structure.paths import Bottlenecks, CriticalPath, bottlenecks, critical_path

if TYPE_CHECKING:
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


@dataclass(frozen=True, slots=True)
class Question:
    """At most one question. Names are those of modules, calls, weights and inputs.

    only: modules. first, last: what lies between them. uses, needs: what depends on a weight, what a module depends on.
    path: the critical path. narrow: bottlenecks. stages, tolerance: cuts. unused: what nothing reads.
    """

    only: str | None = None
    first: str | None = None
    last: str | None = None
    uses: str | None = None
    needs: str | None = None
    path: queries.Quantity | None = None
    narrow: bool = False
    stages: int | None = None
    tolerance: float = TOLERANCE
    unused: bool = False

    def check(self, by: Colour) -> None:
        """Raises OptionError for several questions, for half of one, and for what does not go with a quantity."""
        wholes = (self.only, self.first or self.last, self.uses, self.needs, self.path, self.stages)
        if sum(asked is not None for asked in wholes) + self.narrow + self.unused > 1:
            raise OptionError("one question at a time")
        if (self.first is None) != (self.last is None):
            raise OptionError("what lies between two modules takes both, --from and --to")
        if self.stages is not None and by == "memory":
            raise OptionError(
                "stages are balanced by flops, bytes or time: what is in memory at once does not add up"
            )


def ask(
    report: Report,
    *,
    level: GraphLevel = "module",
    depth: int | None = None,
    by: Colour = "flops",
    **asked: Any,
) -> Answer:
    """The answer to a question, whose fields are the keywords; to none, the whole graph.

    Raises ModelError for a name that there is not, OptionError as `Question.check` does and for times without a device.
    """
    question = Question(**asked)
    question.check(by)
    program = Program(report)
    graph = program.calls
    queries.cost(graph, (), by)  # refuses times without a device
    found = _marked(graph, question, by) or _part(graph, question)
    is_part = type(found) is Part and len(found.names) < len(graph)
    names = found.names if isinstance(found, Part) and is_part else None
    if level == "module":
        return Answer(report, program.modules(depth, names), graph, found, by)
    return Answer(report, graph if names is None else queries.part(graph, names), graph, found, by)


def _marked(graph: networkx.MultiDiGraph, question: Question, by: Colour) -> Found | None:
    """What is found in the whole graph, whose nodes are marked; None where a part is asked for."""
    found: Found
    marks: dict[str, Any]
    mark = "status"
    if question.path is not None:
        found = critical_path(graph, question.path)
        marks = dict.fromkeys(found.calls, "on path")
    elif question.narrow:
        found = bottlenecks(graph)
        marks = {one.call: "bottleneck" for one in found.found}
    elif question.stages is not None and by != "memory":
        found, mark = cuts(graph, question.stages, by, question.tolerance), "stage"
        marks = {name: number for number, stage in enumerate(found.stages, 1) for name in stage.calls}
    elif question.unused:
        found = Unused("what nothing reads", frozenset(queries.unused(graph)))
        marks = dict.fromkeys(found.names, "unused")
    else:
        return None
    for name, value in marks.items():
        graph.nodes[name][mark] = value
    return found


def _part(graph: networkx.MultiDiGraph, question: Question) -> Part:
    """The nodes that a question asks for, and the weights that its calls read."""
    if (uses := question.uses) is not None:
        return _beside(graph, f"what depends on {uses}", queries.uses(graph, queries.named(graph, uses)))
    if (needs := question.needs) is not None:
        return _beside(graph, f"what {needs} depends on", queries.needs(graph, queries.named(graph, needs)))
    if question.only is not None:
        return _beside(graph, question.only, queries.named(graph, question.only))
    first, last = question.first, question.last
    if first is not None and last is not None:
        found = queries.between(graph, queries.named(graph, first), queries.named(graph, last))
        if not found:
            raise ModelError(
                f"nothing lies between {shown(first)} and {shown(last)}, or one does not lead to the other"
            )
        return _beside(graph, f"what lies between {first} and {last}", found)
    return Part("", frozenset(graph))


def _beside(graph: networkx.MultiDiGraph, title: str, names: set[str]) -> Part:
    calls = [name for name in names if graph.nodes[name]["kind"] == "call"]
    read = {maker for name in calls for maker in graph.pred[name] if graph.nodes[maker]["kind"] == "weight"}
    return Part(title, frozenset(names | queries.tied(graph, read)))
