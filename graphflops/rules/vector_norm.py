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


def of_vectors(
    x: TensorType, order: float | None, dim: Axes, keepdim: bool, dtype: DType | None, root: bool = True
) -> Estimate:
    """Magnitude (or square) and sum (or extreme) per element: two operations, and the powers and the root."""
    order = 2 if order is None else order
    powers = int(order not in (*ROOTLESS, 2)) + int(x.dtype.kind == "complex" and order != 2)
    roots = int(root and order not in ROOTLESS)
    return reduction(
        x, dim, keepdim, real_of(dtype or x.dtype), each=2, evaluated=powers, evaluated_final=roots
    )


@rule("aten.linalg_vector_norm")
def linalg_vector_norm(
    x: TensorType, ord: float = 2, dim: Axes = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Estimate:
    """Two operations per element, a power where the order needs one, a root per result."""
    return of_vectors(x, ord, dim, keepdim, dtype)


@rule("aten.linalg__powsum")
def linalg_powsum(
    x: TensorType, ord: float = 2, dim: Axes = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Estimate:
    """As `linalg_vector_norm` without the root."""
    return of_vectors(x, ord, dim, keepdim, dtype, root=False)


@rule("aten.norm", "aten.native_norm")
def norm(
    x: TensorType, p: float | None = 2, dim: Axes = None, keepdim: bool = False, dtype: DType | None = None
) -> Estimate:
    """Two operations per element, a power where the order needs one, a root per result."""
    return of_vectors(x, p, dim, keepdim, dtype)


@rule("aten.frobenius_norm")
def frobenius_norm(x: TensorType, dim: Axes, keepdim: bool = False) -> Estimate:
    """A square and an addition per element, a root per result."""
    return of_vectors(x, 2, dim, keepdim, None)


def of_matrices(
    x: TensorType, order: float | str, dim: Axes, keepdim: bool, dtype: DType | None = None
) -> Estimate:
    """Singular values for the orders that need them, else two operations per element."""
    rows, columns = axes(dim, x.rank)
    require(rows != columns, f"the axes of a matrix coincide: {rows} and {columns}")
    if order == "fro":
        return of_vectors(x, 2, (rows, columns), keepdim, dtype)
    if order not in ("nuc", 2, -2):
        return of_vectors(x, 1, (rows, columns), keepdim, dtype)
    out = x.like(reduced(x.shape, (rows, columns), keepdim), real_of(dtype or x.dtype))
    work = 4 ** (x.dtype.kind == "complex") * lapack.svd(x.shape[rows], x.shape[columns], vectors=False)
    return Estimate((out,), vector_flops=work * prod(reduced(x.shape, (rows, columns))), reads=(x,))


@rule("aten.linalg_matrix_norm")
def linalg_matrix_norm(
    x: TensorType,
    ord: float | str = "fro",
    dim: Axes = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Estimate:
    """Singular values for the orders that need them, else two operations per element."""
    return of_matrices(x, ord, dim, keepdim, dtype)


@rule("aten.nuclear_norm")
def nuclear_norm(x: TensorType, keepdim: bool = False) -> Estimate:
    """The singular values."""
    return of_matrices(x, "nuc", (0, 1), keepdim)


@rule("aten.nuclear_norm.dim")
def nuclear_norm_dim(x: TensorType, dim: Axes, keepdim: bool = False) -> Estimate:
    """The singular values."""
    return of_matrices(x, "nuc", dim, keepdim)


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
        return of_matrices(x, ord, along, keepdim, dtype)
    require(not isinstance(ord, str), f"the matrix norm {ord!r} needs two axes, not {len(along)}")
    return of_vectors(x, None if isinstance(ord, str) else ord, dim, keepdim, dtype)


@backward("aten.linalg_vector_norm", "aten.norm", "aten.frobenius_norm")
def norm_backward(call: ForwardCall) -> Estimate:
    """The operand times the gradient over the norm; other orders take a power and two products more."""
    order = call.arguments.get("ord", call.arguments.get("p", 2))
    if order in (2, None):
        return operand_gradient(call, each=1, saved=x_and_result(call))
    return operand_gradient(call, each=3, evaluated=int(order not in ROOTLESS), saved=x_and_result(call))
