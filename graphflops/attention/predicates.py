"""What is known of a mask as a function of the query's place i and the key's place j.

Three kinds of value: a number that is affine in i and j; a truth that is a conjunction of affine conditions; and one of
two numbers by such a truth, as where a mask is added to scores.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Union

from graphflops.dims import Dim, dim_min

HIDING = -1e4  # what is added to a score, or put in its place, to hide it is this or less


@dataclass(frozen=True, slots=True)
class Affine:
    """row * i + column * j + constant."""

    row: int
    column: int
    constant: Dim

    def __add__(self, other: Affine) -> Affine:
        return Affine(self.row + other.row, self.column + other.column, self.constant + other.constant)

    def __mul__(self, factor: int) -> Affine:
        return Affine(self.row * factor, self.column * factor, self.constant * factor)

    @property
    def is_number(self) -> bool:
        """Whether it is the same for every pair."""
        return self.row == 0 and self.column == 0


ROW, COLUMN, ZERO = Affine(1, 0, 0), Affine(0, 1, 0), Affine(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Truth:
    """All of the conditions `term >= 0`, or with `negated` not all of them.

    exact: whether there are no further conditions that are not known.
    """

    terms: tuple[Affine, ...] = ()
    exact: bool = True
    negated: bool = False

    def __invert__(self) -> Truth:
        if self.exact and not self.negated and len(self.terms) == 1:
            return Truth((self.terms[0] * -1 + Affine(0, 0, -1),))
        return replace(self, negated=not self.negated)

    def __and__(self, other: Truth) -> Truth:
        known = [truth for truth in (self, other) if not truth.negated]
        terms = tuple(dict.fromkeys(term for truth in known for term in truth.terms))
        return Truth(terms, len(known) == 2 and self.exact and other.exact)

    def __or__(self, other: Truth) -> Truth:
        return ~(~self & ~other)


UNKNOWN = Truth((), exact=False)


@dataclass(frozen=True, slots=True)
class Choice:
    """One number where a truth holds, another where it does not."""

    truth: Truth
    yes: float
    no: float


Known = Union[Affine, Truth, Choice, None]


def number_of(value: Known) -> float | None:
    """The number that a value is for every pair; None where it is none."""
    if isinstance(value, Affine) and value.is_number and isinstance(value.constant, int):
        return value.constant
    if isinstance(value, Choice) and value.yes == value.no:
        return value.yes
    return None


def visible_where(value: Known) -> Truth:
    """Where a mask lets scores through: a truth as it is, a number to be added where it is not far below zero."""
    if isinstance(value, Truth):
        return value
    if isinstance(value, Choice):
        hides = value.yes <= HIDING, value.no <= HIDING
        if hides == (False, True):
            return value.truth
        if hides == (True, False):
            return ~value.truth
    return UNKNOWN


@dataclass(frozen=True, slots=True)
class Band:
    """Pairs with -left <= j - i <= right, None without limit."""

    left: Dim | None = None
    right: Dim | None = None

    def __bool__(self) -> bool:
        return self.left is not None or self.right is not None


def band_of(truth: Truth) -> Band:
    """The band outside of which nothing is visible; conditions of another kind hide more, which is not told."""
    left: Dim | None = None
    right: Dim | None = None
    if not truth.negated:
        for term in truth.terms:
            if (term.row, term.column) == (1, -1):
                right = term.constant if right is None else dim_min(right, term.constant)
            elif (term.row, term.column) == (-1, 1):
                left = term.constant if left is None else dim_min(left, term.constant)
    return Band(left, right)
