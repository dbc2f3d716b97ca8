"""Copies in another arrangement, as ATen, prims and ONNX share them: what is read once, what is written once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphflops.base.record import Record
from graphflops.cost import Estimate, data_dependent
from graphflops.dims import Dim, at_least, floor_div, meet, mod, total
from graphflops.rules.registry import require
from graphflops.rules.shapes import Shape, Tensors, shown
from graphflops.tensor import DType, TensorType


def bordered(shape: Shape, widths: Mapping[int, Sequence[Dim]]) -> Shape:
    """The shape with a border of these widths before and behind each axis; a negative width cuts off."""
    out = tuple(size + total(widths.get(at, ())) for at, size in enumerate(shape))
    crops = any(at_least(-1, size) for size in out)
    require(not crops, f"a border of {dict(widths)} crops more than {shown(shape)} has")
    return out


def repeated(x: TensorType, repeats: Sequence[Dim]) -> Estimate:
    """Every axis repeated end to end, every repeat written; axes may be added in front."""
    require(len(repeats) >= x.rank, f"{shown(repeats)} has fewer entries than {shown(x.shape)} has axes")
    own = (*(1,) * (len(repeats) - x.rank), *x.shape)
    return Estimate((x.like(size * more for size, more in zip(own, repeats, strict=True)),), reads=(x,))


def depth_to_space(x: TensorType, factor: int) -> Estimate:
    """Channels spread out over a grid of positions that is finer by a factor."""
    *batch, channels, height, width = x.shape
    area = factor * factor
    meet(mod(channels, area), 0, f"{channels} channels do not fill squares of {area}")
    out = x.like((*batch, floor_div(channels, area), height * factor, width * factor))
    return Estimate((out,), reads=(x,))


def space_to_depth(x: TensorType, factor: int) -> Estimate:
    """Squares of positions gathered as channels of a coarser grid."""
    *batch, channels, height, width = x.shape
    rows, columns = (floor_div(size, factor) for size in (height, width))
    return Estimate((x.like((*batch, channels * factor * factor, rows, columns)),), reads=(x,))


def columns_to_image(x: TensorType, leading: Sequence[Dim], channels: Dim, image: Sequence[Dim]) -> Estimate:
    """Columns put back as patches of an image, an addition each where they may overlap."""
    return Estimate((x.like((*leading, channels, *image)),), vector_flops=x.numel, reads=(x,))


def one_hot(x: TensorType, place: int, classes: Dim | None, dtype: DType) -> Estimate:
    """One of two values for each index and class, classes along a new axis; None where the data says how many."""
    size = data_dependent("one_hot") if classes is None else classes
    return Estimate((x.like((*x.shape[:place], size, *x.shape[place:]), dtype),), reads=(x,))


# Writes of chosen elements.


class Update(Record, frozen=True):
    """One write of chosen elements."""

    target: TensorType  # written into
    part: TensorType  # what is written of it
    operands: Tensors  # read besides: the new values and where they go
    flops: Dim = 0  # operations in all
    combines: bool = False  # the old values of the part are read too


def combined(x: TensorType, part: TensorType, operands: Tensors, reduce: str | None) -> Update:
    """A part written, and combined with what is there where a reduction is named."""
    return Update(x, part, operands, reduction(reduce, part, x), reduce is not None)


def reduction(reduce: str | None, source: TensorType, target: TensorType) -> Dim:
    """Operations of combining every element of a source with what is there."""
    if reduce is None:
        return 0
    return 2 * source.numel + target.numel if reduce == "mean" else source.numel


def functional(done: Update) -> Estimate:
    """The update of a copy: the tensor is read and the result written in full."""
    return Estimate((done.target.like(),), vector_flops=done.flops, reads=(done.target, *done.operands))
