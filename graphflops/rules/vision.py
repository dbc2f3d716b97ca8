"""Operators of torchvision on boxes and offsets, which sample a picture between its pixels, and their gradients.

A bilinear sample is four taps, a multiplication and an addition each; position and weights are not counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from graphflops.cost import Estimate, data_dependent
from graphflops.dims import Dim, floor_div, prod
from graphflops.rules.conv import convolved, downsampled
from graphflops.rules.lapack import n_log_n
from graphflops.rules.operands import Operands, takes
from graphflops.rules.registry import Derived, require, rule
from graphflops.rules.shapes import only_result
from graphflops.tensor import INT32, INT64, TensorType

KIND = "boxes"


@takes("grad rois * channel_mapping? argmax? batch_size= channels= height= width= sampling_ratio?")
def spread(of: Operands, *, work: Dim = 1) -> Estimate:
    """The gradient of a batch of pictures: so many operations per element of the boxes' gradients, or samples of each."""
    if of.sampling_ratio is not None:
        work = SAMPLE * samples(of.sampling_ratio) + 1
    picture = of.grad.like(of.named("batch_size channels height width"))
    reads = of.named("grad rois channel_mapping argmax")
    return Estimate((picture,), vector_flops=work * of.grad.numel, reads=reads)


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
    """Samples averaged per output; by default as many as the box has pixels, which only data can tell."""
    if isinstance(sampling_ratio, int) and sampling_ratio <= 0:
        return data_dependent("samples")
    return sampling_ratio * sampling_ratio


@takes("x rois * pooled_height= pooled_width= sampling_ratio?")
def pooled(of: Operands, *, work: Dim = 0, by_position: bool = False, indexed: bool = True) -> Estimate:
    """One small picture per box: so many operations per output, or samples of each and a division by their number.

    by_position: each output position has channels of its own. indexed: a second result says where each output is from.
    """
    x, rois, pooled_height, pooled_width, sampling_ratio = of
    require(x.rank == 4, f"a batch of pictures has four axes, not {x.rank}")
    channels = floor_div(x.shape[1], pooled_height * pooled_width) if by_position else x.shape[1]
    out = x.like((rois.shape[0], channels, pooled_height, pooled_width))
    each = work if sampling_ratio is None else SAMPLE * samples(sampling_ratio) + 1
    results = (out, out.like(dtype=INT32)) if indexed else (out,)
    return Estimate(results, vector_flops=each * out.numel, reads=(x, rois))


rule("torchvision.roi_align", "torchvision.qroi_align").derived(
    pooled, says="The bilinear samples of each output and a division by their number.", indexed=False
)
rule("torchvision.ps_roi_align").derived(
    pooled,
    says="As `roi_align`, with separate channels for each output position; the second result names the channels.",
    by_position=True,
)
roi_pool = Derived(
    pooled,
    says="One comparison per pixel of each output's window, whose size only data can tell.",
    work=data_dependent("pixels"),
)
rule("torchvision.roi_pool")(roi_pool)
rule("torchvision.ps_roi_pool").derived(
    pooled,
    says="One addition per pixel of each output's window, whose size only data can tell, and a division.",
    work=data_dependent("pixels") + 1,
    by_position=True,
)


@rule("torchvision.nms", "torchvision.qnms")
def nms(dets: TensorType, scores: TensorType) -> Estimate:
    """Upper bound: boxes are sorted by score, and the overlap of every pair is computed."""
    n = dets.shape[0]
    pairs = floor_div(n * (n - 1), 2)
    kept = dets.like((data_dependent("nms"),), INT64)
    return Estimate((kept,), vector_flops=n_log_n(n) + OVERLAP * pairs, reads=(dets, scores))


@rule("torchvision.deform_conv2d", product=("x", "weight"))
def deform_conv2d(
    x: TensorType, weight: TensorType, offset: TensorType, mask: TensorType, bias: TensorType, *window: Dim
) -> Estimate:
    """A convolution of inputs sampled at learned offsets: the product, and one bilinear sample per tap and channel.

    window: stride, padding and dilation along both axes, groups, groups of offsets, whether there is a mask.
    """
    stride, padding, dilation, (groups, _, use_mask) = window[:2], window[2:4], window[4:6], window[6:]
    sizes = downsampled(x.shape[2:], weight.shape[2:], stride, dilation, padding)
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
