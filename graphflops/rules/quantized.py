"""Conversion of numbers to few bits and back.

Element types that torch marks as quantized stand for the integers they are stored in.
"""

from __future__ import annotations

from graphflops.cost import Estimate, Value
from graphflops.dims import prod
from graphflops.rules.elementwise import differentiate
from graphflops.rules.operands import Operands, takes
from graphflops.rules.registry import Derived, backward, rule
from graphflops.rules.shapes import only_result, tensors_of
from graphflops.rules.work import WORK
from graphflops.tensor import BOOL, FLOAT32, FLOAT64, INT8, INT64, DType, TensorType

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


@rule(
    "quantized_decomposed.quantize_per_tensor quantize_per_channel quantize_per_channel_group quantize_per_token",
    "aten.quantize_per_tensor quantize_per_channel",
)
@takes("x scale= zero_point= * dtype? quant_min? quant_max?")
def quantize(of: Operands) -> Estimate:
    """Six operations per element."""
    return convert(of.x, of.dtype or INT8, QUANTIZE, *of.but("x dtype"))


@rule(
    "quantized_decomposed.dequantize_per_tensor dequantize_per_channel dequantize_per_channel_group dequantize_per_token"
)
@takes("x scale= zero_point? * out_dtype? output_dtype?")
def dequantize_decomposed(of: Operands) -> Estimate:
    """Three operations per element, two without zero points."""
    dtype = of.out_dtype or of.output_dtype or FLOAT32
    return convert(of.x, dtype, DEQUANTIZE - (of.zero_point is None), of.scale, of.zero_point)


@rule("quantized_decomposed.convert_element_type")
def convert_element_type(x: TensorType, dtype: DType) -> Estimate:
    """One conversion per element."""
    return convert(x, dtype, 1 if dtype != x.dtype else 0)


@rule(
    "quantized_decomposed.choose_qparams_per_token choose_qparams_per_token_asymmetric",
    "quantized_decomposed._choose_qparams_per_token_asymmetric_impl",
)
def choose_qparams_per_token(x: TensorType) -> Estimate:
    """Two operations per element: minimum and maximum, or absolute value and maximum."""
    out = tuple(x.like((*x.shape[:-1], 1), dtype) for dtype in (FLOAT64, INT64))
    return Estimate(out, vector_flops=MIN_MAX * x.numel, reads=(x,))


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


@rule("aten.quantize_per_tensor.tensors")
def quantize_tensors(
    tensors: Tensors, scales: TensorType, zero_points: TensorType, dtype: DType | None
) -> Estimate:
    """Six operations per element of each tensor."""
    count = sum(x.numel for x in tensors)
    out = tuple(x.like(dtype=dtype or INT8) for x in tensors)
    return Estimate(out, 0, QUANTIZE * count, reads=(*tensors, scales, zero_points))


@rule("aten.dequantize.tensors")
def dequantize_tensors(tensors: Tensors) -> Estimate:
    """Three operations per element of each tensor."""
    out = tuple(x.like(dtype=FLOAT32) for x in tensors)
    return Estimate(out, 0, DEQUANTIZE * sum(x.numel for x in tensors), reads=tensors)


# Fake quantization: quantize and dequantize in one operator, so that training sees the rounding errors.

KIND = "elementwise"

# Operations per element.
ROUND = 3  # multiply by the inverse scale 1, round 1, add the zero point 1
FAKE_QUANTIZE = WORK["fake_quantize"].flops
MASK = 3  # two comparisons and their conjunction


def with_mask(quantized: Estimate) -> Estimate:
    """The estimate with a mask of the elements within the range as a second result."""
    out = only_result(quantized)
    vector = quantized.vector_flops + MASK * out.numel
    return Estimate((out, out.like(dtype=BOOL)), 0, vector, reads=quantized.reads)


# The gradient passes for elements within the range; the mask is recomputed.
backward(
    "aten.fake_quantize_per_tensor_affine fake_quantize_per_channel_affine",
    "quantized_decomposed.fake_quant_per_channel",
)(differentiate(WORK["fake_quantize"], "x"))


# With a range that follows the data.


@rule("aten.fused_moving_avg_obs_fake_quant")
@takes("x observer_on fake_quant_on running_min running_max scale zero_point")
def observe_and_quantize(of: Operands) -> Estimate:
    """Observes the range, then seven operations per element; both switches are assumed to be on."""
    return convert(of.x, of.x.dtype, MIN_MAX + FAKE_QUANTIZE, *of.but("x"))


def with_state(masked: Estimate) -> Estimate:
    """The estimate with the updated range, scale and zero point, its last four reads, as further results."""
    state = tensors_of(masked.reads[-4:])
    return Estimate(
        (*masked.out, *(value.like() for value in state)), 0, masked.vector_flops, reads=masked.reads
    )


_observed = Derived(observe_and_quantize, with_mask)
rule("aten._fused_moving_avg_obs_fq_helper")(_observed)
rule("aten._fused_moving_avg_obs_fq_helper_functional").derived(_observed, with_state)
