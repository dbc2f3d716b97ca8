"""Where the points of a layered picture stand from left to right: Brandes and Köpf, Fast and Simple Horizontal Coordinate
Assignment (2002), with blocks of different widths as the library dagre spaces them.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

Pair = tuple[int, int]


class Points(NamedTuple):
    """Boxes and, past their number, the points at which long lines pass a layer.

    above, below: the neighbours of each in the next layers. next: of a point on a long line, the next of that line.
    """

    layer: list[int]
    above: list[list[int]]
    below: list[list[int]]
    next: dict[int, int]
    extent: list[tuple[float, float]]


def columns(points: Points, rows: Sequence[Sequence[int]], boxes: int, apart: float) -> list[float]:
    """The middle of each point, of four drafts: points aligned with those above or below, from the left or right."""
    wanted = _alignable(points, rows, boxes)
    drafts = []
    for up in (False, True):
        for mirrored in (False, True):
            turned = [row[::-1] if mirrored else row for row in rows]
            extent = [pair[::-1] if mirrored else pair for pair in points.extent]
            near = points.below if up else points.above
            root = _aligned(turned[::-1] if up else turned, near, wanted)
            draft = _spread(turned, root, extent, apart)
            drafts.append([-x for x in draft] if mirrored else draft)
    return _balanced(drafts)


def _alignable(points: Points, rows: Sequence[Sequence[int]], boxes: int) -> set[Pair]:
    """Pairs of neighbours that may share a column, in both directions.

    A long line goes on in its own column, boxes prefer boxes, and no pair that crosses a long line bends it.
    """
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
                    fine = not (
                        has_box if above >= boxes else any(one < boxes for one in points.below[above])
                    )
                else:
                    fine = True
                if fine and all(
                    (at[above] < one) == (at[point] < other) for one, other in walls if one != at[above]
                ):
                    found |= {(above, point), (point, above)}
    return found


def _aligned(rows: Sequence[Sequence[int]], near: Sequence[Sequence[int]], wanted: set[Pair]) -> list[int]:
    """By point, the first of the block that stands in one column; rows in the order of the alignment."""
    root = list(range(len(near)))
    before: dict[int, int] = {}
    for row in rows:
        last = -1
        for point in row:
            found = sorted(
                (before[one], one) for one in near[point] if (point, one) in wanted and one in before
            )
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
    """The blocks as far left as their neighbours allow, then moved right to where that shortens the picture."""
    right: dict[int, dict[int, float]] = defaultdict(dict)
    waits: dict[int, int] = dict.fromkeys(root, 0)
    for row in rows:
        for one, other in pairwise(row):
            space = extent[one][1] + extent[other][0] + apart
            a, b = root[one], root[other]
            waits[b] += b not in right[a]
            right[a][b] = max(right[a].get(b, 0.0), space)
    x = dict.fromkeys(waits, 0.0)
    order = [block for block, count in waits.items() if not count]
    for block in order:  # which grows
        for other, space in right[block].items():
            x[other] = max(x[other], x[block] + space)
            waits[other] -= 1
            if not waits[other]:
                order.append(other)
    for block in reversed(order):
        if right[block]:
            x[block] = max(x[block], min(x[other] - space for other, space in right[block].items()))
    return [x[block] for block in root]


def _balanced(drafts: Sequence[Sequence[float]]) -> list[float]:
    """The drafts laid over the narrowest one; of the four places of a point, the mean of the two in the middle."""
    narrow = min(drafts, key=lambda draft: max(draft, default=0) - min(draft, default=0))
    low, high = min(narrow, default=0), max(narrow, default=0)
    moved = []
    for place, draft in enumerate(drafts):
        shift = high - max(draft, default=0) if place % 2 else low - min(draft, default=0)
        moved.append([x + shift for x in draft])
    return [sum(sorted(four)[1:3]) / 2 for four in zip(*moved, strict=True)]
