"""What is provable about two dims for every value of the sizes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from graphflops.dims.expr import Dim, Expr, build, floor_div, opaque
from graphflops.dims.sums import prod, total
from graphflops.dims.terms import is_real

if TYPE_CHECKING:
    from graphflops.dims.atoms import Atom


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
    if all(atom.kind not in ("//", "%") for atom in dim.atoms()):
        return dim
    return total(
        prod(_proof_spelling(atom) for atom in monomial) * coefficient
        for monomial, coefficient in dim.terms.items()
    )


def _proof_spelling(atom: Atom) -> Dim:
    if atom.kind == "%":  # x - y*(x//y)
        quotient = floor_div(*atom.args)
        return atom.args[0] - atom.args[1] * (
            _proof_form(quotient) if isinstance(quotient, Expr) else quotient
        )
    itself = build({(atom,): 1})
    if atom.kind != "//" or atom.divisor:
        return itself
    numerator, divisor = atom.args
    if isinstance(numerator, int) or not isinstance(divisor, int) or is_real(numerator):
        return itself
    # s//2 = s - (s + 1)//2: both are kept as they come, and here one is chosen.
    mirrored = divisor - 1 - numerator
    assert isinstance(mirrored, Expr)
    split = {monomial: divmod(coefficient, divisor) for monomial, coefficient in mirrored.terms.items()}
    rest = build({monomial: part for monomial, (_, part) in split.items()})
    if str(rest) >= str(numerator):
        return itself
    return -(build({monomial: whole for monomial, (whole, _) in split.items()}) + opaque("//", rest, divisor))


def differ(a: Dim, b: Dim) -> bool:
    """Whether a and b are provably different for every value of the sizes."""
    difference = a - b
    if isinstance(difference, int):
        return difference != 0
    low, high = difference.interval()
    if low > 0 or high < 0:
        return True
    # 2*x + 1 is never 0: the constant is no multiple of what divides every other term.
    constant = difference.terms.get((), 0)
    content = math.gcd(*(coefficient for monomial, coefficient in difference.terms.items() if monomial))
    return constant % content != 0 and not is_real(difference)
