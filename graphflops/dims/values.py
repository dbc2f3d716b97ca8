"""The value of a dim when every size is known."""

from __future__ import annotations

import math
from collections.abc import Mapping  # noqa: TC003
from typing import TYPE_CHECKING, Any

from graphflops.dims.expr import Dim  # noqa: TC001 - annotations can be resolved
from graphflops.dims.functions import COMPARISONS, FUNCTIONS

if TYPE_CHECKING:
    from graphflops.dims.atoms import Atom

_LONGEST = 14_000  # bits; Python prints no number of more than 4300 digits


def evaluate(dim: Dim, values: Mapping[str, int]) -> int | None:
    """The integer value of the dim when every size has the given value.

    None when a size is missing from `values`, a divisor is zero, or a function has no value there; also when
    the value is too long to be printed. A value that is no integer (a square root, say) is rounded down.
    """
    if isinstance(dim, int):
        return dim
    try:
        value: int = math.floor(_value(dim, values, {}))
        return value if value.bit_length() <= _LONGEST else None
    except (KeyError, ArithmeticError, ValueError, TypeError):  # TypeError: bits of a fraction
        return None


def _value(dim: Dim, values: Mapping[str, int], known: dict[Atom, Any]) -> Any:
    if isinstance(dim, int):
        return dim
    result: Any = 0
    for monomial, coefficient in dim.terms.items():
        part: Any = coefficient
        for atom in monomial:
            if atom.kind == "symbol":
                part *= values[atom.name]
            else:
                if atom not in known:  # one atom may occur thousands of times, inside others too
                    known[atom] = _atom_value(atom, values, known)
                part *= known[atom]
        result += part
    return result


def _atom_value(atom: Atom, values: Mapping[str, int], known: dict[Atom, Any]) -> Any:
    kind = atom.kind
    if kind == "where":
        return _value(atom.args[1 if _value(atom.args[0], values, known) else 2], values, known)
    args = [_value(arg, values, known) for arg in atom.args]
    if kind == "//":
        return args[0] // args[1]
    if kind == "%":
        return args[0] % args[1]
    if kind == "min":
        return min(args)
    if kind == "max":
        return max(args)
    if kind in COMPARISONS:
        return int(COMPARISONS[kind](args[0], args[1]))
    return FUNCTIONS[atom.name](*args)  # KeyError for a function that is not known
