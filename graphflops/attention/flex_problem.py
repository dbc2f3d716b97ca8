"""Counts the pairs and blocks that one flexible attention leaves visible: in closed form, by evaluation, or as a bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from graphflops.attention import block_counts
from graphflops.attention.conditions import ALWAYS, TRUE, doubled_visible
from graphflops.attention.hidden_pairs import digest
from graphflops.attention.pair_enumeration import Enumeration
from graphflops.attention.pattern import pattern_of
from graphflops.attention.rectangles import NO_BLOCKS, Blocks, Counted, Grid, Lists, count_listed
from graphflops.dims import Dim, dim_min, prod, same
from graphflops.errors import GraphflopsError, ModelError, shown
from graphflops.rules.flex import LARGEST_BLOCK, Seen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.attention.attention_use import Masking
    from graphflops.attention.flex_function import Function
    from graphflops.attention.hidden_pairs import ValueNumbers
    from graphflops.attention.rectangles import Visible
    from graphflops.tensor import TensorType

# What numpy and Python make of functions that a file makes up.
_FAILURES = (ArithmeticError, LookupError, MemoryError, TypeError, ValueError)


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
            found = block_counts.counted(upper[0], *sizes)  # type: ignore[arg-type]
        elif upper:
            is_square = (
                isinstance(self.rows, int) and self.rows == self.columns and same(self.queries, self.keys)
            )
            found = block_counts.formulas(upper[0], self.queries, self.rows) if is_square else None
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
