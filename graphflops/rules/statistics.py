"""Order statistics, histograms, covariances and other summaries of data."""

from __future__ import annotations

from msgspec.structs import replace

from graphflops.cost import Estimate, data_dependent
from graphflops.dims import Dim, broadcast, dim_min, prod, total
from graphflops.errors import ShapeError
from graphflops.rules.cumulative import comparisons
from graphflops.rules.distance import of_vectors
from graphflops.rules.elementwise import float_result
from graphflops.rules.lapack import halvings
from graphflops.rules.operands import Operands
from graphflops.rules.reduce import (
    accumulated,
    amax_backward,
    indexed,
    operand_gradient,
    parts,
    per_element,
    reduction,
    selected_indices,
)
from graphflops.rules.registry import backward, require, rule
from graphflops.rules.shapes import Shape, Tensors, only_result, reduced, tensors_of
from graphflops.tensor import FLOAT32, FLOAT64, INT64, TensorType

KIND = "statistics"

DENSITY = 3  # per bin: the sum of the counts 1, two divisions 2


@rule("aten.median", "aten.nanmedian")
def median(x: TensorType, dim: int | None = None, keepdim: bool = False) -> Estimate:
    """Selection in linear time: one comparison per element."""
    found = reduction(x, dim, keepdim)
    return found if dim is None else indexed(found)


rule("aten.kthvalue").derived(median, order="x", usually={"dim": -1})


@rule("aten.mode")
def mode(x: TensorType, dim: int = -1, keepdim: bool = False) -> Estimate:
    """Sorts each lane, then one comparison per element to count runs."""
    return median(x, dim, keepdim).plus(vector_flops=comparisons(x, dim))


backward("aten.median", "aten.nanmedian")(amax_backward)
backward("aten.kthvalue", "aten.mode")(per_element(saved=selected_indices))


@rule("aten.quantile", "aten.nanquantile")
def quantile(x: TensorType, q: TensorType | float, dim: int | None = None, keepdim: bool = False) -> Estimate:
    """Sorts each lane, then three operations per result to interpolate."""
    queries = q if isinstance(q, TensorType) else None
    out = x.like((*(queries.shape if queries else ()), *reduced(x.shape, dim, keepdim)))
    return Estimate((out,), vector_flops=comparisons(x, dim) + 3 * out.numel, reads=(x, queries))


@rule("aten.histc")
def histc(x: TensorType, bins: int = 100) -> Estimate:
    """Each element shifted, scaled, rounded to its bin and added there: four operations."""
    return Estimate((x.like((bins,)),), vector_flops=4 * x.numel, reads=(x,))


@rule("aten.histogram").takes("x bins? * weight?")
def histogram(of: Operands, *, density: bool = False) -> Estimate:
    """Each element shifted, scaled, rounded to its bin and added there, four operations; or a search among given edges."""
    x, bins, weight = of
    edges = bins if isinstance(bins, TensorType) else x.like(((100 if bins is None else bins) + 1,))
    out, each = x.like((edges.shape[0] - 1,)), halvings(edges.shape[0]) + 1 if edges is bins else 4
    work = each * x.numel + DENSITY * out.numel * density
    reads = (x, edges if edges is bins else None, weight)
    return Estimate((out, edges.like()), vector_flops=work, reads=reads)


_MOST_RESULTS = 100_000


def whole(size: Dim, of: str) -> int:
    """The size as a number; raises ShapeError where it is not known or absurd, as it says how many results exist."""
    if isinstance(size, int) and size <= _MOST_RESULTS:
        return size
    raise ShapeError(f"the number of {of} must be known and no more than {_MOST_RESULTS}, not {size}")


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
    counts = bins if isinstance(bins, tuple) else (bins,) * whole(x.shape[-1], "coordinates")
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
    length = of_vectors(difference, p, None, keepdim=False, dtype=None)
    subtractions = parts(difference) * difference.numel
    return replace(length, vector_flops=length.vector_flops + subtractions, reads=(a, b))


@rule("aten.trace")
def trace(x: TensorType) -> Estimate:
    """One addition per element of the diagonal, which is all that is read."""
    require(x.rank == 2, f"a matrix has two axes, not {x.rank}")
    diagonal = x.like((dim_min(*x.shape),))
    out = x.like((), accumulated(x.dtype))
    return Estimate((out,), vector_flops=parts(x) * diagonal.numel, reads=(diagonal,))


backward("aten.trace")(operand_gradient)
