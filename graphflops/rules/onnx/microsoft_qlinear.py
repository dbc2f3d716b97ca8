"""Linear quantization in ONNX, and onnxruntime's elementwise operators, reductions and convolutions on quantized tensors.

Conversions to few bits and back are vector FLOPs. A product of 8-bit integers, signed or not, is recorded as int8; zero
points are subtracted from every operand element, and every result is scaled to its own range. An operator on quantized
tensors costs what the operator on floats costs, plus the conversions around it: three operations per operand element (two
without a zero point), six per result (five without a zero point).

Channels are last (`Nhwc...`, and all of `com.ms.internal.nhwc`) or in blocks (`com.microsoft.nchwc`); weights keep ONNX's
order, except that those of `NhwcConv` may have channels last too.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from graphflops.base.record import replace
from graphflops.cost import Estimate, data_dependent
from graphflops.dims import ceil_div, differ, meet, mod, same, total
from graphflops.rules.elementwise import WORK, Work
from graphflops.rules.matmul import matmul
from graphflops.rules.onnx import conv, entries
from graphflops.rules.onnx.activation import pointwise, rows_of
from graphflops.rules.onnx.entries import work
from graphflops.rules.onnx.movement import joined
from graphflops.rules.onnx.signal import resize_by_factors
from graphflops.rules.operands import Operands, takes
from graphflops.rules.quantized import DEQUANTIZE, QUANTIZE, activated, convert
from graphflops.rules.reduce import SOFTMAX, reduction
from graphflops.rules.registry import find, require, rule
from graphflops.rules.shapes import axis_of, only_result, replaced, results
from graphflops.tensor import UINT8, DType, TensorType


def channels_first(x: TensorType) -> TensorType:
    """The operand (batch, *sizes, channels) with its channels after the batch."""
    require(x.rank > 2, f"no spatial axes in {x}")
    return x.view((x.shape[0], x.shape[-1], *x.shape[1:-1]))


def to_the_end(x: TensorType) -> TensorType:
    """The operand (batch, channels, *sizes) with its channels at the end."""
    return x.view((x.shape[0], *x.shape[2:], x.shape[1]))


def moved(estimate: Estimate) -> Estimate:
    """The estimate with the channels of its results at the end."""
    out = tuple(to_the_end(x) if isinstance(x, TensorType) and x.rank > 2 else x for x in estimate.out)
    return replace(estimate, out=out)


def either_way(
    x: TensorType, *, price: Callable[..., Estimate], channels_last: int = 0, **geometry: Any
) -> Estimate:
    """The price of an operand with channels after the batch or last; the result has its channels in the same place."""
    return moved(price(channels_first(x), **geometry)) if channels_last else price(x, **geometry)


@rule("com.microsoft.FusedConv", "com.microsoft.nchwc.Conv", product=("x", "w")).takes("x w bias? added?")
def fused_convolution(of: Operands, *, activation: str = "", **geometry: Any) -> Estimate:
    """As Conv; then an optional addition and an activation."""
    product = conv.convolution(of.x, of.w, of.bias, **geometry)
    return activated(product, activation, int(of.added is not None)).plus(reads=(of.added,))


@rule("com.microsoft.NhwcConv", "com.microsoft.NhwcFusedConv", product=("x", "w"))
def channels_last_convolution(
    x: TensorType, w: TensorType, *operands: TensorType | None, **named: Any
) -> Estimate:
    """As FusedConv with channels last; the weight may have its channels last too."""
    turned = differ(w.shape[1] * named.get("group", 1), x.shape[-1])
    return moved(fused_convolution(channels_first(x), channels_first(w) if turned else w, *operands, **named))


@rule("com.microsoft.ConvTransposeWithDynamicPads", product=("x", "w")).takes("x w pads? bias?")
def transposed_convolution_with_pads(of: Operands, **geometry: Any) -> Estimate:
    """As ConvTranspose with pads as an operand; if they are unknown, so are the output sizes."""
    known = () if of.pads is None else entries.literals(of.pads)
    estimate = conv.transposed_convolution(of.x, of.w, of.bias, pads=known or (), **geometry)
    if known is None:
        out = only_result(estimate)
        sizes = (entries.unknown("unpadded", place) for place in range(2, of.x.rank))
        estimate = replace(estimate, out=(out.like((*out.shape[:2], *sizes)),))
    return estimate.plus(reads=(of.pads,))


@rule("com.microsoft.MaxpoolWithMask", kind="pooling")
def masked_max_pool(x: TensorType, mask: TensorType, **geometry: Any) -> Estimate:
    """As MaxPool, with a choice by the mask per window element."""
    pooled = conv.maxima(x, **geometry)
    return replace(pooled, vector_flops=2 * pooled.vector_flops, reads=(x, mask))


def turned(x: TensorType, *operands: TensorType | None, called: str, **attributes: Any) -> Estimate:
    """As the operator with channels after the batch."""
    found = find(f"onnx.{called}") or find(f"com.microsoft.{called}")
    assert found is not None
    return moved(found.price(found.key, channels_first(x), *operands, **attributes))


for _name in (
    *("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool", "GlobalMaxPool", "GlobalAveragePool"),
    *("GlobalLpPool", "BatchNormalization", "InstanceNormalization", "LRN", "DepthToSpace", "SpaceToDepth"),
    *("GridSample", "QLinearConv", "QLinearAveragePool"),
):
    rule(f"com.ms.internal.nhwc.{_name}").derived(turned, called=_name)
rule("com.microsoft.NhwcMaxPool", kind="pooling").derived(turned, results(0), called="MaxPool")


# Channels in blocks, whose sizes depend on the machine.

BLOCK = 16  # the largest block: a multiple of it is never padded


@rule("com.microsoft.nchwc.ReorderInput", kind="movement")
def reorder_input(x: TensorType, *, channels_last: int = 0) -> Estimate:
    """A copy into blocks of channels, padded to whole ones."""
    first = channels_first(x) if channels_last else x
    channels = first.shape[1]
    padded = channels if same(mod(channels, BLOCK), 0) else data_dependent("padded_channels")
    return Estimate((x.like((first.shape[0], padded, *first.shape[2:])),), reads=(x,))


@rule("com.microsoft.nchwc.ReorderOutput", kind="movement")
def reorder_output(x: TensorType, *, channels: int = 0, channels_last: int = 0) -> Estimate:
    """A copy out of blocks of channels, without their padding."""
    out = x.like((x.shape[0], channels or x.shape[1], *x.shape[2:]))
    return Estimate((to_the_end(out).like() if channels_last else out,), reads=(out,))


rule("com.microsoft.nchwc.Upsample", kind="resampling").derived(resize_by_factors, order="x")


NARROW = WORK["quantize_float"].flops


def quantizing(dtype: DType, zero_point: TensorType | None) -> int:
    """Operations per quantized element; one less without a zero point."""
    return NARROW if dtype.is_floating else QUANTIZE - (zero_point is None)


def meet_parameters(of: Operands, axis: int, block_size: int) -> None:
    """Requires one scale and zero point for all elements, for each place of an axis, or for each block of places."""
    x, *parameters = of
    for each in filter(None, parameters):
        if each.rank < 2 and not block_size and not differ(each.numel, 1):
            continue
        place = axis_of(axis, x.rank)
        own = x.shape[place : place + 1]
        if block_size:
            own = replaced(x.shape, place, ceil_div(x.shape[place], block_size))
        problem = f"a scale or zero point {each} for axis {axis} of {x}"
        require(each.rank == len(own), problem)
        for size, there in zip(each.shape, own, strict=True):
            meet(size, there, problem)
    if of.zero_point is not None:
        problem = f"a zero point {of.zero_point} beside a scale {of.scale}"
        meet(of.zero_point.numel, of.scale.numel, problem)


@rule("onnx.QuantizeLinear", "com.microsoft.QuantizeLinear").takes("x scale zero_point?")
def quantize_linear(of: Operands, *, axis: int = 1, block_size: int = 0, output_dtype: int = 0) -> Estimate:
    """Six operations per element, five without a zero point, whatever shares a scale."""
    meet_parameters(of, axis, block_size)
    named = entries.onnx_dtype(output_dtype) if output_dtype else UINT8
    dtype = named if of.zero_point is None else of.zero_point.dtype
    return convert(of.x, dtype, quantizing(dtype, of.zero_point), of.scale, of.zero_point)


@rule("onnx.DequantizeLinear", "com.microsoft.DequantizeLinear").takes("x scale zero_point?")
def dequantize_linear(of: Operands, *, axis: int = 1, block_size: int = 0, output_dtype: int = 0) -> Estimate:
    """Three operations per element, two without a zero point, whatever shares a scale."""
    meet_parameters(of, axis, block_size)
    dtype = entries.onnx_dtype(output_dtype) if output_dtype else of.scale.dtype
    return convert(of.x, dtype, DEQUANTIZE - (of.zero_point is None), of.scale, of.zero_point)


def quantized_product(
    product: Estimate,
    *zeroed: TensorType,
    dtype: DType,
    per_result: int = QUANTIZE,
    reads: entries.Touched = (),
) -> Estimate:
    """A product of quantized operands: a subtraction per element of `zeroed`, `per_result` operations per result."""
    out, factor = only_result(product), product.reads[0]
    assert isinstance(factor, TensorType)
    vector, kind = per_result * out.numel + total(x.numel for x in zeroed), entries.arithmetic(factor)
    return product.plus(out=(out.like(dtype=dtype),), vector_flops=vector, reads=reads, matrix_dtype=kind)


@rule("onnx.QLinearMatMul", product=("a", "b")).takes(
    "a a_scale a_zero_point b b_scale b_zero_point y_scale y_zero_point"
)
def qlinear_matmul(of: Operands) -> Estimate:
    """A product of integers; zero points taken off both operands, six operations to quantize each result."""
    entries.require_scales((*of.a.shape[:-1], 1), of.a_scale, of.a_zero_point, of.y_scale, of.y_zero_point)
    entries.require_scales((*of.b.shape[:-2], 1, of.b.shape[-1]), of.b_scale, of.b_zero_point)
    dtype = of.y_zero_point.dtype
    return quantized_product(matmul(of.a, of.b), of.a, of.b, dtype=dtype, reads=of.but("a b"))


@rule("onnx.QLinearConv", "com.microsoft.QLinearConv", product=("x", "w")).takes(
    "x x_scale x_zero_point w w_scale w_zero_point y_scale y_zero_point bias?; channels_last=0"
)
def qlinear_conv(of: Operands, **geometry: Any) -> Estimate:
    """A convolution of integers; zero points taken off both operands, six operations to quantize each result."""
    price = partial(conv.convolution, w=of.w, bias=of.bias, **geometry)
    product = either_way(of.x, price=price, channels_last=of.channels_last)
    entries.require_scales((), of.x_scale, of.x_zero_point, of.y_scale, of.y_zero_point)
    entries.require_scales(of.w.shape[:1], of.w_scale, of.w_zero_point)
    return quantized_product(product, of.x, of.w, dtype=of.y_zero_point.dtype, reads=of.but("x w bias"))


Quantized = tuple[TensorType, "TensorType | None"]  # a tensor and its zero point


def between(
    estimate: Estimate, operands: tuple[Quantized, ...], zero_point: TensorType | None, *scales: TensorType
) -> Estimate:
    """The estimate with the conversions before and after it; the result has the first operand's type."""
    entries.require_scales((), zero_point, *scales, *(zero for _, zero in operands))
    out = only_result(estimate).like(dtype=operands[0][0].dtype)
    conversions = sum((DEQUANTIZE - (zero is None)) * x.numel for x, zero in operands)
    conversions += quantizing(out.dtype, zero_point) * out.numel
    reads = (value for operand in operands for value in operand)
    return entries.fused((out,), estimate, work(conversions), reads=(*reads, *scales, zero_point))


