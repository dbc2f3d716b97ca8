"""Counts the pairs and blocks that one flexible attention leaves visible: in closed form, by evaluation, or as a bound.

Closed forms count the blocks that a band of diagonals touches within a rectangle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from graphflops.attention.conditions import ALWAYS, TRUE, Residue, doubled_visible
from graphflops.attention.hidden_pairs import digest, pattern_of
from graphflops.attention.pair_enumeration import Enumeration
from graphflops.attention.rectangles import NO_BLOCKS, Blocks, Counted, Grid, Lists, count_listed
from graphflops.dims import Dim, ceil_div, dim_min, floor_div, prod, same
from graphflops.errors import GraphflopsError, ModelError, shown
from graphflops.rules.flex import LARGEST_BLOCK, Seen
from graphflops.rules.shapes import doubled_pairs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.attention.attention_use import Masking
    from graphflops.attention.conditions import Case
    from graphflops.attention.flex_function import Function
    from graphflops.attention.hidden_pairs import ValueNumbers
    from graphflops.attention.rectangles import Visible
    from graphflops.tensor import TensorType


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
        # Without no lines at all, which is longer.
        return lines * lines + (lines if 0 in (left, right) else -lines)
    return doubled_pairs(lines, lines, left=left, right=right)


# What numpy and Python make of functions that a file makes up.
_FAILURES = (ArithmeticError, LookupError, MemoryError, TypeError, ValueError)


@dataclass(frozen=True)
class Problem:
    """One attention with its functions."""

    query: TensorType
    key: TensorType
    rows: Any  # of a block of its mask, like the columns
    columns: Any
    score: Function
    mask: Function
    lists: Lists | None  # the blocks that run, where they are at hand

    def identity(self, numbers: ValueNumbers) -> Any:
        """A key that is equal for attentions with the same visible pairs."""
        sizes = self.query.shape[:3], self.keys, self.rows, self.columns
        functions = [numbers.of(each.scope, each.result) for each in (self.score, self.mask)]
        return sizes, *functions, self.lists and tuple(map(digest, self.lists.arrays))

    @property
    def queries(self) -> Dim:
        return self.query.shape[2]

    @property
    def keys(self) -> Dim:
        return self.key.shape[2]

    @property
    def slices(self) -> Dim:
        return self.query.shape[0] * self.query.shape[1]

    @property
    def scores(self) -> Dim:
        return self.slices * self.queries * self.keys

    @property
    def is_whole(self) -> bool:
        """Whether one block holds all pairs: the block mask that torch uses where none is given."""
        return bool(self.rows == LARGEST_BLOCK and self.columns == LARGEST_BLOCK)

    @property
    def has_numbers(self) -> bool:
        sizes = (self.queries, self.keys, self.rows, self.columns)
        return all(isinstance(size, int) and size > 0 for size in sizes)

    def seen(self) -> tuple[Seen | None, str]:
        """The visible pairs and blocks, and the reason where they are only a bound; "" where they are exact."""
        problem = ""
        try:
            found = self.closed() or self.evaluated()
        except GraphflopsError as error:
            found, problem = None, str(error)
        except _FAILURES as error:
            found, problem = None, f"they cannot be computed here: {error!r}"
        if found is not None:
            return found, ""
        doubt = f"which scores its functions let through is not known: {problem or self.reason()}"
        try:
            return self.bounded(), doubt
        except (GraphflopsError, *_FAILURES):
            return None, doubt

    @property
    def functions(self) -> tuple[Function, ...]:
        """The functions that may hide scores."""
        return (self.mask, self.score) if self.score.may_hide else (self.mask,)

    def reason(self) -> str:
        """Why it is not known for certain what is visible."""
        missing = [label for function in self.functions for label in function.labels()]
        if missing:
            return f"what {', '.join(map(shown, dict.fromkeys(missing)))} holds is not at hand"
        if not self.has_numbers:
            return "lengths have no values: give sizes"
        operator = next((function.not_followed for function in self.functions if function.not_followed), "")
        return f"{operator} is not followed" if operator else "an index may be out of its axis"

    # Closed forms

    def closed(self) -> Seen | None:
        """The count in closed form; None where there is none."""
        both = self.mask.truth & self.score.truth
        if not (self.mask.truth.exact and both.exact) or self.lists is not None:
            return None
        doubled, exact = doubled_visible(both.upper, self.queries, self.keys)
        blocks = self.blocks()
        if not exact or (blocks is None and self.has_numbers):
            return None
        return self.of(doubled * self.slices, blocks or self.any_blocks)

    def blocks(self) -> Blocks | None:
        """Upper bound of the blocks that run, in closed form; None where there is none."""
        upper = self.mask.truth.upper
        if self.is_whole:
            return Blocks(None, None, 0, self.scores) if self.mask.truth == TRUE else self.any_blocks
        if len(upper) > 1:
            return None
        found: Blocks | None = NO_BLOCKS
        if upper and self.has_numbers:
            sizes = self.queries, self.keys, self.rows, self.columns
            found = counted(upper[0], *sizes)  # type: ignore[arg-type]
        elif upper:
            is_square = (
                isinstance(self.rows, int) and self.rows == self.columns and same(self.queries, self.keys)
            )
            found = formulas(upper[0], self.queries, self.rows) if is_square else None
        return found and found.times(self.slices)

    @property
    def any_blocks(self) -> Blocks:
        """All pairs, in an unknown number of blocks."""
        return Blocks(None, None, self.scores, 0)

    def of(self, doubled: Dim, blocks: Blocks, *, exact: bool = True) -> Seen:
        """The result, given 2 x the visible pairs and the blocks of all heads."""
        hides = doubled != 2 * self.scores
        known: Masking = "constant" if any(function.arrays for function in self.functions) else "structure"
        mask: Masking = "tensor" if not exact else known if hides else "none"
        executed = blocks.partial_pairs + blocks.full_pairs
        visible = (self.mask.truth & self.score.truth).upper
        pattern = pattern_of(visible, self.queries, self.keys) if exact else ""
        return Seen(doubled, executed, blocks.partial_pairs, blocks.partial, blocks.full, mask, pattern)

    def bounded(self) -> Seen | None:
        """Upper bounds of visible pairs and of blocks that run; None where nothing bounds them."""
        upper = (self.mask.truth & self.score.truth).upper
        doubled = doubled_visible(upper, self.queries, self.keys)[0] * self.slices
        if self.lists is not None and self.has_numbers:
            found, times = self.listed(self.lists, self.lists.heads, (None, None))
            doubled = dim_min(doubled, 2 * found.pairs * times)
            return self.of(doubled, found.blocks.times(times), exact=False)
        blocks = self.blocks()
        if upper == ALWAYS and blocks is None:
            return None
        blocks = blocks or self.any_blocks
        unsure = Blocks(None, None, blocks.partial_pairs + blocks.full_pairs, 0)
        return self.of(doubled, unsure, exact=False)

    # Evaluation

    def evaluated(self) -> Seen | None:
        """The count by evaluating the functions; None where the contents of a captured tensor are not available."""
        hides = self.score.may_hide
        missing = self.mask.missing or (hides and self.score.missing and not self.score.truth.exact)
        if not self.has_numbers or missing:
            return None
        masks = self.enumeration(*self.functions)
        times = self.like(masks.sizes)
        if self.lists is not None:
            own = zip(self.mask.lead, masks.sizes, self.lists.heads, strict=True)
            told = [size if max(some) > 1 else 1 for size, *some in own]
            if not all(isinstance(size, int) for size in told):
                return None
            asked = masks.visible_in, self.enumeration(self.score).visible_in if hides else None
            found, times = self.listed(self.lists, told, asked)  # type: ignore[arg-type]
            doubled, blocks = 2 * found.pairs * times, found.blocks.times(times)
        elif self.is_whole:
            doubled, blocks = 2 * masks.pairs() * times, self.blocks() or self.any_blocks
        else:
            found = masks.blocks(self.rows, self.columns)
            doubled, blocks = 2 * found.pairs * times, found.blocks.times(times)
            if hides:
                mask = self.enumeration(self.mask)
                blocks = mask.blocks(self.rows, self.columns).blocks.times(self.like(mask.sizes))
        if not masks.exact:
            raise ModelError(self.reason())
        return self.of(doubled, blocks)

    def enumeration(self, *functions: Function) -> Enumeration:
        restrictions = [function.restriction for function in functions]
        lead = [
            size if any(function.depends_on(axis) for function in functions) else None
            for axis, size in enumerate(self.mask.lead)
        ]
        return Enumeration(self.mask.concrete, restrictions, lead, self.queries, self.keys)  # type: ignore[arg-type]

    def like(self, sizes: Sequence[int]) -> Dim:
        """How many slices each evaluated one stands for, where only axes of more than one are told apart."""
        return prod([whole if size == 1 else 1 for whole, size in zip(self.mask.lead, sizes, strict=True)])

    def listed(
        self, lists: Lists, sizes: Sequence[int], masks: tuple[Visible | None, Visible | None]
    ) -> tuple[Counted, Dim]:
        """The count of the blocks in lists, for so many batch entries and heads, and how many slices each stands for."""
        grid = Grid(0, self.queries, 0, self.keys, self.rows, self.columns)  # type: ignore[arg-type]
        return count_listed(lists, sizes[0], sizes[1], grid, masks), self.like(sizes)
