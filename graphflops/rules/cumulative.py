"""Operators that run along an axis and keep every step: cumulative sums, differences, trapezoids, slopes.

Sorting and searching: n*log2(n) comparisons sort n values, floor(log2(n)) + 1 find one among them. Result sizes of searches
by value are data-dependent.
"""

from itertools import accumulate

from graphflops.base.record import replace
from graphflops.cost import Estimate, data_dependent
from graphflops.dims import Dim, Expr, at_least, broadcast, dim_max, prod, total
from graphflops.rules.elementwise import float_result, result_type
from graphflops.rules.lapack import halvings, n_log_n
from graphflops.rules.operands import Operands
from graphflops.rules.reduce import accumulated, indexed, parts, per_element, selected_indices, x_and_result
from graphflops.rules.registry import backward, require, rule
from graphflops.rules.shapes import Shape, axes, axis_of, only_result, reduced, replaced, results, tensors_of
from graphflops.tensor import BOOL, INT32, INT64, DType, TensorType

KIND = "scan"


def running(x: TensorType, dim: int, dtype: DType | None = None, each: int = 1) -> Estimate:
    """One result per element, of one operation or so many real ones."""
    axis_of(dim, x.rank)
    return Estimate((x.like(dtype=dtype),), vector_flops=each * x.numel, reads=(x,))


@rule("aten.cumsum")
def cumsum(x: TensorType, dim: int, *, dtype: DType | None = None) -> Estimate:
    """One addition per element."""
    estimate = running(x, dim, dtype or accumulated(x.dtype), each=parts(x))
    out = only_result(estimate)
    if not isinstance(x.value, tuple) or x.rank != 1 or out.dtype.is_floating:
        return estimate
    sums = accumulate(value for value in x.value if isinstance(value, (int, Expr)))
    return replace(estimate, out=(replace(out, value=tuple(sums)),))


@rule("aten.cumprod")
def cumprod(x: TensorType, dim: int, *, dtype: DType | None = None) -> Estimate:
    """One multiplication per element, a complex one being six operations."""
    return running(x, dim, dtype or accumulated(x.dtype), each=6 if x.dtype.kind == "complex" else 1)


rule("aten.cummax", "aten.cummin").derived(running, indexed, order="x dim")


@rule("aten.logcumsumexp", "aten._logcumsumexp")
def logcumsumexp(x: TensorType, dim: int) -> Estimate:
    """A running log-add-exp: maximum, difference and sum, an exponential and a logarithm per element."""
    return replace(running(x, dim, each=3 * parts(x)), transcendentals=2 * x.numel)


@rule("aten.cumprod_backward")
def cumprod_backward(grad: TensorType, x: TensorType, *, output: TensorType) -> Estimate:
    """Gradient times output, summed from the end, over the operand: three operations per element."""
    out = x.like(dtype=result_type(grad, output))
    return Estimate((out,), vector_flops=3 * parts(x) * x.numel, reads=(grad, x, output))


backward("aten.cumsum")(per_element(1))  # the gradient is summed from its end
# For each sign of the gradient a difference, a running log-add-exp from the end and a sum; then their difference.
backward("aten.logcumsumexp", "aten._logcumsumexp")(per_element(11, saved=x_and_result))
# The gradient times the output, summed from the end, divided by the operand.
backward("aten.cumprod")(per_element(3, saved=x_and_result))
# Each gradient is added at the element that its value came from.
backward("aten.cummax", "aten.cummin")(per_element(1, saved=selected_indices))


_MOST_TURNS = 10_000  # a damaged file may hold any number


