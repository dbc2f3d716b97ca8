"""Fake quantization: quantize and dequantize in one operator, so that training sees the rounding errors."""

from __future__ import annotations

from graphflops.cost import Estimate, Value
from graphflops.rules.elementwise import differentiate
from graphflops.rules.operands import Operands, takes
from graphflops.rules.quantized import MIN_MAX, convert
from graphflops.rules.registry import Derived, backward, rule
from graphflops.rules.shapes import only_result, tensors_of
from graphflops.rules.work import WORK
from graphflops.tensor import BOOL, TensorType

KIND = "elementwise"

# Operations per element.
ROUND = 3  # multiply by the inverse scale 1, round 1, add the zero point 1
FAKE_QUANTIZE = WORK["fake_quantize"].flops
MASK = 3  # two comparisons and their conjunction


@rule(
    *("aten.fake_quantize_per_tensor_affine", "aten.fake_quantize_per_channel_affine"),
    *("aten._fake_quantize_learnable_per_tensor_affine", "aten._fake_quantize_learnable_per_channel_affine"),
    "quantized_decomposed.fake_quant_per_channel",
)
def fake_quantize(x: TensorType, scale: Value, zero_point: Value) -> Estimate:
    """Seven operations per element."""
    return convert(x, x.dtype, FAKE_QUANTIZE, scale, zero_point)


def with_mask(quantized: Estimate) -> Estimate:
    """The estimate with a mask of the elements within the range as a second result."""
    out = only_result(quantized)
    vector = quantized.vector_flops + MASK * out.numel
    return Estimate((out, out.like(dtype=BOOL)), 0, vector, reads=quantized.reads)


# The gradient passes for elements within the range; the mask is recomputed.
backward(
    "aten.fake_quantize_per_tensor_affine",
    "aten.fake_quantize_per_channel_affine",
    "quantized_decomposed.fake_quant_per_channel",
)(differentiate(WORK["fake_quantize"], "x"))


rule("aten.fake_quantize_per_tensor_affine_cachemask fake_quantize_per_channel_affine_cachemask").derived(
    fake_quantize, with_mask
)


@rule("aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams")
def fake_quantize_per_tensor_mask_qparams(
    x: TensorType, scale: TensorType, zero_point: TensorType, fake_quant_enabled: TensorType
) -> Estimate:
    """Seven operations per element, and three for the mask."""
    return with_mask(convert(x, x.dtype, FAKE_QUANTIZE, scale, zero_point, fake_quant_enabled))


@rule(
    "aten.fake_quantize_per_tensor_affine_cachemask_backward",
    "aten.fake_quantize_per_channel_affine_cachemask_backward",
)
def fake_quantize_backward(grad: TensorType, mask: TensorType) -> Estimate:
    """One selection per element."""
    return convert(grad, grad.dtype, 1, mask)


# With a learned scale and zero point.


@rule(
    "aten._fake_quantize_learnable_per_tensor_affine_backward",
    "aten._fake_quantize_learnable_per_channel_affine_backward",
)
def fake_quantize_learnable_backward(
    grad: TensorType, x: TensorType, scale: TensorType, zero_point: TensorType
) -> Estimate:
    """Recomputes rounding and mask; then a selection for x, four operations for the scale, three for the zero point."""
    vector = (ROUND + MASK + 1 + 4 + 3) * x.numel
    return Estimate(
        (x.like(), scale.like(), zero_point.like()), 0, vector, reads=(grad, x, scale, zero_point)
    )


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
