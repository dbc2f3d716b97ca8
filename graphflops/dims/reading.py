"""`parse_dim`, without the parser itself: that is imported when the first text has to be read."""

from __future__ import annotations

import re
from collections.abc import Callable  # noqa: TC003
from functools import lru_cache
from keyword import iskeyword

from graphflops.dims.expr import Dim, symbol
from graphflops.dims.functions import RESERVED_WORDS
from graphflops.errors import DimError

# A size that is only a name, as PyTorch stores it or plain: by far the most frequent texts.
_NAME = re.compile(r"Symbol\('([A-Za-z]\w{0,99})'(?:, [a-z]+=True)*\)|([A-Za-z]\w{0,99})", re.ASCII)


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
    name = _NAME.fullmatch(text)
    if name is not None and not (text in RESERVED_WORDS or iskeyword(text)):
        return symbol(name[1] or name[2])
    from graphflops.dims.parser import parse  # imports `ast` and `fractions`, which few programs need

    return parse(text)
