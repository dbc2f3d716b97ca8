"""Time of matrix products, and of convolutions as the products that they are: tiles, waves of tiles, and traffic.

A product is cut into tiles that the multiprocessors compute in waves. A tile reads a stripe of each operand, so small tiles
reach less of the peak. Few tiles are split along k. The library chooses the fastest way, so the time is the least over
tile sizes and splits.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

from graphflops.kernels.cudnn import STREAMS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphflops.devices import Device
    from graphflops.kernels.kernel import Convolution, Product

# Tiles of the libraries' kernels, rows x columns; each is used either way round.
_TILES = (
    *((64, 16), (64, 32), (64, 64), (128, 32), (128, 64)),
    *((128, 128), (128, 192), (128, 256), (64, 256), (192, 192)),
)
_WAYS = tuple(dict.fromkeys(way for a, b in _TILES for way in ((a, b), (b, a))))
_SPLITS = (1, 2, 4, 8, 16, 32)
_FEW_ROWS, _FEW_OF_BATCH = (
    128,
    16,
)  # rows up to which a product, and one of a batch, waits for the other matrix
_FEW = 8  # rows of wide elements up to which the threads of cuBLAS's gemmSN kernels hold a row each
_NARROW = 2  # bytes of the elements that matrix units multiply even where a product has one row
_STEP = 64  # elements of k that a tile multiplies at a time
_WIDEST = 7  # positions of a depthwise filter for which channels-last has a fast kernel
_LONG = 64  # positions
_FEW_PIXELS = 512  # with more, groups run one after the other
_BLOCK = 64  # channels of groups that a kernel multiplies together, zeros between the groups
_ALIGNED = 16  # bytes that a row must be a multiple of for the fastest loads


class Problem(NamedTuple):
    """A product as the device computes it. width: bytes per element. alignment: bytes that all rows are a multiple of.

    turns: how often groups run one after the other, because each is a kernel of its own.
    """

    m: int
    n: int
    k: int
    batch: int
    width: float
    alignment: int
    moved: int
    peak: float
    turns: int = 1


def seconds(problem: Problem, rates: Mapping[str, float], device: Device) -> tuple[float, float, float]:
    """Seconds of a product, and of these its arithmetic at the peak and its traffic at full bandwidth."""
    cores = device.multiprocessors or 1
    slowdown = _slowdown(problem.alignment, rates)
    rate = problem.peak / cores / slowdown * rates["matrix"]
    best = float("inf")
    # A CPU is one core in the models, whose tiles are too small to be told from the whole product.
    for rows, columns in _WAYS if device.multiprocessors else ((max(problem.m, 1), max(problem.n, 1)),):
        # A product of no rows, as over an empty batch, still has the launch of a tile.
        grid = max(-(-problem.m // rows) * -(-problem.n // columns) * problem.batch, 1)
        # Threads of a matrix-vector product have an element of the vector each; a tile computes rows that are not there.
        rows = 1 if _is_vector(problem.m, problem.batch, problem.width, problem.alignment) else rows
        work = 2 * (rows * columns + rates["half"] * (rows + columns)) / rate  # of one element of k
        for split in _SPLITS:
            depth = -(-problem.k // (split * _STEP)) * _STEP
            if split > 1 and (depth * (split - 1) >= problem.k or grid * split > 4 * cores):
                break
            best = min(best, _way(problem, rates, device, (grid * split, depth, split), work, slowdown))
    return rates["floor"] * 1e-6 + best * problem.turns, *_ceilings(problem, device)


def _way(
    problem: Problem,
    rates: Mapping[str, float],
    device: Device,
    cut: tuple[int, int, int],
    work: float,
    slowdown: float,
) -> float:
    """Seconds with tiles of one size and one split. cut: tiles, their depth along k, parts of k."""
    tiles, depth, split = cut
    cores = device.multiprocessors or 1
    steps = depth / _STEP * rates["latency"] * 1e-9 * slowdown**0.5
    arithmetic = -(-tiles // cores) * (work * depth + rates["epilogue"] * 1e-6) + steps
    reach = min(1.0, 1.5 * tiles / cores)  # few multiprocessors cannot use all of the bandwidth
    traffic = problem.moved / (device.bandwidth * rates["memory"] * reach)
    mix = rates["mix"]
    found = (arithmetic**mix + traffic**mix) ** (1 / mix)
    if split > 1:  # partial results in float32, written and read again by a second kernel
        partial = 8 * split * problem.batch * problem.m * problem.n
        found += rates["split"] * 1e-6 + partial / (2 * device.bandwidth)
    return float(found)


def _ceilings(problem: Problem, device: Device) -> tuple[float, float]:
    flops = 2 * problem.batch * problem.m * problem.n * problem.k
    return flops / problem.peak, problem.moved / device.bandwidth


def _slowdown(alignment: int, rates: Mapping[str, float]) -> float:
    """How many times slower kernels for rows that are not a multiple of 16 bytes compute."""
    for aligned in (16, 8, 4):
        if alignment >= aligned:
            return 1.0 if aligned == _ALIGNED else rates[f"unaligned_{aligned}"]
    return rates["unaligned_2"]


def product_kind(sizes: Product, width: float) -> str:
    """What tells products apart: few rows, which take as long as the other matrix takes to read, have kernels of their own.

    Those of 16 bits run on matrix units even for one row; one row of wider numbers is a matrix-vector product (gemv), and
    so is one of 16 bits whose rows have an odd number of them.
    """
    if sizes.layout in ("tn", "nn"):
        if _is_vector(sizes.m, sizes.batch, width, _alignment_of(sizes, width)):
            return "gemv"
        if sizes.m <= _FEW and sizes.batch == 1 and width > _NARROW:
            return "few"
        if sizes.m <= (_FEW_ROWS if sizes.batch == 1 else _FEW_OF_BATCH):
            return "skinny" if sizes.batch == 1 else "batched.skinny"
    return "batched" if sizes.batch > 1 else sizes.layout


def _is_vector(rows: int, batch: int, width: float, alignment: int) -> bool:
    return rows == batch == 1 and (width != _NARROW or alignment <= _NARROW)


def of_product(sizes: Product, width: float, peak: float, moved: int) -> Problem:
    """A product with the alignment of its rows in memory."""
    alignment = _alignment_of(sizes, width)
    return Problem(sizes.m, sizes.n, sizes.k, sizes.batch, width, alignment, moved, peak)


def _alignment_of(sizes: Product, width: float) -> int:
    m, n, k = sizes.m, sizes.n, sizes.k
    return _alignment(
        {"tn": (k, k, n), "nn": (k, n, n), "nt": (m, n, n), "tt": (m, k, n)}[sizes.layout], width
    )


def of_convolution(sizes: Convolution, width: float, peak: float, moved: int) -> Problem:
    """The product that a convolution is: pixels x filters, over the taps of a filter (im2col, which is never stored)."""
    pixels, image, taps = prod(sizes.result), prod(sizes.image), prod(sizes.filter)
    packed = _BLOCK * sizes.groups // max(sizes.channels, 1)  # a file may have a convolution of no channels
    together = 1 if sizes.is_looped else min(sizes.groups, max(1, packed))
    filters, channels = (each // sizes.groups * together for each in (sizes.filters, sizes.channels))
    if _is_planar(sizes):
        return _of_planes(sizes, width, peak, moved)
    pixels, image = sizes.batch * pixels, sizes.batch * image
    m, n, k = {
        "input_gradient": (image, channels, max(1, filters * taps * pixels // max(image, 1))),
        "weight_gradient": (filters, channels * taps, pixels),
    }.get(sizes.phase, (pixels, filters, channels * taps))
    alignment = _ALIGNED if together > 1 else _alignment((channels, filters), width)
    batch, turns = -(-sizes.groups // together), 1
    if sizes.is_looped:
        streams = 1 if pixels > _FEW_PIXELS else STREAMS
        batch, turns = min(sizes.groups, streams), -(-sizes.groups // streams)
    return Problem(m, max(n, 1), max(k, 1), batch, width, alignment, moved, peak, turns)


def _of_planes(sizes: Convolution, width: float, peak: float, moved: int) -> Problem:
    """One product an image, pixels innermost. Weight gradients of images that align are stored in float32 and added up."""
    pixels, batch = prod(sizes.result), sizes.batch
    m, n, k = {
        "input_gradient": (pixels, sizes.channels, sizes.filters),
        "weight_gradient": (sizes.filters, sizes.channels, pixels),
    }.get(sizes.phase, (pixels, sizes.filters, sizes.channels))
    if sizes.phase == "weight_gradient" and batch > 1 and pixels % 2 == 0:
        moved += 2 * 4 * batch * m * n
    return Problem(m, max(n, 1), max(k, 1), batch, width, _alignment((pixels,), width), moved, peak)


def convolution_kind(sizes: Convolution) -> str:
    """What tells convolutions apart: few or uneven channels, one channel a group and several groups have slower kernels."""
    last = "_last" if sizes.channels_last else ""
    if sizes.groups > 1:
        if sizes.channels == sizes.groups:
            is_wide = sizes.channels_last and max(sizes.filter) > _WIDEST
            return "depthwise_direct" if is_wide else f"depthwise{last}"
        if sizes.is_looped:
            return "looped_long"
        return "grouped"
    if sizes.channels % 8:
        if _is_pointwise(sizes):
            return "pointwise_unaligned"
        return f"{'patches' if sizes.is_patches else 'stem'}{last}"
    if not _is_pointwise(sizes):
        return "volume" if len(sizes.filter) > 2 else "dense"
    pixels = prod(sizes.result)
    if not _is_planar(sizes):
        return "pointwise_last"
    if pixels % 2 and pixels > 1:
        return "pointwise_odd"
    is_uneven = pixels % 8 and sizes.channels % 64
    return "pointwise_uneven" if is_uneven else "pointwise"


def is_long(sizes: Convolution) -> bool:
    """Whether the filter is long and the channels of a group no power of two: such groups do without matrix units."""
    channels = sizes.channels // sizes.groups
    return prod(sizes.filter) >= _LONG and channels & (channels - 1) != 0


def _is_pointwise(sizes: Convolution) -> bool:
    return set(sizes.filter) == {1} and sizes.groups == 1


def _is_planar(sizes: Convolution) -> bool:
    """Whether it runs as a product for each image: one tap, stride 1, the channels not innermost."""
    return sizes.image == sizes.result and not sizes.channels_last and _is_pointwise(sizes)


def _alignment(sizes: tuple[int, ...], width: float) -> int:
    """The largest power of two, at most 16, that the bytes of all rows are a multiple of."""
    found = _ALIGNED
    for size in sizes:
        while found > 1 and size * width % found:
            found //= 2
    return found
