"""Attention with rows before heads: (batch, rows, heads, width), or packed (all rows, heads, width).

Packed sequences attend within themselves, so that the work is the sum of the products of their lengths. Where
the offsets' contents are known it is counted so; where only data can tell, it is bounded by every row meeting
the longest sequence's keys, and no part of it is called masked. Causal and windowed structures align the last
row with the last key.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from msgspec.structs import replace

from graphflops.cost import Estimate
from graphflops.dims import Dim, Expr, ceil_div, total
from graphflops.rules.attention import Attention, attend, flash_debug_mask, flash_state, philox, result_of
from graphflops.rules.operands import Operands, takes
from graphflops.rules.registry import find, rule
from graphflops.rules.shapes import doubled_pairs
from graphflops.tensor import FLOAT32, UINT64, TensorType

KIND = "attention"

CAUSAL_BOTTOM_RIGHT = 2  # a `custom_mask_type`; 1 is causal from the top left, 0 none


def heads_first(x: TensorType) -> TensorType:
    """The same memory with the head axis before the row axis."""
    batch, rows, heads, width = x.shape
    return x.view((batch, heads, rows, width))


def lengths(offsets: TensorType | None) -> list[Dim] | None:
    """Lengths of the sequences that these offsets delimit, or None where their contents are not known."""
    if offsets is None or not isinstance(offsets.value, tuple):
        return None
    edges = [edge for edge in offsets.value if isinstance(edge, (int, Expr))]
    return [end - start for start, end in pairwise(edges)]


def pack(
    query: TensorType,
    key: TensorType,
    value: TensorType,
    offsets_q: TensorType | None,
    offsets_k: TensorType | None,
    max_k: Dim,
    *,
    mask: TensorType | None = None,
    left: Dim | None = None,
    right: Dim | None = None,
    bottom_right: bool = True,
    dropout_p: float = 0.0,
    is_causal: bool = False,
) -> Attention:
    """The problem of packed operands (all rows, heads, width); without offsets of (batch, rows, heads, width)."""
    right = 0 if is_causal else right
    if offsets_q is None:
        q, k, v = map(heads_first, (query, key, value))
        dense = attend(q, k, v, mask, left=left, right=right, bottom_right=bottom_right, dropout_p=dropout_p)
        return replace(dense, query=query, key=key, value=value)
    rows, heads = query.shape[-3], query.shape[-2]
    lengths_q, lengths_k = lengths(offsets_q), lengths(offsets_k)
    if lengths_q is None or lengths_k is None:
        bound = heads * rows * max_k
        return Attention(query, key, value, mask, heads * rows, bound, None, dropout_p > 0)
    sequences = list(zip(lengths_q, lengths_k, strict=True))
    scores = heads * total(q * k for q, k in sequences)
    visible = None
    if left is not None or right is not None:
        visible = heads * total(
            doubled_pairs(q, k, left=left, right=right, offset=k - q if bottom_right else 0)
            for q, k in sequences
        )
    return Attention(query, key, value, mask, heads * rows, scores, visible, dropout_p > 0)


def window(size: Dim | None) -> Dim | None:
    """How far a window reaches; -1 and None are without limit."""
    return None if size is None or size == -1 else size


def flash_problem(
    query: TensorType,
    key: TensorType,
    value: TensorType,
    cum_seq_q: TensorType | None,
    cum_seq_k: TensorType | None,
    max_k: Dim,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    window_size_left: Dim | None = None,
    window_size_right: Dim | None = None,
    **others: object,
) -> Attention:
    """What flash attention computes, dense without offsets and packed with them."""
    return pack(
        *(query, key, value, cum_seq_q, cum_seq_k, max_k),
        left=window(window_size_left),
        right=window(window_size_right),
        dropout_p=dropout_p,
        is_causal=is_causal,
    )


@rule("aten._flash_attention_forward")
@takes(
    "query key value cum_seq_q? cum_seq_k? * max_q= max_k= window_size_left? window_size_right? seqused_k? alibi_slopes? "
    "block_table? q_descale? k_descale? v_descale?"
)
def flash_attention_forward(
    of: Operands, *, dropout_p: float, is_causal: bool, return_debug_mask: bool
) -> Estimate:
    """Two products per score; keys and values in pages are read as far as the longest sequence reaches."""
    query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, left, right, *more = of
    sequences, rows_each = query.shape[:2] if cum_seq_q is None else (cum_seq_q.numel - 1, max_q)
    heads = query.shape[-2]
    row_sums = query.like(
        (sequences, heads, rows_each) if cum_seq_q is None else (heads, query.shape[0]), FLOAT32
    )
    if of.block_table is not None:
        key, value = (x.like((sequences, max_k, *x.shape[-2:])) for x in (key, value))
    longest = max_k if cum_seq_k is not None or of.block_table is not None else key.shape[1]
    packed = (query, key, value, cum_seq_q, cum_seq_k, max_k)
    problem = flash_problem(*packed, dropout_p, is_causal, left, right)
    debug = flash_debug_mask(query, (sequences, heads, rows_each), longest, return_debug_mask)
    reads = (cum_seq_q, cum_seq_k, *more)
    return problem.forward(result_of(query, value), row_sums, *flash_state(query), debug, reads=reads)


@rule("torch_attn._varlen_attn")
@takes("query key value cu_seq_q cu_seq_k? * seqused_k? block_table?")
def varlen_attention(
    of: Operands, *, max_q: Dim, max_k: Dim, is_causal: bool = False, window_size: Sequence[Dim] | None = None
) -> Estimate:
    """Flash attention over packed sequences, or cuDNN's, which computes the same."""
    left, right = window_size or (-1, -1)
    estimate = flash_attention_forward(
        *of.but("seqused_k block_table"),
        seqused_k=of.seqused_k,
        block_table=of.block_table,
        max_q=max_q,
        max_k=max_k,
        dropout_p=0.0,
        is_causal=is_causal,
        return_debug_mask=False,
        window_size_left=left,
        window_size_right=right,
    )
    return replace(estimate, out=(of.query.like(), estimate.out[1], of.query.like((2,), UINT64)))


