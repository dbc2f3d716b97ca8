"""onnxruntime's attention to selected keys, by a window and global tokens or by an indexer, and over packed rows.

Packed rows are all sequences one after another, (tokens, heads * width), which attend within their own sequence. Where the
contents of the offsets are known the work is the sum over the sequences; where they are not known, every row is taken to
meet as many keys as the longest sequence may have.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from graphflops.cost import Estimate, data_dependent
from graphflops.dims import Dim, Expr, dim_min, floor_div, prod
from graphflops.rules.attention import Attention
from graphflops.rules.attention_packed import lengths, pack
from graphflops.rules.matmul import matmul
from graphflops.rules.onnx.fused import Outputs, chosen, fused, work
from graphflops.rules.onnx.microsoft_attention import Sizes, biased, by_head
from graphflops.rules.onnx.microsoft_grouped import (
    Given,
    grouped,
    keys_in_all,
    normed,
    reshaped_scores,
    rotation,
    unpacked,
)
from graphflops.rules.quantized import QUANTIZE
from graphflops.rules.registry import rule
from graphflops.rules.shapes import doubled_pairs
from graphflops.tensor import TensorType

KIND = "attention"


def packed_by_head(x: TensorType, heads: Dim) -> TensorType:
    """The operand (tokens, heads * width) as (tokens, heads, width)."""
    tokens, hidden = x.shape
    return x.view((tokens, heads, floor_div(hidden, heads)))


def within(q: TensorType, v: TensorType, padded: TensorType | None, offsets: TensorType | None) -> Attention:
    """Self-attention of packed rows (tokens, heads, width); `padded` is (batch, padded length)."""
    return pack(q, q, v, offsets, offsets, q.shape[0] if padded is None else padded.shape[-1])


@rule("com.microsoft.PackedMultiHeadAttention", product=("query", "key"))
def packed_multi_head_attention(
    query: TensorType,
    key: TensorType | None = None,
    value: TensorType | None = None,
    bias: TensorType | None = None,
    token_offset: TensorType | None = None,
    cumulative_sequence_length: TensorType | None = None,
    attention_bias: TensorType | None = None,
    *,
    num_heads: int,
) -> Estimate:
    """The two products of attention, after the biases of the projections; a query of four axes holds all three operands."""
    tokens = query.shape[0]
    rows = query.like((tokens, num_heads * query.shape[-1])) if query.rank == 4 else query
    q, v = packed_by_head(rows, num_heads), packed_by_head(rows if value is None else value, num_heads)
    problem = replace(within(q, v, token_offset, cumulative_sequence_length), mask=attention_bias)
    biased = 2 * q.numel + v.numel if bias is not None else 0
    reads = (query, key, value, bias, token_offset, cumulative_sequence_length, attention_bias)
    out = query.like((tokens, num_heads * v.shape[-1]))
    return fused((out,), problem.forward(), work(biased), reads=reads)


@rule("com.microsoft.PackedAttention", product=("x", "weights"))
def packed_attention(
    x: TensorType,
    weights: TensorType,
    bias: TensorType | None = None,
    token_offset: TensorType | None = None,
    cumulative_sequence_length: TensorType | None = None,
    attention_bias: TensorType | None = None,
    *,
    num_heads: int,
    qkv_hidden_sizes: Sizes = (),
) -> Estimate:
    """One projection of the packed rows, and attention within each sequence."""
    tokens, hidden = x.shape
    third = floor_div(weights.shape[1], 3)
    wide_q, _, wide_v = qkv_hidden_sizes or (third, third, third)
    q, v = (packed_by_head(x.like((tokens, wide)), num_heads) for wide in (wide_q, wide_v))
    problem = replace(within(q, v, token_offset, cumulative_sequence_length), mask=attention_bias)
    projected = tokens * weights.shape[1]
    product = Estimate(matrix_flops=2 * projected * hidden, vector_flops=projected if bias is not None else 0)
    reads = (x, weights, bias, token_offset, cumulative_sequence_length, attention_bias)
    return fused((x.like((tokens, wide_v)),), product, problem.forward(), reads=reads)


class Paged(NamedTuple):
    """The operands of PagedAttention, in their order."""

    query: TensorType
    key: TensorType | None
    value: TensorType | None
    key_cache: TensorType
    value_cache: TensorType | None
    cumulative_sequence_length: TensorType
    past_seqlens: TensorType
    block_table: TensorType
    cos_cache: TensorType | None = None
    sin_cache: TensorType | None = None
    slot_mapping: TensorType | None = None
    head_sink: TensorType | None = None
    q_norm_weight: TensorType | None = None
    k_norm_weight: TensorType | None = None
    k_scale: TensorType | None = None
    v_scale: TensorType | None = None
    attention_metadata: TensorType | None = None

    @property
    def pages(self) -> PagedCache:
        """Keys and values, as the new rows see them."""
        offsets = with_past(self.cumulative_sequence_length, self.past_seqlens)
        return PagedCache((self.key_cache, self.value_cache), self.block_table, offsets)

    @property
    def tables(self) -> tuple[TensorType | None, ...]:
        """What is read besides queries, keys, values and the parts' own tables."""
        lengths = (self.cumulative_sequence_length, self.past_seqlens)
        return (*lengths, self.block_table, self.slot_mapping, self.head_sink, self.k_scale, self.v_scale)

    def given(self, heads: int, kv_heads: int) -> Given:
        """The three operands by head, as one batch."""
        query = self.query.view((1, *self.query.shape))
        key, value = (
            None if x is None else x.view((1, *x.shape)) for x in (self.key, self.value or self.key)
        )
        return unpacked(query, key, value, heads, kv_heads)


