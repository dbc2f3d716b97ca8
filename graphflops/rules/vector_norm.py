"""Norms of vectors and matrices."""

from __future__ import annotations

import math

from graphflops.cost import Estimate
from graphflops.dims import prod
from graphflops.rules import lapack
from graphflops.rules.elementwise import real_of
from graphflops.rules.reduce import Axes, operand_gradient, reduction, x_and_result
from graphflops.rules.registry import ForwardCall, backward, require, rule
from graphflops.rules.shapes import axes, reduced
from graphflops.tensor import DType, TensorType

KIND = "reduction"

ROOTLESS = (0, 1, math.inf, -math.inf)  # orders without powers and roots


@rule("aten.linalg_vector_norm")
def of_vectors(
    x: TensorType,
    ord: float | None = 2,
    dim: Axes = None,
    keepdim: bool = False,
    dtype: DType | None = None,
    *,
    root: bool = True,
) -> Estimate:
    """Two operations per element, magnitude (or square) and sum (or extreme); a power where the order needs one, a root."""
    order = 2 if ord is None else ord
    powers = int(order not in (*ROOTLESS, 2)) + int(x.dtype.kind == "complex" and order != 2)
    roots = int(root and order not in ROOTLESS)
    return reduction(
        x, dim, keepdim, real_of(dtype or x.dtype), each=2, evaluated=powers, evaluated_final=roots
    )


rule("aten.norm", "aten.native_norm").derived(of_vectors)
rule("aten.linalg__powsum").derived(of_vectors, says="As `linalg_vector_norm` without the root.", root=False)
rule("aten.frobenius_norm").derived(
    of_vectors, says="A square and an addition per element, a root per result.", order="x dim keepdim"
)


@rule("aten.linalg_matrix_norm")
def of_matrices(
    x: TensorType,
    ord: float | str = "fro",
    dim: Axes = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Estimate:
    """Singular values for the orders that need them, else two operations per element."""
    rows, columns = axes(dim, x.rank)
    require(rows != columns, f"the axes of a matrix coincide: {rows} and {columns}")
    if ord == "fro":
        return of_vectors(x, 2, (rows, columns), keepdim, dtype)
    if ord not in ("nuc", 2, -2):
        return of_vectors(x, 1, (rows, columns), keepdim, dtype)
    out = x.like(reduced(x.shape, (rows, columns), keepdim), real_of(dtype or x.dtype))
    work = 4 ** (x.dtype.kind == "complex") * lapack.svd(x.shape[rows], x.shape[columns], vectors=False)
    return Estimate((out,), vector_flops=work * prod(reduced(x.shape, (rows, columns))), reads=(x,))


rule("aten.nuclear_norm").derived(
    of_matrices, says="The singular values.", order="x keepdim", ord="nuc", dim=(0, 1)
)
rule("aten.nuclear_norm.dim").derived(
    of_matrices, says="The singular values.", order="x dim keepdim", ord="nuc"
)


@rule("aten.linalg_norm")
def linalg_norm(
    x: TensorType,
    ord: float | str | None = None,
    dim: Axes = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Estimate:
    """A matrix norm along two axes with an order named, else a vector norm."""
    along = axes(dim, x.rank)
    if ord is not None and len(along) == 2:
        return of_matrices(x, ord, along, keepdim, dtype=dtype)
    require(not isinstance(ord, str), f"the matrix norm {ord!r} needs two axes, not {len(along)}")
    return of_vectors(x, None if isinstance(ord, str) else ord, dim, keepdim, dtype)


@backward("aten.linalg_vector_norm", "aten.norm", "aten.frobenius_norm")
def norm_backward(call: ForwardCall) -> Estimate:
    """The operand times the gradient over the norm; other orders take a power and two products more."""
    order = call.arguments.get("ord", 2)
    if order in (2, None):
        return operand_gradient(call, each=1, saved=x_and_result(call))
    return operand_gradient(call, each=3, evaluated=int(order not in ROOTLESS), saved=x_and_result(call))
