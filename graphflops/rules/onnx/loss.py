"""Losses of class scores."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.rules.loss_class import cross_entropy_loss, likelihood
from graphflops.rules.onnx.fused import Outputs, chosen
from graphflops.rules.registry import require_known, rule
from graphflops.rules.shapes import only_result

if TYPE_CHECKING:
    from graphflops.cost import Estimate
    from graphflops.tensor import TensorType

REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}


def code_of(reduction: str) -> int:
    """The reduction's number in the shared formulas."""
    require_known(reduction in REDUCTIONS, f"unknown reduction {reduction!r}")
    return REDUCTIONS[reduction]


@rule("onnx.NegativeLogLikelihoodLoss")
def negative_log_likelihood_loss(
    x: TensorType, target: TensorType, weight: TensorType | None = None, *, reduction: str = "mean"
) -> Estimate:
    """Negate, compare and weight per picked score."""
    return likelihood(x, target, weight, code_of(reduction))


@rule("onnx.SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_loss(
    x: TensorType,
    target: TensorType,
    weight: TensorType | None = None,
    *,
    reduction: str = "mean",
    outputs: Outputs = (True,),
) -> Estimate:
    """The logarithm of the softmax, which may be a result of its own, then a pick."""
    loss = cross_entropy_loss(x, target, weight, code_of(reduction))
    return replace(loss, out=chosen(outputs, only_result(loss), x.like()))
