"""Counts in closed form the blocks of pairs that a band of diagonals touches within a rectangle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.attention.conditions import Residue
from graphflops.attention.rectangles import NO_BLOCKS, Blocks
from graphflops.dims import Dim, ceil_div, dim_min, floor_div
from graphflops.rules.shapes import doubled_pairs

if TYPE_CHECKING:
    from graphflops.attention.conditions import Case

_MOST_LINES = 2**20  # of blocks, one after the other


def counted(case: Case, queries: int, keys: int, rows: int, columns: int) -> Blocks | None:
    """Blocks of so many rows and columns that hold pairs for which all conditions hold.

    None where the conditions are no edges of a rectangle and diagonals, or constants have no values.
    """
    limits = _limits(case)
    limit = {direction: x for direction, x in (limits or {}).items() if isinstance(x, int)}
    if limits is None or len(limit) < len(limits):
        return None
    left, right = limit.get((-1, 1), queries), limit.get((1, -1), keys)
    top, bottom = max(0, -limit.get((1, 0), 0)), min(queries - 1, limit.get((-1, 0), queries))
    first, last = max(0, -limit.get((0, 1), 0)), min(keys - 1, limit.get((0, -1), keys))
    top, bottom = max(top, first - right), min(bottom, last + left)  # rows that see any key
    if top > bottom or first > last or left + right < 0 or bottom // rows - top // rows > _MOST_LINES:
        return None if top <= bottom and first <= last and left + right >= 0 else NO_BLOCKS
    partial = full = pairs = 0
    for line in range(top // rows, bottom // rows + 1):
        begin, end = max(top, line * rows), min(bottom, line * rows + rows - 1)
        low, high = max(first, begin - left) // columns, min(last, end + right) // columns
        height = min(queries, line * rows + rows) - line * rows
        pairs += height * (min(keys, (high + 1) * columns) - low * columns)
        inside = 0
        if end - begin + 1 == rows:
            start, stop = max(first, end - left), min(last, begin + right) + 1  # keys that every row sees
            inside = max(stop // columns - -(-start // columns), 0)
        partial, full = partial + high - low + 1 - inside, full + inside
    full_pairs = full * rows * columns
    return Blocks(partial, full, pairs - full_pairs, full_pairs)


def formulas(case: Case, length: Dim, block: int) -> Blocks | None:
    """The same for as many queries as keys and square blocks, the length a formula; None where there is no closed form."""
    limit = _limits(case)
    if limit is None or not limit.keys() <= {(1, -1), (-1, 1)}:
        return None
    sides: list[int | None] = []
    for constant in (limit.get((-1, 1)), limit.get((1, -1))):
        if constant is not None and (not isinstance(constant, int) or constant < 0):
            return None
        sides.append(constant)
    lines, whole = ceil_div(length, block), floor_div(length, block)
    reach = [None if x is None else -(-x // block) for x in sides]  # in blocks
    within = [None if x is None else (x - block + 1) // block for x in sides]
    touched, full = _doubled(lines, *reach), _doubled(whole, *within)
    rest = length - block * (lines - 1)  # places in the last line
    inner = _doubled(lines - 1, *reach)
    beside = [lines - 1 if x is None else dim_min(x, lines - 1) if x else 0 for x in reach]
    pairs = block * block * inner + 2 * block * rest * (beside[0] + beside[1]) + 2 * rest * rest
    full_pairs = block * block * full
    return Blocks(*(floor_div(x, 2) for x in (touched - full, full, pairs - full_pairs, full_pairs)))


def _limits(case: Case) -> dict[tuple[int, int], Dim] | None:
    """The constant of each condition by its direction; None where one is no edge of a rectangle and no diagonal."""
    known = {(1, -1), (-1, 1), (1, 0), (-1, 0), (0, 1), (0, -1)}
    found = {(term.row, term.column): term.constant for term in case if not isinstance(term, Residue)}
    return found if found.keys() <= known and len(found) == len(case) else None


def _doubled(lines: Dim, left: int | None, right: int | None) -> Dim:
    """Twice the cells of a square with -left <= column - row <= right."""
    if left is not None and right is not None and left + right < 0:
        return 0
    if {left, right} in ({None, 0}, {None, -1}):
        return lines * lines + (
            lines if 0 in (left, right) else -lines
        )  # without no lines at all, which is longer
    return doubled_pairs(lines, lines, left=left, right=right)
