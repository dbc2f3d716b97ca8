"""onnxruntime's attention of decoders with one row per step, DecoderAttention, which flags control, and positions.

Of positions: rotations of queries and keys, biases by relative position.
"""

from __future__ import annotations

from dataclasses import replace

from graphflops.cost import Estimate, data_dependent
from graphflops.dims import Dim
from graphflops.rules.matmul import matmul
from graphflops.rules.onnx.entries import size
from graphflops.rules.onnx.fused import Operands, Outputs, fused, work
from graphflops.rules.onnx.microsoft_attention import (
    ROTATE,
    Cache,
    attended,
    attention,
    biased,
    by_head,
    meet,
    multi_head_attention,
    per_score,
    rotated,
    rows_of,
)
from graphflops.rules.registry import require, rule
from graphflops.tensor import TensorType

KIND = "attention"


BUCKETED = 8  # a distance 1, its magnitude 1, a comparison 1, a ratio 1, a product 1, a sum 1, bounds 2; and a logarithm


def with_tables(
    x: TensorType,
    positions: TensorType,
    cos: TensorType,
    sin: TensorType,
    heads: int,
    width: int,
    places: tuple[Dim, ...],
) -> Estimate:
    """The rotation of `x`, which reads a row of each table per position."""
    by_heads = by_head(x, heads) if x.rank == 3 and heads else x
    rows = cos.like((*places, cos.shape[-1]))
    return fused((x.like(),), rotated(by_heads, width=width), reads=(x, positions, rows, rows))


