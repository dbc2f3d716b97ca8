"""Shapes of tensors, and reshaping: all free."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.cost import Estimate, Value, data_dependent, free
from graphflops.dims import Dim, differ, prod
from graphflops.rules.onnx.entries import chosen_axes, many, rank_of, sizes, unknown
from graphflops.rules.onnx.types import onnx_dtype
from graphflops.rules.registry import require, rule
from graphflops.rules.shapes import resolved, same_elements, shown
from graphflops.tensor import INT64, TensorType, UnknownType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.rules.onnx.entries import Numbers


@rule("onnx.Shape", rankless=("x",))
def shape(x: TensorType | UnknownType, *, start: int = 0, end: int | None = None) -> Estimate:
    """The sizes of a range of axes; no data is read."""
    if isinstance(x, UnknownType):
        return free(TensorType((data_dependent("rank"),), INT64), alias=False)
    part = x.shape[start:end]
    return free(TensorType((len(part),), INT64, value=part), alias=False)


@rule("onnx.Size", rankless=("x",))
def size(x: TensorType | UnknownType) -> Estimate:
    """The number of elements; no data is read."""
    known = None if isinstance(x, UnknownType) else x.numel
    return free(TensorType((), INT64, value=known), alias=False)


@rule("onnx.Reshape", rankless=("x",))
def reshape(
    x: TensorType | UnknownType,
    shape: Numbers = None,
    *,
    allowzero: int = 0,
    consumed_inputs: Sequence[int] = (),
) -> Estimate:
    """A view with another shape: 0 keeps the operand's size at that place, -1 is inferred."""
    wanted = sizes(shape)
    if isinstance(x, UnknownType):
        wanted = wanted or (-1,) * rank_of(shape, "Reshape")
        kept = () if allowzero else (0,)
        return free(_of_unknown(x, [None if length in (-1, *kept) else length for length in wanted]))
    if wanted is None:
        return free(x.view(_undecided(x, rank_of(shape, "Reshape"))))
    if not allowzero:
        beyond = [place for place, length in enumerate(wanted) if length == 0 and place >= x.rank]
        require(not beyond, f"{shown(wanted)} keeps an axis that {shown(x.shape)} does not have")
        wanted = tuple(x.shape[place] if length == 0 else length for place, length in enumerate(wanted))
    return free(same_elements(x, resolved(x, wanted)))


def _of_unknown(x: UnknownType, wanted: Sequence[Dim | None]) -> TensorType | UnknownType:
    """The type after reshaping a tensor of unknown shape; None stands for an unknown size."""
    if x.dtype is None:
        return x
    shape = (unknown("reshape", at) if length is None else length for at, length in enumerate(wanted))
    return TensorType(tuple(shape), x.dtype)


def _undecided(x: TensorType, rank: int) -> tuple[Dim, ...]:
    return (x.numel,) if rank == 1 else tuple(unknown("reshape", place) for place in range(rank))


@rule("onnx.Squeeze", rankless=("x",))
def squeeze(x: TensorType | UnknownType, axes: Numbers = None) -> Estimate:
    """A view without the named axes of length one, or without all known ones."""
    if isinstance(x, UnknownType):
        return free(x)
    ones = tuple(place for place, length in enumerate(x.shape) if length == 1)
    gone = ones if axes is None else chosen_axes(axes, x.rank)
    if gone is None and many(axes) == len(ones):
        gone = ones
    if gone is None:
        left = x.rank - rank_of(axes, "Squeeze")
        return free(x.view(unknown("squeeze", place) for place in range(left)))
    for place in gone:
        require(not differ(x.shape[place], 1), f"axis {place} of {shown(x.shape)} is not of length one")
    return free(same_elements(x, (length for place, length in enumerate(x.shape) if place not in gone)))


@rule("onnx.Unsqueeze", rankless=("x",))
def unsqueeze(x: TensorType | UnknownType, axes: Numbers) -> Estimate:
    """New axes of length one, at places counted in the result."""
    if isinstance(x, UnknownType):
        return free(x)
    rank = x.rank + rank_of(axes, "Unsqueeze")
    new = tuple(range(rank)) if x.rank == 0 else chosen_axes(axes, rank)
    if new is None:
        return free(x.view(unknown("unsqueeze", place) for place in range(rank)))
    kept = iter(x.shape)
    return free(same_elements(x, [1 if place in new else next(kept) for place in range(rank)]))


@rule("onnx.Flatten", rankless=("x",))
def flatten(x: TensorType | UnknownType, *, axis: int = 1) -> Estimate:
    """A view with two axes: those before `axis` merged, and those from `axis` on merged."""
    if isinstance(x, UnknownType):
        return free(_of_unknown(x, (None, None)))
    require(-x.rank <= axis <= x.rank, f"axis {axis} does not exist in a tensor of {x.rank} axes")
    place = axis + x.rank if axis < 0 else axis
    return free(same_elements(x, (prod(x.shape[:place]), prod(x.shape[place:]))))


@rule("onnx.Identity", rankless=("x",))
def identity(x: Value) -> Estimate:
    """The value itself."""
    return free(x)


@rule("onnx.BitCast")
def bit_cast(x: TensorType, *, to: int) -> Estimate:
    """The same bits as another element type of the same width."""
    dtype = onnx_dtype(to)
    require(dtype.bits == x.dtype.bits, f"{x.dtype} and {dtype} differ in width")
    return free(x.view(x.shape, dtype))
