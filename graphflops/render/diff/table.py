"""A comparison as text for a terminal or a pipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.render.diff.tables import tables
from graphflops.render.diff.words import compared_at, headlines, notes
from graphflops.render.table import Page

if TYPE_CHECKING:
    from graphflops.comparison.result import Comparison
    from graphflops.report import Grouping


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
    """The answer in three lines, then every total, then where the difference is.

    Of an export the answer alone, unless more is asked for.
    """
    page = Page(width, color)
    first, *others = headlines(comparison, verbose=verbose)
    page.line((first, "bold"))
    for line in others:
        page.line(f"  {line}")
    brief = comparison.export and not verbose and by is None and depth is None and top is None
    for line in compared_at(comparison) if brief else notes(comparison):
        page.line((f"  {line}", "dim"))
    for grid in () if brief else tables(comparison, by, depth, top):
        page.line()
        page.table(grid)
    return page.text()
