"""Which matrix products torch.compile pads (inductor's `pad_mm`): tensor cores load rows of a multiple of 8 elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.dims import Dim, prod
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphflops.cost import Value
    from graphflops.passes.program import PricedCall

_ALIGNED, _HALF = 8, 16
# Multiply-adds of an element read or written: half of what an H200 does while it loads one.
_COMPUTE_BOUND = 95
_MOST_PADDED = 1.25
_LINE_BYTES, _LONG = 128, 1024  # inductor's padding_alignment_bytes, and padding_stride_threshold in elements


def padded_columns(call: PricedCall, values: Mapping[str, Value], *, adds_bias: bool = False) -> int | None:
    """Columns of a linear layer's result after padding; None where they are a multiple of 8 or no tensor core is used.

    Inductor measures whether a copy is worth it where arithmetic takes the time: for a vocabulary of 50,257 words it is. A
    product that adds a bias is padded always.
    """
    names = call.tensors(values)
    weight = values.get(names[1]) if call.node.operator.name == "linear" else None
    if not isinstance(weight, TensorType) or weight.dtype.bits != _HALF or weight.rank != 2:
        return None
    columns, inner = weight.shape
    if not isinstance(columns, int) or columns == 1 or columns % _ALIGNED == 0:
        return None
    out = values[call.node.outputs[0] or ""]
    rows = prod(out.shape[:-1]) if isinstance(out, TensorType) else 1
    if not adds_bias and isinstance(rows, int) and isinstance(inner, int):
        moved = rows * inner + inner * columns + rows * columns
        if rows * inner * columns < _COMPUTE_BOUND * moved:
            return None
    return aligned(columns)


def padded_inner(call: PricedCall, values: Mapping[str, Value]) -> int | None:
    """The inner size of batched products after padding; None where it is a multiple of 8, or padding adds too much."""
    operands = [values[name] for name in call.tensors(values)[:2]]
    tensors = [one for one in operands if isinstance(one, TensorType) and one.rank > 2]
    if call.node.operator.name == "linear" or len(tensors) < 2 or tensors[0].dtype.bits != _HALF:
        return None
    inner, columns = tensors[0].shape[-1], tensors[1].shape[-1]
    if not isinstance(inner, int) or inner % _ALIGNED == 0 or columns == 1:
        return None
    return aligned(inner) if aligned(inner) <= _MOST_PADDED * inner else None


def aligned(size: int) -> int:
    """A size rounded up to what tensor cores load at once."""
    return -(-size // _ALIGNED) * _ALIGNED


def aligned_bytes(shape: Sequence[Dim], bits: int) -> int | None:
    """Bytes of a stored result whose matrices are longer than a kilobyte of elements: each begins at a line of memory.

    None where that is already so, or where a size is open. Source: `_pad_strides` in torch/_inductor/ir.py.
    """
    sizes = [size for size in shape if isinstance(size, int)]
    if len(sizes) < len(shape) or not sizes or 0 in sizes:
        return None
    line, stride, last, is_aligned = _LINE_BYTES * 8 // bits, 1, 0, True
    for size in reversed(sizes):
        if stride > _LONG and stride % line:
            stride, is_aligned = -(-stride // line) * line, False
        last += (size - 1) * stride
        stride *= size
    return None if is_aligned else (last + 1) * bits // 8


def padded_rows(call: PricedCall, values: Mapping[str, Value]) -> Dim:
    """Bytes of a copy of a result with padded columns, or of its gradient: its rows begin at lines of memory."""
    columns = padded_columns(call, values)
    out = values[call.node.outputs[0] or ""]
    if columns is None or not isinstance(out, TensorType):
        return 0
    return prod(out.shape[:-1]) * (-(-columns * _HALF // 8 // _LINE_BYTES) * _LINE_BYTES)
