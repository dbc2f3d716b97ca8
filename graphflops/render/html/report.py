"""A report as one HTML file."""

from __future__ import annotations

from graphflops.render import summary
from graphflops.render.html.data import page_data, sizes_of
from graphflops.render.html.fragment import fragment
from graphflops.render.html.page import page
from graphflops.render.picture.page import fitted
from graphflops.report import Report


def html(report: Report, given: str = "") -> str:
    """The report as a page. given: HTML that is inserted unchanged."""
    title = summary.title(report)
    data = page_data([report], sizes_of(report), titles=[title])
    note = "Figures are those of the sizes that the report was made for." if report.symbols else ""
    alone = page(data, title, fragment(report), given)
    drawn = fitted(report.graph(level="call"), report.modules, alone, note)
    return page(data, title, fragment(report), drawn + given)
