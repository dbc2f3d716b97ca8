"""Convolutions over any number of axes, with padding at either end, and transposed ones; pools, and maxima put back.

Output sizes follow from attributes. A pool is a reduction over a window, or over everything, per output.
"""

from collections.abc import Sequence
from typing import Any

from graphflops.base.record import replace
from graphflops.cost import Estimate
from graphflops.dims import Dim, at_least, ceil_div, differ, dim_min, prod
from graphflops.rules.conv import adaptive, convolved, max_unpool as unpooled, outputs, upsampled, windowed
from graphflops.rules.onnx.entries import in_32_bits, require_scales, sizes, unknown
from graphflops.rules.onnx.reduce import REDUCTIONS, Reduction
from graphflops.rules.operands import Derived, Operands
from graphflops.rules.reduce import indexed
from graphflops.rules.registry import require, rule
from graphflops.rules.resample import deformed
from graphflops.rules.shapes import Shape, shown
from graphflops.tensor import TensorType

KIND = "convolution"


Ints = tuple[int, ...]


def per_axis(given: Ints, spatial: int, default: int = 1) -> Ints:
    """One setting for each spatial axis, the default where none is given."""
    require(len(given) in (0, spatial), f"{len(given)} settings for {spatial} spatial axes")
    return given or (default,) * spatial


def ends(pads: Ints, spatial: int) -> list[tuple[int, int]]:
    """Padding before and after each axis; `pads` lists all beginnings, then all ends."""
    require(len(pads) in (0, 2 * spatial), f"{len(pads)} pads for {spatial} spatial axes")
    require(min(pads, default=0) >= 0, f"pads {pads} must not be negative")
    return list(zip(pads[:spatial], pads[spatial:], strict=True)) or [(0, 0)] * spatial


def moves(
    kernel: Shape,
    spatial: int,
    strides: Ints = (),
    dilations: Ints = (),
    pads: Ints = (),
    auto_pad: str = "NOTSET",
    **others: object,
) -> tuple[Ints, Ints, list[tuple[int, int]] | None]:
    """Strides, dilations and padding of a window, None if it keeps sizes. Raises ShapeError if the window is invalid."""
    require(len(kernel) == spatial, f"a window of {len(kernel)} axes over {spatial} axes")
    require(not any(at_least(0, length) for length in kernel), f"a window of {shown(kernel)} is empty")
    steps, spread = per_axis(strides, spatial), per_axis(dilations, spatial)
    require(min((*steps, *spread), default=1) > 0, f"strides {steps} and dilations {spread} must be positive")
    keeps = auto_pad.startswith("SAME")
    return steps, spread, None if keeps else ends(() if auto_pad == "VALID" else pads, spatial)


def window_counts(sizes: Sequence[Dim], kernel: Shape, *, ceil_mode: int = 0, **geometry: Any) -> Shape:
    """The number of window positions along each axis."""
    steps, spread, padded = moves(kernel, len(sizes), **geometry)
    if padded is None:
        return tuple(map(ceil_div, sizes, steps))
    axes = zip(sizes, kernel, steps, padded, spread, strict=True)
    return tuple(outputs(*axis, ceil_mode=ceil_mode == 1) for axis in axes)


def transposed_sizes(
    sizes: Sequence[Dim], kernel: Shape, *, output_padding: Ints = (), **geometry: Any
) -> Shape:
    """The output sizes of a transposed convolution."""
    steps, spread, padded = moves(kernel, len(sizes), **geometry)
    extra = per_axis(output_padding, len(sizes), 0)
    fits = all(0 <= more < max(moved) for more, *moved in zip(extra, steps, spread, strict=True))
    require(fits, f"output_padding {extra} is not smaller than strides {steps} or dilations {spread}")
    unpadded = upsampled(tuple(sizes), kernel, steps, spread, (0,) * len(sizes), extra)
    if padded is None:  # steps times size, unless windows are shorter than the steps
        whole = (size * step for size, step in zip(sizes, steps, strict=True))
        return tuple(map(dim_min, whole, unpadded))
    return tuple(size - before - after for size, (before, after) in zip(unpadded, padded, strict=True))


@rule("onnx.Conv", product=("x", "w")).takes("x w bias?")
def convolution(of: Operands, *, group: int = 1, kernel_shape: Ints = (), **geometry: Any) -> Estimate:
    """Every output position times its window, per group."""
    x, w, bias = of
    over = spatial_sizes(x, w, group, kernel_shape)
    require_one_padding(**geometry)
    return convolved(x, w, bias, window_counts(over, w.shape[2:], **geometry), group)


def require_one_padding(auto_pad: str = "NOTSET", pads: Ints = (), **others: object) -> None:
    """Raises ShapeError if a convolution specifies its padding twice."""
    fits = auto_pad in ("NOTSET", "") or not pads
    require(fits, f"a convolution padded by auto_pad {auto_pad} has no pads {pads}")


def spatial_sizes(x: TensorType, w: TensorType, group: int, kernel: Ints = ()) -> tuple[Dim, ...]:
    """The sizes that a convolution's window moves over; `kernel` is the window's size if that is stated."""
    require(x.rank >= 2 and w.rank == x.rank, f"a weight {w} does not fit an input {x}")
    require(group > 0, f"a convolution cannot have {group} groups")
    fits = not kernel or (len(kernel) == w.rank - 2 and not any(map(differ, kernel, w.shape[2:])))
    require(fits, f"a window of {shown(kernel)} is not that of the weight {w}")
    return x.shape[2:]


