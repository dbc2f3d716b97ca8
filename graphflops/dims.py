"""Symbolic sizes: exact integer polynomials over named sizes and opaque atoms.

A `Dim` is a plain ``int`` or an `Expr`. An `Expr` is a sum of integer multiples of products of atoms, where
an atom is a named size or something no polynomial can express: floor division, modulo, min, max, a comparison
(worth 0 or 1), a choice, or a named function. Every `Expr` is interned, so two equal polynomials are the same
object: equality and hashing are by identity and cost nothing.

A named size stands for an integer that is at least zero. A size used as a divisor is taken to be nonzero,
since the division would otherwise have no value; that is what lets ``(64*a*b)//(a*b)`` be 64.

An `Expr` is always true as a condition and has no order of its own: use `compare`, `at_least` and `same`.

The interning tables live as long as the process: an entry can never be dropped while its identity matters.
"""

from __future__ import annotations

import keyword
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence  # noqa: TC003 - annotations can be resolved
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from graphflops.errors import DimError, ShapeError

if TYPE_CHECKING:
    import sympy

__all__ = [
    "Dim",
    "DimError",
    "Expr",
    "at_least",
    "broadcast",
    "call",
    "ceil_div",
    "compare",
    "differ",
    "dim_max",
    "dim_min",
    "evaluate",
    "floor_div",
    "mod",
    "parse_dim",
    "prod",
    "same",
    "symbol",
    "total",
    "where",
]

MAX_TERMS = 2_000  # terms in one polynomial
MAX_PRODUCT_WORK = 400_000  # term pairs multiplied for one product
MAX_EXPONENT = 64  # largest exponent of `**` and largest total degree of a term
MAX_ATOM_TEXT = 5_000  # characters of one printed atom
MAX_ATOM_DEPTH = 24  # atoms nested inside atoms
MAX_CHOICES = 64  # different arguments of one min or max
MAX_NAME = 200  # characters of a size's name
MAX_POWER_BITS = 4_096  # bits of a number made by evaluating a power or a shift
_RESIDUE_WORK = 4_096  # term evaluations spent on proving that a division is exact
_DIVISION_WORK = 5_000  # terms looked at in one polynomial division
_FOLD_TERMS = 4  # terms beside an inner floor division that may be multiplied by its divisor

Range: TypeAlias = "tuple[int | None, int | None]"
_Monomial: TypeAlias = "tuple[_Atom, ...]"  # sorted by atom text, repeated for powers; () is the constant
_Terms: TypeAlias = "dict[_Monomial, int]"
_Interval: TypeAlias = "tuple[int | float, int | float]"  # floats are only the two infinities

# Bare words that `parse_dim` reads as something other than a size's name.
RESERVED_WORDS = frozenset({"true", "false", "oo", "int_oo", "zoo", "nan"})


def _truediv(a: Any, b: Any) -> Any:
    from fractions import Fraction

    return Fraction(a) / Fraction(b)


def _power(a: Any, b: Any) -> Any:
    if not isinstance(a, int) or not isinstance(b, int):
        return float(a) ** float(b)
    if b < 0 or (abs(a) > 1 and a.bit_length() * b > MAX_POWER_BITS):
        raise OverflowError
    return a**b


def _shift_left(a: Any, b: Any) -> Any:
    if b > MAX_POWER_BITS:
        raise OverflowError
    return a << b


def _square_root(a: Any) -> Any:
    if isinstance(a, int) and math.isqrt(a) ** 2 == a:
        return math.isqrt(a)
    return math.sqrt(a)


# Functions whose value need not be an integer: atoms of these block every simplification that relies on
# integrality. The others in FUNCTIONS give integers for integers.
REAL_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sqrt": _square_root,
    "truediv": _truediv,
    **{
        name: getattr(math, name)
        for name in (
            "exp log log2 sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh".split()  # noqa: SIM905
        )
    },
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **REAL_FUNCTIONS,
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor,
    "lshift": _shift_left,
    "rshift": operator.rshift,
    "pow": _power,
    "round": round,
}
_NEVER_NEGATIVE = frozenset(  # for arguments that are not
    {"bitwise_and", "bitwise_or", "bitwise_xor", "lshift", "rshift", "pow", "truediv", "round"}
)
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class _Atom:
    """An indivisible factor: a named size, or an operation on dims that no polynomial expresses."""

    depth: int

    __slots__ = ("args", "depth", "divisor", "kind", "name", "real", "symbols", "text", "tight")

    def __init__(self, kind: str, name: str, args: tuple[Dim, ...]) -> None:
        self.kind = kind
        self.name = name
        self.args = args
        parts = [arg for arg in args if isinstance(arg, Expr)]
        self.depth = 1 + max((atom.depth for part in parts for atom in part._atoms()), default=0)
        self.symbols: frozenset[str] = (
            frozenset((name,)) if kind == "symbol" else frozenset().union(*(part.symbols for part in parts))
        )
        # Real-valued: not provably an integer even when every size is one.
        self.real = (kind == "call" and name in REAL_FUNCTIONS) or (
            kind in ("%", "min", "max", "where", "call") and name != "round" and any(map(_is_real, parts))
        )
        self.tight = kind not in ("//", "%") or args[1:] == (1,)  # prints without needing parentheses
        self.text = _atom_text(self)
        if self.depth > MAX_ATOM_DEPTH or len(self.text) > MAX_ATOM_TEXT:
            raise DimError(f"symbolic size grew past {MAX_ATOM_DEPTH} levels or {MAX_ATOM_TEXT} characters")
        # Nonzero only for a floor division that always comes out even: then divisor * atom == args[0].
        self.divisor = 0
        if kind == "//" and isinstance(args[1], int) and isinstance(args[0], Expr) and not _is_real(args[0]):
            self.divisor = args[1] if _fixed_residue(args[0], args[1]) == 0 else 0

    def __repr__(self) -> str:
        return f"<atom {self.text}>"

    def __deepcopy__(self, memo: object) -> _Atom:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return _intern_atom, (self.kind, self.name, self.args)


