"""Division of sizes, rounded down or up, and its remainder: simplified where that is exact."""

import itertools
import math
from functools import lru_cache

from graphflops.dims.atoms import Terms, is_real, terms_of
from graphflops.dims.expr import OPERATIONS, Dim, Expr, arguments, at_least, build, opaque
from graphflops.dims.terms import cancel, common_factor, divide, leading_coefficient, rank

_FOLD_TERMS = 4  # terms added to an inner floor division that may be multiplied by its divisor
_RESIDUE_WORK = 4_096  # term evaluations spent on proving that a division is exact


@lru_cache(maxsize=16_384)
def floor_div(a: Dim, b: Dim) -> Dim:
    """``a // b`` rounded down, simplified where that is exact; a symbolic b is not 0. Raises ZeroDivisionError for 0."""
    if isinstance(b, int):
        if b == 0:
            raise ZeroDivisionError("floor division of a size by zero")
        if isinstance(a, int):
            return a // b
        if b < 0:
            return floor_div(-a, -b)
        return opaque("//", a, b) if is_real(a) else _floor_div_by_int(a, b)
    if isinstance(a, int) and a == 0:
        return 0
    if is_real(a) or is_real(b):
        return opaque("//", a, b)
    factor, content = common_factor(a, b)
    if factor or content != 1:
        return floor_div(build(cancel(a, factor, content)), build(cancel(b, factor, content)))
    split = divide(terms_of(a), b.terms)
    if split is not None:
        return build(split[0]) + floor_div(build(split[1]), b)
    if at_least(b, 0):  # and nonzero, so at least 1
        if leading_coefficient(a) < 0:
            negated = -a + b - 1
            if leading_coefficient(negated) >= 0:
                return -floor_div(negated, b)
        if at_least(a, 0) and at_least(b - 1, a):
            return 0
        folded = _fold(a, b)
        if folded is not None:
            return folded
    return opaque("//", a, b)


def _floor_div_by_int(a: Expr, divisor: int) -> Dim:
    if divisor == 1:
        return a
    uneven = [monomial for monomial, coefficient in a.terms.items() if monomial and coefficient % divisor]
    if uneven and a.terms[min(uneven, key=rank)] < 0:
        # floor(-x/d) = -ceil(x/d): so that -((-s)//d) is the same object as (s + d - 1)//d.
        return -floor_div(-a + (divisor - 1), divisor)
    whole, remainder, common, _ = _reduced(a, divisor)
    if isinstance(remainder, int) or common > 1:
        return whole + floor_div(remainder, divisor // common)
    folded = _fold(remainder, divisor)
    if folded is not None:
        return whole + folded
    low, high = remainder.bounds()
    if low is not None and high is not None and low // divisor == high // divisor:
        return whole + low // divisor
    residue = fixed_residue(remainder, divisor)  # (s*s + s + 1)//2 = (s*s + s)//2, which comes out even
    return whole + opaque("//", remainder - residue if residue else remainder, divisor)


def _reduced(a: Expr, divisor: int) -> tuple[Dim, Dim, int, int]:
    """Numbers q, r, c, n such that a = divisor*q + c*r + n, n < c, and c divides the divisor; c as large as it can be."""
    quotient: Terms = {}
    rest: Terms = {}
    for monomial, coefficient in a.terms.items():
        quotient[monomial], rest[monomial] = divmod(coefficient, divisor)
    common = math.gcd(divisor, *(coefficient for monomial, coefficient in rest.items() if monomial))
    part = build({monomial: coefficient // common for monomial, coefficient in rest.items()})
    return build(quotient), part, common, rest.get((), 0) % common


def _fold(a: Dim, divisor: Dim) -> Dim | None:
    """(x//y + z)//divisor = (x + y*z)//(y*divisor) for a positive divisor; None when a has no such shape."""
    if isinstance(a, int) or len(a.terms) > _FOLD_TERMS + 1:
        return None
    inner = [m[0] for m, factor in a.terms.items() if factor == 1 and len(m) == 1 and m[0].kind == "//"]
    if len(inner) != 1:
        return None
    numerator, denominator = arguments(inner[0])
    if is_real(numerator) or is_real(denominator):
        return None
    rest = a - build({(inner[0],): 1})
    return floor_div(numerator + rest * denominator, denominator * divisor)


def ceil_div(a: Dim, b: Dim) -> Dim:
    """``a / b`` rounded up, simplified like `floor_div`. Raises ZeroDivisionError for a constant b of 0."""
    if is_real(a) or is_real(b) or not at_least(b, 0):
        return -floor_div(-a, b)
    if isinstance(b, Expr):
        factor, content = common_factor(a, b)
        if factor or content != 1:
            return ceil_div(build(cancel(a, factor, content)), build(cancel(b, factor, content)))
        split = divide(terms_of(a), b.terms)
        if split is not None and build(split[1]) == 0:
            return build(split[0])
    return floor_div(a + b - 1, b)


@lru_cache(maxsize=16_384)
def mod(a: Dim, b: Dim) -> Dim:
    """``a % b`` with Python's sign rule, simplified where that is exact; a symbolic b is not zero. Raises ZeroDivisionError.

    What is left is an atom rather than ``a - b*(a//b)``: it prints as it was written and keeps the bounds 0..b-1.
    """
    if isinstance(b, int):
        if b == 0:
            raise ZeroDivisionError("modulo of a size by zero")
        if isinstance(a, int):
            return a % b
        if b < 0:
            return -mod(-a, -b)
        return opaque("%", a, b) if is_real(a) else _mod_by_int(a, b)
    if isinstance(a, int) and a == 0:
        return 0
    if is_real(a) or is_real(b):
        return opaque("%", a, b)
    factor, content = common_factor(a, b)
    if factor or content != 1:
        reduced = mod(build(cancel(a, factor, content)), build(cancel(b, factor, content)))
        return reduced * build({factor: content})
    split = divide(terms_of(a), b.terms)
    if split is not None:
        return mod(build(split[1]), b)
    if at_least(a, 0) and at_least(b - 1, a):
        return a
    return opaque("%", a, b)


def _mod_by_int(a: Expr, divisor: int) -> Dim:
    _, remainder, common, left = _reduced(a, divisor)
    if isinstance(remainder, int) or common > 1:
        return mod(remainder, divisor // common) * common + left
    low, high = remainder.bounds()
    if low is not None and high is not None and low // divisor == high // divisor:
        return remainder - low // divisor * divisor
    residue = fixed_residue(remainder, divisor)
    return opaque("%", remainder, divisor) if residue is None else residue


def fixed_residue(dim: Dim, divisor: int) -> int | None:
    """The value of dim % divisor if it is the same for all residues of dim's atoms; None if not, or if they are many."""
    polynomial = terms_of(dim)
    atoms = {atom for monomial in polynomial for atom in monomial}
    work = len(polynomial)
    for _ in atoms:
        work *= divisor
        if work > _RESIDUE_WORK:
            return None
    index = {atom: place for place, atom in enumerate(atoms)}
    terms = [(factor, [index[atom] for atom in monomial]) for monomial, factor in polynomial.items()]
    expected = polynomial.get((), 0) % divisor  # the residue where every atom is 0
    for values in itertools.product(range(divisor), repeat=len(atoms)):
        value = sum(factor * math.prod([values[place] for place in places]) for factor, places in terms)
        if value % divisor != expected:
            return None
    return expected


OPERATIONS["//"] = lambda _, args: floor_div(args[0], args[1])
OPERATIONS["%"] = lambda _, args: mod(args[0], args[1])
