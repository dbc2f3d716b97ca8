"""Convolutions, transposed convolutions, and their backward operators, as graphs of a training step contain them.

Multiply-adds are dense: taps on padding count too.
"""

from __future__ import annotations

from collections.abc import Iterable

from graphflops.cost import Estimate
from graphflops.dims import Dim, differ, meet, mod, prod
from graphflops.rules.matmul import Mask, additions, flops_of
from graphflops.rules.operands import Operands
from graphflops.rules.pool import PerAxis, outputs, spread
from graphflops.rules.registry import require, rule
from graphflops.rules.shapes import Shape, have_shape, only_result, where_wanted
from graphflops.tensor import TensorType

KIND = "convolution"


@rule("aten.convolution_backward convolution_backward_overrideable _slow_conv2d_backward.output_mask").takes(
    "grad x weight; bias_sizes=None stride=1 padding=0 dilation=1 transposed=False output_padding=0 groups=1 output_mask"
)
def convolution_backward(of: Operands) -> Estimate:
    """Twice the forward's work for both gradients, whatever the groups."""
    grad, x, weight = of
    wants_x, wants_weight, wants_bias = of.output_mask
    geometry = of.stride, of.padding, of.dilation, of.groups
    forward = convolve(x, weight, None, *geometry, transposed=of.transposed, output_padding=of.output_padding)
    out = only_result(forward)
    require(have_shape(out.shape, grad), f"the gradient {grad} of a result {out}")
    bias = weight.like(of.bias_sizes or grad.shape[1:2])
    return Estimate(
        where_wanted((x, weight, bias), of.output_mask),
        matrix_flops=(wants_x + wants_weight) * forward.matrix_flops,
        vector_flops=additions(grad) if wants_bias else 0,
        reads=(grad, weight if wants_x else None, x if wants_weight else None),
    )


@rule("aten._convolution_double_backward").takes("gg_x? gg_weight? gg_bias? grad weight x")
def convolution_double_backward(of: Operands, *, transposed: bool, output_mask: Mask) -> Estimate:
    """The forward's product for each term: two in the result's gradient, one in the others."""
    gg_x, gg_weight, gg_bias, grad, weight, x = of
    from_x, from_weight = gg_x is not None, gg_weight is not None
    wants_grad, wants_x, wants_weight = output_mask
    terms = wants_grad * (from_x + from_weight) + wants_x * from_weight + wants_weight * from_x
    return Estimate(
        where_wanted((grad, x, weight), output_mask),
        matrix_flops=terms * flops_of(multiply_adds(x, grad, weight, transposed), x.dtype),
        vector_flops=grad.numel * (from_x + from_weight + (gg_bias is not None) - 1) if wants_grad else 0,
        reads=(*of,),
    )


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
) -> Estimate:
    """Every output position times its window, per group; in a transposed convolution every input position times the kernel.

    The weight is (out, in / groups, *kernel), transposed (in, out / groups, *kernel).
    """
    kernel, spatial = weight.shape[2:], weight.rank - 2
    require(x.rank in (spatial + 1, spatial + 2), f"a convolution over {spatial} axes cannot take {x}")
    sizes, window = x.shape[-spatial:], (kernel, spread(stride, spatial), spread(dilation, spatial))
    ends = spread(0 if isinstance(padding, str) else padding, spatial)
    if transposed:
        sizes = upsampled(sizes, *window, ends, spread(output_padding, spatial))
    elif padding != "same":  # which keeps the input's size
        sizes = downsampled(sizes, *window, ends)
    return convolved(x, weight, bias, sizes, groups, transposed=transposed)


def convolved(
    x: TensorType,
    weight: TensorType,
    bias: TensorType | None,
    out_sizes: Iterable[Dim],
    groups: Dim = 1,
    *,
    transposed: bool = False,
) -> Estimate:
    """The convolution whose result has these sizes along its spatial axes."""
    spatial = weight.rank - 2
    channels, (inner, outer) = x.shape[-spatial - 1], weight.shape[:2]
    expected, filters = (inner, outer * groups) if transposed else (outer * groups, inner)
    meet(channels, expected, f"the input has {channels} channels, the weight takes {expected}")
    meet(mod(inner, groups), 0, f"{inner} rows of a weight do not make {groups} groups")
    fits = bias is None or (bias.rank == 1 and not differ(bias.numel, filters))
    require(fits, f"a bias of {bias} for {filters} channels")
    out = x.like((*x.shape[: -spatial - 1], filters, *out_sizes))
    return Estimate(
        (out,),
        flops_of(multiply_adds(x, out, weight, transposed), x.dtype),
        vector_flops=additions(out) if bias else 0,
        reads=(x, weight, bias),
    )


