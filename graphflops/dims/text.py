"""Printing: text that `parse_dim` reads back to the identical object."""

from __future__ import annotations

import keyword
from typing import TYPE_CHECKING

from graphflops.dims.functions import COMPARISONS, FUNCTIONS, RESERVED_WORDS

if TYPE_CHECKING:
    from graphflops.dims.atoms import Atom
    from graphflops.dims.expr import Dim
    from graphflops.dims.terms import Monomial, Terms


def atom_text(atom: Atom) -> str:
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


def terms_text(terms: Terms) -> str:
    """The text of a polynomial: lower degrees first, the constant last."""

    def order(monomial: Monomial) -> tuple[bool, int, list[str]]:
        return not monomial, len(monomial), [atom.text for atom in monomial]

    text = ""
    for monomial in sorted(terms, key=order):
        coefficient = terms[monomial]
        sign = "-" if coefficient < 0 else "+"
        term = _term_text(monomial, abs(coefficient))
        if text:
            text += f" {sign} {term}"
        elif sign == "-":  # a leading minus binds tighter than the // or % of a lone division
            loose = abs(coefficient) == 1 and len(monomial) == 1 and not monomial[0].tight
            text = f"-({term})" if loose else f"-{term}"
        else:
            text = term
    return text


def _operand(dim: Dim) -> str:
    """The text of a dim as an operand of // or %."""
    if isinstance(dim, int):
        return str(dim) if dim >= 0 else f"({dim})"
    atom = dim.as_atom()
    return atom.text if atom is not None and atom.tight else f"({dim})"


def _term_text(monomial: Monomial, size: int) -> str:
    """A term without its sign; a lone // or % needs no parentheses between + and -."""
    if size == 1 and len(monomial) == 1:
        return monomial[0].text
    factors = [str(size)] if size != 1 or not monomial else []
    for atom in dict.fromkeys(monomial):
        exponent = monomial.count(atom)
        base = atom.text if atom.tight else f"({atom.text})"
        factors.append(base if exponent == 1 else f"{base}**{exponent}")
    return "*".join(factors)
