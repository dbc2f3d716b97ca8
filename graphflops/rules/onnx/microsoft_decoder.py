"""onnxruntime's attention of decoders, to selected keys, and over packed rows; rotary embeddings and caches.

Several query heads share a key head: FLOPs are counted by query heads, reads of keys and values by key heads. Queries are
aligned with the last keys. A cosine and a sine row are read per position that is rotated.

Packed rows are all sequences one after another, (tokens, heads * width); each attends within its own sequence, as in
`rules/attention.py`.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from graphflops.base.record import replace
from graphflops.cost import Estimate, data_dependent
from graphflops.dims import Dim, Expr, at_least, dim_min, floor_div, prod
from graphflops.rules.attention import Attention, by_head, lengths, pack
from graphflops.rules.matmul import matmul
from graphflops.rules.norm import MEAN_SQUARE, NORMALISE
from graphflops.rules.onnx import attention
from graphflops.rules.onnx.attention import biased, separated
from graphflops.rules.onnx.entries import Outputs, Touched, fused, size, work
from graphflops.rules.operands import Operands
from graphflops.rules.quantized import DEQUANTIZE, QUANTIZE
from graphflops.rules.registry import rule
from graphflops.rules.shapes import Shape, doubled_pairs
from graphflops.tensor import TensorType

KIND = "attention"


rule("com.microsoft.RotaryEmbedding", "com.microsoft.MRotaryEmbedding", kind="elementwise").derived(
    attention.rotary_embedding, order="x position_ids cos_cache sin_cache"
)


@rule("com.microsoft.GemmaRotaryEmbedding", kind="elementwise").takes("angles q q_turned k k_turned")
def gemma_rotary_embedding(of: Operands) -> Estimate:
    """A sine and a cosine of every angle, converted; two products and a sum per element of queries and keys."""
    angles, q, _, k, _ = of
    converted = 2 * angles.numel if angles.dtype != q.dtype else 0
    turned = attention.rotated(q, k).plus(vector_flops=converted, transcendentals=2 * angles.numel)
    return turned.plus(out=(q.like(), k.like()), reads=(*of,))


@rule("com.microsoft.GatedRelativePositionBias", kind="other", product=("query", "weight")).takes(
    "query query_bias rel_pos weight bias eco_a token_offset?"
)
def gated_relative_position_bias(of: Operands, *, num_heads: int) -> Estimate:
    """Queries of every head times a small weight, summed to two gates that scale the bias of every pair."""
    batch, rows = (of.token_offset or of.query).shape[:2]
    queries = batch * rows * num_heads
    inner, gates = of.weight.shape
    out = of.query.like((batch, num_heads, rows, of.rel_pos.shape[-1]))
    gated = queries * (2 * gates + 4)  # bias and sum of either half, then u * (r * a - 1) + 2
    product = Estimate(matrix_flops=2 * queries * inner * gates)
    parts = (product, work(of.query.numel + gated + out.numel, 2 * queries))
    return fused((out,), *parts, reads=(*of,))


@rule("com.microsoft.DecoderMaskedSelfAttention", product=("x", "weights")).takes(
    "x weights bias? mask_index? past? attention_bias? past_sequence_length? beam_width? cache_indirection?"
)
def decoder_masked_self_attention(of: Operands, *, outputs: Outputs = (True,), **given: Any) -> Estimate:
    """As Attention for one row per sequence; the beam indices of the keys are read too."""
    operands = of.but("beam_width cache_indirection")
    estimate = attention.projected_attention(*operands, outputs=outputs, **given)
    return estimate.plus(reads=(of.beam_width, of.cache_indirection))


@rule("com.microsoft.DecoderMaskedMultiHeadAttention", product=("query", "key")).takes(
    "query key? value? mask_index? attention_bias? past_key? past_value? past_sequence_length? beam_width? "
    "cache_indirection? bias?; past_present_share_buffer=0 outputs=(True,)"
)
def decoder_masked_multi_head_attention(of: Operands, **given: Any) -> Estimate:
    """As MultiHeadAttention for one row per sequence, over all that the past holds."""
    filled = of.past_sequence_length if of.past_present_share_buffer else None
    operands = of.named("query key value bias mask_index attention_bias past_key past_value")
    given |= {"outputs": of.outputs}
    estimate = attention.multi_head_attention(*operands, filled, of.cache_indirection, **given)
    return estimate.plus(reads=(of.beam_width,))


@rule("com.microsoft.DecoderAttention", product=("query", "q_weight")).takes(
    "query key q_weight kv_weight bias key_padding_mask? key_cache? value_cache? static_kv? use_past? "
    "has_layer_state? has_key_padding_mask?"
)
def decoder_attention(of: Operands, *, num_heads: int, outputs: Outputs = (True,)) -> Estimate:
    """Projections of (rows, batch, hidden) and attention.

    With `static_kv` the keys are the encoder's states, cached after the first step; without it they are the decoder's
    rows, which join the cache. A flag of unknown value counts as unset, except that a given cache is used.
    """
    rows, batch, hidden = of.query.shape
    crossed, cached = size(of.static_kv) == 1, of.key_cache is not None and size(of.use_past) != 0
    source = of.key if crossed else of.query
    q = by_head(of.query.like((batch, rows, hidden)), num_heads)
    held = of.key_cache.shape[2] if cached else 0
    fresh = 0 if crossed and cached else source.shape[0]
    keys = held + fresh
    problem = attention.attention_to(q, num_heads, keys, q.shape[-1])
    products = (matmul(of.query, of.q_weight), matmul(source.like((fresh, batch, hidden)), of.kv_weight))
    pasts = of.named("key_cache value_cache") if cached else (None, None)
    key = of.key if crossed and fresh != 0 else None
    return attention.attended(
        problem,
        of.query.like(),
        tuple(attention.Cache(past, attention.rows_of(q, fresh), keys) for past in pasts),
        *map(attention.biased, products),
        attention.per_score(problem, of.key_padding_mask),
        reads=(of.query, key, *of.named("q_weight kv_weight bias key_padding_mask")),
        outputs=outputs,
    )


NORMED = MEAN_SQUARE + NORMALISE + 1  # a root mean square norm with a weight, per element


def prepared(of: Operands, query: TensorType, key: TensorType) -> tuple[Estimate, Estimate]:
    """Rotary embedding by tables, a row read per position, and norms by weights, of queries and new keys by head."""
    rotation, (cos, sin, *weights) = work(0), of.named("cos_cache sin_cache q_norm_weight k_norm_weight")
    if of.do_rotary and cos is not None and sin is not None:
        places = (query.shape[0], query.shape[-2], cos.shape[-1])
        turned = attention.rotated(query, key, width=2 * cos.shape[-1])
        rotation = replace(turned, reads=(cos.like(places), sin.like(places)))
    parts = [x for x, weight in zip((query, key), weights, strict=True) if weight is not None]
    elements, rows = sum(x.numel for x in parts), sum(prod(x.shape[:-1]) for x in parts)
    return rotation, Estimate(vector_flops=NORMED * elements, transcendentals=rows, reads=tuple(weights))


def reshaped_scores(problem: Attention, softcap: float, sink: bool) -> Estimate:
    """A tanh cap on the scores, and one more term in each row's sum."""
    capped = problem.scores * (softcap != 0)
    return work(attention.SOFTCAP * capped + problem.rows * sink, capped + problem.rows * sink)


