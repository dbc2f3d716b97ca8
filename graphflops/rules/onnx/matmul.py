"""Products of two matrices."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.rules import matmul as shared
from graphflops.rules.onnx.fused import in_32_bits
from graphflops.rules.registry import require, rule
from graphflops.rules.shapes import only_result

if TYPE_CHECKING:
    from graphflops.cost import Estimate
    from graphflops.tensor import TensorType


@rule("onnx.MatMul", product=("a", "b"))
def matmul(a: TensorType, b: TensorType) -> Estimate:
    """Batched matrix product; a vector operand counts as a matrix with an axis of length one."""
    return shared.matmul(a, b)


@rule("onnx.MatMulInteger", product=("a", "b"))
def matmul_of_integers(
    a: TensorType,
    b: TensorType,
    a_zero_point: TensorType | None = None,
    b_zero_point: TensorType | None = None,
) -> Estimate:
    """As `MatMul` in 32 bits, with a subtraction per element of an operand that has a zero point."""
    return in_32_bits(shared.matmul(a, b), (a, a_zero_point), (b, b_zero_point))


@rule("onnx.Gemm", product=("a", "b"))
def gemm(
    a: TensorType,
    b: TensorType,
    c: TensorType | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    broadcast: int = 0,
    transA: int = 0,
    transB: int = 0,
) -> Estimate:
    """The product, and vector FLOPs for the remaining operations of alpha * (a @ b) + beta * c."""
    require(a.rank == 2 and b.rank == 2, f"Gemm multiplies two matrices, not {a} and {b}")
    product = shared.matmul(_turned(a, transA), _turned(b, transB))
    if c is None:
        scaled = shared.additions(only_result(product)) if alpha != 1 else 0
        return replace(product, vector_flops=scaled)
    return shared.add_product(c, product, beta, alpha)


def _turned(x: TensorType, transposed: int) -> TensorType:
    return x.view(x.shape[::-1]) if transposed else x
