"""Windows that move over pictures: pooling, and convolutions, also transposed, with their backward operators.

Elements of a window that lie in the padding count too.
"""

from collections.abc import Iterable
from typing import Any

from graphflops.base.record import replace
from graphflops.cost import Estimate
from graphflops.dims import Dim, at_least, call, compare, differ, floor_div, meet, mod, prod, same
from graphflops.rules.matmul import Mask, additions, flops_of
from graphflops.rules.operands import Operands, takes
from graphflops.rules.reduce import indexed, operand_gradient
from graphflops.rules.registry import ForwardCall, backward, require, rule
from graphflops.rules.shapes import Shape, have_shape, only_result, shown, where_wanted
from graphflops.tensor import INT8, INT64, TensorType

KIND = "pooling"

PerAxis = Dim | Shape  # one value for all spatial axes, or one for each


def spread(value: PerAxis, spatial: int, empty: PerAxis = 0) -> Shape:
    """One value per pooled axis; an empty list (a stride that was not given) stands for `empty`."""
    if not isinstance(value, tuple):
        return (value,) * spatial
    if not value:
        return spread(empty, spatial)
    return value * spatial if len(value) == 1 else value


def outputs(
    size: Dim, kernel: Dim, stride: Dim, padding: Dim | tuple[Dim, Dim], dilation: Dim, ceil_mode: bool
) -> Dim:
    """Positions of a window; with `ceil_mode` the last starts before the end padding. padding: of both ends, or of each."""
    before, after = padding if isinstance(padding, tuple) else (padding, padding)
    window, padded = dilation * (kernel - 1) + 1, before + size + after
    spare = padded - window + (stride - 1 if ceil_mode else 0)
    require(not at_least(-1, spare), f"a window of {window} is larger than its input of {padded}")
    count = floor_div(spare, stride) + 1
    if not ceil_mode or at_least(window, after + stride):  # else the last window may start after the input
        return count
    return count - compare(">=", (count - 1) * stride, before + size)


def windowed(x: TensorType, kernel: Shape, counts: Shape, each: int = 1, final: int = 0) -> Estimate:
    """`each` operations per window element and `final` per output, for `counts` outputs along the last axes."""
    out = x.like((*x.shape[: -len(counts)], *counts))
    return Estimate((out,), vector_flops=(each * prod(kernel) + final) * out.numel, reads=(x,))


@takes("x kernel_size=; stride=() padding=0 dilation=1 ceil_mode=False")
def pooling(of: Operands, *, spatial: int, final: int = 0) -> Estimate:
    """One comparison or addition per window element; of an average also a division per output."""
    x, stride, dilation = of.x, of.stride, of.dilation
    require(x.rank in (spatial + 1, spatial + 2), f"{spatial} pooled axes do not fit a tensor of {x.rank}")
    kernel = spread(of.kernel_size, spatial)
    sizes, pads = x.shape[-spatial:], spread(of.padding, spatial)
    for name, value in (("window", kernel), ("stride", stride), ("dilation", dilation)):
        positive = not any(at_least(0, each) for each in spread(value, spatial, 1))
        require(positive, f"a {name} of {value} has no positive size")
    steps, dilations = spread(stride, spatial, kernel), spread(dilation, spatial, 1)
    wide = any(at_least(-1, n) or at_least(2 * n, size + 1) for n, size in zip(pads, kernel, strict=True))
    require(not wide, f"a padding of {shown(pads)} does not fit a window of {shown(kernel)}")
    settings = zip(sizes, kernel, steps, pads, dilations, strict=True)
    counts = tuple(outputs(*setting, of.ceil_mode) for setting in settings)
    # With ceil_mode a window may be larger than its input; it then holds only the elements of the input.
    whole = ((window, size + 2 * pad) for window, size, pad in zip(kernel, sizes, pads, strict=True))
    held = tuple(size if at_least(window, size) else window for window, size in whole)
    return windowed(x, held, counts, final=final)


def pooling_backward(
    grad_output: TensorType, x: TensorType, kernel_size: PerAxis, *, spatial: int, again: bool
) -> Estimate:
    """An addition per output and an operation per element of its window. again: the positions of maxima are found again."""
    flops = (prod(spread(kernel_size, spatial)) + 1) * grad_output.numel
    return Estimate((x.like(),), vector_flops=flops, reads=(grad_output, x if again else None))


for _spatial in (1, 2, 3):
    _max: dict[str, Any] = {"says": "One comparison per window element.", "spatial": _spatial}
    rule(f"aten.max_pool{_spatial}d", f"aten.quantized_max_pool{_spatial}d").derived(pooling, **_max)
    rule(f"aten.max_pool{_spatial}d_with_indices").derived(pooling, indexed, **_max)
    rule(f"aten.avg_pool{_spatial}d").derived(
        pooling, says="One addition per window element and a division per output.", spatial=_spatial, final=1
    )
    if _spatial > 1:
        rule(f"aten.mkldnn_max_pool{_spatial}d").derived(pooling, **_max)
        rule(f"aten.avg_pool{_spatial}d_backward").derived(pooling_backward, spatial=_spatial, again=False)
rule("aten.max_pool2d_backward").derived(pooling_backward, spatial=2, again=True)


