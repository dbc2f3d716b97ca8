"""Signals: Fourier transforms; images resized, sampled at points and within boxes.

Complex numbers are pairs along the last axis. A transform is 5*n*log2(n) real operations, half of that from or to real
numbers. An interpolated output is a weighted sum of its taps, two along each axis that changes for `linear` and four for
`cubic`, a multiplication and an addition each; the nearest mode is no arithmetic.
"""

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from math import inf

from graphflops.base.record import replace
from graphflops.cost import Estimate, copied
from graphflops.dims import Dim, Expr, at_least, compare, floor_div, prod, same, where
from graphflops.errors import DimError
from graphflops.rules import resample
from graphflops.rules.fourier import transform
from graphflops.rules.onnx import entries
from graphflops.rules.onnx.entries import Numbers
from graphflops.rules.onnx.values import Number, converted, floor, multiply
from graphflops.rules.operands import Operands
from graphflops.rules.registry import require, require_known, rule
from graphflops.rules.resample import resized, separated
from graphflops.rules.shapes import axis_of, replaced
from graphflops.tensor import FLOAT32, TensorType

KIND = "fourier"


@rule("onnx.DFT").takes("x dft_length? axis?; inverse=0 onesided=0")
def dft(of: Operands) -> Estimate:
    """A transform of every lane along an axis, cut or filled up to a length."""
    (x, dft_length, _), onesided, inverse = of, of.onesided, of.inverse
    axis = -2 if of.axis is None else of.axis
    places = entries.literals(axis)
    require_known(bool(places) and x.rank > 1, f"which axis of {x} to transform depends on data")
    along = axis_of((places or (0,))[0], x.rank)
    real_result = bool(onesided and inverse)
    whole = 2 * (x.shape[along] - 1) if real_result else x.shape[along]
    length = whole if dft_length is None else entries.said(dft_length, "dft_axis0")
    kept = floor_div(length, 2) + 1 if onesided and not inverse else length
    out = x.like((*replaced(x.shape, along, kept)[:-1], 1 if real_result else 2))
    work = _transform(length, 1 if real_result else x.shape[-1]) * prod(replaced(x.shape[:-1], along))
    reads = (x, dft_length, axis if isinstance(axis, TensorType) else None)
    return Estimate((out,), vector_flops=work, reads=reads)


rule("onnx.DFT.17").derived(dft, order="x dft_length", usually={"axis": 1})


def _transform(length: Dim, parts: Dim) -> Dim:
    return where(compare("==", parts, 1), transform(length, real=True), transform(length))


@rule("onnx.STFT").takes("signal frame_step window? frame_length?")
def stft(of: Operands, *, onesided: int = 1) -> Estimate:
    """A product with the window and a transform per frame."""
    batch, samples = of.signal.shape[:2]
    length = of.window.shape[0] if of.window is not None else samples
    if of.frame_length is not None:
        length = entries.said(of.frame_length, "frame_axis0")
    require(not at_least(length, samples + 1), f"a frame takes {length} samples of a signal of {samples}")
    frames = floor_div(samples - length, entries.said(of.frame_step, "step_axis0")) + 1
    parts = 1 if of.signal.rank == 2 else of.signal.shape[2]
    bins = floor_div(length, 2) + 1 if onesided else length
    windowing = 0 if of.window is None else length * parts
    per_frame = windowing + _transform(length, parts)
    out = of.signal.like((batch, frames, bins, 2))
    return Estimate((out,), vector_flops=batch * frames * per_frame, reads=(*of,))


KIND = "boxes"

MODES = {"bilinear": 0, "linear": 0, "nearest": 1, "bicubic": 2, "cubic": 2}


@rule("onnx.GridSample", "com.microsoft.GridSample")
def grid_sample(x: TensorType, grid: TensorType, *, mode: str = "linear") -> Estimate:
    """Per channel two operations per tap; per grid point its position and a weight per tap."""
    require_known(mode in MODES, f"unknown mode {mode!r}")
    return resample.grid_sampler(x, grid, MODES[mode])


@rule("onnx.AffineGrid")
def affine_grid(theta: TensorType, size: TensorType) -> Estimate:
    """Every position, with a 1 appended, times the transposed affine matrix."""
    count = entries.many(size) or theta.shape[1] + 2  # one row of the matrix for each axis of the picture
    require_known(isinstance(count, int), "how many axes the grid has depends on data")
    assert isinstance(count, int)
    opened = (entries.unknown("grid", place) for place in range(1, count))
    shape = entries.sizes(size) or (theta.shape[0], *opened)
    return replace(resample.affine_grid_generator(theta, shape), reads=(theta, size))


@rule("onnx.RoiAlign").takes("x rois batch_indices; output_height=1 output_width=1 sampling_ratio=0")
def roi_align(of: Operands) -> Estimate:
    """The bilinear samples of each output, and a division by their number where they are averaged."""
    size = {"pooled_height": of.output_height, "pooled_width": of.output_width}
    estimate = resample.pooled(of.x, of.rois, **size, sampling_ratio=of.sampling_ratio, indexed=False)
    return replace(estimate, reads=(*of,))


