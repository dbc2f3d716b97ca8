"""Operations that stay atoms where nothing is provable: min, max, comparisons, choices and functions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from graphflops.dims.expr import Dim, Expr, at_least, build, floor_div, opaque
from graphflops.dims.functions import COMPARISONS, FUNCTIONS, function_arity, known_integer
from graphflops.dims.proofs import differ, same
from graphflops.dims.sums import MAX_NAME
from graphflops.dims.terms import Terms, has_even_atom, leading_coefficient, terms_of
from graphflops.errors import DimError

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_CHOICES = 64  # different arguments of one min or max
_FEW_CHOICES = 8  # so many may be compared whatever their size
_CHOICE_WORK = 100_000  # terms compared while choosing among more


def dim_min(*dims: Dim) -> Dim:
    """The smallest of the dims, without those provably never the smallest. Raises DimError for none."""
    return _extreme("min", dims)


def dim_max(*dims: Dim) -> Dim:
    """The largest of the dims, without those provably never the largest. Raises DimError for none."""
    return _extreme("max", dims)


def _extreme(kind: str, dims: Iterable[Dim]) -> Dim:
    flat: set[Dim] = set()
    for dim in dims:
        atom = dim.as_atom() if isinstance(dim, Expr) else None
        if atom is not None and atom.kind == kind:
            flat.update(atom.args)
        else:
            flat.add(dim)
    if not flat:
        raise DimError(f"{kind} of no sizes")
    if len(flat) > _FEW_CHOICES and (
        len(flat) > MAX_CHOICES or len(flat) * sum(len(terms_of(dim)) for dim in flat) > _CHOICE_WORK
    ):
        raise DimError(f"symbolic size grew past a {kind} of {MAX_CHOICES} sizes")

    def covers(kept: Dim, other: Dim) -> bool:
        return at_least(other, kept) if kind == "min" else at_least(kept, other)

    chosen: list[Dim] = []
    for dim in sorted(flat, key=_dim_key):
        if not any(covers(kept, dim) for kept in chosen):
            chosen = [kept for kept in chosen if not covers(dim, kept)]
            chosen.append(dim)
    return chosen[0] if len(chosen) == 1 else opaque(kind, *chosen)


def _dim_key(dim: Dim) -> tuple[int, int, str]:
    return (0, dim, "") if isinstance(dim, int) else (1, 0, str(dim))


def compare(op: str, a: Dim, b: Dim) -> Dim:
    """1 where ``a op b`` holds and 0 where it does not: an int where provable, else an atom.

    `op` is one of == != < <= > >=; raises DimError for another.
    """
    if op not in COMPARISONS:
        raise DimError(f"unknown comparison {op!r}")
    if isinstance(a, int) and isinstance(b, int):
        return int(COMPARISONS[op](a, b))
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
        low, high = (difference, difference) if isinstance(difference, int) else difference.interval()
        if low > 0 or (low == 0 and not strict):
            return 1
        if high < 0 or (high == 0 and strict):
            return 0
    return opaque(op, *_sides(op, a, b))


def _sides(op: str, a: Dim, b: Dim) -> tuple[Dim, Dim]:
    """Both sides without what they share, so that s + 1 <= t + 1 and s <= t are one comparison."""
    difference = b - a
    assert isinstance(difference, Expr)
    content = math.gcd(*difference.terms.values())
    if op in ("==", "!=") and leading_coefficient(difference) > 0 and not has_even_atom(difference):
        content = -content  # either order says the same: take the one with the leading term on the left
    left: Terms = {}
    right: Terms = {}
    for monomial, coefficient in difference.terms.items():
        side = right if coefficient // content > 0 else left
        side[monomial] = abs(coefficient // content)
    return build(left), build(right)


def where(condition: Dim, a: Dim, b: Dim) -> Dim:
    """The choice of a where the condition is nonzero, else b."""
    if isinstance(condition, int):
        return a if condition else b
    if a is b or same(a, b):
        return a
    return opaque("where", condition, a, b)


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
    numbers = [arg for arg in args if isinstance(arg, int)]
    if name in FUNCTIONS and len(numbers) == len(args):
        value = known_integer(name, numbers)
        if value is not None:
            return value
    return opaque("call", *args, name=name)
