"""A comparison as text for a terminal or a pipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphflops.comparison.result import Comparison, Figure, GroupChange, ModuleChange
from graphflops.render.csv import written
from graphflops.render.diff.causes import VISIBLE, causes
from graphflops.render.diff.tables import tables
from graphflops.render.diff.words import compared_at, headlines, notes
from graphflops.render.markdown import escaped, fitted, rows
from graphflops.render.table import Page
from graphflops.render.text import short_type
from graphflops.report import Grouping

_FIGURES = 34  # columns of a terminal that the figures beside a cause take


def table(
    comparison: Comparison, *, by: Grouping | None = None, depth: int | None = None, top: int | None = None,
    verbose: bool = False, width: int = 120, color: bool = False,
) -> str:  # fmt: skip
    """The answer, then what changed, one cause a line: twelve lines at most, one where nothing differs.

    With `verbose`, or any choice of a table, every total and the modules, operators or source lines that changed follow.
    """
    page = Page(width, color)
    first, *others = headlines(comparison, verbose=verbose)
    page.line((first, "bold"))
    brief = not (verbose or by or top) and depth is None
    identical = brief and comparison.same and not comparison.export
    notes_ = [] if identical else compared_at(comparison) if brief else notes(comparison)
    for line in others:
        page.line(f"  {line}")
    room = None if comparison.export else VISIBLE - len(page.lines) - len(notes_)
    for grid in () if room is None else causes(comparison, room, width - _FIGURES):
        page.table(grid)
    for line in notes_:
        page.line((f"  {line}", "dim"))
    for grid in () if brief else tables(comparison, by, depth, top, width):
        page.line()
        page.table(grid)
    return page.text()


COMMENT = 65_536  # characters of a comment on GitHub


def markdown(
    comparison: Comparison, *, by: Grouping | None = None, depth: int | None = None, top: int | None = None,
    verbose: bool = False, limit: int | None = COMMENT,
) -> str:  # fmt: skip
    """The answer, then what changed, one cause a line: twelve lines at most; every total and table is folded below these.

    One line where nothing differs. Of an export the answer alone, unless more is asked for. limit: characters.
    """
    first, *others = headlines(comparison, verbose=verbose)
    lines = [f"**{escaped(first)}**"]
    brief = not (verbose or by or top) and depth is None
    said = [f"- {escaped(line)}" for line in others]
    if brief and comparison.same and not comparison.export:
        return within([*lines, *([""] if said else []), *said], limit)
    at = [f"- {escaped(line)}" for line in compared_at(comparison)]
    lines += ["", *said]
    room = VISIBLE - len(said) - len(at) - 2  # the first line, and the one that unfolds the rest
    for grid in () if comparison.export else causes(comparison, room):
        lines += ["", *rows(grid), ""]
    lines += at
    if comparison.export and brief:
        return within(lines, limit)
    hidden = [f"- {escaped(line)}" for line in notes(comparison)[len(at) :]]
    for grid in tables(comparison, by, depth, top):
        hidden += ["", *rows(grid)]
    head = ["", "<details><summary>Totals and modules</summary>", "", *hidden]
    end = "\n</details>\n"
    return within([*lines, *head], None if limit is None else limit - len(end)) + end


def within(lines: Sequence[str], limit: int | None) -> str:
    """The lines as one text of at most `limit` characters; the last line says how many had to be left out."""
    text = fitted(
        [(f"{line}\n", 1) for line in lines], limit, lambda count: f"\n… {count:,} more lines left out\n"
    )
    return text if limit is None else text[: max(limit, 0)]


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
