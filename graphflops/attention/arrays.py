"""Evaluates what hides pairs over all pairs of a query and a key, if all sizes are numbers.

In the domain of arrays, values are intervals, at many pairs at once or over rectangles of pairs. Rectangles are evaluated
first; what they do not settle is evaluated for every pair. An unknown number counts as an ordinary score: it cannot cancel a
-inf or -1e4 that is added to it. numpy is imported only when a mask is evaluated in this way.
"""

import math
from collections.abc import Iterator, Sequence
from functools import reduce
from operator import and_
from typing import Any

from graphflops.attention import elementwise
from graphflops.attention.conditions import ALWAYS, HIDING, Cases, Residue, SameBlock
from graphflops.attention.elementwise import Function, Interval, converted, point, rising
from graphflops.attention.index_propagation import Propagation, along_axes
from graphflops.attention.rectangles import HIDDEN, MIXED, SEEN, Counted, count
from graphflops.attention.scopes import Domain, Evaluator, Indices, Restriction, Scope
from graphflops.base.lazy import numpy as np
from graphflops.dims import Dim, Expr
from graphflops.graph import Ref
from graphflops.tensor import DType, TensorType
from graphflops.view import Step

MOST_STEPS = 4000  # followed for one block of pairs
_MOST_WHOLE = 2**22  # elements of a tensor that is computed whole
_DEEPEST = 8  # nested computations of whole tensors
MOST_CAPTURED = 2**26  # elements of a whole tensor that a function captures
_MOST_SCORE = 1e3  # magnitude of scores before their function
_OPEN = float("inf")
_MOST_PROBLEMS = 2**16  # batch entries and heads for which a mask differs


