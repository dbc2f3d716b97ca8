"""Compares how fast totals grow with each size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from graphflops.comparison.result import Crossing, Figure, Fold, GrowthChange
from graphflops.comparison.sides import JointSize
from graphflops.dims import Dim, Expr, evaluate

_MODULES = 20  # modules named for one change
_FARTHEST = 2**32  # of sizes without an upper bound


def growth(
    totals: Mapping[str, Figure], sizes: Iterable[JointSize], folds: Sequence[Fold]
) -> Iterator[GrowthChange]:
    """Totals whose degree in a size changed, for sizes that both programs leave open."""
    open_sizes = [size.name for size in sizes if isinstance(size.before, str) and isinstance(size.after, str)]
    for quantity, figure in totals.items():
        for size in open_sizes:
            degrees = degree(figure.before, size), degree(figure.after, size)
            if degrees[0] != degrees[1]:
                where = _where(quantity, size, degrees[1] > degrees[0], folds)
                yield GrowthChange(quantity, size, *degrees, where)


def crossings(
    totals: Mapping[str, Figure],
    sizes: Iterable[JointSize],
    ranges: Mapping[str, tuple[int, int]],
    values: Mapping[str, int],
) -> Iterator[Crossing]:
    """Totals whose delta has one sign at the lowest value of a size and the other at the highest.

    ranges: lowest and highest value of each size by its joint name.
    """
    names = [size.name for size in sizes if isinstance(size.before, str) and isinstance(size.after, str)]
    for quantity, figure in totals.items():
        formula = figure.formula
        if isinstance(formula, int):
            continue
        for size in names:
            at = _crossing(formula, size, *ranges[size], values) if size in formula.symbols else None
            if at is not None:
                yield Crossing(quantity, size, *at)


def _crossing(
    formula: Expr, size: str, low: int, high: int, values: Mapping[str, int]
) -> tuple[int, bool] | None:
    """The smallest value at which the formula has its final sign, and whether that is positive."""

    def sign(value: int) -> int:
        found = evaluate(formula, {**values, size: value}) or 0
        return (found > 0) - (found < 0)

    first, last = sign(low), sign(high)
    if first * last >= 0:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if sign(middle) == last else (middle, high)
    return high, last > 0


def bounds(sizes: Iterable[JointSize]) -> dict[str, tuple[int, int]]:
    """The values that both programs were exported for, by joint name."""
    return {
        size.name: (max(1, size.minimum or 1), min(_FARTHEST, size.maximum or _FARTHEST)) for size in sizes
    }


def degree(quantity: Dim, size: str) -> int:
    """The degree of the quantity in the size: 0 constant, 1 linear, 2 quadratic."""
    return max(quantity.degree(size), 0) if isinstance(quantity, Expr) else 0


def _where(quantity: str, size: str, faster: bool, folds: Sequence[Fold]) -> tuple[str, ...]:
    """Modules whose own degree changed in the same direction, in the order given."""
    found = []
    for fold in folds:
        figure = fold.figures.get(quantity)
        if figure is not None:
            change = degree(figure.after, size) - degree(figure.before, size)
            if change > 0 if faster else change < 0:
                found.append((fold.path if fold.path is not None else fold.before_path) or "")
    return tuple(found[:_MODULES])
