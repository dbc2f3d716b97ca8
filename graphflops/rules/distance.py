"""Norms of vectors and matrices; distances between rows, of all pairs and of pairs in place; functions made of norms.

A norm costs two operations per element, a power if the order needs one, and a root per vector.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from graphflops.cost import Estimate
from graphflops.dims import Dim, broadcast, compare, dim_max, floor_div, meet, prod, where
from graphflops.rules import lapack
from graphflops.rules.elementwise import float_result, real_of
from graphflops.rules.reduce import operand_gradient, reduction, x_and_result
from graphflops.rules.registry import ForwardCall, backward, require, rule
from graphflops.rules.shapes import Axes, axes, axis, only_result, reduced
from graphflops.tensor import BFLOAT16, FLOAT32, DType, TensorType

KIND = "distance"

ROOTLESS = (0, 1, math.inf, -math.inf)  # orders without powers and roots


@rule("aten.linalg_vector_norm norm native_norm", kind="reduction")
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
    real = real_of(dtype or x.dtype)
    return reduction(x, dim, keepdim, real, each=2, evaluated=powers, evaluated_final=roots)


rule("aten.linalg__powsum", kind="reduction").derived(of_vectors, root=False)
rule("aten.frobenius_norm", kind="reduction").derived(of_vectors, order="x dim keepdim")


@rule("aten.linalg_matrix_norm", kind="reduction")
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
    if ord == "fro":
        return of_vectors(x, 2, (rows, columns), keepdim, dtype)
    if ord not in ("nuc", 2, -2):
        return of_vectors(x, 1, (rows, columns), keepdim, dtype)
    out = x.like(reduced(x.shape, (rows, columns), keepdim), real_of(dtype or x.dtype))
    work = 4 ** (x.dtype.kind == "complex") * lapack.svd(x.shape[rows], x.shape[columns], vectors=False)
    return Estimate((out,), vector_flops=work * prod(reduced(x.shape, (rows, columns))), reads=(x,))


rule("aten.nuclear_norm", kind="reduction").derived(of_matrices, order="x keepdim", ord="nuc", dim=(0, 1))
rule("aten.nuclear_norm.dim", kind="reduction").derived(of_matrices, order="x dim keepdim", ord="nuc")


@rule("aten.linalg_norm", kind="reduction")
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
    order = call.get("ord", 2)
    if order in (2, None):
        return operand_gradient(call, each=1, saved=x_and_result(call))
    return operand_gradient(call, each=3, evaluated=int(order not in ROOTLESS), saved=x_and_result(call))


COSINE = 4  # two divisions, a product and a sum
PER_PAIR = 2  # both norms clamped away from zero


@rule("aten.cosine_similarity")
def cosine_similarity(x1: TensorType, x2: TensorType, dim: int = 1) -> Estimate:
    """Both norms, both divisions by them, and the product's sum: eight operations per element."""
    shape = broadcast(x1.shape, x2.shape)
    out = TensorType(reduced(shape, dim), float_result(x1, x2))
    elements = out.like(shape).numel
    norm = of_vectors(out.like(shape), 2, dim)
    work = COSINE * elements + PER_PAIR * out.numel
    return Estimate((out,), vector_flops=work, reads=(x1, x2)).plus(norm, norm)


def slice_norms(x: TensorType, order: float, dim: int) -> Estimate:
    """One norm for each slice along an axis."""
    return of_vectors(x.like((x.shape[dim], prod(reduced(x.shape, dim)))), order, 1)


@rule("aten.renorm")
def renorm(x: TensorType, p: float, dim: int) -> Estimate:
    """The norm of each slice, its comparison and ratio, and a product per element."""
    norms = slice_norms(x, p, axis(dim, x.rank))
    work = norms.vector_flops + 2 * x.shape[dim] + x.numel
    return Estimate((x.like(),), vector_flops=work, transcendentals=norms.transcendentals, reads=(x,))


@rule("aten.norm_except_dim")
def norm_except_dim(v: TensorType, pow: int = 2, dim: int = 0) -> Estimate:
    """A norm for each slice along the axis, kept as an axis among ones; a single norm for -1."""
    if dim == -1:
        return of_vectors(v, pow, None, False, None)
    kept = axis(dim, v.rank)
    shape = (size if place == kept else 1 for place, size in enumerate(v.shape))
    return replace(slice_norms(v, pow, kept), out=(v.like(shape),), reads=(v,))


@rule("aten._weight_norm")
def weight_norm(v: TensorType, g: TensorType, dim: int = 0) -> Estimate:
    """The norm of each slice, its ratio to the wanted one, and a product per element."""
    norm = norm_except_dim(v, 2, dim)
    return norm.plus(out=(v.like(),), vector_flops=norm.transcendentals + v.numel, reads=(g,))


@rule("aten._weight_norm_interface")
def weight_norm_interface(v: TensorType, g: TensorType, dim: int = 0) -> Estimate:
    """As `_weight_norm`, with the norms kept."""
    estimate = weight_norm(v, g, dim)
    return replace(estimate, out=(*estimate.out, g.like(dtype=FLOAT32 if g.dtype == BFLOAT16 else g.dtype)))


