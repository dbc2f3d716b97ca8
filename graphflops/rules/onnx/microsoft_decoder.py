"""onnxruntime's attention of decoders: one row per step, DecoderAttention, grouped key heads, rotary embeddings, caches.

Several query heads share a key head: FLOPs are counted by query heads, reads of keys and values by key heads. Queries are
aligned with the last keys. A cosine and a sine row are read per position that is rotated.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from graphflops.cost import Estimate
from graphflops.dims import Dim, at_least, dim_min, prod
from graphflops.rules.attention import Attention, by_head
from graphflops.rules.matmul import matmul
from graphflops.rules.norm import MEAN_SQUARE, NORMALISE
from graphflops.rules.onnx import attention
from graphflops.rules.onnx.entries import Outputs, Touched, fused, said, size, work
from graphflops.rules.operands import Operands
from graphflops.rules.quantized import DEQUANTIZE, QUANTIZE
from graphflops.rules.registry import require, rule
from graphflops.tensor import TensorType

KIND = "attention"


BUCKETED = 8  # a distance 1, its magnitude 1, a comparison 1, a ratio 1, a product 1, a sum 1, bounds 2; and a logarithm


rule("com.microsoft.RotaryEmbedding", "com.microsoft.MRotaryEmbedding", kind="elementwise").derived(
    attention.rotary_embedding, order="x position_ids cos_cache sin_cache"
)


@rule("com.microsoft.GemmaRotaryEmbedding", kind="elementwise")
def gemma_rotary_embedding(
    angles: TensorType, q: TensorType, q_turned: TensorType, k: TensorType, k_turned: TensorType
) -> Estimate:
    """A sine and a cosine of every angle, converted; two products and a sum per element of queries and keys."""
    converted = 2 * angles.numel if angles.dtype != q.dtype else 0
    vector = converted + attention.ROTATE * (q.numel + k.numel)
    reads = (angles, q, q_turned, k, k_turned)
    return Estimate((q.like(), k.like()), 0, vector, 2 * angles.numel, reads=reads)


@rule("com.microsoft.RelativePositionBias", kind="gather")
def relative_position_bias(table: TensorType, query_length: TensorType, key_length: TensorType) -> Estimate:
    """Computes the bucket of every distance and reads its bias for every pair of positions."""
    rows, keys = (said(length, "relative_positions") for length in (query_length, key_length))
    out = table.like((1, table.shape[1], rows, keys))
    distances = rows + keys - 1
    reads = (table, query_length, key_length)
    return Estimate((out,), vector_flops=BUCKETED * distances, transcendentals=distances, reads=reads)


@rule("com.microsoft.GatedRelativePositionBias", kind="other", product=("query", "weight")).takes(
    "query query_bias rel_pos weight bias eco_a token_offset?"
)
def gated_relative_position_bias(of: Operands, *, num_heads: int) -> Estimate:
    """Queries of every head times a small weight, summed to two gates that scale the bias of every pair."""
    require(of.weight.rank == 2, f"a weight of {of.weight} is not a matrix")
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
    estimate = attention.projected_attention(
        *of.but("beam_width cache_indirection"), outputs=outputs, **given
    )
    return estimate.plus(reads=(of.beam_width, of.cache_indirection))


@rule("com.microsoft.DecoderMaskedMultiHeadAttention", product=("query", "key")).takes(
    "query key? value? mask_index? attention_bias? past_key? past_value? past_sequence_length? beam_width? "
    "cache_indirection? bias?; past_present_share_buffer=0"
)
def decoder_masked_multi_head_attention(
    of: Operands, *, outputs: Outputs = (True,), **given: Any
) -> Estimate:
    """As MultiHeadAttention for one row per sequence, over all that the past holds."""
    filled = of.past_sequence_length if of.past_present_share_buffer else None
    estimate = attention.multi_head_attention(
        *of.named("query key value bias mask_index attention_bias past_key past_value"),
        *(filled, of.cache_indirection),
        outputs=outputs,
        **given,
    )
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
    """Rotary embedding and root mean square norms of queries and new keys (batch, heads, rows, width).

    If there are tables, a row of each is read per position; heads are normalised if there are weights.
    """
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
    scores = q.like((*q.shape[:-1], keys))
    return grouped(of, problem, (q, k, v), keys, parts, reads, outputs, scores)


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
