"""Sizes that must not be negative: the lower bounds that follow for the sizes by name, and the check at given sizes.

A convolution of `N - 100` rows says that `N` is at least 100. Below that its formulas would give numbers that look right.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.dims import Expr, at_least, evaluate
from graphflops.errors import ModelError, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from graphflops.dims import Dim
    from graphflops.report import Row, SymbolInfo

_LARGEST = 2**48  # no size by name is larger


def with_lower_bounds(symbols: Mapping[str, SymbolInfo], rows: Iterable[Row]) -> dict[str, SymbolInfo]:
    """The symbols, each with the least value at which no size of a result is negative."""
    raised = dict(symbols)
    for _, size in _open(rows):
        if isinstance(size, int) or len(size.symbols) != 1:
            continue
        (name,) = size.symbols
        info = raised.get(name)
        least = None if info is None else _least(size, name, max(info.minimum or 0, 1))
        if info is not None and least is not None:
            raised[name] = replace(info, minimum=least)
    return raised


def refuse_negative(rows: Iterable[Row], values: Mapping[str, int]) -> None:
    """Raise ModelError where a size of a result is negative at these values of the sizes by name."""
    for name, size in _open(rows):
        value = evaluate(size, values)
        if value is not None and value < 0:
            used = sorted(values.keys() & size.symbols) if isinstance(size, Expr) else list(values)
            at = f"at {', '.join(f'{shown(symbol)} = {values[symbol]}' for symbol in used)} " if used else ""
            formula = f"{size} = " if isinstance(size, Expr) else ""
            raise ModelError(f"{at}a size of {shown(name)} would be {formula}{value}: give larger sizes")


def _open(rows: Iterable[Row]) -> Iterator[tuple[str, Dim]]:
    """Each size of a result that is not provably positive or zero, once, with the result's name."""
    seen: set[Dim] = set()
    for row in rows:
        for output in row.outputs:
            for size in output.type.shape:
                if size not in seen:
                    seen.add(size)
                    if not at_least(size, 0):
                        yield output.name, size


def _least(size: Expr, name: str, first: int) -> int | None:
    """The least value from `first` on at which a growing size is not negative; None where that is `first`, or not known."""

    def is_negative(value: int) -> bool:
        return (evaluate(size, {name: value}) or 0) < 0

    if not is_negative(first):
        return None
    low, high = first, 2 * first
    while is_negative(high):
        if high > _LARGEST:
            return None
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_negative(middle) else (low, middle)
    return high
