"""The pointwise operators of score and mask functions, in numpy."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from graphflops.errors import ModelError, shown
from graphflops.tensor import BFLOAT16, BOOL, FLOAT32, DType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from graphflops.graph import Node

    Compute = Callable[..., Any]


def words(text: str) -> list[str]:
    """Names of operators."""
    return text.split()


SAME = frozenset(
    words(
        "to _to_copy convert_element_type clone detach alias lift_fresh_copy contiguous type_as expand_as bool int long half"
        " float"
    )
)
_BY_OPERANDS = frozenset(  # computed in the type that the operands have together, not in the result's
    words(
        "eq ne lt le gt ge isnan isinf isfinite logical_and logical_or logical_xor logical_not sign sgn signbit"
    )
)
_CONDITIONS = {"where": 0, "masked_fill": 1}  # which operand is a truth whatever the others are
_OPTIONS = {"add": "alpha", "sub": "alpha", "rsub": "alpha", "div": "rounding_mode"}
_FILLED = {"full": 1, "full_like": 1, "new_full": 2, "scalar_tensor": 0, "fill": 1}
_ONES, _ZEROS = ("ones", "ones_like", "new_ones"), ("zeros", "zeros_like", "new_zeros")
_KINDS = ("bool", "uint", "int", "float", "complex")
_SPELLINGS = {
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "invert": "bitwise_not",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
    "not": "logical_not",
    "negative": "neg",
    "absolute": "abs",
    "truediv": "div",
    "true_divide": "div",
    "divide": "div",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "multiply": "mul",
    "subtract": "sub",
    "greater": "gt",
    "greater_equal": "ge",
    "less": "lt",
    "less_equal": "le",
    "not_equal": "ne",
    "clip": "clamp",
    "fix": "trunc",
    "arccos": "acos",
    "arcsin": "asin",
    "arctan": "atan",
}


def word_of(op: str) -> str:
    """The operator's own name: `add` of `aten.add.Tensor`, `bitwise_and` of `aten.__and__.Tensor` and `_operator.and_`."""
    parts = op.split(".")
    if parts[0] not in ("aten", "prims", "_operator") or len(parts) < 2:
        return ""
    word = parts[1].strip("_") if parts[1].startswith("__") or parts[0] == "_operator" else parts[1]
    return _SPELLINGS.get(word, word)


def number_filled(node: Node, word: str) -> float | None:
    """The number that a call makes a tensor of; None where it is none that does."""
    if word in _ONES or word in _ZEROS:
        return int(word in _ONES)
    place = _FILLED.get(word)
    if place is None:
        return None
    value = node.args[place] if place < len(node.args) else dict(node.kwargs).get("fill_value")
    return value if isinstance(value, (bool, int, float)) else None


def array_type(dtype: DType) -> Any:
    """The type that numpy has for an element type; bfloat16 is held in float32. Raises ModelError where it has none."""
    import numpy as np

    if dtype is BFLOAT16:
        return np.dtype(np.float32)
    try:
        return np.dtype(dtype.name)
    except TypeError:
        raise ModelError(f"numbers of type {dtype.name} are not computed with") from None


def converted(value: Any, dtype: DType) -> Any:
    """An array in an element type."""
    import numpy as np

    kind = array_type(dtype)
    if not isinstance(value, np.ndarray):
        value = np.asarray(value)
    with np.errstate(all="ignore"):
        value = value.astype(kind, copy=False)
    return _to_bfloat16(value) if dtype is BFLOAT16 else value


def _to_bfloat16(value: Any) -> Any:
    """Single precision rounded to what bfloat16 holds, to the even one of two that are as near."""
    import numpy as np

    bits = value.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isfinite(value), rounded.view(np.float32), value)


def together(dtypes: Sequence[DType | None], literals: Sequence[Any]) -> DType | None:
    """The type that operands are compared in, None where they are numbers of the program and not tensors."""
    known = [dtype for dtype in dtypes if dtype is not None and dtype.kind in _KINDS]
    if not known:
        return None
    best = max(known, key=lambda dtype: (_KINDS.index(dtype.kind), dtype.bits))
    if best.kind in ("bool", "uint", "int") and any(type(x) is float for x in literals):
        return FLOAT32
    return None if best is BOOL and any(type(x) is int for x in literals) else best


