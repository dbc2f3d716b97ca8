"""Time of a convolution whose groups are kernels of their own: chains of conversions and a convolution, in eight streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from graphflops.kernels.cudnn import STREAMS
from graphflops.kernels.kernel import DIRECT, Convolution, Kernel, Rows

_GAP = 1.6e-6  # seconds between two kernels of a graph that has several streams
_BESIDE = 1.15  # how much longer kernels take beside those of other streams
_ALONE = 2e-6  # seconds of a kernel in which those of other streams find room
_FILLING = 8448  # positions of a result that fill the device: tiles of 64 on 132 multiprocessors
_FIRST, _MULTIPLY = 4.7e-6, 16.5e-9  # seconds of such a kernel, and of each multiply-add of a result
_TILE = 32  # channels and pixels of a tile of the conversion
_ALIGNED = 8  # channels: others are padded up to a multiple for tensor cores


def seconds(kernel: Kernel, sizes: Convolution, predict: Callable[[Kernel], float]) -> float:
    """Seconds of all groups: those of a stream in turn, or what is left of all of them where each fills the device."""
    groups = sizes.groups
    one = _of_one(kernel, sizes)
    if kernel.variant == DIRECT:
        depth = sizes.channels // groups * prod(sizes.filter)
        parts = [_FIRST + depth * _MULTIPLY]
    else:
        parts = [predict(part) for part in (one, *_conversions(one, sizes))]
    each = sum(_BESIDE * part + _GAP for part in parts)
    filled = _share(sizes) * sum(max(part - _ALONE, 0.0) for part in parts)
    return max(-(-groups // STREAMS) * each, groups * filled)


def _share(sizes: Convolution) -> float:
    """The part of a device that one group fills."""
    return min(1.0, sizes.batch * prod(sizes.result) / _FILLING)


def _of_one(kernel: Kernel, sizes: Convolution) -> Kernel:
    """The convolution of one group, which is dense."""
    groups = sizes.groups
    channels, filters = (
        -(-(size // groups) // _ALIGNED) * _ALIGNED for size in (sizes.channels, sizes.filters)
    )
    dense = replace(sizes, channels=channels, filters=filters, groups=1, is_looped=False, channels_last=True)
    moved = kernel.read_bytes // groups, kernel.written_bytes // groups
    return Kernel("convolution", kernel.dtype, kernel.flops // groups, 0, *moved, dense)


def _conversions(one: Kernel, sizes: Convolution) -> list[Kernel]:
    """A kernel each for operand, weight and result."""
    channels, filters = sizes.channels // sizes.groups, sizes.filters // sizes.groups
    width = (one.read_bytes + one.written_bytes) / max(
        sizes.batch * (channels * prod(sizes.image) + filters * prod(sizes.result))
        + channels * filters * prod(sizes.filter),
        1,
    )
    tensors = [
        (sizes.batch, channels, prod(sizes.image)),
        (filters, channels, prod(sizes.filter)),
        (sizes.batch, filters, prod(sizes.result)),
    ]
    if sizes.channels_last:  # a weight is in order already
        del tensors[1]
    kernels = []
    for images, wide, pixels in tensors:
        size = int(images * wide * pixels * width)
        tiles = Rows(images * -(-wide // _TILE) * -(-pixels // _TILE), 1)
        kernels.append(Kernel("copy", one.dtype, 0, 0, size, size, tiles, variant="channels_last"))
    return kernels
