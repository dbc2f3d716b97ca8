"""The same expression in sympy: an oracle."""

from __future__ import annotations

from typing import Any

import sympy

from graphflops.dims.atoms import COMPARISONS, REAL_FUNCTIONS, Atom, Operand


def to_sympy(dim: Operand) -> Any:
    """The dim over integer nonnegative symbols."""
    if isinstance(dim, int):
        return sympy.Integer(dim)
    return sympy.Add(
        *(
            sympy.Mul(sympy.Integer(coefficient), *(_atom_to_sympy(atom) for atom in monomial))
            for monomial, coefficient in dim.terms.items()
        )
    )


def _atom_to_sympy(atom: Atom) -> Any:
    kind = atom.kind
    if kind == "symbol":
        return sympy.Symbol(atom.name, integer=True, nonnegative=True)
    args = [to_sympy(arg) for arg in atom.args]
    if kind == "//":
        return sympy.floor(args[0] / args[1])
    if kind == "%":
        return sympy.Mod(*args)
    if kind in ("min", "max"):
        return (sympy.Min if kind == "min" else sympy.Max)(*args)
    if kind == "where":
        return sympy.Piecewise((args[1], sympy.Ne(args[0], 0)), (args[2], True))
    if kind in COMPARISONS:
        relation = {"==": sympy.Eq, "!=": sympy.Ne, "<": sympy.Lt, "<=": sympy.Le}[kind]
        return sympy.Piecewise((1, relation(*args)), (0, True))
    known = {
        "truediv": lambda a, b: a / b,
        "double": lambda a, b: sympy.Float(a / b, 17),
        "pow": sympy.Pow,
        "log2": lambda a: sympy.log(a, 2),
    }
    if atom.name in known:
        return known[atom.name](*args)
    if atom.name in REAL_FUNCTIONS:
        return getattr(sympy, atom.name)(*args)
    return sympy.Function(atom.name)(*args)
