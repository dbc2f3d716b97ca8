"""The interval domain: the least and the greatest that a value can be over whole rectangles of pairs.

No value is outside of its interval. Intervals are of float64, truths as 0 and 1; an index is an interval of places. A
function without an interval extension is computed where every operand is one number; elsewhere its result may be any number.
What intervals do not settle is evaluated pair by pair (`concrete`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from msgspec.structs import replace

from graphflops.attention.concrete import ConcreteDomain, array_of_value, groups
from graphflops.attention.elementwise import Function, array_type, computed, converted, inner_type, is_known
from graphflops.attention.scopes import Domain, Evaluator, Indices, Scope, Step
from graphflops.base.lazy import numpy as np
from graphflops.dims import Dim, Expr
from graphflops.tensor import BOOL, DType, TensorType

_EXACT = 2.0**53  # from here on float64 does not hold every whole number


class Interval(NamedTuple):
    """The least and the greatest that values can be, or the first and the last index of an axis, as arrays."""

    low: Any
    high: Any

    def __add__(self, other: Any) -> Interval:
        low, high = other if isinstance(other, Interval) else (other, other)
        return Interval(self.low + low, self.high + high)

    def __mul__(self, factor: Any) -> Interval:
        low, high = self.low * factor, self.high * factor
        return Interval(low, high) if factor >= 0 else Interval(high, low)

    @property
    def is_one(self) -> bool:
        """Whether each rectangle has one index."""
        return bool((self.low == self.high).all())


def extended(function: Function, values: Sequence[Interval | None]) -> Interval:
    """A function of intervals."""
    if function.name == "div" and function.options == {"rounding_mode": "floor"}:
        function = replace(function, name="floor_divide", options={})
    elif function.result is BOOL and function.name in _OF_BITS:
        function = replace(function, name=_OF_BITS[function.name])
    kind = function.result and function.result.kind
    is_rough = function.name == "remainder" and kind == "float"  # one of fractions is not exact here
    with np.errstate(all="ignore"):
        if function.name == "cast" and values[0] is not None:
            return fitted(cast(values[0], function.operands[0], function.result), function.result)
        if function.name in _OF_BITS.values():
            values = [x and cast(x, dtype, BOOL) for x, dtype in zip(values, function.operands, strict=True)]
            function = replace(function, operands=(BOOL,) * len(values))
        given = _rounded(function, values)
        extension = None if function.options or is_rough else _functions().get(function.name)
        found = _settled(function, given) if extension is None else extension(*given)
        return fitted(found, function.result)


def fitted(found: Interval, dtype: DType | None) -> Interval:
    """The range as the element type holds it: rounded; open where numbers may have been too large for it."""
    low, high = (np.asarray(x, np.float64) for x in found)
    least, most = -np.inf, np.inf
    if dtype is BOOL:
        least, most = 0.0, 1.0
        low, high = np.clip(low, 0, 1), np.clip(high, 0, 1)
    elif dtype is not None and dtype.kind == "float":
        low, high = (np.asarray(converted(x, dtype), np.float64) for x in (low, high))
    elif dtype is not None:
        limits = np.iinfo(array_type(dtype))
        inside = (low >= max(float(limits.min), -_EXACT)) & (high <= min(float(limits.max), _EXACT))
        low, high = np.where(inside, low, np.nan), np.where(inside, high, np.nan)
    unknown = np.isnan(low) | np.isnan(high)
    return Interval(np.where(unknown, least, low), np.where(unknown, most, high))


def _rounded(function: Function, values: Sequence[Interval | None]) -> Sequence[Interval | None]:
    """Operands in the floating type that they are computed in; whole numbers stay as they are."""
    pairs = zip(values, function.operands, strict=True)
    literals = [_literal(x.low) for x, dtype in pairs if dtype is None and x is not None]
    inner = inner_type(function, literals)
    if inner is None or inner.kind != "float":
        return values
    return [x and Interval(*(np.asarray(converted(end, inner), np.float64) for end in x)) for x in values]


def _settled(function: Function, values: Sequence[Interval | None]) -> Interval:
    """Computed where every operand is one number, open elsewhere."""
    if not is_known(function.name):
        return Interval(np.float64(-np.inf), np.float64(np.inf))
    known = np.True_
    for value in values:
        known = known if value is None else known & (value.low == value.high)

    def number(value: Interval | None, dtype: DType | None) -> Any:
        if value is None or dtype is None:
            return value and _literal(value.low)
        return converted(np.where(known, value.low, 1), dtype)

    numbers = [number(value, dtype) for value, dtype in zip(values, function.operands, strict=True)]
    found = np.asarray(computed(function, numbers), np.float64)
    return Interval(np.where(known, found, -np.inf), np.where(known, found, np.inf))


def _literal(number: Any) -> int | float:
    """A number of the program, as it was written."""
    return int(number) if float(number).is_integer() else float(number)


def cast(value: Interval, source: DType | None, result: DType | None) -> Interval:
    """The range in another element type, before rounding."""
    if result is BOOL and source is not BOOL:
        away = (value.low > 0) | (value.high < 0)
        zero = (value.low == 0) & (value.high == 0)
        return Interval(away * 1.0, 1.0 - zero)
    if result is not None and result.kind in ("int", "uint") and (source is None or source.kind == "float"):
        return Interval(np.trunc(value.low), np.trunc(value.high))
    return value


_OF_BITS = {f"bitwise_{name}": f"logical_{name}" for name in ("and", "or", "xor", "not")}


@lru_cache(maxsize=1)
def _functions() -> dict[str, Callable[..., Interval]]:
    rising = "floor ceil trunc round exp exp2 expm1 log log2 log10 log1p sqrt tanh sinh minimum maximum add"
    return {
        **{name: _rising(getattr(np, name)) for name in rising.split()},
        "asinh": _rising(np.arcsinh),
        "atan": _rising(np.arctan),
        "relu": _rising(lambda x: np.maximum(x, 0)),
        "sigmoid": _rising(lambda x: 1 / (1 + np.exp(-x))),
        "neg": lambda x: Interval(-x.high, -x.low),
        "abs": lambda x: Interval(np.maximum(np.maximum(x.low, -x.high), 0), np.maximum(x.high, -x.low)),
        "sub": lambda a, b: Interval(a.low - b.high, a.high - b.low),
        "mul": _corners(np.multiply),
        "div": _divided(np.true_divide),
        "floor_divide": _divided(np.floor_divide),
        "remainder": _remainder,
        "clamp": _clamped,
        "where": chosen,
        "ge": _compared(np.greater_equal),
        "gt": _compared(np.greater),
        "eq": _equal,
        "ne": lambda a, b: _negated(_equal(a, b)),
        "logical_and": _rising(np.minimum),
        "logical_or": _rising(np.maximum),
        "logical_not": _negated,
    }


def _rising(function: Callable[..., Any]) -> Callable[..., Interval]:
    """A function that is greater, or the same, where any operand is."""
    return lambda *values: Interval(function(*(v.low for v in values)), function(*(v.high for v in values)))


def _corners(function: Callable[..., Any]) -> Callable[[Interval, Interval], Interval]:
    """A function that rises or falls in each operand, whatever the other is."""

    def apply(a: Interval, b: Interval) -> Interval:
        found = np.broadcast_arrays(*(function(x, y) for x in a for y in b))
        return Interval(np.minimum.reduce(found), np.maximum.reduce(found))

    return apply


def _divided(function: Callable[..., Any]) -> Callable[[Interval, Interval], Interval]:
    def apply(a: Interval, b: Interval) -> Interval:
        found = _corners(function)(a, b)
        across = (b.low <= 0) & (b.high >= 0)
        return Interval(np.where(across, -np.inf, found.low), np.where(across, np.inf, found.high))

    return apply


def _remainder(a: Interval, b: Interval) -> Interval:
    """Of division by one number above zero; nothing is known of any other."""
    by_one = (b.low == b.high) & (b.low > 0)
    turn = np.floor_divide(a.low, b.low)
    same = by_one & (turn == np.floor_divide(a.high, b.low))
    low = np.where(same, a.low - turn * b.low, np.where(by_one, 0, -np.inf))
    return Interval(low, np.where(same, a.high - turn * b.low, np.where(by_one, b.low - 1, np.inf)))


def _clamped(x: Interval, low: Interval | None = None, high: Interval | None = None) -> Interval:
    x = x if low is None else _rising(np.maximum)(x, low)
    return x if high is None else _rising(np.minimum)(x, high)


def chosen(condition: Interval, yes: Interval, no: Interval) -> Interval:
    """One value where a condition holds, another where it does not."""
    true, false = condition.low > 0, condition.high <= 0
    low = np.where(true, yes.low, np.where(false, no.low, np.minimum(yes.low, no.low)))
    return Interval(low, np.where(true, yes.high, np.where(false, no.high, np.maximum(yes.high, no.high))))


def _compared(function: Callable[..., Any]) -> Callable[[Interval, Interval], Interval]:
    """`a > b` or `a >= b`."""
    return lambda a, b: Interval(function(a.low, b.high) * 1.0, function(a.high, b.low) * 1.0)


def _equal(a: Interval, b: Interval) -> Interval:
    settled = (a.low == a.high) & (b.low == b.high) & (a.low == b.low)
    return Interval(settled * 1.0, ((a.low <= b.high) & (b.low <= a.high)) * 1.0)


def _negated(x: Interval) -> Interval:
    return Interval(1 - x.high, 1 - x.low)


def extremes(array: Any, low: Any, high: Any) -> Interval:
    """The least and greatest elements between two places, both included; places below zero count from the end."""
    size = len(array)
    outside = ~((low >= 0) & (high < size))
    first = np.where(outside, 0, low).astype(np.int64)
    last = np.where(outside, size - 1, high).astype(np.int64)
    start, stop = int(first.min()), int(last.max()) + 1
    pairs = np.stack([first.reshape(-1), last.reshape(-1) + 1]) - start
    pairs, inverse = np.unique(pairs, axis=1, return_inverse=True)
    part = np.append(array[start:stop], array[stop - 1])  # an end is a place too
    ends = (function.reduceat(part, pairs.T.reshape(-1))[::2] for function in (np.minimum, np.maximum))
    return Interval(*(end[inverse.reshape(-1)].reshape(first.shape).astype(np.float64) for end in ends))


_MOST_SCORE = 1e3  # of scores before their function
_OPEN = float("inf")


class IntervalDomain(Domain[Interval]):
    """Values as intervals. concrete: evaluates whole tensors, whose least and greatest elements are taken."""

    def __init__(self, concrete: ConcreteDomain) -> None:
        self.concrete = concrete
        self.zero = Interval(np.int64(0), np.int64(0))

    def unknown(self, dtype: DType | None) -> Interval:
        return Interval(0.0, 1.0) if dtype is not None and dtype.kind == "bool" else Interval(-_OPEN, _OPEN)

    def score(self) -> Interval:
        return Interval(-_MOST_SCORE, _MOST_SCORE)

    def is_unknown(self, value: Interval) -> bool:
        return False

    def literal(self, number: Any) -> Interval:
        return self.unknown(None) if isinstance(number, Expr) else Interval(float(number), float(number))

    def as_index(self, value: Interval) -> Any:
        low, high = np.asarray(value.low), np.asarray(value.high)
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            return None
        return Interval(low.astype(np.int64), high.astype(np.int64))

    def from_index(self, index: Any, dtype: DType) -> Interval:
        return fitted(index, dtype)

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
        if 0 in array.shape:
            return self.unknown(None)
        outside: Any = np.False_
        left: list[Interval] = []
        for index, size in zip(at, array.shape, strict=True):
            span = Interval(np.int64(0), np.int64(size - 1)) if index is None else index
            if np.ndim(span.low) == 0 and span.low == span.high and 0 <= span.low < size:
                array = np.take(array, int(span.low), len(left))
                continue
            outside = outside | (span.low < 0) | (span.high >= size)
            left.append(Interval(np.clip(span.low, 0, size - 1), np.clip(span.high, 0, size - 1)))
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
