"""What masks hide where all sizes are numbers: asked pair by pair."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from graphflops.attention.blockwise import HIDDEN, MIXED, SEEN, count
from graphflops.attention.predicates import ALWAYS, HIDING, SameBlock
from graphflops.attention.spans import Span, Spans

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.attention.grids import Grids
    from graphflops.attention.predicates import Cases
    from graphflops.attention.visible import Restriction

_MOST_PROBLEMS = 2**16  # batch entries and heads that a mask tells apart


def doubled_hidden(
    grids: Grids, restrictions: Sequence[Restriction], upper: Cases, queries: int, keys: int
) -> tuple[int, int, bool]:
    """Twice the pairs that are hidden in so many problems together, and whether it is certain that no more are.

    upper: outside of these cases nothing is visible. A problem is one batch entry and head; all others are like these.
    Raises ModelError where too many pairs had to be asked about.
    """
    import numpy as np

    asking = _Asking(grids, restrictions, upper)
    lead = _lead(restrictions)
    # Two queries and two keys of all problems at once: the axes that the answer has are those it depends on.
    axes = [
        None if size is None else np.arange(size).reshape(size, *[1] * (len(lead) - axis + 1))
        for axis, size in enumerate(lead)
    ]
    two = np.arange(2)
    shape = np.shape(asking.visible(axes, np.minimum(two, queries - 1)[:, None], np.minimum(two, keys - 1)))
    shape = (*[1] * (len(lead) + 2 - len(shape)), *shape)
    varying = {axis: size for axis, size in enumerate(shape[:-2]) if size > 1}
    rows, columns = (size if shape[axis] > 1 else 1 for axis, size in ((-2, queries), (-1, keys)))

    def places_of(problem: int) -> list[Any]:
        places = [None if size is None else np.int64(0) for size in lead]
        indices = np.unravel_index(problem, tuple(varying.values())) if varying else ()
        for axis, index in zip(varying, indices, strict=True):
            places[axis] = np.int64(index)
        return places

    def visible(problem: int, _: int, i: Any, j: Any) -> Any:
        return asking.visible(places_of(problem), i, j)

    def settled(problem: int, _: int, *edges: Any) -> Any:
        return asking.settled(places_of(problem), Span(*edges[:2]), Span(*edges[2:]))

    asking.told = True
    problems = math.prod(varying.values())
    pairs = (
        count(visible, problems, 1, rows, columns, settled=settled).pairs
        * (queries // rows)
        * (keys // columns)
    )
    return 2 * (queries * keys * problems - pairs), problems, asking.told


def _lead(restrictions: Sequence[Restriction]) -> list[int | None]:
    """Sizes of the axes before those of queries and keys; None for one along which the masks are not told apart."""
    shapes = {each.shape[:-2] for each in restrictions}
    shape = max(shapes, key=len)
    lead = [size if isinstance(size, int) and len(shapes) == 1 else None for size in shape]
    return lead if math.prod(size or 1 for size in lead) <= _MOST_PROBLEMS else [None] * len(lead)


class _Asking:
    """Masks asked about pairs. told: whether all that was asked by now is known."""

    def __init__(self, grids: Grids, restrictions: Sequence[Restriction], upper: Cases) -> None:
        self.grids = grids
        self.restrictions = restrictions
        self.upper = upper
        self.spans = Spans(grids)
        self.told = True

    def visible(self, places: Sequence[Any], rows: Any, columns: Any) -> Any:
        """Where all masks let through, or may."""
        found = _holds(self.upper, rows, columns)
        for each in self.restrictions:
            found = found & self.passes(each, (*places, rows, columns))
        return found

    def settled(self, places: Sequence[Any], rows: Span, columns: Span) -> Any:
        """Of rectangles: whether all masks let all pairs through, or one of them none."""
        import numpy as np

        always, ever = _held_throughout(self.upper, rows, columns)
        leading = [None if place is None else Span(place, place) for place in places]
        for each in self.restrictions:
            typed = self.spans.view.types[each.name]
            at = (*leading, rows, columns)
            found = self.spans.look(each.name, at[len(at) - typed.rank :], each.call.place)
            low, high = (np.asarray(end) for end in found)
            if each.sense in ("added", "taken"):
                low, high = (-high, -low) if each.sense == "taken" else (low, high)
                passes, may_pass = low > HIDING, high > HIDING
            elif each.sense == "kept":
                passes, may_pass = (low > 0) | (high < 0), (low != 0) | (high != 0)
            else:
                passes, may_pass = (low == 0) & (high == 0), (low <= 0) & (high >= 0)
            always, ever = always & passes, ever & may_pass
        state = np.where(ever, np.where(always, SEEN, MIXED), HIDDEN)
        return np.broadcast_to(state, np.shape(rows.low)).astype(np.int8)

    def passes(self, each: Restriction, at: tuple[Any, ...]) -> Any:
        """Where one mask lets through, or may."""
        import numpy as np

        typed = self.grids.view.types[each.name]
        found = self.grids.look(each.name, at[len(at) - typed.rank :], each.call.place)
        value = np.asarray(found.value)
        if each.sense in ("added", "taken"):
            hides = (-value if each.sense == "taken" else value) <= HIDING
        else:
            hides = value.astype(bool) == (each.sense == "dropped")
        self.told = self.told and bool(np.all(found.known))
        return ~(hides & found.known)


def _held_throughout(cases: Cases, rows: Span, columns: Span) -> tuple[Any, Any]:
    """Whether one of the cases holds for all pairs of rectangles, and whether one may hold for any."""
    import numpy as np

    always = ever = np.asarray(cases == ALWAYS)
    for case in cases if cases != ALWAYS else ():
        all_hold = may_hold = np.asarray(True)
        for term in case:
            if isinstance(term, SameBlock):
                first, last = (x // term.constant for x in rows), (x // term.constant for x in columns)
                (a, b), (c, d) = first, last
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
