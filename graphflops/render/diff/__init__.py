"""A comparison of two reports as text: one function for each format, all of them pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphflops.comparison.result import Comparison
    from graphflops.render import ComparisonFormat
    from graphflops.report import Grouping

COMMENT = 65_536  # characters of a comment on GitHub


def render(
    comparison: Comparison,
    form: ComparisonFormat,
    *,
    by: Grouping | None = None,
    depth: int | None = None,
    top: int | None = None,
    width: int = 120,
    color: bool = False,
    limit: int | None = COMMENT,
) -> str:
    """The comparison in a format: JSON and HTML are all of it; width and colour are the table's, `limit` is Markdown's."""
    if form == "json":
        from graphflops.render.diff.json import json

        return json(comparison)
    if form == "csv":
        from graphflops.render.diff.csv import csv

        return csv(comparison, by=by, top=top)
    if form == "markdown":
        from graphflops.render.diff.markdown import markdown

        return markdown(comparison, by=by, depth=depth, top=top, limit=limit)
    if form == "html":
        from graphflops.render.html.diff import diff

        return diff(comparison)
    from graphflops.render.diff.table import table

    return table(comparison, by=by, depth=depth, top=top, width=width, color=color)
