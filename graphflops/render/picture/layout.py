"""Positions of boxes in layers, and of the lines between them.

The layered method of Sugiyama, Tagawa and Toda (1981), with columns as Brandes and Köpf (2002) align them, long ones are
straight. networkx places layers (`multipartite_layout`) but neither orders them nor routes lines around boxes; the
libraries in Python that do need a compiler or are no longer kept.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from graphflops.render.picture.columns import Points, columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

APART = 22.0  # units between two boxes of a layer, or a box and a line
_LINE = 5.0  # from the middle of a line to what stands beside it
STRIP = 18.0  # below a layer, where lines leave straight down and their labels stand
_GAP, _STEEP, _HIGHEST = (
    28.0,
    0.14,
    90.0,
)  # height between two layers: at least, for each unit that a line goes aside, at most
_HEAD = 9.0  # straight at the end of a line
_ARRIVALS = 12.0  # between the heads of two lines on one box
_SWEEPS = 8
_MANY = 4_000  # points from which on fewer sweeps are made


class Box(NamedTuple):
    """What is placed. right: from its middle to the end of what stands right of the line that leaves it."""

    width: float
    height: float
    right: float = 0.0


class Route(NamedTuple):
    """A line: straight from its first point to the second, a curve to the third, straight to the fourth, and so on.

    back: it ends above where it starts.
    """

    points: tuple[tuple[float, float], ...]
    back: bool = False


class Layout(NamedTuple):
    """The middle of each box, the route of each line by the two boxes that it joins, and the size of the whole."""

    places: list[tuple[float, float]]
    routes: dict[tuple[int, int], Route]
    width: float
    height: float


def layout(boxes: Sequence[Box], edges: Iterable[tuple[int, int]]) -> Layout:
    """Boxes in the order of the program, each below those that it depends on; an edge against the order goes up."""
    pairs = dict.fromkeys((a, b) for a, b in edges if a != b)
    down = {(min(pair), max(pair)): pair for pair in pairs}
    layer = _layers(len(boxes), down)
    points, paths = _points(boxes, layer, down)
    rows = _ordered(points, len(boxes))
    x = columns(points, rows, len(boxes), APART)
    left = min((x[p] - points.extent[p][0] for p in range(len(x))), default=0)
    x = [round(each - left, 1) for each in x]
    width = max((each + points.extent[p][1] for p, each in enumerate(x)), default=0)
    bands, height = _bands(boxes, rows, points, x)
    places = [(x[box], round(sum(bands[layer[box]]) / 2, 1)) for box in range(len(boxes))]
    heads = _arrivals(boxes, x, paths)
    routes = {}
    for pair, path in paths.items():
        (_, start), (_, end) = places[pair[0]], places[pair[1]]
        first, last = start + boxes[pair[0]].height / 2, end - boxes[pair[1]].height / 2
        line = [(x[pair[0]], first), (x[pair[0]], bands[layer[pair[0]]][1] + STRIP)]
        for point in path[1:-1]:
            band = bands[points.layer[point]]
            line += [(x[point], band[0]), (x[point], band[1] + STRIP)]
        line += [(heads[pair], bands[layer[pair[1]]][0] - _HEAD), (heads[pair], last)]
        back = down[pair] != pair
        routes[down[pair]] = Route(tuple(reversed(line) if back else line), back)
    return Layout(places, routes, width, height)


def _layers(count: int, edges: Iterable[tuple[int, int]]) -> list[int]:
    """The length of the longest chain that leads to each box; one with more lines below than above stands near those."""
    above: dict[int, set[int]] = defaultdict(set)
    below: dict[int, set[int]] = defaultdict(set)
    for a, b in edges:
        above[b].add(a)
        below[a].add(b)
    layer = [0] * count
    for box in range(count):
        layer[box] = max((layer[one] + 1 for one in above[box]), default=0)
    for box in reversed(range(count)):
        if len(above[box]) < len(below[box]):
            layer[box] = min(layer[one] for one in below[box]) - 1
    first = min(layer, default=0)
    return [each - first for each in layer]


def _points(
    boxes: Sequence[Box], layer: Sequence[int], edges: Iterable[tuple[int, int]]
) -> tuple[Points, dict[tuple[int, int], list[int]]]:
    """The points that lines pass, one line for all that leave a box, and for each edge those from box to box."""
    extent = [(box.width / 2, max(box.width / 2, box.right)) for box in boxes]
    points = Points([*layer], [[] for _ in boxes], [[] for _ in boxes], {}, extent)
    trunks: dict[int, list[int]] = {}
    paths = {}
    for a, b in edges:
        trunk = trunks.setdefault(a, [a])
        while layer[a] + len(trunk) < layer[b]:
            point = len(points.layer)
            points.layer.append(layer[a] + len(trunk))
            points.above.append([trunk[-1]])
            points.below.append([])
            extent.append((_LINE, _LINE))
            points.below[trunk[-1]].append(point)
            if len(trunk) > 1:
                points.next[trunk[-1]] = point
            trunk.append(point)
        path = trunk[: layer[b] - layer[a]]
        points.below[path[-1]].append(b)
        points.above[b].append(path[-1])
        paths[a, b] = [*path, b]
    return points, paths


def _ordered(points: Points, boxes: int) -> list[list[int]]:
    """The points of each layer from left to right: near the middle of their neighbours, with the fewest crossings found."""
    rows: list[list[int]] = [[] for _ in range(max(points.layer, default=-1) + 1)]
    # A line starts beside the box that it starts from: in the order of the program it stays right of what it passes.
    for point, layer in enumerate(points.layer):
        rows[layer].append(point)
    best, fewest = [[*row] for row in rows], _crossings(points, rows)
    at = [0.0] * len(points.layer)
    for row in rows:
        for place, point in enumerate(row):
            at[point] = place
    for sweep in range(_SWEEPS if len(at) < _MANY else 2):
        neighbours = points.below if sweep % 2 else points.above
        for row in reversed(rows) if sweep % 2 else rows:
            middle = {
                p: sum(at[n] for n in near) / len(near) if (near := neighbours[p]) else at[p] for p in row
            }
            row.sort(key=middle.__getitem__)
            for place, point in enumerate(row):
                at[point] = place
        crossings = _crossings(points, rows)
        if crossings < fewest:
            best, fewest = [[*row] for row in rows], crossings
        if not fewest:
            break
    return best


def _crossings(points: Points, rows: Sequence[Sequence[int]]) -> int:
    found = 0
    for row, lower in pairwise(rows):
        at = {point: place for place, point in enumerate(lower)}
        ends: list[int] = []
        for end in (end for point in row for end in sorted(at[one] for one in points.below[point])):
            found += len(ends) - bisect_right(ends, end)
            insort(ends, end)
    return found


def _bands(
    boxes: Sequence[Box], rows: Sequence[Sequence[int]], points: Points, x: Sequence[float]
) -> tuple[list[tuple[float, float]], float]:
    """Top and bottom of each layer; the further aside lines go, the more height lies between two."""
    bands, y = [], 0.0
    for row in rows:
        high = max((boxes[p].height for p in row if p < len(boxes)), default=0.0)
        bands.append((y, y + high))
        aside = max((abs(x[p] - x[b]) for p in row for b in points.below[p]), default=0.0)
        y += high + STRIP + min(_GAP + _STEEP * aside, _HIGHEST)
    return bands, bands[-1][1] + STRIP if bands else 0.0


def _arrivals(
    boxes: Sequence[Box], x: Sequence[float], paths: dict[tuple[int, int], list[int]]
) -> dict[tuple[int, int], float]:
    """Where each line ends on its box: straight below where it comes from if it can, in the order of these places."""
    found = {}
    ends: dict[int, list[tuple[float, tuple[int, int]]]] = defaultdict(list)
    for pair, path in paths.items():
        ends[pair[1]].append((x[path[-2]], pair))
    for box, lines in ends.items():
        lines.sort()
        room = max(boxes[box].width / 2 - 8, 0)
        apart = min(_ARRIVALS, 2 * room / max(len(lines) - 1, 1))
        free = x[box] - room
        for place, (came, pair) in enumerate(lines):
            most = x[box] + room - apart * (len(lines) - 1 - place)
            found[pair] = round(min(max(came, free), most), 1)
            free = found[pair] + apart
    return found
