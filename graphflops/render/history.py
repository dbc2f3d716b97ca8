"""The history of a model: a line for each commit, and charts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from graphflops.base.units import measured
from graphflops.cost import REPORTED
from graphflops.render.document import Document
from graphflops.render.html.fragment import escaped, page
from graphflops.render.html.fragment import table as drawn
from graphflops.render.tables import Entry, Listing, TextTable
from graphflops.render.text import safe
from graphflops.report.as_json import Tool
from graphflops.version import __version__
from graphflops.versions.revisions import QUANTITIES, History, HistoryPoint

SCHEMA = 1
_HEADS = ("commit", "date", "subject", "FLOPs", "%", "params", "bytes", "peak memory")
_NAMES = (REPORTED[0].label, "parameters", "bytes read and written", "peak memory")
_LABELS = dict(zip(QUANTITIES, _NAMES, strict=True))
_HASH = 10  # digits of a commit
_SUBJECT = 60
_WIDTH, _HEIGHT, _SIDE = 640, 140, 8  # of a chart, and the room around its line


def document(found: History) -> Document:
    """A line for each commit, the oldest first, with the change of FLOPs since the one before.

    For spreadsheets whole numbers, nothing where a figure is not known, which is null in JSON.
    """
    head = {"history": SCHEMA, "tool": Tool("graphflops", __version__), "path": safe(found.path, 10_000)}
    heads = ("commit", "date", "path", *QUANTITIES, "error", "subject")
    return Document(
        [grid(found)],
        headline=safe(found.path),
        exact=lambda: Listing(heads, [[*_exact(point).values()] for point in found.points]),
        data=lambda: {**head, "points": [_exact(point) for point in found.points]},
    )


def html(found: History) -> str:
    """A page with a chart of each quantity over the commits, and the table; it needs no network and runs no script."""
    charts = "".join(_chart(found, quantity) for quantity in QUANTITIES)
    return page(f"{found.path}: history", f"<h1>{escaped(found.path)}</h1>{charts}{drawn(grid(found))}")


def grid(found: History) -> TextTable:
    """A line for each commit."""
    return TextTable(_HEADS, [Entry(cells, path=cells[0]) for cells in _rows(found.points)], names=3)


def _rows(points: Sequence[HistoryPoint]) -> Iterator[list[str]]:
    before: int | None = None
    for point in points:
        version, cost = point.version, point.line.cost
        flops = point.value("matrix_flops")
        change = "" if not before or flops is None else f"{100 * (flops - before) / before:+.1f}"
        figures = ["", change.replace("+0.0", "0.0").replace("-0.0", "0.0"), "", "", ""]
        if cost is not None:
            least = ">= " if cost.unknown else ""
            known = ((name, point.value(name)) for name in QUANTITIES)
            texts = ["" if value is None else measured(name, value) for name, value in known]
            figures = [f"{least}{texts[0]}", figures[1], *texts[1:]]
        subject = safe(point.line.error or version.subject, _SUBJECT)
        yield [version.commit[:_HASH], version.date, subject, *figures]
        before = flops if flops is not None else before


def _exact(point: HistoryPoint) -> dict[str, Any]:
    version = point.version
    return {
        "commit": version.commit,
        "date": version.date,
        "path": safe(version.path, 10_000),
        **{quantity: point.value(quantity) for quantity in QUANTITIES},
        "error": safe(point.line.error, 10_000) or None,
        "subject": safe(version.subject, 10_000),
    }


def _chart(found: History, quantity: str) -> str:
    """A line over the commits from zero to the largest value; commits without a value are left out."""
    values = [(index, point.value(quantity)) for index, point in enumerate(found.points)]
    known = [(index, value) for index, value in values if value is not None]
    if not known:
        return ""
    high = max(value for _, value in known) or 1
    step = (_WIDTH - 2 * _SIDE) / max(len(values) - 1, 1)
    places, dots = [], []
    for index, value in known:
        x = _SIDE + index * step
        y = _HEIGHT - _SIDE - (_HEIGHT - 2 * _SIDE) * value / high
        version = found.points[index].version
        places.append(f"{x:.1f},{y:.1f}")
        told = f"{version.commit[:_HASH]} {version.date}: {measured(quantity, value)}. {version.subject}"
        about = escaped(told)
        dots.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5"><title>{about}</title></circle>')
    words = f"{_LABELS[quantity]}: {measured(quantity, known[0][1])} to {measured(quantity, known[-1][1])}"
    return (
        f'<figure><figcaption>{escaped(words)}</figcaption><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="{escaped(words)}">'
        f'<polyline points="{" ".join(places)}"/>{"".join(dots)}</svg></figure>'
    )
