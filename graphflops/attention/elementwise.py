"""Elementwise functions by canonical name, in numpy: of numbers, and of intervals, the least and greatest of some numbers.

No value is outside of its interval. Booleans are 0 and 1; an index is an interval of places. A function without an interval
extension is computed where every operand is one number; elsewhere its result may be any number.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from graphflops.base.lazy import numpy as np
from graphflops.base.record import Record, field, replace
from graphflops.errors import ModelError
from graphflops.tensor import BFLOAT16, BOOL, FLOAT32, DType

_KINDS = ("bool", "uint", "int", "float", "complex")
# Computed in the common type of the operands, not in the result's.
_BY_OPERANDS = frozenset(
    {
        *("eq", "ne", "gt", "ge", "isnan", "isinf", "isfinite", "sign", "sgn", "signbit"),
        *("logical_and", "logical_or", "logical_xor", "logical_not"),
    }
)  # fmt: skip
# Functions that are another one: that function's name, and where each of its operands comes from; None is omitted.
_PRIMITIVES: dict[str, tuple[str, tuple[int | None, ...]]] = {
    "rsub": ("sub", (1, 0)), "lt": ("gt", (1, 0)), "le": ("ge", (1, 0)), "clamp_min": ("clamp", (0, 1)),
    "clamp_max": ("clamp", (0, None, 1)), "masked_fill": ("where", (1, 2, 0)),
}  # fmt: skip
OPTIONS = frozenset({"alpha", "rounding_mode", "fmod", "approximate", "direction"})


class Function(Record, frozen=True, dict=True):
    """An elementwise function."""

    name: str  # canonical
    operands: tuple[DType | None, ...]  # element type of each operand; None for a number of the program
    result: DType | None  # element type
    options: Mapping[str, Any] = field(default_factory=dict)  # such as `alpha` or `rounding_mode`


def primitive(function: Function, values: Sequence[Any]) -> tuple[Function, list[Any]]:
    """The same function of the same operands, under the one name that the domains know."""
    if function.name == "div" and function.options == {"rounding_mode": "floor"}:
        return replace(function, name="floor_divide", options={}), list(values)
    if function.name not in _PRIMITIVES:
        return function, list(values)
    name, order = _PRIMITIVES[function.name]
    operands, values = (
        [None if place is None else given[place] for place in order] for given in (function.operands, values)
    )
    return replace(function, name=name, operands=tuple(operands)), values


def array_type(dtype: DType) -> Any:
    """The numpy type for an element type; float32 for bfloat16. Raises ModelError if there is none."""
    if dtype is BFLOAT16:
        return np.dtype(np.float32)
    try:
        return np.dtype(dtype.name)
    except TypeError:
        raise ModelError(f"numbers of type {dtype.name} are not computed with") from None


def converted(value: Any, dtype: DType) -> Any:
    """An array converted to an element type."""
    kind = array_type(dtype)
    if not isinstance(value, np.ndarray):
        value = np.asarray(value)
    with np.errstate(all="ignore"):
        value = value.astype(kind, copy=False)
    if dtype is not BFLOAT16:
        return value
    bits = value.view(np.uint32)  # single precision, rounded to bfloat16, ties to even
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isfinite(value), rounded.view(np.float32), value)


def inner_type(function: Function, literals: Sequence[Any]) -> DType | None:
    """The type that a function computes in; None if its operands, which are numbers of the program, are not converted."""
    if function.name not in _BY_OPERANDS:
        return function.result
    known = [dtype for dtype in function.operands if dtype is not None and dtype.kind in _KINDS]
    if not known:
        return None
    best = max(known, key=lambda dtype: (_KINDS.index(dtype.kind), dtype.bits))
    if best.kind in ("bool", "uint", "int") and any(type(x) is float for x in literals):
        return FLOAT32
    return None if best is BOOL and any(type(x) is int for x in literals) else best


def computed(function: Function, values: Sequence[Any]) -> Any:
    """A function in the table, applied to arrays and numbers; None for an omitted operand."""
    literals = [value for value, dtype in zip(values, function.operands, strict=True) if dtype is None]
    inner = inner_type(function, literals)
    condition = 0 if function.name == "where" else None
    if inner is not None and function.name != "cast":
        values = [
            None if value is None else converted(value, BOOL if place == condition else inner)
            for place, value in enumerate(values)
        ]
    with np.errstate(all="ignore"):
        found = in_numpy(function.name)(*values, **function.options)
    return np.asarray(found) if function.result is None else converted(found, function.result)


def is_known(name: str) -> bool:
    """Whether a function is in the table."""
    return name in _OF_NUMPY or name in _OWN or name in _PRIMITIVES


@lru_cache(maxsize=256)
def in_numpy(name: str) -> Callable[..., Any]:
    """The function of that name in the table."""
    own = _OWN.get(name)
    found: Callable[..., Any] = getattr(np, _OF_NUMPY[name]) if own is None else own
    return np.vectorize(found, otypes=[float]) if found is math.erf else found


def _divided(a: Any, b: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode != "trunc":
        return np.true_divide(a, b)
    if a.dtype.kind == "f":
        return np.trunc(np.true_divide(a, b))
    whole = np.floor_divide(np.abs(a), np.abs(b))
    return np.where((a < 0) ^ (b < 0), -whole, whole)


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _clamped(x: Any, low: Any = None, high: Any = None) -> Any:
    x = x if low is None else np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


_SAME = (
    "floor ceil trunc exp exp2 expm1 log log2 log10 log1p sqrt sin cos tan sinh cosh tanh minimum maximum round hypot"
    " copysign fmod isnan isinf isfinite isposinf isneginf signbit square reciprocal sign fmax fmin floor_divide where"
    " heaviside logical_and logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor"
)
_OF_NUMPY = {
    **{name: name for name in _SAME.split()},
    **{name: f"arc{name[1:]}" for name in ["asin", "acos", "atan", "asinh", "acosh", "atanh", "atan2"]},
    "eq": "equal", "ne": "not_equal", "gt": "greater", "ge": "greater_equal", "mul": "multiply",
    "pow": "power", "neg": "negative", "abs": "abs", "sgn": "sign", "bitwise_not": "invert",
    "bitwise_left_shift": "left_shift", "bitwise_right_shift": "right_shift",
}  # fmt: skip
_OWN: dict[str, Callable[..., Any]] = {
    "add": lambda a, b, alpha=1: a + alpha * b,
    "sub": lambda a, b, alpha=1: a - alpha * b,
    "div": _divided,
    "remainder": lambda a, b, fmod=0: np.fmod(a, b) if fmod else np.remainder(a, b),
    "rsqrt": lambda x: 1 / x**0.5,
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "relu": lambda x: _clamped(x, 0),
    "softplus": lambda x: np.logaddexp(x, 0),
    "erf": math.erf,
    "clamp": _clamped,
    "lerp": lambda a, b, weight: a + weight * (b - a),
    "cast": lambda x: x,
}


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
        "div": _quotient(np.true_divide),
        "floor_divide": _quotient(np.floor_divide),
        "remainder": _remainder,
        "where": chosen,
        "ge": _corners(np.greater_equal),
        "gt": _corners(np.greater),
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


def _quotient(function: Callable[..., Any]) -> Callable[[Interval, Interval], Interval]:
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


def _equal(a: Interval, b: Interval) -> Interval:
    settled = (a.low == a.high) & (b.low == b.high) & (a.low == b.low)
    return Interval(settled * 1.0, ((a.low <= b.high) & (b.low <= a.high)) * 1.0)


def _negated(x: Interval) -> Interval:
    return Interval(1 - x.high, 1 - x.low)
