"""The calls that activation checkpointing runs again for the gradients, and what that costs.

A checkpoint is a module that the user names, a call of `torch.utils.checkpoint` that the recorded lines of code show, or a
checkpointed graph that an export holds as one operator; its calls then stand in the program itself.
`torch.utils.checkpoint` keeps what goes into a checkpoint. When the first gradient needs a value from inside, it runs the
calls again up to the last one that keeps a value for its gradient; these values are then kept until they are read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from graphflops.base.patterns import modules_around
from graphflops.base.record import Record
from graphflops.errors import ModelError, shown
from graphflops.graph import Argument, Graph, Node, Output, Ref
from graphflops.passes.program import PricedCall
from graphflops.report import Row
from graphflops.training import matched


class Checkpoint(Record, frozen=True):
    """Calls first to last of a graph; those before `end` run again."""

    first: int
    last: int
    end: int
    saved: Mapping[str, int]  # by value that gradients read, the first call whose gradient does


def checkpoints(
    calls: Sequence[PricedCall],
    marks: Mapping[str, int],
    kept_by: Callable[[PricedCall], tuple[Sequence[str], Sequence[str]]],
) -> list[Checkpoint]:
    """The checkpoints of a graph. marks: number of its checkpoint by name of a call.

    kept_by: the values among operands and results that a call keeps for its gradient, by the names of their memory;
    "" for memory of its own.
    """
    together: dict[int, list[int]] = {}
    for place, call in enumerate(calls):
        if call.node.name in marks:
            together.setdefault(marks[call.node.name], []).append(place)
    found = []
    for places in together.values():
        saved: dict[str, int] = {}
        end = places[0]
        for place in places:
            operands, results = kept_by(calls[place])
            if results:
                end = place + 1
            elif operands:
                end = place
            for name in (*operands, *results):
                saved.setdefault(name, place)
        found.append(Checkpoint(places[0], places[-1], end, saved))
    return found


def gradient_checkpoints(calls: Sequence[PricedCall], marks: Mapping[str, int]) -> list[Checkpoint]:
    """The checkpoints of a graph, by what the gradients of its calls read, wherever in memory that lies."""
    return checkpoints(calls, marks, _kept) if marks else []


def add_recomputation(calls: Sequence[PricedCall], rows: list[Row], marks: Mapping[str, int]) -> None:
    """Add the work that checkpoints do again to the gradients of the calls that do it."""
    ends = [call.row for call in calls[1:]] + [len(rows)]
    for checkpoint in gradient_checkpoints(calls, marks):
        for place in range(checkpoint.first, checkpoint.end):
            for row in range(calls[place].row, ends[place]):
                own = rows[row]
                again = own.cost if own.backward is None else own.backward + own.cost
                rows[row] = own._replace(backward=again)


def _kept(call: PricedCall) -> tuple[Sequence[str], Sequence[str]]:
    """Positions, as texts, of what a call keeps for its gradient."""
    if call.gradient is None:
        return (), ()
    gradient = call.gradient
    own = [""] if gradient.beside else []
    return [str(place) for place in gradient.operands], [*(str(place) for place in gradient.results), *own]


_CHECKPOINTED = ("tag_activation_checkpoint", "wrap_activation_checkpoint")
_CALLS_CHECKPOINT = re.compile(
    r"(?<![\w])(?:checkpoint|checkpoint_sequential|_gradient_checkpointing_func)\("
)
_FRAME = re.compile(r'^[ \t]*File "[^"\n]*", line \d+, in (\S+)\n([^\n]*)', re.MULTILINE)


def with_checkpoints(graph: Graph, patterns: Sequence[str]) -> Graph:
    """The graph with its checkpoints marked, checkpointed graphs put in place; ModelError for a pattern without a match."""
    graph = _with_inlined(graph)
    modules = _matched_modules(graph, patterns)
    marks: dict[str, int] = dict(graph.recomputed)
    number = max(marks.values(), default=-1)
    before: object = None
    for node in graph.nodes:
        key = marks.get(node.name) if node.name in graph.recomputed else _checkpoint_of(node, modules)
        if key is not None and node.name not in marks:
            number += key != before
            marks[node.name] = number
        before = key
    return replace(graph, recomputed=marks) if marks else graph


def _matched_modules(graph: Graph, patterns: Sequence[str]) -> set[str]:
    """Paths of the modules that the patterns match among those that are called."""
    called = {node.module for node in graph.nodes if node.module}
    paths = {path for module in called for path in (*modules_around(module), module)}
    found: set[str] = set()
    for pattern in patterns:
        hits = matched(pattern, paths)
        if not hits:
            some = ", ".join([*map(shown, sorted(paths)[:3]), "..."]) if paths else "none"
            raise ModelError(f"--recompute {shown(pattern)} matches no module; the model has {some}")
        found |= hits
    return found


def _checkpoint_of(node: Node, modules: set[str]) -> tuple[str, str] | None:
    """Identifies the checkpoint of a call: the outermost module that is named, or the line of code and its module."""
    if modules:
        inside = next((path for path in (*modules_around(node.module), node.module) if path in modules), None)
        if inside is not None:
            return ("", inside)
    if "checkpoint" not in node.python_stack:
        return None
    depth = 0
    for function, line in _FRAME.findall(node.python_stack):
        depth += function == "forward"
        if _CALLS_CHECKPOINT.search(line):
            stack = [entry.split(",")[1] for entry in node.module_stack.split(";") if entry.count(",") > 1]
            return (line, stack[depth] if depth < len(stack) else node.module)
    return None


# Checkpointed graphs


def _with_inlined(graph: Graph) -> Graph:
    """The graph with the calls of checkpointed graphs in place of the operators that hold them."""
    nodes: list[Node] = []
    types, marks = dict(graph.types), dict(graph.recomputed)
    number = 0
    for node in graph.nodes:
        calls = _inlined(node, types) if node.operator.word in _CHECKPOINTED else None
        if calls is None:
            nodes.append(node)
        else:
            marks.update((call.name, number) for call in calls)
            nodes += calls
            number += 1
    return replace(graph, nodes=tuple(nodes), types=types, recomputed=marks) if number else graph


def _inlined(node: Node, types: dict[str, Any]) -> list[Node] | None:
    """The calls of a checkpointed graph under names of their own; None where results or inputs are not one value each."""
    region, *operands = node.args or (None,)
    if not isinstance(region, Graph) or len(region.inputs) != len(operands):
        return None
    results = [output.value for output in region.outputs]
    made = {name for call in region.nodes for name in call.outputs}
    results = [*results[0]] if len(results) == 1 and isinstance(results[0], tuple) else results
    names = [result.name if isinstance(result, Ref) else "" for result in results]
    if len(names) != len(node.outputs) or len({*names}) < len(names) or not made.issuperset(names):
        return None
    given = {entry.name: operand for entry, operand in zip(region.inputs, operands, strict=True)}
    renamed = {name: f"{node.name}/{name}" for name in made if name is not None}
    pairs = zip(names, node.outputs, strict=True)
    renamed.update((inner, outer) for inner, outer in pairs if outer is not None)

    def put(argument: Argument) -> Argument:
        if isinstance(argument, Ref):
            return given.get(argument.name, Ref(renamed.get(argument.name, argument.name)))
        return _with_captures(argument, put) if isinstance(argument, Graph) else argument

    types.update((renamed[name], region.types[name]) for name in renamed if name in region.types)
    return [
        replace(
            call.changed(put),
            name=f"{node.name}/{call.name}",
            outputs=tuple(None if name is None else renamed[name] for name in call.outputs),
            module=call.module or node.module,
            module_type=call.module_type if call.module else node.module_type,
            source=call.source or node.source,
        )
        for call in region.nodes
    ]


def _with_captures(graph: Graph, put: Callable[[Argument], Argument]) -> Graph:
    """A nested graph whose values around it have new names."""
    names: Mapping[str, Argument] = {name: put(Ref(name)) for name in graph.captures}
    if all(value == Ref(name) for name, value in names.items()):
        return graph

    def inside(argument: Argument) -> Argument:
        return names.get(argument.name, argument) if isinstance(argument, Ref) else argument

    return replace(
        graph,
        captures=tuple(value.name for value in names.values() if isinstance(value, Ref)),
        nodes=tuple(call.changed(inside) for call in graph.nodes),
        outputs=tuple(Output(inside(output.value), output.role, output.target) for output in graph.outputs),
    )
