"""Pictures sampled between their pixels: resized, at the points of a grid, in boxes, at offsets; and overlaps of boxes.

An interpolated output is a weighted sum of its taps, a multiplication and an addition each; the weights depend on the
position alone and are not counted. Picking the nearest input is no arithmetic. A bilinear sample is four taps.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from graphflops.base.record import replace
from graphflops.cost import Estimate, data_dependent
from graphflops.dims import Dim, dim_max, dim_min, floor_div, meet, prod, total
from graphflops.dims.parser import floored_product
from graphflops.rules.conv import convolved, downsampled
from graphflops.rules.lapack import n_log_n
from graphflops.rules.operands import Operands, takes
from graphflops.rules.reduce import operand_gradient
from graphflops.rules.registry import ForwardCall, backward, require, rule
from graphflops.rules.shapes import Shape, only_result, where_wanted
from graphflops.tensor import INT32, INT64, TensorType

KIND = "resampling"

Work = Callable[[Shape, Shape], Dim]  # operations of one channel, from input and output sizes


def scaled(size: Dim, factor: float) -> Dim:
    """The size times the factor, rounded down."""
    return math.floor(size * factor) if isinstance(size, int) else floored_product(size, factor)


def tapped(taps: int) -> Work:
    """`taps` taps per output."""
    return lambda sizes, counts: 2 * taps * prod(counts)


def antialiased(taps: int) -> Work:
    """`taps` taps per output, times the factor by which the image shrinks."""
    return lambda sizes, counts: separated(sizes, counts, (taps,) * len(sizes))


def separated(sizes: Shape, counts: Shape, taps: Sequence[Dim]) -> Dim:
    """Operations of resampling each axis in turn, the last one first; an axis that shrinks has proportionally more taps."""
    work: list[Dim] = []
    now = list(sizes)
    for place in reversed(range(len(sizes))):
        length, now[place] = now[place], 1
        work.append(2 * taps[place] * prod(now) * dim_max(length, counts[place]))
        now[place] = counts[place]
    return total(work)


def resampled(x: TensorType, counts: Shape, work: Work) -> Estimate:
    """Resamples the last axes to these sizes."""
    spatial = len(counts)
    require(x.rank == spatial + 2, f"{spatial} resampled axes do not fit a tensor of {x.rank}")
    flops = prod(x.shape[:-spatial]) * work(x.shape[-spatial:], counts)
    return resized(x, (*x.shape[:-spatial], *counts), flops)


def resized(x: TensorType, shape: Shape, flops: Dim) -> Estimate:
    """A result of that shape; without arithmetic only the nearest inputs are read."""
    out = x.like(shape)
    read = dim_min(x.nbytes, out.nbytes) if flops == 0 else x
    return Estimate((out,), vector_flops=flops, reads=(read,))


def upsample(
    x: TensorType, output_size: Shape | None, *, scale_factors: tuple[float, ...] | None = None, work: Work
) -> Estimate:
    """Two operations per tap; resampled to a size, or by factors if no size is given."""
    if output_size is not None:
        return resampled(x, output_size, work)
    require(scale_factors is not None, "neither a size nor factors to resample to")
    factors = scale_factors or ()
    sizes = zip(x.shape[-len(factors) :], factors, strict=True)
    return resampled(x, tuple(scaled(size, factor) for size, factor in sizes), work)


def upsample_backward(
    grad_output: TensorType, output_size: Shape, input_size: Shape, *, work: Work
) -> Estimate:
    """Adds each output's gradient to its taps: two operations per tap, one where a single input was picked."""
    flops = prod(input_size[:2]) * work(input_size[2:], output_size)
    added = grad_output.numel if flops == 0 else flops
    return Estimate((grad_output.like(input_size),), vector_flops=added, reads=(grad_output,))


def upsampled_gradient(call: ForwardCall) -> Estimate:
    """Each output's gradient is added to the inputs that it was computed from."""
    return replace(operand_gradient(call), vector_flops=call.estimate.vector_flops or call.out.numel)


for _name, _work in (
    *((f"{kind}{n}d", tapped(0)) for kind in ("nearest", "nearest_exact") for n in (1, 2, 3)),
    ("linear1d", tapped(2)),
    ("bilinear2d", tapped(4)),
    ("trilinear3d", tapped(8)),
    ("bicubic2d", tapped(16)),
    ("bilinear2d_aa", antialiased(2)),
    ("bicubic2d_aa", antialiased(4)),
    ("lanczos2d_aa", antialiased(6)),
):
    _key = f"aten.{'_' if 'exact' in _name or '_aa' in _name else ''}upsample_{_name}"
    rule(_key, f"{_key}.vec").derived(upsample, work=_work)
    rule(f"{_key}_backward").derived(upsample_backward, work=_work)
    backward(_key, f"{_key}.vec")(upsampled_gradient)


# Sampling at the points of a grid, one row of coordinates per output position.