@backward("aten._weight_norm", "aten._weight_norm_interface")
def weight_norm_gradient(call: ForwardCall) -> Estimate:
    """Per element: gradient times value, summed, 2; for the value's gradient also two scalings and a difference, 3."""
    work, reads = (2 + 3 * ("v" in call.wants)) * call.out.numel, (call.out.like(), call["v"], call["g"])
    return Estimate(call.gradients("v", "g"), vector_flops=work, reads=reads)


@backward("aten.cosine_similarity")
def cosine_similarity_gradient(call: ForwardCall) -> Estimate:
    """Five operations per element and operand: normalise both vectors, subtract from one its part along the other, scale."""
    gradients, elements = call.gradients("x1", "x2"), prod(broadcast(call["x1"].shape, call["x2"].shape))
    reads = (call.out.like(), call.out, call["x1"], call["x2"])
    return Estimate(gradients, vector_flops=5 * len(gradients) * elements, reads=reads)


# For one component of a difference: subtract; compare with zero, take the absolute value or square; accumulate.
DISTANCE = 3


def functions_of(p: float, components: Dim, distances: Dim) -> Dim:
    """Functions evaluated for distances: a root for each; for other p also a power for each component."""
    if p in (0, 1, float("inf")):
        return 0
    return distances if p == 2 else components + distances


@rule("aten._euclidean_dist")
def euclidean_dist(x1: TensorType, x2: TensorType) -> Estimate:
    """|a|^2 + |b|^2 - 2ab: a product of matrices, squared norms, then three operations and a root each.

    ATen multiplies two more columns of norms and ones; they are counted as the additions they stand for.
    """
    widths = x1.shape[-1], x2.shape[-1]
    meet(*widths, f"rows of {widths[0]} and {widths[1]} components have no distance")
    out = x1.like((*broadcast(x1.shape[:-2], x2.shape[:-2]), x1.shape[-2], x2.shape[-2]))
    vector = 2 * (x1.numel + x2.numel) + 3 * out.numel
    return Estimate((out,), 2 * out.numel * widths[0], vector, out.numel, reads=(x1, x2))


@rule("aten.cdist", "aten._cdist_forward")
def cdist(x1: TensorType, x2: TensorType, p: float = 2.0, compute_mode: int | None = None) -> Estimate:
    """As ATen: Euclidean distances by a matrix product beyond 25 rows or on request; others by the formula."""
    product = euclidean_dist(x1, x2)
    out = only_result(product)
    components = out.numel * x1.shape[-1]  # of all pairs of rows, by the defining formula
    many = compare(">", dim_max(x1.shape[-2], x2.shape[-2]), 25)
    use_product = 0 if p != 2 or compute_mode == 2 else 1 if compute_mode == 1 else many
    return Estimate(
        (out,),
        where(use_product, product.matrix_flops, 0),
        where(use_product, product.vector_flops, DISTANCE * components),
        where(use_product, product.transcendentals, functions_of(p, components, out.numel)),
        reads=(x1, x2),
    )


@rule("aten._cdist_backward")
def cdist_backward(
    grad: TensorType, x1: TensorType, x2: TensorType, p: float, distances: TensorType
) -> Estimate:
    """The gradient of x1: per component of every pair subtract, scale, accumulate; pow for other p."""
    if 0 in (grad.numel, x1.numel):  # zeros, not broadcast
        return Estimate((x1.like(),))
    out = x1.like((*broadcast(x1.shape[:-2], x2.shape[:-2]), *x1.shape[-2:]))
    components = out.numel * x2.shape[-2]
    functions = functions_of(p, components, 0)
    return Estimate((out,), 0, 3 * components + grad.numel, functions, reads=(grad, x1, x2, distances))


@rule("aten.pdist", "aten._pdist_forward")
def pdist(x: TensorType, p: float = 2.0) -> Estimate:
    """Distances of every unordered pair of rows by the formula."""
    rows, size = x.shape
    pairs = floor_div(rows * (rows - 1), 2)
    functions = functions_of(p, pairs * size, pairs)
    return Estimate((x.like((pairs,)),), 0, DISTANCE * pairs * size, functions, reads=(x,))


@rule("aten._pdist_backward")
def pdist_backward(grad: TensorType, x: TensorType, p: float, distances: TensorType) -> Estimate:
    """Per component of every pair subtract, scale, and accumulate into both rows."""
    components = grad.numel * x.shape[-1]
    functions = functions_of(p, components, 0)
    return Estimate((x.like(),), 0, 4 * components + grad.numel, functions, reads=(grad, x, distances))


@rule("aten.pairwise_distance")
def pairwise_distance(x1: TensorType, x2: TensorType, p: float = 2.0, *, keepdim: bool = False) -> Estimate:
    """The norm of each row's difference: as a distance, and epsilon added to every component."""
    shape = broadcast(x1.shape, x2.shape)
    components, rows = prod(shape), prod(shape[:-1])
    out = x1.like((*shape[:-1], *(1,) * keepdim), real_of(float_result(x1, x2)))
    functions = functions_of(p, components, rows)
    return Estimate((out,), 0, (DISTANCE + 1) * components, functions, reads=(x1, x2))
