"""onnxruntime's attention to selected keys, by a window and global tokens or by an indexer, and over packed rows.

Packed rows are all sequences one after another, (tokens, heads * width), which attend within their own sequence. Where the
contents of the offsets are known the work is the sum over the sequences; where they are not known, every row is taken to
meet as many keys as the longest sequence may have.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

from graphflops.cost import Estimate, data_dependent
from graphflops.dims import Dim, Expr, dim_min, floor_div, prod
from graphflops.rules.attention import Attention
from graphflops.rules.attention_packed import lengths, pack
from graphflops.rules.matmul import matmul
from graphflops.rules.onnx.fused import Operands, Outputs, chosen, fused, work
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


_BEHIND_KEYS = """value key_cache value_cache cumulative_sequence_length past_seqlens block_table cos_cache sin_cache
slot_mapping head_sink q_norm_weight k_norm_weight k_scale v_scale attention_metadata"""  # of PagedAttention


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
    of = Operands(_BEHIND_KEYS, operands)
    assert of.cumulative_sequence_length is not None
    assert of.past_seqlens is not None
    assert of.block_table is not None
    offsets, past = of.cumulative_sequence_length, of.past_seqlens
    one = query.view((1, *query.shape))
    keys, values = (None if x is None else x.view((1, *x.shape)) for x in (key, of.value or key))
    given = unpacked(one, keys, values, num_heads, kv_num_heads)
    pages = PagedCache((of.key_cache, of.value_cache), of.block_table, with_past(offsets, past))
    left = local_window_size - 1 if local_window_size > 0 else None
    problem = pages.problem(given, offsets, v_head_size, left, 0 if is_causal else None)
    parts = (
        rotation(given.query, given.key, *((of.cos_cache, of.sin_cache) if do_rotary else (None, None))),
        normed(given.query, given.key, of.q_norm_weight, of.k_norm_weight),
        reshaped_scores(problem, softcap, of.head_sink is not None),
    )
    tables = (of.value, offsets, past, of.block_table, of.slot_mapping, of.head_sink, of.k_scale, of.v_scale)
    out = query.like((query.shape[0], num_heads * problem.value.shape[-1]))
    return fused(
        chosen(outputs, out, *(cache.view(cache.shape) for cache in pages.present)),
        problem.forward(),
        *parts,
        reads=(query, key, *tables, *pages.read, *(read for part in parts for read in part.reads)),
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


_ORDERED = """scale_x weight scale_weight bias scale_bias scale_qkv mask global_weight scale_global_weight global_bias
scale_global global_flags scale_output"""


@rule("com.microsoft.QOrderedLongformerAttention", product=("x", "weight"))
def qordered_longformer_attention(
    x: TensorType, *operands: TensorType, num_heads: int, window: int, **orders: object
) -> Estimate:
    """As LongformerAttention of integers: projections and results are quantized again."""
    given = dict(zip(_ORDERED.split(), operands, strict=True))
    scales = tuple(scale for name, scale in given.items() if name.startswith("scale_"))
    plain = (value for name, value in given.items() if not name.startswith("scale_"))
    estimate = longformer_attention(x, *plain, num_heads=num_heads, window=window)
    wide = given["weight"].shape[1] + given["global_weight"].shape[1] + x.shape[2]
    vector = estimate.vector_flops + (QUANTIZE - 1) * prod(x.shape[:2]) * wide
    return replace(estimate, vector_flops=vector, reads=(*estimate.reads, *scales))


_BEHIND_VALUES = """past_key past_value auxiliary_key auxiliary_value selected_indices selected_counts seqlens_k
total_sequence_length cos_cache sin_cache position_ids q_norm_weight k_norm_weight head_sink"""


@rule("com.microsoft.DynamicSparseAttention", product=("query", "key"))
def dynamic_sparse_attention(
    query: TensorType,
    key: TensorType | None,
    value: TensorType | None,
    *operands: TensorType | None,
    num_heads: int,
    kv_num_heads: int,
    attention_mode: str = "selected_only",
    do_rotary: int = 0,
    local_window_size: int = -1,
    outputs: Outputs = (True,),
    **others: object,
) -> Estimate:
    """Every row meets as many keys as may be selected for it, and in one mode those of its window too."""
    of = Operands(_BEHIND_VALUES, operands)
    assert of.selected_indices is not None
    given = unpacked(query, key, value, num_heads, kv_num_heads)
    q, k, v = given.query, given.key, given.value
    keys = keys_in_all(of.past_key, k.shape[-2], of.total_sequence_length, evicting=False)
    local = dim_min(local_window_size, keys) if attention_mode == "local_plus_selected" else 0
    met = of.selected_indices.shape[-1] + local
    problem = to_places(q, v, prod(q.shape[:-1]) * met)
    tables = (of.cos_cache, of.sin_cache) if do_rotary else (None, None)
    parts = (rotation(q, k, *tables), normed(q, k, of.q_norm_weight, of.k_norm_weight))
    lengths = (of.seqlens_k, of.total_sequence_length, of.position_ids, of.head_sink)
    selection = (of.auxiliary_key, of.auxiliary_value, of.selected_indices, of.selected_counts)
    reads = (*given.reads, *selection, *lengths)
    return grouped(problem, given, (of.past_key, of.past_value), keys, parts, reads, outputs)


@rule("com.microsoft.SparsePagedAttention", product=("query", "key"))
def sparse_paged_attention(
    query: TensorType,
    key: TensorType | None,
    value: TensorType | None,
    key_cache: TensorType,
    value_cache: TensorType,
    *operands: TensorType | None,
    num_heads: int,
    kv_num_heads: int,
    attention_mode: str = "selected_only",
    local_window_size: int = -1,
    outputs: Outputs = (True,),
    **others: object,
) -> Estimate:
    """As DynamicSparseAttention on packed rows and pages: the selected rows are read, the new rows written in place."""
    selected = operands[4]  # behind offsets, lengths and tables
    assert selected is not None
    tokens = query.shape[0]
    together = num_heads if key is not None else num_heads + 2 * kv_num_heads
    width = packed_by_head(query, together).shape[-1]
    local = max(local_window_size, 0) if attention_mode == "local_plus_selected" else 0
    met = selected.shape[-1] + local
    q = query.like((num_heads, tokens, width))
    problem = to_places(q, q, num_heads * tokens * met)
    caches = (key_cache, value_cache)
    read = (cache.like((tokens * met, *cache.shape[2:])) for cache in caches)
    new = (cache.like((tokens, *cache.shape[2:])) for cache in caches)
    out = query.like((tokens, num_heads * width))
    results = chosen(outputs, out, *(cache.view(cache.shape) for cache in caches))
    return fused(results, problem.forward(), reads=(query, key, value, *read, *operands), writes=(out, *new))
