"""Sums of products over named axes, and determinants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.cost import Estimate
from graphflops.rules import contraction, linalg
from graphflops.rules.registry import rule
from graphflops.rules.shapes import only_result

if TYPE_CHECKING:
    from graphflops.tensor import TensorType

KIND = "linear_algebra"


@rule("onnx.Einsum")
def einsum(*tensors: TensorType, equation: str) -> Estimate:
    """Matrix products of the pairwise contractions, left to right; a mere transposition is a copy."""
    estimate = contraction.einsum(equation, tensors)
    if not estimate.alias:
        return estimate
    return Estimate((only_result(estimate).like(),), reads=(only_result(estimate).like(),))


@rule("onnx.Det")
def det(x: TensorType) -> Estimate:
    """Gaussian elimination, and the product of the diagonal."""
    return linalg.det(x)
