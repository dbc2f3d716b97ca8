"""onnxruntime's attention to selected keys: a window and a few global tokens, or the choice of an indexer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.cost import Estimate, data_dependent
from graphflops.dims import Dim, dim_min, prod
from graphflops.rules.attention import Attention
from graphflops.rules.matmul import matmul
from graphflops.rules.onnx.fused import Outputs, chosen, fused, work
from graphflops.rules.onnx.microsoft_attention import biased, by_head
from graphflops.rules.onnx.microsoft_grouped import grouped, keys_in_all, normed, rotation, unpacked
from graphflops.rules.onnx.microsoft_packed import packed_by_head
from graphflops.rules.quantized import QUANTIZE
from graphflops.rules.registry import rule
from graphflops.rules.shapes import doubled_pairs

if TYPE_CHECKING:
    from graphflops.tensor import TensorType

KIND = "attention"


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
