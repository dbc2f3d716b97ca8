"""The interval domain: the least and the greatest that a value can be over whole rectangles of pairs.

An index is an interval of places. What intervals do not settle is evaluated pair by pair (`concrete`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from graphflops.attention.concrete import array_of_value, groups
from graphflops.attention.domain import Domain, Indices
from graphflops.attention.interval_functions import Interval, chosen, extended, extremes, fitted
from graphflops.dims import Expr

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.attention.concrete import ConcreteDomain
    from graphflops.attention.domain import Evaluator
    from graphflops.attention.elementwise import Function
    from graphflops.attention.scopes import Scope, Step
    from graphflops.dims import Dim
    from graphflops.tensor import DType, TensorType

_MOST_SCORE = 1e3  # of scores before their function
_OPEN = float("inf")


class Span(NamedTuple):
    """The first and the last index of an axis, as arrays: one of each for a rectangle."""

    low: Any
    high: Any

    def __add__(self, other: Any) -> Span:
        if isinstance(other, Span):
            return Span(self.low + other.low, self.high + other.high)
        return Span(self.low + other, self.high + other)

    def __mul__(self, factor: Any) -> Span:
        low, high = self.low * factor, self.high * factor
        return Span(low, high) if factor >= 0 else Span(high, low)

    @property
    def is_one(self) -> bool:
        """Whether each rectangle has one index."""
        return bool((self.low == self.high).all())


class IntervalDomain(Domain[Interval]):
    """Values as intervals. concrete: evaluates whole tensors, whose least and greatest elements are taken."""

    def __init__(self, concrete: ConcreteDomain) -> None:
        import numpy as np

        self.concrete = concrete
        self.zero = Span(np.int64(0), np.int64(0))

    def unknown(self, dtype: DType | None) -> Interval:
        return Interval(0.0, 1.0) if dtype is not None and dtype.kind == "bool" else Interval(-_OPEN, _OPEN)

    def score(self) -> Interval:
        return Interval(-_MOST_SCORE, _MOST_SCORE)

    def is_unknown(self, value: Interval) -> bool:
        return False

    def literal(self, number: Any) -> Interval:
        return self.unknown(None) if isinstance(number, Expr) else Interval(float(number), float(number))

    def as_index(self, value: Interval) -> Any:
        import numpy as np

        low, high = np.asarray(value.low), np.asarray(value.high)
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            return None
        return Span(low.astype(np.int64), high.astype(np.int64))

    def from_index(self, index: Any, dtype: DType) -> Interval:
        return fitted(Interval(*index), dtype)

    def wrapped(self, index: Any, size: Dim) -> Any:
        if index is None or (index.low >= 0).all():
            return index
        return index + size if isinstance(size, int) and (index.high < 0).all() else None

    def between(self, index: Any, begin: Dim, end: Dim | None) -> Interval:
        if isinstance(begin, Expr) or isinstance(end, Expr):
            return Interval(0.0, 1.0)
        always, ever = index.low >= begin, index.high >= begin
        if end is not None:
            always, ever = always & (index.high < end), ever & (index.low < end)
        return Interval(always * 1.0, ever * 1.0)

    def reshaped(self, at: Indices, shape: Sequence[Dim], source: Sequence[Dim]) -> Indices | None:
        """Axes that stay as they are; what merges or splits is not followed."""
        found: list[Any] = []
        for given, made in groups(shape, source):
            if len(given) == len(made) == 1:
                found.append(at[given[0]])
            elif all(shape[axis] == 1 for axis in given):
                found += [self.zero] * len(made)
            else:
                return None
        return tuple(found)

    def choose(self, condition: Interval, yes: Interval, no: Interval) -> Interval:
        return chosen(condition, yes, no)

    def apply(self, function: Function, values: Sequence[Interval | None]) -> Interval:
        return extended(function, values)

    def stored(self, scope: Scope, name: str, typed: TensorType, at: Indices) -> Interval | None:
        if typed.uniform is not None:
            return fitted(self.literal(typed.uniform), typed.dtype)
        array = array_of_value(scope, name, typed)
        return None if array is None else self.picked(array, at)

    def whole(self, evaluator: Evaluator[Interval], step: Step, at: Indices) -> Interval | None:
        return self.captured(evaluator, step.result, at)

    def captured(self, evaluator: Evaluator[Interval], name: str, at: Indices) -> Interval | None:
        array = self.concrete.array(evaluator.scope, name, evaluator.before)
        return None if array is None else self.picked(array, at)

    def picked(self, array: Any, at: Indices) -> Interval:
        """The least and the greatest element in spans; anything where one lies outside."""
        import numpy as np

        if 0 in array.shape:
            return self.unknown(None)
        outside: Any = np.False_
        left: list[Span] = []
        for index, size in zip(at, array.shape, strict=True):
            span = Span(np.int64(0), np.int64(size - 1)) if index is None else index
            if np.ndim(span.low) == 0 and span.low == span.high and 0 <= span.low < size:
                array = np.take(array, int(span.low), len(left))
                continue
            outside = outside | (span.low < 0) | (span.high >= size)
            left.append(Span(np.clip(span.low, 0, size - 1), np.clip(span.high, 0, size - 1)))
        if not left:
            found = Interval(np.float64(array), np.float64(array))
        elif all(span.is_one for span in left):
            value = array[tuple(span.low for span in left)].astype(np.float64)
            found = Interval(value, value)
        elif len(left) == 1:
            found = extremes(array, *np.broadcast_arrays(*left[0]))
        else:
            found = Interval(np.float64(array.min()), np.float64(array.max()))
        return Interval(np.where(outside, -_OPEN, found.low), np.where(outside, _OPEN, found.high))
