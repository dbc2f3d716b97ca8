"""Sorting and searching: n*log2(n) comparisons sort n values, floor(log2(n)) + 1 find one among them."""

from __future__ import annotations

from dataclasses import replace

from graphflops.cost import Estimate
from graphflops.dims import Dim, at_least, prod
from graphflops.rules.counts import halvings, n_log_n
from graphflops.rules.reduce import indexed, operand_gradient, selected_indices
from graphflops.rules.registry import ForwardCall, backward, require, rule
from graphflops.rules.shapes import axis, reduced
from graphflops.tensor import BOOL, INT32, INT64, TensorType

KIND = "sort"


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
def sort(x: TensorType, dim: int = -1) -> Estimate:
    """n*log2(n) comparisons per lane of n."""
    return indexed(Estimate((x.like(),), vector_flops=comparisons(x, dim), reads=(x,)))


@rule("aten.sort.stable", "aten.sort.values_stable")
def sort_stable(x: TensorType, *, dim: int = -1) -> Estimate:
    """n*log2(n) comparisons per lane of n."""
    return sort(x, dim)


@rule("aten.argsort")
def argsort(x: TensorType, dim: int = -1) -> Estimate:
    """n*log2(n) comparisons per lane of n."""
    return replace(sort(x, dim), out=(x.like(dtype=INT64),))


@rule("aten.argsort.stable")
def argsort_stable(x: TensorType, *, dim: int = -1) -> Estimate:
    """n*log2(n) comparisons per lane of n."""
    return argsort(x, dim)


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


@backward("aten.sort", "aten.topk")
def sort_backward(call: ForwardCall) -> Estimate:
    """Scatters the gradients to the positions of the values; no arithmetic."""
    return operand_gradient(call, saved=selected_indices(call))


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
