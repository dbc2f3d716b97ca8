"""`Expr` and its exact arithmetic, with // and %: the one module that makes expressions.

The operators and the simplification of divisions need each other, so they are together here; what needs no
new expression is in the modules below (`terms`, `atoms`, `intervals`, `text`), which this one imports.
"""

from __future__ import annotations

import math
from collections.abc import Mapping  # noqa: TC003
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from graphflops.dims.atoms import Atom, atom_degree, intern_atom
from graphflops.dims.intervals import Interval, Range, expr_interval
from graphflops.dims.terms import (
    MAX_EXPONENT,
    Monomial,
    Terms,
    cancel,
    check_size,
    common_factor,
    divide,
    fixed_residue,
    has_even_atom,
    is_real,
    is_settled,
    leading_coefficient,
    multiply,
    rank,
    settle,
    terms_of,
)
from graphflops.dims.text import terms_text
from graphflops.errors import DimError

if TYPE_CHECKING:
    import sympy

_FOLD_TERMS = 4  # terms beside an inner floor division that may be multiplied by its divisor


class Expr:
    """An interned integer polynomial over sizes and atoms. Never a constant: constants are plain ints.

    Made by `symbol`, by arithmetic and by the functions of this package, never by calling the class.
    """

    __slots__ = ("_interval", "_symbols", "_text", "terms")

    terms: Terms

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self._text: str | None = None
        self._symbols: frozenset[str] | None = None
        self._interval: Interval | None = None

    # Arithmetic. Every result is exact; one that is a constant is a plain int.

    def __add__(self, other: Dim) -> Dim:
        if isinstance(other, Expr):
            small, large = self.terms, other.terms
            if len(small) > len(large):
                small, large = large, small
            terms = dict(large)
            for monomial, coefficient in small.items():
                terms[monomial] = terms.get(monomial, 0) + coefficient
            return build(terms)
        if isinstance(other, int):
            if not other:
                return self
            terms = dict(self.terms)
            terms[()] = terms.get((), 0) + other
            return build(terms)
        return NotImplemented

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return build({monomial: -coefficient for monomial, coefficient in self.terms.items()})

    def __pos__(self) -> Dim:
        return self

    def __sub__(self, other: Dim) -> Dim:
        if isinstance(other, Expr):
            terms = dict(self.terms)
            for monomial, coefficient in other.terms.items():
                terms[monomial] = terms.get(monomial, 0) - coefficient
            return build(terms)
        if isinstance(other, int):
            return self + -other
        return NotImplemented

    def __rsub__(self, other: Dim) -> Dim:
        return -self + other if isinstance(other, int) else NotImplemented

    def __mul__(self, other: Dim) -> Dim:
        if isinstance(other, Expr):
            return build(multiply(self.terms, other.terms))
        if isinstance(other, int):
            if other == 1:
                return self
            return build({monomial: coefficient * other for monomial, coefficient in self.terms.items()})
        return NotImplemented

    __rmul__ = __mul__

    def __pow__(self, exponent: Dim) -> Dim:
        if isinstance(exponent, Expr):
            return opaque("call", self, exponent, name="pow")
        if not isinstance(exponent, int):
            return NotImplemented
        if not 0 <= exponent <= MAX_EXPONENT:
            raise DimError(f"exponent {exponent} is outside 0..{MAX_EXPONENT}")
        result: Dim = 1
        for _ in range(exponent):
            result = result * self
        return result

    def __rpow__(self, base: Dim) -> Dim:
        return opaque("call", base, self, name="pow") if isinstance(base, int) else NotImplemented

    def __floordiv__(self, other: Dim) -> Dim:
        return floor_div(self, other) if isinstance(other, (int, Expr)) else NotImplemented

    def __rfloordiv__(self, other: Dim) -> Dim:
        return floor_div(other, self) if isinstance(other, int) else NotImplemented

    def __mod__(self, other: Dim) -> Dim:
        return mod(self, other) if isinstance(other, (int, Expr)) else NotImplemented

    def __rmod__(self, other: Dim) -> Dim:
        return mod(other, self) if isinstance(other, int) else NotImplemented

    def __str__(self) -> str:
        if self._text is None:
            self._text = terms_text(self.terms)
        return self._text

    __repr__ = __str__

    def __copy__(self) -> Expr:
        return self

    def __deepcopy__(self, memo: object) -> Expr:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (tuple(self.terms.items()),)

    def atoms(self) -> set[Atom]:
        """The different atoms of the terms, not those inside other atoms."""
        return {atom for monomial in self.terms for atom in monomial}

    def as_atom(self) -> Atom | None:
        """The atom that this is, or None where it is not a lone one."""
        if len(self.terms) == 1:
            ((monomial, coefficient),) = self.terms.items()
            if coefficient == 1 and len(monomial) == 1:
                return monomial[0]
        return None

    @property
    def symbols(self) -> frozenset[str]:
        """The names of every size this depends on, inside atoms too."""
        if self._symbols is None:
            self._symbols = frozenset().union(*(atom.symbols for atom in self.atoms()))
        return self._symbols

    def substitute(self, mapping: Mapping[str, Dim]) -> Dim:
        """Replace sizes by dims, all at once, and simplify again; what no size is left in becomes a plain int.

        Raises ZeroDivisionError where a divisor becomes zero and DimError where the result grows too large.
        """
        if self.symbols.isdisjoint(mapping):
            return self
        from graphflops.dims.substitution import (
            substitute,  # which applies every operation: above this module
        )

        result = substitute(self, mapping, {})
        if isinstance(result, int) or result.symbols:
            return result
        from graphflops.dims.values import evaluate  # of a function that is not exact, such as log2(1000)

        value = evaluate(result, {})
        return result if value is None else value

    def bounds(self, ranges: Mapping[str, Range] | None = None) -> Range:
        """An inclusive (lowest, highest) pair that holds for every value of the sizes; None is unbounded.

        `ranges` gives the same kind of pair for sizes by name; a size it leaves out is at least 0. Found by
        interval arithmetic, so the pair is always true but not always the tightest.
        """
        low, high = expr_interval(self, ranges) if ranges else self.interval()
        return (
            None if low == -math.inf else math.ceil(low),
            None if high == math.inf else math.floor(high),
        )

    def interval(self) -> Interval:
        """The pair of `bounds` without ranges, found once; its floats are only the two infinities."""
        if self._interval is None:
            self._interval = expr_interval(self, {})
        return self._interval

    def degree(self, symbol: str) -> int:
        """How fast this grows in the size named `symbol`: 1 linear, 2 quadratic, 0 not at all.

        A product adds; a sum, min, max and choice take the largest of their parts; ``x // y`` subtracts y's
        degree from x's, not below 0; ``x % y`` has y's; a comparison has 0; a square root has half, rounded
        up; any other function has that of its fastest-growing argument.
        """
        return max(sum(atom_degree(atom, symbol) for atom in monomial) for monomial in self.terms)

    def to_sympy(self) -> sympy.Expr:
        """The same expression in sympy, over integer nonnegative symbols. Imports sympy on first use."""
        from graphflops.dims.sympy_form import to_sympy

        return to_sympy(self)


