"""Attention that is one operator: its sizes, by the layout of its operands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.attention.attention_use import AttentionUse
from graphflops.attention.hidden_pairs import Hidden, masked_part
from graphflops.attention.match import copies
from graphflops.dims import floor_div, prod

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphflops.attention.hidden_pairs import Hiding
    from graphflops.dims import Dim
    from graphflops.ops import Op
    from graphflops.tensor import TensorType
    from graphflops.view import Call

Shapes = tuple[
    "Dim", "Dim", "Dim", "Dim", "Dim", "Dim", "Dim"
]  # the seven sizes of an AttentionUse, in its order


def is_fused(op: Op) -> bool:
    """Whether an operator is an attention."""
    return op.name in _SIZES


def fused(call: Call, hiding: Hiding) -> tuple[AttentionUse, Hidden] | None:
    """The attention that a call computes, and what its mask hides; None for other calls and for operands of unknown type."""
    view = hiding.view
    family = _SIZES.get(call.operator.name)
    if family is None or call.row.state != "counted":
        return None
    operands = [view.types.get(name) for name in call.operands]
    if not operands or operands[0] is None:
        return None
    sizes = family(call, operands)
    if sizes is None or 0 in sizes:
        return None
    batch, heads, kv_heads, queries, keys, width, value_width = sizes
    row, cost = call.row, call.cost
    mask, masked = call.value("mask"), cost.masked_flops
    hidden = Hidden(mask="structure" if masked != 0 else "none")
    seen = view.flexible.get(call.node)
    if seen is not None:
        hidden = Hidden(mask=seen.mask)
    elif mask and masked == 0:
        hidden = hiding.of_operator(call, mask, queries, keys)
        masked = masked_part(cost.matrix_flops, hidden, queries, keys)
    element = operands[0].dtype.bits // 8
    repeats, growth = copies(call.operand(1), view)
    more, _ = copies(call.operand(2), view)
    kv_heads = floor_div(kv_heads, growth)
    use = AttentionUse(
        *((call.name,), call.node.op, row.module, row.source),
        *(batch, heads, kv_heads, queries, keys, width, value_width),
        mask=hidden.mask,
        flops=cost.matrix_flops,
        masked_flops=masked,
        repeated_bytes=sum((each.bytes for each in dict.fromkeys((*repeats, *more))), start=0),
        kv_bytes=batch * kv_heads * keys * (width + value_width) * element * row.times,
        times=row.times,
        partial_blocks=None if seen is None else _blocks(seen.partial_blocks, row.times),
        full_blocks=None if seen is None else _blocks(seen.full_blocks, row.times),
    )
    return use, hidden


def _blocks(number: Dim | None, times: Dim) -> Dim | None:
    return None if number is None else number * times


def _heads_first(call: Call, operands: list[TensorType | None]) -> Shapes | None:
    """Operands of shape (..., heads, rows, width)."""
    query, key, value = (*operands, None, None)[:3]
    if query is None or key is None or value is None or query.rank < 2:
        return None
    heads = query.shape[-3] if query.rank > 2 else 1
    kv_heads = key.shape[-3] if key.rank > 2 else 1
    batch = prod(query.shape[:-3])
    return batch, heads, kv_heads, query.shape[-2], key.shape[-2], query.shape[-1], value.shape[-1]


def _onnx(call: Call, operands: list[TensorType | None]) -> Shapes | None:
    """Operands of shape (batch, heads, rows, width), or (batch, rows, heads * width) with the heads in attributes."""
    query, key, value = (*operands, None, None)[:3]
    if query is None or key is None or value is None:
        return None
    past = operands[4] if len(operands) > 4 else None
    before = past.shape[-2] if past is not None and past.rank == 4 else 0
    if query.rank == 4:
        sizes = _heads_first(call, operands)
        return None if sizes is None else (*sizes[:4], sizes[4] + before, *sizes[5:])
    heads, kv_heads = call.attribute("q_num_heads"), call.attribute("kv_num_heads")
    if query.rank != 3 or not heads or not kv_heads:
        return None
    widths = floor_div(query.shape[2], heads), floor_div(value.shape[2], kv_heads)
    return query.shape[0], heads, kv_heads, query.shape[1], key.shape[1] + before, *widths


def _packed(call: Call, operands: list[TensorType | None]) -> Shapes | None:
    """Operands of shape (batch, rows, heads * width), the heads in attributes; keys and values may be missing or cached."""
    query = operands[0]
    heads = call.attribute("num_heads")
    if query is None or query.rank != 3 or not heads:
        return None
    key, value = (*operands, None, None)[1:3]
    kv_heads = call.attribute("kv_num_heads", heads)
    total = (
        floor_div(call.cost.matrix_flops, 2 * query.shape[0] * query.shape[1] * heads)
        if query.rank == 3
        else 0
    )
    if key is None or key.rank != 3:
        return None
    width = floor_div(key.shape[2], kv_heads)
    value_width = floor_div(value.shape[2], kv_heads) if value is not None and value.rank == 3 else width
    return (
        query.shape[0],
        heads,
        kv_heads,
        query.shape[1],
        floor_div(total, width + value_width),
        width,
        value_width,
    )


_SIZES: dict[str, Callable[[Call, list[TensorType | None]], Shapes | None]] = {
    "scaled_dot_product_attention": _heads_first,
    "flex_attention": _heads_first,
    "onnx_attention": _onnx,
    "multi_head_attention": _packed,
    "group_query_attention": _packed,
}
