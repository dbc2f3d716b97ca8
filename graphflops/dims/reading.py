"""`parse_dim`, without the parser itself: that is imported when the first text has to be read."""

from __future__ import annotations

from collections.abc import Callable  # noqa: TC003
from functools import lru_cache

from graphflops.dims.expr import Dim, symbol
from graphflops.errors import DimError


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
    from graphflops.dims.parser import parse  # imports `ast`, which a run without symbolic sizes never needs

    return parse(text)
