"""Named sizes, and the sum and product of many dims."""

from __future__ import annotations

from collections.abc import Iterable  # noqa: TC003

from graphflops.dims.expr import Dim, Expr, build, opaque
from graphflops.dims.terms import Terms  # noqa: TC001
from graphflops.errors import DimError

MAX_NAME = 200  # characters of a size's or a function's name

_SYMBOLS: dict[str, Expr] = {}


def symbol(name: str) -> Expr:
    """The size called `name`: an unknown integer, at least 0.

    Any text of 1 to 200 characters is a name. Raises DimError for anything else.
    """
    found = _SYMBOLS.get(name)
    if found is not None:
        return found
    if not isinstance(name, str) or not name or len(name) > MAX_NAME:
        raise DimError(f"a size's name must be a string of 1 to {MAX_NAME} characters")
    made = opaque("symbol", name=name)
    assert isinstance(made, Expr)
    return _SYMBOLS.setdefault(name, made)


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
    terms[()] = terms.get((), 0) + constant
    return build(terms)


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
