"""A report as text: one function for each format, all of them pure.

Importing this costs nothing: a format's module, and what it needs, is imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.report import Cut, Report

Format = Literal["table", "json", "csv", "markdown"]
ReportFormat = Literal["table", "json", "csv", "markdown", "html", "speedscope", "dot"]
ComparisonFormat = Literal["table", "json", "csv", "markdown", "html"]
FORMATS: tuple[Format, ...] = ("table", "json", "csv", "markdown")
REPORT_FORMATS: tuple[ReportFormat, ...] = (*FORMATS, "html", "speedscope", "dot")
COMPARISON_FORMATS: tuple[ComparisonFormat, ...] = (*FORMATS, "html")
SUFFIXES: dict[str, ReportFormat] = {
    ".json": "json",
    ".csv": "csv",
    ".md": "markdown",
    ".markdown": "markdown",
    ".html": "html",
    ".htm": "html",
    ".dot": "dot",
    ".gv": "dot",
}


def render(
    report: Report,
    form: ReportFormat,
    *,
    by: Cut | None = None,
    depth: int | None = None,
    top: int | None = None,
    width: int = 120,
    color: bool = False,
) -> str:
    """The report in a format. JSON, HTML and speedscope are always the whole report; width and colour are the table's."""
    if form == "json":
        from graphflops.render.json import json

        return json(report)
    if form == "csv":
        from graphflops.render.csv import csv

        return csv(report, by=by, depth=depth, top=top)
    if form == "markdown":
        from graphflops.render.markdown import markdown

        return markdown(report, by=by, depth=depth, top=top)
    if form == "html":
        from graphflops.render.html import html

        return html(report)
    if form == "speedscope":
        from graphflops.render.speedscope import speedscope

        return speedscope(report)
    if form == "dot":
        from graphflops.render.dot import dot

        return dot(report, depth=depth)
    from graphflops.render.table import table

    return table(report, by=by, depth=depth, top=top, width=width, color=color)


def listing(
    heads: Sequence[str],
    rows: Sequence[Sequence[str | int]],
    form: Format,
    *,
    figures: bool = False,
    width: int = 120,
    color: bool = False,
) -> str:
    """A table that is no report, of names or of figures, in a format."""
    if form == "json":
        from graphflops.render import json

        return json.listing(heads, rows)
    if form == "csv":
        from graphflops.render import csv

        return csv.listing(heads, rows)
    if form == "markdown":
        from graphflops.render import markdown

        return markdown.listing(heads, rows, figures=figures)
    from graphflops.render import table

    return table.listing(heads, rows, figures=figures, width=width, color=color)
