"""A comparison as text for a terminal or a pipe."""

from __future__ import annotations

from graphflops.comparison.result import Comparison
from graphflops.render.diff.causes import VISIBLE, causes
from graphflops.render.diff.tables import tables
from graphflops.render.diff.words import compared_at, headlines, notes
from graphflops.render.table import Page
from graphflops.report import Grouping

_FIGURES = 34  # columns of a terminal that the figures beside a cause take


def table(
    comparison: Comparison,
    *,
    by: Grouping | None = None,
    depth: int | None = None,
    top: int | None = None,
    verbose: bool = False,
    width: int = 120,
    color: bool = False,
) -> str:
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
