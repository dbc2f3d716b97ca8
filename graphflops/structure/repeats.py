"""The modules that a program runs through, one after another, and those of them that repeat."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from graphflops.base.patterns import modules_around

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphflops.report import Report
    from graphflops.structure.wiring import Call

_PAGE = 60  # nodes, of the default depth
_DEEPEST = 12
_ONE_STAGE: Mapping[str, int] = MappingProxyType({})
_TRIED = 8  # places where a repetition may begin anew


@dataclass(slots=True)
class Run:
    """An unbroken run of calls in one module.

    own: whether these are calls of a module itself, between those of the modules in it.
    repeats: the repetitions it is part of, each with the number of its turn.
    """

    path: str
    own: bool
    calls: list[Call]
    form: int = 0
    repeats: dict[int, int] = field(default_factory=dict)


def layers(
    report: Report, calls: Sequence[Call], depth: int | None, stages: Mapping[str, int] = _ONE_STAGE
) -> list[list[Run]]:
    """Runs of calls in modules `depth` levels in, in program order; those that repeat together in one list.

    Two runs repeat where their modules have one name but for numbers, and their calls equal operators and costs, and
    where they are in one stage. depth None: the deepest with about a page of lists.
    """
    if depth is not None:
        return _Repeats().columns([[run] for run in _runs(report, calls, depth, stages)])
    found: list[list[Run]] = []
    for tried in range(1, _DEEPEST):
        deeper = layers(report, calls, tried, stages)
        if found and len(deeper) > _PAGE:
            break
        found = deeper
    return found


def cut(path: str, depth: int) -> str:
    """The module `depth` levels in; the number of a layer is on the level of its list, as `layers.3`."""
    parts, levels = path.split("."), 0
    for place, part in enumerate(parts):
        levels += not (part.isdecimal() and place and not parts[place - 1].isdecimal())
        if levels > depth:
            return ".".join(parts[:place])
    return path


def _runs(report: Report, calls: Sequence[Call], depth: int, stages: Mapping[str, int]) -> list[Run]:
    paths = {row.module: cut(row.module, depth) for row in report.rows}
    outer = {around for path in {*paths.values()} for around in (*modules_around(path), *([""] * bool(path)))}
    runs: list[Run] = []
    for call in calls:
        path = paths[report.rows[call.row].module]
        if not runs or runs[-1].path != path or stages.get(runs[-1].calls[-1].name) != stages.get(call.name):
            runs.append(Run(path, path in outer, []))
        runs[-1].calls.append(call)
    forms: dict[object, int] = {}
    costs: dict[object, int] = {}
    numbers: dict[int, int] = {}  # of costs, by identity
    for run in runs:
        rows = [report.rows[call.row] for call in run.calls]
        for row in rows:
            if id(row.cost) not in numbers:
                numbers[id(row.cost)] = costs.setdefault(row.cost, len(costs))
        name = tuple("*" if part.isdecimal() else part for part in run.path.split("."))
        key = (
            name,
            stages.get(run.calls[0].name),
            *((row.op, row.state, numbers[id(row.cost)]) for row in rows),
        )
        run.form = forms.setdefault(key, len(forms))
    return runs


class _Repeats:
    """Finds what repeats at once: the longest stretch of equal turns first, then what repeats within a turn."""

    def __init__(self) -> None:
        self.found = 0

    def columns(self, columns: list[list[Run]]) -> list[list[Run]]:
        forms = [column[0].form for column in columns]
        places: dict[int, list[int]] = {}
        for place, form in enumerate(forms):
            places.setdefault(form, []).append(place)
        made: list[list[Run]] = []
        start = 0
        while start < len(columns):
            period, turns = repetition(forms, start, places[forms[start]])
            if turns < 2:
                made.append(columns[start])
                start += 1
                continue
            self.found += 1
            for turn in range(turns):
                for column in columns[start + turn * period : start + (turn + 1) * period]:
                    for run in column:
                        run.repeats[self.found] = turn
            within = [
                [run for turn in range(turns) for run in columns[start + turn * period + place]]
                for place in range(period)
            ]
            made += self.columns(within)
            start += period * turns
        return made


def repetition(forms: Sequence[int], start: int, places: Sequence[int]) -> tuple[int, int]:
    """Period and number of the turns from a place on that cover most; (1, 1) where nothing repeats."""
    best = (1, 1)
    for later in [place for place in places if place > start][:_TRIED]:
        period, turns = later - start, 1
        pattern = forms[start:later]
        while forms[start + turns * period : start + (turns + 1) * period] == pattern:
            turns += 1
        if turns > 1 and period * turns > best[0] * best[1]:
            best = (period, turns)
    return best
