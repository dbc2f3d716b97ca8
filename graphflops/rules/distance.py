"""Distances between rows: of all pairs, of pairs in place, and their gradients."""

from __future__ import annotations

from dataclasses import dataclass

from graphflops.cost import Estimate
from graphflops.dims import broadcast, compare, dim_max, floor_div, meet, prod, where
from graphflops.rules.elementwise import result_type
from graphflops.rules.registry import rule
from graphflops.tensor import TensorType

KIND = "distance"

Tensors = tuple[TensorType, ...]


@dataclass(frozen=True, slots=True)
class NormWork:
    """Work of a p-norm of differences: operations and functions per component, functions per distance."""

    vector: int
    functions: int
    roots: int


def norm_of(p: float) -> NormWork:
    """Subtract, compare with zero or take the absolute value or square it, accumulate; pow for other p."""
    if p in (0, 1, float("inf")):
        return NormWork(3, 0, 0)
    return NormWork(3, 0, 1) if p == 2 else NormWork(3, 1, 1)


@rule("aten._euclidean_dist")
def euclidean_dist(x1: TensorType, x2: TensorType) -> Estimate:
    """|a|^2 + |b|^2 - 2ab: a product of matrices, squared norms, then three operations and a root each.

    ATen multiplies two more columns of norms and ones; they are counted as the additions they stand for.
    """
    batch = broadcast(x1.shape[:-2], x2.shape[:-2])
    pairs = prod(batch) * x1.shape[-2] * x2.shape[-2]
    out = x1.like((*batch, x1.shape[-2], x2.shape[-2]))
    vector = 2 * (x1.numel + x2.numel) + 3 * pairs
    return Estimate((out,), 2 * pairs * x1.shape[-1], vector, pairs, reads=(x1, x2))


def direct_distances(x1: TensorType, x2: TensorType, p: float) -> Estimate:
    """Distances of all pairs of rows by the defining formula: vector FLOPs."""
    batch = broadcast(x1.shape[:-2], x2.shape[:-2])
    out, norm = x1.like((*batch, x1.shape[-2], x2.shape[-2])), norm_of(p)
    components = out.numel * x1.shape[-1]
    functions = norm.functions * components + norm.roots * out.numel
    return Estimate((out,), 0, norm.vector * components, functions, reads=(x1, x2))


@rule("aten.cdist", "aten._cdist_forward")
def cdist(x1: TensorType, x2: TensorType, p: float = 2.0, compute_mode: int | None = None) -> Estimate:
    """As ATen: Euclidean distances by a matrix product beyond 25 rows or on request; others by the formula."""
    widths = x1.shape[-1], x2.shape[-1]
    meet(*widths, f"rows of {widths[0]} and {widths[1]} components have no distance")
    direct = direct_distances(x1, x2, p)
    many = compare(">", dim_max(x1.shape[-2], x2.shape[-2]), 25)
    use_product = 0 if p != 2 or compute_mode == 2 else 1 if compute_mode == 1 else many
    product = euclidean_dist(x1, x2)
    return Estimate(
        direct.out,
        where(use_product, product.matrix_flops, 0),
        where(use_product, product.vector_flops, direct.vector_flops),
        where(use_product, product.transcendentals, direct.transcendentals),
        reads=(x1, x2),
    )


@rule("aten._cdist_backward")
def cdist_backward(
    grad: TensorType, x1: TensorType, x2: TensorType, p: float, distances: TensorType
) -> Estimate:
    """The gradient of x1: per component of every pair subtract, scale, accumulate; pow for other p."""
    if 0 in (grad.numel, x1.numel):  # zeros, not broadcast
        return Estimate((x1.like(),))
    batch = broadcast(x1.shape[:-2], x2.shape[:-2])
    out = x1.like((*batch, *x1.shape[-2:]))
    components = out.numel * x2.shape[-2]
    functions = norm_of(p).functions * components
    return Estimate((out,), 0, 3 * components + grad.numel, functions, reads=(grad, x1, x2, distances))


@rule("aten.pdist", "aten._pdist_forward")
def pdist(x: TensorType, p: float = 2.0) -> Estimate:
    """Distances of every unordered pair of rows by the formula."""
    rows, size = x.shape
    pairs, norm = floor_div(rows * (rows - 1), 2), norm_of(p)
    functions = norm.functions * pairs * size + norm.roots * pairs
    return Estimate((x.like((pairs,)),), 0, norm.vector * pairs * size, functions, reads=(x,))


@rule("aten._pdist_backward")
def pdist_backward(grad: TensorType, x: TensorType, p: float, distances: TensorType) -> Estimate:
    """Per component of every pair subtract, scale, and accumulate into both rows."""
    components = grad.numel * x.shape[-1]
    functions = norm_of(p).functions * components
    return Estimate((x.like(),), 0, 4 * components + grad.numel, functions, reads=(grad, x, distances))


@rule("aten.pairwise_distance")
def pairwise_distance(x1: TensorType, x2: TensorType, p: float = 2.0, *, keepdim: bool = False) -> Estimate:
    """The norm of each row's difference: as a distance, and epsilon added to every component."""
    shape, norm = broadcast(x1.shape, x2.shape), norm_of(p)
    components, rows = prod(shape), prod(shape[:-1])
    out = x1.like((*shape[:-1], *(1,) * keepdim), result_type(x1, x2))
    functions = norm.functions * components + norm.roots * rows
    return Estimate((out,), 0, (norm.vector + 1) * components, functions, reads=(x1, x2))
