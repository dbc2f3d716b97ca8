"""Time of matrix products, and of convolutions as matrix products: tiles, waves, traffic.

A product is cut into tiles, which the multiprocessors compute in waves. Each tile reads a stripe of both operands, so small
tiles reach less of the peak. If there are few tiles, k is split. The library chooses the fastest way, so the time is the
minimum over tile sizes and splits. Some convolutions run group by group: chains of conversions and a product, in 8 streams.
"""

from collections.abc import Callable, Iterator
from math import gcd, prod

from graphflops.base.record import Record, replace
from graphflops.devices import Device
from graphflops.kernels.choices import constants
from graphflops.kernels.convolution import up
from graphflops.kernels.cudnn import STREAMS
from graphflops.kernels.kernel import FLOAT_BYTES, Convolution, Kernel, Layout, Product
from graphflops.time import bandwidth
from graphflops.time.bandwidth import Rates, Times

# Tiles of the libraries' kernels, rows x columns; each is also used transposed.
_TILES = (
    *((64, 16), (64, 32), (64, 64), (128, 32), (128, 64)),
    *((128, 128), (128, 192), (128, 256), (64, 256), (192, 192)),
)
_WAYS = tuple(dict.fromkeys(way for a, b in _TILES for way in ((a, b), (b, a))))
_SPLITS = (1, 2, 4, 8, 16, 32)
_FEW_ROWS, _FEW_OF_BATCH = 128, 16  # rows up to which reading the other matrix takes longest; in a batch
_FEW = 8  # rows of wide elements up to which threads of cuBLAS's gemmSN kernels hold one row each
_NARROW = 2  # bytes of elements that matrix units multiply even if a product has only one row
_STEP = 64  # elements of k that a tile multiplies at a time
_FEW_IMAGES = 8  # below this number, depthwise ones of 16 bits have the kernel of float32: of 173 on an H200
_WIDEST = 7  # positions along a depthwise filter up to which channels last has a fast kernel
_FEW_CHANNELS = 16  # up to this number, channels share a tile with those of other positions
_MASKED = 32  # positions of a filter up to which CUTLASS's fast loaders have one bit for each
_FEW_PIXELS = 128  # of an image; if there are more, groups run one after the other
_BLOCK = 64  # channels of groups that a kernel multiplies together, with zeros between the groups
_ALIGNED = 16  # bytes that the fastest loads need rows to be a multiple of
Predict = Callable[[Kernel], float]  # seconds of a kernel


class Problem(Record, frozen=True):
    """A product as the device computes it."""

    m: int
    n: int
    k: int
    batch: int
    width: float  # bytes per element
    alignment: int  # bytes that all rows are multiples of
    moved: int
    peak: float
    turns: int = 1  # how often groups run one after the other, if each is a kernel of its own
    # Bytes of `moved` that earlier kernels have just written or later ones soon read; without weights.
    recent: int = 0
    is_whole: bool = False  # whether k must not be split


