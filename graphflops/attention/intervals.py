"""Intervals: the least and greatest values that something can have, and functions of intervals.

No value is outside of its interval. Booleans are 0 and 1; an index is an interval of places. A function without an interval
extension is computed where every operand is one number; elsewhere its result may be any number.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from msgspec.structs import replace

from graphflops.attention.elementwise import Function, array_type, computed, converted, in_numpy, inner_type
from graphflops.base.lazy import numpy as np
from graphflops.tensor import BOOL, DType

_EXACT = 2.0**53  # from here on, float64 does not represent every integer


class Interval(NamedTuple):
    """The least and greatest values that something can have, or the first and last index of an axis, as arrays.

    If values are known numbers, both ends are one array in its own element type; otherwise the ends are float64.
    """

    low: Any
    high: Any

    def __add__(self, other: Any) -> Interval:
        return rising(operator.add)(self, other if isinstance(other, Interval) else point(other))

    def __mul__(self, factor: Any) -> Interval:
        low, high = rising(lambda end: end * factor)(self)
        return Interval(low, high) if factor >= 0 else Interval(high, low)

    @property
    def is_exact(self) -> bool:
        """Whether its values are known numbers."""
        return self.low is self.high

    @property
    def is_known(self) -> bool:
        """Whether each of its values can only be one number."""
        return self.is_exact or bool(np.all(self.low == self.high))


def point(numbers: Any) -> Interval:
    """Known numbers."""
    return Interval(numbers, numbers)


def rising(function: Callable[..., Any]) -> Callable[..., Interval]:
    """A function that does not fall in any operand, applied to intervals; None for an omitted operand."""

    def apply(*values: Interval | None) -> Interval:
        low = function(*(value and value.low for value in values))
        is_exact = all(value is None or value.is_exact for value in values)
        return Interval(low, low if is_exact else function(*(value and value.high for value in values)))

    return apply


def extended(function: Function, values: Sequence[Interval | None]) -> Interval:
    """A function of intervals."""
    if function.result is BOOL and function.name in _OF_BITS:
        function = replace(function, name=_OF_BITS[function.name])
    kind = function.result and function.result.kind
    is_rough = function.name == "remainder" and kind == "float"  # inexact for fractions
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
    """The range as the element type represents it: rounded; open if numbers may have been too large for it."""
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
    """Operands as float64, rounded to the floating type that they are computed in, if it is one."""
    pairs = zip(values, function.operands, strict=True)
    literals = [_literal(x.low) for x, dtype in pairs if dtype is None and x is not None]
    inner = inner_type(function, literals)

    def rounded(end: Any) -> Any:
        is_float = inner is not None and inner.kind == "float"
        return np.asarray(converted(end, inner) if inner and is_float else end, np.float64)

    return [x and Interval(*map(rounded, x)) for x in values]


def _settled(function: Function, values: Sequence[Interval | None]) -> Interval:
    """Computed where every operand is one number; unknown elsewhere."""
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
    growing = (
        "floor ceil trunc round exp exp2 expm1 log log2 log10 log1p sqrt tanh sinh asinh atan relu sigmoid"
    )
    return {
        **{name: rising(in_numpy(name)) for name in (*growing.split(), "minimum", "maximum", "add", "clamp")},
        "neg": lambda x: Interval(-x.high, -x.low),
        "abs": lambda x: Interval(np.maximum(np.maximum(x.low, -x.high), 0), np.maximum(x.high, -x.low)),
        "sub": lambda a, b: Interval(a.low - b.high, a.high - b.low),
        "mul": _corners(np.multiply),
        "div": _divided(np.true_divide),
        "floor_divide": _divided(np.floor_divide),
        "remainder": _remainder,
        "where": chosen,
        "ge": _compared(np.greater_equal),
        "gt": _compared(np.greater),
        "eq": _equal,
        "ne": lambda a, b: _negated(_equal(a, b)),
        "logical_and": rising(np.minimum),
        "logical_or": rising(np.maximum),
        "logical_not": _negated,
    }


def _corners(function: Callable[..., Any]) -> Callable[[Interval, Interval], Interval]:
    """A function that is monotonic in each operand, applied to intervals."""

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
    """The remainder of division by one positive number; unknown for other divisors."""
    by_one = (b.low == b.high) & (b.low > 0)
    turn = np.floor_divide(a.low, b.low)
    same = by_one & (turn == np.floor_divide(a.high, b.low))
    low = np.where(same, a.low - turn * b.low, np.where(by_one, 0, -np.inf))
    return Interval(low, np.where(same, a.high - turn * b.low, np.where(by_one, b.low - 1, np.inf)))


def chosen(condition: Interval, yes: Interval, no: Interval) -> Interval:
    """One value where a condition holds, another where it does not."""
    if condition.is_exact and yes.is_exact and no.is_exact:
        return point(np.where(condition.low, yes.low, no.low))
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