def into(key: str, forward: str) -> None:
    """Register the operator that writes what `forward` computes into a given result and returns the row sums alone."""

    @rule(key)
    def written(out: TensorType, *arguments: object, **named: object) -> Estimate:
        """The same, written into a given result; only the row sums are returned."""
        found = find(forward)
        assert found is not None
        return _into(out, found.price(forward, *arguments, **named))


def _into(out: TensorType, estimate: Estimate) -> Estimate:
    sums = estimate.out[1:2]
    return replace(estimate, out=sums, writes=(out, *sums))


into("aten._flash_attention_forward_no_dropout_inplace", "aten._flash_attention_forward.default")
into("torch_attn._varlen_attn_out", "torch_attn._varlen_attn.default")


def efficient_problem(
    query: TensorType,
    key: TensorType,
    value: TensorType,
    bias: TensorType | None,
    cu_seqlens_q: TensorType | None,
    cu_seqlens_k: TensorType | None,
    max_seqlen_k: Dim | None,
    dropout_p: float,
    custom_mask_type: int,
    window_size: Dim | None = None,
    **others: object,
) -> Attention:
    """What memory-efficient attention computes; its window counts the row's own place and must be causal."""
    return pack(
        *(query, key, value, cu_seqlens_q, cu_seqlens_k),
        key.shape[1] if max_seqlen_k is None else max_seqlen_k,
        mask=bias,
        left=window_size - 1 if custom_mask_type and window_size else None,
        bottom_right=custom_mask_type == CAUSAL_BOTTOM_RIGHT,
        dropout_p=dropout_p,
        is_causal=bool(custom_mask_type),
    )


@rule("aten._efficient_attention_forward")
@takes(
    "query key value bias? cu_seqlens_q? cu_seqlens_k? * max_seqlen_q? max_seqlen_k? window_size? seqlen_k?"
)
def efficient_attention_forward(
    of: Operands, *, dropout_p: float, custom_mask_type: int, compute_log_sumexp: bool = False
) -> Estimate:
    """Two products per score; row sums, padded to blocks of 32, are kept on demand."""
    query, key, value, bias, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, window_size, _ = of
    longest_q = query.shape[1] if cu_seqlens_q is None or max_seqlen_q is None else max_seqlen_q
    longest_k = key.shape[1] if max_seqlen_k is None else max_seqlen_k
    sequences = query.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    padded = 32 * ceil_div(longest_q, 32) if compute_log_sumexp else 0
    row_sums = query.like((sequences, query.shape[-2], padded), FLOAT32)
    packed = (query, key, value, bias, cu_seqlens_q, cu_seqlens_k, max_seqlen_k)
    problem = efficient_problem(*packed, dropout_p, custom_mask_type, window_size)
    out = (result_of(query, value), row_sums, *philox(query), longest_q, longest_k)
    return problem.forward(*out, reads=of.named("cu_seqlens_q cu_seqlens_k seqlen_k"))


def cudnn_problem(
    query: TensorType,
    key: TensorType,
    value: TensorType,
    attn_bias: TensorType | None,
    cum_seq_q: TensorType | None,
    cum_seq_k: TensorType | None,
    max_k: Dim,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **others: object,
) -> Attention:
    """What cuDNN computes, dense with the heads first, packed with them last; causal from the top left."""
    structure: dict[str, Any] = {"mask": attn_bias, "dropout_p": dropout_p, "is_causal": is_causal}
    if cum_seq_q is None:
        return attend(query, key, value, **structure)
    return pack(query, key, value, cum_seq_q, cum_seq_k, max_k, bottom_right=False, **structure)


@rule("aten._cudnn_attention_forward")
@takes("query key value attn_bias? cum_seq_q? cum_seq_k? * max_q= max_k= seqused_k? block_table? out?")
def cudnn_attention_forward(
    of: Operands, *, compute_log_sumexp: bool, dropout_p: float = 0.0, is_causal: bool = False
) -> Estimate:
    """Two products per score; row sums are kept for the backward pass; keys and values may be in pages."""
    query, key, value, attn_bias, cum_seq_q, cum_seq_k, max_q, max_k, seqused_k, block_table, out = of
    if block_table is not None:  # of a pool of pages what the longest sequences could touch is read
        key, value = (x.like((block_table.shape[0], max_k, *x.shape[-2:])) for x in (key, value))
    problem = cudnn_problem(query, key, value, attn_bias, cum_seq_q, cum_seq_k, max_k, dropout_p, is_causal)
    row_sums = query.like((*query.shape[:-1], 1), FLOAT32) if compute_log_sumexp else None
    sizes = (cum_seq_q, cum_seq_k, max_q, max_k)
    results = (result_of(query, value), row_sums, *sizes, *philox(query), None)
    reads = (cum_seq_q, cum_seq_k, seqused_k, block_table)
    estimate = replace(problem.forward(*results, reads=reads), writes=(results[0], row_sums))
    return estimate if out is None else _into(out, estimate)


rule("aten._cudnn_attention_forward_no_dropout_inplace").derived(
    cudnn_attention_forward,
    says="The same, written into a given result; only the row sums are returned.",
    order="out query key value cum_seq_q cum_seq_k max_q max_k is_causal",
    attn_bias=None,
    compute_log_sumexp=True,
)
