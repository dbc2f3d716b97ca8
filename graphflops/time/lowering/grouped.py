"""Convolutions of several groups, by the way that cuDNN takes for them (kernels/cudnn.py).

Packed groups share one kernel, their channels padded to a power of two; others are a kernel each, in several streams, or one
kernel without tensor cores computes all as they lie.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from graphflops.kernels.convolution import power_of_two
from graphflops.kernels.cudnn import LONG_KERNEL
from graphflops.time.kernel import DIRECT, Convolution, Kernel, Rows

if TYPE_CHECKING:
    from graphflops.time.concrete import Tensor
    from graphflops.time.lowering.convolution_problem import Problem

_FEWEST = 4  # channels of a group that a shared kernel takes
_TILE = 32
_SINGLE = 32  # bits


def grouped(problem: Problem, flops: int, reads: tuple[Tensor, ...], writes: Tensor) -> list[Kernel]:
    """The kernels of one pass: conversions, and one kernel or one for each group."""
    way = problem.way
    kernel = problem.kernel(flops, reads, writes)
    assert isinstance(kernel.sizes, Convolution)
    is_each = problem.has_several_filters_last or (way == "direct" and _is_each(problem))
    if way == "one_by_one" or is_each:
        sizes = replace(kernel.sizes, is_looped=True)
        return [replace(kernel, sizes=sizes, variant=DIRECT if is_each else "")]
    width = _padded(problem)
    if way == "direct":
        return [kernel]
    if width == _channels(problem):
        return [*problem.converted(*reads), kernel, *problem.converted(writes)]
    sizes = replace(
        kernel.sizes, channels=width * problem.groups, filters=width * problem.groups, channels_last=True
    )
    before = [kernel for tensor in reads for kernel in _to_padded(problem, tensor)]
    return [*before, replace(kernel, sizes=sizes), *_to_padded(problem, writes)]


def _is_each(problem: Problem) -> bool:
    """Whether each group is a kernel without tensor cores: long windows of sequences, and single positions in float32."""
    if problem.phase != "forward" or problem.is_channels_last:
        return False
    window = problem.weight.shape[2:]
    is_long = len(window) == 1 and window[0] > LONG_KERNEL
    return is_long or (problem.x.bits == _SINGLE and prod(window) == 1)


def _channels(problem: Problem) -> int:
    """Channels of a group, of operand or result."""
    return max(problem.x.shape[1], problem.out.shape[1]) // problem.groups


def _padded(problem: Problem) -> int:
    """The next power of two, at least as many channels as a shared kernel takes."""
    return max(_FEWEST, power_of_two(_channels(problem)))


def _to_padded(problem: Problem, tensor: Tensor) -> list[Kernel]:
    """The conversion of an operand to padded channels-last, or back; a weight is converted element by element."""
    ratio = _padded(problem) / _channels(problem)
    size, padded = tensor.full_bytes, int(tensor.full_bytes * ratio)
    zeros = [Kernel("elementwise", tensor.dtype, written_bytes=padded)]
    if tensor is problem.weight or problem.is_channels_last:
        return [*zeros, Kernel("copy", tensor.dtype, 0, 0, size, padded, variant="generic")]
    pixels = prod(tensor.shape[2:])
    channels = int(tensor.shape[1] * ratio)
    tiles = Rows(tensor.shape[0] * -(-channels // _TILE) * -(-pixels // _TILE), 1)
    return [*zeros, Kernel("copy", tensor.dtype, 0, 0, size, padded, tiles, variant="channels_last")]
