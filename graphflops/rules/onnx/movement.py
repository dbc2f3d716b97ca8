"""Elements copied into another arrangement: read once where they are kept, written once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.cost import Estimate
from graphflops.dims import Dim, broadcast, differ, floor_div, meet, mod, prod, total
from graphflops.rules.axes import axes
from graphflops.rules.axes import axis as place_of
from graphflops.rules.onnx.entries import (
    filled,
    grid,
    moved,
    rank_of,
    size,
    sizes,
    unknown,
)
from graphflops.rules.registry import require, rule
from graphflops.rules.shapes import replaced, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.rules.onnx.entries import Numbers, Place
    from graphflops.rules.onnx.values import Number
    from graphflops.tensor import TensorType

# Axes in another order, tensors end to end.


@rule("onnx.Transpose")
def transpose(x: TensorType, *, perm: Sequence[int] | None = None) -> Estimate:
    """Axes in the order given, by default reversed."""
    order = tuple(reversed(range(x.rank))) if perm is None else axes(perm, x.rank)
    require(
        sorted(order) == list(range(x.rank)), f"{shown(order)} is no order of the axes of {shown(x.shape)}"
    )
    out = x.like(x.shape[place] for place in order)
    back = [order.index(place) for place in range(x.rank)]
    return Estimate((moved(x, out, lambda at: [at[place] for place in back]),), reads=(x,))


@rule("onnx.Concat")
def concat(*tensors: TensorType, axis: int) -> Estimate:
    """Tensors joined along an axis they have."""
    return Estimate((joined(tensors, axis),), reads=tensors)


@rule("onnx.Concat.1")
def concat_by_default(*tensors: TensorType, axis: int = 1) -> Estimate:
    """Tensors joined along an axis they have, the second where none is named."""
    return concat(*tensors, axis=axis)


def joined(tensors: Sequence[TensorType], axis: int) -> TensorType:
    """The tensors end to end along an axis, contents included."""
    require(bool(tensors), "there is nothing to join")
    first = tensors[0]
    place = place_of(axis, first.rank)
    shape = first.shape
    for x in tensors[1:]:
        require(x.rank == first.rank, f"{shown(first.shape)} and {shown(x.shape)} have not as many axes")
        pairs = enumerate(zip(shape, x.shape, strict=True))
        shape = tuple(a if at == place else meet(a, b) for at, (a, b) in pairs)
    out = first.like(replaced(shape, place, total(x.shape[place] for x in tensors)))
    known = [contents for x in tensors if (contents := grid(x)) is not None]
    if len(known) < len(tensors):
        return out
    sources = [(part, index) for part in known for index in range(part.shape[place])]

    def entry(at: Place) -> Number:
        part, index = sources[at[place]]
        return part.at((*at[:place], index, *at[place + 1 :]))

    return filled(out, entry)


# Repeats, all of them stored.


@rule("onnx.Expand")
def expand(x: TensorType, shape: Numbers) -> Estimate:
    """Repeats up to the sizes that the operand and the shape given broadcast to."""
    wanted = sizes(shape)
    if wanted is None:
        rank = max(x.rank, rank_of(shape, "Expand"))
        wanted = tuple(
            1 if isinstance(own, int) and own > 1 else unknown("expand", place)
            for place, own in enumerate((*(1,) * (rank - x.rank), *x.shape))
        )
    out = x.like(broadcast(x.shape, wanted))
    ahead = out.rank - x.rank
    repeats = [length == 1 for length in x.shape]
    source = moved(x, out, lambda at: [0 if one else i for one, i in zip(repeats, at[ahead:], strict=True)])
    return Estimate((source,), reads=(x,))


@rule("onnx.Tile")
def tile(x: TensorType, repeats: Numbers) -> Estimate:
    """Every axis repeated end to end."""
    times = sizes(repeats) or tuple(unknown("tile", place) for place in range(x.rank))
    require(
        len(times) == x.rank, f"{shown(times)} does not say how often each axis of {shown(x.shape)} repeats"
    )
    return Estimate((_repeated(x, times),), reads=(x,))


@rule("onnx.Tile.1")
def tile_axis(x: TensorType, tiles: Numbers, axis: Numbers) -> Estimate:
    """One axis repeated end to end."""
    times, along = size(tiles), size(axis)
    require(isinstance(along, int), "which axis is repeated depends on data")
    place = place_of(along, x.rank) if isinstance(along, int) else 0
    more = unknown("tile", place) if times is None else times
    return Estimate((_repeated(x, replaced((1,) * x.rank, place, more)),), reads=(x,))


def _repeated(x: TensorType, times: Sequence[Dim]) -> TensorType:
    out = x.like(length * more for length, more in zip(x.shape, times, strict=True))
    lengths = [length if isinstance(length, int) else 1 for length in x.shape]
    return moved(x, out, lambda at: [i % length for i, length in zip(at, lengths, strict=True)])


# Blocks of pictures.


@rule("onnx.DepthToSpace")
def depth_to_space(x: TensorType, *, blocksize: int, mode: str = "DCR") -> Estimate:
    """Channels spread out over a finer grid of positions."""
    batch, channels, height, width = _picture(x, blocksize)
    area = blocksize * blocksize
    require(not differ(mod(channels, area), 0), f"{channels} channels do not fill blocks of {area}")
    return Estimate(
        (x.like((batch, floor_div(channels, area), height * blocksize, width * blocksize)),), reads=(x,)
    )


@rule("onnx.SpaceToDepth")
def space_to_depth(x: TensorType, *, blocksize: int, mode: str = "DCR") -> Estimate:
    """Blocks of positions gathered as channels of a coarser grid."""
    batch, channels, height, width = _picture(x, blocksize)
    uneven = any(differ(mod(length, blocksize), 0) for length in (height, width))
    require(not uneven, f"{shown((height, width))} is not made of blocks of {blocksize}")
    rows, columns = (floor_div(length, blocksize) for length in (height, width))
    return Estimate((x.like((batch, channels * blocksize * blocksize, rows, columns)),), reads=(x,))


def _picture(x: TensorType, block: int) -> tuple[Dim, Dim, Dim, Dim]:
    require(block > 0, f"there are no blocks of {block}")
    require(x.rank == 4, f"{shown(x.shape)} is no batch of pictures")
    batch, channels, height, width = x.shape
    return batch, channels, height, width


@rule("onnx.Col2Im")
def col2im(
    x: TensorType,
    image_shape: Numbers,
    block_shape: Numbers,
    *,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Estimate:
    """Columns put back as blocks of an image, an addition each where they may overlap."""
    require(x.rank == 3, f"{shown(x.shape)} holds no columns")
    batch, rows, _ = x.shape
    block, image = sizes(block_shape), sizes(image_shape)
    if image is None:
        image = tuple(unknown("col2im", place) for place in range(2, 2 + rank_of(image_shape, "Col2Im")))
    channels = unknown("col2im", 1) if block is None else floor_div(rows, prod(block))
    return Estimate((x.like((batch, channels, *image)),), vector_flops=x.numel, reads=(x,))


# The same elements, some elsewhere or gone.


@rule("onnx.Trilu")
def trilu(x: TensorType, k: Numbers = None, *, upper: int = 1) -> Estimate:
    """A copy, zero on one side of a diagonal."""
    require(x.rank > 1, f"{shown(x.shape)} is no matrix")
    shift, known = 0 if k is None else size(k), grid(x)
    if known is None or not isinstance(shift, int):
        return Estimate((x.like(),), reads=(x,))

    def entry(at: Place) -> Number:
        beyond = at[-1] - at[-2] - shift
        return known.at(at) if (beyond >= 0 if upper else beyond <= 0) else 0

    return Estimate((filled(x.like(), entry),), reads=(x,))


@rule("onnx.ReverseSequence")
def reverse_sequence(
    x: TensorType, sequence_lens: TensorType, *, batch_axis: int = 1, time_axis: int = 0
) -> Estimate:
    """The first steps of each sequence read backwards, as many as it is long."""
    batch, steps = x.shape[place_of(batch_axis, x.rank)], sequence_lens.numel
    require(not differ(batch, steps), f"{steps} lengths are given for {batch} sequences")
    return Estimate((x.like(),), reads=(x, sequence_lens))
