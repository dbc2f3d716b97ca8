"""Kernels on images: pooling, interpolations (UpSample*.cu of ATen), and patches as columns (im2col.cuh).

Pooling kernels and their gradients differ by number of axes and layout. An interpolation has a thread for each result, or
for each position of all images; an interpolation to the same size is a copy.
"""

from math import prod

from graphflops.kernels.beside import WARP, is_mean, largest_power
from graphflops.kernels.call import ConcreteCall, Tensor
from graphflops.kernels.choices import constants, limits
from graphflops.kernels.convolution import up
from graphflops.kernels.kernel import IMAGE_RANK, INDEX_BYTES, Kernel, Rows, Sizes, Windows
from graphflops.kernels.moved import copied, copy_to, fill, is_last, of_rows, reduction, spread

_PLANE_BLOCK = (32, 8)  # threads across and down a plane of results
(_CHANNELS,) = limits("aten_2", "adaptive_avg_pool", "channels")
(_PLACE,) = constants("aten_2", "adaptive_avg_pool", "place")
_MOST_DOWN = 16  # blocks down the planes of an image, over all channels


def pooling(call: ConcreteCall, *, is_backward: bool = False) -> list[Kernel]:
    """One kernel, or a mean. In the backward each element gathers from its windows; uneven windows add to zeros instead."""
    x, out, name = call.operand("x"), call.out, call.operator.name
    if x is None or out is None or x.rank < 2 or not out.numel:
        return []
    if is_mean(call.operator, out.shape):
        return [spread(x, out) if is_backward else reduction(x, out.numel, is_inner=x.strides[1] != 1)]
    positions, indices = _window_positions(call, x, out), INDEX_BYTES * out.numel if "max" in name else 0
    variant = f"{name}{'_volume' if x.rank > IMAGE_RANK else '_last' if is_last(x) else ''}"
    moved = (x.full_bytes, out.full_bytes + indices)
    if is_backward:
        # For maxima of volumes a thread adds one gradient; otherwise a thread gathers for one element.
        threads = out.numel if variant == "max_pool_volume" else x.numel
        cover = Windows(threads, positions * out.numel / max(x.numel, 1))
        kernel = Kernel("pool", x.dtype, 0, 0, *moved[::-1], cover, variant=f"{variant}_backward")
        return [*copied(call, again=True), *([] if name == "avg_pool" else [fill(x)]), kernel]
    window = Windows(out.numel, positions)
    if name == "adaptive_max_pool" and out.rank == IMAGE_RANK:
        # A thread processes several positions in turn (AdaptiveMaxPooling2d.cu of ATen). blocks: of a plane.
        *_, channels, height, width = out.shape
        blocks = max(_MOST_DOWN // max(channels, 1), 1)
        turns = -(-width // _PLANE_BLOCK[0]) * -(-height // (_PLANE_BLOCK[1] * blocks))
        window = Windows(out.numel // (height * width), window.positions * turns)
    if variant == "adaptive_avg_pool_last":
        window = Windows(out.numel, window.positions * _turns_of_last(out))
    return [*copied(call), Kernel("pool", x.dtype, 0, 0, *moved, window, variant=variant)]


def _turns_of_last(out: Tensor) -> float:
    """Loads that a thread makes one after the other: channels of results times places, plus the places of their windows."""
    _, channels, *sides = out.shape
    across = largest_power(channels, WARP)
    taken = -(-channels // (across * -(-channels // (across * _CHANNELS))))
    return (taken + _PLACE) * prod(-(-side // largest_power(side, WARP)) for side in sides)


def _window_positions(call: ConcreteCall, x: Tensor, out: Tensor) -> float:
    if call.operator.name.startswith("adaptive"):
        return x.numel / out.numel
    kernel = call.arguments.get("kernel_size")  # of a gradient, whose work is not the window's
    if isinstance(kernel, tuple):
        return prod(kernel) if len(kernel) > 1 else kernel[0] ** (x.rank - 2)
    return call.cost.vector_flops / out.numel


_LINE = 256 * 8  # bits of one load of a warp
_TAPS = 4  # of a cubic interpolation, along each axis
_CORNERS, _CORNERS_OF_CUBIC = 4, 16
_AT_GRID = "grid_sample"
# The mode of a cubic grid, and how often its threads wait for loads where others wait once.
_CUBIC, _CUBIC_TURNS = 2, 8
_LEAST_CHANNELS = 4  # fewer channels have no channels-last kernel
# Cubic: the time of another line that a warp loads and of an image of the same size, in times of an image; additions.
_FURTHER, _SAME, _ADDS = constants("aten_2", "interpolation", "line same adds")
_THREADS, _BLOCK, _RESIDENT = limits("aten_2", "interpolation", "threads block resident")
_FREELY_ADDING, _MOST_ADDING = limits("aten_2", "interpolation", "freely_adding most_adding")
(_RESIDENT_AT_GRID,) = limits("aten_2", "grid_sample", "resident")


def interpolation(call: ConcreteCall) -> list[Kernel]:
    """The kernels of an interpolation; along one or three axes, they are modelled as along two."""
    out, x, work = call.out, call.operand("x"), call.cost.vector_flops
    if out is None or x is None or out.rank < IMAGE_RANK - 1:
        return of_rows("pool", call)
    if _is_copied(call, x, out):
        return [copy_to(x, x)]
    if call.operator.name == _AT_GRID:
        # A thread for each position, which processes one channel after the other (GridSampler.cu of ATen).
        channels = out.shape[1]
        positions = max(out.numel // max(channels, 1), _RESIDENT_AT_GRID)
        loads = channels * (_CUBIC_TURNS if call.own.get("interpolation_mode") == _CUBIC else 1)
        at_grid = Windows(positions * loads, 0)
        return [Kernel("pool", x.dtype, 0, 0, *call.cost.moved, at_grid, variant=_AT_GRID)]
    sizes: Sizes
    variant, before = _variant(call, x, out), list[Kernel]()
    if variant == "cubic":
        # A warp loads the lines of its positions and of their neighbours in four rows: many if a row is not contiguous.
        is_same = x.shape == out.shape  # then no neighbours are loaded
        apart = min(1.0, x.strides[-1] * x.bits / _LINE)
        columns = min(x.shape[-1], WARP * x.shape[-1] / max(out.shape[-1], 1) + _TAPS - 1)
        busy = min(prod(out.shape[2:]) / _THREADS, 1.0)
        turns = max(1.0, _FURTHER * (WARP if is_same else _TAPS * columns) * apart * busy)
        turns = int(prod(out.shape[:2]) * turns * (_SAME if is_same else 1.0))
        before, sizes = [fill(out)], _of_positions(out, turns)
    elif variant.endswith("_last"):
        sizes = Windows(out.numel, 0)
    elif variant == "nearest":
        # Threads of the blocks that cover a plane, whose sides are powers of two (UpSampleNearest2d.cu).
        width, height = out.shape[-1], prod(out.shape[2:-1])
        across = largest_power(width, _BLOCK)
        down = largest_power(height, _BLOCK // across)
        sizes = Windows(prod(out.shape[:2]) * up(width, across) * up(height, down), 0)
    else:
        sizes = _of_positions(out, prod(out.shape[:2]))  # a thread loads from all images
    return [*before, Kernel("pool", out.dtype, 0, work, *call.cost.moved, sizes, variant=variant)]


def interpolation_backward(call: ConcreteCall) -> list[Kernel]:
    """For nearest ones a thread adds up each gradient of the operand; for others a thread adds each gradient to zeros."""
    out, x = call.out, call.operand("x")
    if out is None or x is None or not x.numel:
        return []
    variant, is_copied = _variant(call, x, out), _is_copied(call, x, out)
    larger, moved = max(out.numel // x.numel, 1), (out.full_bytes, x.full_bytes)
    sizes: Sizes
    if variant.startswith("nearest"):
        loops = 1 if variant.endswith("_last") else max(x.shape[0], 1)  # a thread loops over the batch
        sizes = Windows(max(x.numel // loops, _RESIDENT) * loops, larger)
        added = Kernel("pool", x.dtype, 0, 0, *moved, sizes, variant=f"{variant}_backward")
        return [copy_to(out, out) if is_copied else added]
    if is_copied:
        return [fill(x), copy_to(out, out)]
    images = prod(x.shape[:2])
    if variant == "cubic" and x.shape == out.shape:
        turns = _of_positions(out, int(images * _SAME))
        return [fill(x), Kernel("pool", x.dtype, 0, 0, *moved, turns, variant=variant)]
    if variant == "cubic":
        moved = (out.full_bytes, _CORNERS_OF_CUBIC * out.full_bytes)
        sizes = Rows(int(images * (larger + _ADDS)), 1, is_inner=False)
    else:
        moved = (out.full_bytes, _CORNERS * out.full_bytes)
        crowd = 0 if variant.endswith("_last") else max(min(larger, _MOST_ADDING) - _FREELY_ADDING, 0)
        sizes = Windows(out.numel, crowd)
    return [fill(x), Kernel("scatter", x.dtype, 0, 0, *moved, sizes, variant=variant)]


def is_cubic(word: str) -> bool:
    """Whether it is the cubic operator on the 16 neighbours of a position, not the antialiased one (`_aa`)."""
    return "bicubic2d" in word and "_aa" not in word


def _variant(call: ConcreteCall, x: Tensor, out: Tensor) -> str:
    word = call.operator.word
    if is_cubic(word):
        return "cubic"
    is_nearest = "nearest" in word or not call.cost.vector_flops  # a dialect may have one operator for all
    is_last_kernel = is_last(x) and out.rank == IMAGE_RANK and x.shape[1] >= _LEAST_CHANNELS
    return ("nearest" if is_nearest else "linear") + ("_last" if is_last_kernel else "")


def _is_copied(call: ConcreteCall, x: Tensor, out: Tensor) -> bool:
    """Whether a copy runs, as at the same size; cubic interpolations and those of volumes run their kernel even then."""
    word = call.operator.word
    return x.shape == out.shape and ("nearest" in word or "bilinear2d" in word) and "_aa" not in word


def _of_positions(out: Tensor, turns: int) -> Rows:
    """A thread for each position, which processes `turns` images of the batch and channels in turn."""
    return Rows(prod(out.shape[2:]), turns, is_inner=False)


(_SHARED_PATCHES,) = constants("aten_2", "patches", "shared")
_MOST_KERNELS = 1024  # listed one by one; a file may claim any batch


def columns(call: ConcreteCall, x: Tensor, out: Tensor) -> list[Kernel]:
    """One kernel for each image; a thread copies a patch of one channel, one position after the other."""
    images = out.shape[0] if out.rank == IMAGE_RANK - 1 else 1  # columns have one axis less than their images
    kernels = min(images, _MOST_KERNELS)
    moved = x.full_bytes // max(kernels, 1), out.full_bytes // max(kernels, 1)
    taps = out.shape[-2] // max(x.shape[-3], 1)  # rows of the columns, per channel
    turns = int(taps**_SHARED_PATCHES) * -(-images // max(kernels, 1))
    return [Kernel("copy", x.dtype, 0, 0, *moved, Rows(1, turns, is_inner=False), variant="im2col")] * kernels


def image(call: ConcreteCall, x: Tensor, out: Tensor) -> list[Kernel]:
    """One kernel; a thread adds up the values of all patches at its position."""
    windows = Windows(out.numel, x.numel / max(out.numel, 1))  # patches that contain a position
    return [Kernel("scatter", x.dtype, 0, 0, x.full_bytes, out.full_bytes, windows, variant="col2im")]
