"""Curves over sizes as a picture: SVG of text and shapes only, styled by the page around it."""

import math
import re
from collections.abc import Callable, Sequence

from graphflops.base.record import Record
from graphflops.render.html.fragment import escaped

_WIDE, _HIGH = 420, 270
_LEFT, _RIGHT, _ABOVE, _BELOW = 68, 16, 10, 44
_LOG_FROM = 8  # an axis is logarithmic if its largest value is so many times its smallest
_MOST_TICKS = 7
_APART = 42  # units between the labels of two sizes
_MOST_DOTS = 100  # of one curve; with more points only the line is drawn


class Curve(Record, frozen=True):
    """A quantity at several sizes, which ascend."""

    label: str
    points: tuple[tuple[int, int], ...]


class Axis(Record, frozen=True):
    """An axis from 0 (the least value) to 1 (the largest), logarithmic or linear."""

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


Words = Callable[[int], str]


def plot(
    key: str, name: str, across: str, curves: Sequence[Curve], told: Words, named: Words = "{:,}".format
) -> str:
    """The picture. key: its own on the page. name: of the quantity. across: of the sizes. told, named: both as text."""
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
    below = f'<text x="{(_LEFT + _WIDE - _RIGHT) / 2:g}" y="{_HIGH - 6}" text-anchor="middle">{escaped(across)}</text>'
    lines = "".join(_curve(curve, place, x, y, told, named) for place, curve in enumerate(curves, 1))
    about = "; ".join(_ends(curve, told, named) for curve in curves)
    return (
        f'<svg viewBox="0 0 {_WIDE} {_HIGH}" role="img" aria-labelledby="{key}-name {key}-about">'
        f'<title id="{key}-name">{escaped(name)} by {escaped(across)}</title>'
        f'<desc id="{key}-about">{escaped(about)}</desc>'
        f'<g class="grid">{"".join(grid)}{below}</g>{lines}</svg>'
    )


def _ends(curve: Curve, told: Words, named: Words) -> str:
    said = [f"{told(value)} at {named(size)}" for size, value in (curve.points[0], curve.points[-1])]
    return ": ".join(filter(None, (curve.label, ", ".join(dict.fromkeys(said)))))


def _spread(values: Sequence[int]) -> bool:
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


def _curve(curve: Curve, place: int, x: Axis, y: Axis, told: Words, named: Words) -> str:
    path = " ".join(f"{_x(x, size)},{_y(y, value)}" for size, value in curve.points)
    dots = (
        f'<circle class="dot s{place}" cx="{_x(x, size)}" cy="{_y(y, value)}" r="3.5">'
        f"<title>{escaped(f'{curve.label} {named(size)}: {told(value)}'.strip())}</title></circle>"
        for size, value in (curve.points if len(curve.points) <= _MOST_DOTS else ())
    )
    return f'<polyline class="series s{place}" points="{path}"/>{"".join(dots)}'