class Expr:
    """An interned integer polynomial over sizes and atoms. Never a constant: constants are plain ints.

    Made by `symbol`, by arithmetic and by the functions of this module, never by calling the class.
    """

    __slots__ = ("_interval", "_symbols", "_text", "terms")

    terms: _Terms

    def __init__(self, terms: _Terms) -> None:
        self.terms = terms
        self._text: str | None = None
        self._symbols: frozenset[str] | None = None
        self._interval: _Interval | None = None

    # Arithmetic. Every result is exact; one that is a constant is a plain int.

    def __add__(self, other: Dim) -> Dim:
        if isinstance(other, Expr):
            small, large = self.terms, other.terms
            if len(small) > len(large):
                small, large = large, small
            terms = dict(large)
            for monomial, coefficient in small.items():
                terms[monomial] = terms.get(monomial, 0) + coefficient
            return _build(terms)
        if isinstance(other, int):
            if not other:
                return self
            terms = dict(self.terms)
            terms[()] = terms.get((), 0) + other
            return _build(terms)
        return NotImplemented

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return _build({monomial: -coefficient for monomial, coefficient in self.terms.items()})

    def __pos__(self) -> Dim:
        return self

    def __sub__(self, other: Dim) -> Dim:
        if isinstance(other, Expr):
            terms = dict(self.terms)
            for monomial, coefficient in other.terms.items():
                terms[monomial] = terms.get(monomial, 0) - coefficient
            return _build(terms)
        if isinstance(other, int):
            return self + -other
        return NotImplemented

    def __rsub__(self, other: Dim) -> Dim:
        return -self + other if isinstance(other, int) else NotImplemented

    def __mul__(self, other: Dim) -> Dim:
        if isinstance(other, Expr):
            return _multiply(self, other)
        if isinstance(other, int):
            if other == 1:
                return self
            return _build({monomial: coefficient * other for monomial, coefficient in self.terms.items()})
        return NotImplemented

    __rmul__ = __mul__

    def __pow__(self, exponent: Dim) -> Dim:
        if isinstance(exponent, Expr):
            return call("pow", self, exponent)
        if not isinstance(exponent, int):
            return NotImplemented
        if not 0 <= exponent <= MAX_EXPONENT:
            raise DimError(f"exponent {exponent} is outside 0..{MAX_EXPONENT}")
        result: Dim = 1
        for _ in range(exponent):
            result = result * self
        return result

    def __rpow__(self, base: Dim) -> Dim:
        return call("pow", base, self) if isinstance(base, int) else NotImplemented

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
            self._text = _expr_text(self)
        return self._text

    __repr__ = __str__

    def __copy__(self) -> Expr:
        return self

    def __deepcopy__(self, memo: object) -> Expr:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (tuple(self.terms.items()),)

    def _atoms(self) -> set[_Atom]:
        return {atom for monomial in self.terms for atom in monomial}

    @property
    def symbols(self) -> frozenset[str]:
        """The names of every size this depends on, inside atoms too."""
        if self._symbols is None:
            self._symbols = frozenset().union(*(atom.symbols for atom in self._atoms()))
        return self._symbols

    def substitute(self, mapping: Mapping[str, Dim]) -> Dim:
        """Replace sizes by dims, all at once, and simplify again.

        Raises ZeroDivisionError where a divisor becomes zero and DimError where the result grows too large.
        """
        if self.symbols.isdisjoint(mapping):
            return self
        return _substitute(self, mapping, {})

    def bounds(self, ranges: Mapping[str, Range] | None = None) -> Range:
        """An inclusive (lowest, highest) pair that holds for every value of the sizes; None is unbounded.

        `ranges` gives the same kind of pair for sizes by name; a size it leaves out is at least 0. Found by
        interval arithmetic, so the pair is always true but not always the tightest.
        """
        if ranges:
            low, high = _expr_interval(self, ranges)
        else:
            low, high = _default_interval(self)
        return (
            None if low == -math.inf else math.ceil(low),
            None if high == math.inf else math.floor(high),
        )

    def degree(self, symbol: str) -> int:
        """How fast this grows in the size named `symbol`: 1 linear, 2 quadratic, 0 not at all.

        A product adds; a sum, min, max and choice take the largest of their parts; ``x // y`` subtracts y's
        degree from x's, not below 0; ``x % y`` has y's; a comparison has 0; a square root has half, rounded
        up; any other function has that of its fastest-growing argument.
        """
        return max(sum(_atom_degree(atom, symbol) for atom in monomial) for monomial in self.terms)

    def to_sympy(self) -> sympy.Expr:
        """The same expression in sympy, over integer nonnegative symbols. Imports sympy on first use."""
        return _to_sympy(self)


Dim: TypeAlias = int | Expr

_EXPRS: dict[frozenset[tuple[_Monomial, int]], Expr] = {}
_ATOMS: dict[tuple[str, str, tuple[Dim, ...]], _Atom] = {}
_SYMBOLS: dict[str, Expr] = {}


# Building polynomials.


def _build(terms: _Terms) -> Dim:
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
    if len(terms) > MAX_TERMS:
        raise DimError(f"symbolic size grew past {MAX_TERMS} terms")
    uneven = [monomial for monomial in terms if _even_atom(monomial) is not None]
    if uneven and _settle(terms, uneven):
        return _build(terms)
    return _EXPRS.setdefault(key, Expr(terms))


def _even_atom(monomial: _Monomial) -> _Atom | None:
    for atom in monomial:
        if atom.divisor:
            return atom
    return None


def _has_even_atom(dim: Dim) -> bool:
    """Whether an always-even division takes part.

    Negating one rewrites its terms, and both signs can then lead with a minus: there is no sign to prefer.
    """
    return isinstance(dim, Expr) and any(_even_atom(monomial) is not None for monomial in dim.terms)


