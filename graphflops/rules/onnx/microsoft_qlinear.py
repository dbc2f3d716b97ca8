"""onnxruntime's elementwise operators, reductions and convolutions on quantized tensors.

Each is the operator on floats between conversions: three operations per operand element (two without a zero point), six
per result (five without a zero point).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphflops.cost import Estimate
from graphflops.rules.onnx.activation import pointwise, rows_of
from graphflops.rules.onnx.fused import fused, work
from graphflops.rules.onnx.microsoft_channels import channels_first, moved
from graphflops.rules.onnx.movement import joined
from graphflops.rules.onnx.pool import average_pool, global_average_pool
from graphflops.rules.onnx.quantized import (
    dequantize_linear,
    dequantizing,
    qlinear_conv,
    quantize_linear,
    quantizing,
)
from graphflops.rules.quantized import DEQUANTIZE, QUANTIZE
from graphflops.rules.reduce import reduction
from graphflops.rules.registry import require, rule
from graphflops.rules.shapes import axis as axis_of
from graphflops.rules.shapes import only_result
from graphflops.rules.softmax import SOFTMAX
from graphflops.rules.work import WORK
from graphflops.rules.work_row import Work
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from graphflops.rules.onnx.windows import Ints

rule("com.microsoft.QuantizeLinear")(quantize_linear)
rule("com.microsoft.DequantizeLinear")(dequantize_linear)

Quantized = tuple[TensorType, "TensorType | None"]  # a tensor and its zero point


def between(
    estimate: Estimate, operands: tuple[Quantized, ...], zero_point: TensorType | None, *scales: TensorType
) -> Estimate:
    """The operator between its conversions; the result has the first operand's type."""
    out = only_result(estimate).like(dtype=operands[0][0].dtype)
    conversions = sum(dequantizing(zero) * x.numel for x, zero in operands)
    conversions += quantizing(out.dtype, zero_point) * out.numel
    reads = (value for operand in operands for value in operand)
    return fused((out,), estimate, work(conversions), reads=(*reads, *scales, zero_point))


def register_binary(name: str) -> None:
    """Register a function of two operands, each with its scale and zero point behind it."""
    work = WORK[name.lower()]

    @rule(f"com.microsoft.QLinear{name}")
    def binary(
        a: TensorType,
        a_scale: TensorType,
        a_zero_point: TensorType | None,
        b: TensorType,
        b_scale: TensorType,
        b_zero_point: TensorType | None,
        c_scale: TensorType,
        c_zero_point: TensorType | None = None,
    ) -> Estimate:
        """One operation per result."""
        operands = ((a, a_zero_point), (b, b_zero_point))
        return between(pointwise(work, a, b), operands, c_zero_point, a_scale, b_scale, c_scale)


for _name in ("Add", "Mul"):
    register_binary(_name)


def register_unary(name: str, row: str) -> None:
    """Register a function of one operand by its row of the table of work."""

    @rule(f"com.microsoft.QLinear{name}")
    def unary(
        x: TensorType,
        x_scale: TensorType,
        x_zero_point: TensorType | None,
        y_scale: TensorType,
        y_zero_point: TensorType | None = None,
        **attributes: object,
    ) -> Estimate:
        """The function's work per element, between the conversions."""
        return between(pointwise(WORK[row], x), ((x, x_zero_point),), y_zero_point, x_scale, y_scale)


register_unary("Sigmoid", "sigmoid")
register_unary("LeakyRelu", "leaky_relu")


@rule("com.microsoft.QLinearSoftmax", kind="softmax")
def qlinear_softmax(
    x: TensorType,
    x_scale: TensorType,
    x_zero_point: TensorType | None,
    y_scale: TensorType,
    y_zero_point: TensorType,
    *,
    opset: int,
    axis: int = -1,
) -> Estimate:
    """Softmax along an axis, or from it on as before version 13 of ONNX."""
    if opset < 13:
        rows_of(x, axis)
    else:
        axis_of(axis, x.rank)
    estimate = pointwise(Work("softmax", SOFTMAX, 1), x)
    return between(estimate, ((x, x_zero_point),), y_zero_point, x_scale, y_scale)