@rule("onnx.MaxRoiPool")
def max_roi_pool(x: TensorType, rois: TensorType, *, pooled_shape: tuple[int, ...]) -> Estimate:
    """One comparison per pixel of each output's window, whose size depends on data."""
    require(len(pooled_shape) == 2, f"a picture is pooled to two sizes, not {len(pooled_shape)}")
    height, width = pooled_shape
    estimate = resample.roi_pool(x, rois, pooled_height=height, pooled_width=width)
    return replace(estimate, out=estimate.out[:1])


_TAPS = {"nearest": 0, "linear": 2, "bilinear": 2, "cubic": 4}  # along one axis


@rule("onnx.Resize").takes(
    "x roi? scales? sizes?; antialias=0 axes=None keep_aspect_ratio_policy='stretch' mode='nearest'"
)
def resize(of: Operands) -> Estimate:
    """Resizes to sizes, or by factors of the whole image: of a cropped one too, in all runtimes and ONNX's own inference."""
    places = entries.chosen_axes(of.axes, of.x.rank) or ()
    own = [of.x.shape[place] for place in places]
    if of.sizes is not None and entries.many(of.sizes) != 0:
        lengths = _to_sizes(own, of.sizes, of.keep_aspect_ratio_policy)
    else:
        require(of.scales is not None, "neither sizes nor scales are given")
        lengths = _by_factors(own, of.scales)
    return _resized(of.x, dict(zip(places, lengths, strict=True)), of.mode, bool(of.antialias))


@rule("onnx.Resize.10", "onnx.Upsample")
def resize_by_factors(x: TensorType, scales: Numbers, *, mode: str = "nearest") -> Estimate:
    """Resizes by one factor per axis."""
    return _resized(x, dict(enumerate(_by_factors(x.shape, scales))), mode)


@rule("onnx.Upsample.1")
def upsample(x: TensorType, *, width_scale: float, height_scale: float, mode: str = "nearest") -> Estimate:
    """Resizes by one factor for the rows of an image and one for its columns."""
    return resize_by_factors(x, (1.0, 1.0, height_scale, width_scale), mode=mode)


Lengths = list[Dim | None]  # output sizes; None for a data-dependent one


def _to_sizes(own: Sequence[Dim], given: Numbers, policy: str) -> Lengths:
    wanted = entries.sizes(given)
    count = entries.many(given)
    require(count in (None, len(own)), f"{count} sizes are given for {len(own)} axes")
    if wanted is None:
        return [None] * len(own)
    if policy == "stretch":
        return list(wanted)
    pairs = list(zip(wanted, own, strict=True))
    if all(same(a * d, b * c) for (a, b), (c, d) in pairwise(pairs)):  # one ratio for all
        return list(wanted)
    ratios = [Fraction(to, length) for to, length in pairs if isinstance(to, int) and isinstance(length, int)]
    if len(ratios) < len(own):
        return [None] * len(own)
    ratio = min(ratios) if policy == "not_larger" else max(ratios)
    over, under = ratio.numerator, ratio.denominator
    return [floor_div(2 * over * length + under, 2 * under) for length in own]


def _by_factors(own: Sequence[Dim], given: Numbers) -> Lengths:
    factors, count = entries.numbers(given), entries.many(given)
    require(count in (None, len(own)), f"{count} factors are given for {len(own)} axes")
    if factors is None:
        return [None] * len(own)
    wrong = [factor for factor in factors if not isinstance(factor, Expr) and not 0 < factor < inf]
    require(not wrong, f"an axis cannot be resized by the factor {wrong[0] if wrong else 1}")
    return [*map(_scaled, own, factors)]


def _scaled(length: Dim, factor: Number) -> Dim | None:
    """The product in single precision, rounded down."""
    try:
        found = floor(converted(multiply(length, factor), FLOAT32))
    # A factor computed from sizes in an unsupported way.
    except (ArithmeticError, DimError, ValueError):
        return None
    return int(found) if isinstance(found, float) else found


def _resized(x: TensorType, lengths: dict[int, Dim | None], mode: str, antialias: bool = False) -> Estimate:
    require_known(mode in _TAPS, f"unknown mode {mode}")
    wanted = [lengths.get(place, own) for place, own in enumerate(x.shape)]
    shape = tuple(entries.unknown("resize", at) if size is None else size for at, size in enumerate(wanted))
    taps = _TAPS[mode]
    kept = [compare("==", own, size) for own, size in zip(x.shape, shape, strict=True)]
    if taps and kept == [1] * x.rank:
        return copied(x)
    if antialias:
        return resized(x, shape, separated(x.shape, shape, [where(same_size, 0, taps) for same_size in kept]))
    each = prod(where(same_size, 1, taps) for same_size in kept)
    return resized(x, shape, 2 * each * prod(shape) if taps else 0)
