"""Counts the visible pairs and blocks of a mask by evaluating it block by block, never on all pairs at once.

Blocks that a band of diagonals touches are counted in closed form. numpy is imported when something is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from graphflops.attention.conditions import SIMPLE, Case, bounds
from graphflops.base.lazy import numpy as np
from graphflops.base.limits import spend
from graphflops.base.record import Record, field
from graphflops.dims import Dim, ceil_div, dim_min, floor_div
from graphflops.errors import ModelError
from graphflops.rules.shapes import doubled_pairs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Whole = NDArray[np.int64]
    Visible = Callable[[Sequence[Any], Whole, Whole], NDArray[np.bool_]]
    Settled = Callable[[Sequence[Any], Whole, Whole, Whole, Whole], NDArray[np.int8]]

HIDDEN, SEEN, MIXED = 0, 1, 2
MOST_PAIRS = 2**29  # evaluated for one mask, which takes some seconds; more is refused
_AT_ONCE = 2**18  # pairs evaluated in one call
_LEAST = 2**14  # pairs that take as long as the call itself
_RECTANGLES = 1024  # evaluated in one call
_FAN = 8  # a rectangle is cut into this many parts along each side
_MOST_LINES = 2**20  # of blocks, which are processed one by one
_INNER = 128  # rows and columns of the parts of a block that is larger than _AT_ONCE


class Counted(NamedTuple):
    """Visible pairs and blocks of a mask, summed over batch entries and heads."""

    pairs: Dim = 0  # visible pairs of a query and a key; 0 if only blocks are counted
    # Blocks with some visible pairs, and blocks within both lengths whose pairs are all visible; None if not known.
    partial_blocks: Dim | None = 0
    full_blocks: Dim | None = 0
    partial_pairs: Dim = 0  # pairs in partial blocks, visible or not; a place beyond a length makes no pair
    full_pairs: Dim = 0  # pairs in full blocks

    def times(self, number: Dim) -> Counted:
        return Counted(*(None if x is None else x * number for x in self))  # type: ignore[arg-type]

    def plus(self, other: Counted) -> Counted:
        """The sum of these and other counts; all are known."""
        return Counted(*map(add, self, other))


def count(
    visible: Visible, slices: Iterable[Sequence[Any]], queries: int, keys: int, block_rows: int = 128,
    block_columns: int = 128, settled: Settled | None = None,
) -> Counted:  # fmt: skip
    """Counts over slices, given by their indices of batch entry and head; pass one slice if the mask is the same for all.

    visible: called with the indices of a slice, and int64 arrays of query places [n, rows, 1] and key
        places [n, 1, columns]; returns booleans that broadcast to [n, rows, columns].
    settled: evaluates whole rectangles; called with the indices of a slice, and for each rectangle its first and last query
        and its first and last key, as int64 arrays [n]; returns HIDDEN or SEEN for each, or MIXED if neither is certain.

    Raises ModelError if more than MOST_PAIRS pairs would have to be evaluated.
    """
    budget = _Budget()
    whole = Counted()
    for lead in slices:
        slice_ = _Slice(visible, settled, lead, budget)
        whole = whole.plus(slice_.blocks(0, queries, 0, keys, block_rows, block_columns))
    return whole


class _Budget(Struct):
    """How many pairs may still be evaluated."""

    left: int = field(default_factory=lambda: MOST_PAIRS)

    def spend(self, pairs: int) -> None:
        spend("enumerated elements", pairs)
        self.left -= max(pairs, _LEAST)
        if self.left < 0:
            much = f"more than {MOST_PAIRS:,} pairs would have to be evaluated"
            raise ModelError(f"the mask is too irregular: {much}; give smaller sizes")


class _Slice(Record, frozen=True):
    """The mask of one batch entry and head."""

    visible: Visible
    settled: Settled | None
    lead: Sequence[Any]
    budget: _Budget

    def blocks(self, top: int, bottom: int, left: int, right: int, rows: int, columns: int) -> Counted:
        """The count of queries from `top` to before `bottom` and keys from `left` to before `right`."""
        if top >= bottom or left >= right:
            return Counted()
        grid = Grid(top, bottom, left, right, rows, columns)
        whole = Counted()
        waiting = [np.array([[0], [-(-(bottom - top) // rows)], [0], [-(-(right - left) // columns)]])]
        while waiting:
            found, pending = waiting[-1][:, -_RECTANGLES:], waiting.pop()[:, :-_RECTANGLES]
            if pending.size:
                waiting.append(pending)
            state = self.state(grid.edges(found))
            whole = whole.plus(grid.seen(found[:, state == SEEN]))
            mixed = found[:, state == MIXED]
            single = (mixed[1] - mixed[0] == 1) & (mixed[3] - mixed[2] == 1)
            whole = whole.plus(self.evaluated(grid, mixed[:, single]))
            if not single.all():
                waiting.append(_cut(mixed[:, ~single]))
        return whole

    def state(self, edges: tuple[Whole, Whole, Whole, Whole]) -> NDArray[np.int8]:
        self.budget.spend(edges[0].size)
        if self.settled is None:
            return np.full(edges[0].shape, MIXED, np.int8)
        return self.settled(self.lead, *edges)

    def evaluated(self, grid: Grid, blocks: Whole) -> Counted:
        """The count of single blocks, by evaluation of every pair."""
        whole = Counted()
        edges = grid.edges(blocks)
        first_row, last_row, first_column, last_column = edges
        height, width = last_row - first_row + 1, last_column - first_column + 1
        rows, columns = (int(x.max()) if x.size else 1 for x in (height, width))
        if rows * columns > _AT_ONCE:
            for place in range(blocks.shape[1]):
                edge = [int(x[place]) for x in edges]
                inner = self.blocks(edge[0], edge[1] + 1, edge[2], edge[3] + 1, _INNER, _INNER)
                whole = whole.plus(grid.of_pairs(blocks[:, place : place + 1], np.array([inner.pairs])))
            return whole
        step = _AT_ONCE // (rows * columns)
        row, column = np.arange(rows)[None, :, None], np.arange(columns)[None, None, :]
        for start in range(0, blocks.shape[1], step):
            part = slice(start, start + step)
            tall, wide = height[part, None, None], width[part, None, None]
            self.budget.spend(rows * columns * len(tall))
            rows_at = first_row[part, None, None] + np.minimum(row, tall - 1)
            columns_at = first_column[part, None, None] + np.minimum(column, wide - 1)
            pairs = self.visible(self.lead, rows_at, columns_at)
            if (tall < rows).any() or (wide < columns).any():
                pairs = pairs & (row < tall) & (column < wide)
            pairs = np.broadcast_to(pairs, (len(tall), rows, columns))
            whole = whole.plus(grid.of_pairs(blocks[:, part], np.count_nonzero(pairs, axis=(1, 2))))
        return whole


class Grid(Record, frozen=True):
    """Blocks over some queries and keys; a rectangle of blocks is its top, bottom, left and right, ends excluded."""

    top: int
    bottom: int
    left: int
    right: int
    rows: int
    columns: int

    def edges(self, blocks: Whole) -> tuple[Whole, Whole, Whole, Whole]:
        """The first and last query and the first and last key of rectangles."""
        top, bottom, left, right = blocks
        return (
            self.top + top * self.rows,
            np.minimum(self.top + bottom * self.rows, self.bottom) - 1,
            self.left + left * self.columns,
            np.minimum(self.left + right * self.columns, self.right) - 1,
        )

    def inside(self, blocks: Whole) -> tuple[Any, Any]:
        """For rectangles: the number of blocks within the lengths, and the number of pairs in them."""
        top, bottom, left, right = blocks
        height = np.minimum(bottom, (self.bottom - self.top) // self.rows) - top
        width = np.minimum(right, (self.right - self.left) // self.columns) - left
        number = np.maximum(height, 0) * np.maximum(width, 0)
        return number, number * (self.rows * self.columns)

    def area(self, blocks: Whole) -> Any:
        first_row, last_row, first_column, last_column = self.edges(blocks)
        return (last_row - first_row + 1) * (last_column - first_column + 1)

    def seen(self, blocks: Whole) -> Counted:
        """The count of rectangles that are entirely visible."""
        top, bottom, left, right = blocks
        full, full_pairs = (int(x.sum()) for x in self.inside(blocks))
        pairs = int(self.area(blocks).sum())
        number = int(((bottom - top) * (right - left)).sum())
        return Counted(pairs, number - full, full, pairs - full_pairs, full_pairs)

    def of_pairs(self, blocks: Whole, pairs: Whole) -> Counted:
        """The count of single blocks with these numbers of visible pairs."""
        area = self.area(blocks)
        full = (pairs == area) & (self.inside(blocks)[0] == 1)
        partial = (pairs > 0) & ~full
        return Counted(*(int(each.sum()) for each in (pairs, partial, full, area[partial], area[full])))


def _cut(blocks: Whole) -> Whole:
    def edges(first: Whole, last: Whole) -> Whole:
        steps = np.arange(_FAN + 1)[:, None]
        return first + (last - first) * steps // _FAN

    rows, columns = edges(*blocks[:2]), edges(*blocks[2:])
    shape = (_FAN, _FAN, blocks.shape[1])
    parts = [rows[:-1, None], rows[1:, None], columns[None, :-1], columns[None, 1:]]
    cut = np.stack([np.broadcast_to(part, shape).reshape(-1) for part in parts])
    return cut[:, (cut[0] < cut[1]) & (cut[2] < cut[3])]


class Lists(Record, frozen=True):
    """Lists of blocks: for each line of blocks, how many run, and which; None if there are none of the kind."""

    partial: tuple[Any, Any] | None
    full: tuple[Any, Any] | None

    @property
    def arrays(self) -> list[Any]:
        return [array for lists in (self.partial, self.full) for array in lists or ()]

    @property
    def heads(self) -> tuple[int, int]:
        """The batch entries and heads that have their own lists."""
        sizes = [lists[0].shape[:2] for lists in (self.partial, self.full) if lists is not None]
        return max((size[0] for size in sizes), default=1), max((size[1] for size in sizes), default=1)


def count_listed(
    lists: Lists, batch: int, heads: int, grid: Grid, masks: tuple[Visible | None, Visible | None]
) -> Counted:
    """Counts listed blocks that run. masks: of partial and of full blocks, as `visible` of `count`; None: all is visible."""
    budget, counts = _Budget(), []
    for listed, visible in zip((lists.partial, lists.full), masks, strict=True):
        found = Counted()
        for b, h in product(range(batch), range(heads)) if listed else ():
            numbers, which = (array[b % array.shape[0], h % array.shape[1]] for array in listed or ())
            lines, nth = np.nonzero(np.arange(which.shape[-1]) < numbers[:, None])
            columns = which[lines, nth].astype(np.int64)
            rectangles = np.stack([lines, lines + 1, columns, columns + 1])
            inside = (columns >= 0) & (columns * grid.columns < grid.right - grid.left)
            rectangles = rectangles[:, inside & (lines * grid.rows < grid.bottom - grid.top)]
            pairs: Dim = int(grid.area(rectangles).sum())
            ran = Counted(pairs, rectangles.shape[1], 0, pairs)
            if visible is not None:
                pairs = _Slice(visible, None, (b, h), budget).evaluated(grid, rectangles).pairs
            found = found.plus(ran._replace(pairs=pairs))
        counts.append(found)
    (some, partial, _, of_partial, _), (rest, full, _, of_full, _) = counts
    return Counted(some + rest, partial, full, of_partial, of_full)


# Closed forms: the blocks that a band of diagonals touches within a rectangle


def closed_blocks(case: Case, queries: int, keys: int, rows: int, columns: int) -> Counted | None:
    """Blocks of `rows` x `columns` with pairs for which all conditions hold.

    None if a condition is no edge of a rectangle and no diagonal, or if a constant has no value.
    """
    limits = _limits(case)
    limit = {direction: x for direction, x in (limits or {}).items() if isinstance(x, int)}
    if limits is None or len(limit) < len(limits):
        return None
    left, right = limit.get((-1, 1), queries), limit.get((1, -1), keys)
    top, bottom = max(0, -limit.get((1, 0), 0)), min(queries - 1, limit.get((-1, 0), queries))
    first, last = max(0, -limit.get((0, 1), 0)), min(keys - 1, limit.get((0, -1), keys))
    top, bottom = max(top, first - right), min(bottom, last + left)  # rows that see a key
    if top > bottom or first > last or left + right < 0 or bottom // rows - top // rows > _MOST_LINES:
        return None if top <= bottom and first <= last and left + right >= 0 else Counted()
    partial = full = pairs = 0
    for line in range(top // rows, bottom // rows + 1):
        begin, end = max(top, line * rows), min(bottom, line * rows + rows - 1)
        low, high = max(first, begin - left) // columns, min(last, end + right) // columns
        height = min(queries, line * rows + rows) - line * rows
        pairs += height * (min(keys, (high + 1) * columns) - low * columns)
        inside = 0
        if end - begin + 1 == rows:
            start, stop = max(first, end - left), min(last, begin + right) + 1  # keys that all rows see
            inside = max(stop // columns - -(-start // columns), 0)
        partial, full = partial + high - low + 1 - inside, full + inside
    full_pairs = full * rows * columns
    return Counted(0, partial, full, pairs - full_pairs, full_pairs)


def formulas(case: Case, length: Dim, block: int) -> Counted | None:
    """The same for equal numbers of queries and keys, square blocks and a formula as length; None without a closed form."""
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
    touched, full = _doubled_cells(lines, *reach), _doubled_cells(whole, *within)
    rest = length - block * (lines - 1)  # places in the last line
    inner = _doubled_cells(lines - 1, *reach)
    beside = [lines - 1 if x is None else dim_min(x, lines - 1) if x else 0 for x in reach]
    pairs = block * block * inner + 2 * block * rest * (beside[0] + beside[1]) + 2 * rest * rest
    full_pairs = block * block * full
    return Counted(0, *(floor_div(x, 2) for x in (touched - full, full, pairs - full_pairs, full_pairs)))


def _limits(case: Case) -> dict[tuple[int, int], Dim] | None:
    """By direction, the constant of each condition; None if a condition is no edge of a rectangle and no diagonal."""
    found = bounds(case)
    return found if found.keys() <= {*SIMPLE} and len(found) == len(case) else None


def _doubled_cells(lines: Dim, left: int | None, right: int | None) -> Dim:
    """Twice the number of cells of a square with -left <= column - row <= right."""
    if left is not None and right is not None and left + right < 0:
        return 0
    if {left, right} in ({None, 0}, {None, -1}):
        # If there are no lines, this form gives 0 too; the general form below is longer.
        return lines * lines + (lines if 0 in (left, right) else -lines)
    return doubled_pairs(lines, lines, left=left, right=right)
