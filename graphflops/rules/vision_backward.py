"""Gradients of torchvision's operators on boxes and offsets, as joint graphs hold them, and its quantised forms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.cost import Estimate, data_dependent
from graphflops.dims import Dim
from graphflops.rules.registry import rule
from graphflops.rules.vision import SAMPLE, deform_conv2d, nms, roi_align, samples

if TYPE_CHECKING:
    from graphflops.tensor import TensorType

Picture = tuple[Dim, Dim, Dim, Dim]


def spread(grad: TensorType, picture: Picture, per_element: Dim, *read: TensorType) -> Estimate:
    """The gradient of a batch of pictures: so many operations per element of the boxes' gradients."""
    return Estimate((grad.like(picture),), vector_flops=per_element * grad.numel, reads=(grad, *read))


@rule("torchvision._roi_align_backward")
def roi_align_backward(
    grad: TensorType,
    rois: TensorType,
    spatial_scale: float,
    pooled_height: Dim,
    pooled_width: Dim,
    batch_size: Dim,
    channels: Dim,
    height: Dim,
    width: Dim,
    sampling_ratio: int,
    aligned: bool,
) -> Estimate:
    """As many taps as the forward samples, and the division by their number."""
    work = SAMPLE * samples(sampling_ratio) + 1
    return spread(grad, (batch_size, channels, height, width), work, rois)


@rule("torchvision._ps_roi_align_backward")
def ps_roi_align_backward(
    grad: TensorType,
    rois: TensorType,
    channel_mapping: TensorType,
    spatial_scale: float,
    pooled_height: Dim,
    pooled_width: Dim,
    sampling_ratio: int,
    *picture: Dim,
) -> Estimate:
    """As many taps as the forward samples, and the division by their number."""
    batch, channels, height, width = picture
    work = SAMPLE * samples(sampling_ratio) + 1
    return spread(grad, (batch, channels, height, width), work, rois, channel_mapping)


@rule("torchvision._roi_pool_backward")
def roi_pool_backward(
    grad: TensorType,
    rois: TensorType,
    argmax: TensorType,
    spatial_scale: float,
    pooled_height: Dim,
    pooled_width: Dim,
    *picture: Dim,
) -> Estimate:
    """One addition per element, at the pixel that was the largest."""
    batch, channels, height, width = picture
    return spread(grad, (batch, channels, height, width), 1, rois, argmax)


@rule("torchvision._ps_roi_pool_backward")
def ps_roi_pool_backward(
    grad: TensorType,
    rois: TensorType,
    channel_mapping: TensorType,
    spatial_scale: float,
    pooled_height: Dim,
    pooled_width: Dim,
    *picture: Dim,
) -> Estimate:
    """A division per element, and an addition per pixel of its window, whose size only data can tell."""
    batch, channels, height, width = picture
    work = data_dependent("pixels") + 1
    return spread(grad, (batch, channels, height, width), work, rois, channel_mapping)


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
    forward = deform_conv2d(x, weight, offset, mask, bias, *window)  # type: ignore[arg-type]
    operands = (x, weight, offset, mask, bias)
    return Estimate(
        tuple(operand.like() for operand in operands),
        2 * forward.matrix_flops,
        3 * forward.vector_flops + grad.numel,
        reads=(grad, x, weight, offset, mask),
    )


@rule("torchvision.qnms")
def quantized_nms(dets: TensorType, scores: TensorType, iou_threshold: float) -> Estimate:
    """As `nms`, of integers."""
    return nms(dets, scores, iou_threshold)


@rule("torchvision.qroi_align")
def quantized_roi_align(
    x: TensorType,
    rois: TensorType,
    input_scale: float,
    input_zero_point: int,
    rois_scale: float,
    rois_zero_point: int,
    *attributes: Dim,
) -> Estimate:
    """As `roi_align`, of integers."""
    return roi_align(x, rois, *attributes)  # type: ignore[arg-type]
