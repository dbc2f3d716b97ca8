"""The pointwise operators of score and mask functions, of ranges: what is known of a value throughout a rectangle of pairs.

No value is outside of its range. Ranges are of float64, truths as 0 and 1. Where an operator has no function here, of one
number each it is computed, of anything else it may be any number.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from graphflops.attention.pointwise import (
    SAME,
    array_type,
    computed,
    converted,
    inner_type,
    is_known,
    options,
    words,
)
from graphflops.tensor import BOOL, DType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from graphflops.graph import Node

_EXACT = 2.0**53  # from here on float64 does not hold every whole number


class Range(NamedTuple):
    """The least and the greatest that values can be, as arrays."""

    low: Any
    high: Any


def ranged(
    node: Node,
    word: str,
    values: Sequence[Range | None],
    dtypes: Sequence[DType | None],
    result: DType | None,
) -> Range:
    """A call on ranges. dtypes: of the operands, None for a number of the program."""
    import numpy as np

    further = options(node, word)
    if word == "div" and further == {"rounding_mode": "floor"}:
        word, further = "floor_divide", {}
    if word.startswith("bitwise_") and result is BOOL:
        word = word.replace("bitwise", "logical")
    with np.errstate(all="ignore"):
        if word in SAME and values[0] is not None:
            return fitted(cast(values[0], dtypes[0], result), result)
        if word.startswith("logical_"):
            values = [x and cast(x, dtype, BOOL) for x, dtype in zip(values, dtypes, strict=True)]
            dtypes = [BOOL] * len(values)
        given = _rounded(word, values, dtypes, result)
        function = None if further or _is_rough(word, result) else _functions().get(word)
        found = _settled(node, word, given, dtypes, result) if function is None else function(*given)
        return fitted(found, result)


def fitted(found: Range, dtype: DType | None) -> Range:
    """The range as the element type holds it: rounded; open where numbers may have been too large for it."""
    import numpy as np

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
    return Range(np.where(unknown, least, low), np.where(unknown, most, high))


def _is_rough(word: str, result: DType | None) -> bool:
    """Whether the function here is not exact for numbers of that type: a remainder of fractions."""
    return word == "remainder" and result is not None and result.kind == "float"


def _rounded(
    word: str, values: Sequence[Range | None], dtypes: Sequence[DType | None], result: DType | None
) -> Sequence[Range | None]:
    """Operands in the floating type that they are computed in; whole numbers stay as they are."""
    import numpy as np

    literals = [
        _literal(x.low) for x, dtype in zip(values, dtypes, strict=True) if dtype is None and x is not None
    ]
    inner = inner_type(word, literals, dtypes, result)
    if inner is None or inner.kind != "float":
        return values
    return [x and Range(*(np.asarray(converted(end, inner), np.float64) for end in x)) for x in values]


def _settled(
    node: Node,
    word: str,
    values: Sequence[Range | None],
    dtypes: Sequence[DType | None],
    result: DType | None,
) -> Range:
    """Computed where every operand is one number, open elsewhere."""
    import numpy as np

    if not is_known(word):
        return Range(np.float64(-np.inf), np.float64(np.inf))
    known = np.True_
    for value in values:
        known = known if value is None else known & (value.low == value.high)

    def number(value: Range | None, dtype: DType | None) -> Any:
        if value is None or dtype is None:
            return value and _literal(value.low)
        return converted(np.where(known, value.low, 1), dtype)

    numbers = [number(value, dtype) for value, dtype in zip(values, dtypes, strict=True)]
    found = np.asarray(computed(node, word, numbers, dtypes, result), np.float64)
    return Range(np.where(known, found, -np.inf), np.where(known, found, np.inf))


def _literal(number: Any) -> int | float:
    """A number of the program, as it was written."""
    return int(number) if float(number).is_integer() else float(number)


def cast(value: Range, source: DType | None, result: DType | None) -> Range:
    """The range in another element type, before rounding."""
    import numpy as np

    if result is BOOL and source is not BOOL:
        away = (value.low > 0) | (value.high < 0)
        zero = (value.low == 0) & (value.high == 0)
        return Range(away * 1.0, 1.0 - zero)
    if result is not None and result.kind in ("int", "uint") and (source is None or source.kind == "float"):
        return Range(np.trunc(value.low), np.trunc(value.high))
    return value


@lru_cache(maxsize=1)
def _functions() -> dict[str, Callable[..., Range]]:
    import numpy as np

    alike = "floor ceil trunc round exp exp2 expm1 log log2 log10 log1p sqrt tanh sinh minimum maximum add"
    not_below, above = _compared(np.greater_equal), _compared(np.greater)
    return {
        **{name: _rising(getattr(np, name)) for name in words(alike)},
        "asinh": _rising(np.arcsinh),
        "atan": _rising(np.arctan),
        "relu": _rising(lambda x: np.maximum(x, 0)),
        "sigmoid": _rising(lambda x: 1 / (1 + np.exp(-x))),
        "neg": lambda x: Range(-x.high, -x.low),
        "abs": lambda x: Range(np.maximum(np.maximum(x.low, -x.high), 0), np.maximum(x.high, -x.low)),
        "sub": lambda a, b: Range(a.low - b.high, a.high - b.low),
        "rsub": lambda a, b: Range(b.low - a.high, b.high - a.low),
        "mul": _corners(np.multiply),
        "div": _divided(np.true_divide),
        "floor_divide": _divided(np.floor_divide),
        "remainder": _remainder,
        "clamp": _clamped,
        "clamp_min": _clamped,
        "clamp_max": lambda x, high: _clamped(x, None, high),
        "where": chosen,
        "masked_fill": lambda x, mask, value: chosen(mask, value, x),
        "ge": not_below,
        "gt": above,
        "le": lambda a, b: not_below(b, a),
        "lt": lambda a, b: above(b, a),
        "eq": _equal,
        "ne": lambda a, b: _negated(_equal(a, b)),
        "logical_and": _rising(np.minimum),
        "logical_or": _rising(np.maximum),
        "logical_not": _negated,
    }


def _rising(function: Callable[..., Any]) -> Callable[..., Range]:
    """A function that is greater, or the same, where any operand is."""
    return lambda *values: Range(function(*(v.low for v in values)), function(*(v.high for v in values)))


def _corners(function: Callable[..., Any]) -> Callable[[Range, Range], Range]:
    """A function that rises or falls in each operand, whatever the other is."""

    def apply(a: Range, b: Range) -> Range:
        import numpy as np

        found = np.broadcast_arrays(*(function(x, y) for x in a for y in b))
        return Range(np.minimum.reduce(found), np.maximum.reduce(found))

    return apply


def _divided(function: Callable[..., Any]) -> Callable[[Range, Range], Range]:
    def apply(a: Range, b: Range) -> Range:
        import numpy as np

        found = _corners(function)(a, b)
        across = (b.low <= 0) & (b.high >= 0)
        return Range(np.where(across, -np.inf, found.low), np.where(across, np.inf, found.high))

    return apply


def _remainder(a: Range, b: Range) -> Range:
    """Of division by one number above zero; nothing is known of any other."""
    import numpy as np

    by_one = (b.low == b.high) & (b.low > 0)
    turn = np.floor_divide(a.low, b.low)
    same = by_one & (turn == np.floor_divide(a.high, b.low))
    low = np.where(same, a.low - turn * b.low, np.where(by_one, 0, -np.inf))
    return Range(low, np.where(same, a.high - turn * b.low, np.where(by_one, b.low - 1, np.inf)))


def _clamped(x: Range, low: Range | None = None, high: Range | None = None) -> Range:
    import numpy as np

    x = x if low is None else _rising(np.maximum)(x, low)
    return x if high is None else _rising(np.minimum)(x, high)


def chosen(condition: Range, yes: Range, no: Range) -> Range:
    """One value where a condition holds, another where it does not."""
    import numpy as np

    true, false = condition.low > 0, condition.high <= 0
    low = np.where(true, yes.low, np.where(false, no.low, np.minimum(yes.low, no.low)))
    return Range(low, np.where(true, yes.high, np.where(false, no.high, np.maximum(yes.high, no.high))))


def _compared(function: Callable[..., Any]) -> Callable[[Range, Range], Range]:
    """`a > b` or `a >= b`."""
    return lambda a, b: Range(function(a.low, b.high) * 1.0, function(a.high, b.low) * 1.0)


def _equal(a: Range, b: Range) -> Range:
    settled = (a.low == a.high) & (b.low == b.high) & (a.low == b.low)
    return Range(settled * 1.0, ((a.low <= b.high) & (b.low <= a.high)) * 1.0)


def _negated(x: Range) -> Range:
    return Range(1 - x.high, 1 - x.low)


def extremes(array: Any, low: Any, high: Any) -> Range:
    """The least and greatest elements between two places, both included; places below zero count from the end."""
    import numpy as np

    size = len(array)
    outside = ~((low >= 0) & (high < size))
    first = np.where(outside, 0, low).astype(np.int64)
    last = np.where(outside, size - 1, high).astype(np.int64)
    start, stop = int(first.min()), int(last.max()) + 1
    pairs = np.stack([first.reshape(-1), last.reshape(-1) + 1]) - start
    pairs, inverse = np.unique(pairs, axis=1, return_inverse=True)
    part = np.append(array[start:stop], array[stop - 1])  # an end is a place too
    ends = (function.reduceat(part, pairs.T.reshape(-1))[::2] for function in (np.minimum, np.maximum))
    return Range(*(end[inverse.reshape(-1)].reshape(first.shape).astype(np.float64) for end in ends))
