"""What is known of a mask as a function of the query's place i and the key's place j.

Four kinds of value: a number that is affine in i and j, or how far one is from zero; a truth, made of affine conditions; and
one of two numbers by such a truth, as where a mask is added to scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Union

from graphflops.dims import Dim, at_least, dim_min, floor_div

if TYPE_CHECKING:
    from collections.abc import Iterable

HIDING = -1e4  # what is added to a score, or put in its place, to hide it is this or less
UNTOLD = math.nan  # a number that nobody tells, but none that outweighs a hiding one: a score is no more
_MOST_CASES = 8  # of one truth


@dataclass(frozen=True, slots=True)
class Affine:
    """row * i + column * j + constant."""

    row: int
    column: int
    constant: Dim

    def __add__(self, other: Affine | Dim) -> Affine:
        if isinstance(other, Affine):
            return Affine(self.row + other.row, self.column + other.column, self.constant + other.constant)
        return Affine(self.row, self.column, self.constant + other)

    def __mul__(self, factor: int) -> Affine:
        return Affine(self.row * factor, self.column * factor, self.constant * factor)

    @property
    def is_number(self) -> bool:
        """Whether it is the same for every pair."""
        return self.row == 0 and self.column == 0


ROW, COLUMN, ZERO = Affine(1, 0, 0), Affine(0, 1, 0), Affine(0, 0, 0)


@dataclass(frozen=True, slots=True)
class SameBlock(Affine):
    """No number, but a condition all the same: i and j are in one of the blocks of `constant` places from the first."""


Case = tuple[Affine, ...]  # conditions `term >= 0`, all of which hold; no two of one direction
Cases = tuple[Case, ...]  # one of them at least holds; none at all is what is never so

ALWAYS: Cases = ((),)
NEVER: Cases = ()


@dataclass(frozen=True, slots=True)
class Truth:
    """Where something holds: at most in `upper`, at least in `lower`; the same where all is known of it.

    inverse: what it is the contrary of, for the contrary of some conditions is no condition.
    """

    upper: Cases
    lower: Cases
    inverse: Truth | None = field(default=None, compare=False, repr=False)

    @property
    def exact(self) -> bool:
        """Whether there are no further conditions that are not known."""
        return self.upper == self.lower

    def __invert__(self) -> Truth:
        if self.inverse is not None:
            return self.inverse
        upper, lower = _none_of(self.lower), _none_of(self.upper)
        return Truth(ALWAYS if upper is None else upper, NEVER if lower is None else lower, self)

    def __and__(self, other: Truth) -> Truth:
        upper, lower = _both(self.upper, other.upper), _both(self.lower, other.lower)
        return Truth(self.upper if upper is None else upper, NEVER if lower is None else lower)

    def __or__(self, other: Truth) -> Truth:
        upper, lower = _joined((*self.upper, *other.upper)), _joined((*self.lower, *other.lower))
        return Truth(ALWAYS if upper is None else upper, self.lower if lower is None else lower)


TRUE, FALSE, UNKNOWN = Truth(ALWAYS, ALWAYS), Truth(NEVER, NEVER), Truth(ALWAYS, NEVER)


def truth(holds: bool) -> Truth:
    """The truth that holds everywhere, or nowhere."""
    return TRUE if holds else FALSE


def where_not_negative(*terms: Affine) -> Truth:
    """`term >= 0` of all terms, which may be so for every pair, or for none."""
    case = _case(terms)
    cases = NEVER if case is None else (case,)
    return Truth(cases, cases)


def _case(terms: Iterable[Affine]) -> Case | None:
    """All of the conditions, each direction once; None where they contradict one another."""
    by_direction: dict[tuple[int, int], Dim] = {}
    blocks: dict[Affine, None] = {}
    for term in terms:
        if isinstance(term, SameBlock):
            blocks[term] = None
            continue
        divisor = math.gcd(term.row, term.column) or 1
        direction = term.row // divisor, term.column // divisor
        constant = floor_div(term.constant, divisor)
        if direction in by_direction:
            constant = dim_min(by_direction[direction], constant)
        by_direction[direction] = constant
    for (row, column), constant in by_direction.items():
        against = by_direction.get((-row, -column))
        if against is not None and at_least(-1, constant + against):
            return None
    if (0, 0) in by_direction and at_least(by_direction[0, 0], 0):
        del by_direction[0, 0]
    found = [Affine(*direction, by_direction[direction]) for direction in sorted(by_direction)]
    return (*found, *blocks)


def _joined(cases: Iterable[Case]) -> Cases | None:
    """The cases without those that another one contains; None where they are too many."""
    kept: list[Case] = []
    for case in cases:
        if not any(_implies(case, other) for other in kept):
            kept = [other for other in kept if not _implies(other, case)]
            kept.append(case)
    return tuple(kept) if len(kept) <= _MOST_CASES else None


def _implies(case: Case, other: Case) -> bool:
    """Whether the second holds wherever the first does, for certain."""
    given = {(term.row, term.column): term.constant for term in case if not isinstance(term, SameBlock)}
    return all(
        term in case
        if isinstance(term, SameBlock)
        else (term.row, term.column) in given and at_least(term.constant, given[term.row, term.column])
        for term in other
    )


def _both(a: Cases, b: Cases) -> Cases | None:
    return _joined([case for x in a for y in b if (case := _case((*x, *y))) is not None])


def _none_of(cases: Cases) -> Cases | None:
    """Where none of the cases holds; None where that takes too many, or conditions of another kind."""
    found: Cases | None = ALWAYS
    if any(isinstance(term, SameBlock) for case in cases for term in case):
        return None
    for case in cases:
        fails = [_case([term * -1 + -1]) for term in case]
        found = found and _both(found, tuple([fail for fail in fails if fail is not None]))
        if found is None:
            break
    return found


@dataclass(frozen=True, slots=True)
class Choice:
    """One number where a truth holds, another where it does not."""

    truth: Truth
    yes: float
    no: float


@dataclass(frozen=True, slots=True)
class Distance:
    """How far a number is from zero."""

    term: Affine


@dataclass(frozen=True, slots=True)
class Quotient:
    """A number divided by one greater than zero, rounded down."""

    term: Affine
    divisor: int


Known = Union[Affine, Truth, Choice, Distance, Quotient, None]


def number_of(value: Known) -> float | None:
    """The number that a value is for every pair; None where it is none."""
    if isinstance(value, Affine) and value.is_number and isinstance(value.constant, int):
        return value.constant
    if isinstance(value, Choice) and value.yes == value.no:
        return value.yes
    return None


def negative(value: Known) -> Known:
    """Minus a number."""
    if isinstance(value, Affine):
        return value * -1
    return Choice(value.truth, -value.yes, -value.no) if isinstance(value, Choice) else None


def visible_where(value: Known) -> Truth:
    """Where a mask lets scores through: a truth as it is, a number to be added where it is not far below zero."""
    if isinstance(value, Truth):
        return value
    if isinstance(value, Choice):
        hides = value.yes <= HIDING, value.no <= HIDING
        seen = {
            (False, True): value.truth,
            (True, False): ~value.truth,
            (True, True): FALSE,
            (False, False): TRUE,
        }[hides]
        untold = math.isnan(value.yes) or math.isnan(value.no)
        return Truth(seen.upper, NEVER) if untold else seen
    if isinstance(value, Affine) and value.is_number and isinstance(value.constant, int):
        return truth(value.constant > HIDING)
    return UNKNOWN
