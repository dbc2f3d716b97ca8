"""Operators of torchvision on boxes and offsets, which sample a picture between its pixels, and their gradients.

A bilinear sample is four taps, a multiplication and an addition each; position and weights are not counted.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from graphflops.cost import Estimate, data_dependent
from graphflops.dims import Dim, floor_div, prod
from graphflops.rules.conv import convolved, downsampled
from graphflops.rules.lapack import n_log_n
from graphflops.rules.operands import Operands, takes
from graphflops.rules.registry import require, rule
from graphflops.rules.shapes import only_result
from graphflops.tensor import INT32, INT64, TensorType

KIND = "boxes"


@takes("grad rois * channel_mapping? argmax?")
def spread(
    of: Operands,
    *,
    batch_size: Dim,
    channels: Dim,
    height: Dim,
    width: Dim,
    sampling_ratio: Dim | None = None,
    work: Dim = 1,
) -> Estimate:
    """The gradient of a batch of pictures: so many operations per element of the boxes' gradients, or samples of each."""
    if sampling_ratio is not None:
        work = SAMPLE * samples(sampling_ratio) + 1
    picture = of.grad.like((batch_size, channels, height, width))
    return Estimate((picture,), vector_flops=work * of.grad.numel, reads=(*of,))


rule("torchvision._roi_align_backward", "torchvision._ps_roi_align_backward").derived(
    spread, says="As many taps as the forward samples, and the division by their number."
)
rule("torchvision._roi_pool_backward").derived(
    spread, says="One addition per element, at the pixel that was the largest."
)
rule("torchvision._ps_roi_pool_backward").derived(
    spread,
    says="A division per element, and an addition per pixel of its window, whose size only data can tell.",
    work=data_dependent("pixels") + 1,
)


@rule("torchvision._deform_conv2d_backward")
def deform_conv2d_backward(
    grad: TensorType,
    x: TensorType,
    weight: TensorType,
    offset: TensorType,
    mask: TensorType,
    bias: TensorType,
    *window: Dim,
) -> Estimate:
    """The product twice, and the samples three times: again, spread to the inputs and towards the offsets."""
    *settings, _, use_mask = window
    forward = deform_conv2d(x, weight, offset, mask, bias, *settings, use_mask=bool(use_mask))
    operands = (x, weight, offset, mask, bias)
    return Estimate(
        tuple(operand.like() for operand in operands),
        2 * forward.matrix_flops,
        3 * forward.vector_flops + grad.numel,
        reads=(grad, x, weight, offset, mask),
    )


SAMPLE = 2 * 4  # operations of one bilinear sample, adding it to a sum included
OVERLAP = 13  # two boxes: corners 4, sides 2, clipped 2, area 1, union 2, ratio 1, compared 1


def regions(
    x: TensorType, rois: TensorType, channels: Dim, pooled_height: Dim, pooled_width: Dim
) -> TensorType:
    """The type of one small picture per box."""
    require(x.rank == 4, f"a batch of pictures has four axes, not {x.rank}")
    return x.like((rois.shape[0], channels, pooled_height, pooled_width))


def samples(sampling_ratio: Dim) -> Dim:
    """Samples averaged per output; by default as many as the box has pixels, which only data can tell."""
    if isinstance(sampling_ratio, int) and sampling_ratio <= 0:
        return data_dependent("samples")
    return sampling_ratio * sampling_ratio


@rule("torchvision.roi_align", "torchvision.qroi_align")
def roi_align(
    x: TensorType, rois: TensorType, *, pooled_height: Dim, pooled_width: Dim, sampling_ratio: int
) -> Estimate:
    """The bilinear samples of each output and a division by their number."""
    out = regions(x, rois, x.shape[1], pooled_height, pooled_width)
    return Estimate((out,), vector_flops=(SAMPLE * samples(sampling_ratio) + 1) * out.numel, reads=(x, rois))


@rule("torchvision.ps_roi_align")
def ps_roi_align(
    x: TensorType, rois: TensorType, *, pooled_height: Dim, pooled_width: Dim, sampling_ratio: int
) -> Estimate:
    """As `roi_align`, with separate channels for each output position; the second result names the channels."""
    channels = floor_div(x.shape[1], pooled_height * pooled_width)
    out = regions(x, rois, channels, pooled_height, pooled_width)
    work = (SAMPLE * samples(sampling_ratio) + 1) * out.numel
    return Estimate((out, out.like(dtype=INT32)), vector_flops=work, reads=(x, rois))


@rule("torchvision.roi_pool")
def roi_pool(x: TensorType, rois: TensorType, *, pooled_height: Dim, pooled_width: Dim) -> Estimate:
    """One comparison per pixel of each output's window, whose size only data can tell."""
    out = regions(x, rois, x.shape[1], pooled_height, pooled_width)
    work = data_dependent("pixels") * out.numel
    return Estimate((out, out.like(dtype=INT32)), vector_flops=work, reads=(x, rois))


@rule("torchvision.ps_roi_pool")
def ps_roi_pool(x: TensorType, rois: TensorType, *, pooled_height: Dim, pooled_width: Dim) -> Estimate:
    """One addition per pixel of each output's window, whose size only data can tell, and a division."""
    channels = floor_div(x.shape[1], pooled_height * pooled_width)
    out = regions(x, rois, channels, pooled_height, pooled_width)
    work = (data_dependent("pixels") + 1) * out.numel
    return Estimate((out, out.like(dtype=INT32)), vector_flops=work, reads=(x, rois))


@rule("torchvision.nms", "torchvision.qnms")
def nms(dets: TensorType, scores: TensorType) -> Estimate:
    """Upper bound: boxes are sorted by score, and the overlap of every pair is computed."""
    n = dets.shape[0]
    pairs = floor_div(n * (n - 1), 2)
    kept = dets.like((data_dependent("nms"),), INT64)
    return Estimate((kept,), vector_flops=n_log_n(n) + OVERLAP * pairs, reads=(dets, scores))


@rule("torchvision.deform_conv2d", product=("x", "weight"))
def deform_conv2d(
    x: TensorType,
    weight: TensorType,
    offset: TensorType,
    mask: TensorType,
    bias: TensorType,
    stride_h: Dim,
    stride_w: Dim,
    pad_h: Dim,
    pad_w: Dim,
    dilation_h: Dim,
    dilation_w: Dim,
    groups: Dim,
    *,
    use_mask: bool,
) -> Estimate:
    """A convolution of inputs sampled at learned offsets: the product, and one bilinear sample per tap and channel."""
    window = (weight.shape[2:], (stride_h, stride_w), (dilation_h, dilation_w))
    sizes = downsampled(x.shape[2:], *window, (pad_h, pad_w))
    return deformed(x, weight, offset, mask if use_mask else None, bias, sizes, groups)


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
