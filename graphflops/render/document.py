"""What a result says, in the parts that every form has: one function a form writes any of them.

GitHub-flavoured Markdown of these parts and of a report, for a pull request or a wiki.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from graphflops.base.lazy import imported
from graphflops.cost import CONVENTIONS
from graphflops.errors import ZERO_WIDTH
from graphflops.render import summary
from graphflops.render.exact import inert, written
from graphflops.render.formats import DOCUMENTS
from graphflops.render.html.fragment import escaped as html_escaped
from graphflops.render.html.fragment import table as html_table
from graphflops.render.ledger import Ledger
from graphflops.render.table import Page, Styled
from graphflops.render.tables import Entry, Listing, TextTable, tables
from graphflops.render.tables import listing as cells
from graphflops.render.text import safe, shortened
from graphflops.report import Cut, Report

_WIDEST = 200  # characters of a formula shown
_SPECIAL = re.compile(r"([\\`*_\[\]|~])")
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
# What GitHub makes a mention, a reference to an issue or a link, after it has resolved character references.
_LINKED = re.compile(r"@|#(?=\d)|\bGH-(?=\d)|:(?=//)|\bwww(?=\.)", re.IGNORECASE)


def report_markdown(
    report: Report,
    *,
    by: Cut | None = None,
    depth: int | None = None,
    top: int | None = None,
    verbose: bool = False,
) -> str:
    """Totals, where the work is, what is unknown; the same choices as in the table for a terminal."""
    ledger = Ledger(report, formula_width=_WIDEST)
    parts = [f"## {escaped(summary.title(report))}\n\n{escaped(summary.headline(report))}\n"]
    sizes = summary.sizes(report)
    if sizes:
        parts.append(drawn(TextTable(("size", "where"), [Entry(size) for size in sizes], 2)))
    facts = [
        Entry([fact.label, re.sub(" {3,}", "; ", fact.text), shortened(fact.formula, _WIDEST)])
        for fact in summary.facts(report, ledger)
    ]
    parts.append(drawn(TextTable(("total", "", "formula"), facts, 3)))
    parts += [drawn(grid) for grid in tables(report, ledger, by, depth, top, verbose=verbose)]
    if report.coverage.unknown_ops:
        unknown = [Entry([safe(op), f"{times:,}"]) for op, times in report.coverage.unknown_ops.items()]
        parts.append(drawn(TextTable(("unknown operator", "calls"), unknown)))
    problems = [f"- {escaped(problem)}" for problem in summary.diagnostics(report)]
    if problems:
        parts.append("\n".join(problems) + "\n")
    parts.append(f"FLOPs: {escaped(CONVENTIONS['flops'])}. Bytes: {escaped(CONVENTIONS['bytes'])}.\n")
    return "\n".join(parts)


def escaped(text: str) -> str:
    """Escapes text so that Markdown shows it literally, without markup, HTML, links, mentions or line breaks."""
    text = _LINKED.sub(lambda found: f"{found[0]}{ZERO_WIDTH}", safe(text, 10_000))
    return "".join(_HTML.get(c, c) for c in _SPECIAL.sub(r"\\\1", text))


def drawn(grid: TextTable) -> str:
    """A table."""
    title = f"{escaped(grid.title)}:\n\n" if grid.title else ""
    return title + "".join(f"{line}\n" for line in rows(grid))


def rows(grid: TextTable) -> list[str]:
    """A table without its title, line by line."""
    rules = ["---" if index < grid.names else "---:" for index in range(len(grid.heads))]
    names = (entry.path or entry.cells[0] for entry in grid.entries)
    cells = ([name, *entry.cells[1:]] for name, entry in zip(names, grid.entries, strict=True))
    lines = [grid.heads, rules, *(map(escaped, line) for line in cells)]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def fitted(lines: Sequence[tuple[str, int]], limit: int | None, rest: Callable[[int], str]) -> str:
    """As many lines as fit in `limit` characters, and `rest` of the others. lines: each with what it counts for."""
    if limit is None or sum(len(line) for line, _ in lines) <= limit:
        return "".join(line for line, _ in lines)
    room = limit - len(rest(sum(count for _, count in lines)))
    kept = 0
    for line, _ in lines:
        if len(line) > room:
            break
        room -= len(line)
        kept += 1
    return "".join(line for line, _ in lines[:kept]) + rest(sum(count for _, count in lines[kept:]))


@dataclass(frozen=True, slots=True)
class Document:
    """The parts of a result; what a form does not write is not made."""

    tables: Iterable[TextTable]  # for people
    notes: Iterable[str] = ()  # what is to be known of them
    headline: str = ""  # the first line; "" for none
    exact: Callable[[], Listing] = lambda: Listing((), ())  # the figures for a spreadsheet
    data: Callable[[], Any] | None = None  # for programs, where `exact` is not all
    style: str = "bold"  # of the headline on a terminal


def of_listing(found: Listing) -> Document:
    """A table of names, or of figures."""
    return Document([cells(found)], exact=lambda: found)


def document(value: object) -> Document:
    """The document of a result."""
    found: Document = imported(DOCUMENTS[type(value).__name__])(value)
    return found


def text(value: object, *, width: int = 120, color: bool = False) -> str:
    """For a terminal or a pipe."""
    found, page = document(value), Page(width, color)
    if found.headline:
        return told((found.headline, found.style), found.notes, found.tables, width, color).text()
    for grid in found.tables:
        page.table(grid)
    return page.text()


def told(headline: Styled, notes: Iterable[str], grids: Iterable[TextTable], width: int, color: bool) -> Page:
    """A headline, what is to be known of it, and tables."""
    page = Page(width, color)
    page.line(headline)
    for note in notes:
        page.line((f"  {note}", "dim"))
    for grid in grids:
        page.line()
        page.table(grid)
    return page


def markdown(value: object) -> str:
    """For a review."""
    found = document(value)
    head = [f"**{escaped(found.headline)}**\n"] if found.headline else []
    return "\n".join([*head, *map(drawn, found.tables), *(f"{escaped(note)}\n" for note in found.notes)])


def csv(value: object) -> str:
    """For a spreadsheet: numbers are not rounded, and nothing stands for what is not known."""
    found = document(value).exact()
    return written(found.heads, found.rows)


def json(value: object) -> str:
    """For programs: one line."""
    found = document(value)
    if found.data is not None:
        return inert(msgspec.json.encode(found.data()))
    exact = found.exact()
    return inert(msgspec.json.encode([dict(zip(exact.heads, row, strict=True)) for row in exact.rows]))


def fragment(value: object) -> str:
    """For a notebook: HTML without script or style."""
    found = document(value)
    head = f"<p><b>{html_escaped(found.headline)}</b></p>" if found.headline else ""
    notes = "".join(f"<p>{html_escaped(note)}</p>" for note in found.notes)
    return f"<div>{head}{''.join(map(html_table, found.tables))}{notes}</div>"
