"""The buffer of a reduction on a GPU: partial results that several thread blocks write, one after another adds them up.

PyTorch's kernel gives every result to one block while that keeps the GPU busy. With fewer results than blocks it cuts the
reduced elements among several blocks, each of which writes one partial result for each of its threads. The sizes are
those of `setReduceConfig` and `global_memory_size` in aten/src/ATen/native/cuda/Reduce.cuh, and those of 16,000 reductions
that an H200 ran (PyTorch 2.11). A size that is open counts as large.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from graphflops.dims import Dim, ceil_div, dim_max, dim_min, prod, total
from graphflops.execution.strides import row_major, size_hint
from graphflops.kernels.choices import limits

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from graphflops.devices import Platform

_WARP, _MOST_THREADS, _VECTOR, _VECTOR_FROM, _FEWEST_VALUES, _MOST_VALUES, _SEMAPHORE_BYTES = limits(
    *("aten_2_11", "reduce", "warp", "most_threads", "vector", "vector_from"),
    *("fewest_values", "most_values", "semaphore"),
)


class _Axis(NamedTuple):
    """A run of axes that lie together. stride: in the operand; result: in the result, 0 if the axis is reduced."""

    size: Dim
    stride: Dim
    result: Dim


def reduction_bytes(
    shape: Sequence[Dim], strides: Sequence[Dim], axes: Collection[int], element: int, platform: Platform
) -> Dim:
    """Bytes of the buffers for a reduction of some axes, semaphores included. element: bytes of one partial result."""
    return total(reduction_buffers(shape, strides, axes, element, platform))


def reduction_buffers(
    shape: Sequence[Dim], strides: Sequence[Dim], axes: Collection[int], element: int, platform: Platform
) -> tuple[Dim, ...]:
    """Bytes of the partial results and of the semaphores; nothing where no thread blocks share a result."""
    reduced, kept = _merged(shape, strides, axes)
    if not reduced:
        return ()
    results, values = prod(axis.size for axis in kept), prod(axis.size for axis in reduced)
    if results == 0:
        return ()
    is_inner = not kept or size_hint(reduced[0].stride) < size_hint(kept[0].stride)
    vector = 1 if is_inner or kept[0].stride != 1 else _vector(reduced, kept)
    is_whole = (
        not kept and len(reduced) == 1 and reduced[0].stride == 1 and not _is_at_most(values, _VECTOR_FROM)
    )
    across = ceil_div(results, vector) if not is_inner else values // _VECTOR if is_whole else values
    width, height = _block(across, results if is_inner else values, _MOST_THREADS // vector)
    each = ceil_div(ceil_div(values, width if is_inner else 1), height)  # values of a thread
    groups = ceil_div(ceil_div(results, vector), 1 if is_inner else width)
    target = platform.multiprocessors * (platform.threads_each // (width * height))
    if _is_at_most(each, _MOST_VALUES - 1) or not _is_at_most(groups, target, unknown=True):
        return ()
    blocks = dim_max(
        dim_min(ceil_div(target, groups), ceil_div(each, _FEWEST_VALUES)), ceil_div(each, _MOST_VALUES)
    )
    if blocks == 1:
        return ()
    partial = results * blocks * (1 if is_inner else width * vector) * element
    return partial, groups * _SEMAPHORE_BYTES


def column_sum_buffers(rows: Dim, columns: Dim, platform: Platform) -> tuple[Dim, ...]:
    """Bytes of the buffers when the rows of a matrix are added up in float32, as for the gradient of a bias."""
    return reduction_buffers((rows, columns), row_major((rows, columns)), (0,), 4, platform)


def _merged(
    shape: Sequence[Dim], strides: Sequence[Dim], axes: Collection[int]
) -> tuple[list[_Axis], list[_Axis]]:
    """The reduced axes and the others, each from the innermost to the outermost, those that lie together as one.

    Reduced axes are in the order of the operand's strides, others in that of the result's.
    """
    kept_shape = [1 if axis in axes else size for axis, size in enumerate(shape)]
    result = row_major(kept_shape)
    found = [
        _Axis(size, strides[axis], 0 if axis in axes else result[axis])
        for axis, size in enumerate(shape)
        if size != 1
    ][::-1]
    reduced = sorted((axis for axis in found if axis.result == 0), key=lambda axis: size_hint(axis.stride))
    return _joined(reduced), _joined([axis for axis in found if axis.result != 0])


def _joined(axes: Sequence[_Axis]) -> list[_Axis]:
    joined: list[_Axis] = []
    for axis in axes:
        last = joined[-1] if joined else None
        if last and (last.stride * last.size, last.result * last.size) == (axis.stride, axis.result):
            joined[-1] = last._replace(size=last.size * axis.size)
        else:
            joined.append(axis)
    return joined


def _vector(reduced: Sequence[_Axis], kept: Sequence[_Axis]) -> int:
    """Results of one thread: all steps in the operand must be a multiple of them."""
    steps = [kept[0].size, *(axis.stride for axis in (*reduced, *kept[1:]))]
    vector = _VECTOR
    for step in steps:
        while isinstance(step, int) and step % vector:
            vector //= 2
    return vector


def _block(across: Dim, down: Dim, most: int) -> tuple[int, int]:
    """Threads of a block along the axis that lies innermost, and along the other."""
    wide, high = _power_of_two(across, most), _power_of_two(down, most)
    height = min(high, most // min(wide, _WARP))
    return min(wide, most // height), height


def _power_of_two(size: Dim, most: int) -> int:
    """The largest power of two up to a size."""
    return 1 << (size.bit_length() - 1) if isinstance(size, int) and 0 < size < most else most


def _is_at_most(size: Dim, limit: int, unknown: bool = False) -> bool:
    return size <= limit if isinstance(size, int) else unknown
