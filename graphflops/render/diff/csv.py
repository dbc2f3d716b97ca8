"""A comparison as comma-separated values: a line for each module, operator or source line that changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphflops.comparison.result import Comparison, Figure, GroupChange, ModuleChange
from graphflops.render.csv import written
from graphflops.render.text import short_type
from graphflops.report import Grouping

_SIDES = ("before", "after", "delta")


def csv(comparison: Comparison, *, by: Grouping | None = None, top: int | None = None) -> str:
    """One line a module that changed, or an operator, or a source line; quantities before, after and delta.

    A quantity is an integer, or its formula where a size has no value. top: lines kept, from the first.
    """
    names, rows, changed = _modules(comparison) if by in (None, "module") else _groups(comparison, by)
    quantities = [name for name in comparison.totals["forward"] if name not in _HELD]
    if by in (None, "module"):
        quantities.append("parameters")
    heads = [f"{name}_{side}" for name in quantities for side in _SIDES]
    if any(change.backward for change in changed):
        heads += [f"backward_{head}" for head in heads if not head.startswith("parameters")]
    return written([*names, *heads], rows[:top])


def _modules(comparison: Comparison) -> tuple[Sequence[str], list[list[str | int]], Sequence[ModuleChange]]:
    names = ("status", "before", "after", "before_type", "after_type", "modules")
    rows: list[list[str | int]] = []
    for change in comparison.modules:
        types = map(short_type, (change.before_type, change.after_type))
        place = [change.status, change.before or "", change.after or "", *types]
        counts = [change.modules, change.before_unknown, change.after_unknown]
        rows.append([*place, *counts, *_figures(change.figures), *_figures(change.backward)])
    return (*names, "before_unknown", "after_unknown"), rows, comparison.modules


def _groups(
    comparison: Comparison, by: Grouping | None
) -> tuple[Sequence[str], list[list[str | int]], Sequence[GroupChange]]:
    """Heads and lines of the operators or source lines that changed."""
    names = ("before", "after", "before_calls", "after_calls", "before_unknown", "after_unknown")
    groups = comparison.ops if by == "op" else comparison.sources
    rows: list[list[str | int]] = []
    for group in groups:
        counts = [group.before_calls, group.after_calls, group.before_unknown, group.after_unknown]
        figures = [*_figures(group.figures), *_figures(group.backward)]
        rows.append([group.before or "", group.after or "", *counts, *figures])
    return names, rows, groups


_HELD = ("peak_bytes", "device_bytes", "parameters", "parameter_bytes", "buffer_bytes")


def _figures(figures: Mapping[str, Figure]) -> Sequence[str | int]:
    cells: list[str | int] = []
    for figure in figures.values():
        cells.append(str(figure.before) if figure.before_value is None else figure.before_value)
        cells.append(str(figure.after) if figure.after_value is None else figure.after_value)
        delta = figure.delta
        cells.append(str(figure.formula) if delta is None else delta)
    return cells
