"""A comparison as text for a terminal or a pipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.render.diff.tables import tables
from graphflops.render.diff.words import headlines, notes
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
    width: int = 120,
    color: bool = False,
) -> str:
    """The answer in three lines, then every total, then where the difference is."""
    page = Page(width, color)
    first, *others = headlines(comparison)
    page.line((first, "bold"))
    for line in others:
        page.line(f"  {line}")
    for line in notes(comparison):
        page.line((f"  {line}", "dim"))
    for grid in tables(comparison, by, depth, top):
        page.line()
        page.table(grid)
    return page.text()
