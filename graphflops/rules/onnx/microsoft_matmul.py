"""onnxruntime's fused products of matrices of full width: transposed operands, scales, additions, activations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from graphflops.cost import Estimate
from graphflops.rules.matmul import add_product, matmul, matmul_into
from graphflops.rules.onnx.entries import onnx_dtype
from graphflops.rules.onnx.fused import activation, applied, fused, work
from graphflops.rules.onnx.reduce import gemm
from graphflops.rules.operands import Operands, takes
from graphflops.rules.registry import require, rule
from graphflops.rules.shapes import only_result
from graphflops.rules.work import WORK
from graphflops.tensor import INT32, UINT32, TensorType

KIND = "product"


def turned(x: TensorType, transposed: int, batch_first: int = 0) -> TensorType:
    """An operand, transposed as the product needs it.

    batch_first: the rows stand at the first axis, before the batch; they come to stand after it.
    """
    require(not batch_first or x.rank > 2, f"{x} has no batch to stand behind the rows")
    if x.rank < 2:
        return x
    *batch, rows, columns = x.shape
    if batch_first:
        batch, rows = [*batch[1:], rows], batch[0] if batch else rows
    return x.view((*batch, columns, rows) if transposed else (*batch, rows, columns))


def scaled(product: Estimate, alpha: float) -> Estimate:
    """The product with one multiplication per result, unless alpha is one."""
    return (
        product
        if alpha == 1
        else replace(product, vector_flops=product.vector_flops + only_result(product).numel)
    )


def followed(product: Estimate, *parts: Estimate, reads: tuple[TensorType | None, ...] = ()) -> Estimate:
    """The product followed by other parts that use its results on chip."""
    touched = (*product.reads, *reads)
    return fused(product.out, product, *parts, reads=touched, matrix_dtype=product.matrix_dtype)


@rule("com.microsoft.FusedMatMul", "com.microsoft.TransposeMatMul", product=("a", "b"))
def fused_matmul(
    a: TensorType,
    b: TensorType,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
    **parameters: object,
) -> Estimate:
    """A product of operands that may be transposed, scaled by alpha."""
    return scaled(matmul(turned(a, transA, transBatchA), turned(b, transB, transBatchB)), alpha)


@rule("com.microsoft.FusedMatMulActivation", product=("a", "b"))
def fused_matmul_activation(a: TensorType, b: TensorType, *, activation: str, **given: Any) -> Estimate:
    """As FusedMatMul, and an activation."""
    product = fused_matmul(a, b, **given)
    return followed(product, activated(activation, product))


def activated(name: str, product: Estimate) -> Estimate:
    """The work of the activation of that name on a product's results."""
    return activation(name, only_result(product))


@rule("com.microsoft.FusedGemm", product=("a", "b"))
def fused_gemm(
    a: TensorType, b: TensorType, c: TensorType | None = None, *, activation: str = "", **given: Any
) -> Estimate:
    """As Gemm, and an activation."""
    product = gemm(a, b, c, **given)
    return followed(product, activated(activation, product))


@rule("com.microsoft.GemmFloat8", product=("a", "b"))
@takes("a b c? scale_a? scale_b? scale_y?")
def gemm_float8(
    of: Operands, *, activation: str = "NONE", beta: float = 0.0, dtype: int = 1, **given: Any
) -> Estimate:
    """As Gemm on narrow floats, one operation per result for each scale, and relu or gelu."""
    product = gemm(of.a, of.b, of.c, beta=beta, **given)
    scales = of.but("a b c")
    rescaled = work(only_result(product).numel * sum(scale is not None for scale in scales))
    estimate = followed(product, rescaled, activated(activation, product), reads=scales)
    return replace(estimate, out=(only_result(product).like(dtype=onnx_dtype(dtype)),))


@rule("com.microsoft.GemmFastGelu", product=("x", "weight"))
def gemm_fast_gelu(x: TensorType, weight: TensorType, bias: TensorType | None = None) -> Estimate:
    """A product, its bias, and gelu by tanh."""
    product = matmul(x, weight)
    biased = product if bias is None else add_product(bias, product, 1, 1)
    return followed(biased, applied(WORK["gelu_tanh"], only_result(product)))


@rule("com.microsoft.MatMulInteger16", product=("a", "b"))
def matmul_integer16(a: TensorType, b: TensorType) -> Estimate:
    """A product of 16-bit integers accumulated in 32 bits."""
    return matmul_into(a, b, INT32 if "int" in (a.dtype.kind, b.dtype.kind) else UINT32)


rule("com.microsoft.SparseToDenseMatMul", product=("a", "b")).derived(
    fused_matmul,
    says="A product with a sparse first operand, counted as dense because its density is data-dependent.",
)
