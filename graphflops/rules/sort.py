"""Sorting and searching: n*log2(n) comparisons sort n values, floor(log2(n)) + 1 find one among them.

Result sizes of searches by value are data-dependent.
"""

from __future__ import annotations

from dataclasses import replace

from graphflops.cost import Estimate, data_dependent
from graphflops.dims import Dim, at_least, prod
from graphflops.rules.lapack import halvings, n_log_n
from graphflops.rules.reduce import indexed, per_element, selected_indices
from graphflops.rules.registry import backward, require, rule
from graphflops.rules.shapes import Shape, axis, reduced, replaced
from graphflops.tensor import BOOL, INT32, INT64, TensorType

KIND = "sort"


@rule("aten.nonzero", "aten.argwhere")
def nonzero(x: TensorType) -> Estimate:
    """The position of every element that is not zero, a row each: one comparison per element."""
    out = x.like((data_dependent("nonzero"), x.rank), INT64)
    return Estimate((out,), vector_flops=x.numel, reads=(x,))


@rule("aten.nonzero_numpy")
def nonzero_numpy(x: TensorType) -> Estimate:
    """The positions of elements that are not zero, a vector per axis: one comparison per element."""
    vector = x.like((data_dependent("nonzero"),), INT64)
    return Estimate((vector,) * max(x.rank, 1), vector_flops=x.numel, reads=(x,))


@rule("aten.nonzero_static")
def nonzero_static(x: TensorType, *, size: Dim) -> Estimate:
    """The positions of so many elements that are not zero: one comparison per element."""
    return Estimate((x.like((size, x.rank), INT64),), vector_flops=x.numel, reads=(x,))


def distinct(
    x: TensorType, dim: int | None, inverse: bool, counts: bool, sorting: bool
) -> tuple[tuple[TensorType, ...], Dim]:
    """The distinct elements, or slices along an axis, where they went, how many there were; and the work.

    n*log2(n) comparisons of elements, or of whole slices, sort them; one per element tells neighbours apart.
    """
    length = x.numel if dim is None else x.shape[axis(dim, x.rank)]
    found = 0 if x.numel == 0 else data_dependent("unique")
    shape: Shape = (found,) if dim is None else replaced(x.shape, axis(dim, x.rank), found)
    where = x.shape if dim is None else (length,)
    slices = 1 if dim is None else prod(replaced(x.shape, axis(dim, x.rank)))
    out = (
        x.like(shape),
        x.like(where if inverse else (0,), INT64),
        x.like((found,) if counts else (0,), INT64),
    )
    return out, (n_log_n(length) * slices if sorting else 0) + x.numel


@rule("aten._unique2")
def unique2(x: TensorType, *, return_inverse: bool = False, return_counts: bool = False) -> Estimate:
    """The distinct elements: n*log2(n) comparisons sort them, one per element tells neighbours apart."""
    out, work = distinct(x, None, return_inverse, return_counts, sorting=True)
    return Estimate(out, vector_flops=work, reads=(x,))


@rule("aten._unique")
def unique(x: TensorType, *, return_inverse: bool = False) -> Estimate:
    """As `_unique2`, without the counts."""
    out, work = distinct(x, None, return_inverse, False, sorting=True)
    return Estimate(out[:2], vector_flops=work, reads=(x,))


@rule("aten.unique_dim")
def unique_dim(x: TensorType, dim: int) -> Estimate:
    """The distinct slices along an axis; inverse indices and counts are always written."""
    out, work = distinct(x, dim, True, True, sorting=True)
    return Estimate(out, vector_flops=work, reads=(x,))


@rule("aten.unique_consecutive", "aten.unique_dim_consecutive")
def unique_consecutive(
    x: TensorType, *, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Estimate:
    """Runs of equal elements, or slices, each shortened to one: one comparison per element."""
    inverse, counts = return_inverse or dim is not None, return_counts or dim is not None
    out, work = distinct(x, dim, inverse, counts, sorting=False)
    return Estimate(out, vector_flops=work, reads=(x,))


def comparisons(x: TensorType, dim: int | None) -> Dim:
    """Comparisons that sort every lane along an axis; None sorts all elements as one lane."""
    if dim is None:
        return n_log_n(x.numel)
    lane = x.shape[axis(dim, x.rank)] if x.rank else 1
    return n_log_n(lane) * prod(reduced(x.shape, dim))


@rule("aten.msort")
def msort(x: TensorType) -> Estimate:
    """n*log2(n) comparisons per lane of n along the first axis."""
    return Estimate((x.like(),), vector_flops=comparisons(x, 0), reads=(x,))


@rule("aten.sort")
def sort(x: TensorType, *, dim: int = -1) -> Estimate:
    """n*log2(n) comparisons per lane of n."""
    return indexed(Estimate((x.like(),), vector_flops=comparisons(x, dim), reads=(x,)))


@rule("aten.argsort")
def argsort(x: TensorType, *, dim: int = -1) -> Estimate:
    """n*log2(n) comparisons per lane of n."""
    return replace(sort(x, dim=dim), out=(x.like(dtype=INT64),))


@rule("aten.topk")
def topk(x: TensorType, k: Dim, dim: int = -1, *, sorted: bool = True) -> Estimate:
    """Per lane of n a selection in n comparisons, then k*log2(k) to put the k found in order."""
    place = axis(dim, x.rank)
    if not x.rank:
        return indexed(Estimate((x.like(),), reads=(x,)))
    require(not at_least(k, x.shape[place] + 1), f"{k} largest of {x.shape[place]} values")
    out = x.like((*x.shape[:place], k, *x.shape[place + 1 :]))
    ordering = n_log_n(k) * prod(reduced(x.shape, place)) if sorted else 0
    return indexed(Estimate((out,), vector_flops=x.numel + ordering, reads=(x,)))


backward("aten.sort", "aten.topk")(per_element(saved=selected_indices))  # scattered to the values' places


@rule("aten.searchsorted")
def searchsorted(
    sorted_sequence: TensorType,
    values: TensorType | float,
    *,
    out_int32: bool = False,
    sorter: TensorType | None = None,
) -> Estimate:
    """A binary search per value."""
    sought = values if isinstance(values, TensorType) else None
    out = sorted_sequence.like(sought.shape if sought else (), INT32 if out_int32 else INT64)
    work = halvings(sorted_sequence.shape[-1]) * out.numel
    return Estimate((out,), vector_flops=work, reads=(sorted_sequence, sought, sorter))


@rule("aten.bucketize")
def bucketize(values: TensorType | float, boundaries: TensorType, *, out_int32: bool = False) -> Estimate:
    """A binary search per value."""
    return searchsorted(boundaries, values, out_int32=out_int32)


@rule("aten.isin")
def isin(elements: TensorType | float, test_elements: TensorType | float) -> Estimate:
    """The test elements sorted, and a binary search among them per element."""
    sides = [side for side in (elements, test_elements) if isinstance(side, TensorType)]
    tests = test_elements.numel if isinstance(test_elements, TensorType) else 1
    out = sides[0].like(elements.shape if isinstance(elements, TensorType) else (), BOOL)
    work = n_log_n(tests) + halvings(tests) * out.numel
    return Estimate((out,), vector_flops=work, reads=tuple(sides))
