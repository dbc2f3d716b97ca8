"""Backward operators of convolutions, as graphs of a training step contain them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.cost import Estimate
from graphflops.rules.conv import Shape, multiply_adds
from graphflops.rules.matmul import Mask, additions, flops_of
from graphflops.rules.registry import rule

if TYPE_CHECKING:
    from graphflops.tensor import TensorType

KIND = "convolution"


def gradients(
    grad: TensorType, x: TensorType, weight: TensorType, transposed: bool, wanted: Mask, bias: Shape
) -> Estimate:
    """The forward's product for the input and again for the weight, a sum over positions for the bias."""
    wants_x, wants_weight, wants_bias = wanted
    product = flops_of(multiply_adds(x, grad, weight, transposed), x.dtype)
    return Estimate(
        (
            x.like() if wants_x else None,
            weight.like() if wants_weight else None,
            weight.like(bias) if wants_bias else None,
        ),
        matrix_flops=(wants_x + wants_weight) * product,
        vector_flops=additions(grad) if wants_bias else 0,
        reads=(grad, weight if wants_x else None, x if wants_weight else None),
    )


@rule(
    *("aten.convolution_backward", "aten.convolution_backward_overrideable"),
    "aten._slow_conv2d_backward.output_mask",
)
def convolution_backward(
    grad: TensorType,
    x: TensorType,
    weight: TensorType,
    *,
    bias_sizes: Shape | None = None,
    transposed: bool = False,
    output_mask: Mask,
) -> Estimate:
    """Twice the forward's work for both gradients, whatever the groups."""
    return gradients(grad, x, weight, transposed, output_mask, bias_sizes or grad.shape[1:2])


@rule("aten._convolution_double_backward")
def convolution_double_backward(
    gg_x: TensorType | None,
    gg_weight: TensorType | None,
    gg_bias: TensorType | None,
    grad: TensorType,
    weight: TensorType,
    x: TensorType,
    *,
    transposed: bool,
    output_mask: Mask,
) -> Estimate:
    """The forward's product for each term: two in the result's gradient, one in the others."""
    from_x, from_weight = gg_x is not None, gg_weight is not None
    wants_grad, wants_x, wants_weight = output_mask
    terms = wants_grad * (from_x + from_weight) + wants_x * from_weight + wants_weight * from_x
    pairs = zip((grad, x, weight), output_mask, strict=True)
    return Estimate(
        tuple(value.like() if wanted else None for value, wanted in pairs),
        matrix_flops=terms * flops_of(multiply_adds(x, grad, weight, transposed), x.dtype),
        vector_flops=grad.numel * (from_x + from_weight + (gg_bias is not None) - 1) if wants_grad else 0,
        reads=(gg_x, gg_weight, gg_bias, grad, weight, x),
    )


@rule("aten.conv_tbc_backward")
def conv_tbc_backward(grad: TensorType, x: TensorType, weight: TensorType, bias: TensorType) -> Estimate:
    """The forward's product for the input and again for the weight, a sum over positions for the bias."""
    flops = 2 * flops_of(grad.numel * weight.shape[0] * weight.shape[1], x.dtype)
    return Estimate((x.like(), weight.like(), bias.like()), flops, additions(grad), reads=(grad, x, weight))
