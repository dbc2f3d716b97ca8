"""onnxruntime's attention of decoders: grouped key heads, rotary embeddings, a cache of keys and values.

Several query heads share a key head: FLOPs go by query heads, keys and values are read by their own. Queries are
aligned with the last keys. A cosine and a sine row are read per position that is rotated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from graphflops.cost import Estimate
from graphflops.dims import Dim, at_least, dim_min, prod
from graphflops.rules.attention import Attention
from graphflops.rules.norm import MEAN_SQUARE, NORMALISE
from graphflops.rules.onnx.entries import size
from graphflops.rules.onnx.fused import Outputs, Touched, work
from graphflops.rules.onnx.microsoft_attention import Cache, attended, by_head, meet, merged, rotated
from graphflops.rules.operands import Operands, takes
from graphflops.rules.quantized import DEQUANTIZE, QUANTIZE
from graphflops.rules.registry import require, rule
from graphflops.tensor import TensorType

KIND = "attention"

NORMED = MEAN_SQUARE + NORMALISE + 1  # a root mean square norm with a weight, per element
CAPPED = 2  # divide 1, multiply 1; and a tanh


@dataclass(frozen=True, slots=True)
class Given:
    """Queries, keys and values (batch, heads, rows, width), and what was read for them."""

    query: TensorType
    key: TensorType
    value: TensorType
    reads: tuple[TensorType | None, ...]


def unpacked(
    query: TensorType, key: TensorType | None, value: TensorType | None, heads: Dim, kv_heads: Dim
) -> Given:
    """The three operands by head; a query without keys holds all three."""
    if key is None:
        batch, rows, _ = query.shape
        width = by_head(query, heads + 2 * kv_heads).shape[-1]
        q, k = (query.like((batch, count, rows, width)) for count in (heads, kv_heads))
        return Given(q, k, k, (query,))
    require(value is not None, "keys are given without values")
    assert value is not None
    return Given(by_head(query, heads), by_head(key, kv_heads), by_head(value, kv_heads), (query, key, value))


def rotation(query: TensorType, key: TensorType, cos: TensorType | None, sin: TensorType | None) -> Estimate:
    """Rotary embedding of queries and new keys (batch, heads, rows, width), reading a row of each table per position."""
    if cos is None or sin is None:
        return work(0)
    places = (query.shape[0], query.shape[-2], cos.shape[-1])
    turned = rotated(query, key, width=2 * cos.shape[-1])
    return replace(turned, reads=(cos.like(places), sin.like(places)))


def normed(
    query: TensorType, key: TensorType, q_weight: TensorType | None, k_weight: TensorType | None
) -> Estimate:
    """Root mean square norms of each head's queries and new keys, where they are given weights."""
    parts = [x for x, weight in ((query, q_weight), (key, k_weight)) if weight is not None]
    elements, rows = sum(x.numel for x in parts), sum(prod(x.shape[:-1]) for x in parts)
    return Estimate(vector_flops=NORMED * elements, transcendentals=rows, reads=(q_weight, k_weight))


def reshaped_scores(problem: Attention, softcap: float, sink: bool) -> Estimate:
    """A tanh cap on the scores, and one more term in each row's sum."""
    capped = problem.scores * (softcap != 0)
    return work(CAPPED * capped + problem.rows * sink, capped + problem.rows * sink)


def narrow_cache(quantized: bool, state: TensorType, keys: Dim, rows: Dim) -> Estimate:
    """Work of a cache of few bits: new rows are quantized, all rows dequantized, without zero points."""
    batch, heads, _, width = state.shape
    new, held = batch * heads * rows * width, batch * heads * keys * width
    return work(((QUANTIZE - 1) * new + (DEQUANTIZE - 1) * held) * quantized)


@rule("com.microsoft.GroupQueryAttention", product=("query", "key"))
@takes(
    "query key? value? past_key? past_value? seqlens_k? total_sequence_length? cos_cache? sin_cache? position_ids? "
    "attention_bias? head_sink? k_scale? v_scale? q_norm_weight? k_norm_weight? query_seqlens?"
)
def group_query_attention(
    of: Operands,
    *,
    num_heads: int,
    kv_num_heads: int,
    causal: int = 1,
    do_rotary: int = 0,
    local_window_size: int = -1,
    softcap: float = 0.0,
    smooth_softmax: int = -1,
    sliding_window_cache: int = 0,
    outputs: Outputs = (True,),
) -> Estimate:
    """The two products over all keys so far, every sequence taken to have the greatest length.

    That length is the value of `total_sequence_length`; where it is not known, the past and the new rows. A cache
    that is long enough is a buffer, of which only the new rows are written.
    """
    given = unpacked(of.query, of.key, of.value, num_heads, kv_num_heads)
    q, k, v = given.query, given.key, given.value
    keys = keys_in_all(of.past_key, k.shape[-2], of.total_sequence_length, sliding_window_cache != 0)
    window = local_window_size if local_window_size > 0 else None
    problem = meet(q, kv_num_heads, keys, v.shape[-1], of.attention_bias, causal=causal != 0, window=window)
    narrow = ((k, of.k_scale), (v, of.v_scale))
    parts = (
        rotation(q, k, *((of.cos_cache, of.sin_cache) if do_rotary else (None, None))),
        normed(q, k, of.q_norm_weight, of.k_norm_weight),
        reshaped_scores(problem, softcap, of.head_sink is not None or smooth_softmax > 0),
        *(narrow_cache(scale is not None, x, keys, k.shape[-2]) for x, scale in narrow),
    )
    more = of.named("seqlens_k total_sequence_length position_ids attention_bias head_sink k_scale v_scale")
    scores, reads = (q.like((*q.shape[:-1], keys)),), (*given.reads, *more)
    return grouped(problem, given, (of.past_key, of.past_value), keys, parts, reads, outputs, scores)


def grouped(
    problem: Attention,
    given: Given,
    pasts: tuple[TensorType | None, TensorType | None],
    keys: Dim,
    parts: tuple[Estimate, ...],
    reads: Touched,
    outputs: Outputs,
    more: tuple[TensorType, ...] = (),
) -> Estimate:
    """Attention of grouped heads over a cache, and the parts that go with it; `more` are further results."""
    q, v = given.query, given.value
    fresh = zip(pasts, (given.key, v), strict=True)
    return attended(
        problem,
        merged(q, v.shape[-1]),
        tuple(state(past, x, keys) for past, x in fresh),
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


def state(past: TensorType | None, fresh: TensorType, keys: Dim) -> Cache:
    """The cache of keys or values: in place if it is provably long enough, else it grows."""
    return Cache(past, fresh, keys, past is not None and at_least(past.shape[-2], keys))


@rule("com.microsoft.SparseAttention", product=("query", "key"))
@takes(
    "query key? value? past_key past_value row_indices column_indices length lengths cos_cache? sin_cache?"
)
def sparse_attention(
    of: Operands, *, num_heads: int, kv_num_heads: int, do_rotary: int = 0, outputs: Outputs = (True,)
) -> Estimate:
    """As GroupQueryAttention with a cache in place; only scores hidden by causality count as masked."""
    estimate = group_query_attention(
        *of.named("query key value past_key past_value lengths length cos_cache sin_cache"),
        num_heads=num_heads,
        kv_num_heads=kv_num_heads,
        do_rotary=do_rotary,
        outputs=outputs,
    )
    return replace(estimate, reads=(*estimate.reads, of.row_indices, of.column_indices))
