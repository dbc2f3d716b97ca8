"""Time of kernels that move more than they compute: the longest of traffic, elements, arithmetic and rows.

Reductions along outer axes or over planes have a model of their own: blocks, splits, and joined parts (Reduce.cuh of ATen).
"""

from functools import lru_cache
from math import gcd, prod

from graphflops.base.record import replace
from graphflops.devices import Device, platform_of
from graphflops.execution.strides import size_hint
from graphflops.kernels.beside import WARP, largest_power, sharing_blocks, threads_of_block
from graphflops.kernels.choices import limits
from graphflops.kernels.convolution import power_of_two
from graphflops.kernels.kernel import Chunks, Convolution, Kernel, Rows, Strided, Windows
from graphflops.time import bandwidth
from graphflops.time.bandwidth import Rates, Times
from graphflops.time.predict_products import of_convolution

_START_OF_IMAGE = 2  # iterations of a warp that the start of another image costs
_MIX = 3  # the norm that combines several limits: the larger, the more only the longest counts
_MIX_OF_CHUNKS = 1.5
_TILE = limits("cudnn_9", "tiled", "positions filters")
# Square filters that have kernels of their own, by whether channels are innermost.
_OWN_KERNELS = {False: ((1, 1), (3, 3), (5, 5)), True: ((1, 1), (3, 3))}
_LINE = 128  # bytes of a line of the cache: channels that fill lines fall into fewer sets of it
_TILED = 5  # positions along a filter up to which a kernel of tiles computes the weight's gradient: of 142 on an H200
_TENSORS_AROUND = 3  # of the same size as its own, which are in the cache too while such a kernel runs
# How much faster than its size the evicted share of what is read twice grows above the cache's.
_EVICTED = 3.0
_MOST_PLACES = 256  # places along an axis that are averaged
_OF_WARP = 2048  # elements of a row that a warp processes, padded to a power of two (PersistentSoftmax.cuh)
_LONGEST = 4096  # elements of a row that one block sums
_WAITS = ("column", "load", "chain", "again", "evicted")
_AT_ONCE = 2  # blocks of 1,024 threads per multiprocessor
_UNLIMITED = 1e6  # per multiprocessor and cycle, if a device has no constant


def seconds(kernel: Kernel, width: float, rates: Rates, device: Device) -> Times:
    """Seconds of a kernel. width: bytes of an element."""
    moved = kernel.read_bytes + kernel.written_bytes
    cached = bandwidth.cached(moved, device)
    through = bandwidth.through(device)
    from_memory = min(device.bandwidth * rates.get("reached", bandwidth.REACHED), through * rates["memory"])
    traffic = cached / (through * rates["cache"]) + (moved - cached) / from_memory
    if isinstance(kernel.sizes, Chunks):
        longest = kernel.sizes.longest * rates["column"] * 1e-9
        together = (longest**_MIX_OF_CHUNKS + traffic**_MIX_OF_CHUNKS) ** (1 / _MIX_OF_CHUNKS)
        return rates["floor"] * 1e-6 + together, longest, traffic
    if isinstance(kernel.sizes, Rows) and rates.keys() >= _OF_BLOCKS:
        by_blocks = _planes if kernel.sizes.is_inner else _outer_seconds
        return *by_blocks(kernel.sizes, traffic, rates, device), traffic
    elements = _elements(kernel, width, rates) / device.cycles
    computed = kernel.vector_flops + kernel.flops * _repeats(kernel)
    work = computed / (rates.get("work", _UNLIMITED) * device.cycles)
    if kernel.variant == "fused" and isinstance(kernel.sizes, Rows):
        work *= max(1.0, device.cores / max(kernel.sizes.rows, 1))  # one block for each, the others idle
    rows, wait, beside = _rows_and_waits(kernel, rates, device)
    if isinstance(sizes := kernel.sizes, Convolution) and sizes.phase == "weight_gradient":
        taps = sizes.filters * prod(sizes.filter)  # one block for each tap of each filter
        work += 0.0 if "position" in rates else taps / device.cores * rates.get("row", 0.0) * 1e-9
    mix = rates.get("mix", _MIX)
    longest = sum(limit**mix for limit in (traffic, elements, work, rows, beside)) ** (1 / mix)
    return rates["floor"] * 1e-6 + longest + wait, max(elements, work, rows, wait, beside), traffic