def _settle(terms: _Terms, queue: list[_Monomial]) -> bool:
    """Rewrite divisor * atom to its numerator for divisions that always come out even; True if terms changed.

    With t = (s*s + s)//2 this turns 2*t into s*s + s, and brings every coefficient of t into {0, 1}, so that
    a value has one spelling. (A product of two different such atoms can still be spelled in two ways.)
    """
    changed = False
    while queue:
        monomial = queue.pop()
        atom = _even_atom(monomial)
        assert atom is not None
        quotient, rest = divmod(terms.get(monomial, 0), atom.divisor)
        if not quotient:
            continue
        changed = True
        terms[monomial] = rest
        index = monomial.index(atom)
        others = monomial[:index] + monomial[index + 1 :]
        numerator = atom.args[0]
        assert isinstance(numerator, Expr)
        for factor, coefficient in numerator.terms.items():
            product = _join(others, factor)
            terms[product] = terms.get(product, 0) + quotient * coefficient
            if _even_atom(product) is not None:
                queue.append(product)
    return changed


@lru_cache(maxsize=65_536)
def _join(first: _Monomial, second: _Monomial) -> _Monomial:
    if len(first) + len(second) > MAX_EXPONENT:
        raise DimError(f"symbolic size grew past degree {MAX_EXPONENT}")
    return tuple(sorted(first + second, key=_text_of))


def _text_of(atom: _Atom) -> str:
    return atom.text


def _multiply(a: Expr, b: Expr) -> Dim:
    if len(a.terms) * len(b.terms) > MAX_PRODUCT_WORK:
        raise DimError(f"symbolic size grew past {MAX_TERMS} terms")
    terms: _Terms = {}
    for first, scale in a.terms.items():
        for second, coefficient in b.terms.items():
            monomial = (_join(first, second) if second else first) if first else second
            terms[monomial] = terms.get(monomial, 0) + scale * coefficient
        if len(terms) > MAX_TERMS * 2:  # some may still cancel; `_build` has the last word
            raise DimError(f"symbolic size grew past {MAX_TERMS} terms")
    return _build(terms)


def _restore(items: tuple[tuple[_Monomial, int], ...]) -> Dim:
    return _build(dict(items))


def _intern_atom(kind: str, name: str, args: tuple[Dim, ...]) -> _Atom:
    key = (kind, name, args)
    atom = _ATOMS.get(key)
    if atom is None:
        plain = tuple(int(arg) if isinstance(arg, int) else arg for arg in args)
        atom = _ATOMS.setdefault(key, _Atom(kind, name, plain))
    return atom


def _opaque(kind: str, *args: Dim, name: str = "") -> Dim:
    return _build({(_intern_atom(kind, name, args),): 1})


def symbol(name: str) -> Expr:
    """The size called `name`: an unknown integer, at least 0.

    Any text of 1 to 200 characters is a name. Raises DimError for anything else.
    """
    found = _SYMBOLS.get(name)
    if found is not None:
        return found
    if not isinstance(name, str) or not name or len(name) > MAX_NAME:
        raise DimError(f"a size's name must be a string of 1 to {MAX_NAME} characters")
    made = _opaque("symbol", name=name)
    assert isinstance(made, Expr)
    return _SYMBOLS.setdefault(name, made)


def total(dims: Iterable[Dim]) -> Dim:
    """The sum of many dims, without building the partial sums. Raises DimError past the size limit."""
    terms: _Terms = {}
    constant = 0
    for dim in dims:
        if isinstance(dim, int):
            constant += dim
            continue
        for monomial, coefficient in dim.terms.items():
            terms[monomial] = terms.get(monomial, 0) + coefficient
    terms[()] = terms.get((), 0) + constant
    return _build(terms)


def prod(dims: Iterable[Dim]) -> Dim:
    """The product of the dims, 1 for none. Raises DimError past the size limit."""
    constant = 1
    result: Dim = 1
    for dim in dims:
        if isinstance(dim, int):
            constant *= dim
        else:
            result = result * dim
    return result * constant


def _is_real(dim: Dim) -> bool:
    """Whether the value need not be an integer."""
    return isinstance(dim, Expr) and any(atom.real for monomial in dim.terms for atom in monomial)


def _rank(monomial: _Monomial) -> tuple[int, list[str]]:
    """Sort key under which the leading monomial of a polynomial comes first; respects multiplication."""
    return -len(monomial), [atom.text for atom in monomial]


def _leading(dim: Expr) -> _Monomial:
    return min(dim.terms, key=_rank)


# Floor division and modulo.


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
        return _opaque("//", a, b) if _is_real(a) else _floor_div_by_int(a, b)
    if isinstance(a, int) and a == 0:
        return 0
    if _is_real(a) or _is_real(b):
        return _opaque("//", a, b)
    return _floor_div_by_expr(a, b)