Dim: TypeAlias = int | Expr

_EXPRS: dict[frozenset[tuple[Monomial, int]], Expr] = {}


def build(terms: Terms) -> Dim:
    """The dim with these terms. Takes the dictionary over; zero coefficients are allowed in it."""
    if 0 in terms.values():
        terms = {monomial: coefficient for monomial, coefficient in terms.items() if coefficient}
    if not terms:
        return 0
    if len(terms) == 1 and () in terms:
        return terms[()]
    key = frozenset(terms.items())
    found = _EXPRS.get(key)
    if found is not None:
        return found
    check_size(terms)
    if not is_settled(terms):
        settle(terms)
        return build(terms)
    return _EXPRS.setdefault(key, Expr(terms))


def _restore(items: tuple[tuple[Monomial, int], ...]) -> Dim:
    return build(dict(items))


def opaque(kind: str, *args: Dim, name: str = "") -> Dim:
    """The operation as an atom, just as it is."""
    return build({(intern_atom(kind, name, args),): 1})


def at_least(a: Dim, b: Dim) -> bool:
    """Whether ``a >= b`` is provable for every value of the sizes."""
    difference = a - b
    return (difference if isinstance(difference, int) else difference.interval()[0]) >= 0


@lru_cache(maxsize=16_384)
def floor_div(a: Dim, b: Dim) -> Dim:
    """``a // b`` rounded down, as Python does, simplified where that is exact.

    Raises ZeroDivisionError when b is the constant 0. A symbolic b is taken to be nonzero.
    """
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
    return _floor_div_by_expr(a, b)


