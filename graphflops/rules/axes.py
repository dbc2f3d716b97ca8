"""Axis numbers as in ATen: negative ones count from the end, and a 0-d tensor has the axis 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.rules.registry import require

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.dims import Dim


def axis(dim: int, rank: int) -> int:
    """The axis counted from the front; raises ShapeError if a tensor of that rank has no such axis."""
    span = max(rank, 1)
    require(isinstance(dim, int), f"{dim!r} is not an axis")
    require(-span <= dim < span, f"axis {dim} does not exist in a tensor of {rank} axes")
    return dim % span


def axes(dims: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Each axis counted from the front, in the given order; None means all axes."""
    if dims is None:
        return tuple(range(rank))
    return tuple(axis(dim, rank) for dim in ((dims,) if isinstance(dims, int) else dims))


def reduced(shape: Sequence[Dim], dims: int | Sequence[int] | None, keepdim: bool = False) -> tuple[Dim, ...]:
    """The shape after reducing axes; with `keepdim` a reduced axis has size 1; no named axes means all axes."""
    gone = frozenset(axes(None if dims == () else dims, len(shape)))
    if keepdim:
        return tuple(1 if place in gone else size for place, size in enumerate(shape))
    return tuple(size for place, size in enumerate(shape) if place not in gone)
