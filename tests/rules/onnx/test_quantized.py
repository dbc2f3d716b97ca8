"""Conversion to few bits and back, and products of quantized operands."""

from __future__ import annotations

import pytest

from graphflops.dims import symbol
from graphflops.tensor import BFLOAT16, FLOAT4, FLOAT8, FLOAT16, FLOAT32, INT4, INT8, INT16, UINT8
from tests.support import price, shapes, t

S, Z = t(), t(dtype=UINT8)


@pytest.mark.parametrize(
    "operands, attributes, dtype, per_element",
    [
        ((S,), {}, UINT8, 5),
        ((S, t(dtype=INT8)), {}, INT8, 6),
        ((t(6), t(6, dtype=INT16)), {"axis": 1}, INT16, 6),
        ((t(4, 2), t(4, 2, dtype=INT4)), {"axis": 1, "block_size": 3}, INT4, 6),
        ((S,), {"output_dtype": 3}, INT8, 5),
        ((S, t(dtype=FLOAT8[0])), {"saturate": 1}, FLOAT8[0], 4),
        ((S,), {"output_dtype": 23}, FLOAT4, 4),
    ],
)
def test_quantize(operands, attributes, dtype, per_element) -> None:
    estimate = price("onnx.QuantizeLinear", t(4, 6), *operands, **attributes)
    (out,) = estimate.out
    assert (out.shape, out.dtype) == ((4, 6), dtype)
    assert estimate.vector_flops == 24 * per_element
    assert estimate.matrix_flops == 0


@pytest.mark.parametrize(
    "operands, attributes, dtype, per_element",
    [
        ((S,), {}, FLOAT32, 2),
        ((t(dtype=FLOAT16), Z), {}, FLOAT16, 3),
        ((t(4, 2), t(4, 2, dtype=UINT8)), {"axis": 1, "block_size": 3}, FLOAT32, 3),
        ((t(dtype=FLOAT8[4]),), {"output_dtype": 16}, BFLOAT16, 2),
    ],
)
def test_dequantize(operands, attributes, dtype, per_element) -> None:
    estimate = price("onnx.DequantizeLinear", t(4, 6, dtype=UINT8), *operands, **attributes)
    (out,) = estimate.out
    assert (out.shape, out.dtype, estimate.vector_flops) == ((4, 6), dtype, 24 * per_element)


def test_dequantize_reads_packed_weights() -> None:
    weight, scales = t(128, 64, dtype=INT4), t(128, 2)
    cost = price("onnx.DequantizeLinear", weight, scales, axis=1, block_size=32).cost
    assert cost.read_bytes == 128 * 64 // 2 + 128 * 2 * 4
    assert cost.written_bytes == 128 * 64 * 4


def test_dynamic_quantization_takes_the_range_first() -> None:
    n = symbol("n")
    estimate = price("onnx.DynamicQuantizeLinear", t("n", 8))
    assert [(x.shape, x.dtype) for x in estimate.out] == [((n, 8), UINT8), ((), FLOAT32), ((), UINT8)]
    assert estimate.vector_flops == (2 + 6) * 8 * n


def test_quantized_products_count_like_others() -> None:
    a, b = t(4, 64, dtype=UINT8), t(64, 128, dtype=INT8)
    estimate = price("onnx.QLinearMatMul.21", a, S, Z, b, t(128), t(128, dtype=INT8), S, Z)
    assert estimate.matrix_flops == 2 * 4 * 64 * 128 == 65_536
    assert estimate.matrix_dtype is INT8
    assert estimate.vector_flops == 6 * 4 * 128 + 4 * 64 + 64 * 128
    assert estimate.cost.read_bytes == 4 * 64 + 64 * 128 + (4 + 1) + 128 * (4 + 1) + (4 + 1)
    assert estimate.out[0].dtype is UINT8


def test_quantized_convolution() -> None:
    x, w = t(1, 3, 32, 32, dtype=UINT8), t(16, 3, 3, 3, dtype=INT8)
    parameters = (x, S, Z, w, t(16), t(16, dtype=INT8), S, Z, t(16, dtype="int32"))
    estimate = price("onnx.QLinearConv", *parameters, strides=(2, 2), pads=(1, 1, 1, 1))
    assert shapes(estimate) == [(1, 16, 16, 16)]
    assert estimate.matrix_flops == 221_184
    assert estimate.matrix_dtype is INT8
    assert estimate.vector_flops == (6 + 1) * 16 * 256 + 3 * 1024 + 16 * 27


def test_integer_products_are_int8_whatever_the_sign() -> None:
    product = price("onnx.MatMulInteger", t(4, 64, dtype=UINT8), t(64, 128, dtype=INT8), Z)
    assert (product.matrix_flops, product.matrix_dtype) == (65_536, INT8)
    conv = price("onnx.ConvInteger", t(1, 3, 8, 8, dtype=UINT8), t(4, 3, 3, 3, dtype=UINT8))
    assert conv.matrix_dtype is INT8