@takes("a a_scale a_zero_point? b b_scale b_zero_point? c_scale c_zero_point?")
def binary(of: Operands, *, function: str) -> Estimate:
    """One operation per result."""
    operands, scales = ((of.a, of.a_zero_point), (of.b, of.b_zero_point)), of.named("a_scale b_scale c_scale")
    return between(pointwise(WORK[function], of.a, of.b), operands, of.c_zero_point, *scales)


rule("com.microsoft.QLinearAdd").derived(binary, function="add")
rule("com.microsoft.QLinearMul").derived(binary, function="mul")


@takes("x x_scale x_zero_point? y_scale y_zero_point?")
def unary(of: Operands, *, of_floats: Callable[..., Estimate], **attributes: Any) -> Estimate:
    """As on floating numbers, between a conversion of each element and one of each result."""
    found = of_floats(of.x, **attributes)
    return between(found, ((of.x, of.x_zero_point),), of.y_zero_point, of.x_scale, of.y_scale)


def _pointwise(x: TensorType, *, function: str, **attributes: object) -> Estimate:
    return pointwise(WORK[function], x)


def _softmax(x: TensorType, *, opset: int, axis: int = -1) -> Estimate:
    if opset < 13:  # over all axes from this one on
        rows_of(x, axis)
    else:
        axis_of(axis, x.rank)
    return pointwise(Work("softmax", SOFTMAX, 1), x)


