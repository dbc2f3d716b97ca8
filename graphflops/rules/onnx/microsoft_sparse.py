"""onnxruntime's attention to selected keys, by a window and global tokens or by an indexer, and over packed rows.

Packed rows are all sequences one after another, (tokens, heads * width); each attends within its own sequence. If the
contents of the offsets are known, the work is the sum over the sequences; if they are not, every row is assumed to attend to
as many keys as the longest sequence may have.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from msgspec.structs import replace

from graphflops.cost import Estimate, data_dependent
from graphflops.dims import Dim, Expr, dim_min, floor_div, prod
from graphflops.rules.attention import Attention, by_head, lengths, pack
from graphflops.rules.matmul import matmul
from graphflops.rules.onnx.attention import Sizes, biased, separated
from graphflops.rules.onnx.entries import Outputs, fused, work
from graphflops.rules.onnx.microsoft_decoder import grouped, keys_in_all, prepared, reshaped_scores
from graphflops.rules.operands import Operands
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


@rule("com.microsoft.PackedMultiHeadAttention", product=("query", "key")).takes(
    "query key? value? bias? token_offset? cumulative_sequence_length? attention_bias?"
)
def packed_multi_head_attention(of: Operands, *, num_heads: int) -> Estimate:
    """The two products of attention, after the biases of the projections; a query of four axes holds all three operands."""
    tokens = of.query.shape[0]
    rows = of.query.like((tokens, num_heads * of.query.shape[-1])) if of.query.rank == 4 else of.query
    q, v = packed_by_head(rows, num_heads), packed_by_head(rows if of.value is None else of.value, num_heads)
    problem = replace(within(q, v, of.token_offset, of.cumulative_sequence_length), mask=of.attention_bias)
    biased = 2 * q.numel + v.numel if of.bias is not None else 0
    out = of.query.like((tokens, num_heads * v.shape[-1]))
    return fused((out,), problem.forward(), work(biased), reads=(*of,))


@rule("com.microsoft.PackedAttention", product=("x", "weights")).takes(
    "x weights bias? token_offset? cumulative_sequence_length? attention_bias?"
)
def packed_attention(of: Operands, *, num_heads: int, qkv_hidden_sizes: Sizes = ()) -> Estimate:
    """One projection of the packed rows, and attention within each sequence."""
    tokens, hidden = of.x.shape
    third = floor_div(of.weights.shape[1], 3)
    wide_q, _, wide_v = qkv_hidden_sizes or (third, third, third)
    q, v = (packed_by_head(of.x.like((tokens, wide)), num_heads) for wide in (wide_q, wide_v))
    problem = replace(within(q, v, of.token_offset, of.cumulative_sequence_length), mask=of.attention_bias)
    projected = tokens * of.weights.shape[1]
    product = Estimate((), 2 * projected * hidden, projected if of.bias is not None else 0)
    return fused((of.x.like((tokens, wide_v)),), product, problem.forward(), reads=(*of,))


@rule("com.microsoft.PagedAttention", product=("query", "key")).takes(
    "query key? value? key_cache? value_cache? cumulative_sequence_length past_seqlens block_table cos_cache? sin_cache? "
    "slot_mapping? head_sink? q_norm_weight? k_norm_weight? k_scale? v_scale? attention_metadata?; num_heads kv_num_heads "
    "do_rotary=0 is_causal=1 local_window_size=-1 softcap=0.0 v_head_size=0"
)
def paged_attention(of: Operands) -> Estimate:
    """Packed rows against the pages of their sequences, which are read; new rows are written into them in place."""
    offsets, tokens, room = of.cumulative_sequence_length, of.query.shape[0], of.block_table.shape[-1]
    query, key, value = (x and x.view((1, *x.shape)) for x in (of.query, of.key, of.value or of.key))
    q, k, v = separated(query, key, value, of.num_heads, of.kv_num_heads)
    # values may share one with keys
    pages = [cache for cache in of.named("key_cache value_cache") if cache is not None]
    room *= pages[0].shape[1]  # rows that one sequence can have
    held = with_past(offsets, of.past_seqlens)
    queries, values = q.like((tokens, of.num_heads, q.shape[-1])), (v.shape[1], of.v_head_size or v.shape[-1])
    left, right = of.local_window_size - 1 if of.local_window_size > 0 else None, 0 if of.is_causal else None
    problem = pack(queries, k, v.like((tokens, *values)), offsets, held, room, left=left, right=right)
    parts = (*prepared(of, q, k), reshaped_scores(problem, of.softcap, of.head_sink is not None))
    # If the number of rows depends on data, all rows that the table has room for.
    rows = sum(lengths(held) or [of.block_table.shape[0] * room])
    reads = of.but("key_cache value_cache cos_cache sin_cache q_norm_weight k_norm_weight attention_metadata")
    out = of.query.like((tokens, of.num_heads * problem.value.shape[-1]))
    return fused(
        (out, *(cache.view(cache.shape) for cache in pages)),
        problem.forward(),
        *parts,
        reads=(*reads, *of_rows(pages, rows), *(read for part in parts for read in part.reads)),
        writes=(out, *of_rows(pages, tokens)),
    )


def of_rows(pages: Sequence[TensorType], rows: Dim) -> list[TensorType]:
    """So many rows of each cache of pages (block, row in block, heads, width)."""
    return [cache.like((rows, *cache.shape[2:])) for cache in pages]


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


@rule("com.microsoft.LongformerAttention", product=("x", "weight")).takes(
    "x weight bias mask global_weight global_bias global_flags"
)
def longformer_attention(of: Operands, *, num_heads: int, window: int) -> Estimate:
    """Every row attends to itself, `window` rows before and after it, and the global rows; these attend to all rows.

    Windows are counted in full; their part outside the sequence counts as masked. The number of global rows is
    data-dependent. Both projections are of all rows.
    """
    batch, rows, _ = of.x.shape
    q = by_head(of.x, num_heads)
    chosen_rows = data_dependent("global_tokens")
    every = batch * num_heads
    near = every * rows * dim_min(2 * window + 1, rows)
    seen = every * doubled_pairs(rows, rows, left=window, right=window)
    local = to_places(q, q, near, seen).forward()
    far = to_places(q, q, 2 * every * rows * chosen_rows).forward()
    projections = [matmul(of.x, given) for given in (of.weight, of.global_weight)]
    return fused((of.x.like(),), local, far, work(near), *map(biased, projections), reads=(*of,))


_SCALES = "scale_x scale_weight scale_bias scale_qkv scale_global_weight scale_global scale_output"


@rule("com.microsoft.QOrderedLongformerAttention", product=("x", "weight")).takes(
    "x scale_x weight scale_weight bias scale_bias scale_qkv mask global_weight scale_global_weight global_bias "
    "scale_global global_flags scale_output"
)
def qordered_longformer_attention(of: Operands, *, num_heads: int, window: int) -> Estimate:
    """As LongformerAttention of integers: projections and results are quantized again."""
    estimate = longformer_attention(*of.but(_SCALES), num_heads=num_heads, window=window)
    wide = of.weight.shape[1] + of.global_weight.shape[1] + of.x.shape[2]
    requantized = (QUANTIZE - 1) * prod(of.x.shape[:2]) * wide
    return estimate.plus(vector_flops=requantized, reads=of.named(_SCALES))


@rule("com.microsoft.DynamicSparseAttention", product=("query", "key")).takes(
    "query key? value? past_key? past_value? auxiliary_key? auxiliary_value? selected_indices selected_counts? seqlens_k? "
    "total_sequence_length? cos_cache? sin_cache? position_ids? q_norm_weight? k_norm_weight? head_sink? "
    "committed_length? key_scale? value_scale?; num_heads kv_num_heads attention_mode='selected_only' do_rotary=0 "
    "local_window_size=-1"
)
def dynamic_sparse_attention(of: Operands, *, outputs: Outputs = (True,)) -> Estimate:
    """Every row meets as many keys as may be selected for it, and in one mode also those of its window."""
    q, k, v = separated(of.query, of.key, of.value, of.num_heads, of.kv_num_heads)
    keys = keys_in_all(of.past_key, k.shape[-2], of.total_sequence_length, evicting=False)
    local = dim_min(of.local_window_size, keys) if of.attention_mode == "local_plus_selected" else 0
    met = of.selected_indices.shape[-1] + local
    problem = to_places(q, v, prod(q.shape[:-1]) * met)
    reads = of.named("query key value auxiliary_key auxiliary_value selected_indices selected_counts")
    reads += of.named("seqlens_k total_sequence_length position_ids head_sink")
    return grouped(of, problem, (q, k, v), keys, prepared(of, q, k), reads, outputs)


@rule("com.microsoft.SparsePagedAttention", product=("query", "key")).takes(
    "query key? value? key_cache value_cache cumulative_sequence_length? past_seqlens? block_table? slot_mapping? "
    "selected_indices selected_counts? auxiliary_key? auxiliary_value? auxiliary_lengths? cos_cache? sin_cache? "
    "head_sink? q_norm_weight? k_norm_weight? k_scale? v_scale? attention_metadata?; num_heads kv_num_heads "
    "attention_mode='selected_only' local_window_size=-1"
)
def sparse_paged_attention(of: Operands) -> Estimate:
    """As DynamicSparseAttention on packed rows and pages: the selected rows are read, the new rows written in place."""
    tokens, num_heads = of.query.shape[0], of.num_heads
    together = num_heads if of.key is not None else num_heads + 2 * of.kv_num_heads
    width = packed_by_head(of.query, together).shape[-1]
    local = max(of.local_window_size, 0) if of.attention_mode == "local_plus_selected" else 0
    met = of.selected_indices.shape[-1] + local
    q = of.query.like((num_heads, tokens, width))
    problem = to_places(q, q, num_heads * tokens * met)
    caches = of.named("key_cache value_cache")
    reads = (of.query, *of_rows(caches, tokens * met), *of.but("query key_cache value_cache"))
    out = of.query.like((tokens, num_heads * width))
    results = (out, *(cache.view(cache.shape) for cache in caches))
    return fused(results, problem.forward(), reads=reads, writes=(out, *of_rows(caches, tokens)))