def _floor_div_by_int(a: Expr, divisor: int) -> Dim:
    if divisor == 1:
        return a
    uneven = [monomial for monomial, coefficient in a.terms.items() if monomial and coefficient % divisor]
    if uneven and a.terms[min(uneven, key=_rank)] < 0 and not _has_even_atom(a):
        # floor(-x/d) = -ceil(x/d): so that -((-s)//d) is the same object as (s + d - 1)//d.
        return -floor_div(-a + (divisor - 1), divisor)
    quotient: _Terms = {}
    rest: _Terms = {}
    for monomial, coefficient in a.terms.items():
        quotient[monomial], rest[monomial] = divmod(coefficient, divisor)
    whole = _build(quotient)
    constant = rest.pop((), 0)
    common = math.gcd(divisor, *rest.values())
    if common == divisor:  # only a constant below the divisor is left
        return whole
    if common > 1:
        part = _build({monomial: coefficient // common for monomial, coefficient in rest.items()})
        return whole + floor_div(part + constant // common, divisor // common)
    rest[()] = constant
    remainder = _build(rest)
    assert isinstance(remainder, Expr)
    folded = _fold(remainder, divisor)
    if folded is not None:
        return whole + folded
    low, high = remainder.bounds()
    if low is not None and high is not None and low // divisor == high // divisor:
        return whole + low // divisor
    residue = _fixed_residue(remainder, divisor)  # (s*s + s + 1)//2 = (s*s + s)//2, which comes out even
    return whole + _opaque("//", remainder - residue if residue else remainder, divisor)


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
    if _is_real(numerator) or _is_real(denominator):
        return None
    rest = a - _build({(inner[0],): 1})
    return floor_div(numerator + rest * denominator, denominator * divisor)


def _common_factor(a: Dim, b: Expr) -> tuple[_Monomial, int]:
    """The largest monomial and integer that divide both, the latter negated to make b lead with a plus."""
    terms = [*_terms_of(a).items(), *b.terms.items()]
    common = list(terms[0][0])
    for monomial, _ in terms[1:]:
        if not common:
            break
        left = list(monomial)
        kept = []
        for atom in common:
            if atom in left:
                left.remove(atom)
                kept.append(atom)
        common = kept
    content = math.gcd(*(coefficient for _, coefficient in terms))
    flips = b.terms[_leading(b)] < 0 and not _has_even_atom(b)
    return tuple(common), -content if flips else content


def _terms_of(dim: Dim) -> _Terms:
    return dim.terms if isinstance(dim, Expr) else {(): dim} if dim else {}


def _without(monomial: _Monomial, factor: _Monomial) -> _Monomial | None:
    """What is left of the monomial without the factor, or None where it does not divide."""
    left = list(monomial)
    for atom in factor:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def _cancel(dim: Dim, factor: _Monomial, content: int) -> Dim:
    terms: _Terms = {}
    for monomial, coefficient in _terms_of(dim).items():
        left = _without(monomial, factor)
        assert left is not None
        terms[left] = coefficient // content
    return _build(terms)


def _divide(a: Dim, b: Expr) -> tuple[Dim, Dim]:
    """(q, r) with a == q*b + r exactly; q is 0 unless b's leading coefficient is positive.

    Beyond a one-term divisor, q is nonzero only where r is a constant: any other split reads worse than the
    division it came from.
    """
    lead = _leading(b)
    scale = b.terms[lead]
    if scale < 0:
        return 0, a
    quotient: _Terms = {}
    rest = dict(_terms_of(a))
    work = 0
    while True:
        work += len(rest)
        if work > _DIVISION_WORK:
            return 0, a
        candidates = [
            monomial
            for monomial, coefficient in rest.items()
            if not 0 <= coefficient < scale and _without(monomial, lead) is not None
        ]
        if not candidates:
            break
        monomial = min(candidates, key=_rank)
        left = _without(monomial, lead)
        assert left is not None
        factor = rest[monomial] // scale
        quotient[left] = quotient.get(left, 0) + factor
        for other, coefficient in b.terms.items():
            product = _join(left, other)
            value = rest.get(product, 0) - factor * coefficient
            if value:
                rest[product] = value
            else:
                rest.pop(product, None)
    if not quotient or (len(b.terms) > 1 and any(rest)):
        return 0, a
    return _build(quotient), _build(rest)


def _floor_div_by_expr(a: Dim, b: Expr) -> Dim:
    factor, content = _common_factor(a, b)
    if factor or content != 1:
        return floor_div(_cancel(a, factor, content), _cancel(b, factor, content))
    quotient, rest = _divide(a, b)
    if isinstance(rest, int) and rest == 0:
        return quotient
    if not (isinstance(quotient, int) and quotient == 0):
        return quotient + floor_div(rest, b)
    if at_least(b, 0):  # and nonzero, so at least 1
        if _leading_coefficient(a) < 0 and not _has_even_atom(a):
            negated = -a + b - 1
            if _leading_coefficient(negated) >= 0:
                return -floor_div(negated, b)
        if at_least(a, 0) and at_least(b - 1, a):
            return 0
        folded = _fold(a, b)
        if folded is not None:
            return folded
    return _opaque("//", a, b)


def _leading_coefficient(dim: Dim) -> int:
    return dim.terms[_leading(dim)] if isinstance(dim, Expr) else dim


def ceil_div(a: Dim, b: Dim) -> Dim:
    """``a / b`` rounded up, simplified like `floor_div`. Raises ZeroDivisionError for a constant b of 0."""
    if _is_real(a) or _is_real(b) or not at_least(b, 0):
        return -floor_div(-a, b)
    if isinstance(b, Expr):
        factor, content = _common_factor(a, b)
        if factor or content != 1:
            return ceil_div(_cancel(a, factor, content), _cancel(b, factor, content))
        quotient, rest = _divide(a, b)
        if isinstance(rest, int) and rest == 0:
            return quotient
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
        return _opaque("%", a, b) if _is_real(a) else _mod_by_int(a, b)
    if isinstance(a, int) and a == 0:
        return 0
    if _is_real(a) or _is_real(b):
        return _opaque("%", a, b)
    factor, content = _common_factor(a, b)
    if factor or content != 1:
        return mod(_cancel(a, factor, content), _cancel(b, factor, content)) * _build({factor: content})
    _, rest = _divide(a, b)
    if rest is not a:
        return mod(rest, b)
    if at_least(a, 0) and at_least(b - 1, a):
        return a
    return _opaque("%", a, b)


def _mod_by_int(a: Expr, divisor: int) -> Dim:
    rest = {monomial: coefficient % divisor for monomial, coefficient in a.terms.items()}
    constant = rest.pop((), 0)
    common = math.gcd(divisor, *rest.values())
    if common == divisor:
        return constant
    if common > 1:
        part = _build({monomial: coefficient // common for monomial, coefficient in rest.items()})
        return mod(part + constant // common, divisor // common) * common + constant % common
    rest[()] = constant
    remainder = _build(rest)
    assert isinstance(remainder, Expr)
    low, high = remainder.bounds()
    if low is not None and high is not None and low // divisor == high // divisor:
        return remainder - low // divisor * divisor
    residue = _fixed_residue(remainder, divisor)
    return _opaque("%", remainder, divisor) if residue is None else residue


def _fixed_residue(dim: Expr, divisor: int) -> int | None:
    """The value of dim % divisor where that is the same whatever integers the atoms of dim are.

    Found by trying every residue of the atoms; None where it varies or there are too many to try.
    """
    atoms = sorted(dim._atoms(), key=_text_of)
    work = len(dim.terms)
    for _ in atoms:
        work *= divisor
        if work > _RESIDUE_WORK:
            return None
    index = {atom: place for place, atom in enumerate(atoms)}
    terms = [(factor, [index[atom] for atom in monomial]) for monomial, factor in dim.terms.items()]
    expected = dim.terms.get((), 0) % divisor  # the residue where every atom is 0
    values = [0] * len(atoms)
    while True:
        for place in range(len(values)):
            values[place] += 1
            if values[place] < divisor:
                break
            values[place] = 0
        else:
            return expected
        value = sum(
            coefficient * math.prod([values[place] for place in places]) for coefficient, places in terms
        )
        if value % divisor != expected:
            return None


# Min, max, comparisons, choices, functions.


def _dim_key(dim: Dim) -> tuple[int, int, str]:
    return (0, dim, "") if isinstance(dim, int) else (1, 0, str(dim))


def dim_min(*dims: Dim) -> Dim:
    """The smallest of the dims, without those provably never the smallest. Raises DimError for none."""
    return _extreme("min", dims)


def dim_max(*dims: Dim) -> Dim:
    """The largest of the dims, without those provably never the largest. Raises DimError for none."""
    return _extreme("max", dims)


def _extreme(kind: str, dims: Sequence[Dim]) -> Dim:
    flat: set[Dim] = set()
    for dim in dims:
        if isinstance(dim, Expr) and len(dim.terms) == 1:
            ((monomial, coefficient),) = dim.terms.items()
            if coefficient == 1 and len(monomial) == 1 and monomial[0].kind == kind:
                flat.update(monomial[0].args)
                continue
        flat.add(dim)
    if not flat:
        raise DimError(f"{kind} of no sizes")
    if len(flat) > MAX_CHOICES:
        raise DimError(f"symbolic size grew past a {kind} of {MAX_CHOICES} sizes")

    def covers(kept: Dim, other: Dim) -> bool:
        return at_least(other, kept) if kind == "min" else at_least(kept, other)

    chosen: list[Dim] = []
    for dim in sorted(flat, key=_dim_key):
        if not any(covers(kept, dim) for kept in chosen):
            chosen = [kept for kept in chosen if not covers(dim, kept)]
            chosen.append(dim)
    return chosen[0] if len(chosen) == 1 else _opaque(kind, *chosen)


def compare(op: str, a: Dim, b: Dim) -> Dim:
    """1 where ``a op b`` holds and 0 where it does not: an int where provable, else an atom.

    `op` is one of == != < <= > >=; raises DimError for another.
    """
    if op not in _COMPARISONS:
        raise DimError(f"unknown comparison {op!r}")
    if isinstance(a, int) and isinstance(b, int):
        return int(_COMPARISONS[op](a, b))
    if op in (">", ">="):
        return compare("<" if op == ">" else "<=", b, a)
    strict = op in ("<", "!=")
    if same(a, b):
        return int(not strict)
    if op in ("==", "!="):
        if differ(a, b):
            return int(strict)
    else:
        difference = b - a
        low, high = _interval_of(difference, {})
        if low > 0 or (low == 0 and not strict):
            return 1
        if high < 0 or (high == 0 and strict):
            return 0
    return _opaque(op, *_sides(op, a, b))


def _sides(op: str, a: Dim, b: Dim) -> tuple[Dim, Dim]:
    """Both sides without what they share, so that s + 1 <= t + 1 and s <= t are one comparison."""
    difference = b - a
    assert isinstance(difference, Expr)
    content = math.gcd(*difference.terms.values())
    if op in ("==", "!=") and difference.terms[_leading(difference)] > 0 and not _has_even_atom(difference):
        content = -content  # either order says the same: take the one with the leading term on the left
    left: _Terms = {}
    right: _Terms = {}
    for monomial, coefficient in difference.terms.items():
        side = right if coefficient // content > 0 else left
        side[monomial] = abs(coefficient // content)
    return _build(left), _build(right)


def where(condition: Dim, a: Dim, b: Dim) -> Dim:
    """The choice of a where the condition is nonzero, else b."""
    if isinstance(condition, int):
        return a if condition else b
    if a is b or same(a, b):
        return a
    return _opaque("where", condition, a, b)


def function_arity(name: str) -> int:
    """How many arguments a function in FUNCTIONS takes."""
    return 1 if name == "round" or (name in REAL_FUNCTIONS and name != "truediv") else 2


def call(name: str, *args: Dim) -> Dim:
    """The named function of the arguments, as an opaque atom; a plain int where the value is one and known.

    Real-valued functions (`sqrt`, `truediv`, `log`, ...) are kept out of every simplification that needs an
    integer. A function this module does not know is taken to be integer-valued. Raises DimError when the name
    is not an identifier.
    """
    if not (name.isascii() and name.isidentifier()) or len(name) > MAX_NAME:
        raise DimError("a function's name must be an identifier")
    if name in FUNCTIONS and len(args) != function_arity(name):
        raise DimError(f"{name} takes {function_arity(name)} arguments, not {len(args)}")
    if name in ("lshift", "rshift") and isinstance(args[1], int) and 0 <= args[1] <= 256:
        return args[0] * (1 << args[1]) if name == "lshift" else floor_div(args[0], 1 << args[1])
    if name == "pow" and isinstance(args[0], Expr) and isinstance(args[1], int) and args[1] >= 0:
        return args[0] ** args[1]
    if name in FUNCTIONS and all(isinstance(arg, int) for arg in args):
        try:
            value = FUNCTIONS[name](*args)
        except (ArithmeticError, ValueError):
            value = None  # no value there: leave it as written
        if isinstance(value, int) or (value is not None and math.isfinite(value) and value == int(value)):
            return int(value)
    return _opaque("call", *args, name=name)


# Proofs.


def same(a: Dim, b: Dim) -> bool:
    """Whether a and b are provably equal whatever the sizes are."""
    if a is b:
        return True
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    difference = a - b
    if isinstance(difference, int):
        return difference == 0
    spelled_out = _proof_form(difference)
    return isinstance(spelled_out, int) and spelled_out == 0


def _proof_form(dim: Expr) -> Dim:
    """The same value with its outer divisions in one of several possible spellings, so that more cancels."""
    if all(atom.kind not in ("//", "%") for atom in dim._atoms()):
        return dim
    return total(
        prod(_proof_spelling(atom) for atom in monomial) * coefficient
        for monomial, coefficient in dim.terms.items()
    )


def _proof_spelling(atom: _Atom) -> Dim:
    if atom.kind == "%":  # x - y*(x//y)
        quotient = floor_div(*atom.args)
        return atom.args[0] - atom.args[1] * (
            _proof_form(quotient) if isinstance(quotient, Expr) else quotient
        )
    itself = _build({(atom,): 1})
    if atom.kind != "//" or atom.divisor:
        return itself
    numerator, divisor = atom.args
    if isinstance(numerator, int) or not isinstance(divisor, int) or _is_real(numerator):
        return itself
    # s//2 = s - (s + 1)//2: both are kept as they come, and here one is chosen.
    mirrored = divisor - 1 - numerator
    assert isinstance(mirrored, Expr)
    split = {monomial: divmod(coefficient, divisor) for monomial, coefficient in mirrored.terms.items()}
    rest = _build({monomial: part for monomial, (_, part) in split.items()})
    if str(rest) >= str(numerator):
        return itself
    return -(
        _build({monomial: whole for monomial, (whole, _) in split.items()}) + _opaque("//", rest, divisor)
    )


def differ(a: Dim, b: Dim) -> bool:
    """Whether a and b are provably different for every value of the sizes."""
    difference = a - b
    if isinstance(difference, int):
        return difference != 0
    low, high = _default_interval(difference)
    if low > 0 or high < 0:
        return True
    # 2*x + 1 is never 0: the constant is no multiple of what divides every other term.
    constant = difference.terms.get((), 0)
    content = math.gcd(*(coefficient for monomial, coefficient in difference.terms.items() if monomial))
    return constant % content != 0 and not _is_real(difference)


def at_least(a: Dim, b: Dim) -> bool:
    """Whether ``a >= b`` is provable for every value of the sizes."""
    difference = a - b
    if isinstance(difference, int):
        return difference >= 0
    return _default_interval(difference)[0] >= 0


# Interval arithmetic.


def _default_interval(dim: Expr) -> _Interval:
    if dim._interval is None:
        dim._interval = _expr_interval(dim, {})
    return dim._interval


def _interval_of(dim: Dim, ranges: Mapping[str, Range]) -> _Interval:
    if isinstance(dim, int):
        return dim, dim
    return _expr_interval(dim, ranges) if ranges else _default_interval(dim)


def _expr_interval(dim: Expr, ranges: Mapping[str, Range]) -> _Interval:
    low, high = _sum_interval(dim, ranges)
    scale = 1
    for monomial in dim.terms:
        for atom in set(monomial):
            if atom.divisor:
                scale = math.lcm(scale, atom.divisor ** monomial.count(atom))
    if scale > 1 and not _is_real(dim):
        # -t is kept as t - (s*s + s) for an even division t; multiplied out it has its tight bounds back.
        scaled = dim * scale
        first, last = (scaled, scaled) if isinstance(scaled, int) else _sum_interval(scaled, ranges)
        low = max(low, first if first == -math.inf else -(-first // scale))
        high = min(high, last if last == math.inf else last // scale)
    return low, high


def _sum_interval(dim: Expr, ranges: Mapping[str, Range]) -> _Interval:
    low: int | float = 0
    high: int | float = 0
    for monomial, coefficient in dim.terms.items():
        span: _Interval = (coefficient, coefficient)
        done: set[_Atom] = set()
        for atom in monomial:
            if atom not in done:
                done.add(atom)
                span = _times(span, _power_interval(_atom_interval(atom, ranges), monomial.count(atom)))
        low += span[0]
        high += span[1]
    return low, high


def _scale(x: int | float, y: int | float) -> int | float:
    if x == 0 or y == 0:
        return 0  # an endpoint at infinity is only approached, so 0 times it is 0
    if x in (math.inf, -math.inf) or y in (math.inf, -math.inf):
        return math.inf if (x > 0) == (y > 0) else -math.inf
    return x * y


def _times(a: _Interval, b: _Interval) -> _Interval:
    corners = [_scale(x, y) for x in a for y in b]
    return min(corners), max(corners)


def _power_interval(span: _Interval, exponent: int) -> _Interval:
    result = span
    for _ in range(exponent - 1):
        result = _times(result, span)
    if exponent % 2 == 0:
        return max(result[0], 0), result[1]
    return result


def _atom_interval(atom: _Atom, ranges: Mapping[str, Range]) -> _Interval:
    kind = atom.kind
    if kind == "symbol":
        low, high = ranges.get(atom.name, (0, None))
        return -math.inf if low is None else low, math.inf if high is None else high
    if kind in _COMPARISONS:
        return 0, 1
    spans = [_interval_of(arg, ranges) for arg in atom.args]
    if kind == "//":
        return _floor_div_interval(spans[0], spans[1], real=_is_real(atom.args[1]))
    if kind == "%":
        return _mod_interval(spans[0], spans[1], real=atom.real)
    if kind == "min":
        return min(low for low, _ in spans), min(high for _, high in spans)
    if kind == "max":
        return max(low for low, _ in spans), max(high for _, high in spans)
    if kind == "where":
        return min(spans[1][0], spans[2][0]), max(spans[1][1], spans[2][1])
    if atom.name == "sqrt" or (atom.name in _NEVER_NEGATIVE and all(low >= 0 for low, _ in spans)):
        return 0, math.inf
    return -math.inf, math.inf


def _floor_div_interval(a: _Interval, b: _Interval, *, real: bool) -> _Interval:
    if real:
        return -math.inf, math.inf
    if b[1] <= 0:
        a, b = (-a[1], -a[0]), (-b[1], -b[0])
    if b[0] < 0:  # either sign: |a // b| never exceeds |a|
        reach = max(abs(a[0]), abs(a[1]))
        return -reach, reach
    smallest, largest = max(b[0], 1), max(b[1], 1)  # a divisor is nonzero
    if a[0] == -math.inf:
        low = -math.inf
    elif a[0] < 0:
        low = a[0] // smallest
    else:
        low = 0 if largest == math.inf or a[0] == math.inf else a[0] // largest
    if a[1] == math.inf:
        return low, math.inf
    if a[1] >= 0:
        return low, 0 if smallest == math.inf else a[1] // smallest
    return low, -1 if largest == math.inf else a[1] // largest


def _mod_interval(a: _Interval, b: _Interval, *, real: bool) -> _Interval:
    if b[0] < 0:
        return (-math.inf, math.inf) if b[1] > 0 else (b[0] + (0 if real else 1), 0)
    high = b[1] if real else max(b[1] - 1, 0)
    return 0, min(high, a[1]) if a[0] >= 0 else high


# Walking expressions.


def _atom_degree(atom: _Atom, name: str) -> int:
    if name not in atom.symbols or atom.kind in _COMPARISONS:
        return 0
    if atom.kind == "symbol":
        return 1
    degrees = [arg.degree(name) if isinstance(arg, Expr) else 0 for arg in atom.args]
    if atom.kind == "//" or (atom.kind == "call" and atom.name == "truediv"):
        return max(degrees[0] - degrees[1], 0)
    if atom.kind == "%":
        return degrees[1]
    if atom.kind == "where":
        return max(degrees[1:])
    if atom.kind == "call" and atom.name == "sqrt":
        return (degrees[0] + 1) // 2
    return max(degrees)


def _substitute(dim: Dim, mapping: Mapping[str, Dim], memo: dict[_Atom, Dim]) -> Dim:
    if isinstance(dim, int) or dim.symbols.isdisjoint(mapping):
        return dim
    parts: list[Dim] = []
    for monomial, coefficient in dim.terms.items():
        part: Dim = coefficient
        for atom in monomial:
            if atom not in memo:
                memo[atom] = _substitute_atom(atom, mapping, memo)
            part = part * memo[atom]
        parts.append(part)
    return total(parts)


def _substitute_atom(atom: _Atom, mapping: Mapping[str, Dim], memo: dict[_Atom, Dim]) -> Dim:
    if atom.kind == "symbol" and atom.name in mapping:
        return mapping[atom.name]
    if atom.symbols.isdisjoint(mapping):
        return _build({(atom,): 1})
    if atom.kind == "where":  # the branch not taken may have no value
        condition = _substitute(atom.args[0], mapping, memo)
        if isinstance(condition, int):
            return _substitute(atom.args[1 if condition else 2], mapping, memo)
    args = [_substitute(arg, mapping, memo) for arg in atom.args]
    return _apply(atom.kind, atom.name, args)


def _apply(kind: str, name: str, args: Sequence[Dim]) -> Dim:
    if kind == "call":
        return call(name, *args)
    if kind in ("min", "max"):
        return _extreme(kind, args)
    if kind == "where":
        return where(*args)
    if kind in ("//", "%"):
        return floor_div(args[0], args[1]) if kind == "//" else mod(args[0], args[1])
    return compare(kind, *args)


def evaluate(dim: Dim, values: Mapping[str, int]) -> int | None:
    """The integer value of the dim when every size has the given value.

    None when a size is missing from `values`, a divisor is zero, or a function has no value there. A value
    that is no integer (a square root, say) is rounded down.
    """
    if isinstance(dim, int):
        return dim
    try:
        value: int = math.floor(_value(dim, values))
        return value
    except (KeyError, ArithmeticError, ValueError, TypeError):  # TypeError: bits of a fraction
        return None


def _value(dim: Dim, values: Mapping[str, int]) -> Any:
    if isinstance(dim, int):
        return dim
    result: Any = 0
    for monomial, coefficient in dim.terms.items():
        part: Any = coefficient
        for atom in monomial:
            part *= values[atom.name] if atom.kind == "symbol" else _atom_value(atom, values)
        result += part
    return result


def _atom_value(atom: _Atom, values: Mapping[str, int]) -> Any:
    kind = atom.kind
    if kind == "where":
        return _value(atom.args[1 if _value(atom.args[0], values) else 2], values)
    args = [_value(arg, values) for arg in atom.args]
    if kind == "//":
        return args[0] // args[1]
    if kind == "%":
        return args[0] % args[1]
    if kind == "min":
        return min(args)
    if kind == "max":
        return max(args)
    if kind in _COMPARISONS:
        return int(_COMPARISONS[kind](args[0], args[1]))
    return FUNCTIONS[atom.name](*args)  # KeyError for a function that is not known


def _to_sympy(dim: Dim) -> Any:
    import sympy

    if isinstance(dim, int):
        return sympy.Integer(dim)
    return sympy.Add(
        *(
            sympy.Mul(sympy.Integer(coefficient), *(_atom_to_sympy(atom) for atom in monomial))
            for monomial, coefficient in dim.terms.items()
        )
    )


def _atom_to_sympy(atom: _Atom) -> Any:
    import sympy

    kind = atom.kind
    if kind == "symbol":
        return sympy.Symbol(atom.name, integer=True, nonnegative=True)
    args = [_to_sympy(arg) for arg in atom.args]
    if kind == "//":
        return sympy.floor(args[0] / args[1])
    if kind == "%":
        return sympy.Mod(*args)
    if kind in ("min", "max"):
        return (sympy.Min if kind == "min" else sympy.Max)(*args)
    if kind == "where":
        return sympy.Piecewise((args[1], sympy.Ne(args[0], 0)), (args[2], True))
    if kind in _COMPARISONS:
        relation = {"==": sympy.Eq, "!=": sympy.Ne, "<": sympy.Lt, "<=": sympy.Le}[kind]
        return sympy.Piecewise((1, relation(*args)), (0, True))
    known = {"truediv": lambda a, b: a / b, "pow": sympy.Pow, "log2": lambda a: sympy.log(a, 2)}
    if atom.name in known:
        return known[atom.name](*args)
    if atom.name in REAL_FUNCTIONS:
        return getattr(sympy, atom.name)(*args)
    return sympy.Function(atom.name)(*args)


# Printing: what `parse_dim` reads back to the identical object.


def _operand(dim: Dim) -> str:
    """The text of a dim as an operand of // or %."""
    if isinstance(dim, int):
        return str(dim) if dim >= 0 else f"({dim})"
    if len(dim.terms) == 1:
        ((monomial, coefficient),) = dim.terms.items()
        if coefficient == 1 and len(monomial) == 1 and monomial[0].tight:
            return monomial[0].text
    return f"({dim})"


def _atom_text(atom: _Atom) -> str:
    kind, args = atom.kind, atom.args
    if kind == "symbol":
        name = atom.name
        plain = name.isascii() and name.isidentifier() and not keyword.iskeyword(name)
        return name if plain and name not in RESERVED_WORDS else f"Symbol({name!r})"
    if kind in ("//", "%"):
        if kind == "//" and args[1:] == (1,):  # only for a value that need not be an integer
            return f"floor({args[0]})"
        return f"{_operand(args[0])}{'//' if kind == '//' else ' % '}{_operand(args[1])}"
    if kind in _COMPARISONS:
        return f"({args[0]} {kind} {args[1]})"
    inside = ", ".join(str(arg) for arg in args)
    if kind != "call":
        return f"{kind}({inside})"
    return f"{atom.name}({inside})" if atom.name in FUNCTIONS else f"Function({atom.name!r})({inside})"


def _expr_text(dim: Expr) -> str:
    def order(monomial: _Monomial) -> tuple[bool, int, list[str]]:
        return not monomial, len(monomial), [atom.text for atom in monomial]

    text = ""
    for monomial in sorted(dim.terms, key=order):
        coefficient = dim.terms[monomial]
        sign = "-" if coefficient < 0 else "+"
        term = _term_text(monomial, abs(coefficient))
        if text:
            text += f" {sign} {term}"
        elif sign == "-":  # a leading minus binds tighter than the // or % of a lone division
            text = f"-({term})" if abs(coefficient) == 1 and _is_loose(monomial) else f"-{term}"
        else:
            text = term
    return text


def _is_loose(monomial: _Monomial) -> bool:
    return len(monomial) == 1 and not monomial[0].tight


def _term_text(monomial: _Monomial, size: int) -> str:
    """A term without its sign; a lone // or % needs no parentheses between + and -."""
    if size == 1 and len(monomial) == 1:
        return monomial[0].text
    factors = [str(size)] if size != 1 or not monomial else []
    for atom in dict.fromkeys(monomial):
        exponent = monomial.count(atom)
        base = atom.text if atom.tight else f"({atom.text})"
        factors.append(base if exponent == 1 else f"{base}**{exponent}")
    return "*".join(factors)


# Broadcasting.


def _broadcast_pair(a: Dim, b: Dim) -> Dim:
    if a is b:
        return a
    if isinstance(a, int) or isinstance(b, int):
        if isinstance(a, int) and isinstance(b, int):
            if a == b or b == 1:
                return a
            if a == 1:
                return b
            raise ShapeError(f"sizes {a} and {b} do not broadcast")
        number, size = (a, b) if isinstance(a, int) else (b, a)
        if number == 1:
            return size
        if differ(size, number) and differ(size, 1):
            raise ShapeError(f"sizes {a} and {b} do not broadcast")
        return number
    if same(a, b):
        return a
    if differ(a, b):
        raise ShapeError(f"sizes {a} and {b} do not broadcast")
    # At run time they are equal or one of them is 1: a size that cannot be 1 is the result.
    return min(a, b, key=_unsuitability)


def _unsuitability(dim: Expr) -> tuple[bool, int, int, int]:
    depth = max(atom.depth for atom in dim._atoms())
    return not at_least(dim, 2), len(dim.terms), max(map(len, dim.terms)), depth


def broadcast(*shapes: Sequence[Dim]) -> tuple[Dim, ...]:
    """The shape that numpy broadcasting of the shapes gives, aligned at the last dimension.

    1 gives way to anything. An integer other than 1 wins over a symbolic size, which must then be that
    integer or 1. Of two symbolic sizes that may be equal, one provably at least 2 wins, then the simpler
    (fewer terms, lower degree, fewer nested operations), then the first. Raises ShapeError for sizes that
    provably differ.
    """
    result: list[Dim] = [1] * max(map(len, shapes), default=0)
    for shape in shapes:
        offset = len(result) - len(shape)
        for place, dim in enumerate(shape, offset):
            result[place] = _broadcast_pair(result[place], dim)
    return tuple(result)


# Parsing.


def parse_dim(text: str, symbols: Callable[[str], str] | None = None) -> Dim:
    """Read a size from text: what `str` of an `Expr` gives, or what PyTorch and sympy print or `srepr`.

    `symbols` renames the sizes: it maps each name in the text to the name to use. The text is never executed.
    Raises DimError for anything that is not such a size or is too large.
    """
    if not isinstance(text, str):
        raise DimError("a size must be read from a string")
    dim = _parse_cached(text)
    if symbols is None or isinstance(dim, int):
        return dim
    try:
        return dim.substitute({name: symbol(symbols(name)) for name in dim.symbols})
    except ZeroDivisionError:  # two names became one, and a difference of them was a divisor
        raise DimError("cannot rename the sizes of a size: division by zero") from None


@lru_cache(maxsize=16_384)
def _parse_cached(text: str) -> Dim:
    from graphflops.dim_parser import parse  # imports `ast`, which a run without symbolic sizes never needs

    return parse(text)
