"""A graph as an SVG picture, and as a page where modules open: boxes in layers, darker the more they cost."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import PurePath
from typing import Any, Literal

import networkx

from graphflops.base.record import Record
from graphflops.base.units import memory, number, parameters, percent, seconds
from graphflops.render.html.fragment import FOLDER, escaped, read, scripted
from graphflops.render.picture.layout import Box, Route, layout
from graphflops.render.picture.nest import Item, Sheet, flat, nested
from graphflops.render.text import count_of, operator_name, safe
from graphflops.report import Report, size_names

By = Literal["flops", "bytes", "time", "memory"]
WORDS = {"flops": "FLOPs", "bytes": "bytes moved", "time": "time", "memory": "memory"}
_UNITS = {"flops": " FLOPs", "bytes": " moved", "time": "", "memory": " held"}
MARKS = {
    "new": ("+", "added"),
    "gone": ("−", "removed"),
    "changed": ("≠", "changed"),
    "different": ("≠", "differs"),
    "explained": ("≈", "differs, explained"),
    "not executed": ("○", "not executed"),
    "on path": ("●", "on the longest chain"),
    "bottleneck": ("◆", "everything passes through it"),
    "unused": ("∅", "nothing reads it"),
}
_FIRST, _SMALL = 12.5, 10.5  # sizes of the text of a label, of all other text
_LETTERS = 40  # of a label
LINE = 15.0
_GROWTH = 44.0  # height that the whole cost adds to a box; a share adds its root, so that a tenth is visible
# Widths of characters as shares of the font's size, in the widest common font, DejaVu Sans. Others, such as small letters
# and digits: 0.64.
_WIDTHS = {
    **dict.fromkeys("ijl|'!,.:;I ", 0.33),
    **dict.fromkeys('frt()[]-/"', 0.41),
    **dict.fromkeys("mwMW%@—", 0.98),
}


class Face(Record, frozen=True):
    """What a box shows. share: of the cost, from 0 to 1. out: text beside the line that leaves it. about: all its facts."""

    lines: tuple[str, ...]
    share: float
    out: str
    about: tuple[str, ...]
    kind: str
    status: str
    stage: int | None
    is_unknown: bool
    is_many: bool
    opens: bool

    @property
    def box(self) -> Box:
        texts = zip(self.lines, [_FIRST, *[_SMALL] * (len(self.lines) - 1)], strict=True)
        width = max(text_width(line, size, bold=size == _FIRST) for line, size in texts)
        high = 11 + LINE * len(self.lines) + _GROWTH * self.share**0.5
        width += 26 + 14 * (bool(self.status or self.is_unknown) + self.opens)
        aside = text_width(self.out, _SMALL) + 10 if self.out else 0.0
        return Box(round(max(width, 44.0), 1), round(high, 1), aside)


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """The largest width that a text may have."""
    wide = sum(
        _WIDTHS.get(c, 0.64 if c.islower() or c.isdigit() else 0.76 if c < "⺀" else 1.05) for c in text
    )
    return size * wide * (1.08 if bold else 1.0)


def face(item: Item, by: By, whole: float, leaving: Collection[Mapping[str, Any]]) -> Face:
    """What a box shows. whole: the figure of the whole program. leaving: the values that leave the box."""
    facts = item.facts
    kind = str(facts.get("kind", "call"))
    label = safe(item.label, _LETTERS) + (f" × {item.count:,}" if item.count > 1 else "")
    is_work = kind in ("call", "module")
    what = safe(item.what, _LETTERS)
    status = str(facts.get("status", ""))
    word = MARKS[status][1] if status in MARKS else ""
    stage = facts.get("stage")
    second = " · ".join(text for text in (what, word, f"stage {stage}" if stage is not None else "") if text)
    exact = facts.get("exact", "exact")
    cost = figure(facts, by) if is_work else ""
    share = min((facts.get(by) or 0) * item.times / whole, 1.0) if whole else 0.0
    if cost and share:
        cost = f"{cost} · {percent(share, 1)} %"
    return Face(
        tuple(line for line in (label, second, cost) if line),
        share,
        carried(leaving),
        _about(item, leaving),
        kind if is_work else "port",
        status if status in MARKS else "",
        stage if isinstance(stage, int) else None,
        is_work and exact == "unknown",
        item.count > 1,
        item.inside is not None,
    )


def figure(facts: Mapping[str, Any], by: By) -> str:
    """A cost in words; "" for none."""
    exact, value = facts.get("exact", "exact"), facts.get(by)
    if value is None or (exact == "unknown" and not value):
        return "cost unknown" if exact == "unknown" else ""
    if not value and exact == "exact":
        return ""
    return f"{'≥ ' if exact == 'at least' else ''}{quantity(value, by)}{_UNITS[by]}"


def quantity(value: float, name: str) -> str:
    """An amount of a quantity by its name, without a unit for FLOPs and counts."""
    if name == "time":
        return seconds(value)
    return (memory if name in ("bytes", "memory") else number)(round(value))


def carried(leaving: Collection[Mapping[str, Any]]) -> str:
    """Values in words: the shape of one, the number of several, their bytes."""
    if not leaving:
        return ""
    given = dict.fromkeys(str(facts["shape"])[1:-1] for facts in leaving if facts.get("shape"))
    shapes = [safe(shape.replace(", ", "×") or "scalar", 30) for shape in given]
    counts = [facts.get("values", 1) if "shape" in facts else 1 for facts in leaving]
    sizes = [
        facts["bytes"] * count // facts.get("count", 1)
        for facts, count in zip(leaving, counts, strict=True)
        if facts.get("bytes") is not None
    ]
    many = f"{sum(counts)} of " if sum(counts) > 1 else ""
    what = f"{many}{shapes[0]}" if len(shapes) == 1 else count_of(sum(counts), "value") if many else ""
    size = memory(sum(sizes)) if len(sizes) == len(counts) else ""
    return " · ".join(text for text in (what, size) if text)


def _about(item: Item, leaving: Collection[Mapping[str, Any]]) -> tuple[str, ...]:
    facts = item.facts
    lines = [
        ("", str(facts.get("module") or item.label)),
        ("type", str(facts.get("module_type", ""))),
        ("operator", operator_name(str(facts.get("op", "")))),
        ("source", str(facts.get("source", ""))),
        ("equal parts, figures of all", f"{item.count:,}" if item.count > 1 else ""),
        *(("", figure(facts, name)) for name in ("flops", "bytes", "time", "memory")),
        ("formula", size_names.named(str(facts.get("flops_formula", "")), {})),
        ("parameters", parameters(facts["parameters"]) if facts.get("parameters") else ""),
        ("returns", "; ".join(f"{v['shape']} {v.get('dtype', '')}" for v in [*leaving][:4] if "shape" in v)),
        ("note", str(facts.get("note", ""))),
    ]
    return tuple(f"{name}: {text}" if name else text for name, text in lines if text)


_MARGIN = 16.0
# Opacity of a box's colour if it costs everything, and the least if it costs anything.
_HOTTEST, _LEAST_HEAT = (0.62, 0.05)
DEFINITIONS = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9" '
    'markerUnits="userSpaceOnUse" orient="auto"><path class="head" d="M0 1 7 4 0 7z"/></marker>'
    '<pattern id="hatch" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<path class="hatch" d="M0 0V7"/></pattern></defs>'
)


def svg(graph: networkx.MultiDiGraph, *, by: By = "flops") -> str:
    """The graph as a picture that stands alone, as `Report.graph` makes it. by: the cost that size and colour show."""
    drawn, width, height = markup(flat(graph), by, whole(graph, by))
    width, height = width + 2 * _MARGIN, height + 2 * _MARGIN
    style = read(FOLDER, "picture.css")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="picture" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img"><title>{named(graph)}</title><style>{style}</style>'
        f'{DEFINITIONS}<rect class="paper" width="100%" height="100%"/>'
        f'<g transform="translate({_MARGIN:g} {_MARGIN:g})">{drawn}</g></svg>\n'
    )


def named(graph: networkx.MultiDiGraph) -> str:
    """The name of a graph, as HTML."""
    return escaped(PurePath(str(graph.graph.get("name", ""))).name or "graph")


def whole(graph: networkx.MultiDiGraph, by: By) -> float:
    """The cost of a graph's program, else of the graph itself; integers are exact."""
    nodes = (facts for _, facts in graph.nodes(data=True))
    costs = [facts.get(by) or 0 for facts in nodes if facts.get("kind") in ("call", "module")]
    found: float = graph.graph.get(f"total_{by}") or (max(costs, default=0) if by == "memory" else sum(costs))
    return found