@rule("com.microsoft.RotaryEmbedding", kind="elementwise")
def rotary_embedding(
    x: TensorType,
    positions: TensorType,
    cos_cache: TensorType,
    sin_cache: TensorType,
    *,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Estimate:
    """Two products and a sum per rotated element; a single position is that of the first row."""
    rows = x.shape[-2]
    places = positions.shape if positions.rank == 2 else (rows,)
    return with_tables(x, positions, cos_cache, sin_cache, num_heads, rotary_embedding_dim, places)


@rule("com.microsoft.MRotaryEmbedding", kind="elementwise")
def mrotary_embedding(
    x: TensorType,
    positions: TensorType,
    cos_cache: TensorType,
    sin_cache: TensorType,
    *,
    mrope_section: tuple[int, ...],
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Estimate:
    """As RotaryEmbedding with three positions per row, each for a section of the channels."""
    places = positions.shape[1:]
    return with_tables(x, positions, cos_cache, sin_cache, num_heads, rotary_embedding_dim, places)


@rule("com.microsoft.GemmaRotaryEmbedding", kind="elementwise")
def gemma_rotary_embedding(
    angles: TensorType, q: TensorType, q_turned: TensorType, k: TensorType, k_turned: TensorType
) -> Estimate:
    """A sine and a cosine of every angle, converted; two products and a sum per element of queries and keys."""
    converted = 2 * angles.numel if angles.dtype != q.dtype else 0
    vector = converted + ROTATE * (q.numel + k.numel)
    reads = (angles, q, q_turned, k, k_turned)
    return Estimate((q.like(), k.like()), 0, vector, 2 * angles.numel, reads=reads)


@rule("com.microsoft.RelativePositionBias", kind="gather")
def relative_position_bias(
    table: TensorType, query_length: TensorType, key_length: TensorType, *, max_distance: int
) -> Estimate:
    """Computes the bucket of every distance and reads its bias for every pair of positions."""
    lengths = (size(query_length), size(key_length))
    rows, keys = (data_dependent("relative_positions") if length is None else length for length in lengths)
    out = table.like((1, table.shape[1], rows, keys))
    distances = rows + keys - 1
    reads = (table, query_length, key_length)
    return Estimate((out,), vector_flops=BUCKETED * distances, transcendentals=distances, reads=reads)


@rule("com.microsoft.GatedRelativePositionBias", kind="other", product=("query", "weight"))
def gated_relative_position_bias(
    query: TensorType,
    query_bias: TensorType,
    rel_pos: TensorType,
    weight: TensorType,
    bias: TensorType,
    eco_a: TensorType,
    token_offset: TensorType | None = None,
    *,
    num_heads: int,
) -> Estimate:
    """Queries of every head times a small weight, summed to two gates that scale the bias of every pair."""
    require(weight.rank == 2, f"a weight of {weight} is not a matrix")
    batch, rows = (token_offset or query).shape[:2]
    queries = batch * rows * num_heads
    inner, gates = weight.shape
    out = query.like((batch, num_heads, rows, rel_pos.shape[-1]))
    gated = queries * (2 * gates + 4)  # bias and sum of either half, then u * (r * a - 1) + 2
    product = Estimate(matrix_flops=2 * queries * inner * gates)
    parts = (product, work(query.numel + gated + out.numel, 2 * queries))
    reads = (query, query_bias, rel_pos, weight, bias, eco_a, token_offset)
    return fused((out,), *parts, reads=reads)


@rule("com.microsoft.DecoderMaskedSelfAttention", product=("x", "weights"))
def decoder_masked_self_attention(
    x: TensorType,
    weights: TensorType,
    *operands: TensorType | None,
    num_heads: int,
    past_present_share_buffer: int = 0,
    do_rotary: int = 0,
    outputs: Outputs = (True,),
) -> Estimate:
    """As Attention for one row per sequence; the beam indices of the keys are read too."""
    own, beams = operands[:5], operands[5:]
    estimate = attention(
        *(x, weights, *own),  # type: ignore[arg-type]
        num_heads=num_heads,
        past_present_share_buffer=past_present_share_buffer,
        do_rotary=do_rotary,
        outputs=outputs,
    )
    return replace(estimate, reads=(*estimate.reads, *beams))


_BEHIND_VALUES = (
    """mask_index attention_bias past_key past_value past_sequence_length beam_width cache_indirection bias"""
)


@rule("com.microsoft.DecoderMaskedMultiHeadAttention", product=("query", "key"))
def decoder_masked_multi_head_attention(
    query: TensorType,
    key: TensorType | None = None,
    value: TensorType | None = None,
    *operands: TensorType | None,
    num_heads: int,
    past_present_share_buffer: int = 0,
    outputs: Outputs = (True,),
) -> Estimate:
    """As MultiHeadAttention for one row per sequence, over all that the past holds."""
    of = Operands(_BEHIND_VALUES, operands)
    filled = of.past_sequence_length if past_present_share_buffer else None
    estimate = multi_head_attention(
        *(query, key, value, of.bias, of.mask_index, of.attention_bias),
        *(of.past_key, of.past_value, filled, of.cache_indirection),
        num_heads=num_heads,
        outputs=outputs,
    )
    return replace(estimate, reads=(*estimate.reads, of.beam_width))


@rule("com.microsoft.DecoderAttention", product=("query", "q_weight"))
def decoder_attention(
    query: TensorType,
    key: TensorType,
    q_weight: TensorType,
    kv_weight: TensorType,
    bias: TensorType,
    key_padding_mask: TensorType | None = None,
    key_cache: TensorType | None = None,
    value_cache: TensorType | None = None,
    static_kv: TensorType | None = None,
    use_past: TensorType | None = None,
    *flags: TensorType | None,
    num_heads: int,
    outputs: Outputs = (True,),
    **others: object,
) -> Estimate:
    """Projections of (rows, batch, hidden) and attention.

    With `static_kv` the keys are the encoder's states, cached after the first step; without it they are the decoder's
    rows, which join the cache. A flag of unknown value counts as unset, except that a given cache is used.
    """
    rows, batch, hidden = query.shape
    crossed, cached = size(static_kv) == 1, key_cache is not None and size(use_past) != 0
    source = key if crossed else query
    q = by_head(query.like((batch, rows, hidden)), num_heads)
    held = key_cache.shape[2] if key_cache is not None and cached else 0
    fresh = 0 if crossed and cached else source.shape[0]
    keys = held + fresh
    problem = meet(q, num_heads, keys, q.shape[-1])
    products = (matmul(query, q_weight), matmul(source.like((fresh, batch, hidden)), kv_weight))
    states = (Cache(past if cached else None, rows_of(q, fresh), keys) for past in (key_cache, value_cache))
    return attended(
        problem,
        query.like(),
        tuple(states),
        *map(biased, products),
        per_score(problem, key_padding_mask),
        reads=(query, key if crossed and fresh != 0 else None, q_weight, kv_weight, bias, key_padding_mask),
        outputs=outputs,
    )