for _name, _kind, _of_floats in (
    ("Sigmoid", None, partial(_pointwise, function="sigmoid")),
    ("LeakyRelu", None, partial(_pointwise, function="leaky_relu")),
    ("Softmax", "softmax", _softmax),
    ("ReduceMean", "reduction", lambda x, axes, keepdims: reduction(x, axes, bool(keepdims), final=1)),
    ("AveragePool", "pooling", partial(either_way, price=conv.average_pool)),
    ("GlobalAveragePool", None, partial(either_way, price=conv.global_average_pool)),
):
    rule(f"com.microsoft.QLinear{_name}", kind=_kind).derived(unary, of_floats=_of_floats)  # type: ignore[arg-type]


@rule("com.microsoft.QLinearWhere", kind="elementwise").takes(
    "condition x x_scale x_zero_point y y_scale y_zero_point z_scale z_zero_point"
)
def qlinear_where(of: Operands) -> Estimate:
    """One selection per result, between conversions of the operands and of the result."""
    choice = pointwise(WORK["where"], of.condition, of.x, of.y)
    operands = ((of.x, of.x_zero_point), (of.y, of.y_zero_point))
    found = between(choice, operands, of.z_zero_point, *of.named("x_scale y_scale z_scale"))
    return found.plus(reads=(of.condition,))


@rule("com.microsoft.QLinearConcat")
def qlinear_concat(y_scale: TensorType, y_zero_point: TensorType, *inputs: TensorType, axis: int) -> Estimate:
    """Joins tensors, each followed by its scale and zero point, after converting them to one scale."""
    count = len(inputs)
    require(count % 3 == 0, f"{count} operands are not triples of a tensor, a scale and a zero point")
    out = joined(inputs[::3], axis).like(dtype=y_zero_point.dtype)
    work = (DEQUANTIZE + QUANTIZE) * out.numel
    return Estimate((out,), vector_flops=work, reads=(y_scale, y_zero_point, *inputs))