def _floor_div_by_int(a: Expr, divisor: int) -> Dim:
    if divisor == 1:
        return a
    uneven = [monomial for monomial, coefficient in a.terms.items() if monomial and coefficient % divisor]
    if uneven and a.terms[min(uneven, key=rank)] < 0 and not has_even_atom(a):
        # floor(-x/d) = -ceil(x/d): so that -((-s)//d) is the same object as (s + d - 1)//d.
        return -floor_div(-a + (divisor - 1), divisor)
    quotient: Terms = {}
    rest: Terms = {}
    for monomial, coefficient in a.terms.items():
        quotient[monomial], rest[monomial] = divmod(coefficient, divisor)
    whole = build(quotient)
    constant = rest.pop((), 0)
    common = math.gcd(divisor, *rest.values())
    if common == divisor:  # only a constant below the divisor is left
        return whole
    if common > 1:
        part = build({monomial: coefficient // common for monomial, coefficient in rest.items()})
        return whole + floor_div(part + constant // common, divisor // common)
    rest[()] = constant
    remainder = build(rest)
    assert isinstance(remainder, Expr)
    folded = _fold(remainder, divisor)
    if folded is not None:
        return whole + folded
    low, high = remainder.bounds()
    if low is not None and high is not None and low // divisor == high // divisor:
        return whole + low // divisor
    residue = fixed_residue(remainder, divisor)  # (s*s + s + 1)//2 = (s*s + s)//2, which comes out even
    return whole + opaque("//", remainder - residue if residue else remainder, divisor)


def _fold(a: Dim, divisor: Dim) -> Dim | None:
    """(x//y + z)//divisor = (x + y*z)//(y*divisor) for a positive divisor; None when a has no such shape."""
    if isinstance(a, int) or len(a.terms) > _FOLD_TERMS + 1:
        return None
    inner = [
        monomial[0]
        for monomial, coefficient in a.terms.items()
        if coefficient == 1 and len(monomial) == 1 and monomial[0].kind == "//"
    ]
    if len(inner) != 1:
        return None
    numerator, denominator = inner[0].args
    if is_real(numerator) or is_real(denominator):
        return None
    rest = a - build({(inner[0],): 1})
    return floor_div(numerator + rest * denominator, denominator * divisor)


def _floor_div_by_expr(a: Dim, b: Expr) -> Dim:
    factor, content = common_factor(a, b)
    if factor or content != 1:
        return floor_div(build(cancel(a, factor, content)), build(cancel(b, factor, content)))
    split = divide(terms_of(a), b.terms)
    if split is not None:
        return build(split[0]) + floor_div(build(split[1]), b)
    if at_least(b, 0):  # and nonzero, so at least 1
        if leading_coefficient(a) < 0 and not has_even_atom(a):
            negated = -a + b - 1
            if leading_coefficient(negated) >= 0:
                return -floor_div(negated, b)
        if at_least(a, 0) and at_least(b - 1, a):
            return 0
        folded = _fold(a, b)
        if folded is not None:
            return folded
    return opaque("//", a, b)


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
    """``a % b`` with Python's sign rule, simplified where that is exact; 0 where b provably divides a.

    Raises ZeroDivisionError when b is the constant 0. A symbolic b is taken to be nonzero.

    What is left is an atom of its own rather than ``a - b*(a//b)``: it prints as it was written and keeps the
    bounds 0..b-1, which the difference would lose. `same` still proves the two equal.
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
    rest = {monomial: coefficient % divisor for monomial, coefficient in a.terms.items()}
    constant = rest.pop((), 0)
    common = math.gcd(divisor, *rest.values())
    if common == divisor:
        return constant
    if common > 1:
        part = build({monomial: coefficient // common for monomial, coefficient in rest.items()})
        return mod(part + constant // common, divisor // common) * common + constant % common
    rest[()] = constant
    remainder = build(rest)
    assert isinstance(remainder, Expr)
    low, high = remainder.bounds()
    if low is not None and high is not None and low // divisor == high // divisor:
        return remainder - low // divisor * divisor
    residue = fixed_residue(remainder, divisor)
    return opaque("%", remainder, divisor) if residue is None else residue