BILINEAR, NEAREST = 0, 1  # interpolation_mode; 2 is bicubic
UNNORMALISE = 4  # operations that turn a coordinate in -1..1 into a position


def taps_of(interpolation_mode: int, spatial: int) -> int:
    """Taps per output: inputs that are weighted and added; none for the nearest mode."""
    taps: int = (2 if interpolation_mode == BILINEAR else 4) ** spatial
    return 0 if interpolation_mode == NEAREST else taps


@rule("aten.grid_sampler grid_sampler_2d grid_sampler_3d _grid_sampler_2d_cpu_fallback")
def grid_sampler(x: TensorType, grid: TensorType, interpolation_mode: int) -> Estimate:
    """Per channel two operations per tap; per grid point its position and a weight per tap."""
    spatial = x.rank - 2
    require(grid.rank == x.rank, f"a grid of {grid.rank} axes does not fit an input of {x.rank}")
    given = grid.shape[-1]
    meet(given, spatial, f"grid points have {given} coordinates, not {spatial}")
    meet(x.shape[0], grid.shape[0], f"batches differ: {x.shape[0]} and {grid.shape[0]}")
    out = x.like((*x.shape[:2], *grid.shape[1:-1]))
    taps = taps_of(interpolation_mode, spatial)
    work = 2 * taps * out.numel + (UNNORMALISE * spatial + taps) * prod(grid.shape[:-1])
    return Estimate((out,), vector_flops=work, reads=(x, grid))


rule("aten.cudnn_grid_sampler").derived(grid_sampler, order="x grid", interpolation_mode=BILINEAR)


@rule(
    "aten.grid_sampler_2d_backward grid_sampler_3d_backward cudnn_grid_sampler_backward",
    "aten._grid_sampler_2d_cpu_fallback_backward",
).takes(f"* grad x grid; interpolation_mode={BILINEAR} output_mask=(True,True)")
def grid_sampler_backward(of: Operands) -> Estimate:
    """Positions and weights again; per tap two operations for the input, two per coordinate for the grid."""
    grad, x, grid = of
    spatial = x.rank - 2
    taps = taps_of(of.interpolation_mode, spatial)
    points = prod(grid.shape[:-1])
    wants_input, wants_grid = of.output_mask
    # The nearest input gets the whole gradient in one addition, and no grid point moves it.
    each = (max(2 * taps, 1) if wants_input else 0) + (2 * taps * spatial if wants_grid else 0)
    return Estimate(
        where_wanted((x, grid), of.output_mask),
        vector_flops=each * grad.numel + (UNNORMALISE * spatial + taps) * points,
        reads=(grad, x if wants_grid else None, grid),
    )


@backward("aten.grid_sampler", "aten.grid_sampler_2d", "aten.grid_sampler_3d")
def grid_sampler_gradient(call: ForwardCall) -> Estimate:
    """As the backward operator, for the wanted gradients."""
    wants = ("x" in call.wants, "grid" in call.wants)
    both = grid_sampler_backward(grad=call.out, output_mask=wants, **call.arguments)
    return replace(both, out=tuple(wanted for wanted in both.out if wanted is not None))


@rule("aten.affine_grid_generator", product=("theta",))
def affine_grid_generator(theta: TensorType, size: Shape) -> Estimate:
    """Every position, with a 1 appended, times the transposed affine matrix."""
    positions, (batch, _, *spatial) = prod(size[2:]), size
    meet(theta.shape[0], batch, f"batches differ: {theta.shape[0]} and {batch}")
    axes = len(spatial)
    out = theta.like((batch, *spatial, axes))
    return Estimate((out,), matrix_flops=2 * batch * positions * (axes + 1) * axes, reads=(theta,))


@rule("aten.cudnn_affine_grid_generator", product=("theta",))
def cudnn_affine_grid_generator(theta: TensorType, N: Dim, C: Dim, H: Dim, W: Dim) -> Estimate:
    """As `affine_grid_generator`."""
    return affine_grid_generator(theta, (N, C, H, W))


KIND = "boxes"


@takes("grad rois * channel_mapping? argmax? batch_size= channels= height= width= sampling_ratio?")
def spread(of: Operands, *, work: Dim = 1) -> Estimate:
    """The gradient of a batch of pictures: as many taps as the forward samples, and the division by their number.

    For a largest pixel one addition per element; for a window's mean a division, and an addition per pixel.
    """
    if of.sampling_ratio is not None:
        work = SAMPLE * samples(of.sampling_ratio) + 1
    picture = of.grad.like(of.named("batch_size channels height width"))
    reads = of.named("grad rois channel_mapping argmax")
    return Estimate((picture,), vector_flops=work * of.grad.numel, reads=reads)


rule("torchvision._roi_align_backward _ps_roi_align_backward _roi_pool_backward")(spread)
rule("torchvision._ps_roi_pool_backward").derived(spread, work=data_dependent("pixels") + 1)