@rule("com.microsoft.GroupQueryAttention", product=("query", "key")).takes(
    "query key? value? past_key? past_value? seqlens_k? total_sequence_length? cos_cache? sin_cache? position_ids? "
    "attention_bias? head_sink? k_scale? v_scale? q_norm_weight? k_norm_weight? query_seqlens?; num_heads kv_num_heads "
    "causal=1 do_rotary=0 local_window_size=-1 softcap=0.0 smooth_softmax=-1 sliding_window_cache=0"
)
def group_query_attention(of: Operands, *, outputs: Outputs = (True,), **others: object) -> Estimate:
    """The two products over all keys so far; every sequence is assumed to have the greatest length.

    That length is the value of `total_sequence_length`, or if this is not known, the past and the new rows. A cache
    that is long enough is a buffer, to which only the new rows are written.
    """
    q, k, v = attention.separated(of.query, of.key, of.value, of.num_heads, of.kv_num_heads)
    keys = keys_in_all(of.past_key, k.shape[-2], of.total_sequence_length, of.sliding_window_cache != 0)
    window = of.local_window_size if of.local_window_size > 0 else None
    problem = attention.attention_to(
        q, of.kv_num_heads, keys, v.shape[-1], of.attention_bias, causal=of.causal != 0, window=window
    )
    narrow = [x.shape[-1] for x, scale in ((k, of.k_scale), (v, of.v_scale)) if scale is not None]
    parts = (
        *prepared(of, q, k),
        reshaped_scores(problem, of.softcap, of.head_sink is not None or of.smooth_softmax > 0),
        # in a cache of few bits, new rows are quantized and all rows dequantized, without zero points
        work(
            ((QUANTIZE - 1) * k.shape[-2] + (DEQUANTIZE - 1) * keys) * k.shape[0] * k.shape[1] * sum(narrow)
        ),
    )
    reads = of.but("past_key past_value cos_cache sin_cache q_norm_weight k_norm_weight query_seqlens")
    return grouped(of, problem, (q, k, v), keys, parts, reads, outputs, q.like((*q.shape[:-1], keys)))