def markup(
    sheet: Sheet, by: By, total: float, opens: Callable[[Item], str] = lambda _: ""
) -> tuple[str, float, float]:
    """Boxes and lines as SVG, and the size of the picture. opens: the name of the sheet that a box holds."""
    shown = faces(sheet, by, total)
    boxes = [each.box for each in shown]
    found = layout(boxes, sheet.links)
    lines = "".join(_line(pair, route, sheet.links[pair].values()) for pair, route in found.routes.items())
    drawn = "".join(map(_box, shown, boxes, found.places, map(opens, sheet.items)))
    size = f'data-size="{found.width:.1f} {found.height:.1f}"'
    return (
        f'<g class="sheet" {size}><g class="lines" marker-end="url(#head)">{lines}</g>{drawn}</g>',
        found.width,
        found.height,
    )


def faces(sheet: Sheet, by: By, total: float) -> list[Face]:
    """What the boxes of a sheet show."""
    leaving: list[dict[str, Mapping[str, Any]]] = [{} for _ in sheet.items]
    for (source, _), values in sheet.links.items():
        leaving[source].update(values)
    there = ([one for one in own.values() if one.get("status") != "gone"] for own in leaving)
    now = [some or [*own.values()] for some, own in zip(there, leaving, strict=True)]
    return [face(item, by, total, now[place]) for place, item in enumerate(sheet.items)]