# torch.compile's decomposition of a maximum with its index: the place within the window, as a byte.
@rule("prims._low_memory_max_pool_with_offsets", "prims._low_memory_max_pool2d_with_offsets").takes(
    "x kernel_size= stride= padding= dilation= ceil_mode="
)
def max_pool_with_offsets(of: Operands) -> Estimate:
    """One comparison per window element."""
    found = pooling(**of.given, spatial=len(of.kernel_size))
    return found.plus(out=(*found.out, only_result(found).like(dtype=INT8)))


@rule("prims._low_memory_max_pool_offsets_to_indices", "prims._low_memory_max_pool2d_offsets_to_indices")
def max_pool_offsets_to_indices(x: TensorType, *, stride: Shape) -> Estimate:
    """Integers per element: 3 to split the place at an axis, 2 to place it, 2 to join it with the next axis."""
    return Estimate((x.like(dtype=INT64),), vector_flops=(7 * len(stride) - 5) * x.numel, reads=(x,))


@backward(
    "aten.max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices",
    "aten.adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d fractional_max_pool2d fractional_max_pool3d",
)
def max_pool_gradient(call: ForwardCall) -> Estimate:
    """Adds each output's gradient at the position of its maximum; a training step keeps the indices."""
    return replace(operand_gradient(call, saved=(call.out.like(dtype=INT64),)), vector_flops=call.out.numel)


def adaptive_windows(sizes: Shape, counts: Shape) -> Dim:
    """Elements of all windows of one channel together.

    Along an axis of n elements and m windows, neighbours share one element at each of the m - gcd(n, m)
    borders that fall inside an element.
    """
    return prod(size + count - _common(size, count) for size, count in zip(sizes, counts, strict=True))


def _common(size: Dim, count: Dim) -> Dim:
    found = call("gcd", size, count)
    return found if isinstance(found, int) or not same(mod(size, count), 0) else count


def adaptive(x: TensorType, output_size: PerAxis, *, spatial: int, final: int) -> Estimate:
    """One operation per window element, and a division per average."""
    counts = spread(output_size, spatial)
    require(x.rank in (spatial + 1, spatial + 2), f"{spatial} pooled axes do not fit a tensor of {x.rank}")
    lead, sizes = x.shape[:-spatial], x.shape[-spatial:]
    out = x.like((*lead, *counts))
    work = prod(lead) * adaptive_windows(sizes, counts) + final * out.numel
    return Estimate((out,), vector_flops=work, reads=(x,))


for _spatial in (1, 2, 3):
    rule(f"aten.adaptive_avg_pool{_spatial}d").derived(adaptive, spatial=_spatial, final=1)
    rule(f"aten.adaptive_max_pool{_spatial}d").derived(adaptive, indexed, spatial=_spatial, final=0)
rule("aten._adaptive_avg_pool2d mkldnn_adaptive_avg_pool2d").derived(adaptive, spatial=2, final=1)
rule("aten._adaptive_avg_pool3d").derived(adaptive, spatial=3, final=1)


# One operation per window element, and a division per average; the operand's elements are not read.
backward(
    "aten.adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d"
)(lambda call: replace(operand_gradient(call), vector_flops=call.estimate.vector_flops))


@rule(
    "aten._adaptive_avg_pool2d_backward mkldnn_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward",
    "aten.adaptive_avg_pool3d_backward",
)
def adaptive_avg_pool_backward(grad_output: TensorType, x: TensorType) -> Estimate:
    """Each output's gradient divided once and added to every element of its window."""
    work = adaptive_windows(x.shape, grad_output.shape) + grad_output.numel
    return Estimate((x.like(),), vector_flops=work, reads=(grad_output,))


@rule("aten.fractional_max_pool2d fractional_max_pool3d").takes("x kernel_size= output_size= samples")
def fractional_max_pool(of: Operands) -> Estimate:
    """One comparison per window element; the random numbers place the windows."""
    spatial = len(of.output_size)
    out = of.x.like((*of.x.shape[:-spatial], *of.output_size))
    work = prod(spread(of.kernel_size, spatial)) * out.numel
    return indexed(Estimate((out,), vector_flops=work, reads=(of.x, of.samples)))


@rule("aten.max_unpool2d", "aten.max_unpool3d")
def max_unpool(x: TensorType, indices: TensorType, output_size: Shape) -> Estimate:
    """Writes values to their former positions and zeros elsewhere; no arithmetic."""
    fits = have_shape(x.shape, indices) and x.rank - len(output_size) in (0, 1, 2)
    require(fits, f"{shown(x.shape)} at {shown(indices.shape)} is not unpooled to {shown(output_size)}")
    return Estimate((x.like((*x.shape[: -len(output_size)], *output_size)),), reads=(x, indices))


# Gathers the gradients from the positions of the values.
backward("aten.max_unpool2d", "aten.max_unpool3d")(
    lambda call: Estimate((call["x"].like(),), reads=(call["x"], call["indices"]))
)


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
    kernel, inner, filters = weight.shape
    turned = x.view((batch, channels, time)), weight.view((filters, inner, kernel))
    product = convolve(*turned, bias, 1, pad)
    out = x.like((only_result(product).shape[2], batch, filters))
    return replace(product, out=(out,), reads=(x, weight, bias))
