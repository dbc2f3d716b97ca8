"""Replacing sizes by dims, which redoes every operation that they take part in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.dims.choices import call, compare, dim_max, dim_min, where
from graphflops.dims.expr import build, floor_div, mod
from graphflops.dims.sums import total

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphflops.dims.atoms import Atom
    from graphflops.dims.expr import Dim


def substitute(dim: Dim, mapping: Mapping[str, Dim], memo: dict[Atom, Dim]) -> Dim:
    """The dim with the sizes replaced all at once; `memo` holds what the atoms met so far have become."""
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


def _substitute_atom(atom: Atom, mapping: Mapping[str, Dim], memo: dict[Atom, Dim]) -> Dim:
    if atom.kind == "symbol" and atom.name in mapping:
        return mapping[atom.name]
    if atom.symbols.isdisjoint(mapping):
        return build({(atom,): 1})
    if atom.kind == "where":  # the branch not taken may have no value
        condition = substitute(atom.args[0], mapping, memo)
        if isinstance(condition, int):
            return substitute(atom.args[1 if condition else 2], mapping, memo)
    args = [substitute(arg, mapping, memo) for arg in atom.args]
    return _apply(atom.kind, atom.name, args)


def _apply(kind: str, name: str, args: Sequence[Dim]) -> Dim:
    if kind == "call":
        return call(name, *args)
    if kind in ("min", "max"):
        return (dim_min if kind == "min" else dim_max)(*args)
    if kind == "where":
        return where(*args)
    if kind in ("//", "%"):
        return floor_div(args[0], args[1]) if kind == "//" else mod(args[0], args[1])
    return compare(kind, *args)
