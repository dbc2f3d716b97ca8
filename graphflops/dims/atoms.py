"""Atoms: the indivisible factors that polynomials are made of."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from graphflops.dims.functions import COMPARISONS, REAL_FUNCTIONS
from graphflops.dims.terms import fixed_residue, is_real
from graphflops.dims.text import atom_text
from graphflops.errors import DimError

if TYPE_CHECKING:
    from graphflops.dims.expr import Dim

MAX_ATOM_TEXT = 5_000  # characters of one printed atom
MAX_ATOM_DEPTH = 24  # atoms nested inside atoms


class Atom:
    """An indivisible factor: a named size, or an operation on dims that no polynomial expresses."""

    depth: int

    __slots__ = ("args", "depth", "divisor", "kind", "name", "real", "symbols", "text", "tight")

    def __init__(self, kind: str, name: str, args: tuple[Dim, ...]) -> None:
        self.kind = kind
        self.name = name
        self.args = args
        parts = [arg for arg in args if not isinstance(arg, int)]
        self.depth = 1 + max((atom.depth for part in parts for atom in part.atoms()), default=0)
        self.symbols: frozenset[str] = (
            frozenset((name,)) if kind == "symbol" else frozenset().union(*(part.symbols for part in parts))
        )
        # Real-valued: not provably an integer even when every size is one.
        self.real = (kind == "call" and name in REAL_FUNCTIONS) or (
            kind in ("%", "min", "max", "where", "call") and name != "round" and any(map(is_real, parts))
        )
        # Prints without needing parentheses; `x // 1` prints as a function.
        self.tight = kind not in ("//", "%") or (kind == "//" and args[1:] == (1,))
        self.text = atom_text(self)
        if self.depth > MAX_ATOM_DEPTH or len(self.text) > MAX_ATOM_TEXT:
            raise DimError(f"symbolic size grew past {MAX_ATOM_DEPTH} levels or {MAX_ATOM_TEXT} characters")
        # Nonzero only for a floor division that always comes out even: then divisor * atom == args[0].
        self.divisor = 0
        if kind == "//" and isinstance(args[1], int) and not is_real(args[0]):
            self.divisor = args[1] if fixed_residue(args[0], args[1]) == 0 else 0

    def __repr__(self) -> str:
        return f"<atom {self.text}>"

    def __deepcopy__(self, memo: object) -> Atom:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return intern_atom, (self.kind, self.name, self.args)


_ATOMS: dict[tuple[str, str, tuple[Dim, ...]], Atom] = {}


def intern_atom(kind: str, name: str, args: tuple[Dim, ...]) -> Atom:
    """The one atom of this kind, name and arguments. Raises DimError for one that is too large."""
    key = (kind, name, args)
    atom = _ATOMS.get(key)
    if atom is None:
        plain = tuple(int(arg) if isinstance(arg, int) else arg for arg in args)  # True is 1
        atom = _ATOMS.setdefault(key, Atom(kind, name, plain))
    return atom


@lru_cache(maxsize=16_384)
def atom_degree(atom: Atom, name: str) -> int:
    """How fast the atom grows in the named size, as `Expr.degree` defines it."""
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
