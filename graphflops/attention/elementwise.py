"""Elementwise functions by canonical name, in numpy: the one table that masks and score functions are computed with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from msgspec import field
from msgspec.structs import replace

from graphflops.base.lazy import numpy as np
from graphflops.base.record import Record
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