def multiply_adds(x: TensorType, out: TensorType, weight: TensorType, transposed: bool) -> Dim:
    """Multiply-adds per output position (transposed: per input position): the elements of one row of the weight."""
    return (x if transposed else out).numel * prod(weight.shape[1:])


def downsampled(sizes: Shape, kernel: Shape, stride: Shape, dilation: Shape, padding: Shape) -> Shape:
    """Output sizes: positions of the dilated kernel in the padded input."""
    axes = zip(sizes, kernel, stride, padding, dilation, strict=True)
    return tuple(outputs(*axis, ceil_mode=False) for axis in axes)


def upsampled(
    sizes: Shape, kernel: Shape, stride: Shape, dilation: Shape, padding: Shape, extra: Shape
) -> Shape:
    """The output size of a transposed convolution: the input size of the matching convolution, plus the output padding."""
    axes = zip(sizes, kernel, stride, dilation, padding, extra, strict=True)
    return tuple((size - 1) * s - 2 * end + d * (k - 1) + more + 1 for size, k, s, d, end, more in axes)


# Convolution operators; arguments after the weight are found by name.

rule(
    "aten.conv1d conv2d conv3d _convolution_mode cudnn_convolution mkldnn_convolution miopen_convolution",
    "aten.miopen_depthwise_convolution _nnpack_spatial_convolution convolution convolution_overrideable _convolution",
    product=("x", "weight"),
).derived(convolve, order="x weight")
rule(
    "aten.conv_transpose1d conv_transpose2d conv_transpose3d slow_conv_transpose2d slow_conv_transpose3d",
    "aten.cudnn_convolution_transpose miopen_convolution_transpose",
    product=("x", "weight"),
).derived(convolve, order="x weight", transposed=True)


@rule(
    "aten.cudnn_convolution_relu miopen_convolution_relu cudnn_convolution_add_relu",
    "aten.miopen_convolution_add_relu",
    product=("x", "weight"),
).takes("x weight * z? alpha? bias? stride= padding= dilation= groups=")
def conv_relu(of: Operands) -> Estimate:
    """A convolution, alpha * z added to it, and one comparison per result."""
    product = convolve(*of.but("z alpha"))
    each = 1 if of.z is None else 2 + (of.alpha not in (None, 1))
    return product.plus(vector_flops=each * only_result(product).numel, reads=(of.z,))


@rule("aten._conv_depthwise2d", "aten.conv_depthwise3d", product=("x", "weight")).takes("x weight * bias?")
def conv_depthwise(of: Operands, *, stride: PerAxis, padding: PerAxis, dilation: PerAxis) -> Estimate:
    """One group per input channel."""
    x, weight, bias = of
    return convolve(x, weight, bias, stride, padding, dilation, groups=x.shape[1 - weight.rank])


@rule(
    "aten.thnn_conv2d _slow_conv2d_forward slow_conv3d slow_conv3d_forward slow_conv_dilated2d",
    "aten.slow_conv_dilated3d",
    product=("x", "weight"),
).takes("x weight kernel_size= bias? stride? padding? dilation?")
def slow_conv(of: Operands) -> Estimate:
    """One group; the weight may come as a matrix."""
    x, weight, kernel_size, bias, *_ = of
    unflattened = weight.view((weight.shape[0], x.shape[-len(kernel_size) - 1], *kernel_size))
    window = {"stride": of.stride, "padding": of.padding, "dilation": of.dilation}
    return convolve(x, unflattened, bias, **{name: x for name, x in window.items() if x is not None})


@rule("aten.conv_tbc", product=("x", "weight"))
def conv_tbc(x: TensorType, weight: TensorType, bias: TensorType, pad: Dim = 0) -> Estimate:
    """A convolution along time of (time, batch, channel), with a weight (kernel, in, out)."""
    time, batch, channels = x.shape
    kernel, expected, filters = weight.shape
    meet(channels, expected, f"the input has {channels} channels, the weight takes {expected}")
    out = x.like((*downsampled((time,), (kernel,), (1,), (1,), (pad,)), batch, filters))
    flops = flops_of(out.numel * kernel * channels, x.dtype)
    return Estimate((out,), flops, additions(out), reads=(x, weight, bias))
