"""Arithmetic on polynomials as plain dictionaries from products of atoms to coefficients.

Nothing here makes an `Expr`: these are the functions that `graphflops.dims.expr` is built on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sized
from functools import lru_cache
from operator import attrgetter

from graphflops.base.limits import spend
from graphflops.dims.atoms import Atom, Monomial, Operand, Terms, terms_of
from graphflops.errors import DimError

MAX_TERMS = 2_000  # terms in one polynomial
MAX_PRODUCT_WORK = 400_000  # term pairs multiplied for one product
MAX_BITS = 4_096  # of a coefficient; far longer numbers cannot be printed
MAX_EXPONENT = 64  # largest exponent of `**` and largest total degree of a term
FEW_TERMS = 16  # whose handling takes no longer than the call of a function
_PACKED_WORK = 256  # term pairs from which a product is worth packing
_PACKED_BITS = 8  # of one exponent: room for twice MAX_EXPONENT
_REDUCTION_WORK = 4  # a term of an even division is sorted and looked up anew
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


# Products.


@lru_cache(maxsize=65_536)
def join(first: Monomial, second: Monomial) -> Monomial:
    """The product of two monomials. Raises DimError past the degree limit."""
    _check_degree(len(first) + len(second))
    return tuple(sorted(first + second, key=text_of))


def _check_degree(degree: int) -> None:
    if degree > MAX_EXPONENT:
        raise DimError(f"symbolic size grew past degree {MAX_EXPONENT}")


def multiply(a: Terms, b: Terms) -> Terms:
    """The product, with zero coefficients left in. Raises DimError past the size limits."""
    work = len(a) * len(b)
    if work > MAX_PRODUCT_WORK:
        raise _too_many_terms()
    spend_terms(a, len(b))
    if work >= _PACKED_WORK:
        _check_degree(max(map(len, a)) + max(map(len, b)))
        atoms = sorted({atom for terms in (a, b) for monomial in terms for atom in monomial}, key=text_of)
        units = {atom: 1 << _PACKED_BITS * place for place, atom in enumerate(atoms)}
        right = [(sum(units[atom] for atom in monomial), coefficient) for monomial, coefficient in b.items()]
        packed: dict[int, int] = {}
        for monomial, scale in a.items():
            left = sum(units[atom] for atom in monomial)
            for code, coefficient in right:
                packed[left + code] = packed.get(left + code, 0) + scale * coefficient
            if len(packed) > MAX_TERMS * 2:  # some may still cancel; `build` has the last word
                raise _too_many_terms()
        unpacked: Terms = {}
        for code, coefficient in packed.items():
            exponents = zip(atoms, code.to_bytes(len(atoms), "little"), strict=True)
            unpacked[tuple([atom for atom, n in exponents if n for _ in range(n)])] = coefficient
        return unpacked
    terms: Terms = {}
    for first, scale in a.items():
        for second, coefficient in b.items():
            monomial = (join(first, second) if second else first) if first else second
            terms[monomial] = terms.get(monomial, 0) + scale * coefficient
    return terms


# Divisions that always come out even.


def even_atom(monomial: Monomial) -> Atom | None:
    """The first factor that is an always-even division, if there is one."""
    for atom in monomial:
        if atom.divisor:
            return atom
    return None


def has_even_atom(dim: Operand) -> bool:
    """Whether an always-even division takes part.

    Negating one rewrites its terms, and both signs can then lead with a minus: there is no sign to prefer.
    """
    return not isinstance(dim, int) and any(even_atom(monomial) is not None for monomial in dim.terms)


def is_reduced(terms: Terms) -> bool:
    """Whether `reduce_even` would change nothing."""
    for monomial, coefficient in terms.items():
        atom = even_atom(monomial)
        if atom is not None and not 0 <= coefficient < atom.divisor:
            return False
    return True


def reduce_even(terms: Terms) -> None:
    """Rewrite divisor * atom to its numerator, in place, for divisions that always come out even.

    With t = (s*s + s)//2 this turns 2*t into s*s + s, and brings every coefficient of t into {0, 1}, so that
    a value has one spelling. (A product of two different such atoms can still be spelled in two ways.)
    """
    pending: dict[tuple[int, ...], dict[Monomial, Atom]] = {}

    def consider(monomial: Monomial) -> None:
        atom = even_atom(monomial)
        if atom is not None:
            # What replaces an atom is less deep, so taking the deepest products first meets each only once.
            weight = tuple(sorted((factor.depth for factor in monomial if factor.divisor), reverse=True))
            pending.setdefault(weight, {})[monomial] = atom

    for monomial in terms:
        consider(monomial)
    while pending:
        for monomial, atom in pending.pop(max(pending)).items():
            quotient, rest = divmod(terms.get(monomial, 0), atom.divisor)
            if not quotient:
                continue
            terms[monomial] = rest
            index = monomial.index(atom)
            others = monomial[:index] + monomial[index + 1 :]
            numerator = terms_of(atom.args[0])
            spend("terms of sizes", _REDUCTION_WORK * len(numerator))
            for factor, coefficient in numerator.items():
                product = join(others, factor)
                terms[product] = terms.get(product, 0) + quotient * coefficient
                consider(product)
            # How long numbers grow is checked once, where the terms make a size.
            if len(terms) > MAX_TERMS * 2:
                raise _too_many_terms()


# Division of polynomials.


def rank(monomial: Monomial) -> tuple[int, list[str]]:
    """Sort key under which the leading monomial of a polynomial comes first; respects multiplication."""
    return -len(monomial), [atom.text for atom in monomial]


def leading_coefficient(dim: Operand) -> int:
    """The coefficient of the leading monomial; the value of an integer."""
    return dim if isinstance(dim, int) else dim.terms[min(dim.terms, key=rank)]


def without(monomial: Monomial, factor: Monomial) -> Monomial | None:
    """What is left of the monomial without the factor, or None where it does not divide."""
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
    flips = leading_coefficient(b) < 0 and not has_even_atom(b)
    return tuple(common.elements()), -content if flips else content


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

    Beyond a one-term divisor, only a constant r counts: any other split reads worse than the division it
    came from.
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
