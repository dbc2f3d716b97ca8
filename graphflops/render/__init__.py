"""A report as text: one function for each format, all of them pure.

Importing this costs nothing: a format's module, and what it needs, is imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.report import Grouping, Report

Format = Literal["table", "json", "csv", "markdown"]
FORMATS: tuple[Format, ...] = ("table", "json", "csv", "markdown")
SUFFIXES: dict[str, Format] = {".json": "json", ".csv": "csv", ".md": "markdown", ".markdown": "markdown"}


def render(
    report: Report,
    form: Format,
    *,
    by: Grouping | None = None,
    depth: int | None = None,
    top: int | None = None,
    width: int = 120,
    color: bool = False,
) -> str:
    """The report in a format. JSON is always the whole report; width and colour are the table's."""
    if form == "json":
        from graphflops.render.json import json

        return json(report)
    if form == "csv":
        from graphflops.render.csv import csv

        return csv(report, by=by, depth=depth, top=top)
    if form == "markdown":
        from graphflops.render.markdown import markdown

        return markdown(report, by=by, depth=depth, top=top)
    from graphflops.render.table import table

    return table(report, by=by, depth=depth, top=top, width=width, color=color)


def listing(
    heads: Sequence[str],
    rows: Sequence[Sequence[str | int]],
    form: Format,
    *,
    width: int = 120,
    color: bool = False,
) -> str:
    """A table that is no report, in a format."""
    if form == "json":
        from graphflops.render import json

        return json.listing(heads, rows)
    if form == "csv":
        from graphflops.render import csv

        return csv.listing(heads, rows)
    if form == "markdown":
        from graphflops.render import markdown

        return markdown.listing(heads, rows)
    from graphflops.render import table

    return table.listing(heads, rows, width=width, color=color)
