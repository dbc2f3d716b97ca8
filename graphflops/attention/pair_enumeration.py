"""Counts the (query, key) pairs that masks hide where all sizes are concrete, by evaluating the masks.

Rectangles of pairs are evaluated first, in intervals; what that does not settle is evaluated on every pair.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from graphflops.attention.concrete import MOST_STEPS, ConcreteDomain
from graphflops.attention.conditions import ALWAYS, HIDING, SameBlock
from graphflops.attention.index_propagation import Propagation
from graphflops.attention.intervals import MOST_STEPS as MOST_INTERVAL_STEPS
from graphflops.attention.intervals import IntervalDomain, Span
from graphflops.attention.rectangles import HIDDEN, MIXED, SEEN, count
from graphflops.graph import Ref

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.attention.conditions import Cases
    from graphflops.attention.scopes import Scope
    from graphflops.dims import Dim

_MOST_PROBLEMS = 2**16  # batch entries and heads that a mask tells apart
Sense = Literal["added", "subtracted", "keep", "drop"]


@dataclass(frozen=True, slots=True)
class Restriction:
    """A mask as a call applies it to scores.

    before: place of that call in its scope. sense: how the mask is applied: added, subtracted, boolean keep, boolean drop.
    shape: of the scores that it broadcasts to; only the last two axes are always known.
    """

    scope: Scope
    name: str
    before: int
    sense: Sense
    shape: tuple[Dim, ...]


def doubled_hidden(
    concrete: ConcreteDomain, restrictions: Sequence[Restriction], upper: Cases, queries: int, keys: int
) -> tuple[int, int, bool]:
    """2 x the hidden pairs, summed over `problems` distinct (batch, head) slices, that number, and whether it is exact.

    The other slices repeat these. upper: nothing is visible outside of these cases.
    Raises ModelError where too many pairs would have to be evaluated.
    """
    import numpy as np

    masks = _Masks(concrete, restrictions, upper)
    lead = _lead(restrictions)
    # Two queries and two keys of all slices at once: the axes of the answer are those that it depends on.
    axes = [
        None if size is None else np.arange(size).reshape(size, *[1] * (len(lead) - axis + 1))
        for axis, size in enumerate(lead)
    ]
    i, j = (np.minimum(np.arange(2), size - 1) for size in (queries, keys))
    shape = np.shape(masks.visible(axes, i[:, None], j))
    shape = (*[1] * (len(lead) + 2 - len(shape)), *shape)
    varying = {axis: size for axis, size in enumerate(shape[:-2]) if size > 1}
    rows, columns = (size if shape[axis] > 1 else 1 for axis, size in ((-2, queries), (-1, keys)))

    def places_of(problem: int) -> list[Any]:
        indices = np.unravel_index(problem, tuple(varying.values())) if varying else ()
        given = dict(zip(varying, map(np.int64, indices), strict=True))
        return [None if size is None else given.get(axis, np.int64(0)) for axis, size in enumerate(lead)]

    def visible(problem: int, _: int, i: Any, j: Any) -> Any:
        return masks.visible(places_of(problem), i, j)

    def settled(problem: int, _: int, *edges: Any) -> Any:
        return masks.settled(places_of(problem), Span(*edges[:2]), Span(*edges[2:]))

    masks.exact = True
    problems = math.prod(varying.values())
    pairs = count(visible, problems, 1, rows, columns, settled=settled).pairs
    pairs *= (queries // rows) * (keys // columns)
    return 2 * (queries * keys * problems - pairs), problems, masks.exact


def _lead(restrictions: Sequence[Restriction]) -> list[int | None]:
    """Sizes of the axes before those of queries and keys; None for one along which the masks are not told apart."""
    shapes = {each.shape[:-2] for each in restrictions}
    shape = max(shapes, key=len)
    lead = [size if isinstance(size, int) and len(shapes) == 1 else None for size in shape]
    return lead if math.prod(size or 1 for size in lead) <= _MOST_PROBLEMS else [None] * len(lead)


class _Masks:
    """Masks, evaluated. exact: whether everything evaluated so far was known."""

    def __init__(self, concrete: ConcreteDomain, restrictions: Sequence[Restriction], upper: Cases) -> None:
        self.restrictions = restrictions
        self.upper = upper
        self.points = Propagation(concrete, MOST_STEPS)
        self.spans = Propagation(IntervalDomain(concrete), MOST_INTERVAL_STEPS)
        self.exact = True

    def visible(self, lead: Sequence[Any], rows: Any, columns: Any) -> Any:
        """Where all masks let through, or may."""
        found = _holds(self.upper, rows, columns)
        for each in self.restrictions:
            found = found & self.passes(each, (*lead, rows, columns))
        return found

    def settled(self, lead: Sequence[Any], rows: Span, columns: Span) -> Any:
        """Of rectangles: whether all masks let all pairs through, or one of them none."""
        import numpy as np

        always, ever = _held_throughout(self.upper, rows, columns)
        at = (*[None if place is None else Span(place, place) for place in lead], rows, columns)
        for each in self.restrictions:
            found = self.spans.evaluate(each.scope, Ref(each.name), at, each.before)
            low, high = (np.asarray(end) for end in found)
            if each.sense in ("added", "subtracted"):
                low, high = (-high, -low) if each.sense == "subtracted" else (low, high)
                passes, may_pass = low > HIDING, high > HIDING
            elif each.sense == "keep":
                passes, may_pass = (low > 0) | (high < 0), (low != 0) | (high != 0)
            else:
                passes, may_pass = (low == 0) & (high == 0), (low <= 0) & (high >= 0)
            always, ever = always & passes, ever & may_pass
        state = np.where(ever, np.where(always, SEEN, MIXED), HIDDEN)
        return np.broadcast_to(state, np.shape(rows.low)).astype(np.int8)

    def passes(self, each: Restriction, at: tuple[Any, ...]) -> Any:
        """Where one mask lets through, or may."""
        import numpy as np

        found = self.points.evaluate(each.scope, Ref(each.name), at, each.before)
        value = np.asarray(found.value)
        if each.sense in ("added", "subtracted"):
            hides = (-value if each.sense == "subtracted" else value) <= HIDING
        else:
            hides = value.astype(bool) == (each.sense == "drop")
        self.exact = self.exact and bool(np.all(found.known))
        return ~(hides & found.known)


def _held_throughout(cases: Cases, rows: Span, columns: Span) -> tuple[Any, Any]:
    """Whether one of the cases holds for all pairs of rectangles, and whether one may hold for any."""
    import numpy as np

    always = ever = np.asarray(cases == ALWAYS)
    for case in cases if cases != ALWAYS else ():
        all_hold = may_hold = np.asarray(True)
        for term in case:
            if isinstance(term, SameBlock):
                (a, b), (c, d) = ([x // term.constant for x in span] for span in (rows, columns))
                all_hold, may_hold = all_hold & (a == b) & (c == d) & (a == c), may_hold & (a <= d) & (c <= b)
            elif isinstance(term.constant, int):
                low, high = rows * term.row + columns * term.column + term.constant
                all_hold, may_hold = all_hold & (low >= 0), may_hold & (high >= 0)
        always, ever = always | all_hold, ever | may_hold
    return always, ever


def _holds(cases: Cases, rows: Any, columns: Any) -> Any:
    """Where one of the cases holds, or may."""
    import numpy as np

    found = np.asarray(cases == ALWAYS)
    for case in cases if cases != ALWAYS else ():
        holds = np.asarray(True)
        for term in case:
            if isinstance(term, SameBlock):
                holds = holds & (rows // term.constant == columns // term.constant)
            elif isinstance(term.constant, int):
                holds = holds & (rows * term.row + columns * term.column + term.constant >= 0)
        found = found | holds
    return found
