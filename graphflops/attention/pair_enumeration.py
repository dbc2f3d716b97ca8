"""Evaluates what hides pairs over all pairs of a query and a key, where all sizes are numbers.

Rectangles of pairs are evaluated first, as intervals; what that does not settle is evaluated on every pair.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import reduce
from operator import and_
from typing import Any

from graphflops.attention.arrays import MOST_STEPS, ArrayDomain
from graphflops.attention.conditions import ALWAYS, Cases, Residue, SameBlock
from graphflops.attention.index_propagation import Propagation
from graphflops.attention.intervals import Interval, point
from graphflops.attention.rectangles import HIDDEN, MIXED, SEEN, Counted, count
from graphflops.attention.scopes import Restriction
from graphflops.base.lazy import numpy as np
from graphflops.dims import Dim

_MOST_PROBLEMS = 2**16  # batch entries and heads that a mask tells apart


class Enumeration:
    """Restrictions evaluated over all pairs of a query and a key."""

    def __init__(
        self, domain: ArrayDomain, restrictions: Sequence[Restriction], lead: Sequence[Any],
        queries: int, keys: int, upper: Cases = ALWAYS,
    ) -> None:  # fmt: skip
        self.restrictions, self.upper = restrictions, upper  # nothing is visible outside of these cases
        self.values = Propagation(domain, MOST_STEPS)
        self.queries, self.keys, self.exact = queries, keys, True
        # Sizes of the axes before those of queries and keys; None for one along which slices are not told apart.
        told_apart = [size if isinstance(size, int) else None for size in lead]
        if math.prod(size or 1 for size in told_apart) > _MOST_PROBLEMS:
            told_apart = [None] * len(told_apart)
        self.known = [size is not None for size in told_apart]
        # Two queries and two keys of all slices at once: the axes of the answer are those that it depends on.
        rank = len(told_apart) + 2
        places = [None if size is None else np.arange(size) for size in told_apart]
        axes = [x if x is None else x.reshape(-1, *[1] * (rank - at - 1)) for at, x in enumerate(places)]
        i, j = (np.minimum(np.arange(2), size - 1) for size in (queries, keys))
        shape = np.shape(self.visible(axes, i[:, None], j))
        # Those of `lead` as far as what is visible depends on the axis, else 1.
        *self.sizes, height, width = [1] * (rank - len(shape)) + list(shape)
        self.problems = math.prod(self.sizes)  # how many slices these are; all others repeat them
        self.exact = True  # whether everything evaluated so far was known
        # As the sizes, of queries and keys.
        self.rows, self.columns = queries if height > 1 else 1, keys if width > 1 else 1

    def pairs(self) -> Dim:
        """The visible pairs of all problems."""
        found = count(self.visible, self.slices, self.rows, self.columns, settled=self.settled)
        return found.pairs * (self.queries // self.rows) * (self.keys // self.columns)

    def blocks(self, rows: int, columns: int) -> Counted:
        """The visible pairs of all problems, and the blocks of so many rows and columns that they are in."""
        sizes = self.queries, self.keys, rows, columns
        return count(self.visible, self.slices, *sizes, settled=self.settled)

    @property
    def slices(self) -> Iterator[list[Any]]:
        """The indices of each problem along the axes before those of queries and keys."""
        for indices in np.ndindex(*self.sizes):
            pairs = zip(indices, self.known, strict=True)
            yield [np.int64(index) if known else None for index, known in pairs]

    def visible(self, lead: Sequence[Any], rows: Any, columns: Any) -> Any:
        """Where everything lets through, or may, in one batch entry and head, or several."""
        return self.let_through(lead, point(rows), point(columns))[1]

    def settled(self, lead: Sequence[Any], *edges: Any) -> Any:
        """Of rectangles: whether everything lets all pairs through, or one restriction none."""
        always, ever = self.let_through(lead, Interval(*edges[:2]), Interval(*edges[2:]))
        state = np.where(ever, np.where(always, SEEN, MIXED), HIDDEN)
        return np.broadcast_to(state, edges[0].shape).astype(np.int8)

    def let_through(self, lead: Sequence[Any], rows: Interval, columns: Interval) -> tuple[Any, Any]:
        """Where everything lets all pairs through, and where it may let any."""
        found = [] if self.upper == ALWAYS else [_held(self.upper, rows, columns)]
        at = *(None if place is None else point(place) for place in lead), rows, columns
        for each in self.restrictions:
            value = self.values.restriction(each, at)
            found.append(each.certainty(value))
            # What is not known of a score is the score itself.
            if rows.is_exact and each.sense != "score":
                self.exact = self.exact and value.is_known
        always, ever = (reduce(and_, each) for each in zip(*found, strict=True))
        return always, ever


def _held(cases: Cases, rows: Interval, columns: Interval) -> tuple[Any, Any]:
    """Whether one of the cases holds for all pairs of rectangles, and whether one may hold for any."""
    always = ever = np.asarray(False)
    for case in cases:
        all_hold = may_hold = np.asarray(True)
        for term in case:
            if isinstance(term, SameBlock):
                (a, b), (c, d) = ([x // term.constant for x in span] for span in (rows, columns))
                all_hold, may_hold = all_hold & (a == b) & (c == d) & (a == c), may_hold & (a <= d) & (c <= b)
                continue
            if not isinstance(term.constant, int):
                all_hold = all_hold & (not isinstance(term, Residue))
                continue
            low, high = rows * term.row + columns * term.column + term.constant
            some, any_ = low >= 0, high >= 0
            if isinstance(term, Residue):  # settled for single pairs
                kept = np.isin(np.arange(term.modulus), term.remainders)[low % term.modulus]
                some, any_ = kept & (low == high), kept | (low != high)
            all_hold, may_hold = all_hold & some, may_hold & any_
        always, ever = always | all_hold, ever | may_hold
    return always, ever
