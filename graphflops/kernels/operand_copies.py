"""Copies of operands that do not lie as the kernel of an operator reads them.

`matmul` computes on three axes: it merges the batch axes of each operand, and copies the operand where these do not lie
together, as after `transpose(1, 2)`, or where it is repeated for the other's batch. `linear` merges all axes but the last.
The gradients read these copies, not the operands. cuBLAS reads matrices whose rows or columns lie together; others are
copied for each product, in the forward and for gradients.

Norms, softmax and pooling read their operand in row-major order, pooling also with channels last. Which of these copies
the gradients read, or make again, is what an H200 ran with PyTorch 2.11.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from graphflops.dims import Dim, prod
from graphflops.execution.strides import has_channels_last, is_contiguous, regrouped, size_hint
from graphflops.graph import Ref, tensor_type

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphflops.execution.strides import HasStrides, Strides
    from graphflops.passes.program import PricedCall
    from graphflops.tensor import DType

_OF_ROWS = ("normalisation", "softmax", "pooling")  # kinds
_MERGING = ("linear", "matmul")
_OF_BLAS = frozenset({*_MERGING, "mm", "bmm", "addmm", "baddbmm"})
_KEEPING = frozenset({"group_norm", "native_group_norm"})
_COPYING_AGAIN = frozenset({"layer_norm", "rms_norm", "max_pool", "avg_pool", "adaptive_max_pool"})
_COPYING_ONCE = frozenset({"adaptive_avg_pool"})


class Copy(NamedTuple):
    """A copy in row-major order. shape, strides: of what is read, as far as it is repeated; dtype: of what is written.

    is_kept: the gradient reads the copy. is_again: the gradient copies the operand once more.
    """

    shape: Sequence[Dim]
    strides: Strides
    dtype: DType
    is_kept: bool = False
    is_again: bool = False

    @property
    def nbytes(self) -> Dim:
        """Bytes of the copy."""
        return prod(self.shape) * self.dtype.bits // 8


def operand_copies(call: PricedCall, lie: HasStrides) -> Mapping[str, Copy]:
    """The copies that a call makes of operands, by the operand's name; none of operands that lie in order."""
    operator, names = call.node.operator, call.tensors(lie.values)
    read = {names[place] for place in call.gradient.operands} if call.gradient is not None else set[str]()
    if operator.name in _OF_BLAS:
        found = _of_product(call, lie)
    elif operator.kind in _OF_ROWS and names:
        return _of_rows(call, lie, names[0])
    else:
        return {}
    return {
        name: each._replace(is_kept=each.is_kept and name in read, is_again=each.is_again and name in read)
        for name, each in found.items()
    }


def is_converted_before(dtype: str, wanted: str) -> bool:
    """Whether a softmax to another element type converts its operand first: of float16 the kernel does it (SoftMax.cpp)."""
    return dtype not in (wanted, "float16")


def _of_rows(call: PricedCall, lie: HasStrides, name: str) -> Mapping[str, Copy]:
    """The copy of what is normalised or pooled."""
    operator, x, strides = call.node.operator, lie.typed(name), lie.of(name)
    if operator.kind != "softmax" and operator.name not in _KEEPING | _COPYING_AGAIN | _COPYING_ONCE:
        return {}
    out = tensor_type(call.node.outputs[0], lie.values) or x
    is_converted = operator.kind == "softmax" and is_converted_before(x.dtype.name, out.dtype.name)
    is_ordered = is_contiguous(x.shape, strides)
    if operator.kind == "pooling":  # to one position an average is a mean, which reads any strides
        is_mean = operator.name == "adaptive_avg_pool" and prod(out.shape[2:]) == 1
        is_ordered = is_ordered or is_mean or has_channels_last(x.shape, strides)
    if is_ordered and not is_converted:
        return {}
    has_gradient, dtype = call.gradient is not None, out.dtype if is_converted else x.dtype
    is_kept, is_again = operator.name in _KEEPING, operator.name in _COPYING_AGAIN
    return {name: Copy(x.shape, strides, dtype, has_gradient and is_kept, has_gradient and is_again)}


def _of_product(call: PricedCall, lie: HasStrides) -> Mapping[str, Copy]:
    arguments, operator = call.node.arguments(), call.node.operator
    names = [ref.name if isinstance(ref := arguments.get(name), Ref) else "" for name in ("a", "b")]
    copies = {
        name: _copied(name, other, lie, is_merged=operator.name in _MERGING)
        for name, other in zip(names, reversed(names), strict=True)
        if name
    }
    return {name: found for name, found in copies.items() if found is not None}


def _copied(name: str, other: str, lie: HasStrides, *, is_merged: bool) -> Copy | None:
    """The copy of one operand; None where its axes merge without one, and rows or columns of its matrices lie together."""
    own, strides = lie.typed(name), lie.of(name)
    shape, merged = own.shape, own.shape
    if own.rank < 2:
        return None
    if is_merged and own.rank > 2:
        if (
            lie.typed(other).rank if other else 2
        ) <= 2:  # one matrix for all rows: everything but the last axis is merged
            merged = (prod(own.shape[:-1]), own.shape[-1])
        else:
            batch = _broadcast(own.shape[:-2], lie.typed(other).shape[:-2])
            shape = (*batch, *own.shape[-2:])
            merged = (prod(batch), *own.shape[-2:])
            strides = (0,) * (len(shape) - own.rank) + tuple(
                0 if size == 1 and whole != 1 else step
                for size, whole, step in zip(own.shape, shape[len(shape) - own.rank :], strides, strict=True)
            )
    as_merged = regrouped(shape, strides, merged) if merged is not shape else strides
    if as_merged is None:
        return Copy(shape, strides, own.dtype, is_kept=True)
    if not _is_read_by_blas(merged[-2:], as_merged[-2:]):
        return Copy(shape, strides, own.dtype, is_again=True)
    return None


def _is_read_by_blas(shape: Sequence[Dim], strides: Strides) -> bool:
    """Whether rows or columns of a matrix lie together, and do not overlap (`prepare_matrix_for_cublas` of ATen)."""
    (rows, columns), (row, column) = shape, strides
    across = (column == 1 or columns == 1) and (rows == 1 or size_hint(row) >= size_hint(columns))
    down = (row == 1 or rows == 1) and (columns == 1 or size_hint(column) >= size_hint(rows))
    return across or down


def _broadcast(own: Sequence[Dim], other: Sequence[Dim]) -> tuple[Dim, ...]:
    length = max(len(own), len(other))
    padded = [(1,) * (length - len(axes)) + tuple(axes) for axes in (own, other)]
    return tuple(b if a == 1 else a for a, b in zip(*padded, strict=True))
