"""Time of kernels that move more than they compute: traffic, elements, arithmetic and rows, whichever takes longest."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from graphflops.time import predict_reductions
from graphflops.time.kernel import Chunks, Convolution, Rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphflops.devices import Device
    from graphflops.time.kernel import Kernel

_IN_CACHE = 0.6  # of the L2 cache holds what the kernels before have just written
_WARP = 32  # threads
_START_OF_IMAGE = 2  # turns of a warp that starting with the next image takes
_REACHED = 0.95  # of the published bandwidth
_BYTES_PER_CYCLE = (
    18.4  # published bandwidth of the H200 per multiprocessor and cycle, of which the constants are shares
)
_MIX = 3  # how sharply the longest of several limits decides
_MIX_OF_CHUNKS = 1.5
_UNLIMITED = 1e6  # of a multiprocessor and cycle, where a device has no constant


def seconds(
    kernel: Kernel, width: float, rates: Mapping[str, float], device: Device
) -> tuple[float, float, float]:
    """Seconds of a kernel, and of these its arithmetic and its traffic at their rates."""
    moved = kernel.read_bytes + kernel.written_bytes
    cached = min(moved, _IN_CACHE * (device.l2_bytes or 0))
    cycles = (device.multiprocessors or 1) * (device.clock_hz or 1e9)
    # What limits a kernel below the bandwidth are its multiprocessors: shares move to other devices with these.
    through = _BYTES_PER_CYCLE * cycles if device.clock_hz else device.bandwidth
    from_memory = min(device.bandwidth * _REACHED, through * rates["memory"])
    traffic = cached / (through * rates["cache"]) + (moved - cached) / from_memory
    if isinstance(kernel.sizes, Chunks):
        longest = kernel.sizes.longest * rates["column"] * 1e-9
        together = (longest**_MIX_OF_CHUNKS + traffic**_MIX_OF_CHUNKS) ** (1 / _MIX_OF_CHUNKS)
        return rates["floor"] * 1e-6 + together, longest, traffic
    if isinstance(kernel.sizes, Rows) and predict_reductions.applies(kernel.sizes, rates):
        return *predict_reductions.seconds(kernel.sizes, traffic, rates, device), traffic
    rate = rates.get("elements", _UNLIMITED)
    elements = max(kernel.read_bytes, kernel.written_bytes) / width / (rate * cycles)
    computed = kernel.vector_flops + kernel.flops * _repeats(kernel)
    work = computed / (rates.get("work", _UNLIMITED) * cycles)
    rows = wait = 0.0
    if isinstance(kernel.sizes, Rows):
        rows = (
            kernel.sizes.rows * _warps(kernel) * rates.get("row", 0.0) * 1e-9 / (device.multiprocessors or 1)
        )
        wait = kernel.sizes.columns * rates.get("column", 0.0) * 1e-9
    elif isinstance(kernel.sizes, Convolution) and kernel.sizes.phase == "weight_gradient":
        work += _start_of_taps(kernel.sizes, device) * rates.get("row", 0.0) * 1e-9
    longest = sum(limit**_MIX for limit in (traffic, elements, work, rows)) ** (1 / _MIX)
    return rates["floor"] * 1e-6 + longest + wait, max(elements, work, rows, wait), traffic


def _repeats(kernel: Kernel) -> float:
    """How much more a depthwise convolution computes: its input gradient tries every tap at every position of the image.

    The weight gradient works on a warp of positions at a time (DepthwiseConv2d.cu of ATen).
    """
    sizes = kernel.sizes
    if not isinstance(sizes, Convolution) or sizes.phase == "forward":
        return 1.0
    pixels = max(prod(sizes.result), 1)
    if sizes.phase == "weight_gradient":
        return 1.0 if sizes.channels_last else (-(-pixels // _WARP) + _START_OF_IMAGE) * _WARP / pixels
    return max(1.0, prod(sizes.image) / pixels)


def _start_of_taps(sizes: Convolution, device: Device) -> float:
    """How many taps of filters each multiprocessor computes, a block for each."""
    return sizes.filters * prod(sizes.filter) / (device.multiprocessors or 1)


def _warps(kernel: Kernel) -> float:
    """Warps that work on a row. In a reduction short rows share one, and along an outer axis each thread has a result."""
    if kernel.family != "reduction" or not isinstance(kernel.sizes, Rows):
        return 1.0
    return min(1.0, kernel.sizes.columns / _WARP) if kernel.sizes.is_inner else 1 / _WARP