def seconds(problem: Problem, rates: Rates, device: Device) -> Times:
    """Seconds of a product, of its arithmetic at the peak, and of its traffic at full bandwidth."""
    cores, results = device.cores, problem.batch * problem.m * problem.n
    ceilings = 2 * results * problem.k / problem.peak, problem.moved / device.bandwidth
    # Kernels for rows that are not multiples of 16 bytes are slower.
    aligned = next((each for each in (_ALIGNED, 8, 4) if problem.alignment >= each), 2)
    slowdown = rates.get(f"unaligned_{aligned}", 1.0)
    rate, mix = problem.peak / cores / slowdown * rates["matrix"], rates["mix"]
    half, epilogue, m, n = rates["half"], rates["epilogue"] * 1e-6, problem.m, problem.n
    traffic = bandwidth.seconds(problem.moved, problem.recent, rates["memory"], device)
    is_vector = problem.batch == 1 and _is_vector(problem.m, problem.width, problem.alignment)
    splits = [*_splits(problem, rates, slowdown, device)]
    best = float("inf")
    # A CPU is modelled as one core, on which the whole product is one tile.
    for rows, columns in _WAYS if device.multiprocessors else ((max(problem.m, 1), max(problem.n, 1)),):
        # A product without rows, as for an empty batch, still takes the time of one tile.
        grid = max(-(-m // rows) * -(-n // columns) * problem.batch, 1)
        # In a matrix-vector product each thread has one element of the vector; a tile also computes missing rows.
        rows = 1 if is_vector else rows
        work = 2 * (rows * columns + half * (rows + columns)) / rate  # per element of k
        for split, depth, steps, joining in splits:
            tiles = grid * split
            if split > 1 and tiles > 4 * cores:
                break
            arithmetic = -(-tiles // cores) * (work * depth + epilogue) + steps
            reach = min(1.0, 1.5 * tiles / cores)  # few multiprocessors cannot use all of the bandwidth
            taken = (arithmetic**mix + (traffic / reach) ** mix) ** (1 / mix) + joining
            best = min(best, taken)
    return rates["floor"] * 1e-6 + best * problem.turns, *ceilings


def _splits(
    problem: Problem, rates: Rates, slowdown: float, device: Device
) -> Iterator[tuple[int, int, float, float]]:
    """Ways to split k: the number of parts, the length of a part, seconds of its steps, and seconds to join the parts."""
    for split in _SPLITS:
        depth, joining = -(-problem.k // (split * _STEP)) * _STEP, 0.0
        if split > 1:  # float32 partial results, written, and read again by a second kernel
            if problem.is_whole or depth * (split - 1) >= problem.k:
                break
            partial = 8 * split * problem.batch * problem.m * problem.n
            joining = rates["split"] * 1e-6 + bandwidth.seconds(partial, partial, 2, device)
        yield split, depth, depth / _STEP * rates["latency"] * 1e-9 * slowdown**0.5, joining


def of_row(sizes: Product) -> Product:
    """A matrix times a column, as cuBLAS computes it: a row times the transposed matrix."""
    layout: Layout = "tn" if sizes.layout in ("tn", "nn") else "nn"
    algorithm = "column" if sizes.batch > 1 else sizes.algorithm
    return replace(sizes, m=1, n=sizes.m, layout=layout, algorithm=algorithm)


def product_kind(sizes: Product, width: float) -> str:
    """The kind of a product. Few rows, for which reading the other matrix takes longest, have kernels of their own.

    16-bit elements run on matrix units even if there is one row. One row of wider elements is a matrix-vector product
    (gemv), and so is one row of 16-bit elements if a row has an odd number of them. 16-bit rows that are not multiples of 16
    bytes run on kernels of older GPUs, by the bytes of a load: nvjet kernels load whole lines and take none of these.
    """
    alignment, has_few_rows = _alignment_of(sizes, width), _has_few_rows(sizes)
    batched = "batched." if sizes.batch > 1 else ""
    if _is_vector(sizes.m, width, alignment) and (batched or has_few_rows):
        return "batched.vector" if batched else "gemv"
    if width == _NARROW and alignment < _ALIGNED:
        return f"{batched}by_{alignment}"
    if has_few_rows:
        return "few" if sizes.m <= _FEW and not batched and width > _NARROW else f"{batched}skinny"
    return "batched" if batched else sizes.layout


def _has_few_rows(sizes: Product) -> bool:
    return sizes.layout in ("tn", "nn") and sizes.m <= (_FEW_ROWS if sizes.batch == 1 else _FEW_OF_BATCH)


def _is_vector(rows: int, width: float, alignment: int) -> bool:
    return rows == 1 and (width != _NARROW or alignment <= _NARROW)


def of_product(sizes: Product, width: float, peak: float, moved: int) -> Problem:
    """A product with the alignment of its rows."""
    alignment = _alignment_of(sizes, width)
    # No earlier kernel has touched the weight, nor keys and values of earlier tokens.
    has_weight = sizes.batch == 1 and sizes.layout in ("tn", "nn")
    weight = int(width * sizes.batch * sizes.k * sizes.n) if _has_few_rows(sizes) or has_weight else 0
    recent = 0 if sizes.is_alone else max(moved - weight, 0)
    return Problem(sizes.m, sizes.n, sizes.k, sizes.batch, width, alignment, moved, peak, recent=recent)


def is_whole(kernel: Kernel, sizes: Product) -> bool:
    """Whether k must not be split: in batches, and in float32 with many rows and a bias."""
    if sizes.batch > 1 and sizes.algorithm != "grouped":
        return True
    with_bias = kernel.dtype == "float32" and kernel.vector_flops > 0 and sizes.batch == 1
    return sizes.algorithm == "tn" or (with_bias and sizes.layout == "nn" and sizes.m > _FEW_ROWS)


def _alignment_of(sizes: Product, width: float) -> int:
    m, n, k = sizes.m, sizes.n, sizes.k
    rows = {"tn": (k, k, n), "nn": (k, n, n), "nt": (m, n, n), "tt": (m, k, n)}
    return _alignment(rows[sizes.layout], width)


def of_convolution(sizes: Convolution, width: float, peak: float, moved: int) -> Problem:
    """A convolution as a product: pixels x filters, over the taps of a filter (im2col, which is never stored).

    A planar convolution is one product per image, with pixels innermost; cuBLAS does not split k in a batch.
    """
    # One product for each image: one tap, stride 1, channels not innermost.
    is_planar = sizes.image == sizes.result and not sizes.channels_last and _is_pointwise(sizes)
    taps = prod(sizes.filter)
    images = 1 if is_planar else sizes.batch
    pixels, image = images * prod(sizes.result), images * prod(sizes.image)
    packed = _BLOCK * sizes.groups // max(sizes.channels, 1)  # a file may claim that there are no channels
    together = 1 if sizes.algorithm == "long" else min(sizes.groups, max(1, packed))
    filters, channels = (each // sizes.groups * together for each in (sizes.filters, sizes.channels))
    # In the gradient of an image's weight, a tile holds channels of one position.
    is_tiled = channels > _FEW_CHANNELS and 1 < taps <= _MASKED and len(sizes.filter) < 3 and together == 1
    held = up(channels, _STEP) if is_tiled else channels
    m, n, k = {
        "input_gradient": (image, channels, max(1, filters * taps * pixels // max(image, 1))),
        "weight_gradient": (filters, held * taps, pixels),
    }.get(sizes.phase, (pixels, filters, channels * taps))
    rows = (pixels,) if is_planar else (channels, filters)
    alignment = _ALIGNED if together > 1 else _alignment(rows, width)
    batch, turns, is_whole = -(-sizes.groups // together), 1, is_planar and sizes.batch > 1
    if is_planar:
        batch = sizes.batch
        if is_whole and sizes.phase == "weight_gradient" and pixels % 2 == 0:  # summed in float32 afterwards
            moved += 2 * 4 * batch * m * n
    elif sizes.algorithm == "long":
        streams = 1 if prod(sizes.result) > _FEW_PIXELS else STREAMS
        batch, turns = min(sizes.groups, streams), -(-sizes.groups // streams)
    # Strided pointwise windows do not read the pixels in between.
    if sizes.phase != "input_gradient" and _is_pointwise(sizes) and image > pixels:
        unread = int(width * sizes.channels * (image - pixels))  # with padded channels
        moved = max(moved - unread, int(width * sizes.filters * pixels))
    weight = int(width * sizes.filters * sizes.channels // max(sizes.groups, 1) * taps)
    recent = max(moved - weight, 0)  # all but the weight
    return Problem(m, max(n, 1), max(k, 1), batch, width, alignment, moved, peak, turns, recent, is_whole)


def convolution_kind(sizes: Convolution, width: float = _NARROW) -> str:
    """The kind of a convolution: few or unaligned channels, depthwise and grouped convolutions have slower kernels."""
    last = "_last" if sizes.channels_last else ""
    if sizes.groups > 1:
        if sizes.channels == sizes.groups:
            is_wide = sizes.channels_last and max(sizes.filter) > _WIDEST
            line = "_line" if len(sizes.filter) == 1 and not last else last  # a sequence
            is_few = last and sizes.phase == "forward" and sizes.batch < _FEW_IMAGES and width <= _NARROW
            return "depthwise_direct" if is_wide else "depthwise_few" if is_few else f"depthwise{line}"
        return "looped_long" if sizes.algorithm == "long" else "grouped"
    # Tensor cores load 16 bytes of each position; fewer than eight channels are padded.
    is_wide = width > _NARROW and sizes.channels > _CHANNELS_ALIGNED
    if sizes.channels % (_CHANNELS_ALIGNED // 2 if is_wide else _CHANNELS_ALIGNED):
        if _is_pointwise(sizes):
            return "pointwise_unaligned"
        return f"{'patches' if sizes.is_patches else 'stem'}{last}"
    if not _is_pointwise(sizes):
        return "volume" if len(sizes.filter) > 2 else "wide" if prod(sizes.filter) > _MASKED else "dense"
    if sizes.image != sizes.result:
        return "pointwise_strided"
    if sizes.channels_last:
        return "pointwise_last"
    pixels = prod(sizes.result)
    if pixels % 2 and pixels > 1:
        return "pointwise_odd"
    return "pointwise_uneven" if pixels % 8 and sizes.channels % 64 else "pointwise"


def _is_pointwise(sizes: Convolution) -> bool:
    return set(sizes.filter) == {1} and sizes.groups == 1


def _alignment(sizes: tuple[int, ...], width: float) -> int:
    """The largest power of two, at most 16, that divides the bytes of all rows; elements may be half a byte."""
    return max(gcd(2 * _ALIGNED, *[int(2 * size * width) for size in sizes]) // 2, 1)


_GAP = 2e-6  # seconds between two kernels of a graph with several streams
_STARTED = 0.7e-6  # seconds after which a graph starts another kernel, in any stream
_FILLING = 16384  # bytes for each multiprocessor; kernels that move fewer run beside those of other streams
_FILTERS = 32  # of a tile of kernels without tensor cores
_CHANNELS_ALIGNED = 8  # channels: tensor cores need a multiple, to which others are padded


def together_seconds(sizes: Convolution, device: Device) -> float:
    """Seconds of one kernel without tensor cores for all groups: a thread for each result goes over all that it sums."""
    filters, channels = sizes.filters // sizes.groups, sizes.channels // sizes.groups
    taps, pixels = prod(sizes.filter), sizes.batch * prod(sizes.result)
    results, steps = {
        "forward": (pixels * sizes.filters, channels * taps),
        "input_gradient": (sizes.batch * prod(sizes.image) * sizes.channels, filters * taps),
    }.get(sizes.phase, (sizes.filters * channels * taps, pixels))
    kind = "_last" if sizes.channels_last else "_pointwise" if sizes.phase == "forward" and taps == 1 else ""
    floor, result, step = constants("cudnn_9", f"grouped_direct.{sizes.phase}{kind}", "floor result step")
    return floor + results * (result + steps * step) / device.cycles


def group_seconds(kernel: Kernel, sizes: Convolution, device: Device, predict: Predict) -> float:
    """Seconds of all groups, in streams; kernels of one stream take turns, and so do kernels that fill the device.

    The kernels of the first group run one after the other. Each later group takes as long as launching its kernels, or as
    the share of the device that they fill.
    """
    if sizes.algorithm == "grouped_direct":
        return together_seconds(sizes, device)
    groups, computed = sizes.groups, 0.0
    parts: list[tuple[float, int]]  # seconds of each kernel of a group, and bytes that it moves
    if sizes.algorithm == "direct":
        floor, step, multiplied = constants("cudnn_9", "direct", "floor step multiplied")
        depth = sizes.channels // groups * prod(sizes.filter)
        parts = [(floor + depth * step, 0)]
        results = sizes.batch * prod(sizes.result) * groups * up(sizes.filters // groups, _FILTERS)
        computed = results * depth / (multiplied * device.cycles)
    else:
        given = (sizes.channels, sizes.filters)
        channels, filters = (up(size // groups, _CHANNELS_ALIGNED) for size in given)
        dense = replace(sizes, channels=channels, filters=filters, groups=1, channels_last=True, algorithm="")
        moved = kernel.read_bytes // groups, kernel.written_bytes // groups
        one = Kernel("convolution", kernel.dtype, kernel.flops // groups, 0, *moved, dense)
        parts = [(predict(one), sum(moved))]
        if sizes.algorithm == "transposed":
            floor, element = constants("cudnn_9", "transposition", "floor element")
            images = (sizes.channels * prod(sizes.image), sizes.filters * prod(sizes.result))
            elements = [sizes.batch * each // groups for each in images]
            parts += [(floor + each * element / device.cycles, 2 * FLOAT_BYTES * each) for each in elements]
        else:
            copied = [Kernel("copy", one.dtype, 0, 0, size, size, variant="channels_last") for size in moved]
            parts += [(predict(copy), 2 * copy.read_bytes) for copy in copied]
    first = sum(seconds + _GAP for seconds, _ in parts)
    filled = sum(seconds * min(1.0, nbytes / (_FILLING * device.cores)) for seconds, nbytes in parts)
    turns = -(-groups // STREAMS)
    return max(turns * first, first + (groups - 1) * max(len(parts) * _STARTED, filled), computed)
