"""Kernels that move more than they compute: elementwise, copies, reductions, norms, softmax, gathers, scans."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from graphflops.time.kernel import Kernel, Rows
from graphflops.time.predict_reductions import PLANES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from graphflops.time.concrete import ConcreteCall, Tensor
    from graphflops.time.kernel import Family

    Lowering = Callable[[ConcreteCall], list[Kernel]]


def elementwise(tensor: Tensor, read: int, written: int, work: int = 0, *, variant: str = "") -> Kernel:
    """A pointwise kernel of a tensor's element type."""
    return Kernel("elementwise", tensor.dtype, 0, work, read, written, variant=variant)


def is_strided(tensors: Sequence[Tensor], out: Tensor) -> bool:
    """Whether a pointwise kernel computes an address for each element: operands are broadcast or lie in different orders."""
    lie = [tensor for tensor in tensors if tensor.rank]
    return any(tensor.shape != out.shape or tensor.strides != lie[0].strides for tensor in lie)


def copy(tensor: Tensor, bits: int | None = None) -> Kernel:
    """A copy of a tensor in row-major order, as elements of `bits` bits."""
    written = tensor.numel * (bits or tensor.bits) // 8
    sizes, variant = _transposed(tensor), "" if tensor.is_contiguous else "strided"
    return Kernel("copy", tensor.dtype, 0, 0, tensor.nbytes, written, sizes, variant=variant)


def _transposed(tensor: Tensor) -> Rows | None:
    """The rows that a copy changes the direction of; None where the innermost axis stays."""
    if not tensor.rank or tensor.is_contiguous or tensor.strides[-1] in (0, 1):
        return None
    return Rows(tensor.numel // max(tensor.shape[-1], 1), tensor.shape[-1], is_inner=False)


def fill(tensor: Tensor) -> Kernel:
    """Writes one value everywhere."""
    return elementwise(tensor, 0, tensor.full_bytes)


def reduction(tensor: Tensor, results: int, *, is_inner: bool = True, bits: int | None = None) -> Kernel:
    """Reduces a tensor to so many results of `bits` bits. is_inner: along the innermost axes."""
    return Kernel(
        "reduction",
        tensor.dtype,
        vector_flops=tensor.numel,
        read_bytes=tensor.nbytes,
        written_bytes=results * (bits or tensor.bits) // 8,
        sizes=Rows(results, tensor.numel // max(results, 1), is_inner),
        variant="" if is_inner else "outer",
    )


def sum_to(tensor: Tensor, kept: Sequence[int]) -> Kernel:
    """The sum of a tensor over all axes but `kept`. Which axis lies innermost decides how blocks are laid out."""
    results = prod(tensor.shape[axis] for axis in kept)
    reduced = [axis for axis in range(tensor.rank) if axis not in kept and tensor.shape[axis] > 1]
    steps = tensor.strides
    wide = [axis for axis in kept if tensor.shape[axis] > 1]
    if not reduced or not wide or min(steps[axis] for axis in wide) < min(steps[axis] for axis in reduced):
        return reduction(tensor, results, is_inner=False)
    inner = reduction(tensor, results)
    is_planes = max(steps[axis] for axis in reduced) > max(steps[axis] for axis in wide)
    return replace(inner, variant=PLANES) if is_planes else inner


def of_rows(family: Family, kernels: int = 1) -> Lowering:
    """A lowering to kernels that each move the call's bytes and work on rows along the axis of the call."""

    def lower(call: ConcreteCall) -> list[Kernel]:
        like = next(iter(call.operands), call.out)
        if like is None or not call.cost.read_bytes + call.cost.written_bytes:
            return []
        return [rows_kernel(family, like, call, call.cost.read_bytes, call.cost.written_bytes)] * kernels

    return lower


def rows_kernel(family: Family, like: Tensor, call: ConcreteCall, read: int, written: int) -> Kernel:
    """A kernel on the rows of a tensor: those of its last axis unless the call names another."""
    axis = axis_of(call, like.rank)
    columns = like.shape[axis] if like.rank else 1
    is_inner = axis == like.rank - 1
    sizes = Rows(like.numel // max(columns, 1), columns, is_inner)
    work = call.cost.vector_flops + call.cost.transcendentals
    variant = call.operator.name if is_inner else "outer"
    return Kernel(family, like.dtype, 0, work, read, written, sizes, variant=variant)


def axis_of(call: ConcreteCall, rank: int) -> int:
    """The axis that the call works along, counted from the front; the last one unless it says."""
    axis = call.arguments.get("axis", -1)
    return axis % rank if isinstance(axis, int) and rank and -rank <= axis < rank else rank - 1