@rule("aten.diff").takes("x * prepend? append?")
def diff(of: Operands, *, n: int = 1, dim: int = -1) -> Estimate:
    """One subtraction per element of each of the n differences taken one after another."""
    x, prepend, append = of
    if n == 0:
        return Estimate((x.like(),), reads=(x,))
    place = axis_of(dim, x.rank)
    pieces = tuple(piece for piece in (prepend, x, append) if piece is not None)
    length = total(piece.shape[place] for piece in pieces)
    out = x.like(replaced(x.shape, place, dim_max(length - n, 0)), result_type(*pieces))
    turns = n if isinstance(length, Expr) else min(n, length)  # beyond its length nothing is left to subtract
    require(turns <= _MOST_TURNS, f"{n} differences one after another")
    steps = total(dim_max(length - step, 0) for step in range(1, turns + 1))
    return Estimate((out,), vector_flops=parts(out) * steps * prod(reduced(x.shape, place)), reads=pieces)


def intervals(y: TensorType, x: TensorType | None, dim: int) -> tuple[Shape, int, DType]:
    """The shape of the intervals between samples, the axis they lie along and the type to work in."""
    place = axis_of(dim, y.rank)
    shape = replaced(y.shape, place, dim_max(y.shape[place] - 1, 0))
    if x is not None and x.rank > 1:  # one position per sample; a single axis of them serves every lane
        require(x.rank == y.rank, f"positions have {x.rank} axes, samples {y.rank}")
        shape = broadcast(shape, replaced(x.shape, place, dim_max(x.shape[place] - 1, 0)))
    return shape, place, float_result(y) if x is None else float_result(y, x)


@rule("aten.trapezoid", "aten.trapz")
def trapezoid(y: TensorType, *, x: TensorType | None = None, dim: int = -1) -> Estimate:
    """Per interval both ends added, times the width, summed; the widths once, a halving per result.

    With an even step an addition per sample; both ends, the halving and the step are three operations per result.
    """
    shape, place, dtype = intervals(y, x, dim)
    out = y.like(reduced(shape if x is not None else y.shape, place), dtype)
    work = y.numel + 3 * out.numel if x is None else 3 * prod(shape) + x.numel + out.numel
    return Estimate((out,), vector_flops=parts(y) * work, reads=(y, x))


@rule("aten.cumulative_trapezoid")
def cumulative_trapezoid(y: TensorType, *, x: TensorType | None = None, dim: int = -1) -> Estimate:
    """Per interval both ends added, times half the step or the width, summed up; widths once, then also a halving."""
    shape, _, dtype = intervals(y, x, dim)
    work = 3 * prod(shape) if x is None else 4 * prod(shape) + x.numel
    return Estimate((y.like(shape, dtype),), vector_flops=parts(y) * work, reads=(y, x))


@rule("aten.gradient").takes("x * spacing? dim?")
def gradient(of: Operands) -> Estimate:
    """Per element and axis a difference of neighbours over their distance; with positions five operations."""
    x, spacing, dim = of
    positions = tensors_of(spacing) if isinstance(spacing, tuple) else ()
    count = len(axes(dim, x.rank))
    work = (5 if positions else 2) * parts(x) * count * x.numel
    out = (x.like(dtype=float_result(x, *positions)),) * count
    return Estimate(out, vector_flops=work, reads=(x, *positions))


KIND = "sort"


@rule("aten.nonzero", "aten.argwhere", "aten.nonzero_static")
def nonzero(x: TensorType, *, size: Dim | None = None) -> Estimate:
    """The positions of elements that are not zero, of all or of so many, a row each: one comparison per element."""
    out = x.like((data_dependent("nonzero") if size is None else size, x.rank), INT64)
    return Estimate((out,), vector_flops=x.numel, reads=(x,))


@rule("aten.nonzero_numpy", "aten.where.default")
def nonzero_numpy(x: TensorType) -> Estimate:
    """The positions of elements that are not zero, a vector per axis: one comparison per element."""
    vector = x.like((data_dependent("nonzero"),), INT64)
    return Estimate((vector,) * max(x.rank, 1), vector_flops=x.numel, reads=(x,))


