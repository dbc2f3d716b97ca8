"""Sizes that must not be negative: the lower bounds that follow for the sizes by name, and the check at given sizes.

A convolution of `N - 100` rows says that `N` is at least 100. Below that its formulas would give numbers that look right.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.dims import Expr, at_least, evaluate
from graphflops.errors import ModelError, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from graphflops.dims import Dim
    from graphflops.report import Row, SymbolInfo

_LARGEST = 2**48  # no size by name is larger


def with_lower_bounds(symbols: Mapping[str, SymbolInfo], rows: Iterable[Row]) -> dict[str, SymbolInfo]:
    """The symbols, each with the least value at which no size of a result is negative.

    An assumed value is raised until no size of a result is zero either: a program without elements has no percentages.
    """
    raised = dict(symbols)
    for _, size in _open(rows):
        if isinstance(size, int) or len(size.symbols) != 1:
            continue
        (name,) = size.symbols
        info = raised.get(name)
        if info is None:
            continue
        first = max(info.minimum or 0, 1)
        least = _least(size, name, first)
        if least is not None:
            info = raised[name] = replace(info, minimum=least)
        if info.given_by == "assumption" and isinstance(more := size - 1, Expr):
            some = _least(more, name, first) or first
            raised[name] = replace(info, value=max(info.value or 0, some))
    return raised


def without_impossible(symbols: Mapping[str, SymbolInfo], rows: Sequence[Row]) -> dict[str, SymbolInfo]:
    """The symbols, without the assumed values at which a size of a result would be negative: these sizes stay open."""
    kept = dict(symbols)
    while (found := _negative(rows, _values(kept))) is not None:
        _, size, _ = found
        used = sorted(size.symbols) if isinstance(size, Expr) else []
        assumed = [name for name in used if kept[name].given_by == "assumption"]
        if not assumed:
            break
        kept.update({name: replace(kept[name], value=None, given_by=None) for name in assumed})
    return kept


def _values(symbols: Mapping[str, SymbolInfo]) -> dict[str, int]:
    return {name: info.value for name, info in symbols.items() if info.value is not None}


def refuse_negative(rows: Iterable[Row], values: Mapping[str, int]) -> None:
    """Raise ModelError where a size of a result is negative at these values of the sizes by name."""
    found = _negative(rows, values)
    if found is not None:
        name, size, value = found
        used = sorted(values.keys() & size.symbols) if isinstance(size, Expr) else list(values)
        at = f"at {', '.join(f'{shown(symbol)} = {values[symbol]}' for symbol in used)} " if used else ""
        formula = f"{size} = " if isinstance(size, Expr) else ""
        raise ModelError(f"{at}a size of {shown(name)} would be {formula}{value}: give larger sizes")


def _negative(rows: Iterable[Row], values: Mapping[str, int]) -> tuple[str, Dim, int] | None:
    """The first size of a result that is negative at these values, with the result's name; None if there is none."""
    for name, size in _open(rows):
        value = evaluate(size, values)
        if value is not None and value < 0:
            return name, size, value
    return None


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
