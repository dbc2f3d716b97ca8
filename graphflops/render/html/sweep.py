"""The page of a report, alone or with what was found at several sizes as a section: a table, and pictures of what grows.

Of a sweep its points; of a plan of serving curves of latency against throughput. A picture is SVG of text and shapes only,
styled by the page around it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence

from graphflops.base.record import Record
from graphflops.base.units import memory, number, seconds
from graphflops.derived.resize import Point, Sweep
from graphflops.render import serving as of_serving
from graphflops.render import summary
from graphflops.render.derived import cells
from graphflops.render.html.data import page_data, sizes_of
from graphflops.render.html.fragment import escaped, fragment, scripted, wide
from graphflops.render.memory import SECOND
from graphflops.render.picture.svg import fitted
from graphflops.render.tables import listing
from graphflops.render.text import count_of, safe
from graphflops.report import Report
from graphflops.serving.plan import Serving
from graphflops.tensor import grouped


def html(report: Report, given: str = "") -> str:
    """The report as a page. given: HTML that is inserted unchanged."""
    title = summary.title(report)
    data = page_data([report], sizes_of(report), titles=[title])
    note = "Figures are those of the sizes that the report was made for." if report.symbols else ""
    alone = scripted(data, title, fragment(report), given)
    drawn = fitted(report.graph(level="call"), report.modules, alone, note)
    return scripted(data, title, fragment(report), drawn + given)


_MOST_CURVES = 7  # that colours can distinguish
_MOST_LINES = 200  # of the table
_LONGEST = 56  # characters of a size's name under a picture

_QUANTITIES: tuple[tuple[str, Callable[[Point], int | None], Callable[[int], str]], ...] = (
    ("FLOPs", lambda point: point.cost["matrix_flops"], number),
    ("bytes moved", lambda point: point.traffic, memory),
    ("peak memory", lambda point: point.peak_bytes, memory),
)


_TIME: tuple[str, Callable[[Point], int | None], Callable[[int], str]] = (
    "time",
    lambda point: None if point.time is None else round(point.time.seconds * SECOND),
    lambda time: seconds(time / SECOND),
)


def of_sweep(sweep: Sweep) -> str:
    """The page of the report, with the sweep as a section of it."""
    points, price = sweep.points, sweep.report.price_per_hour
    return html(sweep.report, section(points, sweep.notes, price) if points else "")


def section(points: Sequence[Point], said: Sequence[str] = (), price_per_hour: float | None = None) -> str:
    """The section of the page. said: lines to stand below it. price_per_hour: of the device."""
    # The size that pictures have along their axis: the one with the most values, the last of several.
    names = list(points[0].sizes)
    across = max(reversed(names), key=lambda name: len({point.sizes[name] for point in points}))
    others = [[f"{x} = {size:,}" for x, size in point.sizes.items() if x != across] for point in points]
    groups = grouped(zip(map(", ".join, others), points, strict=True))  # those that differ in that size only
    drawn = dict(list(groups.items())[:_MOST_CURVES])
    is_timed = any(point.time is not None for point in points)
    pictures = "".join(
        f'<figure class="chart"><figcaption>{name}</figcaption>{picture}</figure>'
        for place, (name, amount, told) in enumerate((*_QUANTITIES, _TIME) if is_timed else _QUANTITIES)
        if (picture := _picture(f"sweep-{place}", name, across, drawn, amount, told))
    )
    notes = [*_notes(points, len(groups) - len(drawn)), *said]
    lines = "".join(f'<p class="note">{escaped(note)}</p>' for note in notes)
    table = wide(listing(cells(points[:_MOST_LINES], price_per_hour, exact=False)), "Points of the sweep")
    return (
        '<section id="sweep" aria-labelledby="sweep-title"><h2 id="sweep-title">Sweep over sizes</h2>'
        f'{_legend(drawn)}<div class="plots">{pictures}</div>{table}{lines}</section>'
    )


def _notes(points: Sequence[Point], undrawn: int) -> Iterator[str]:
    yield "At these sizes, whatever is set below; all others as they were when the report was made."
    if undrawn:
        yield f"{count_of(undrawn, 'more curve')} would not be distinguishable: the table has them."
    if any(amount(point) is None for point in points for _, amount, _ in _QUANTITIES):
        yield "? is what another size decides that has no value: --dim gives it one."
    if len(points) > _MOST_LINES:
        yield f"The first {_MOST_LINES} of {len(points):,} points: --format csv writes all of them."


def _picture(
    key: str, name: str, across: str, groups: dict[str, list[Point]], amount: Callable[[Point], int | None],
    told: Callable[[int], str],
) -> str:  # fmt: skip
    curves = []
    for label, points in groups.items():
        known = {point.sizes[across]: value for point in points if (value := amount(point)) is not None}
        if known:
            curves.append(Curve(label, tuple(sorted(known.items()))))
    return plot(key, name, safe(across, _LONGEST), curves, told) if curves else ""


def _legend(groups: dict[str, list[Point]]) -> str:
    if len(groups) < 2:
        return ""
    keys = (
        f'<span class="key"><svg class="mark" viewBox="0 0 14 14" aria-hidden="true">'
        f'<polyline class="series s{place}" points="0,7 14,7"/></svg>{escaped(label)}</span>'
        for place, label in enumerate(groups, 1)
    )
    return f'<div class="legend">{"".join(keys)}</div>'


def serving(plan: Serving) -> str:
    """The page of the step's report, with the plan as a section of it."""
    pictures = f'<div class="plots">{_latencies(plan)}</div>'
    lines = "".join(f'<p class="note">{escaped(note)}</p>' for note in of_serving.notes(plan))
    grids = "".join(wide(grid, "Serving") for grid in of_serving.tables(plan))
    title, name = '<h2 id="serving-title">Serving</h2>', 'id="serving" aria-labelledby="serving-title"'
    told = f"<p>{escaped(of_serving.headline(plan))}</p>"
    return html(plan.report, f"<section {name}>{title}{told}{pictures}{grids}{lines}</section>")


