"""Conditions on a pair (i, j), the places of a query and of a key, and closed-form counts of the pairs that meet them.

A condition is an affine term that must not be negative.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING

from graphflops.dims import Dim, at_least, dim_max, dim_min, floor_div, same
from graphflops.rules.shapes import doubled_pairs

if TYPE_CHECKING:
    from collections.abc import Iterable


HIDING = -1e4  # a score is hidden where this or less is added to it, or put in its place
_MOST_CASES = 8  # of one truth

Direction = tuple[int, int]


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

    @property
    def is_never_negative(self) -> bool:
        """Whether it is at least zero for every pair, for certain."""
        return self.row >= 0 and self.column >= 0 and at_least(self.constant, 0)


ROW, COLUMN, ZERO = Affine(1, 0, 0), Affine(0, 1, 0), Affine(0, 0, 0)


@dataclass(frozen=True, slots=True)
class SameBlock(Affine):
    """The condition that i and j are in the same block of `constant` places; not a number."""


Case = tuple[Affine, ...]  # conditions `term >= 0` that all hold; each direction once
Cases = tuple[Case, ...]  # at least one case holds; without cases it never holds

ALWAYS: Cases = ((),)
NEVER: Cases = ()


@dataclass(frozen=True, slots=True)
class Truth:
    """Where something holds: at most in `upper`, at least in `lower`; both are equal where it is known exactly.

    inverse: its negation, kept because some conditions have a negation that is no condition.
    """

    upper: Cases
    lower: Cases
    inverse: Truth | None = field(default=None, compare=False, repr=False)

    @property
    def exact(self) -> bool:
        """Whether it is known exactly where it holds."""
        return self.upper == self.lower

    def __invert__(self) -> Truth:
        if self.inverse is not None:
            return self.inverse
        upper, lower = _none_of(self.lower), _none_of(self.upper)
        return Truth(ALWAYS if upper is None else upper, NEVER if lower is None else lower, self)

    def __and__(self, other: Truth) -> Truth:
        if TRUE in (self, other) or FALSE in (self, other):
            return FALSE if FALSE in (self, other) else other if self == TRUE else self
        upper, lower = _both(self.upper, other.upper), _both(self.lower, other.lower)
        return Truth(self.upper if upper is None else upper, NEVER if lower is None else lower)

    def __or__(self, other: Truth) -> Truth:
        if TRUE in (self, other) or FALSE in (self, other):
            return TRUE if TRUE in (self, other) else other if self == FALSE else self
        upper, lower = _joined((*self.upper, *other.upper)), _joined((*self.lower, *other.lower))
        return Truth(ALWAYS if upper is None else upper, self.lower if lower is None else lower)


TRUE, FALSE, UNKNOWN = Truth(ALWAYS, ALWAYS), Truth(NEVER, NEVER), Truth(ALWAYS, NEVER)


def truth(holds: bool) -> Truth:
    """The truth that holds everywhere, or nowhere."""
    return TRUE if holds else FALSE


def where_not_negative(*terms: Affine) -> Truth:
    """Where all terms are at least zero."""
    case = _case(terms)
    cases = NEVER if case is None else (case,)
    return Truth(cases, cases)


def where_same_block(size: int) -> Truth:
    """Where i and j are in the same block of `size` places."""
    return where_not_negative(SameBlock(0, 0, size))


def where_zero(term: Affine) -> Truth:
    """Where a term is zero."""
    return where_not_negative(term, term * -1)


def _case(terms: Iterable[Affine]) -> Case | None:
    """All of the conditions, each direction once; None where they contradict one another."""
    by_direction: dict[Direction, Dim] = {}
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
    """The cases without those that another one contains, adjacent ones merged; None where they are too many."""
    kept: list[Case] = []
    for case in cases:
        new: Case = case
        while (other := next((other for other in kept if _merged(new, other) is not None), None)) is not None:
            kept.remove(other)
            new = _merged(new, other) or ()
        kept.append(new)
    return tuple(kept) if len(kept) <= _MOST_CASES else None


def _merged(a: Case, b: Case) -> Case | None:
    """One case that holds where either does: one contains the other, or they differ in one pair of opposite bounds whose
    ranges overlap or touch. None where there is none.
    """
    if _implies(a, b) or _implies(b, a):
        return b if _implies(a, b) else a
    first, second = _bounds(a), _bounds(b)
    differing = {
        max(direction, (-direction[0], -direction[1]))
        for direction in {*first, *second}
        if direction not in first or direction not in second or not same(first[direction], second[direction])
    }
    blocks = [{term for term in case if isinstance(term, SameBlock)} for case in (a, b)]
    if len(differing) != 1 or blocks[0] != blocks[1]:
        return None
    (up,) = differing
    down = -up[0], -up[1]
    # Each case bounds the same term from below by -x[up] and from above by x[down].
    for one, other in ((first, second), (second, first)):
        if up in one and down in other and not at_least(one[up] + other[down] + 1, 0):
            return None
    merged = [
        Affine(*way, dim_max(first[way], second[way])) for way in (up, down) if way in first and way in second
    ]
    rest = [term for term in a if isinstance(term, SameBlock) or (term.row, term.column) not in (up, down)]
    return _case([*rest, *merged])


def _bounds(case: Case) -> dict[Direction, Dim]:
    return {(term.row, term.column): term.constant for term in case if not isinstance(term, SameBlock)}


def _implies(case: Case, other: Case) -> bool:
    """Whether the second holds wherever the first does, for certain."""
    given = _bounds(case)
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


_MOST_OVERLAPS = 4  # whose overlaps are counted: 15 formulas


def doubled_visible(cases: Cases, queries: Dim, keys: Dim) -> tuple[Dim, bool]:
    """2 x the pairs for which one of the cases holds, and whether the count is exact.

    If not, some condition was dropped and the count is an upper bound. Raises DimError where the formula grows too large.
    """
    kept = [_countable(case) for case in cases]
    if () in kept:
        return 2 * queries * keys, () in cases
    exact = kept == list(cases)
    if len(kept) > _MOST_OVERLAPS:
        return 2 * queries * keys, False
    visible: Dim = 0
    for number in range(1, len(kept) + 1):
        for chosen in combinations(kept, number):
            for case in where_not_negative(*[term for each in chosen for term in each]).upper:
                if _countable(case) != case:
                    return 2 * queries * keys, False
                visible = visible + _doubled(case, queries, keys) * (1 if number % 2 else -1)
    return visible, exact


def _countable(case: Case) -> Case:
    """The conditions that have a closed form together: bounds of queries and keys, diagonals, and without bounds blocks."""
    blocks = [term for term in case if isinstance(term, SameBlock)]
    kept = [term for term in case if term not in blocks and _is_simple(term.row, term.column)]
    bounded = any(0 in (term.row, term.column) for term in kept)
    return (*kept, *([] if bounded else blocks[:1]))


def _is_simple(row: int, column: int) -> bool:
    return abs(row) <= 1 and abs(column) <= 1 and (row, column) not in ((0, 0), (1, 1), (-1, -1))


def _doubled(case: Case, queries: Dim, keys: Dim) -> Dim:
    """2 x the pairs for which all of the conditions hold: a band of diagonals, cut out of a rectangle."""
    limit = {(term.row, term.column): term.constant for term in case}
    size = limit.get((0, 0))
    if size is not None:
        rest = tuple([term for term in case if not isinstance(term, SameBlock)])
        whole = dim_min(floor_div(queries, size), floor_div(keys, size))
        rows, columns = (dim_min(length - whole * size, size) for length in (queries, keys))
        return whole * _doubled(rest, size, size) + _doubled(rest, rows, columns)
    top, bottom = _span(limit.get((1, 0)), limit.get((-1, 0)), queries)
    first, end = _span(limit.get((0, 1)), limit.get((0, -1)), keys)
    left, right = limit.get((-1, 1)), limit.get((1, -1))
    pairs = doubled_pairs(bottom - top, end - first, left=left, right=right, offset=top - first)
    if left is not None and right is not None and not at_least(left + right, 0):
        pairs = dim_max(pairs, 0)
    return pairs


def _span(above: Dim | None, below: Dim | None, size: Dim) -> tuple[Dim, Dim]:
    """The places from the first up to before the last for which `place + above >= 0` and `below - place >= 0`."""
    begin = 0 if above is None else dim_max(-above, 0)
    end = size if below is None else dim_min(below + 1, size)
    return (begin, end) if above is None and below is None else (begin, dim_max(begin, end))


# The form of what is visible, in words.

_KEYS_UP_TO, _KEYS_FROM, _FIRST_KEYS = (1, -1), (-1, 1), (0, -1)  # directions of conditions


def pattern_of(visible: Cases, queries: Dim, keys: Dim) -> str:
    """The form of the visible pairs; "" where it has no name."""
    if visible == ALWAYS:
        return ""
    if len(visible) == 1:
        return _of_case(visible[0], queries, keys)
    names = [_of_case(case, queries, keys) for case in visible]
    if len(names) == 2 and "" not in names and any(name.startswith("prefix ") for name in names):
        return ", ".join(sorted(names))
    return ""


def _of_case(case: Case, queries: Dim, keys: Dim) -> str:
    blocks = [term.constant for term in case if isinstance(term, SameBlock)]
    limits = {(term.row, term.column): term.constant for term in case if not isinstance(term, SameBlock)}
    right, left = limits.pop(_KEYS_UP_TO, None), limits.pop(_KEYS_FROM, None)
    first = limits.pop(_FIRST_KEYS, None)
    if limits or len(blocks) > 1:
        return ""
    parts = [_diagonals(left, right, queries, keys)] if (left, right) != (None, None) else []
    parts += [f"blocks of {blocks[0]}"] if blocks else []
    if first is not None:
        return "" if parts else f"prefix {first + 1}"
    return "" if "" in parts else ", ".join(parts)


def _diagonals(left: Dim | None, right: Dim | None, queries: Dim, keys: Dim) -> str:
    """A query sees keys from `left` places before its own to `right` places after it."""
    if right is None:
        return ""
    is_causal = same(right, 0) or same(right, keys - queries)
    if left is None:
        return "causal" if is_causal else ""
    return f"causal, window {left + right + 1}" if is_causal else window(left, right)


def window(before: Dim, after: Dim) -> str:
    """The name of a window around a query's own place."""
    return f"causal, window {before + 1}" if after == 0 else f"window {before} before, {after} after"
