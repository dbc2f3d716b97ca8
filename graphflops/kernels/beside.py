"""What kernels need beside operands and results: copies of operands in another layout, and partial results of reductions.

`matmul` merges the batch axes of each operand, `linear` all axes but the last. An operand is copied if that needs a copy,
and gradients read the copy. cuBLAS copies matrices without contiguous rows or columns for each product. Norms, softmax and
pooling read a row-major operand; pooling also reads channels last.

If a reduction has few results, several blocks share the elements of a result, and each writes one partial result for each
of its threads (`setReduceConfig` and `global_memory_size` in Reduce.cuh of ATen). An open size is assumed to be large. All
was observed on an H200 with PyTorch 2.11.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import gcd
from typing import Any, Union

from graphflops.base.record import Record, replace
from graphflops.devices import Platform
from graphflops.dims import Dim, ceil_div, dim_max, dim_min, prod, total
from graphflops.execution.layouts import Layouts, is_normed_in_order
from graphflops.execution.strides import (
    Shape,
    Strides,
    has_channels_last,
    is_contiguous,
    regrouped,
    row_major,
    size_hint,
)
from graphflops.graph import Ref, tensor_type
from graphflops.kernels.call import ConcreteCall
from graphflops.kernels.choices import limits
from graphflops.ops import Op
from graphflops.passes.program import PricedCall
from graphflops.tensor import DType

Lying = Union[Layouts, ConcreteCall]  # values with their strides, whose sizes may be open, or are numbers
_OF_ROWS = ("normalisation", "softmax", "pooling")  # kinds
_MERGING = ("linear", "matmul")
_OF_BLAS = frozenset({*_MERGING, "mm", "bmm", "addmm", "baddbmm"})
_TURNS = ("turn_a", "turn_b", "transBatchA", "transBatchB")  # onnxruntime reads such operands as they lie
OF_GROUPS = frozenset({"group_norm", "native_group_norm"})  # their gradients read the same copy
_COPYING_AGAIN = frozenset({"layer_norm", "rms_norm", "max_pool", "avg_pool", "adaptive_max_pool"})
_COPYING_ONCE = frozenset({"adaptive_avg_pool"})


class Copy(Record, frozen=True):
    """A row-major copy."""

    shape: Shape  # of what is read, broadcast as the product needs it
    strides: Strides
    dtype: DType
    is_kept: bool = False  # the gradient reads the copy
    is_again: bool = False  # the gradient makes another copy of the operand
    is_inside: bool = False  # the product itself makes the copy, for BLAS

    @property
    def nbytes(self) -> Dim:
        return prod(self.shape) * self.dtype.bits // 8


def operand_copies(call: PricedCall, lie: Lying) -> Mapping[str, Copy]:
    """The copies that a call makes of its operands, by operand; operands that its kernels can read have none."""
    operator = call.node.operator
    if operator.kind in _OF_ROWS and (names := call.tensors(lie.values)):
        return _of_rows(call, lie, names[0])
    arguments, found = call.node.arguments(), dict[str, Copy]()
    if operator.name not in _OF_BLAS or any(map(arguments.get, _TURNS)):
        return {}
    names = call.tensors(lie.values)
    read = {names[place] for place in call.gradient.operands} if call.gradient is not None else set[str]()
    factors = [ref.name if isinstance(ref := arguments.get(name), Ref) else "" for name in ("a", "b")]
    for name, other in zip(factors, reversed(factors), strict=True):
        if name and (copy := _copied(name, other, lie, is_merged=operator.name in _MERGING)) is not None:
            found[name] = copy if name in read else replace(copy, is_kept=False, is_again=False)
    return found


def is_mean(operator: Op, shape: Shape) -> bool:
    """Whether an average pool has one result for each channel, and so is a mean. shape: of the result."""
    return operator.name in ("adaptive_avg_pool", "global_avg_pool") and prod(shape[2:]) == 1


def _of_rows(call: PricedCall, lie: Lying, name: str) -> Mapping[str, Copy]:
    """The copy of the operand that is normalised or pooled."""
    operator, x, strides = call.node.operator, lie.typed(name), lie.of(name)
    is_ordered, is_normed = is_contiguous(x.shape, strides), is_normed_in_order(operator, x)
    known = operator.kind == "softmax" or operator.name in OF_GROUPS | _COPYING_AGAIN | _COPYING_ONCE
    if not known and not is_normed:
        return {}
    out = tensor_type(call.node.outputs[0], lie.values) or x
    if operator.kind == "pooling":  # an average over all positions is a mean, which reads any strides
        is_ordered = is_ordered or is_mean(operator, out.shape) or has_channels_last(x.shape, strides)
    if is_ordered:
        return {}
    has_gradient, is_kept = call.gradient is not None, is_normed or operator.name in OF_GROUPS
    is_again = has_gradient and operator.name in _COPYING_AGAIN
    return {name: Copy(x.shape, strides, x.dtype, has_gradient and is_kept, is_again)}


def _copied(name: str, other: str, lie: Lying, *, is_merged: bool) -> Copy | None:
    """The copy of one operand; None if its axes merge without a copy and cuBLAS can read its matrices."""
    own, strides = lie.typed(name), lie.of(name)
    if own.rank < 2:
        return None
    merged = own.shape
    if is_merged and own.rank > 2:
        if not other or lie.typed(other).rank <= 2:  # one matrix for all rows: rows and batch merge
            merged = (prod(own.shape[:-1]), own.shape[-1])
        else:
            merged = (prod(own.shape[:-2]), *own.shape[-2:])
    as_merged = regrouped(own.shape, strides, merged) if merged is not own.shape else strides
    if as_merged is None:
        return Copy(own.shape, strides, own.dtype, is_kept=True)
    if not _is_read_by_blas(merged[-2:], as_merged[-2:]):
        return Copy(own.shape, strides, own.dtype, is_again=True, is_inside=True)
    return None


def _is_read_by_blas(shape: Shape, strides: Strides) -> bool:
    """Whether a matrix has contiguous rows or columns that do not overlap (`prepare_matrix_for_cublas` of ATen)."""
    (rows, columns), (row, column) = shape, strides
    across = (column == 1 or columns == 1) and (rows == 1 or size_hint(row) >= size_hint(columns))
    down = (row == 1 or rows == 1) and (columns == 1 or size_hint(column) >= size_hint(rows))
    return across or down


WARP, _MOST_THREADS, _VECTOR, _VECTOR_FROM, _FEWEST_VALUES, _MOST_VALUES, _SEMAPHORE_BYTES = limits(
    "aten_2", "reduce", "warp most_threads vector vector_from fewest_values most_values semaphore"
)

Axes = Collection[int]


def reduced_axes(given: Any, rank: int) -> set[int]:
    """The axes that an argument names; all axes if it names none."""
    axes = given if isinstance(given, tuple) else (given,)
    return {axis % rank for axis in axes if isinstance(axis, int) and rank} or set(range(rank))


def reduction_bytes(shape: Shape, strides: Shape, axes: Axes, element: int, platform: Platform) -> Dim:
    """Bytes of the buffers for a reduction along some axes, with semaphores. element: bytes of one partial result."""
    return total(reduction_buffers(shape, strides, axes, element, platform))


def reduction_buffers(
    shape: Shape, strides: Shape, axes: Axes, element: int, platform: Platform
) -> tuple[Dim, ...]:
    """Bytes of the partial results and of the semaphores; nothing if no thread blocks share a result."""
    wide = [axis for axis in reversed(range(len(shape))) if shape[axis] != 1]
    inside = sorted((axis for axis in wide if axis in axes), key=lambda axis: size_hint(strides[axis]))
    result = row_major([1 if axis in axes else size for axis, size in enumerate(shape)])
    reduced = merged(shape, (strides,), inside)
    kept = merged(shape, (strides, result), (axis for axis in wide if axis not in axes))
    if not reduced:
        return ()
    results, values = prod(size for size, _ in kept), prod(size for size, _ in reduced)
    if results == 0:
        return ()
    first, *rest = [steps[0] for _, steps in (*kept, *reduced)]
    innermost = reduced[0][1][0]
    is_inner = not kept or size_hint(innermost) < size_hint(first)
    vector = 1  # results of one thread: the operand's strides must be multiples of this
    if not is_inner and first == 1:
        vector = gcd(_VECTOR, *[step for step in (kept[0][0], *rest) if isinstance(step, int)])
    is_run = not kept and len(reduced) == 1 and innermost == 1
    is_whole = is_run and not _is_at_most(values, _VECTOR_FROM)
    loads = (values // _VECTOR if is_whole else values) if is_inner else None
    blocks = sharing_blocks(ceil_div(results, vector), values, vector, platform, loads)
    if blocks.parts == 1:
        return ()
    own = 1 if is_inner else blocks.across * vector  # results of a block
    return results * blocks.parts * own * element, blocks.groups * _SEMAPHORE_BYTES


class Blocks(Record, frozen=True):
    """The thread blocks of a reduction."""

    across: int  # threads of a block along the innermost axis
    down: int  # threads of a block along the other axis
    groups: Dim  # groups of blocks, each with its own results
    parts: Dim  # blocks of a group, which share its values
    each: Dim  # values per thread if a group is one block
    at_once: int  # blocks that the device runs at a time


def sharing_blocks(
    lanes: Dim, values: Dim, vector: int, platform: Platform, inner: Dim | None = None
) -> Blocks:
    """How threads and blocks share a reduction of `values` values for each of `lanes` vectors of results.

    inner: the loads of a result's values if these are innermost.
    """
    is_inner = inner is not None
    wide, down = (lanes, values) if inner is None else (inner, lanes)
    across, down = threads_of_block(wide, down, _MOST_THREADS // vector)
    each = ceil_div(values, across if is_inner else 1)
    groups = ceil_div(lanes, 1 if is_inner else across)
    if _is_at_most(each, min(_FEWEST_VALUES * down, _MOST_VALUES) - 1):
        groups = ceil_div(groups, down)
    else:
        each = ceil_div(each, down)
    at_once = platform.multiprocessors * (platform.threads_each // (across * down))
    parts: Dim = 1
    if not _is_at_most(each, _MOST_VALUES - 1) and _is_at_most(groups, at_once, unknown=True):
        few, many = ceil_div(each, _MOST_VALUES), ceil_div(each, _FEWEST_VALUES)
        parts = dim_max(dim_min(ceil_div(at_once, groups), many), few)
    return Blocks(across, down, groups, parts, each, at_once)


def merged(shape: Shape, steps: Sequence[Shape], order: Iterable[int]) -> list[tuple[Dim, tuple[Dim, ...]]]:
    """Axes in this order, with each tensor's stride; neighbours that are contiguous in all tensors are merged."""
    axes: list[tuple[Dim, tuple[Dim, ...]]] = []
    for axis in order:
        size, own = shape[axis], tuple([each[axis] for each in steps])
        if axes and own == tuple([step * axes[-1][0] for step in axes[-1][1]]):
            inner, own = axes.pop()
            size *= inner
        axes.append((size, own))
    return axes


def threads_of_block(across: Dim, down: Dim, most: int) -> tuple[int, int]:
    """Threads of a block along the innermost axis, and along the other axis."""
    wide, high = largest_power(across, most), largest_power(down, most)
    height = min(high, most // min(wide, WARP))
    return min(wide, most // height), height


def largest_power(size: Dim, most: int) -> int:
    """The largest power of two that is at most a size, and at most `most`."""
    return 1 << (size.bit_length() - 1) if isinstance(size, int) and 0 < size < most else most


def _is_at_most(size: Dim, limit: int, unknown: bool = False) -> bool:
    return size <= limit if isinstance(size, int) else unknown