@rule("aten.unique_dim").takes("x dim? * return_inverse? return_counts?")
def distinct(of: Operands, *, sorting: bool = True) -> Estimate:
    """The distinct elements: n*log2(n) comparisons sort them, one per element tells neighbours apart.

    Along an axis inverse indices and counts are always written. Without sorting runs of equal elements are shortened to one.
    """
    x, dim, return_inverse, return_counts = of
    place = None if dim is None else axis_of(dim, x.rank)
    length = x.numel if place is None else x.shape[place]
    slices = 1 if place is None else prod(replaced(x.shape, place))
    found = 0 if length == 0 else data_dependent("unique")
    shape, where = ((found,), x.shape) if place is None else (replaced(x.shape, place, found), (length,))
    helpers = (
        where if return_inverse or place is not None else (0,),
        (found,) if return_counts or place is not None else (0,),
    )
    work = (n_log_n(length) * slices if sorting else 0) + x.numel
    return Estimate((x.like(shape), *(x.like(each, INT64) for each in helpers)), 0, work, reads=(x,))


rule("aten._unique2").derived(distinct, order="x")
rule("aten._unique").derived(distinct, results(0, 1), order="x")
rule("aten.unique_consecutive", "aten.unique_dim_consecutive").derived(distinct, order="x", sorting=False)


def comparisons(x: TensorType, dim: int | None) -> Dim:
    """Comparisons that sort every lane along an axis; None sorts all elements as one lane."""
    if dim is None:
        return n_log_n(x.numel)
    lane = x.shape[axis_of(dim, x.rank)] if x.rank else 1
    return n_log_n(lane) * prod(reduced(x.shape, dim))


@rule("aten.sort")
def sort(x: TensorType, *, dim: int = -1) -> Estimate:
    """n*log2(n) comparisons per lane of n."""
    return indexed(Estimate((x.like(),), vector_flops=comparisons(x, dim), reads=(x,)))


rule("aten.argsort").derived(sort, results(1))
rule("aten.msort").derived(sort, results(0), dim=0)


@rule("aten.topk")
def topk(x: TensorType, k: Dim, dim: int = -1, *, sorted: bool = True) -> Estimate:
    """Per lane of n a selection in n comparisons, then k*log2(k) to put the k found in order."""
    place = axis_of(dim, x.rank)
    if not x.rank:
        return indexed(Estimate((x.like(),), reads=(x,)))
    require(not at_least(k, x.shape[place] + 1), f"{k} largest of {x.shape[place]} values")
    out = x.like((*x.shape[:place], k, *x.shape[place + 1 :]))
    ordering = n_log_n(k) * prod(reduced(x.shape, place)) if sorted else 0
    return indexed(Estimate((out,), vector_flops=x.numel + ordering, reads=(x,)))


backward("aten.sort", "aten.topk")(per_element(saved=selected_indices))  # scattered to the values' places


@rule("aten.searchsorted").takes("sorted_sequence values= * sorter?")
def searchsorted(of: Operands, *, out_int32: bool = False) -> Estimate:
    """A binary search per value."""
    sorted_sequence, values, sorter = of
    sought = values if isinstance(values, TensorType) else None
    out = sorted_sequence.like(sought.shape if sought else (), INT32 if out_int32 else INT64)
    work = halvings(sorted_sequence.shape[-1]) * out.numel
    return Estimate((out,), vector_flops=work, reads=(sorted_sequence, sought, sorter))


rule("aten.bucketize").derived(searchsorted, order="values sorted_sequence")


@rule("aten.isin")
def isin(elements: TensorType | float, test_elements: TensorType | float) -> Estimate:
    """The test elements sorted, and a binary search among them per element."""
    sides = [side for side in (elements, test_elements) if isinstance(side, TensorType)]
    tests = test_elements.numel if isinstance(test_elements, TensorType) else 1
    out = sides[0].like(elements.shape if isinstance(elements, TensorType) else (), BOOL)
    return Estimate((out,), vector_flops=n_log_n(tests) + halvings(tests) * out.numel, reads=tuple(sides))