def _latencies(plan: Serving) -> str:
    """Time of a token against tokens a second, a curve for each context; what does not fit is left out."""
    curves = []
    for context, _ in plan.requests[:_MOST_CURVES]:
        cells = [cell for cell in plan.cells if cell.context == context]
        known = [(cell.tokens_per_second, cell.each) for cell in cells]
        points = {round(many): round(each * SECOND) for many, each in known if many and each}
        if points:
            curves.append(Curve(f"context {context:,}", tuple(sorted(points.items()))))
    if not curves:
        return ""
    drawn = plot("serving", "time of a token", "tokens a second", curves, _TIME[-1])
    caption = "<figcaption>time of a token by tokens a second</figcaption>"
    return f'<figure class="chart">{caption}{drawn}</figure>'


_WIDE, _HIGH = 420, 270
_LEFT, _RIGHT, _ABOVE, _BELOW = 68, 16, 10, 44
_LOG_FROM = 8  # times the smallest: where the largest is as much, an axis is logarithmic
_MOST_TICKS = 7
_APART = 42  # units between the labels of two sizes
_MOST_DOTS = 100  # of one curve; of more points the line alone is drawn


class Curve(Record, frozen=True):
    """A quantity at several sizes, which ascend."""

    label: str
    points: tuple[tuple[int, int], ...]


class Axis(Record, frozen=True):
    """What of an axis is shown, from 0 to 1: from the least to the largest value, by their logarithms or as they are."""

    least: int
    largest: int
    is_log: bool

    def share(self, value: int) -> float:
        """The position of a value along the axis, from 0 to 1; 0.5 on an axis without length."""
        if self.largest == self.least:
            return 0.5
        if self.is_log:
            whole = math.log10(self.largest) - math.log10(self.least)
            return (math.log10(value) - math.log10(self.least)) / whole
        return (value - self.least) / (self.largest - self.least)