@rule("onnx.ConvInteger", product=("x", "w")).takes("x w x_zero_point? w_zero_point?")
def convolution_of_integers(of: Operands, **geometry: Any) -> Estimate:
    """As `Conv` in 32 bits, with a subtraction per element of an operand that has a zero point."""
    require_scales((), of.x_zero_point)
    require_scales(of.w.shape[:1], of.w_zero_point)
    return in_32_bits(convolution(of.x, of.w, **geometry), (of.x, of.x_zero_point), (of.w, of.w_zero_point))


@rule("onnx.ConvTranspose", product=("x", "w")).takes("x w bias?; group=1 kernel_shape=() output_shape=()")
def transposed_convolution(of: Operands, **geometry: Any) -> Estimate:
    """Every input position times the whole kernel, per group; counting output positions would count too much."""
    x, w, bias = of
    sizes, asked = spatial_sizes(x, w, of.group, of.kernel_shape), of.output_shape
    require_one_padding(**geometry)
    require(len(asked) in (0, len(sizes)), f"{len(asked)} sizes asked for, {len(sizes)} axes")
    wanted = transposed_sizes(sizes, w.shape[2:], **geometry)
    return convolved(x, w, bias, asked or wanted, of.group, transposed=True)


@rule("onnx.DeformConv", product=("x", "w")).takes(
    "x w offset bias? mask?; group=1 kernel_shape=() offset_group=1"
)
def deformable_convolution(of: Operands, **geometry: Any) -> Estimate:
    """A convolution of inputs sampled at learned offsets: the product, and one bilinear sample per tap and channel."""
    over = spatial_sizes(of.x, of.w, of.group, of.kernel_shape)
    sizes = window_counts(over, of.w.shape[2:], **geometry)
    taps = of.offset_group * prod(of.w.shape[2:])
    for given, each in ((of.offset, len(sizes)), (of.mask, 1)):
        fits = given is None or not any(map(differ, given.shape[1:], (each * taps, *sizes)))
        require(fits, f"{given} for {each * taps} numbers at each of {shown(sizes)} positions")
    return deformed(of.x, of.w, of.offset, of.mask, of.bias, sizes, of.group)


MAXIMUM, AVERAGE = REDUCTIONS["ReduceMax"], REDUCTIONS["ReduceMean"]


def norm_of(p: float) -> Reduction:
    """The p-norm of a window: magnitudes, squares or powers summed, and their root."""
    known: dict[float, Reduction] = {1: REDUCTIONS["ReduceL1"], 2: REDUCTIONS["ReduceL2"]}
    return known.get(p) or Reduction(2, evaluated=1, evaluated_final=1)


def pooled(x: TensorType, kernel: tuple[Dim, ...], counts: tuple[Dim, ...], kind: Reduction) -> Estimate:
    """Windows of that size at `counts` positions along the spatial axes."""
    estimate = windowed(x, kernel, counts, kind.each, kind.final)
    outputs = prod((*x.shape[:2], *counts))
    return replace(estimate, transcendentals=(kind.evaluated * prod(kernel) + kind.evaluated_final) * outputs)


def moving(x: TensorType, *, kernel_shape: Ints, kind: Reduction = AVERAGE, **geometry: Any) -> Estimate:
    """One addition per window element and a division per output."""
    return pooled(x, kernel_shape, window_counts(x.shape[2:], kernel_shape, **geometry), kind)


average_pool, maxima = Derived(moving, kind=AVERAGE), Derived(moving, kind=MAXIMUM)
rule("onnx.AveragePool", "com.microsoft.nchwc.AveragePool")(average_pool)
rule("onnx.MaxPool", "com.microsoft.nchwc.MaxPool").derived(
    maxima, indexed, says="One comparison per window element; the indices of the maxima cost no extra work."
)


@rule("onnx.LpPool", kind="pooling")
def lp_pool(x: TensorType, *, kernel_shape: Ints = (), p: float = 2, **geometry: Any) -> Estimate:
    """A magnitude, a square or a power, and an addition per window element, and a root per output."""
    return moving(x, kernel_shape=kernel_shape, kind=norm_of(p), **geometry)


def global_pool(x: TensorType, *, final: int) -> Estimate:
    """Adaptive pooling to a single maximum or average per channel: one operation per element, a division for an average."""
    return adaptive(x, (1,) * (x.rank - 2), spatial=x.rank - 2, final=final)


global_average_pool = Derived(global_pool, final=1)
rule("onnx.GlobalAveragePool", "com.microsoft.nchwc.GlobalAveragePool")(global_average_pool)
rule("onnx.GlobalMaxPool", "com.microsoft.nchwc.GlobalMaxPool").derived(global_pool, final=0)


@rule("onnx.GlobalLpPool", kind="pooling")
def global_lp_pool(x: TensorType, *, p: float = 2) -> Estimate:
    """A magnitude, a square or a power, and an addition per element, and a root per channel."""
    return pooled(x, x.shape[2:], (1,) * (x.rank - 2), norm_of(p))


@rule("onnx.MaxUnpool", kind="pooling").takes("x indices output_shape?")
def max_unpool(of: Operands, *, kernel_shape: Ints, **geometry: Any) -> Estimate:
    """Writes values to their former positions and zeros elsewhere; no arithmetic."""
    x, indices, output_shape = of
    shape = least = (*x.shape[:2], *transposed_sizes(x.shape[2:], kernel_shape, **geometry))
    if output_shape is not None:
        shape = sizes(output_shape) or tuple(unknown("unpooled", place) for place in range(x.rank))
        fits = len(shape) == x.rank and not any(at_least(a, b + 1) for a, b in zip(least, shape, strict=True))
        require(fits, f"{shown(shape)} is not as large as {shown(least)}")
    return replace(unpooled(x, indices, shape), reads=(*of,))
