"""Operations whose formula depends on a sign: division towards zero, bounds that count from the end, clamping.

A size of an input is taken to be at least 1 here: a tensor without elements costs nothing, and the last row of `N` rows is
then one row, not `min(1, N)` rows. A size that only data can tell may be 0. Where a sign stays open, the formula is a choice
between both cases.
"""

from __future__ import annotations

from functools import lru_cache

from graphflops.cost import is_data_dependent
from graphflops.dims import Dim, Expr, compare, dim_max, dim_min, floor_div, mod, where

_LARGEST = (2**31 - 1, 2**63 - 1)
_BEYOND = 2**31 - 1  # past any length; exporters write the limits of int32 and int64


@lru_cache(maxsize=16_384)
def is_at_least(a: Dim, b: Dim) -> bool:
    """Whether `a >= b` is provable where the sizes of inputs are at least 1."""
    difference = a - b
    if isinstance(difference, int):
        return difference >= 0
    named = [name for name in difference.symbols if not is_data_dependent(name)]
    low, _ = difference.bounds(dict.fromkeys(named, (1, None)))
    return low is not None and low >= 0


def if_negative(number: Dim, then: Dim, otherwise: Dim) -> Dim:
    """The first choice where the number is below 0, else the second; both where its sign is open."""
    if is_at_least(number, 0):
        return otherwise
    return then if is_at_least(-1, number) else where(compare("<", number, 0), then, otherwise)


def larger(a: Dim, b: Dim) -> Dim:
    """The larger of two sizes."""
    if is_at_least(a, b):
        return a
    return b if is_at_least(b, a) else dim_max(a, b)


def smaller(a: Dim, b: Dim) -> Dim:
    """The smaller of two sizes."""
    if is_at_least(a, b):
        return b
    return a if is_at_least(b, a) else dim_min(a, b)


def divided(a: Dim, b: Dim) -> Dim:
    """The integer quotient, rounded towards zero."""
    if is_at_least(b, 0):  # and no division is by 0
        return if_negative(a, -floor_div(-a, b), floor_div(a, b))
    if is_at_least(0, b):
        return divided(-a, -b)
    return if_negative(a * b, -floor_div(-a, b), floor_div(a, b))


def remainder_of_dividend(a: Dim, b: Dim) -> Dim:
    """What a division rounded towards zero leaves: it has the dividend's sign, and the divisor's sign does not matter."""
    divisor = if_negative(b, -b, b)
    return if_negative(a, -mod(-a, divisor), mod(a, divisor))


def kept_by_slice(length: Dim, start: Dim, end: Dim, step: int) -> Dim:
    """How many positions of an axis a slice keeps: negative bounds count from its end, and both are clamped to it.

    A computed end is taken to lie within an axis of fixed length: it is a table of positions, made long enough. A slice that
    steps backwards to the largest int32 or int64 goes to the front, as onnxruntime runs it.
    """
    if (
        isinstance(length, int)
        and isinstance(end, Expr)
        and step > 0
        and is_at_least(start, 0)
        and is_at_least(end, start)
    ):
        return -floor_div(start - end, step)
    if step > 0:
        last = clamped(end, length, 0, length)
        behind = _behind(start, length)
        span = behind if last is length or last == length else last - (length - behind)
    else:
        last = -1 if end in _LARGEST else clamped(end, length, -1, length - 1)
        span = clamped(start, length, 0, length - 1) - last
    kept = larger(-floor_div(-span, abs(step)), 0)
    return kept if step > 0 else where(_is_positive(length), kept, 0)


def _is_positive(length: Dim) -> Dim:
    return 1 if is_at_least(length, 1) else compare(">", length, 0)


def _behind(start: Dim, length: Dim) -> Dim:
    """How many positions lie at or behind the start of a slice."""
    if isinstance(start, int) and abs(start) >= _BEYOND:
        return length if start < 0 else 0
    counted = if_negative(start, -start, length - start)
    return larger(smaller(counted, length), 0)


def clamped(bound: Dim, length: Dim, lowest: Dim, highest: Dim) -> Dim:
    """A slice's bound counted from the front and brought into a range."""
    if isinstance(bound, int) and abs(bound) >= _BEYOND:
        return highest if bound > 0 else lowest
    return larger(smaller(if_negative(bound, bound + length, bound), highest), lowest)


def start_of_slice(length: Dim, start: Dim, step: int) -> Dim:
    """The first position that a slice keeps, if it keeps one."""
    return clamped(start, length, 0, length if step > 0 else length - 1)