def inner_type(
    word: str, literals: Sequence[Any], dtypes: Sequence[DType | None], result: DType | None
) -> DType | None:
    """The type that a call computes in; None where its operands stay as they are."""
    return together(dtypes, literals) if word in _BY_OPERANDS else result


def computed(
    node: Node, word: str, values: Sequence[Any], dtypes: Sequence[DType | None], result: DType | None
) -> Any:
    """A call on arrays and numbers, None for an operand left out. dtypes: of the operands, None for a number of the program.

    Raises ModelError where the operator has no function here.
    """
    import numpy as np

    if word in SAME:
        return values[0] if result is None else converted(values[0], result)
    if not is_known(word):
        raise ModelError(f"{shown(node.op)} is not followed")
    literals = [value for value, dtype in zip(values, dtypes, strict=True) if dtype is None]
    inner = inner_type(word, literals, dtypes, result)
    condition = _CONDITIONS.get(word)
    if inner is not None:
        values = [
            None if value is None else converted(value, BOOL if place == condition else inner)
            for place, value in enumerate(values)
        ]
    with np.errstate(all="ignore"):
        found = _functions()[word](*values, **options(node, word))
    return found if result is None else converted(found, result)


def is_known(word: str) -> bool:
    """Whether the operator has a function here."""
    return word in SAME or word in _functions()


def options(node: Node, word: str) -> dict[str, Any]:
    """Keywords of a call that change what it computes."""
    named: Mapping[str, Any] = dict(node.kwargs)
    name = _OPTIONS.get(word, "")
    return {name: named[name]} if name in named else {}


@lru_cache(maxsize=1)
def _functions() -> dict[str, Compute]:
    import numpy as np

    alike = "floor ceil trunc round exp exp2 expm1 log log2 log10 log1p sqrt sin cos tan sinh cosh tanh minimum maximum"
    alike += " hypot copysign fmod isnan isinf isfinite signbit square reciprocal sign fmax fmin remainder floor_divide"
    alike += " where logical_and logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor"
    names = {name: name for name in words(alike)}
    names |= {name: f"arc{name[1:]}" for name in words("asin acos atan asinh acosh atanh atan2")}
    names |= {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater"}
    names |= {
        "ge": "greater_equal",
        "mul": "multiply",
        "pow": "power",
        "neg": "negative",
        "abs": "abs",
        "sgn": "sign",
    }
    names |= {
        "bitwise_not": "invert",
        "bitwise_left_shift": "left_shift",
        "bitwise_right_shift": "right_shift",
    }
    return {
        **{name: getattr(np, own) for name, own in names.items()},
        "add": lambda a, b, alpha=1: a + alpha * b,
        "sub": lambda a, b, alpha=1: a - alpha * b,
        "rsub": lambda a, b, alpha=1: b - alpha * a,
        "div": _divided,
        "rsqrt": lambda x: 1 / np.sqrt(x),
        "sigmoid": _sigmoid,
        "silu": lambda x: x * _sigmoid(x),
        "relu": lambda x: np.maximum(x, 0),
        "softplus": lambda x: np.logaddexp(x, 0),
        "erf": np.vectorize(math.erf, otypes=[float]),
        "clamp": _clamped,
        "clamp_min": _clamped,
        "clamp_max": lambda x, high: np.minimum(x, high),
        "masked_fill": lambda x, mask, value: np.where(mask, value, x),
    }


def _divided(a: Any, b: Any, rounding_mode: str | None = None) -> Any:
    import numpy as np

    if rounding_mode == "floor":
        return np.floor_divide(a, b)
    if rounding_mode != "trunc":
        return np.true_divide(a, b)
    if a.dtype.kind == "f":
        return np.trunc(np.true_divide(a, b))
    whole = np.floor_divide(np.abs(a), np.abs(b))
    return np.where((a < 0) ^ (b < 0), -whole, whole)


def _sigmoid(x: Any) -> Any:
    import numpy as np

    return 1 / (1 + np.exp(-x))


def _clamped(x: Any, low: Any = None, high: Any = None) -> Any:
    import numpy as np

    x = x if low is None else np.maximum(x, low)
    return x if high is None else np.minimum(x, high)
