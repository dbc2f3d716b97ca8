"""Convolutions, transposed ones and their gradients.

Multiply-adds are dense: taps that fall on padding count like the others, as every library's own arithmetic has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.cost import Estimate
from graphflops.dims import Dim, at_least, differ, floor_div, prod
from graphflops.rules.matmul import Mask, Number, additions, flops_of
from graphflops.rules.registry import require, rule
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Sequence

Shape = tuple[Dim, ...]
PerAxis = Dim | tuple[Dim, ...]  # one value for all spatial axes, or one for each


def convolve(
    x: TensorType,
    weight: TensorType,
    bias: TensorType | None = None,
    stride: PerAxis = 1,
    padding: PerAxis | str = 0,
    dilation: PerAxis = 1,
    groups: Dim = 1,
    *,
    transposed: bool = False,
    output_padding: PerAxis = 0,
    kernel: Shape | None = None,
) -> Estimate:
    """Multiply-adds of every output position with the weight, for a transposed convolution of every input position.

    The weight is (out, in / groups, *kernel), transposed (in, out / groups, *kernel); `kernel` where it comes flat.
    """
    kernel = weight.shape[2:] if kernel is None else kernel
    spatial = len(kernel)
    require(x.rank in (spatial + 1, spatial + 2), f"a convolution over {spatial} axes cannot take {x}")
    batch, channels, sizes = x.shape[: -spatial - 1], x.shape[-spatial - 1], x.shape[-spatial:]
    expected = weight.shape[0] if transposed else prod(weight.shape[1:]) // prod(kernel) * groups
    require(not differ(channels, expected), f"{channels} channels meet a weight for {expected}")
    window = (kernel, _each(stride, spatial), _each(dilation, spatial))
    if transposed:
        filters = weight.shape[1] * groups
        out_sizes = upsampled(sizes, *window, _each(padding, spatial), _each(output_padding, spatial))
    else:
        filters = weight.shape[0]
        out_sizes = downsampled(sizes, *window, padding if isinstance(padding, str) else _each(padding, spatial))
    out = x.like((*batch, filters, *out_sizes))
    return Estimate(
        (out,),
        flops_of(multiply_adds(x, out, weight, transposed), x.dtype),
        vector_flops=additions(out) if bias else 0,
        reads=(x, weight, bias),
    )


def multiply_adds(x: TensorType, out: TensorType, weight: TensorType, transposed: bool) -> Dim:
    """What one element of the result, transposed one element of the input, meets is a row of the weight."""
    return (x if transposed else out).numel * prod(weight.shape[1:])


def downsampled(
    sizes: Shape, kernel: Shape, stride: Shape, dilation: Shape, padding: Shape | str
) -> list[Dim]:
    """Positions at which the spread-out kernel fits into the padded input; "same" keeps the input's size."""
    if padding == "same":
        return list(sizes)
    ends = (0,) * len(sizes) if isinstance(padding, str) else padding
    result = []
    for size, k, s, d, end in zip(sizes, kernel, stride, dilation, ends, strict=True):
        room = size + 2 * end - d * (k - 1) - 1
        require(not at_least(-1, room), f"a kernel of {d * (k - 1) + 1} is larger than its input of {size + 2 * end}")
        result.append(floor_div(room, s) + 1)
    return result


def upsampled(
    sizes: Shape, kernel: Shape, stride: Shape, dilation: Shape, padding: Shape, extra: Shape
) -> list[Dim]:
    """The size whose convolution has the given one, plus the extra size asked for."""
    axes = zip(sizes, kernel, stride, dilation, padding, extra, strict=True)
    return [(size - 1) * s - 2 * end + d * (k - 1) + more + 1 for size, k, s, d, end, more in axes]


def _each(value: PerAxis | str, count: int) -> Shape:
    if not isinstance(value, tuple):
        assert not isinstance(value, str)
        return (value,) * count
    return value * count if len(value) == 1 else value


# The spellings of convolution.


@rule("aten.conv1d", "aten.conv2d", "aten.conv3d", product=("x", "weight"))
def conv(
    x: TensorType,
    weight: TensorType,
    bias: TensorType | None = None,
    stride: PerAxis = 1,
    padding: PerAxis | str = 0,
    dilation: PerAxis = 1,
    groups: Dim = 1,
) -> Estimate:
    """Every output position times its window, per group; padding is also "same" or "valid"."""
    return convolve(x, weight, bias, stride, padding, dilation, groups)


@rule("aten._convolution_mode", "aten.cudnn_convolution_relu", "aten.miopen_convolution_relu", product=("x", "weight"))
def conv_required(
    x: TensorType,
    weight: TensorType,
    bias: TensorType | None,
    stride: PerAxis,
    padding: PerAxis | str,
    dilation: PerAxis,
    groups: Dim,
) -> Estimate:
    """As conv2d."""
    return convolve(x, weight, bias, stride, padding, dilation, groups)
