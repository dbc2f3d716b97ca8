"""A program with few of its repeated layers: what costs milliseconds to analyze, and tells what all of them cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from graphflops.graph import EagerRun, Graph
from graphflops.report import Report
from graphflops.structure.fold import Fold, Part
from graphflops.structure.wiring import wiring

TURNS = 2  # that are kept: the last of them has a layer before it and what follows the layers after it


@dataclass(frozen=True, slots=True)
class Folded:
    """A program with so many of its repeated layers."""

    graph: Graph
    layers: int  # how many the whole program has; 0 where none repeat
    turn: Mapping[str, int]  # by call, the layer it is in, -1 before the layers, `turns` after them
    turns: int = TURNS


def folded(report: Report, kept: int = TURNS) -> Folded:
    """The program of a report with so many of its layers at most."""
    graph = report.program
    assert graph is not None
    turns = _turns(report)
    if not turns:
        return Folded(graph, 0, dict.fromkeys((node.name for node in graph.nodes), TURNS))
    number, kept = len(turns), min(kept, len(turns))
    of = {name: turn for turn, names in enumerate(turns) for name in names}
    nodes = {node.name: node for node in graph.nodes}
    instead: dict[str, str] = {}
    for names in turns[kept:]:
        for name, alike in zip(names, turns[kept - 1], strict=True):
            pairs = zip(nodes[name].outputs, nodes[alike].outputs, strict=False)
            instead.update({old: new for old, new in pairs if old is not None and new is not None})
    first = next(place for place, node in enumerate(graph.nodes) if node.name in of)
    turn: dict[str, int] = {}
    kept_nodes = []
    for place, node in enumerate(graph.nodes):
        if of.get(node.name, 0) >= kept:
            continue
        turn[node.name] = of.get(node.name, -1 if place < first else kept)
        kept_nodes.append(node.renamed(instead))
    outputs = tuple([output.renamed(instead) for output in graph.outputs])
    used = {name for node in kept_nodes for name in node.reads()}
    used |= {name for output in outputs for _, name in output.uses()}
    tied = {entry.alias_of for entry in graph.inputs if entry.name in used}
    inputs = tuple(
        [one for one in graph.inputs if one.name in used or one.role == "user" or one.target in tied - {""}]
    )
    less = replace(
        graph,
        nodes=tuple(kept_nodes),
        inputs=inputs,
        outputs=outputs,
        eager=_eager(graph.eager, {name for node in kept_nodes for name in node.outputs if name}),
    )
    return Folded(less, number, turn, kept)


def _turns(report: Report) -> list[list[str]]:
    """The calls of each layer, by name in program order, of the repetition that most calls are in; empty without one."""
    found = wiring(report)
    rows = {name: report.rows[place] for name, place in found.calls.items()}
    reads: dict[str, list[str]] = {name: [] for name in rows}
    for use in found.uses:
        if use.user in rows and use.maker in rows:
            reads[use.user].append(use.maker)
    forms = {name: (row.op, row.state, row.cost) for name, row in rows.items()}
    fold = Fold({name: row.module for name, row in rows.items()}, reads, forms, {})
    repeated = [[turn.calls for turn in part.turns] for part in _repeated(fold, fold.top)]
    most = max(repeated, key=lambda turns: sum(map(len, turns)), default=[])
    place = {name: number for number, name in enumerate(rows)}
    best = [[rows[name].node for name in sorted(turn, key=place.__getitem__)] for turn in most]
    best = [[name for name in names if "/" not in name] for names in best]
    return best if len(best) >= TURNS and len({*map(len, best)}) == 1 else []


def _repeated(fold: Fold, part: Part) -> Iterator[Part]:
    """Every part that repeats, in none that does."""
    if len(part.turns) > 1:
        yield part
    elif not part.is_own:
        for inner in fold.within(part):
            yield from _repeated(fold, inner)


def _eager(run: EagerRun | None, made: set[str]) -> EagerRun | None:
    """What an eager run held, of the values that are left."""
    if run is None:
        return None
    places, left = [], -1
    for value in run.values:
        left += value in made
        places.append(left)
    values = tuple([value for value in run.values if value in made])
    until = [
        places[last] if last >= 0 else -1
        for value, last in zip(run.values, run.until, strict=True)
        if value in made
    ]
    return replace(run, values=values, until=tuple(until))
