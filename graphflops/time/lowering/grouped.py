"""Convolutions of several groups, by the ways that cuDNN has on Hopper, as the profiler shows them.

Groups whose channels are a power of two share one kernel; others are padded to one first, or are a kernel each, in several
streams. Which of these cuDNN takes follows the size of the window and the number of groups.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from graphflops.memory.convolutions import power_of_two
from graphflops.time.kernel import Convolution, Kernel, Rows

if TYPE_CHECKING:
    from graphflops.time.concrete import Tensor
    from graphflops.time.kernel import Pass
    from graphflops.time.lowering.convolution_problem import Problem

_FEWEST, _WIDEST = 4, 64  # channels of a group that a shared kernel takes
_MANY_GROUPS = 6
_LONG = 2048  # taps of a filter from which on groups are kernels of their own
_SMALL_WINDOW = 9  # positions
_TILE = 32


def grouped(
    problem: Problem, phase: Pass, flops: int, reads: tuple[Tensor, ...], writes: Tensor
) -> list[Kernel]:
    """The kernels of one pass: conversions, and one kernel or one for each group."""
    if _is_looped(problem, phase):
        kernel = problem.kernel(phase, flops, reads, writes)
        assert isinstance(kernel.sizes, Convolution)
        moved = (
            1 if problem.is_channels_last else 3
        )  # each operand is converted by itself: read, written, read
        sizes = replace(kernel.sizes, is_looped=True)
        return [
            replace(
                kernel,
                read_bytes=moved * kernel.read_bytes,
                written_bytes=moved * kernel.written_bytes,
                sizes=sizes,
            )
        ]
    width = _padded(_channels(problem))
    if width == _channels(problem):
        before = problem.converted(*reads)
        return [*before, problem.kernel(phase, flops, reads, writes), *problem.converted(writes)]
    kernel = problem.kernel(phase, flops, reads, writes)
    assert isinstance(kernel.sizes, Convolution)
    sizes = replace(
        kernel.sizes,
        channels=width * problem.groups,
        filters=_padded(kernel.sizes.filters // problem.groups) * problem.groups,
        channels_last=True,
    )
    before = [kernel for tensor in reads for kernel in _to_padded(problem, tensor)]
    return [*before, replace(kernel, sizes=sizes), *_to_padded(problem, writes)]


def _channels(problem: Problem) -> int:
    """Channels of a group."""
    return problem.x.shape[1] // problem.groups


def _padded(channels: int) -> int:
    """The next power of two, at least as many channels as a shared kernel takes."""
    return max(_FEWEST, power_of_two(channels))


def _is_looped(problem: Problem, phase: Pass) -> bool:
    """Whether each group is a kernel of its own."""
    channels, window = _channels(problem), prod(problem.weight.shape[2:])
    if channels * window > _LONG:
        return phase != "weight_gradient"
    if _padded(channels) == channels and channels <= _WIDEST:
        return False
    is_of_images = problem.x.rank > 3
    return problem.groups < _MANY_GROUPS or (is_of_images and window > _SMALL_WINDOW)


def _to_padded(problem: Problem, tensor: Tensor) -> list[Kernel]:
    """The conversion of an operand to padded channels-last, or back; a weight is converted element by element."""
    ratio = _padded(_channels(problem)) / _channels(problem)
    size, padded = tensor.full_bytes, int(tensor.full_bytes * ratio)
    zeros = [Kernel("elementwise", tensor.dtype, written_bytes=padded)]
    if tensor is problem.weight or problem.is_channels_last:
        return [*zeros, Kernel("copy", tensor.dtype, 0, 0, size, padded, variant="generic")]
    pixels = prod(tensor.shape[2:])
    channels = int(tensor.shape[1] * ratio)
    tiles = Rows(tensor.shape[0] * -(-channels // _TILE) * -(-pixels // _TILE), 1)
    return [*zeros, Kernel("copy", tensor.dtype, 0, 0, size, padded, tiles, variant="channels_last")]
