"""Gradients of torchvision's operators on boxes and offsets, as joint graphs hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.cost import Estimate, data_dependent
from graphflops.rules.registry import rule
from graphflops.rules.vision import SAMPLE, deform_conv2d, samples

if TYPE_CHECKING:
    from graphflops.dims import Dim
    from graphflops.tensor import TensorType

KIND = "boxes"


def spread(
    grad: TensorType, batch_size: Dim, channels: Dim, height: Dim, width: Dim, work: Dim, *read: TensorType
) -> Estimate:
    """The gradient of a batch of pictures: so many operations per element of the boxes' gradients."""
    picture = grad.like((batch_size, channels, height, width))
    return Estimate((picture,), vector_flops=work * grad.numel, reads=(grad, *read))


@rule("torchvision._roi_align_backward")
def roi_align_backward(
    grad: TensorType,
    rois: TensorType,
    *,
    sampling_ratio: int,
    batch_size: Dim,
    channels: Dim,
    height: Dim,
    width: Dim,
) -> Estimate:
    """As many taps as the forward samples, and the division by their number."""
    work = SAMPLE * samples(sampling_ratio) + 1
    return spread(grad, batch_size, channels, height, width, work, rois)


@rule("torchvision._ps_roi_align_backward")
def ps_roi_align_backward(
    grad: TensorType,
    rois: TensorType,
    channel_mapping: TensorType,
    *,
    sampling_ratio: int,
    batch_size: Dim,
    channels: Dim,
    height: Dim,
    width: Dim,
) -> Estimate:
    """As many taps as the forward samples, and the division by their number."""
    work = SAMPLE * samples(sampling_ratio) + 1
    return spread(grad, batch_size, channels, height, width, work, rois, channel_mapping)


@rule("torchvision._roi_pool_backward")
def roi_pool_backward(
    grad: TensorType,
    rois: TensorType,
    argmax: TensorType,
    *,
    batch_size: Dim,
    channels: Dim,
    height: Dim,
    width: Dim,
) -> Estimate:
    """One addition per element, at the pixel that was the largest."""
    return spread(grad, batch_size, channels, height, width, 1, rois, argmax)


@rule("torchvision._ps_roi_pool_backward")
def ps_roi_pool_backward(
    grad: TensorType,
    rois: TensorType,
    channel_mapping: TensorType,
    *,
    batch_size: Dim,
    channels: Dim,
    height: Dim,
    width: Dim,
) -> Estimate:
    """A division per element, and an addition per pixel of its window, whose size only data can tell."""
    work = data_dependent("pixels") + 1
    return spread(grad, batch_size, channels, height, width, work, rois, channel_mapping)


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
