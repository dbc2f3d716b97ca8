"""Polynomials as data, the atoms that they consist of, named functions of numbers, and how all of these are printed."""

from __future__ import annotations

import keyword
import math
import operator
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

from graphflops.base.lazy import fractions
from graphflops.errors import DimError

MAX_POWER_BITS = 4_096  # bits of a number made by a power or a shift
_EXACT_FLOAT = 1 << 52  # below it a float is never rounded up to the next integer by `math.sqrt`
_ROOT_BITS = 32  # binary places of the square root of a larger number

# Bare words that `parse_dim` reads as something other than a size's name.
RESERVED_WORDS = frozenset({"true", "false", "oo", "int_oo", "zoo", "nan"})


def _truediv(a: Any, b: Any) -> Any:
    if isinstance(a, float) or isinstance(b, float):
        return a / b
    return fractions.Fraction(a) / fractions.Fraction(b)


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
    """The root; exact where it is an integer, and always with the right integer part for an integer."""
    if not isinstance(a, int):
        return math.sqrt(a)
    root = math.isqrt(a)
    if root * root == a:
        return root
    if a < _EXACT_FLOAT:
        return math.sqrt(a)
    places = math.isqrt(a << 2 * _ROOT_BITS)
    return fractions.Fraction(2 * places + 1, 2 << _ROOT_BITS)  # half a place more, and so never an integer


def _log2(a: Any) -> Any:
    if isinstance(a, int) and a > 0 and a & (a - 1) == 0:
        return a.bit_length() - 1
    return math.log2(a)


# Functions whose value need not be an integer: atoms of these block every simplification that relies on
# integrality. The others in FUNCTIONS give integers for integers.
REAL_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sqrt": _square_root,
    "truediv": _truediv,
    "double": operator.truediv,  # the double nearest to a fraction, by which computers multiply sizes
    "log2": _log2,
    **{
        name: getattr(math, name)
        for name in "exp log sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh".split()  # noqa: SIM905
    },
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **REAL_FUNCTIONS,
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor,
    "lshift": _shift_left,
    "rshift": operator.rshift,
    "gcd": math.gcd,
    "pow": _power,
    "round": round,
}
# Those that are never negative where no argument is; sqrt never is.
NEVER_NEGATIVE = frozenset(FUNCTIONS.keys() - REAL_FUNCTIONS.keys() | {"truediv", "double"})
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def function_arity(name: str) -> int:
    """How many arguments a function in FUNCTIONS takes."""
    return 1 if name == "round" or (name in REAL_FUNCTIONS and name not in ("truediv", "double")) else 2


MAX_ATOM_TEXT = 5_000  # characters of one printed atom
MAX_ATOM_DEPTH = 24  # atoms nested inside atoms

Monomial: TypeAlias = "tuple[Atom, ...]"  # sorted by atom text, repeated for powers; () is the constant
Terms: TypeAlias = "dict[Monomial, int]"
Operand: TypeAlias = "int | Polynomial"


class Polynomial:
    """An integer polynomial over atoms, without operators: `Expr` is the only class made from it."""

    __slots__ = ("_interval", "_symbols", "_text", "terms")

    terms: Terms

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self._text: str | None = None
        self._symbols: frozenset[str] | None = None
        self._interval: tuple[int | float, int | float] | None = None  # found by `evaluation.interval`

    def __str__(self) -> str:
        """Lower degrees first, the constant last."""
        if self._text is not None:
            return self._text
        text = ""
        for monomial in sorted(self.terms, key=lambda x: (not x, len(x), [atom.text for atom in x])):
            coefficient = self.terms[monomial]
            sign, size = "-" if coefficient < 0 else "+", abs(coefficient)
            factors = [str(size)] if size != 1 or not monomial else []
            for atom in dict.fromkeys(monomial):
                exponent = monomial.count(atom)
                base = atom.text if atom.tight else f"({atom.text})"
                factors.append(base if exponent == 1 else f"{base}**{exponent}")
            # A lone // or % needs no parentheses between + and -.
            term = monomial[0].text if size == 1 and len(monomial) == 1 else "*".join(factors)
            if text:
                text += f" {sign} {term}"
            elif sign == "-":  # a leading minus binds tighter than the // or % of a lone division
                is_loose = size == 1 and len(monomial) == 1 and not monomial[0].tight
                text = f"-({term})" if is_loose else f"-{term}"
            else:
                text = term
        self._text = text
        return text

    __repr__ = __str__

    def atoms(self) -> set[Atom]:
        """The different atoms of the terms, not those inside other atoms."""
        return {atom for monomial in self.terms for atom in monomial}

    def as_atom(self) -> Atom | None:
        """The atom that this is; None if it is no single atom."""
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

    def degree(self, symbol: str) -> int:
        """How fast this grows in the size named `symbol`: 1 linear, 2 quadratic, 0 not at all.

        A product adds; a sum, min, max and choice take the largest of their parts; ``x // y`` subtracts y's
        degree from x's, not below 0; ``x % y`` has y's; a comparison has 0; a square root has half, rounded
        up; any other function has that of its fastest-growing argument.
        """
        return max(sum(_atom_degree(atom, symbol) for atom in monomial) for monomial in self.terms)


