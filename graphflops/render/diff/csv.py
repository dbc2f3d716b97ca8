"""A comparison as comma-separated values: a line for each module, operator or source line that changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.render.csv import written
from graphflops.render.text import short_type

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphflops.comparison.result import Comparison, Figure
    from graphflops.report import Grouping

_SIDES = ("before", "after", "delta")


def csv(comparison: Comparison, *, by: Grouping | None = None, top: int | None = None) -> str:
    """One line a module that changed, or an operator, or a source line; quantities before, after and delta.

    A quantity is an integer, or its formula where a size has no value. top: lines kept, from the first.
    """
    rows: list[list[str | int]] = []
    if by in (None, "module"):
        names = [
            "status",
            "before",
            "after",
            "before_type",
            "after_type",
            "modules",
            "before_unknown",
            "after_unknown",
        ]
        for change in comparison.modules:
            place = [
                change.status,
                change.before or "",
                change.after or "",
                *map(short_type, (change.before_type, change.after_type)),
            ]
            counts = [change.modules, change.before_unknown, change.after_unknown]
            rows.append([*place, *counts, *_figures(change.figures), *_figures(change.backward)])
        backward = any(change.backward for change in comparison.modules)
    else:
        names = ["before", "after", "before_calls", "after_calls", "before_unknown", "after_unknown"]
        groups = comparison.ops if by == "op" else comparison.sources
        for group in groups:
            counts = [group.before_calls, group.after_calls, group.before_unknown, group.after_unknown]
            rows.append(
                [
                    group.before or "",
                    group.after or "",
                    *counts,
                    *_figures(group.figures),
                    *_figures(group.backward),
                ]
            )
        backward = any(group.backward for group in groups)
    quantities = [name for name in comparison.totals["forward"] if name not in _HELD]
    if by in (None, "module"):
        quantities.append("parameters")
    heads = [f"{name}_{side}" for name in quantities for side in _SIDES]
    if backward:
        heads += [f"backward_{head}" for head in heads if not head.startswith("parameters")]
    return written([*names, *heads], rows[:top])


_HELD = ("peak_bytes", "parameters", "parameter_bytes", "buffer_bytes")


def _figures(figures: Mapping[str, Figure]) -> Sequence[str | int]:
    cells: list[str | int] = []
    for figure in figures.values():
        cells.append(str(figure.before) if figure.before_value is None else figure.before_value)
        cells.append(str(figure.after) if figure.after_value is None else figure.after_value)
        delta = figure.delta
        cells.append(str(figure.formula) if delta is None else delta)
    return cells
