"""Broadcasting of shapes with symbolic sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence  # noqa: TC003
from contextlib import contextmanager

from graphflops.dims.expr import Dim, Expr, at_least
from graphflops.dims.proofs import differ, same
from graphflops.errors import ShapeError

_met: list[tuple[Dim, Dim]] | None = None


@contextmanager
def meetings() -> Iterator[list[tuple[Dim, Dim]]]:
    """Collects the pairs of sizes that meet, while it is open, where only equal ones can, and are not provably equal."""
    global _met
    around, _met = _met, []
    try:
        yield _met
    finally:
        _met = around


def meet(a: Dim, b: Dim) -> Dim:
    """The size of two that must be equal, the simpler spelling of it. Raises ShapeError where they provably differ."""
    if same(a, b):
        return a
    if differ(a, b):
        raise ShapeError(f"sizes {a} and {b} differ")
    if _met is not None:
        _met.append((a, b))
    if isinstance(a, int) or isinstance(b, int):
        return a if isinstance(a, int) else b
    return min(a, b, key=_unsuitability)


def broadcast(*shapes: Sequence[Dim]) -> tuple[Dim, ...]:
    """The shape that numpy broadcasting of the shapes gives, aligned at the last dimension.

    1 gives way to anything. An integer other than 1 wins over a symbolic size, which must then be that
    integer or 1. Of two symbolic sizes that may be equal, one provably at least 2 wins, then the simpler
    (fewer terms, lower degree, fewer nested operations), then the first. Raises ShapeError for sizes that
    provably differ.
    """
    result: list[Dim] = [1] * max(map(len, shapes), default=0)
    for shape in shapes:
        offset = len(result) - len(shape)
        for place, dim in enumerate(shape, offset):
            result[place] = _broadcast_pair(result[place], dim)
    return tuple(result)


def _broadcast_pair(a: Dim, b: Dim) -> Dim:
    if a is b:
        return a
    if isinstance(a, int) or isinstance(b, int):
        if isinstance(a, int) and isinstance(b, int):
            if a == b or b == 1:
                return a
            if a == 1:
                return b
            raise ShapeError(f"sizes {a} and {b} do not broadcast")
        number, size = (a, b) if isinstance(a, int) else (b, a)
        if number == 1:
            return size
        if differ(size, number) and differ(size, 1):
            raise ShapeError(f"sizes {a} and {b} do not broadcast")
        return number
    if same(a, b):
        return a
    if differ(a, b):
        raise ShapeError(f"sizes {a} and {b} do not broadcast")
    # At run time they are equal or one of them is 1: a size that cannot be 1 is the result.
    if _met is not None:
        _met.append((a, b))
    return min(a, b, key=_unsuitability)


def _unsuitability(dim: Expr) -> tuple[bool, int, int, int]:
    depth = max(atom.depth for atom in dim.atoms())
    return not at_least(dim, 2), len(dim.terms), max(map(len, dim.terms)), depth
