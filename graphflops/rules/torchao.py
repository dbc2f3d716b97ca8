"""Operators of torchao, which quantises in blocks, and how a program reaches into a quantised weight."""

from __future__ import annotations

from graphflops.cost import Estimate, Value, free
from graphflops.dims import Dim, floor_div, same
from graphflops.rules.quantized import DEQUANTIZE, MIN_MAX, QUANTIZE, convert
from graphflops.rules.registry import require, rule
from graphflops.tensor import FLOAT8, FLOAT32, INT32, DType, TensorType

KIND = "quantisation"

Sizes = tuple[Dim, ...]

_FLOAT8_E4M3 = next(dtype for dtype in FLOAT8 if dtype.name == "float8_e4m3fn")


@rule("export.access_subclass_inner_tensor")
def access_subclass_inner_tensor(x: TensorType) -> Estimate:
    """One of the plain tensors of a tensor subclass; only the file knows its type."""
    return free(None)


@rule("torchao.quantize_affine")
def quantize_affine(
    x: TensorType,
    block_size: Sizes,
    scale: TensorType,
    zero_point: TensorType | None,
    output_dtype: DType,
    quant_min: Value = None,
    quant_max: Value = None,
) -> Estimate:
    """Six operations per element, five without zero points."""
    return convert(x, output_dtype, QUANTIZE - (zero_point is None), scale, zero_point)


@rule("torchao.dequantize_affine")
def dequantize_affine(
    x: TensorType,
    block_size: Sizes,
    scale: TensorType,
    zero_point: TensorType | None,
    input_dtype: DType,
    quant_min: Value = None,
    quant_max: Value = None,
    output_dtype: DType = FLOAT32,
) -> Estimate:
    """Three operations per element, two without zero points."""
    return convert(x, output_dtype, DEQUANTIZE - (zero_point is None), scale, zero_point)


@rule("torchao.quantize_affine_float8_non_decomposed")
def quantize_affine_float8(x: TensorType, scale: TensorType, float8_dtype: DType = _FLOAT8_E4M3) -> Estimate:
    """Four operations per element: divide, clamp, convert; floating numbers need no rounding of their own."""
    return convert(x, float8_dtype, 1 + 2 + 1, scale)


@rule("torchao.dequantize_affine_float8_non_decomposed")
def dequantize_affine_float8(x: TensorType, scale: TensorType, output_dtype: DType = FLOAT32) -> Estimate:
    """Two operations per element: convert and multiply."""
    return convert(x, output_dtype, 1 + 1, scale)


@rule("torchao.choose_qparams_affine")
def choose_qparams_affine(
    x: TensorType,
    mapping_type: str,
    block_size: Sizes,
    target_dtype: DType,
    quant_min: Value = None,
    quant_max: Value = None,
    eps: float | None = None,
    scale_dtype: DType | None = None,
    zero_point_dtype: DType | None = None,
    keepdim: bool = False,
) -> Estimate:
    """Minimum and maximum of each block; computing the parameters from them is not counted."""
    shape = blocks(x, block_size, keepdim)
    out = (x.like(shape, scale_dtype), x.like(shape, zero_point_dtype or INT32))
    return Estimate(out, vector_flops=MIN_MAX * x.numel, reads=(x,))


@rule("torchao.choose_scale_float8")
def choose_scale_float8(
    x: TensorType,
    block_size: Sizes,
    float8_dtype: DType = _FLOAT8_E4M3,
    scale_dtype: DType = FLOAT32,
    hp_value_lb: float | None = None,
    hp_value_ub: float | None = None,
) -> Estimate:
    """The largest absolute value of each block."""
    out = x.like(map(floor_div, x.shape, block_size), FLOAT32)
    return Estimate((out,), vector_flops=MIN_MAX * x.numel, reads=(x,))


def blocks(x: TensorType, block_size: Sizes, keepdim: bool) -> Sizes:
    """The number of blocks along each axis; without `keepdim` an axis of one block is dropped."""
    require(len(block_size) == x.rank, f"blocks of {len(block_size)} axes do not fit a tensor of {x.rank}")
    shape: list[Dim] = []
    for size, block in zip(x.shape, block_size, strict=True):
        if not same(size, block) or same(block, 1):
            shape.append(floor_div(size, block))
        elif keepdim:
            shape.append(1)
    return tuple(shape)
