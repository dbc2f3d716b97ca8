"""Linear quantization in ONNX: conversion to few bits and back, and products of quantized operands.

Conversions are vector FLOPs. A product of 8-bit integers, signed or not, is recorded as int8; zero points are
subtracted from every operand element, and every result is scaled to its own range.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from graphflops.cost import Estimate
from graphflops.dims import total
from graphflops.rules.matmul import matmul
from graphflops.rules.onnx.conv import convolution
from graphflops.rules.onnx.entries import onnx_dtype
from graphflops.rules.onnx.fused import arithmetic
from graphflops.rules.quantized import DEQUANTIZE, MIN_MAX, QUANTIZE, convert
from graphflops.rules.registry import rule
from graphflops.rules.shapes import only_result
from graphflops.rules.work import WORK
from graphflops.tensor import UINT8, TensorType

if TYPE_CHECKING:
    from graphflops.rules.onnx.fused import Touched
    from graphflops.tensor import DType

NARROW = WORK["quantize_float"].flops


def quantizing(dtype: DType, zero_point: TensorType | None) -> int:
    """Operations per quantized element; one less without a zero point."""
    return NARROW if dtype.is_floating else QUANTIZE - (zero_point is None)


def dequantizing(zero_point: TensorType | None) -> int:
    """Operations per dequantized element."""
    return DEQUANTIZE - (zero_point is None)


@rule("onnx.QuantizeLinear")
def quantize_linear(
    x: TensorType, y_scale: TensorType, y_zero_point: TensorType | None = None, *, output_dtype: int = 0
) -> Estimate:
    """Six operations per element, five without a zero point, whatever shares a scale."""
    named = onnx_dtype(output_dtype) if output_dtype else UINT8
    dtype = named if y_zero_point is None else y_zero_point.dtype
    return convert(x, dtype, quantizing(dtype, y_zero_point), y_scale, y_zero_point)


@rule("onnx.DequantizeLinear")
def dequantize_linear(
    x: TensorType, x_scale: TensorType, x_zero_point: TensorType | None = None, *, output_dtype: int = 0
) -> Estimate:
    """Three operations per element, two without a zero point, whatever shares a scale."""
    dtype = onnx_dtype(output_dtype) if output_dtype else x_scale.dtype
    return convert(x, dtype, dequantizing(x_zero_point), x_scale, x_zero_point)


@rule("onnx.DynamicQuantizeLinear")
def dynamic_quantize_linear(x: TensorType) -> Estimate:
    """The smallest and the largest element, then six operations on each; one scale and one zero point."""
    out = (x.like(dtype=UINT8), x.like(()), x.like((), UINT8))
    return Estimate(out, vector_flops=(MIN_MAX + QUANTIZE) * x.numel, reads=(x,))


def quantized_product(
    product: Estimate,
    *zeroed: TensorType,
    dtype: DType,
    per_result: int = QUANTIZE,
    reads: Touched = (),
) -> Estimate:
    """A product of quantized operands: a subtraction per element of `zeroed`, `per_result` operations per result."""
    out, factor = only_result(product), product.reads[0]
    assert isinstance(factor, TensorType)
    vector = per_result * out.numel + total(x.numel for x in zeroed)
    return replace(
        product,
        out=(out.like(dtype=dtype),),
        vector_flops=product.vector_flops + vector,
        reads=(*product.reads, *reads),
        matrix_dtype=arithmetic(factor),
    )


@rule("onnx.QLinearMatMul", product=("a", "b"))
def qlinear_matmul(
    a: TensorType,
    a_scale: TensorType,
    a_zero_point: TensorType,
    b: TensorType,
    b_scale: TensorType,
    b_zero_point: TensorType,
    y_scale: TensorType,
    y_zero_point: TensorType,
) -> Estimate:
    """A product of integers; zero points taken off both operands, six operations to quantize each result."""
    parameters = (a_scale, a_zero_point, b_scale, b_zero_point, y_scale, y_zero_point)
    return quantized_product(matmul(a, b), a, b, dtype=y_zero_point.dtype, reads=parameters)


@rule("onnx.QLinearConv", product=("x", "w"))
def qlinear_conv(
    x: TensorType,
    x_scale: TensorType,
    x_zero_point: TensorType,
    w: TensorType,
    w_scale: TensorType,
    w_zero_point: TensorType,
    y_scale: TensorType,
    y_zero_point: TensorType,
    bias: TensorType | None = None,
    **geometry: Any,
) -> Estimate:
    """A convolution of integers; zero points taken off both operands, six operations to quantize each result."""
    parameters = (x_scale, x_zero_point, w_scale, w_zero_point, y_scale, y_zero_point)
    product = convolution(x, w, bias, **geometry)
    return quantized_product(product, x, w, dtype=y_zero_point.dtype, reads=parameters)
