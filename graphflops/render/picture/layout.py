"""Positions of boxes in layers, and of the lines between them.

The layered method of Sugiyama, Tagawa and Toda (1981), with columns by Brandes and Köpf, Fast and Simple Horizontal
Coordinate Assignment (2002), and blocks of different widths as the library dagre spaces them; long lines are straight.
networkx places layers (`multipartite_layout`) but neither orders them nor routes lines around boxes; the libraries in Python
that do need a compiler or are no longer kept.
"""

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Sequence
from graphlib import TopologicalSorter
from itertools import pairwise
from math import inf
from typing import NamedTuple

from graphflops.tensor import grouped

Pair = tuple[int, int]


class Points(NamedTuple):
    """Boxes and, past their number, the points at which long lines pass a layer."""

    layer: list[int]
    above: list[list[int]]  # the neighbours of each in the next layers, as `below`
    below: list[list[int]]
    next: dict[int, int]  # of a point on a long line, the next of that line
    extent: list[tuple[float, float]]


def columns(points: Points, rows: Sequence[Sequence[int]], boxes: int, apart: float) -> list[float]:
    """The middle of each point, from four drafts: points aligned with those above or below, from the left or right."""
    wanted = _alignable(points, rows, boxes)
    drafts = []
    for up in (False, True):
        for mirrored in (False, True):
            turned = [row[::-1] if mirrored else row for row in rows]
            extent = [pair[::-1] if mirrored else pair for pair in points.extent]
            root = _aligned(turned[::-1] if up else turned, points.below if up else points.above, wanted)
            draft = _spread(turned, root, extent, apart)
            drafts.append([-x for x in draft] if mirrored else draft)
    # The drafts are shifted over the narrowest one; a point gets the mean of the middle two of its four places.
    narrow = min(drafts, key=lambda draft: max(draft, default=0) - min(draft, default=0))
    low, high = min(narrow, default=0), max(narrow, default=0)
    moved = []
    for place, draft in enumerate(drafts):
        shift = high - max(draft, default=0) if place % 2 else low - min(draft, default=0)
        moved.append([x + shift for x in draft])
    return [sum(sorted(four)[1:3]) / 2 for four in zip(*moved, strict=True)]


def _alignable(points: Points, rows: Sequence[Sequence[int]], boxes: int) -> set[Pair]:
    """Pairs of neighbours that may share a column, both ways: long lines do not bend, and boxes prefer boxes."""
    found = set()
    for upper, lower in pairwise(rows):
        at = {point: place for place, point in enumerate([*upper, *lower])}
        walls = [(at[one], at[points.next[one]]) for one in upper if one in points.next]
        ends = {points.next[one] for one in upper if one in points.next}
        for point in lower:
            has_box = any(one < boxes for one in points.above[point])
            for above in points.above[point]:
                if above in points.next or point in ends:
                    fine = points.next.get(above) == point
                elif (above < boxes) != (point < boxes):
                    fine = not (has_box if above >= boxes else any(p < boxes for p in points.below[above]))
                else:
                    fine = True
                if fine and all(
                    (at[above] < one) == (at[point] < other) for one, other in walls if one != at[above]
                ):
                    found |= {(above, point), (point, above)}
    return found


def _aligned(rows: Sequence[Sequence[int]], near: Sequence[Sequence[int]], wanted: set[Pair]) -> list[int]:
    """By point, the first point of its block, which shares a column. rows: in the order of the alignment."""
    root = list(range(len(near)))
    before: dict[int, int] = {}
    for row in rows:
        last = -1
        for point in row:
            known = [one for one in near[point] if (point, one) in wanted and one in before]
            found = sorted((before[one], one) for one in known)
            middle = (len(found) - 1) / 2
            for place, one in found[int(middle) : int(middle + 0.5) + 1]:
                if place > last:
                    root[point], last = root[one], place
                    break
        before = {point: place for place, point in enumerate(row)}
    return root