def _line(pair: tuple[int, int], route: Route, values: Iterable[Mapping[str, Any]]) -> str:
    text = ""
    for (before, above), (x, y) in pairwise(route.points):
        middle = f"{(above + y) / 2:.1f}"
        text += f"V{y:.1f}" if x == before else f"C{before:.1f} {middle} {x:.1f} {middle} {x:.1f} {y:.1f}"
    start = "{:.1f} {:.1f}".format(*route.points[0])
    statuses = {str(facts.get("status", "")) for facts in values}
    alike = len(statuses) == 1 and "" not in statuses
    status = f"is-{statuses.pop()}" if alike else "back" if route.back else ""
    kind = f' class="{status}"' if status else ""
    return f'<path{kind} data-ends="{pair[0]} {pair[1]}" d="M{start}{text}"/>'


def _box(shown: Face, box: Box, place: tuple[float, float], opens: str) -> str:
    """A box, drawn around the middle of its top so that it grows down and sideways when it opens."""
    left, width, height = -box.width / 2, box.width, box.height
    corner = 13 if shown.kind == "port" else 5
    size = f'x="{left:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{corner}"'
    heat = max(_HOTTEST * shown.share**0.5, _LEAST_HEAT) if shown.share else 0
    mark = MARKS[shown.status][0] if shown.status else "?" if shown.is_unknown else ""
    at = f"{left + 11:.1f} {height / 2:.1f}"
    seal = f'<g class="seal" transform="translate({at})"><circle r="7.5"/><text y="4">{mark}</text></g>'
    top = (height - LINE * len(shown.lines)) / 2 + 11.5
    parts = [
        "<title>" + "\n".join(map(escaped, shown.about)) + "</title>",
        f'<rect class="many" {size} transform="translate(4 4)"/>' if shown.is_many else "",
        f'<rect class="ground" {size}/>',
        f'<rect class="heat" {size} fill-opacity="{heat:.2f}"/>' if heat else "",
        f'<rect class="hatched" {size} fill="url(#hatch)"/>' if shown.is_unknown else "",
        ""
        if shown.stage is None
        else f'<rect class="stage{shown.stage % 7}" x="{left:.1f}" width="6" height="{height:.1f}"/>',
        *(
            f'<text class="{"what" if number else "label"}" y="{top + LINE * number:.1f}">{escaped(line)}</text>'
            for number, line in enumerate(shown.lines)
        ),
        seal if mark else "",
        f'<text class="sign" x="{-left - 9:.1f}" y="14">+</text>' if opens else "",
        f'<text class="out" x="6" y="{height + 13:.1f}">{escaped(shown.out)}</text>' if shown.out else "",
    ]
    status = f" is-{shown.status.replace(' ', '-')}" if shown.status else ""
    holds = f' data-sheet="{opens}" role="button" aria-expanded="false"' if opens else ""
    where = f"{place[0]:.1f} {place[1] - height / 2:.1f}"
    return (
        f'<g class="node {shown.kind}{status}" transform="translate({where})" data-size="{width:.1f} {height:.1f}"{holds}>'
        f"{''.join(parts)}</g>"
    )


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
    graph: networkx.MultiDiGraph, types: Mapping[str, str], *, by: By = "flops", most: int = _MOST,
    note: str = "",
) -> str:  # fmt: skip
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
