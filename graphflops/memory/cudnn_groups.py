"""Workspaces of cuDNN's convolutions of several groups, by the way that it takes for them (memory/grouped.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.memory import grouped
from graphflops.memory.convolutions import power_of_two

if TYPE_CHECKING:
    from graphflops.devices import Platform
    from graphflops.dims import Dim
    from graphflops.memory.convolutions import Convolution
    from graphflops.memory.grouped import Way

_FLOAT_BYTES = 4
_TILE, _WIDE_TILE = 64, 128  # channels of one thread block
_MANY_ROWS = 12_000  # from which the gradient of a weight is summed up in parts


def result_bytes(conv: Convolution, is_last: bool) -> Dim:
    """The workspace of the forward pass. is_last: whether the channels are last."""
    return _workspace(conv, grouped.of_result(conv, is_last), is_last)


def operand_gradient_bytes(conv: Convolution, is_last: bool) -> Dim:
    """The workspace of the gradient of the operand; strided ones round float32 to TF32 with channels last."""
    if is_last and conv.is_strided and not conv.is_half:
        return conv.out.nbytes + conv.weight.nbytes
    return _workspace(conv, grouped.of_operand_gradient(conv, is_last), is_last)


def weight_gradient_bytes(conv: Convolution, is_last: bool, platform: Platform) -> Dim:
    """The workspace of the gradient of the weight; it rounds float32 to TF32 with channels last."""
    if is_last and not conv.is_half and grouped.is_shared_as_it_lies(conv):
        return conv.x.nbytes + conv.out.nbytes
    way = grouped.of_weight_gradient(conv, is_last)
    return _workspace(conv, way, is_last) + (_parts(conv, platform) if way == "packed" and not is_last else 0)


def _workspace(conv: Convolution, way: Way, is_last: bool) -> Dim:
    if way == "direct":
        return 0
    if way == "packed":
        wide = power_of_two(grouped.channels(conv))
        return sum(conv.copies(lambda _: wide))
    copies = conv.copies()
    has_no_weight = is_last or (
        conv.is_pointwise and conv.is_aligned
    )  # only its groups' channels are cut out
    weight = 0 if has_no_weight else copies.weight
    return (copies.x + weight + copies.out) * min(grouped.STREAMS, conv.groups) // conv.groups


def _parts(conv: Convolution, platform: Platform) -> Dim:
    """Parts of the gradient of the weight in float32: as many as keep the GPU busy, if many rows add to it."""
    if conv.rows < _MANY_ROWS:
        return 0
    wide = power_of_two(grouped.channels(conv))
    tile = _WIDE_TILE if wide >= _WIDE_TILE else _TILE
    tiles = -(-conv.groups * wide // tile) * max(1, wide // tile) * conv.taps
    return max(0, platform.multiprocessors // tiles - 1) * tiles * tile * tile * _FLOAT_BYTES
