"""`Expr`: a polynomial with its operators, and the one module that makes expressions.

How an atom is computed from its arguments (a division, a minimum, a choice, ...) is registered here by the modules that
define it, so that operators and substitution reach it without importing them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from keyword import iskeyword
from typing import TypeAlias

from graphflops.base.lazy import imported
from graphflops.base.limits import spend
from graphflops.dims.atoms import RESERVED_WORDS, Atom, Monomial, Polynomial, Terms, intern_atom, terms_of
from graphflops.dims.evaluation import Intervals, Range, evaluate, interval
from graphflops.dims.terms import FEW_TERMS, MAX_EXPONENT, check_size, is_of_symbols, multiply, plus
from graphflops.errors import DimError, NoValueError, shown

MAX_NAME = 200  # characters of a size's or a function's name


class Expr(Polynomial):
    """An interned integer polynomial over sizes and atoms, made by `symbol` and by arithmetic. Constants are plain ints."""

    __slots__ = ()

    # Arithmetic. Every result is exact; one that is a constant is a plain int.

    def __add__(self, other: Dim) -> Dim:
        if isinstance(other, Expr):
            return build(plus(self.terms, other.terms))
        if isinstance(other, int):
            return build(plus(self.terms, {(): other})) if other else self
        return NotImplemented

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return build({monomial: -coefficient for monomial, coefficient in self.terms.items()})

    def __pos__(self) -> Dim:
        return self

    def __sub__(self, other: Dim) -> Dim:
        if isinstance(other, Expr):
            return build(plus(self.terms, other.terms, -1))
        return self + -other if isinstance(other, int) else NotImplemented

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
        return OPERATIONS["//"]("", (self, other)) if isinstance(other, (int, Expr)) else NotImplemented

    def __rfloordiv__(self, other: Dim) -> Dim:
        return OPERATIONS["//"]("", (other, self)) if isinstance(other, int) else NotImplemented

    def __mod__(self, other: Dim) -> Dim:
        return OPERATIONS["%"]("", (self, other)) if isinstance(other, (int, Expr)) else NotImplemented

    def __rmod__(self, other: Dim) -> Dim:
        return OPERATIONS["%"]("", (other, self)) if isinstance(other, int) else NotImplemented

    def __reduce__(self) -> tuple[object, ...]:
        return build, (dict(self.terms),)

    def substitute(self, mapping: Mapping[str, Dim]) -> Dim:
        """Replace sizes by dims, all at once, and simplify. NoValueError where a divisor becomes 0, DimError past limits."""
        if mapping.keys().isdisjoint(self.symbols):
            return self
        try:
            result = _substituted(self, mapping, {})
        except ZeroDivisionError:
            known = sorted(self.symbols & mapping.keys())
            given = ", ".join(f"{shown(name)} = {mapping[name]}" for name in known)
            raise NoValueError(f"at {given} the size {self} divides by zero") from None
        if isinstance(result, int) or result.symbols:
            return result
        value = evaluate(result, {})  # of a function that is not exact, such as log2(1000)
        return result if value is None else value

    def bounds(self, ranges: Mapping[str, Range] | None = None) -> Range:
        """Inclusive bounds, not always the tightest; None: unbounded. ranges: of sizes by name, for others (0, None)."""
        low, high = Intervals(ranges).of_polynomial(self) if ranges else interval(self)
        return (None if low == -math.inf else math.ceil(low), None if high == math.inf else math.floor(high))


Dim: TypeAlias = int | Expr

# By kind of atom: how it is computed from a name (of a function) and its arguments.
OPERATIONS: dict[str, Callable[[str, Sequence[Dim]], Dim]] = {}

_EXPRS: dict[frozenset[tuple[Monomial, int]], Expr] = {}


def build(terms: Terms) -> Dim:
    """The dim with these terms. Takes the dictionary over; zero coefficients are allowed in it."""
    if 0 in terms.values():
        terms = {monomial: coefficient for monomial, coefficient in terms.items() if coefficient}
    if not terms:
        return 0
    if len(terms) == 1 and () in terms:
        return terms[()]
    if len(terms) > FEW_TERMS:
        spend("terms of sizes", len(terms))
    key = frozenset(terms.items())
    found = _EXPRS.get(key)
    if found is not None:
        return found
    check_size(terms)
    return _EXPRS.setdefault(key, Expr(terms))


def opaque(kind: str, *args: Dim, name: str = "") -> Dim:
    """The operation as an atom, just as it is."""
    return build({(intern_atom(kind, name, args),): 1})


def at_least(a: Dim, b: Dim) -> bool:
    """Whether ``a >= b`` is provable for every value of the sizes."""
    terms = plus(terms_of(a), terms_of(b), -1)
    if all(map(is_of_symbols, terms)):  # each of them is at least 0 and has no end
        return all(coefficient >= 0 for coefficient in terms.values())
    return interval(build(terms))[0] >= 0


def arguments(atom: Atom) -> tuple[Dim, ...]:
    """The arguments of an atom: each polynomial in it is an `Expr`, for no other class makes them."""
    return atom.args  # type: ignore[return-value]


@cache
def symbol(name: str) -> Expr:
    """The size called `name`, 1 to 200 characters: an unknown integer, at least 0. Raises DimError for other names."""
    if not isinstance(name, str) or not name or len(name) > MAX_NAME:
        raise DimError(f"a size's name must be a string of 1 to {MAX_NAME} characters")
    made = opaque("symbol", name=name)
    assert isinstance(made, Expr)
    return made


def total(dims: Iterable[Dim]) -> Dim:
    """The sum of many dims, without building the partial sums. Raises DimError past the size limit."""
    terms: Terms = {}
    constant = 0
    for dim in dims:
        if isinstance(dim, int):
            constant += dim
            continue
        for monomial, coefficient in dim.terms.items():
            terms[monomial] = terms.get(monomial, 0) + coefficient
    if not terms:
        return constant
    terms[()] = terms.get((), 0) + constant
    return build(terms)


def prod(dims: Iterable[Dim]) -> Dim:
    """The product of the dims, 1 for none. Raises DimError past the size limit."""
    sizes = [*dims]
    if {*map(type, sizes)} <= {int}:
        return math.prod(sizes)
    constant = math.prod([size for size in sizes if isinstance(size, int)])
    return _product(constant, tuple([size for size in sizes if not isinstance(size, int)]))


@lru_cache(maxsize=16_384)
def _product(constant: int, factors: tuple[Expr, ...]) -> Dim:
    """Memoised: the shapes of a model repeat one another."""
    result: Dim = 1
    for factor in factors:
        result = result * factor
    return result * constant


def _substituted(dim: Dim, mapping: Mapping[str, Dim], memo: dict[Atom, Dim]) -> Dim:
    """The dim with all sizes replaced at the same time; `memo` holds the replaced atoms."""
    if isinstance(dim, int) or mapping.keys().isdisjoint(dim.symbols):
        return dim
    parts: list[Dim] = []
    for monomial, coefficient in dim.terms.items():
        part: Dim = coefficient
        for atom in monomial:
            if atom not in memo:
                memo[atom] = _substituted_atom(atom, mapping, memo)
            part = part * memo[atom]
        parts.append(part)
    return total(parts)


def _substituted_atom(atom: Atom, mapping: Mapping[str, Dim], memo: dict[Atom, Dim]) -> Dim:
    if atom.kind == "symbol" and atom.name in mapping:
        return mapping[atom.name]
    if mapping.keys().isdisjoint(atom.symbols):
        return build({(atom,): 1})
    if atom.kind == "where":  # the branch not taken may have no value
        condition = _substituted(arguments(atom)[0], mapping, memo)
        if isinstance(condition, int):
            return _substituted(arguments(atom)[1 if condition else 2], mapping, memo)
    return OPERATIONS[atom.kind](atom.name, [_substituted(arg, mapping, memo) for arg in arguments(atom)])


# A size that is only a name, plain or as PyTorch stores it: by far the most frequent texts.
_NAME = re.compile(r"Symbol\('([A-Za-z]\w{0,99})'(?:, [a-z]+=True)*\)|([A-Za-z]\w{0,99})", re.ASCII)


def parse_dim(text: str) -> Dim:
    """Read a size as an `Expr`, PyTorch or sympy print it; the text is never executed. Raises DimError for other text."""
    if not isinstance(text, str):
        raise DimError("a size must be read from a string")
    return _parse_cached(text)


@lru_cache(maxsize=16_384)
def _parse_cached(text: str) -> Dim:
    name = _NAME.fullmatch(text)
    if name is not None and not (text in RESERVED_WORDS or iskeyword(text)):
        return symbol(name[1] or name[2])
    # It builds expressions, and few programs need it.
    parse: Callable[[str], Dim] = imported("graphflops.dims.parser:parse")
    return parse(text)