class Atom:
    """An indivisible factor: a named size, or an operation on dims that no polynomial expresses."""

    depth: int

    __slots__ = ("args", "depth", "kind", "name", "real", "symbols", "text", "tight")

    def __init__(self, kind: str, name: str, args: tuple[Operand, ...]) -> None:
        self.kind = kind
        self.name = name
        self.args = args
        parts = [arg for arg in args if not isinstance(arg, int)]
        self.depth = 1 + max((atom.depth for part in parts for atom in part.atoms()), default=0)
        own = (name,) if kind == "symbol" else ()
        self.symbols: frozenset[str] = frozenset(own).union(*(part.symbols for part in parts))
        # Real-valued: not provably an integer even when every size is one.
        self.real = (kind == "call" and name in REAL_FUNCTIONS) or (
            kind in ("%", "min", "max", "where", "call") and name != "round" and any(map(is_real, parts))
        )
        # Prints without needing parentheses; `x // 1` prints as a function.
        self.tight = kind not in ("//", "%") or (kind == "//" and args[1:] == (1,))
        self.text = _atom_text(self)
        if self.depth > MAX_ATOM_DEPTH or len(self.text) > MAX_ATOM_TEXT:
            raise DimError(f"symbolic size grew past {MAX_ATOM_DEPTH} levels or {MAX_ATOM_TEXT} characters")

    def __reduce__(self) -> tuple[object, ...]:
        return intern_atom, (self.kind, self.name, self.args)


_ATOMS: dict[tuple[str, str, tuple[Operand, ...]], Atom] = {}


def intern_atom(kind: str, name: str, args: tuple[Operand, ...]) -> Atom:
    """The one atom of this kind, name and arguments. Raises DimError if it would be too large."""
    key = (kind, name, args)
    atom = _ATOMS.get(key)
    if atom is None:
        plain = tuple(int(arg) if isinstance(arg, int) else arg for arg in args)  # True is 1
        atom = _ATOMS.setdefault(key, Atom(kind, name, plain))
    return atom


@lru_cache(maxsize=16_384)
def _atom_degree(atom: Atom, name: str) -> int:
    if name not in atom.symbols or atom.kind in COMPARISONS:
        return 0
    if atom.kind == "symbol":
        return 1
    degrees = [0 if isinstance(arg, int) else arg.degree(name) for arg in atom.args]
    if atom.kind == "//" or (atom.kind == "call" and atom.name == "truediv"):
        return max(degrees[0] - degrees[1], 0)
    if atom.kind == "%":
        return degrees[1]
    if atom.kind == "where":
        return max(degrees[1:])
    if atom.kind == "call" and atom.name == "sqrt":
        return (degrees[0] + 1) // 2
    return max(degrees)


def terms_of(dim: Operand) -> Terms:
    """The terms of a dim that may be an integer. Not to be changed."""
    if isinstance(dim, int):
        return {(): dim} if dim else {}
    return dim.terms


def is_real(dim: Operand) -> bool:
    """Whether the value need not be an integer."""
    return not isinstance(dim, int) and any(atom.real for monomial in dim.terms for atom in monomial)


# Printing: text that `parse_dim` reads back to the identical object.


def _atom_text(atom: Atom) -> str:
    """The text of an atom, without parentheses around a division or modulo."""
    kind, args = atom.kind, atom.args
    if kind == "symbol":
        name = atom.name
        plain = name.isascii() and name.isidentifier() and not keyword.iskeyword(name)
        return name if plain and name not in RESERVED_WORDS else f"Symbol({name!r})"
    if kind in ("//", "%"):
        if kind == "//" and args[1:] == (1,):  # only for a value that need not be an integer
            return f"floor({args[0]})"
        return f"{_operand(args[0])}{'//' if kind == '//' else ' % '}{_operand(args[1])}"
    if kind in COMPARISONS:
        return f"({args[0]} {kind} {args[1]})"
    inside = ", ".join(str(arg) for arg in args)
    if kind != "call":
        return f"{kind}({inside})"
    return f"{atom.name}({inside})" if atom.name in FUNCTIONS else f"Function({atom.name!r})({inside})"


def _operand(dim: Operand) -> str:
    if isinstance(dim, int):
        return str(dim) if dim >= 0 else f"({dim})"
    atom = dim.as_atom()
    return atom.text if atom is not None and atom.tight else f"({dim})"
