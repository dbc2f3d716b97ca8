"""What a result says, in the parts that every form has: one function a form writes any of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from graphflops.base.lazy import imported
from graphflops.render.exact import inert, written
from graphflops.render.formats import DOCUMENTS
from graphflops.render.html.fragment import escaped as html_escaped
from graphflops.render.html.fragment import table as html_table
from graphflops.render.markdown import drawn, escaped
from graphflops.render.table import Page, Styled
from graphflops.render.tables import Listing, TextTable
from graphflops.render.tables import listing as cells


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
