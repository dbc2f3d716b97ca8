"""Searches by value: result sizes are data-dependent."""

from __future__ import annotations

from graphflops.cost import Estimate, data_dependent
from graphflops.dims import Dim, prod
from graphflops.rules.counts import n_log_n
from graphflops.rules.registry import rule
from graphflops.rules.shapes import Shape, axis, replaced
from graphflops.tensor import INT64, TensorType

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


@rule("aten.unique_consecutive")
def unique_consecutive(
    x: TensorType, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Estimate:
    """Runs of equal elements, or slices, each shortened to one: one comparison per element."""
    inverse, counts = return_inverse or dim is not None, return_counts or dim is not None
    out, work = distinct(x, dim, inverse, counts, sorting=False)
    return Estimate(out, vector_flops=work, reads=(x,))


@rule("aten.unique_dim_consecutive")
def unique_dim_consecutive(
    x: TensorType, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> Estimate:
    """Runs of equal slices, each shortened to one: one comparison per element."""
    return unique_consecutive(x, return_inverse, return_counts, dim)
