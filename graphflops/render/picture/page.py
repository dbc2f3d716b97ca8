"""A graph as one HTML file without network: the modules of a program from input to output, which open into their calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import networkx

from graphflops.render.html.fragment import escaped, scripted
from graphflops.render.picture.nest import Item, Sheet, flat, nested
from graphflops.render.picture.svg import DEFINITIONS, MARKS, WORDS, By, markup, named, whole
from graphflops.render.text import count_of
from graphflops.report import Report

_MOST = 8_000  # boxes of a page
_LARGEST = 1_999_000  # bytes of the page of a report, with a picture
_BOX = 800  # bytes of a box
_NO_ROOM = (
    '<section id="picture"><p class="note">The picture of the graph has no room on this page: '
    "<b>graphflops graph MODEL --format html</b> writes a page of its own.</p></section>"
)
_SCRIPTS = ("dom.js", "picture.js")


def page(
    shown: networkx.MultiDiGraph | Report,
    *,
    by: By = "flops",
    types: Mapping[str, str] | None = None,
    said: Sequence[str] = (),
) -> str:
    """A report, or a graph as `Report.graph` makes it, as a page. by: the cost that size and colour show.

    Of a graph of calls, their modules are boxes that open; a graph of modules is shown as it is. types: of modules by
    path, those of a report by default. said: sentences below the title.
    """
    if isinstance(shown, networkx.MultiDiGraph):
        graph = shown
    else:
        graph, types = shown.graph(level="call"), shown.modules
    title, text = named(graph), "".join(f"<p>{escaped(line)}</p>" for line in said)
    return scripted("", title, "", f"<h1>{title}</h1>{text}{section(graph, types or {}, by=by)}", _SCRIPTS)


def fitted(graph: networkx.MultiDiGraph, types: Mapping[str, str], alone: str, note: str = "") -> str:
    """The picture for the page of a report, or a sentence that it has no room there. alone: the page without it."""
    room = _LARGEST - len(alone.encode())
    drawn = section(graph, types, most=room // _BOX, note=note)
    return drawn if len(drawn.encode()) <= room else _NO_ROOM


def section(
    graph: networkx.MultiDiGraph,
    types: Mapping[str, str],
    *,
    by: By = "flops",
    most: int = _MOST,
    note: str = "",
) -> str:
    """The picture as a section of a page. types: of modules by path. most: boxes; past them, boxes stay closed."""
    sheet = flat(graph) if graph.graph.get("level") == "module" else nested(graph, types)
    total = whole(graph, by)
    numbers: dict[int, str] = {}
    waiting: list[Sheet] = [sheet]
    room = most - len(sheet.items)

    def opens(item: Item) -> str:
        nonlocal room
        if item.inside is None or len(item.inside.items) > room:
            return ""
        room -= len(item.inside.items)
        waiting.append(item.inside)
        numbers[id(item.inside)] = str(len(numbers) + 1)
        return numbers[id(item.inside)]

    drawn, *size = markup(sheet, by, total, opens)
    width, height = (f"{side + 16:.0f}" for side in size)
    parts = []
    for inside in waiting:  # which grows
        if inside is not sheet:
            boxes = markup(inside, by, total, opens)[0]
            parts.append(f'<template data-sheet="{numbers[id(inside)]}"><svg>{boxes}</svg></template>')
    label = f"Graph of {count_of(len(sheet.items), 'part')}"
    return (
        f'<section id="picture" aria-labelledby="picture-title"><h2 id="picture-title">Graph</h2>'
        f'<p class="note">{" ".join(escaped(line) for line in (*_legend(graph, by), note) if line)}</p>'
        f'<div class="canvas" tabindex="-1" role="group" aria-label="{label}">'
        f'<svg class="picture" viewBox="-8 -8 {width} {height}" width="{width}" height="{height}">'
        f"{DEFINITIONS}{drawn}</svg></div>{''.join(parts)}</section>"
    )


def _legend(graph: networkx.MultiDiGraph, by: By) -> list[str]:
    """What sizes, colours and marks of boxes mean."""
    facts = [found for _, found in graph.nodes(data=True)]
    statuses = {str(found["status"]) for found in facts if found.get("status") in MARKS}
    marks = [f"{mark} {word}" for name, (mark, word) in MARKS.items() if name in statuses]
    if any(found.get("exact") == "unknown" for found in facts):
        marks.append("? cost unknown")
    return [
        f"Larger and darker boxes cost more {WORDS[by]}; shares are of the whole program.",
        "A box with a shadow stands for equal parts in a row, a dashed one for what comes in or goes out.",
        "A click or Enter opens a box with a +; arrow keys go from box to box.",
        f"Marks: {', '.join(marks)}." if marks else "",
    ]
