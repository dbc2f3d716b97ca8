"""Conversion of numbers to few bits and back.

Element types that torch marks as quantized stand for the integers they are stored in.
"""

from __future__ import annotations

from graphflops.cost import Estimate, Value
from graphflops.dims import Dim, prod
from graphflops.rules.operands import Operands, takes
from graphflops.rules.registry import rule
from graphflops.rules.work import WORK
from graphflops.tensor import FLOAT32, FLOAT64, INT8, INT64, DType, TensorType

KIND = "quantisation"

Tensors = tuple[TensorType, ...]

# Operations per element.
QUANTIZE = WORK["quantize"].flops
DEQUANTIZE = WORK["dequantize"].flops
MIN_MAX = 2  # both extremes


def convert(x: TensorType, dtype: DType | None, per_element: int, *parameters: Value) -> Estimate:
    """A conversion with `per_element` operations that reads the tensors among its parameters."""
    reads = (x, *(value for value in parameters if isinstance(value, TensorType)))
    return Estimate((x.like(dtype=dtype),), vector_flops=per_element * x.numel, reads=reads)


# Operators of torch.export: quantized tensors are plain integer tensors.


def quantize(
    x: TensorType,
    scale: Value,
    zero_point: Value,
    *,
    dtype: DType | None = None,
    quant_min: Value = None,
    quant_max: Value = None,
) -> Estimate:
    """Six operations per element."""
    return convert(x, dtype or INT8, QUANTIZE, scale, zero_point, quant_min, quant_max)


for _name in ("tensor", "channel", "channel_group", "token"):
    rule(f"quantized_decomposed.quantize_per_{_name}")(quantize)


@rule(
    *(
        f"quantized_decomposed.dequantize_per_{part}"
        for part in ("tensor", "channel", "channel_group", "token")
    )
)
def dequantize_decomposed(
    x: TensorType,
    scale: Value,
    zero_point: Value,
    *,
    out_dtype: DType | None = None,
    output_dtype: DType | None = None,
) -> Estimate:
    """Three operations per element, two without zero points."""
    dtype = out_dtype or output_dtype or FLOAT32
    return convert(x, dtype, DEQUANTIZE - (zero_point is None), scale, zero_point)


@rule("quantized_decomposed.convert_element_type")
def convert_element_type(x: TensorType, dtype: DType) -> Estimate:
    """One conversion per element."""
    return convert(x, dtype, 1 if dtype != x.dtype else 0)


@rule("quantized_decomposed.choose_qparams", "quantized_decomposed.choose_qparams_symmetric")
def choose_qparams(x: TensorType) -> Estimate:
    """Minimum and maximum; computing the parameters from them is not counted."""
    return _range(x, (1,))


@rule(
    "quantized_decomposed.choose_qparams_per_token choose_qparams_per_token_asymmetric",
    "quantized_decomposed._choose_qparams_per_token_asymmetric_impl",
)
def choose_qparams_per_token(x: TensorType) -> Estimate:
    """Two operations per element: minimum and maximum, or absolute value and maximum."""
    return _range(x, (*x.shape[:-1], 1))


def _range(x: TensorType, shape: tuple[Dim, ...]) -> Estimate:
    """A scale and a zero point for each range of elements."""
    return Estimate(
        (x.like(shape, FLOAT64), x.like(shape, INT64)), vector_flops=MIN_MAX * x.numel, reads=(x,)
    )


@takes("weight weight_scales weight_zero_points? indices")
def embedding(of: Operands, *, dtype: DType | None = None, packed: int) -> Estimate:
    """Three operations per element looked up, two without zero points."""
    weight, weight_scales, weight_zero_points, indices = of
    out = weight_scales.like((*indices.shape, weight.shape[1] * packed), dtype)
    per_row = [x.shape[1:] for x in (weight_scales, weight_zero_points) if x is not None]
    scales = weight_scales.like((*indices.shape, sum(prod(shape) for shape in per_row)))
    rows = weight.like((*indices.shape, weight.shape[1]))
    per_element = DEQUANTIZE - (weight_zero_points is None)
    return Estimate((out,), 0, per_element * out.numel, reads=(rows, scales, indices))


_OPERANDS = "weight weight_scales weight_zero_points _ _ indices"
for _name, _packed in (("embedding_byte", 1), ("embedding_4bit", 2), ("embedding_2bit", 4)):
    rule(f"quantized_decomposed.{_name}").derived(embedding, order=_OPERANDS, packed=_packed)


# Operators on tensors that carry their scale.


rule("aten.quantize_per_tensor", "aten.quantize_per_channel")(quantize)


@rule("aten.quantize_per_tensor.tensors")
def quantize_tensors(
    tensors: Tensors, scales: TensorType, zero_points: TensorType, dtype: DType | None
) -> Estimate:
    """Six operations per element of each tensor."""
    count = sum(x.numel for x in tensors)
    out = tuple(x.like(dtype=dtype or INT8) for x in tensors)
    return Estimate(out, 0, QUANTIZE * count, reads=(*tensors, scales, zero_points))


@rule("aten.quantize_per_tensor_dynamic")
def quantize_per_tensor_dynamic(x: TensorType, dtype: DType | None) -> Estimate:
    """Minimum and maximum, then six operations per element."""
    return convert(x, dtype or INT8, QUANTIZE + MIN_MAX)


@rule("aten.dequantize")
def dequantize(x: TensorType) -> Estimate:
    """Three operations per element."""
    return convert(x, FLOAT32, DEQUANTIZE)


@rule("aten.dequantize.tensors")
def dequantize_tensors(tensors: Tensors) -> Estimate:
    """Three operations per element of each tensor."""
    out = tuple(x.like(dtype=FLOAT32) for x in tensors)
    return Estimate(out, 0, DEQUANTIZE * sum(x.numel for x in tensors), reads=tensors)


@rule("aten.int_repr", "aten._make_per_tensor_quantized_tensor", "aten._make_per_channel_quantized_tensor")
def int_repr(x: TensorType, scale: Value = None, zero_point: Value = None) -> Estimate:
    """A copy of the stored integers."""
    return convert(x, x.dtype, 0, scale, zero_point)
