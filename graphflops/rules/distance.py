"""Norms of vectors and matrices, distances between rows; order statistics, histograms, covariances and other summaries.

A norm costs two operations per element, a power if the order needs one, and a root per vector.
"""

import math

from graphflops.base.record import replace
from graphflops.cost import Estimate, data_dependent
from graphflops.dims import Dim, broadcast, compare, dim_max, dim_min, floor_div, meet, prod, total, where
from graphflops.rules import lapack, reduce
from graphflops.rules.cumulative import comparisons
from graphflops.rules.elementwise import float_result, real_of
from graphflops.rules.lapack import halvings
from graphflops.rules.operands import Operands
from graphflops.rules.parts import require_few
from graphflops.rules.reduce import operand_gradient, parts, per_element, reduction
from graphflops.rules.registry import ForwardCall, backward, require, rule
from graphflops.rules.shapes import Shape, Tensors, axes, axis_of, only_result, reduced, tensors_of
from graphflops.tensor import BFLOAT16, FLOAT32, FLOAT64, INT64, TensorType

KIND = "distance"

ROOTLESS = (0, 1, math.inf, -math.inf)  # orders without powers and roots


@rule("aten.linalg_vector_norm norm native_norm", kind="reduction").takes("x ord? dim? keepdim? dtype?")
def of_vectors(of: Operands, *, root: bool = True) -> Estimate:
    """Two operations per element, magnitude (or square) and sum (or extreme); a power where the order needs one, a root."""
    x, order, dim, keepdim, dtype = of
    order = 2 if order is None else order
    powers = int(order not in (*ROOTLESS, 2)) + int(x.dtype.kind == "complex" and order != 2)
    roots = int(root and order not in ROOTLESS)
    real = real_of(dtype or x.dtype)
    return reduction(x, dim, bool(keepdim), real, each=2, evaluated=powers, evaluated_final=roots)


rule("aten.linalg__powsum", kind="reduction").derived(of_vectors, root=False)
rule("aten.frobenius_norm", kind="reduction").derived(of_vectors, order="x dim keepdim")


@rule("aten.linalg_matrix_norm", kind="reduction").takes("x ord? dim? keepdim? dtype?")
def of_matrices(of: Operands) -> Estimate:
    """Singular values for the orders that need them, else two operations per element."""
    x, order, dim, keepdim, dtype = of
    rows, columns = axes((-2, -1) if dim is None else dim, x.rank)
    if order not in ("nuc", 2, -2):
        return of_vectors(x, 2 if order in (None, "fro") else 1, (rows, columns), keepdim, dtype)
    out = x.like(reduced(x.shape, (rows, columns), bool(keepdim)), real_of(dtype or x.dtype))
    work = 4 ** (x.dtype.kind == "complex") * lapack.svd(x.shape[rows], x.shape[columns], vectors=False)
    return Estimate((out,), vector_flops=work * prod(reduced(x.shape, (rows, columns))), reads=(x,))


rule("aten.nuclear_norm", kind="reduction").derived(of_matrices, order="x keepdim", ord="nuc", dim=(0, 1))
rule("aten.nuclear_norm.dim", kind="reduction").derived(of_matrices, order="x dim keepdim", ord="nuc")


@rule("aten.linalg_norm", kind="reduction").takes("x ord? dim? keepdim? dtype?")
def linalg_norm(of: Operands) -> Estimate:
    """A matrix norm along two axes with an order named, else a vector norm."""
    x, order, dim, *others = of
    along = axes(dim, x.rank)
    if order is not None and len(along) == 2:
        return of_matrices(x, order, along, *others)
    require(not isinstance(order, str), f"the matrix norm {order!r} needs two axes, not {len(along)}")
    return of_vectors(*of)


@backward("aten.linalg_vector_norm", "aten.norm", "aten.frobenius_norm")
def norm_backward(call: ForwardCall) -> Estimate:
    """The operand times the gradient over the norm; other orders take a power and two products more."""
    order = call.get("ord", 2)
    each, powers = (1, 0) if order in (2, None) else (3, int(order not in ROOTLESS))
    return operand_gradient(call, each, powers, reduce.x_and_result(call))


COSINE = 4  # two divisions, a product and a sum
PER_PAIR = 2  # both norms clamped away from zero


@rule("aten.cosine_similarity")
def cosine_similarity(x1: TensorType, x2: TensorType, dim: int = 1) -> Estimate:
    """Both norms, both divisions by them, and the product's sum: eight operations per element."""
    both = TensorType(broadcast(x1.shape, x2.shape), float_result(x1, x2))
    out, norm = both.like(reduced(both.shape, dim)), of_vectors(both, 2, dim)
    work = COSINE * both.numel + PER_PAIR * out.numel
    return Estimate((out,), vector_flops=work, reads=(x1, x2)).plus(norm, norm)


