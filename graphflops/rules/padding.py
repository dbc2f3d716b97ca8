"""Padding of tensors, and patches of images (im2col, col2im)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.cost import Estimate
from graphflops.dims import Dim, at_least, floor_div, prod
from graphflops.rules.arrangement import bordered, columns_to_image
from graphflops.rules.registry import ForwardCall, backward, require, rule
from graphflops.rules.shapes import Shape, shown, tensors_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.tensor import TensorType

KIND = "movement"


def padded(shape: Shape, pad: Sequence[Dim]) -> Shape:
    """The shape with a border: pairs of widths, the last axis first."""
    require(
        len(pad) % 2 == 0 and len(pad) <= 2 * len(shape),
        f"{shown(pad)} are not pairs of widths for the axes of {shown(shape)}",
    )
    axes = range(len(shape) - 1, -1, -1)
    return bordered(
        shape, {at: pad[2 * i : 2 * i + 2] for i, at in zip(range(len(pad) // 2), axes, strict=False)}
    )


@rule("aten.constant_pad_nd", "aten.pad", "aten._pad_enum", "aten._pad_circular")
def pad(x: TensorType, pad: Sequence[Dim], mode: str | int = "constant") -> Estimate:
    """A copy with a border, whatever its mode; the gradient depends on it."""
    return Estimate((x.like(padded(x.shape, pad)),), reads=(x,))


@rule("aten.reflection_pad1d", "aten.reflection_pad2d", "aten.reflection_pad3d")
@rule("aten.replication_pad1d", "aten.replication_pad2d", "aten.replication_pad3d")
def mirror_pad(x: TensorType, padding: Sequence[Dim]) -> Estimate:
    """A copy with a border of mirrored or replicated elements."""
    return Estimate((x.like(padded(x.shape, padding)),), reads=(x,))


@rule(
    "aten.reflection_pad1d_backward",
    "aten.reflection_pad2d_backward",
    "aten.reflection_pad3d_backward",
    kind="scatter",
)
@rule("aten.replication_pad1d_backward", "aten.replication_pad2d_backward", "aten.replication_pad3d_backward")
def mirror_pad_backward(grad_output: TensorType, x: TensorType) -> Estimate:
    """Sums the gradients of an element and of its copies in the border."""
    return Estimate((x.like(),), vector_flops=grad_output.numel, reads=(grad_output,))


@backward("aten.reflection_pad1d", "aten.reflection_pad2d", "aten.reflection_pad3d")
@backward("aten.replication_pad1d", "aten.replication_pad2d", "aten.replication_pad3d")
@backward("aten._pad_circular")
def mirror_pad_gradient(call: ForwardCall) -> Estimate:
    """As the backward operators of reflection and replication padding."""
    (out,) = tensors_of(call.estimate.out)
    return mirror_pad_backward(out.like(), call.arguments["x"])


@backward("aten.pad", "aten._pad_enum")
def pad_gradient(call: ForwardCall) -> Estimate:
    """The inner part of the result's gradient; modes other than `constant` add the border's gradient."""
    x: TensorType = call.arguments["x"]
    (out,) = tensors_of(call.estimate.out)
    if call.arguments.get("mode", "constant") in ("constant", 0):
        return constant_pad_gradient(call)
    return mirror_pad_backward(out.like(), x)


@backward("aten.constant_pad_nd")
def constant_pad_gradient(call: ForwardCall) -> Estimate:
    """The inner part of the result's gradient, copied."""
    x: TensorType = call.arguments["x"]
    (out,) = tensors_of(call.estimate.out)
    is_cut = at_least(x.numel, out.numel)
    return Estimate((x.like(),), reads=(out.like() if is_cut else replace(out, stored=x.numel),))


def windows(size: Dim, kernel: Dim, dilation: Dim, padding: Dim, stride: Dim) -> Dim:
    """Positions of a sliding window along an axis."""
    return floor_div(size + 2 * padding - dilation * (kernel - 1) - 1, stride) + 1


def pair(values: Sequence[Dim]) -> tuple[Dim, Dim]:
    """The value for each of two axes, from one or two values."""
    return (values[0], values[-1])


@rule("aten.im2col")
def im2col(
    x: TensorType,
    kernel_size: Sequence[Dim],
    dilation: Sequence[Dim],
    padding: Sequence[Dim],
    stride: Sequence[Dim],
) -> Estimate:
    """Writes every patch of an image as a column; the image is read once."""
    require(x.rank in (3, 4), f"{shown(x.shape)} is not an image (channels, rows, columns)")
    *batch, channels, height, width = x.shape
    kernel = pair(kernel_size)
    axes = zip((height, width), kernel, pair(dilation), pair(padding), pair(stride), strict=True)
    columns = prod(windows(*one) for one in axes)
    return Estimate((x.like((*batch, channels * prod(kernel), columns)),), reads=(x,))


@rule("aten.col2im", kind="scatter")
def col2im(x: TensorType, output_size: Sequence[Dim], kernel_size: Sequence[Dim]) -> Estimate:
    """Columns put back as patches of an image, an addition each where they may overlap."""
    require(x.rank in (2, 3), f"{shown(x.shape)} holds no columns")
    *batch, rows, _ = x.shape
    channels = floor_div(rows, prod(pair(kernel_size)))
    return columns_to_image(x, batch, channels, pair(output_size))


@backward("aten.im2col")
def im2col_gradient(call: ForwardCall) -> Estimate:
    """Sums the gradients of every patch that contains an element."""
    (out,) = tensors_of(call.estimate.out)
    return Estimate((call.arguments["x"].like(),), vector_flops=out.numel, reads=(out.like(),))


@backward("aten.col2im")
def col2im_gradient(call: ForwardCall) -> Estimate:
    """The gradient of the image, copied into every patch."""
    (out,) = tensors_of(call.estimate.out)
    return Estimate((call.arguments["x"].like(),), reads=(out.like(),))
