"""Evaluates what hides pairs over all pairs of a query and a key, where all sizes are concrete.

Rectangles of pairs are evaluated first, in intervals; what that does not settle is evaluated on every pair.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from graphflops.attention.concrete import MOST_STEPS, ConcreteDomain
from graphflops.attention.conditions import ALWAYS, Cases, Residue, SameBlock
from graphflops.attention.index_propagation import Propagation
from graphflops.attention.intervals import Interval, IntervalDomain
from graphflops.attention.rectangles import HIDDEN, MIXED, SEEN, Counted, count
from graphflops.attention.scopes import Restriction
from graphflops.base.lazy import numpy as np

_MOST_INTERVAL_STEPS = 1000  # for one set of rectangles
_MOST_PROBLEMS = 2**16  # batch entries and heads that a mask tells apart


class Enumeration:
    """Restrictions evaluated over all pairs of a query and a key."""

    def __init__(
        self, concrete: ConcreteDomain, restrictions: Sequence[Restriction], lead: Sequence[Any],
        queries: int, keys: int, upper: Cases = ALWAYS,
    ) -> None:  # fmt: skip
        self.restrictions, self.upper = restrictions, upper  # nothing is visible outside of these cases
        self.points = Propagation(concrete, MOST_STEPS)
        self.intervals = Propagation(IntervalDomain(concrete), _MOST_INTERVAL_STEPS)
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

    def pairs(self) -> int:
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
        found = None
        if self.upper != ALWAYS:
            _, found = _held(self.upper, Interval(rows, rows), Interval(columns, columns))
        for each in self.restrictions:
            value = self.points.restriction(each, (*lead, rows, columns))
            found = each.passes(value) if found is None else found & each.passes(value)
            # What is not known of a score is the score itself.
            self.exact = self.exact and (each.sense == "score" or bool(np.all(value.known)))
        return found

    def settled(self, lead: Sequence[Any], *edges: Any) -> Any:
        """Of rectangles: whether everything lets all pairs through, or one restriction none."""
        rows, columns = Interval(*edges[:2]), Interval(*edges[2:])
        lead = [None if place is None else Interval(place, place) for place in lead]
        always, ever = _held(self.upper, rows, columns)
        for each in self.restrictions:
            passes, may_pass = each.certainty(self.intervals.restriction(each, (*lead, rows, columns)))
            always, ever = always & passes, ever & may_pass
        state = np.where(ever, np.where(always, SEEN, MIXED), HIDDEN)
        return np.broadcast_to(state, np.shape(rows.low)).astype(np.int8)


def _held(cases: Cases, rows: Interval, columns: Interval) -> tuple[Any, Any]:
    """Whether one of the cases holds for all pairs of rectangles, and whether one may hold for any."""
    always = ever = np.asarray(cases == ALWAYS)
    for case in cases if cases != ALWAYS else ():
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
