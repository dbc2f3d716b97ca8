"""Conditions on a pair (i, j), the places of a query and a key, and closed-form counts of the pairs that meet them.

A condition is an affine term that must not be negative, or that must have certain remainders.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from graphflops.attention import residues
from graphflops.base.record import Record
from graphflops.dims import Dim, at_least, dim_max, dim_min, floor_div, same, total
from graphflops.rules.shapes import doubled_pairs

HIDING = -1e4  # a score is hidden if this or less is added to it or replaces it
_MOST_CASES = 8  # of one truth
_LARGEST = 2**12  # modulus
_MOST_REMAINDERS = 16  # counted one by one
SIMPLE = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, -1), (-1, 1))  # directions of edges and diagonals

Direction = tuple[int, int]


class Affine(Record, frozen=True):
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
        """Whether it is provably at least zero for every pair."""
        return self.row >= 0 and self.column >= 0 and at_least(self.constant, 0)


ROW, COLUMN, ZERO = Affine(1, 0, 0), Affine(0, 1, 0), Affine(0, 0, 0)


class SameBlock(Affine, frozen=True):
    """The condition that i and j are in the same block of `constant` places; not a number."""


class Residue(Affine, frozen=True):
    """The condition that the term's remainder by `modulus` is one of `kept`, a set of bits; not a number."""

    modulus: int
    kept: int

    def of(self, kept: int, modulus: int = 0) -> Residue:
        """The same term with other remainders."""
        return Residue(self.row, self.column, self.constant, modulus or self.modulus, kept)

    @property
    def form(self) -> Direction:
        """The places that the term depends on."""
        return self.row, self.column

    @property
    def opposite(self) -> Residue:
        return self.of(self.kept ^ ((1 << self.modulus) - 1))

    def within(self, modulus: int) -> Residue:
        """The same condition with a multiple of the modulus."""
        return self.of(self.kept * (((1 << modulus) - 1) // ((1 << self.modulus) - 1)), modulus)

    @property
    def remainders(self) -> list[int]:
        return [place for place in range(self.modulus) if self.kept >> place & 1]


Case = tuple[Affine, ...]  # conditions `term >= 0` that all hold; each direction once
Cases = tuple[Case, ...]  # at least one case holds; without cases it never holds

ALWAYS: Cases = ((),)
NEVER: Cases = ()


@dataclass(frozen=True, slots=True)
class Truth:
    """Where something holds: at most in `upper`, at least in `lower`; both are equal if this is known exactly."""

    upper: Cases
    lower: Cases
    # The negation, kept because the negation of some conditions cannot be expressed by conditions.
    inverse: Truth | None = field(default=None, compare=False, repr=False)

    @property
    def exact(self) -> bool:
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


def where_remainder(term: Affine, modulus: int, kept: int) -> Truth:
    """Where the remainder of a term, rounded down, is one of the set bits."""
    if kept in (0, (1 << modulus) - 1):
        return truth(kept != 0)
    if term.is_number:
        constant = term.constant
        return truth(bool(kept >> constant % modulus & 1)) if isinstance(constant, int) else UNKNOWN
    condition = Residue(term.row, term.column, term.constant, modulus, kept)
    if modulus <= _LARGEST and condition.form not in residues.FORMS:  # use the remainder of the negated term
        turned = sum(1 << (-place % modulus) for place in condition.remainders)
        condition = Residue(-term.row, -term.column, term.constant * -1, modulus, turned)
    if modulus > _LARGEST or condition.form not in residues.FORMS:
        return UNKNOWN
    return Truth(((condition,),), ((condition,),))


def _case(terms: Iterable[Affine]) -> Case | None:
    """All of the conditions, one for each direction; None if they contradict each other."""
    by_direction: dict[Direction, Dim] = {}
    blocks: dict[Affine, None] = {}
    remainders: list[Residue] = []
    for term in terms:
        if isinstance(term, SameBlock):
            blocks[term] = None
            continue
        if isinstance(term, Residue):
            remainders = _with(remainders, term)
            continue
        divisor = math.gcd(term.row, term.column) or 1
        direction = term.row // divisor, term.column // divisor
        constant = floor_div(term.constant, divisor)
        if direction in by_direction:
            constant = dim_min(by_direction[direction], constant)
        by_direction[direction] = constant
    for (row, column), constant in by_direction.items():
        against = by_direction.get((-row, -column))
        is_refuted = against is not None and at_least(-1, constant + against)
        if is_refuted or (row <= 0 and column <= 0 and at_least(-1, constant)):
            return None
    if any(not each.kept for each in remainders):
        return None
    bounded = [Affine(*direction, by_direction[direction]) for direction in sorted(by_direction)]
    found = [each for each in bounded if not each.is_never_negative]
    some = [each for each in remainders if each.opposite.kept]
    return (*found, *blocks, *sorted(some, key=lambda each: (each.form, each.modulus, str(each.constant))))


def _with(remainders: Sequence[Residue], more: Residue) -> list[Residue]:
    """Conditions and one more; conditions on the same term are merged by a common modulus unless it is too large."""
    for place, each in enumerate(remainders):
        modulus = math.lcm(each.modulus, more.modulus)
        if (each.form, each.constant) == (more.form, more.constant) and modulus <= _LARGEST:
            both = more.within(modulus).of(each.within(modulus).kept & more.within(modulus).kept)
            return [*remainders[:place], both, *remainders[place + 1 :]]
    return [*remainders, more]


def _joined(cases: Iterable[Case]) -> Cases | None:
    """The cases without those that another contains, with adjacent ones merged; None if there are too many."""
    kept: list[Case] = []
    for case in cases:
        new: Case = case
        while (other := next((other for other in kept if _merged(new, other) is not None), None)) is not None:
            kept.remove(other)
            new = _merged(new, other) or ()
        kept.append(new)
    return tuple(kept) if len(kept) <= _MOST_CASES else None


def _merged(a: Case, b: Case) -> Case | None:
    """One case that holds where either does, if one contains the other or their ranges along one term overlap or touch."""
    if _implies(a, b) or _implies(b, a):
        return b if _implies(a, b) else a
    first, second = bounds(a), bounds(b)
    differing = {
        max(direction, (-direction[0], -direction[1]))
        for direction in {*first, *second}
        if direction not in first or direction not in second or not same(first[direction], second[direction])
    }
    rest = [{term for term in case if not _is_bound(term)} for case in (a, b)]
    if not differing:  # cases that differ only in the remainders of one term: the union of these
        own, others = rest[0] - rest[1], rest[1] - rest[0]
        if len(own) != 1 or len(others) != 1:
            return None
        (one,), (other,) = own, others
        if not isinstance(one, Residue) or not isinstance(other, Residue) or one.of(0) != other.of(0):
            return None
        return _case([*(term for term in a if term != one), one.of(one.kept | other.kept)])
    if len(differing) != 1 or rest[0] != rest[1]:
        return None
    (up,) = differing
    down = -up[0], -up[1]
    # Each case bounds the same term from below by -x[up] and from above by x[down].
    for low, high in ((first, second), (second, first)):
        if up in low and down in high and not at_least(low[up] + high[down] + 1, 0):
            return None
    both = [way for way in (up, down) if way in first and way in second]
    merged = [Affine(*way, dim_max(first[way], second[way])) for way in both]
    kept = [term for term in a if not _is_bound(term) or (term.row, term.column) not in (up, down)]
    return _case([*kept, *merged])


def _is_bound(term: Affine) -> bool:
    """Whether the condition is that the term is not negative."""
    return type(term) is Affine


def bounds(case: Case) -> dict[Direction, Dim]:
    """By direction of a term, the constant of the condition that the term is not negative."""
    return {(term.row, term.column): term.constant for term in case if _is_bound(term)}


def _implies(case: Case, other: Case) -> bool:
    """Whether the second case provably holds wherever the first does."""
    given, remainders = bounds(case), [term for term in case if isinstance(term, Residue)]
    return all(
        (term.row, term.column) in given and at_least(term.constant, given[term.row, term.column])
        if _is_bound(term)
        else any(x.of(0) == term.of(0) and not x.kept & ~term.kept for x in remainders)
        if isinstance(term, Residue)
        else term in case
        for term in other
    )


def _both(a: Cases, b: Cases) -> Cases | None:
    return _joined([case for x in a for y in b if (case := _case((*x, *y))) is not None])


def _none_of(cases: Cases) -> Cases | None:
    """Where none of the cases holds; None if that needs too many cases, or other kinds of conditions."""
    found: Cases | None = ALWAYS
    if any(isinstance(term, SameBlock) for case in cases for term in case):
        return None
    for case in cases:
        fails = [_case([term.opposite if isinstance(term, Residue) else term * -1 + -1]) for term in case]
        found = found and _both(found, tuple([fail for fail in fails if fail is not None]))
        if found is None:
            break
    return found


_MOST_OVERLAPS = 4  # cases whose overlaps are counted: 15 formulas


def doubled_visible(cases: Cases, queries: Dim, keys: Dim) -> tuple[Dim, bool]:
    """2 x the pairs for which one of the cases holds, and whether that is exact or else an upper bound.

    Raises DimError if the formula grows too large.
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
    """The conditions with a closed form together: bounds, diagonals, blocks without bounds, remainders of one term."""
    kept = [term for term in case if _is_bound(term) and (term.row, term.column) in SIMPLE]
    blocks = [term for term in case if isinstance(term, SameBlock)][:1]
    if any(0 in (term.row, term.column) for term in kept):
        blocks = []
    few = []
    for term in case:  # few remainders are kept, or few are not, the same in each block
        if isinstance(term, Residue):
            number = min(len(term.remainders), term.modulus - len(term.remainders))
            is_alike = term.form == residues.DISTANCE or not any(x.constant % term.modulus for x in blocks)
            few += [term] if number <= _MOST_REMAINDERS and is_alike else []
    apart = not blocks and not any(term.row and term.column for term in (*kept, *few))
    are_apart = apart and len({term.form for term in few}) == len(few)
    return (*kept, *blocks, *(few if are_apart else few[:1]))


def _doubled(case: Case, queries: Dim, keys: Dim) -> Dim:
    """2 x the pairs for which all conditions hold: a band of diagonals within a rectangle."""
    size = next((term.constant for term in case if isinstance(term, SameBlock)), None)
    if size is not None:
        rest = tuple([term for term in case if not isinstance(term, SameBlock)])
        whole = dim_min(floor_div(queries, size), floor_div(keys, size))
        rows, columns = (dim_min(length - whole * size, size) for length in (queries, keys))
        return whole * _doubled(rest, size, size) + _doubled(rest, rows, columns)
    limit = bounds(case)
    top, bottom = _span(limit.get((1, 0)), limit.get((-1, 0)), queries)
    first, end = _span(limit.get((0, 1)), limit.get((0, -1)), keys)
    left, right = limit.get((-1, 1)), limit.get((1, -1))
    pairs: Dim = 2
    few = [term for term in case if isinstance(term, Residue)]
    if len(few) == 2:  # one of queries and one of keys, which are independent
        for term, (begin, stop) in zip(few[::-1], ((top, bottom), (first, end)), strict=True):
            ends = begin + term.constant, stop + term.constant
            pairs = pairs * total(residues.count(*ends, term.modulus, place) for place in term.remainders)
    elif few:
        (term,) = few
        told = term.form, term.constant + term.row * top + term.column * first, term.modulus, term.remainders
        pairs = residues.doubled(*told, bottom - top, end - first, left, right, top - first)
    else:
        pairs = doubled_pairs(bottom - top, end - first, left=left, right=right, offset=top - first)
    if left is not None and right is not None and not at_least(left + right, 0):
        pairs = dim_max(pairs, 0)
    return pairs


def _span(above: Dim | None, below: Dim | None, size: Dim) -> tuple[Dim, Dim]:
    """The places from the first up to before the last for which `place + above >= 0` and `below - place >= 0`."""
    begin = 0 if above is None else dim_max(-above, 0)
    end = size if below is None else dim_min(below + 1, size)
    return (begin, end) if above is None and below is None else (begin, dim_max(begin, end))