@rule("com.microsoft.PagedAttention", product=("query", "key"))
def paged_attention(
    query: TensorType,
    key: TensorType | None,
    *operands: TensorType | None,
    num_heads: int,
    kv_num_heads: int,
    do_rotary: int = 0,
    is_causal: int = 1,
    local_window_size: int = -1,
    softcap: float = 0.0,
    v_head_size: int = 0,
    outputs: Outputs = (True,),
    **others: object,
) -> Estimate:
    """Packed rows against the pages of their sequences, which are read; new rows are written into them in place."""
    of = Paged(query, key, *operands)  # type: ignore[arg-type]
    given, pages = of.given(num_heads, kv_num_heads), of.pages
    left = local_window_size - 1 if local_window_size > 0 else None
    right = 0 if is_causal else None
    problem = pages.problem(given, of.cumulative_sequence_length, v_head_size, left, right)
    parts = (
        rotation(given.query, given.key, *((of.cos_cache, of.sin_cache) if do_rotary else (None, None))),
        normed(given.query, given.key, of.q_norm_weight, of.k_norm_weight),
        reshaped_scores(problem, softcap, of.head_sink is not None),
    )
    out = query.like((query.shape[0], num_heads * problem.value.shape[-1]))
    return fused(
        chosen(outputs, out, *(cache.view(cache.shape) for cache in pages.present)),
        problem.forward(),
        *parts,
        reads=(
            query,
            key,
            of.value,
            *pages.read,
            *of.tables,
            *(read for part in parts for read in part.reads),
        ),
        writes=(out, *pages.of_rows(query.shape[0])),
    )