@rule("com.microsoft.QLinearReduceMean", kind="reduction")
def qlinear_reduce_mean(
    x: TensorType,
    x_scale: TensorType,
    x_zero_point: TensorType | None,
    y_scale: TensorType,
    y_zero_point: TensorType | None = None,
    *,
    axes: Ints,
    keepdims: int,
) -> Estimate:
    """An addition per element and a division per result."""
    mean = reduction(x, axes, bool(keepdims), final=1)
    return between(mean, ((x, x_zero_point),), y_zero_point, x_scale, y_scale)


@rule("com.microsoft.QLinearWhere", kind="elementwise")
def qlinear_where(
    condition: TensorType,
    x: TensorType,
    x_scale: TensorType,
    x_zero_point: TensorType,
    y: TensorType,
    y_scale: TensorType,
    y_zero_point: TensorType,
    z_scale: TensorType,
    z_zero_point: TensorType,
) -> Estimate:
    """One selection per result, between conversions of the operands and of the result."""
    choice = pointwise(WORK["where"], condition, x, y)
    operands = ((x, x_zero_point), (y, y_zero_point))
    return between(choice, operands, z_zero_point, condition, x_scale, y_scale, z_scale)


@rule("com.microsoft.QLinearConcat")
def qlinear_concat(y_scale: TensorType, y_zero_point: TensorType, *inputs: TensorType, axis: int) -> Estimate:
    """Joins tensors, each followed by its scale and zero point, after converting them to one scale."""
    require(
        len(inputs) % 3 == 0, f"{len(inputs)} operands are not triples of a tensor, a scale and a zero point"
    )
    out = joined(inputs[::3], axis).like(dtype=y_zero_point.dtype)
    return Estimate(
        (out,), vector_flops=(DEQUANTIZE + QUANTIZE) * out.numel, reads=(y_scale, y_zero_point, *inputs)
    )


@rule("com.microsoft.QLinearAveragePool", kind="pooling")
def qlinear_average_pool(
    x: TensorType,
    x_scale: TensorType,
    x_zero_point: TensorType | None,
    y_scale: TensorType,
    y_zero_point: TensorType | None = None,
    *,
    kernel_shape: Ints,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    channels_last: int = 0,
    pads: Ints = (),
    strides: Ints = (),
) -> Estimate:
    """An addition per window element and a division per result."""
    first = channels_first(x) if channels_last else x
    pooled = average_pool(
        first, kernel_shape=kernel_shape, auto_pad=auto_pad, ceil_mode=ceil_mode, pads=pads, strides=strides
    )
    pooled = moved(pooled) if channels_last else pooled
    return between(pooled, ((x, x_zero_point),), y_zero_point, x_scale, y_scale)


@rule("com.microsoft.QLinearGlobalAveragePool")
def qlinear_global_average_pool(
    x: TensorType,
    x_scale: TensorType,
    x_zero_point: TensorType,
    y_scale: TensorType,
    y_zero_point: TensorType,
    *,
    channels_last: int = 0,
) -> Estimate:
    """An addition per element and a division per channel."""
    pooled = global_average_pool(channels_first(x) if channels_last else x)
    pooled = moved(pooled) if channels_last else pooled
    return between(pooled, ((x, x_zero_point),), y_zero_point, x_scale, y_scale)


@rule("com.microsoft.QLinearConv", product=("x", "w"))
def qlinear_conv_either_way(
    x: TensorType,
    x_scale: TensorType,
    x_zero_point: TensorType,
    w: TensorType,
    *operands: TensorType,
    channels_last: int = 0,
    **geometry: Any,
) -> Estimate:
    """As QLinearConv, with channels first or last."""
    first = channels_first(x) if channels_last else x
    product = qlinear_conv(first, x_scale, x_zero_point, w, *operands, **geometry)
    return moved(product) if channels_last else product
