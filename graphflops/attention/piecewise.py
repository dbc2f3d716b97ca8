"""Numbers by cases: a few affine pieces, each with where it applies.

Thus `abs`, `min`, `where` and `clamp` of affine numbers need no representations of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import product
from operator import and_, or_
from typing import Union

from graphflops.attention import conditions
from graphflops.attention.conditions import FALSE, TRUE, ZERO, Affine, Truth, truth, where_not_negative
from graphflops.base.record import Record
from graphflops.dims import Dim, Expr, mod

_MOST_PIECES = 8  # of one number
_EXACT = 2**53  # integers up to this are exact in float64


class Quotient(Record, frozen=True):
    """The quotient of a number by a positive number, rounded down."""

    term: Affine
    divisor: int

    def __add__(self, number: Dim) -> Quotient:
        return Quotient(self.term + number * self.divisor, self.divisor)


class Remainder(Record, frozen=True):
    """The remainder of a number by a positive one, rounded down: never negative."""

    term: Affine
    divisor: int

    def where(self, test: Callable[[int], bool]) -> Truth:
        """Where the remainder passes a test."""
        kept = sum(1 << x for x in range(self.divisor) if test(x))
        return conditions.where_remainder(self.term, self.divisor, kept)


Piece = Union[Affine, Quotient, Remainder, float, None]  # None: unknown, but no larger than an ordinary score


class Number(Record, frozen=True):
    """A number by cases: the first piece whose truth holds; one of the truths always holds."""

    pieces: tuple[tuple[Truth, Piece], ...]


Known = Union[Truth, Number]
UNKNOWN_NUMBER = Number(((TRUE, None),))


def number(value: float | Expr) -> Number:
    """A number that is the same for every pair."""
    return Number(((TRUE, piece_of(value)),))


def constant_of(piece: Piece) -> float | None:
    """The number that a piece is for every pair; None if it varies."""
    if isinstance(piece, Affine):
        return piece.constant if piece.is_number and isinstance(piece.constant, int) else None
    return piece if isinstance(piece, (int, float)) else None


def number_of(value: Known) -> float | None:
    """The number that a value is for every pair; None if it varies."""
    return constant_of(value.pieces[0][1]) if isinstance(value, Number) and len(value.pieces) == 1 else None


def as_number(value: Known) -> Number:
    """A truth as 1 where it holds and 0 elsewhere; a number as it is."""
    if isinstance(value, Number):
        return value
    return by_cases([(value, Affine(0, 0, 1)), (~value, ZERO)])


def as_truth(value: Known) -> Truth:
    """Where a number is not zero; a truth as it is."""
    return value if isinstance(value, Truth) else tested(lambda piece: ~where_equal(piece, ZERO), value)


def negative(value: Known) -> Number:
    """Minus a number."""
    return combined(lambda piece: times(piece, Affine(0, 0, -1)), value)


def visible_where(value: Known, unknown: Truth) -> Truth:
    """Where a mask lets scores through: where a boolean is true, or where an added number is not a hiding one.

    unknown: where an unknown number lets them through.
    """
    if isinstance(value, Truth):
        return value
    hiding = piece_of(conditions.HIDING)
    return tested(lambda piece: unknown if piece is None else ~where_at_least(hiding, piece), value)


def by_cases(pieces: Sequence[tuple[Truth, Piece]]) -> Number:
    """A number with those pieces, equal ones merged; unknown if there are too many."""
    found: dict[Piece, Truth] = {}
    for holds, piece in pieces:
        if holds.upper:
            found[piece] = found[piece] | holds if piece in found else holds
    if len(found) == 1:
        return Number(((TRUE, *found),))  # type: ignore[arg-type]
    if not found or len(found) > _MOST_PIECES:
        return UNKNOWN_NUMBER
    return Number(tuple((holds, piece) for piece, holds in found.items()))


def combined(function: Callable[..., Piece], *values: Known) -> Number:
    """A function of numbers, piece by piece."""
    return by_cases([(holds, function(*pieces)) for holds, pieces in _cases(values)])


def tested(function: Callable[..., Truth], *values: Known) -> Truth:
    """Where a condition on numbers holds, piece by piece; computed as the complement if only that is exact."""
    cases = [(holds, function(*pieces)) for holds, pieces in _cases(values)]
    found = reduce(or_, (holds & passes for holds, passes in cases), FALSE)
    if found.exact:
        return found
    fails = reduce(or_, (holds & ~passes for holds, passes in cases), FALSE)
    return ~fails if fails.exact else found


def _cases(values: Sequence[Known]) -> list[tuple[Truth, tuple[Piece, ...]]]:
    """The pieces of several numbers combined, and where each combination applies."""
    numbers = [as_number(value).pieces for value in values]
    if math.prod(map(len, numbers)) > _MOST_PIECES**2:
        return [(TRUE, (None,) * len(values))]
    found = []
    for chosen in product(*numbers):
        truths, pieces = zip(*chosen, strict=True)
        holds = reduce(and_, truths, TRUE)
        if holds.upper:
            found.append((holds, pieces))
    return found


def times(a: Piece, b: Piece) -> Piece:
    """The product of two pieces."""
    x, y = constant_of(a), constant_of(b)
    if x is not None and y is not None:
        return piece_of(x * y)
    for one, factor in ((a, y), (b, x)):
        if isinstance(one, Affine) and factor is not None and math.isfinite(factor) and factor == int(factor):
            return one * int(factor)
        if factor == 0 and one is None:  # an ordinary number
            return ZERO
        if isinstance(one, (Quotient, Remainder)) and factor == 1:
            return one
    return None


def piece_of(value: float | Expr) -> Piece:
    """A number as a piece; an integer is affine."""
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, float) and abs(value) < _EXACT and value == int(value):
        value = int(value)
    return Affine(0, 0, value) if isinstance(value, (int, Expr)) else value


def where_at_least(a: Piece, b: Piece, more: int = 0) -> Truth:
    """`a >= b + more`; `more` is for integers, 1 for a strict comparison."""
    x, y = constant_of(a), constant_of(b)
    if x is not None and y is not None:
        return truth(x > y if more else x >= y)
    if isinstance(a, Affine) and isinstance(b, Affine):
        return where_not_negative(a + b * -1 + -more)
    if x is not None:
        return ~where_at_least(b, a, 1 - more)
    if isinstance(a, Remainder) and y is not None:
        return a.where(lambda place: place > y if more else place >= y)
    if isinstance(a, (Affine, Quotient)) and y is not None:
        if math.isinf(y):
            return truth(y < 0)
        limit = math.floor(y) + 1 if more or y != int(y) else int(y)
        return where_not_negative(a.term + -limit * a.divisor if isinstance(a, Quotient) else a + -limit)
    if isinstance(a, Quotient) and isinstance(b, Quotient) and a.divisor == b.divisor:
        difference = a.term + b.term * -1
        if difference.is_number and isinstance(difference.constant, int) and not difference.constant:
            return truth(not more)
    return conditions.UNKNOWN


def where_equal(a: Piece, b: Piece) -> Truth:
    """`a == b`."""
    if isinstance(a, Remainder) and isinstance(b, Remainder) and a.divisor == b.divisor:
        return Remainder(a.term + b.term * -1, a.divisor).where(lambda place: place == 0)
    if isinstance(a, Quotient) and isinstance(b, Quotient) and a.divisor == b.divisor:
        one, other = a.term, b.term
        if one == other:
            return TRUE
        # Blocks of a query and of a key, both counted from place 0.
        is_apart = {(one.row, one.column), (other.row, other.column)} == {(1, 0), (0, 1)}
        if is_apart and one.constant == other.constant and mod(one.constant, a.divisor) == 0:
            return where_not_negative(conditions.SameBlock(0, 0, a.divisor))
    return where_at_least(a, b) & where_at_least(b, a)