def plot(key: str, name: str, across: str, curves: Sequence[Curve], told: Callable[[int], str]) -> str:
    """The picture.

    key: letters that no other picture of the page has. name: of the quantity. across: of the sizes.
    told: a quantity as text.
    """
    sizes = sorted({size for curve in curves for size, _ in curve.points})
    values = [value for curve in curves for _, value in curve.points]
    x = Axis(sizes[0], sizes[-1], _spread(sizes))
    y, marks = _upright(values)
    kept: list[int] = []  # sizes that have room for their labels
    for size in sizes:
        while kept and size == sizes[-1] and kept != sizes[:1] and _x(x, size) - _x(x, kept[-1]) < _APART:
            kept.pop()
        if not kept or _x(x, size) - _x(x, kept[-1]) >= _APART:
            kept.append(size)
    grid = [
        f'<line x1="{_x(x, size)}" x2="{_x(x, size)}" y1="{_ABOVE}" y2="{_HIGH - _BELOW}"/>'
        f'<text x="{_x(x, size)}" y="{_HIGH - _BELOW + 16}" text-anchor="middle">{_brief(f"{size:,}")}</text>'
        for size in kept
    ]
    for mark in marks:
        grid.append(f'<line x1="{_LEFT}" x2="{_WIDE - _RIGHT}" y1="{_y(y, mark)}" y2="{_y(y, mark)}"/>')
        place = f'x="{_LEFT - 6}" y="{_y(y, mark) + 4:g}" text-anchor="end"'
        grid.append(f"<text {place}>{_brief(told(mark))}</text>")
    named = f'<text x="{(_LEFT + _WIDE - _RIGHT) / 2:g}" y="{_HIGH - 6}" text-anchor="middle">{escaped(across)}</text>'
    lines = "".join(_curve(curve, place, x, y, told) for place, curve in enumerate(curves, 1))
    said = []
    for curve in curves:
        (first, least), (last, most) = curve.points[0], curve.points[-1]
        ends = f"{told(least)} at {first:,}" + ("" if first == last else f", {told(most)} at {last:,}")
        said.append(f"{curve.label}: {ends}" if curve.label else ends)
    about = "; ".join(said)
    return (
        f'<svg viewBox="0 0 {_WIDE} {_HIGH}" role="img" aria-labelledby="{key}-name {key}-about">'
        f'<title id="{key}-name">{escaped(name)} by {escaped(across)}</title>'
        f'<desc id="{key}-about">{escaped(about)}</desc>'
        f'<g class="grid">{"".join(grid)}{named}</g>{lines}</svg>'
    )


def _spread(values: Sequence[int]) -> bool:
    """True if the values are spread so far that the axis should be logarithmic."""
    return min(values) > 0 and max(values) >= _LOG_FROM * min(values)


def _upright(values: Sequence[int]) -> tuple[Axis, list[int]]:
    """The axis of quantities and its marks: powers of ten, or even steps from zero."""
    most = max(*values, 1)
    if _spread(values):
        first, last = _power(min(values)), _power(most - 1) + 1
        step = -(-(last - first) // (_MOST_TICKS - 1))
        return Axis(10**first, 10**last, True), [10**power for power in range(first, last + 1, step)]
    unit = 10 ** _power(most)
    steps = (max(unit // 5, 1), max(unit // 2, 1), unit, 2 * unit)
    step = next(step for step in steps if most <= (_MOST_TICKS - 1) * step)
    steps = -(-most // step)
    return Axis(0, steps * step, False), [step * number for number in range(steps + 1)]


def _power(value: int) -> int:
    """The power of ten at or below a value."""
    return len(str(max(value, 1))) - 1


def _x(axis: Axis, value: int) -> float:
    return round(_LEFT + axis.share(value) * (_WIDE - _LEFT - _RIGHT), 1)


def _y(axis: Axis, value: int) -> float:
    return round(_HIGH - _BELOW - axis.share(value) * (_HIGH - _BELOW - _ABOVE), 1)


def _brief(text: str) -> str:
    """A round number without the zeros behind its point: `1 M` of `1.000 M`."""
    return escaped(re.sub(r"\.(\d*[1-9])?0+(?=\D|$)", lambda found: f".{found[1]}" if found[1] else "", text))


def _curve(curve: Curve, place: int, x: Axis, y: Axis, told: Callable[[int], str]) -> str:
    path = " ".join(f"{_x(x, size)},{_y(y, value)}" for size, value in curve.points)
    dots = (
        f'<circle class="dot s{place}" cx="{_x(x, size)}" cy="{_y(y, value)}" r="3.5">'
        f"<title>{escaped(f'{curve.label} {size:,}: {told(value)}'.strip())}</title></circle>"
        for size, value in (curve.points if len(curve.points) <= _MOST_DOTS else ())
    )
    return f'<polyline class="series s{place}" points="{path}"/>{"".join(dots)}'