@rule("aten.renorm")
def renorm(x: TensorType, p: float, dim: int) -> Estimate:
    """The norm of each slice, its comparison and ratio, and a product per element."""
    norms = of_vectors(x.like((x.shape[dim], prod(reduced(x.shape, dim)))), p, 1)
    return Estimate((x.like(),), vector_flops=2 * x.shape[dim] + x.numel, reads=(x,)).plus(norms)


@rule("aten.norm_except_dim")
def norm_except_dim(v: TensorType, pow: int = 2, dim: int = 0) -> Estimate:
    """A norm for each slice along the axis, kept as an axis among ones; a single norm for -1."""
    if dim == -1:
        return of_vectors(v, pow)
    kept = axis_of(dim, v.rank)
    shape = (size if place == kept else 1 for place, size in enumerate(v.shape))
    norms = of_vectors(v.like((v.shape[kept], prod(reduced(v.shape, kept)))), pow, 1)
    return replace(norms, out=(v.like(shape),), reads=(v,))


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
    x1, x2, gradients = call["x1"], call["x2"], call.gradients("x1", "x2")
    work = 5 * len(gradients) * prod(broadcast(x1.shape, x2.shape))
    return Estimate(gradients, vector_flops=work, reads=(call.out.like(), call.out, x1, x2))


# For one component of a difference: subtract; compare with zero, take the absolute value or square; accumulate.
DISTANCE = 3


def functions_of(p: float, components: Dim, distances: Dim) -> Dim:
    """Functions evaluated for distances: a root for each; for other p also a power for each component."""
    if p in (0, 1, float("inf")):
        return 0
    return distances if p == 2 else components + distances


@rule("aten._euclidean_dist")
def euclidean_dist(x1: TensorType, x2: TensorType) -> Estimate:
    """|a|^2 + |b|^2 - 2ab: a product of matrices, squared norms (columns in ATen), three operations and a root each."""
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


@backward("aten.cdist", "aten._euclidean_dist")
def distance_gradients(call: ForwardCall) -> Estimate:
    """The forward's work for each wanted operand; distances by a product compute both gradients, whichever is wanted."""
    forward, gradients = call.estimate, call.gradients("x1", "x2")
    each = where(compare(">", forward.matrix_flops, 0), 2, len(gradients))
    work = each * forward.vector_flops, each * forward.transcendentals
    return Estimate(gradients, 2 * forward.matrix_flops, *work, reads=(call.out.like(), *forward.reads))


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


KIND = "statistics"

DENSITY = 3  # per bin: the sum of the counts 1, two divisions 2


median = rule("aten.median", "aten.nanmedian").derived(
    reduce.extreme, says="Selection in linear time: one comparison per element.", fold=None
)
rule("aten.kthvalue").derived(median, order="x", usually={"dim": -1})


@rule("aten.mode")
def mode(x: TensorType, dim: int = -1, keepdim: bool = False) -> Estimate:
    """Sorts each lane, then one comparison per element to count runs."""
    return median(x, dim, keepdim).plus(vector_flops=comparisons(x, dim))


backward("aten.median", "aten.nanmedian")(reduce.amax_backward)
backward("aten.kthvalue", "aten.mode")(per_element(saved=reduce.selected_indices))


@rule("aten.quantile", "aten.nanquantile")
def quantile(x: TensorType, q: TensorType | float, dim: int | None = None, keepdim: bool = False) -> Estimate:
    """Sorts each lane, then three operations per result to interpolate."""
    queries = q if isinstance(q, TensorType) else None
    out = x.like((*(queries.shape if queries else ()), *reduced(x.shape, dim, keepdim)))
    return Estimate((out,), vector_flops=comparisons(x, dim) + 3 * out.numel, reads=(x, queries))


@rule("aten.histogram").takes("x bins? * weight?")
def histogram(of: Operands, *, density: bool = False) -> Estimate:
    """Each element shifted, scaled, rounded to its bin and added there, four operations; or a search among given edges."""
    x, bins, weight = of
    edges = bins if isinstance(bins, TensorType) else x.like(((100 if bins is None else bins) + 1,))
    out, each = x.like((edges.shape[0] - 1,)), halvings(edges.shape[0]) + 1 if edges is bins else 4
    work = each * x.numel + DENSITY * out.numel * density
    return Estimate((out, edges.like()), 0, work, reads=(x, edges if edges is bins else None, weight))


@rule("aten._histogramdd_bin_edges").takes("x bins= * range? weight?")
def histogramdd_bin_edges(of: Operands) -> Estimate:
    """Both extremes of each coordinate, unless given: two comparisons per element."""
    x, bins, range, _ = of
    out = tuple(x.like((count + 1,)) for count in bins)
    return Estimate(out, vector_flops=0 if range else 2 * x.numel, reads=() if range else (x,))


