"""Counts the pairs and blocks that one flexible attention leaves visible: in closed form, by evaluation, or as a bound."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from graphflops.attention import block_counts
from graphflops.attention.conditions import ALWAYS, HIDING, TRUE, doubled_visible
from graphflops.attention.flex_function import FAR
from graphflops.attention.hidden_pairs import digest
from graphflops.attention.interval_functions import Interval
from graphflops.attention.rectangles import HIDDEN, MIXED, SEEN, Counted, count, count_listed
from graphflops.dims import Dim, dim_min, same
from graphflops.errors import GraphflopsError, ModelError, shown
from graphflops.rules.flex import LARGEST_BLOCK, Seen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from graphflops.attention.attention_use import Masking
    from graphflops.attention.flex_function import Function
    from graphflops.attention.hidden_pairs import ValueNumbers
    from graphflops.attention.rectangles import Visible
    from graphflops.tensor import TensorType

# What numpy and Python make of functions that a file makes up.
_FAILURES = (ArithmeticError, LookupError, MemoryError, TypeError, ValueError)


@dataclass(frozen=True)
class Lists:
    """Lists of blocks: for each line of blocks how many run, and which; None where there are none of the kind."""

    partial: tuple[Any, Any] | None
    full: tuple[Any, Any] | None

    @property
    def key(self) -> Any:
        return tuple(digest(array) for lists in (self.partial, self.full) for array in lists or ())

    @property
    def heads(self) -> tuple[int, int]:
        """Batch entries and heads that have lists of their own."""
        sizes = [lists[0].shape[:2] for lists in (self.partial, self.full) if lists is not None]
        return max((size[0] for size in sizes), default=1), max((size[1] for size in sizes), default=1)

    def cells(
        self, lists: tuple[Any, Any] | None, batch: int, heads: int
    ) -> Iterator[tuple[int, int, int, int]]:
        """Batch entry, head, line and column of each block, for so many batch entries and heads."""
        import numpy as np

        if lists is None:
            return
        counts, places = lists
        for b in range(batch):
            for h in range(heads):
                own = b % counts.shape[0], h % counts.shape[1]
                line, nth = np.nonzero(np.arange(places.shape[-1]) < counts[own][:, None])
                for cell in zip(line.tolist(), places[own][line, nth].tolist(), strict=True):
                    yield b, h, *cell


@dataclass(frozen=True)
class Problem:
    """One attention with its functions.

    rows, columns: of a block of its mask. lists: the blocks that run, where they are at hand.
    """

    query: TensorType
    key: TensorType
    rows: Any
    columns: Any
    score: Function
    mask: Function
    lists: Lists | None

    def identity(self, numbers: ValueNumbers) -> Any:
        """A key that is equal for attentions with the same visible pairs."""
        sizes = self.query.shape[:3], self.keys, self.rows, self.columns
        return sizes, self.score.key(numbers), self.mask.key(numbers), self.lists and self.lists.key

    @property
    def batch(self) -> Dim:
        return self.query.shape[0]

    @property
    def heads(self) -> Dim:
        return self.query.shape[1]

    @property
    def queries(self) -> Dim:
        return self.query.shape[2]

    @property
    def keys(self) -> Dim:
        return self.key.shape[2]

    @property
    def scores(self) -> Dim:
        return self.batch * self.heads * self.queries * self.keys

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
        both = self.mask.where & self.score.kept
        if not (self.mask.where.exact and both.exact) or self.lists is not None:
            return None
        doubled, exact = doubled_visible(both.upper, self.queries, self.keys)
        blocks = self.blocks()
        if not exact or (blocks is None and self.has_numbers):
            return None
        return self.of(doubled, blocks or self.any_blocks, self.batch * self.heads)

    def blocks(self) -> block_counts.Blocks | None:
        """Upper bound of the blocks of one head that run, in closed form; None where there is none."""
        if self.is_whole:
            everything = self.any_blocks
            return (
                everything
                if self.mask.where != TRUE
                else block_counts.Blocks(None, None, 0, everything.partial_pairs)
            )
        if not self.mask.where.upper:
            return block_counts.NO_BLOCKS
        if len(self.mask.where.upper) > 1:
            return None
        (case,) = self.mask.where.upper
        if self.has_numbers:
            return block_counts.counted(case, self.queries, self.keys, self.rows, self.columns)  # type: ignore[arg-type]
        if isinstance(self.rows, int) and self.rows == self.columns and same(self.queries, self.keys):
            return block_counts.formulas(case, self.queries, self.rows)
        return None

    @property
    def any_blocks(self) -> block_counts.Blocks:
        """All pairs, in an unknown number of blocks."""
        return block_counts.Blocks(None, None, self.queries * self.keys, 0)

    def of(self, doubled: Dim, blocks: block_counts.Blocks, times: Dim, *, exact: bool = True) -> Seen:
        """The result for all heads, given 2 x the visible pairs and the blocks of some, each standing for `times`."""
        partial, full = (None if x is None else x * times for x in blocks[:2])
        asked, rest = (x * times for x in blocks[2:])
        hides = doubled * times != 2 * self.scores
        known = "constant" if any(function.arrays for function in self.functions) else "structure"
        mask: Masking = "tensor" if not exact else known if hides else "none"  # type: ignore[assignment]
        return Seen(doubled * times, asked + rest, asked, partial, full, mask)

    def bounded(self) -> Seen | None:
        """Upper bounds of visible pairs and of blocks that run; None where nothing bounds them."""
        upper = (self.mask.where & self.score.kept).upper
        doubled, _ = doubled_visible(upper, self.queries, self.keys)
        if self.lists is not None and self.has_numbers:
            batch, heads = self.lists.heads
            found = self.listed(self.lists, batch, heads, (None, None))
            listed = self.of(2 * found.pairs, _blocks(found), self.like(batch, heads), exact=False)
            return replace(
                listed, doubled_pairs=dim_min(doubled * self.batch * self.heads, listed.doubled_pairs)
            )
        blocks = self.blocks()
        if upper == ALWAYS and blocks is None:
            return None
        blocks = blocks or self.any_blocks
        unsure = block_counts.Blocks(None, None, blocks.partial_pairs + blocks.full_pairs, 0)
        return self.of(doubled, unsure, self.batch * self.heads, exact=False)

    # Evaluation

    def evaluated(self) -> Seen | None:
        """The count by evaluating the functions; None where the contents of a captured tensor are not available."""
        hides = self.score.may_hide
        missing = self.mask.missing or (hides and self.score.missing and not self.score.kept.exact)
        if not self.has_numbers or missing:
            return None
        own = (1, 1) if self.lists is None else self.lists.heads
        batch, heads = (
            size if some > 1 or any(function.depends_on(place) for function in self.functions) else 1
            for place, (size, some) in enumerate(zip((self.batch, self.heads), own, strict=True))
        )
        if not isinstance(batch, int) or not isinstance(heads, int):
            return None
        times = self.like(batch, heads)
        if self.lists is not None:
            asked = self.visible, self.lets_through if hides else None
            found = self.listed(self.lists, batch, heads, asked)
            return self.of(2 * found.pairs, _blocks(found), times)
        sizes: dict[str, Any] = {"queries": self.queries, "keys": self.keys}
        if not self.is_whole:
            sizes |= {"block_rows": self.rows, "block_columns": self.columns}
        found = count(self.visible, batch, heads, settled=self.settled, **sizes)
        blocks = (self.blocks() or self.any_blocks) if self.is_whole else _blocks(found)
        if hides and not self.is_whole:
            blocks = _blocks(count(self.unmasked, batch, heads, settled=self.settled_mask, **sizes))
        return self.of(2 * found.pairs, blocks, times)

    def like(self, batch: int, heads: int) -> Dim:
        """How many (batch, head) slices each evaluated slice stands for."""
        return (self.batch if batch == 1 else 1) * (self.heads if heads == 1 else 1)

    def listed(
        self, lists: Lists, batch: int, heads: int, asked: tuple[Visible | None, Visible | None]
    ) -> Counted:
        cells = [lists.cells(of_kind, batch, heads) for of_kind in (lists.partial, lists.full)]
        return count_listed(cells[0], cells[1], asked, self.queries, self.keys, self.rows, self.columns)  # type: ignore[arg-type]

    def visible(self, b: int, h: int, rows: Any, columns: Any) -> Any:
        found = self.unmasked(b, h, rows, columns)
        return found & self.lets_through(b, h, rows, columns) if self.score.may_hide else found

    def unmasked(self, b: int, h: int, rows: Any, columns: Any) -> Any:
        import numpy as np

        found = self.mask.at_points(b, h, rows, columns)
        if not np.all(found.known):
            raise ModelError(self.reason())
        return np.asarray(found.value).astype(bool)

    def lets_through(self, b: int, h: int, rows: Any, columns: Any) -> Any:
        import numpy as np

        found = self.score.at_points(b, h, rows, columns)
        return ~(np.asarray(found.value <= HIDING) & found.known)

    def settled(self, b: int, h: int, *edges: Any) -> Any:
        """For each rectangle: SEEN, HIDDEN or MIXED."""
        import numpy as np

        found = self.settled_mask(b, h, *edges)
        if not self.score.may_hide:
            return found
        score = self.score.in_intervals(*_places(b, h, *edges))
        through = np.where(_hidden(score), HIDDEN, np.where(self.certainly_kept(score), SEEN, MIXED))
        return np.where(
            (found == HIDDEN) | (through == HIDDEN), HIDDEN, np.where(through == SEEN, found, MIXED)
        )

    def settled_mask(self, b: int, h: int, *edges: Any) -> Any:
        import numpy as np

        low, high = self.mask.in_intervals(*_places(b, h, *edges))
        state = np.where(low > 0, SEEN, np.where(high <= 0, HIDDEN, MIXED))
        return np.broadcast_to(state, edges[0].shape)

    def certainly_kept(self, score: Interval) -> Any:
        """Whether no score in an interval is hidden."""
        return score.low > (HIDING if self.score.replaces else FAR)


def _places(
    b: int, h: int, first_row: Any, last_row: Any, first_column: Any, last_column: Any
) -> tuple[Interval, ...]:
    """Rectangles as intervals of the functions' indices."""
    return Interval(b, b), Interval(h, h), Interval(first_row, last_row), Interval(first_column, last_column)


def _hidden(score: Interval) -> Any:
    """Whether scores are hidden whatever they were before, or replaced by a hiding number."""
    return (score.high <= FAR) | ((score.low == score.high) & (score.high <= HIDING))


def _blocks(found: Counted) -> block_counts.Blocks:
    return block_counts.Blocks(found.partial_blocks, found.full_blocks, found.partial_pairs, found.full_pairs)