def grouped(
    of: Operands,
    problem: Attention,
    given: tuple[TensorType, TensorType, TensorType],
    keys: Dim,
    parts: tuple[Estimate, ...],
    reads: Touched,
    outputs: Outputs,
    *more: TensorType,
) -> Estimate:
    """Attention of grouped heads over a cache, and the parts that go with it; `more` are further results."""
    (q, k, v), pasts = given, of.named("past_key past_value")
    # In place where the past is provably long enough, else it grows.
    shared = [past is not None and at_least(past.shape[-2], keys) for past in pasts]
    return attention.attended(
        problem,
        attention.merged(q, v.shape[-1]),
        tuple(map(attention.Cache, pasts, (k, v), (keys, keys), shared)),
        *parts,
        reads=(*reads, *(table for part in parts for table in part.reads)),
        outputs=outputs,
        more=more,
    )


def keys_in_all(past: TensorType | None, rows: Dim, length: TensorType | None, evicting: bool) -> Dim:
    """The number of keys so far; an evicting buffer may hold fewer."""
    held = past.shape[-2] if past is not None else 0
    said = size(length)
    if said is None:
        return held + rows
    return dim_min(said, held + rows) if evicting else said


@rule("com.microsoft.SparseAttention", product=("query", "key")).takes(
    "query key? value? past_key past_value row_indices column_indices length lengths cos_cache? sin_cache?"
)
def sparse_attention(of: Operands, *, outputs: Outputs = (True,), **given: Any) -> Estimate:
    """As GroupQueryAttention with a cache in place; only scores hidden by causality count as masked."""
    operands = of.named("query key value past_key past_value lengths length cos_cache sin_cache")
    estimate = group_query_attention(*operands, outputs=outputs, **given)
    return estimate.plus(reads=(of.row_indices, of.column_indices))


def packed_by_head(x: TensorType, heads: Dim) -> TensorType:
    """The operand (tokens, heads * width) as (tokens, heads, width)."""
    tokens, hidden = x.shape
    return x.view((tokens, heads, floor_div(hidden, heads)))


def within(of: Operands, q: TensorType, v: TensorType) -> Attention:
    """Self-attention of packed rows (tokens, heads, width); `token_offset` is (batch, padded length)."""
    padded, offsets = of.token_offset, of.cumulative_sequence_length
    longest = q.shape[0] if padded is None else padded.shape[-1]
    return replace(pack(q, q, v, offsets, offsets, longest), mask=of.attention_bias)


@rule("com.microsoft.PackedMultiHeadAttention", product=("query", "key")).takes(
    "query key? value? bias? token_offset? cumulative_sequence_length? attention_bias?"
)
def packed_multi_head_attention(of: Operands, *, num_heads: int) -> Estimate:
    """The two products of attention, after the biases of the projections; a query of four axes holds all three operands."""
    tokens = of.query.shape[0]
    rows = of.query.like((tokens, num_heads * of.query.shape[-1])) if of.query.rank == 4 else of.query
    q, v = packed_by_head(rows, num_heads), packed_by_head(rows if of.value is None else of.value, num_heads)
    biased = 2 * q.numel + v.numel if of.bias is not None else 0
    out = of.query.like((tokens, num_heads * v.shape[-1]))
    return fused((out,), within(of, q, v).forward(), work(biased), reads=(*of,))


@rule("com.microsoft.PackedAttention", product=("x", "weights")).takes(
    "x weights bias? token_offset? cumulative_sequence_length? attention_bias?"
)
def packed_attention(of: Operands, *, num_heads: int, qkv_hidden_sizes: Shape = ()) -> Estimate:
    """One projection of the packed rows, and attention within each sequence."""
    tokens, hidden = of.x.shape
    third = floor_div(of.weights.shape[1], 3)
    wide_q, _, wide_v = qkv_hidden_sizes or (third, third, third)
    q, v = (packed_by_head(of.x.like((tokens, wide)), num_heads) for wide in (wide_q, wide_v))
    projected = tokens * of.weights.shape[1]
    product = work(0 if of.bias is None else projected).plus(matrix_flops=2 * projected * hidden)
    return fused((of.x.like((tokens, wide_v)),), product, within(of, q, v).forward(), reads=(*of,))


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