@dataclass(frozen=True, slots=True)
class PagedCache:
    """Keys and values in pages (block, row in block, heads, width).

    table: which blocks each sequence has.
    offsets: where the keys of each sequence begin, if known.
    """

    caches: tuple[TensorType | None, ...]
    table: TensorType
    offsets: TensorType | None

    @property
    def present(self) -> list[TensorType]:
        """The caches that are given: values may share the keys' one."""
        return [cache for cache in self.caches if cache is not None]

    @property
    def room(self) -> Dim:
        """The most rows that one sequence can have."""
        return self.table.shape[-1] * self.present[0].shape[1]

    @property
    def read(self) -> list[TensorType]:
        """The rows of all sequences; all that the table has room for where only data can tell how many."""
        return self.of_rows(sum(lengths(self.offsets) or [self.table.shape[0] * self.room]))

    def of_rows(self, rows: Dim) -> list[TensorType]:
        """So many rows of each cache."""
        return [cache.like((rows, *cache.shape[2:])) for cache in self.present]

    def problem(
        self, given: Given, offsets: TensorType, value_width: int, left: Dim | None, right: Dim | None
    ) -> Attention:
        """The attention of packed rows to the pages."""
        _, heads, tokens, width = given.query.shape
        return pack(
            given.query.like((tokens, heads, width)),
            given.key,
            given.value.like((tokens, given.value.shape[1], value_width or given.value.shape[-1])),
            *(offsets, self.offsets, self.room),
            left=left,
            right=right,
        )


def with_past(offsets: TensorType, past: TensorType) -> TensorType | None:
    """Offsets of the keys, past and new, of each sequence; None if unknown."""
    new, old = lengths(offsets), past.value
    if new is None or not isinstance(old, tuple):
        return None
    held = [length for length in old if isinstance(length, (int, Expr))]
    edges = accumulate((a + b for a, b in zip(new, held, strict=True)), initial=0)
    return replace(offsets, value=tuple(edges))


def to_places(q: TensorType, v: TensorType, scores: Dim, visible: Dim | None = None) -> Attention:
    """Attention of queries and values (..., rows, width) with that number of scores over all heads."""
    return Attention(q, q, v, None, prod(q.shape[:-1]), scores, visible)


@rule("com.microsoft.LongformerAttention", product=("x", "weight"))
def longformer_attention(
    x: TensorType,
    weight: TensorType,
    bias: TensorType,
    mask: TensorType,
    global_weight: TensorType,
    global_bias: TensorType,
    global_flags: TensorType,
    *,
    num_heads: int,
    window: int,
) -> Estimate:
    """Every row attends to itself, `window` rows before and after it, and the global rows; these attend to all rows.

    Windows are counted in full; their part outside the sequence counts as masked. The number of global rows is
    data-dependent. Both projections are of all rows.
    """
    batch, rows, _ = x.shape
    q = by_head(x, num_heads)
    chosen_rows = data_dependent("global_tokens")
    every = batch * num_heads
    near = every * rows * dim_min(2 * window + 1, rows)
    seen = every * doubled_pairs(rows, rows, left=window, right=window)
    local = to_places(q, q, near, seen).forward()
    far = to_places(q, q, 2 * every * rows * chosen_rows).forward()
    projections = [matmul(x, given) for given in (weight, global_weight)]
    parts = map(biased, projections)
    masked = work(near)
    reads = (x, weight, bias, mask, global_weight, global_bias, global_flags)
    return fused((x.like(),), local, far, masked, *parts, reads=reads)


@rule("com.microsoft.QOrderedLongformerAttention", product=("x", "weight"))
def qordered_longformer_attention(
    x: TensorType,
    scale_x: TensorType,
    weight: TensorType,
    scale_weight: TensorType,
    bias: TensorType,
    scale_bias: TensorType,
    scale_qkv: TensorType,
    mask: TensorType,
    global_weight: TensorType,
    scale_global_weight: TensorType,
    global_bias: TensorType,
    scale_global: TensorType,
    global_flags: TensorType,
    scale_output: TensorType,
    *,
    num_heads: int,
    window: int,
    **orders: object,
) -> Estimate:
    """As LongformerAttention of integers: projections and results are quantized again."""
    operands = (x, weight, bias, mask, global_weight, global_bias, global_flags)
    estimate = longformer_attention(*operands, num_heads=num_heads, window=window)
    again = (QUANTIZE - 1) * prod(x.shape[:2]) * (weight.shape[1] + global_weight.shape[1] + x.shape[2])
    scales = (scale_x, scale_weight, scale_bias, scale_qkv, scale_global_weight, scale_global, scale_output)
    vector = estimate.vector_flops + again
    return replace(estimate, vector_flops=vector, reads=(*estimate.reads, *scales))


