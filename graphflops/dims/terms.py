"""Arithmetic on polynomials as plain dictionaries from products of atoms to coefficients, on which `expr` is built."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sized
from functools import lru_cache
from operator import attrgetter

from graphflops.base.limits import spend
from graphflops.dims.atoms import Monomial, Operand, Terms, terms_of
from graphflops.errors import DimError

MAX_TERMS = 2_000  # terms in one polynomial
MAX_PRODUCT_WORK = 100_000  # term pairs multiplied for one product
MAX_BITS = 4_096  # of a coefficient; far longer numbers cannot be printed
MAX_EXPONENT = 64  # largest exponent of `**` and largest total degree of a term
FEW_TERMS = 16  # whose handling takes no longer than the call of a function
_DIVISION_WORK = 5_000  # terms looked at in one polynomial division

text_of = attrgetter("text")


def _too_many_terms() -> DimError:
    return DimError(f"symbolic size grew past {MAX_TERMS} terms")


def spend_terms(terms: Sized, times: int = 1) -> None:
    """Count terms that are about to be handled; the few terms that almost every size has are not counted."""
    if len(terms) > FEW_TERMS:
        spend("terms of sizes", len(terms) * times)


def is_of_symbols(monomial: Monomial) -> bool:
    """Whether there are no operations among the factors."""
    for atom in monomial:  # noqa: SIM110 - a loop is faster than all() of so few
        if atom.kind != "symbol":
            return False
    return True


def check_size(terms: Terms) -> None:
    """Raise DimError for too many terms, or a coefficient that is too long."""
    if len(terms) > MAX_TERMS:
        raise _too_many_terms()
    if max(map(int.bit_length, terms.values()), default=0) > MAX_BITS:
        raise DimError(f"a number in a symbolic size grew past {MAX_BITS} bits")


def plus(a: Terms, b: Terms, times: int = 1) -> Terms:
    """The sum a + times * b, with zero coefficients left in."""
    terms = dict(a)
    for monomial, coefficient in b.items():
        terms[monomial] = terms.get(monomial, 0) + times * coefficient
    return terms


@lru_cache(maxsize=65_536)
def join(first: Monomial, second: Monomial) -> Monomial:
    """The product of two monomials. Raises DimError past the degree limit."""
    if len(first) + len(second) > MAX_EXPONENT:
        raise DimError(f"symbolic size grew past degree {MAX_EXPONENT}")
    return tuple(sorted(first + second, key=text_of))


def multiply(a: Terms, b: Terms) -> Terms:
    """The product, with zero coefficients left in. Raises DimError past the size limits."""
    if len(a) * len(b) > MAX_PRODUCT_WORK:
        raise _too_many_terms()
    spend_terms(a, len(b))
    terms: Terms = {}
    for first, scale in a.items():
        for second, coefficient in b.items():
            monomial = (join(first, second) if second else first) if first else second
            terms[monomial] = terms.get(monomial, 0) + scale * coefficient
        if len(terms) > MAX_TERMS * 2:  # some may still cancel; `build` has the last word
            raise _too_many_terms()
    return terms


def rank(monomial: Monomial) -> tuple[int, list[str]]:
    """Sort key under which the leading monomial of a polynomial comes first; respects multiplication."""
    return -len(monomial), [atom.text for atom in monomial]


def leading_coefficient(dim: Operand) -> int:
    """The coefficient of the leading monomial; the value of an integer."""
    return dim if isinstance(dim, int) else dim.terms[min(dim.terms, key=rank)]


def without(monomial: Monomial, factor: Monomial) -> Monomial | None:
    """The monomial divided by the factor; None if the factor does not divide it."""
    left = list(monomial)
    for atom in factor:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def common_factor(a: Operand, b: Operand) -> tuple[Monomial, int]:
    """The largest monomial and integer that divide both, the latter negated to make b lead with a plus."""
    terms = [*terms_of(a).items(), *terms_of(b).items()]
    common = Counter(terms[0][0])
    for monomial, _ in terms[1:]:
        if not common:
            break
        common &= Counter(monomial)
    content = math.gcd(*(coefficient for _, coefficient in terms))
    return tuple(common.elements()), -content if leading_coefficient(b) < 0 else content


def cancel(dim: Operand, factor: Monomial, content: int) -> Terms:
    """The dim divided by a factor from `common_factor`."""
    terms: Terms = {}
    for monomial, coefficient in terms_of(dim).items():
        left = without(monomial, factor)
        assert left is not None
        terms[left] = coefficient // content
    return terms


def divide(a: Terms, b: Terms) -> tuple[Terms, Terms] | None:
    """A nonzero q and an r with a == q*b + r exactly; None unless b's leading coefficient is positive.
    Beyond a one-term divisor, only a constant r counts: any other split reads worse than the division.
    """
    lead = min(b, key=rank)
    scale = b[lead]
    if scale < 0:
        return None
    quotient: Terms = {}
    rest = dict(a)
    work = 0
    while True:
        work += len(rest)
        spend_terms(rest)
        if work > _DIVISION_WORK:
            return None
        candidates = {
            monomial: left
            for monomial, coefficient in rest.items()
            if not 0 <= coefficient < scale and (left := without(monomial, lead)) is not None
        }
        if not candidates:
            break
        monomial = min(candidates, key=rank)
        left = candidates[monomial]
        factor = rest[monomial] // scale
        quotient[left] = quotient.get(left, 0) + factor
        for other, coefficient in b.items():
            product = join(left, other)
            value = rest.get(product, 0) - factor * coefficient
            if value:
                rest[product] = value
            else:
                rest.pop(product, None)
    if not quotient or (len(b) > 1 and any(rest)):
        return None
    return quotient, rest