class ArrayDomain(Domain[Interval]):
    """Values as arrays. overwhelming: an addend of this or less hides a score, whatever the score is."""

    def __init__(self, overwhelming: float = HIDING) -> None:
        self.overwhelming = overwhelming
        self.zero = point(np.int64(0))
        self.wholes: dict[tuple[Any, ...], Any] = {}
        self.computing = 0  # how many nested computations of whole tensors are running

    def unknown(self, dtype: DType | None) -> Interval:
        return Interval(0.0, 1.0) if dtype is not None and dtype.kind == "bool" else Interval(-_OPEN, _OPEN)

    def score(self) -> Interval:
        return Interval(-_MOST_SCORE, _MOST_SCORE)

    def literal(self, number: Any) -> Interval:
        return self.unknown(None) if isinstance(number, Expr) else point(number)

    def as_index(self, value: Interval) -> Any:
        low, high = map(np.asarray, value)
        if value.is_exact:
            return point(low.astype(np.int64)) if low.dtype.kind in "iu" else None
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            return None
        return Interval(low.astype(np.int64), high.astype(np.int64))

    def from_index(self, index: Any, dtype: DType) -> Interval:
        return point(converted(index.low, dtype)) if index.is_exact else elementwise.fitted(index, dtype)

    def wrapped(self, index: Any, size: Dim) -> Any:
        if index is None or np.all(index.low >= 0):
            return index
        if isinstance(size, Expr) or np.any((index.low < 0) != (index.high < 0)):
            return None
        return rising(lambda place: np.where(place < 0, place + size, place))(index)

    def repeated(self, index: Any, size: Dim) -> Any:
        return point(index.low % size) if index.is_exact and isinstance(size, int) else None

    def between(self, index: Any, begin: Dim, end: Dim | None) -> Interval:
        if isinstance(begin, Expr) or isinstance(end, Expr):
            return Interval(0.0, 1.0)
        always, ever = index.low >= begin, index.high >= begin
        if end is not None:
            always, ever = always & (index.high < end), ever & (index.low < end)
        return point(always) if index.is_exact else Interval(always * 1.0, ever * 1.0)

    def reshaped(self, at: Indices, shape: Sequence[Dim], source: Sequence[Dim]) -> Indices | None:
        """Axes merge or split group by group, so that an index depends on as few axes as possible."""
        found: list[Any] = []
        for given, made in groups(shape, source):
            if len(given) == len(made) == 1:
                found.append(at[given[0]])
                continue
            flat = self.zero
            for axis in given:
                if shape[axis] != 1:
                    if at[axis] is None or not at[axis].is_exact:
                        return None
                    flat = flat * shape[axis] + at[axis]
            sizes = [source[axis] for axis in made]
            places = [flat.low // math.prod(sizes[at + 1 :]) % size for at, size in enumerate(sizes)]
            found += map(point, places)
        return tuple(found)

    def choose(self, condition: Interval, yes: Interval, no: Interval) -> Interval:
        return elementwise.chosen(condition, yes, no)

    def stored(self, scope: Scope, name: str, typed: TensorType, at: Indices) -> Interval | None:
        if typed.uniform is not None:
            return point(converted(np.asarray(typed.uniform), typed.dtype))
        array = array_of_value(scope, name, typed)
        return None if array is None else picked(array, at)

    def whole(self, evaluator: Evaluator[Interval], step: Step, at: Indices) -> Interval | None:
        scope, before = evaluator.scope, evaluator.before
        key = scope, step, before if scope.writes else 0
        if key not in self.wholes:
            self.wholes[key] = along_axes(evaluator, step, lambda name: self.array(scope, name, before))
        return None if self.wholes[key] is None else picked(self.wholes[key], at)

    def captured(self, evaluator: Evaluator[Interval], name: str, at: Indices) -> Interval | None:
        array = self.array(evaluator.scope, name, evaluator.before, MOST_CAPTURED)
        return None if array is None else picked(array, at)

    def apply(self, function: Function, values: Sequence[Interval | None]) -> Interval | None:
        given = [value for value in values if value is not None]
        if not all(value.is_exact for value in given):
            found = elementwise.extended(function, values)
            is_sum = function.name in ("add", "sub") and len(given) == 2
            return self.overwhelmed(function, found, *given) if is_sum else found
        pairs = zip(values, function.operands, strict=True)
        numbers = [x and (_number(x.low) if dtype is None else converted(x.low, dtype)) for x, dtype in pairs]
        return point(elementwise.computed(function, numbers))

    def overwhelmed(self, function: Function, found: Interval, a: Interval, b: Interval) -> Interval:
        """A sum; if one addend hides a score whatever the other is, that addend."""
        if function.result is None or function.result.kind != "float":
            return found
        for addend in (a, b if function.name == "add" else Interval(-b.high, -b.low)):
            wins = (addend.low == addend.high) & (addend.high <= self.overwhelming)
            found = Interval(*(np.where(wins, addend.low, end) for end in found))
        return found

    def array(self, scope: Scope, name: str, before: int, most: int = _MOST_WHOLE) -> Any:
        """All of a tensor, as the step at `before` finds it; None if some of it is not known."""
        typed, around = scope.type_of(name), scope.bound.get(name)
        if typed is None:
            return None
        found = None if scope.writes else array_of_value(scope, name, typed)
        if found is not None:
            return found
        if around is not None and isinstance(around[1], Ref):
            return self.array(around[0], around[1].name, around[2], most)
        if not isinstance(typed.numel, int) or typed.numel > most:
            return None
        key = scope, name, before if scope.writes else 0
        if key not in self.wholes and self.computing < _DEEPEST:
            self.wholes[key] = None
            sizes: tuple[Any, ...] = typed.shape
            places = tuple(map(point, np.ix_(*map(np.arange, sizes))))
            self.computing += 1
            whole = Propagation(self, MOST_STEPS).evaluate(scope, Ref(name), places, before)
            self.computing -= 1
            if whole.is_known:
                self.wholes[key] = np.broadcast_to(converted(whole.low, typed.dtype), sizes)
        return self.wholes.get(key)


def array_of_value(scope: Scope, name: str, typed: TensorType) -> Any:
    """All of a tensor whose contents are in its type or stored in the file; None for others."""
    if typed.value is not None:
        array = np.asarray(typed.value)
        if array.dtype.kind in "biuf" and array.shape == typed.shape:
            return converted(array, typed.dtype)
    array = scope.constants.array(name, typed)
    if array is not None:
        scope.constants.use(name, typed)
    return array


def groups(shape: Sequence[Dim], source: Sequence[Dim]) -> Iterator[tuple[range, range]]:
    """The smallest groups of axes of both shapes with equal numbers of elements. ValueError if sizes are not known."""
    a = b = 0
    while a < len(shape) or b < len(source):
        first, start = a, b
        left, a = (shape[a], a + 1) if a < len(shape) else (1, a)
        right, b = (source[b], b + 1) if b < len(source) else (1, b)
        while left != right:
            if isinstance(left, Expr) or isinstance(right, Expr):
                raise ValueError
            if left < right:
                left, a = left * shape[a], a + 1
            else:
                right, b = right * source[b], b + 1
        yield range(first, a), range(start, b)


def picked(array: Any, at: Indices) -> Interval:
    """Elements of an array at indices, or minima and maxima over spans; unknown if an index is outside."""
    if 0 in array.shape:
        return Interval(-_OPEN, _OPEN)
    outside: Any = np.False_
    left: list[Interval] = []
    for index, size in zip(at, array.shape, strict=True):
        span = Interval(np.int64(0), np.int64(size - 1)) if index is None else index
        if np.ndim(span.low) == 0 and span.low == span.high and 0 <= span.low < size:
            array = array[(slice(None),) * len(left) + (int(span.low),)]
            continue
        outside = outside | (span.low < 0) | (span.high >= size)
        left.append(rising(lambda place, last=size - 1: np.clip(place, 0, last))(span))
    if all(span.is_known for span in left):
        found = point(array[tuple(span.low for span in left)])
    elif len(left) == 1:
        found = extremes(array, *np.broadcast_arrays(*left[0]))
    else:
        found = Interval(np.float64(array.min()), np.float64(array.max()))
    if not np.any(outside):
        return found
    return Interval(np.where(outside, -_OPEN, found.low), np.where(outside, _OPEN, found.high))


def extremes(array: Any, low: Any, high: Any) -> Interval:
    """The extremes between two places, both included; of the whole array if a place is outside, as negative ones are."""
    size = len(array)
    outside = ~((low >= 0) & (high < size))
    first = np.where(outside, 0, low).astype(np.int64)
    last = np.where(outside, size - 1, high).astype(np.int64)
    start, stop = int(first.min()), int(last.max()) + 1
    pairs = np.stack([first.reshape(-1), last.reshape(-1) + 1]) - start
    pairs, inverse = np.unique(pairs, axis=1, return_inverse=True)
    part = np.append(array[start:stop], array[stop - 1])  # `reduceat` needs an end that is a place
    ends = (function.reduceat(part, pairs.T.reshape(-1))[::2] for function in (np.minimum, np.maximum))
    return Interval(*(end[inverse.reshape(-1)].reshape(first.shape).astype(np.float64) for end in ends))


def _number(value: Any) -> Any:
    """A number of the program, as it was written."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


class Enumeration:
    """Restrictions evaluated over all pairs of a query and a key."""

    def __init__(
        self, domain: ArrayDomain, restrictions: Sequence[Restriction], lead: Sequence[Any],
        queries: int, keys: int, upper: Cases = ALWAYS,
    ) -> None:  # fmt: skip
        self.restrictions, self.upper = restrictions, upper  # nothing is visible outside of `upper`
        self.values = Propagation(domain, MOST_STEPS)
        self.queries, self.keys, self.exact = queries, keys, True
        # Sizes of the axes before queries and keys; None for an axis whose slices are not told apart.
        told_apart = [size if isinstance(size, int) else None for size in lead]
        if math.prod(size or 1 for size in told_apart) > _MOST_PROBLEMS:
            told_apart = [None] * len(told_apart)
        self.known = [size is not None for size in told_apart]
        # Evaluate two queries and two keys of all slices at once: the answer has the axes that it depends on.
        rank = len(told_apart) + 2
        places = [None if size is None else np.arange(size) for size in told_apart]
        axes = [x if x is None else x.reshape(-1, *[1] * (rank - at - 1)) for at, x in enumerate(places)]
        i, j = (np.minimum(np.arange(2), size - 1) for size in (queries, keys))
        shape = np.shape(self.visible(axes, i[:, None], j))
        # The sizes of `lead` along axes that visibility depends on; 1 along others.
        *self.sizes, height, width = [1] * (rank - len(shape)) + list(shape)
        self.problems = math.prod(self.sizes)  # how many different slices there are; the others repeat them
        self.exact = True  # whether everything evaluated so far was known
        # The same for queries and keys.
        self.rows, self.columns = queries if height > 1 else 1, keys if width > 1 else 1

    def pairs(self) -> Dim:
        """The visible pairs of all problems."""
        found = count(self.visible, self.slices, self.rows, self.columns, settled=self.settled)
        return found.pairs * (self.queries // self.rows) * (self.keys // self.columns)

    def blocks(self, rows: int, columns: int) -> Counted:
        """The visible pairs of all problems, and the blocks of `rows` x `columns` that contain them."""
        sizes = self.queries, self.keys, rows, columns
        return count(self.visible, self.slices, *sizes, settled=self.settled)

    @property
    def slices(self) -> Iterator[list[Any]]:
        """The indices of each problem along the axes before queries and keys."""
        for indices in np.ndindex(*self.sizes):
            pairs = zip(indices, self.known, strict=True)
            yield [np.int64(index) if known else None for index, known in pairs]

    def visible(self, lead: Sequence[Any], rows: Any, columns: Any) -> Any:
        """Where all restrictions let pairs through, or may; in one or several batch entries and heads."""
        return self.let_through(lead, point(rows), point(columns))[1]

    def settled(self, lead: Sequence[Any], *edges: Any) -> Any:
        """For rectangles: whether all restrictions let all pairs through, or one lets none through."""
        always, ever = self.let_through(lead, Interval(*edges[:2]), Interval(*edges[2:]))
        state = np.where(ever, np.where(always, SEEN, MIXED), HIDDEN)
        return np.broadcast_to(state, edges[0].shape).astype(np.int8)

    def let_through(self, lead: Sequence[Any], rows: Interval, columns: Interval) -> tuple[Any, Any]:
        """Where all restrictions let all pairs through, and where they may let any through."""
        found = [] if self.upper == ALWAYS else [_held(self.upper, rows, columns)]
        at = *(None if place is None else point(place) for place in lead), rows, columns
        for each in self.restrictions:
            value = self.values.restriction(each, at)
            found.append(each.certainty(value))
            # The unknown part of a score function's result is the score itself.
            if rows.is_exact and each.sense != "score":
                self.exact = self.exact and value.is_known
        always, ever = (reduce(and_, each) for each in zip(*found, strict=True))
        return always, ever


def _held(cases: Cases, rows: Interval, columns: Interval) -> tuple[Any, Any]:
    """Whether one of the cases holds for all pairs of rectangles, and whether one may hold for any pair."""
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
            if isinstance(term, Residue):  # decided for single pairs only
                kept = np.isin(np.arange(term.modulus), term.remainders)[low % term.modulus]
                some, any_ = kept & (low == high), kept | (low != high)
            all_hold, may_hold = all_hold & some, may_hold & any_
        always, ever = always | all_hold, ever | may_hold
    return always, ever