@rule("com.microsoft.DynamicSparseAttention", product=("query", "key"))
def dynamic_sparse_attention(
    query: TensorType,
    key: TensorType | None,
    value: TensorType | None,
    past_key: TensorType | None,
    past_value: TensorType | None,
    auxiliary_key: TensorType | None,
    auxiliary_value: TensorType | None,
    selected_indices: TensorType,
    selected_counts: TensorType,
    seqlens_k: TensorType,
    total_sequence_length: TensorType,
    cos_cache: TensorType | None = None,
    sin_cache: TensorType | None = None,
    position_ids: TensorType | None = None,
    q_norm_weight: TensorType | None = None,
    k_norm_weight: TensorType | None = None,
    head_sink: TensorType | None = None,
    *,
    num_heads: int,
    kv_num_heads: int,
    attention_mode: str = "selected_only",
    do_rotary: int = 0,
    local_window_size: int = -1,
    outputs: Outputs = (True,),
    **others: object,
) -> Estimate:
    """Every row meets as many keys as may be selected for it, and in one mode those of its window too."""
    given = unpacked(query, key, value, num_heads, kv_num_heads)
    q, k, v = given.query, given.key, given.value
    keys = keys_in_all(past_key, k.shape[-2], total_sequence_length, evicting=False)
    local = dim_min(local_window_size, keys) if attention_mode == "local_plus_selected" else 0
    met = selected_indices.shape[-1] + local
    problem = to_places(q, v, prod(q.shape[:-1]) * met)
    tables = (cos_cache, sin_cache) if do_rotary else (None, None)
    parts = (rotation(q, k, *tables), normed(q, k, q_norm_weight, k_norm_weight))
    lengths = (seqlens_k, total_sequence_length, position_ids, head_sink)
    selection = (auxiliary_key, auxiliary_value, selected_indices, selected_counts)
    reads = (*given.reads, *selection, *lengths)
    return grouped(problem, given, (past_key, past_value), keys, parts, reads, outputs)


@rule("com.microsoft.SparsePagedAttention", product=("query", "key"))
def sparse_paged_attention(
    query: TensorType,
    key: TensorType | None,
    value: TensorType | None,
    key_cache: TensorType,
    value_cache: TensorType,
    cumulative_sequence_length: TensorType,
    past_seqlens: TensorType,
    block_table: TensorType,
    slot_mapping: TensorType | None,
    selected_indices: TensorType,
    selected_counts: TensorType,
    *operands: TensorType | None,
    num_heads: int,
    kv_num_heads: int,
    attention_mode: str = "selected_only",
    local_window_size: int = -1,
    outputs: Outputs = (True,),
    **others: object,
) -> Estimate:
    """As DynamicSparseAttention on packed rows and pages: the selected rows are read, the new rows written in place."""
    tokens = query.shape[0]
    together = num_heads if key is not None else num_heads + 2 * kv_num_heads
    width = packed_by_head(query, together).shape[-1]
    local = max(local_window_size, 0) if attention_mode == "local_plus_selected" else 0
    met = selected_indices.shape[-1] + local
    q = query.like((num_heads, tokens, width))
    problem = to_places(q, q, num_heads * tokens * met)
    caches = (key_cache, value_cache)
    read = (cache.like((tokens * met, *cache.shape[2:])) for cache in caches)
    new = (cache.like((tokens, *cache.shape[2:])) for cache in caches)
    tables = (cumulative_sequence_length, past_seqlens, block_table, slot_mapping)
    out = query.like((tokens, num_heads * width))
    results = chosen(outputs, out, *(cache.view(cache.shape) for cache in caches))
    reads = (query, key, value, *read, *tables, selected_indices, selected_counts, *operands)
    return fused(results, problem.forward(), reads=reads, writes=(out, *new))
