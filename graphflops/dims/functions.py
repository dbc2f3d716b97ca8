"""The named functions and comparisons of atoms, and their values on numbers."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

MAX_POWER_BITS = 4_096  # bits of a number made by a power or a shift
_EXACT_FLOAT = 1 << 52  # below it a float is never rounded up to the next integer by `math.sqrt`
_ROOT_BITS = 32  # binary places of the square root of a larger number

# Bare words that `parse_dim` reads as something other than a size's name.
RESERVED_WORDS = frozenset({"true", "false", "oo", "int_oo", "zoo", "nan"})


def _truediv(a: Any, b: Any) -> Any:
    if isinstance(a, float) or isinstance(b, float):
        return a / b
    from fractions import Fraction

    return Fraction(a) / Fraction(b)


def _power(a: Any, b: Any) -> Any:
    if not isinstance(a, int) or not isinstance(b, int):
        return float(a) ** float(b)
    if b < 0 or (abs(a) > 1 and a.bit_length() * b > MAX_POWER_BITS):
        raise OverflowError
    return a**b


def _shift_left(a: Any, b: Any) -> Any:
    if b > MAX_POWER_BITS:
        raise OverflowError
    return a << b


def _square_root(a: Any) -> Any:
    """The root; exact where it is an integer, and always with the right integer part for an integer."""
    if not isinstance(a, int):
        return math.sqrt(a)
    root = math.isqrt(a)
    if root * root == a:
        return root
    if a < _EXACT_FLOAT:
        return math.sqrt(a)
    from fractions import Fraction

    places = math.isqrt(a << 2 * _ROOT_BITS)
    return Fraction(2 * places + 1, 2 << _ROOT_BITS)  # half a place more, and so never an integer


def _log2(a: Any) -> Any:
    if isinstance(a, int) and a > 0 and a & (a - 1) == 0:
        return a.bit_length() - 1
    return math.log2(a)


# Functions whose value need not be an integer: atoms of these block every simplification that relies on
# integrality. The others in FUNCTIONS give integers for integers.
REAL_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sqrt": _square_root,
    "truediv": _truediv,
    "double": operator.truediv,  # the floating number nearest to a fraction, as computers multiply sizes by it
    "log2": _log2,
    **{
        name: getattr(math, name)
        for name in "exp log sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh".split()  # noqa: SIM905
    },
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **REAL_FUNCTIONS,
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor,
    "lshift": _shift_left,
    "rshift": operator.rshift,
    "pow": _power,
    "round": round,
}
# Those that are never negative where no argument is.
NEVER_NEGATIVE = frozenset(
    {"bitwise_and", "bitwise_or", "bitwise_xor", "lshift", "rshift", "pow", "truediv", "double", "round"}
)
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def function_arity(name: str) -> int:
    """How many arguments a function in FUNCTIONS takes."""
    return 1 if name == "round" or (name in REAL_FUNCTIONS and name not in ("truediv", "double")) else 2


def known_integer(name: str, args: Sequence[int]) -> int | None:
    """The value of a function in FUNCTIONS where it is an integer for certain.

    A float counts only at 0 and 1: everywhere else the transcendental functions have no integer values, and a
    float that looks like one was rounded, as tanh(50) is to 1.0.
    """
    try:
        value = FUNCTIONS[name](*args)
    except (ArithmeticError, ValueError):  # no value there, or one too large
        return None
    if isinstance(value, float) and args[0] not in (0, 1):
        return None
    return int(value) if value == int(value) else None