@rule("torchvision._deform_conv2d_backward")
def deform_conv2d_backward(
    grad: TensorType, x: TensorType, weight: TensorType, offset: TensorType, mask: TensorType, *others: Any
) -> Estimate:
    """The product twice, and the samples three times: again, spread to the inputs and towards the offsets."""
    operands = (x, weight, offset, mask, others[0])
    forward = deform_conv2d(*operands, *others[1:])
    return Estimate(
        tuple(operand.like() for operand in operands),
        2 * forward.matrix_flops,
        3 * forward.vector_flops + grad.numel,
        reads=(grad, x, weight, offset, mask),
    )


SAMPLE = 2 * 4  # operations of one bilinear sample, adding it to a sum included
OVERLAP = 13  # two boxes: corners 4, sides 2, clipped 2, area 1, union 2, ratio 1, compared 1


def samples(sampling_ratio: Dim) -> Dim:
    """Samples averaged per output; by default as many as the box has pixels, which depends on data."""
    if isinstance(sampling_ratio, int) and sampling_ratio <= 0:
        return data_dependent("samples")
    return sampling_ratio * sampling_ratio


@takes("x rois * pooled_height= pooled_width= sampling_ratio?")
def pooled(of: Operands, *, work: Dim = 0, by_position: bool = False, indexed: bool = True) -> Estimate:
    """One small picture per box: the bilinear samples of each output and a division by their number.

    Without samples, one operation per pixel of each output's window, whose size depends on data. by_position: whether each
    output position has its own channels. indexed: whether a second result has each output's source.
    """
    x, rois, pooled_height, pooled_width, sampling_ratio = of
    require(x.rank == 4, f"a batch of pictures has four axes, not {x.rank}")
    channels = floor_div(x.shape[1], pooled_height * pooled_width) if by_position else x.shape[1]
    out = x.like((rois.shape[0], channels, pooled_height, pooled_width))
    each = work if sampling_ratio is None else SAMPLE * samples(sampling_ratio) + 1
    results = (out, out.like(dtype=INT32)) if indexed else (out,)
    return Estimate(results, vector_flops=each * out.numel, reads=(x, rois))


rule("torchvision.roi_align", "torchvision.qroi_align").derived(pooled, indexed=False)
rule("torchvision.ps_roi_align").derived(pooled, by_position=True)
roi_pool = rule("torchvision.roi_pool").derived(pooled, work=data_dependent("pixels"))
rule("torchvision.ps_roi_pool").derived(pooled, work=data_dependent("pixels") + 1, by_position=True)


@rule("torchvision.nms", "torchvision.qnms")
def nms(dets: TensorType, scores: TensorType) -> Estimate:
    """Upper bound: boxes are sorted by score, and the overlap of every pair is computed."""
    kept = dets.like((data_dependent("nms"),), INT64)
    return Estimate((kept,), vector_flops=suppression(dets.shape[0]), reads=(dets, scores))


def suppression(boxes: Dim) -> Dim:
    """Operations that sort boxes and compute the overlap of every pair."""
    return n_log_n(boxes) + OVERLAP * floor_div(boxes * (boxes - 1), 2)


@rule("torchvision.deform_conv2d")
def deform_conv2d(
    x: TensorType, weight: TensorType, offset: TensorType, mask: TensorType, bias: TensorType, *window: Dim
) -> Estimate:
    """A convolution of inputs sampled at learned offsets: the product, and one bilinear sample per tap and channel.

    window: stride, padding and dilation along both axes, groups, groups of offsets, whether there is a mask.
    """
    stride, padding, dilation, (groups, _, use_mask) = window[:2], window[2:4], window[4:6], window[6:]
    sizes = downsampled(x.shape[2:], weight.shape[2:], stride, dilation, padding)
    return deformed(x, weight, offset, mask if use_mask else None, bias, sizes, groups)


@backward("torchvision.deform_conv2d")
def deformed_gradient(call: ForwardCall) -> Estimate:
    """All of `_deform_conv2d_backward`, whichever gradients are wanted."""
    *operands, window = call.arguments.values()
    return replace(deform_conv2d_backward(call.out.like(), *operands, *window), out=call.gradients())


def deformed(
    x: TensorType,
    weight: TensorType,
    offset: TensorType,
    mask: TensorType | None,
    bias: TensorType | None,
    out_sizes: Iterable[Dim],
    groups: Dim,
) -> Estimate:
    """A convolution with sampled taps; a mask costs one more product per tap."""
    product = convolved(x, weight, bias, out_sizes, groups)
    spatial = weight.rank - 2
    taps = prod(x.shape[:2]) * prod(weight.shape[2:]) * prod(only_result(product).shape[2:])
    sampling = (2 * 2**spatial + (mask is not None)) * taps
    work = product.vector_flops + sampling
    return replace(product, vector_flops=work, reads=(x, weight, offset, mask, bias))