def _spread(
    rows: Sequence[Sequence[int]], root: Sequence[int], extent: Sequence[tuple[float, float]], apart: float
) -> list[float]:
    """The columns of blocks: as far left as neighbours allow, then further right where that narrows the picture."""
    left: dict[int, dict[int, float]] = {block: {} for block in root}
    for row in rows:
        for one, other in pairwise(row):
            beside, block = left[root[other]], root[one]
            beside[block] = max(beside.get(block, 0.0), extent[one][1] + extent[other][0] + apart)
    order = [*TopologicalSorter(left).static_order()]
    x: dict[int, float] = {}
    for block in order:
        x[block] = max((x[one] + space for one, space in left[block].items()), default=0.0)
    room = dict.fromkeys(order, inf)
    for block in reversed(order):
        x[block] = room[block] if x[block] < room[block] < inf else x[block]
        for one, space in left[block].items():
            room[one] = min(room[one], x[block] - space)
    return [x[block] for block in root]


APART = 22.0  # units between two boxes of a layer, or a box and a line
_LINE = 5.0  # from the middle of a line to what stands beside it
STRIP = 18.0  # below a layer, where lines leave straight down and their labels stand
# Height between two layers: the least, what each unit of a line's sideways way adds, and the most.
_GAP, _STEEP, _HIGHEST = (28.0, 0.14, 90.0)
_HEAD = 9.0  # straight at the end of a line
_ARRIVALS = 12.0  # between the heads of two lines on one box
_SWEEPS = 8
_MANY = 4_000  # from so many points on, fewer sweeps are made


class Box(NamedTuple):
    """A box to be placed. right: from its middle to the end of the text beside the line that leaves it."""

    width: float
    height: float
    right: float = 0.0


class Route(NamedTuple):
    """A line: straight from its first point to the second, a curve to the third, straight to the fourth, and so on."""

    points: tuple[tuple[float, float], ...]
    back: bool = False  # it ends above where it starts


class Layout(NamedTuple):
    """The middle of each box, the route of each line by the two boxes that it joins, and the size of the whole."""

    places: list[tuple[float, float]]
    routes: dict[tuple[int, int], Route]
    width: float
    height: float


def layout(boxes: Sequence[Box], edges: Iterable[tuple[int, int]]) -> Layout:
    """Boxes in the order of the program, each below those that it depends on; an edge against the order goes up."""
    down = {(min(pair), max(pair)): pair for pair in dict.fromkeys((a, b) for a, b in edges if a != b)}
    layer = _layers(len(boxes), down)
    points, paths = _points(boxes, layer, down)
    rows = _ordered(points)
    x = columns(points, rows, len(boxes), APART)
    left = min((x[p] - points.extent[p][0] for p in range(len(x))), default=0)
    x = [round(each - left, 1) for each in x]
    width = max((each + points.extent[p][1] for p, each in enumerate(x)), default=0)
    bands, y = [], 0.0
    for row in rows:
        high = max((boxes[p].height for p in row if p < len(boxes)), default=0.0)
        bands.append((y, y + high))
        aside = max((abs(x[p] - x[b]) for p in row for b in points.below[p]), default=0.0)
        y += high + STRIP + min(_GAP + _STEEP * aside, _HIGHEST)
    height = bands[-1][1] + STRIP if bands else 0.0
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
    """The layer of each box: the longest chain that leads to it; just above those below if it has more lines there."""
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
    """The points that lines pass (all edges that leave a box share a line), and for each edge those from box to box."""
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


def _ordered(points: Points) -> list[list[int]]:
    """The points of each layer from left to right: near the middle of their neighbours, with the fewest crossings found."""
    rows: list[list[int]] = [[] for _ in range(max(points.layer, default=-1) + 1)]
    # A line starts beside its box: in program order it stays to the right of the boxes that it passes.
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
            middle = {p: sum(at[n] for n in near) / len(near) for p in row if (near := neighbours[p])}
            row.sort(key=lambda p: middle.get(p, at[p]))
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


def _arrivals(
    boxes: Sequence[Box], x: Sequence[float], paths: dict[tuple[int, int], list[int]]
) -> dict[tuple[int, int], float]:
    """Where each line ends on its box: straight below its origin if possible, in the order of their origins."""
    found = {}
    ends = grouped((pair[1], (x[path[-2]], pair)) for pair, path in paths.items())
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