def tiled_seconds(sizes: Convolution, width: float, moved: int, rates: Rates, device: Device) -> Times:
    """Seconds of a convolution without matrix units: tiles iterate along k; few tiles wait at each step."""
    problem = of_convolution(sizes, width, 1.0, moved)
    down, across = _TILE
    tiles = -(-problem.m // down) * -(-problem.n // across) * problem.batch
    steps = problem.k + rates["start"]
    computed = steps * rates["step"] * 1e-9 * tiles / device.cores
    waited = steps * rates["latency"] * 1e-9
    longest = (computed**_MIX + waited**_MIX) ** (1 / _MIX)
    return rates["floor"] * 1e-6 + longest, longest, moved / device.bandwidth


def decomposition_seconds(sizes: Rows, rates: Rates) -> Times:
    """Seconds of the columns in sequence, and of all elements. Matrices of more than `together` columns run one by one."""
    rows, n = sizes.rows, sizes.columns
    serial = rates["floor"] * 1e-6 + n * (rates["column"] + n * rates.get("square", 0.0)) * 1e-9
    turns = rows if n > rates.get("together", _UNLIMITED) else 1
    work = rows * n * (rates["row"] + n * n * rates["cube"]) * 1e-9
    return turns * serial + work, turns * serial + work, 0.0


def _rows_and_waits(kernel: Kernel, rates: Rates, device: Device) -> tuple[float, float, float]:
    """Seconds for starting all rows, of what one thread does in sequence, and of loads for which its block waits.

    Other blocks continue meanwhile. Memory takes twice as long as the cache to answer (`load`); if a load needs what the one
    before has found, three times (`chain`). What is read twice (`again`) takes longer if the cache no longer holds it
    (`evicted`). Rows of up to a warp's elements may cost less (`short`). Few depthwise channels have a block each, which
    goes over all images (`image`).
    """
    if isinstance(kernel.sizes, Convolution) and "position" in rates:
        images = kernel.sizes.batch * prod(kernel.sizes.result) * rates.get("image", 0.0) * 1e-9
        planes = kernel.sizes.batch * kernel.sizes.channels / device.cores
        column = prod(kernel.sizes.filter) * rates.get("column", 0.0) * 1e-9
        return planes * rates.get("row", 0.0) * 1e-9, column, images
    if isinstance(kernel.sizes, Windows):
        return 0.0, kernel.sizes.positions * rates.get("column", 0.0) * 1e-9, 0.0
    if not isinstance(kernel.sizes, Rows):
        return 0.0, 0.0, 0.0
    is_reduction, is_inner = kernel.family == "reduction", kernel.sizes.is_inner
    columns, each = float(kernel.sizes.columns), 1.0  # each: warps per row; short rows share a warp
    if is_inner and (is_reduction or kernel.family == "softmax"):
        each = min(1.0, columns / WARP) * (rates.get("short", 1.0) if columns <= WARP else 1.0)
    elif is_reduction:  # along an outer axis, each thread has one result
        each = 1 / WARP
    if is_reduction and kernel.variant in ("", "pairs"):
        columns = in_turn(kernel.sizes) if is_inner else min(columns, _LONGEST)
    if kernel.family == "softmax" and not is_inner:  # blocks wait until a multiprocessor has room
        columns *= max(1.0, kernel.sizes.rows / (_AT_ONCE * device.cores))
    if "padded" in rates and columns > _OF_WARP:
        columns /= WARP  # processed by a block
    if kernel.variant in _OF_COLUMNS:
        columns = rows_of_thread(kernel.sizes.rows, kernel.sizes.columns)
    started = kernel.sizes.rows * each * rates.get("row", 0.0) * 1e-9 / device.cores
    nearby = _TENSORS_AROUND * (kernel.written_bytes or kernel.read_bytes)
    missed = 1 - bandwidth.cached(nearby, device) / max(nearby, 1)
    wait, load, chain, again, later = (columns * rates.get(name, 0.0) * 1e-9 for name in _WAITS)
    passed = (kernel.read_bytes + kernel.written_bytes) / 2  # before the second pass reads an element again
    evicted = min(_EVICTED * (1 - bandwidth.cached(passed, device) / max(passed, 1)), 1.0)
    return started, wait, load * (1 + missed) + chain * (1 + 2 * missed) + again + later * evicted


def _elements(kernel: Kernel, width: float, rates: Rates) -> float:
    """Cycles that all elements would take on one multiprocessor."""
    each = 1 / rates.get("elements", _UNLIMITED)
    match kernel.sizes:
        case Strided(count, axes, tensors, waste, has_casts):
            each += (axes - 1) * rates.get("axis", 0.0) + (tensors - 2) * rates.get("tensor", 0.0)
            return count * (each + waste * rates.get("waste", 0.0) + has_casts * rates.get("cast", 0.0))
        case Rows(rows, columns) if "padded" in rates and columns <= _OF_WARP:
            return rows * power_of_two(columns) / rates["padded"]
        case Windows(count, positions):
            return count * (each + positions * rates.get("position", 0.0))
        case Convolution() as sizes if "position" in rates:
            # Depthwise: one thread for each result. Some square filters have kernels of their own.
            result = sizes.image if sizes.phase == "input_gradient" else sizes.result
            taps = prod(_inside(*axis) for axis in zip(sizes.image, result, sizes.filter, strict=True))
            is_own = "own" in rates and sizes.filter in _OWN_KERNELS[sizes.channels_last]
            is_crowded = "crowded" in rates and sizes.channels * width % _LINE == 0
            is_gradient, each_of = sizes.phase == "input_gradient", sizes.filters // max(sizes.channels, 1)
            taps *= max(each_of, 1) if is_gradient else 1  # a channel may have several filters
            count = sizes.batch * (sizes.channels if is_gradient else sizes.filters) * prod(result)
            taken = "own" if is_own else "crowded" if is_crowded else "position"
            cycles = count * (each + taps * rates[taken])
            if "tiled" in rates and max(sizes.filter) <= _TILED and not sizes.is_dilated:
                # Another kernel goes over the image in tiles, also over what a stride leaves out.
                places = sizes.batch * sizes.channels * prod(sizes.image) * prod(sizes.filter)
                cycles = min(cycles, rates["tiles"] + places * rates["tiled"])
            return cycles
        case _:
            return max(kernel.read_bytes, kernel.written_bytes) / width * each


@lru_cache(maxsize=1024)
def _inside(image: int, result: int, filter_: int) -> float:
    """The mean number of a filter's taps along an axis that are inside the image."""
    stride = max(1, round(image / max(result, 1)))
    before = max(0, (result - 1) * stride + filter_ - image) // 2
    total = 0
    for place in range(min(result, _MOST_PLACES)):
        start = place * stride - before
        total += max(0, min(image, start + filter_) - max(0, start))
    return total / max(1, min(result, _MOST_PLACES))


def _repeats(kernel: Kernel) -> float:
    """How much more than its FLOPs a depthwise convolution computes: its input gradient tries every tap at every position.

    The weight gradient processes whole warps of positions (DepthwiseConv2d.cu of ATen).
    """
    sizes = kernel.sizes
    if not isinstance(sizes, Convolution) or sizes.phase == "forward":
        return 1.0
    pixels = max(prod(sizes.result), 1)
    if sizes.phase == "weight_gradient":
        return 1.0 if sizes.channels_last else (-(-pixels // WARP) + _START_OF_IMAGE) * WARP / pixels
    return max(1.0, prod(sizes.image) / pixels)


_BLOCK, _VECTOR, _LEAST = limits("aten_2", "reduce", "most_threads vector fewest_values")
_LONG, _PLACE = limits("aten_2", "reduce", "most_values place")
_OF_BLOCKS = frozenset({"step", "fence"})  # constants of the model
_MOST_BLOCKS, _FEWEST_BLOCKS = limits("aten_2", "batch_norm", "most_blocks fewest_blocks")
_OF_COLUMNS = frozenset({"batch_norm_moments_last", "batch_norm_sums_last"})


def rows_of_thread(channels: int, rows: int) -> int:
    """Rows that a thread loops over if each column is a channel (`flexible_launch_configs` of ATen)."""
    high = largest_power(-(-rows // _LEAST), _BLOCK // largest_power(channels, WARP))
    blocks = min(-(-rows // (high * _LEAST)), _MOST_BLOCKS)
    return -(-rows // (high * (blocks if blocks >= _FEWEST_BLOCKS else 1)))


def in_turn(sizes: Rows) -> float:
    """Elements of a row that each thread of a warp sums, times the warp; few rows have more warps each (Reduce.cuh)."""
    width, height = threads_of_block(max(sizes.columns, WARP), sizes.rows, _BLOCK)
    each = sizes.columns / width
    if each >= min(height * _LEAST, _LONG):  # the warps of a block share a row, and blocks a longer one
        each = min(each / height, _LONGEST / WARP)
    return each * WARP


def _outer_seconds(sizes: Rows, traffic: float, rates: Rates, device: Device) -> tuple[float, float]:
    """Seconds of a reduction along outer axes, and of what its threads do in sequence."""
    vector = gcd(sizes.rows, _VECTOR)
    platform = replace(platform_of(device), multiprocessors=device.cores)
    blocks = sharing_blocks(sizes.rows // vector, sizes.columns, vector, platform)
    groups, parts, each = map(size_hint, (blocks.groups, blocks.parts, blocks.each))
    step = rates["step"] * 1e-9 * (1 + (vector - 1) * rates["vector"])
    serial = max(1.0, groups * parts / blocks.at_once) * -(-each // parts) * step
    elements = sizes.rows * (sizes.columns + _PLACE) / (rates["elements"] * device.cycles)
    joined = rates["fence"] * 1e-6 + -(-parts // blocks.down) * rates["join"] * 1e-9 if parts > 1 else 0.0
    longest = sum(limit**_MIX for limit in (serial, traffic, elements)) ** (1 / _MIX)
    return rates["floor"] * 1e-6 + longest + joined, max(serial, elements) + joined


def _planes(sizes: Rows, traffic: float, rates: Rates, device: Device) -> tuple[float, float]:
    """The same for planes: one block for each channel, or several if there are few channels."""
    parts = max(1, 4 * device.cores // sizes.rows) if sizes.columns >= _LONG * _BLOCK else 1
    serial = -(-sizes.rows * parts // device.cores) * sizes.columns / parts * rates["step"] * 1e-9
    joined = rates["fence"] * 1e-6 if parts > 1 else 0.0
    return rates["floor"] * 1e-6 + serial + traffic + joined, serial + joined