@rule("aten._histogramdd_from_bin_cts", "aten._histogramdd_from_bin_tensors")
def histogramdd_from_bins(
    x: TensorType, bins: Shape | Tensors, *, weight: TensorType | None = None, density: bool = False
) -> Estimate:
    """Each coordinate shifted, scaled and rounded to its bin, or sought among given edges; one addition per point."""
    edges = tensors_of(bins)
    counts = [axis_edges.shape[0] for axis_edges in edges]
    out, points = x.like([count - 1 for count in counts] if edges else bins), prod(x.shape[:-1])  # type: ignore[arg-type]
    found = points * total(halvings(count) for count in counts) if edges else 3 * x.numel
    work = found + points + DENSITY * out.numel * density
    return Estimate((out,), vector_flops=work, reads=(x, *edges, weight))


@rule("aten.histogramdd", "aten.histogramdd.TensorList_bins").takes("x bins= range? weight? density?")
def histogramdd(of: Operands) -> Estimate:
    """As `histogram` for points of several coordinates, which lie in the last axis."""
    x, bins, range, weight, density = of
    counts, coordinates = bins, x.shape[-1]
    if not isinstance(bins, tuple):
        require(isinstance(coordinates, int), f"the number of coordinates must be known, not {coordinates}")
        require_few(coordinates, "coordinates")
        counts = (bins,) * coordinates
    filled = histogramdd_from_bins(x, counts, weight=weight, density=bool(density))
    if tensors_of(counts):
        return replace(filled, out=(*filled.out, *(edges.like() for edges in counts)))
    edges = histogramdd_bin_edges(x, counts, range=range)
    return filled.plus(out=filled.out + edges.out, vector_flops=edges.vector_flops)


@rule("aten.bincount")
def bincount(x: TensorType, weights: TensorType | None = None) -> Estimate:
    """One addition per element, into as many bins as the largest value asks for."""
    dtype = INT64 if weights is None else FLOAT32 if weights.dtype == FLOAT32 else FLOAT64
    out = x.like((data_dependent("bincount"),), dtype)
    return Estimate((out,), vector_flops=2 * x.numel, reads=(x, weights))


@rule("aten.cov")
def cov(x: TensorType, *, fweights: TensorType | None = None, aweights: TensorType | None = None) -> Estimate:
    """The centred variables' matrix times its transpose; a mean and a difference per element before it."""
    variables, samples = x.shape if x.rank == 2 else (1, x.numel)
    out = x.like((variables, variables) if x.rank == 2 else (), float_result(x, aweights))
    weighted = 2 if fweights is not None or aweights is not None else 0  # in the mean and in the product
    real = parts(out)
    return Estimate(
        (out,),
        matrix_flops=2 * real * real * variables * variables * samples,
        vector_flops=real * ((2 + weighted) * x.numel + out.numel),
        reads=(x, fweights, aweights),
    )


@rule("aten.corrcoef")
def corrcoef(x: TensorType) -> Estimate:
    """As `cov`; a root per variable, then each result divided by two of them and clipped to -1 and 1."""
    covariance = cov(x)
    out = only_result(covariance)
    roots = x.shape[0] if x.rank == 2 else 0
    return covariance.plus(vector_flops=4 * parts(out) * out.numel, transcendentals=roots)


@rule("aten.segment_reduce").takes("data * lengths? offsets?")
def segment_reduce(of: Operands, *, reduce: str, axis: int = 0) -> Estimate:
    """One operation per element, and a division per result for means."""
    data, lengths, offsets = of
    if lengths is not None:
        segments = lengths.shape
    else:
        require(offsets is not None, "segments need lengths or offsets, and neither is given")
        segments = (*offsets.shape[:-1], offsets.shape[-1] - 1)
    out = data.like((*segments, *data.shape[axis + 1 :]))
    work = data.numel + (out.numel if reduce == "mean" else 0)
    return Estimate((out,), vector_flops=work, reads=(data, lengths, offsets))


@rule("aten._segment_reduce_backward").takes("grad output data * lengths? offsets?")
def segment_reduce_backward(of: Operands, *, reduce: str) -> Estimate:
    """Sums repeat the gradient; other reductions take one operation per element."""
    if reduce == "sum":
        return Estimate((of.data.like(),), reads=of.but("output data"))
    return Estimate((of.data.like(),), vector_flops=of.data.numel, reads=(*of,))


@rule("aten.dist")
def dist(a: TensorType, b: TensorType, p: float = 2) -> Estimate:
    """The norm of the difference: a subtraction, a magnitude and an addition per element."""
    difference = a.like(broadcast(a.shape, b.shape), float_result(a, b))
    subtractions = parts(difference) * difference.numel
    return replace(of_vectors(difference, p).plus(vector_flops=subtractions), reads=(a, b))


@rule("aten.trace")
def trace(x: TensorType) -> Estimate:
    """One addition per element of the diagonal, which is all that is read."""
    diagonal = x.like((dim_min(*x.shape),))
    out = x.like((), reduce.accumulated(x.dtype))
    return Estimate((out,), vector_flops=parts(x) * diagonal.numel, reads=(diagonal,))


backward("aten.trace")(operand_gradient)
