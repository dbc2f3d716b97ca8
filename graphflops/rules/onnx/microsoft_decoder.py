"""onnxruntime's attention of decoders with one row per step, DecoderAttention, which flags control, and positions.

Of positions: rotations of queries and keys, biases by relative position.
"""

from __future__ import annotations

from dataclasses import replace

from graphflops.cost import Estimate, data_dependent
from graphflops.dims import Dim
from graphflops.rules.matmul import matmul
from graphflops.rules.onnx.entries import size
from graphflops.rules.onnx.fused import Outputs, fused, work
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
from graphflops.rules.operands import Operands, takes
from graphflops.rules.registry import require, rule
from graphflops.tensor import TensorType

KIND = "attention"


BUCKETED = 8  # a distance 1, its magnitude 1, a comparison 1, a ratio 1, a product 1, a sum 1, bounds 2; and a logarithm


def with_tables(of: Operands, heads: int, width: int, places: tuple[Dim, ...]) -> Estimate:
    """The rotation of `x`, which reads a row of each table per position."""
    by_heads = by_head(of.x, heads) if of.x.rank == 3 and heads else of.x
    rows = of.cos_cache.like((*places, of.cos_cache.shape[-1]))
    return fused((of.x.like(),), rotated(by_heads, width=width), reads=(of.x, of.positions, rows, rows))


@rule("com.microsoft.RotaryEmbedding", kind="elementwise")
@takes("x positions cos_cache sin_cache")
def rotary_embedding(of: Operands, *, num_heads: int = 0, rotary_embedding_dim: int = 0) -> Estimate:
    """Two products and a sum per rotated element; a single position is that of the first row."""
    places = of.positions.shape if of.positions.rank == 2 else of.x.shape[-2:-1]
    return with_tables(of, num_heads, rotary_embedding_dim, places)


@rule("com.microsoft.MRotaryEmbedding", kind="elementwise")
@takes("x positions cos_cache sin_cache")
def mrotary_embedding(of: Operands, *, num_heads: int = 0, rotary_embedding_dim: int = 0) -> Estimate:
    """As RotaryEmbedding with three positions per row, each for a section of the channels."""
    return with_tables(of, num_heads, rotary_embedding_dim, of.positions.shape[1:])


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
def relative_position_bias(table: TensorType, query_length: TensorType, key_length: TensorType) -> Estimate:
    """Computes the bucket of every distance and reads its bias for every pair of positions."""
    lengths = (size(query_length), size(key_length))
    rows, keys = (data_dependent("relative_positions") if length is None else length for length in lengths)
    out = table.like((1, table.shape[1], rows, keys))
    distances = rows + keys - 1
    reads = (table, query_length, key_length)
    return Estimate((out,), vector_flops=BUCKETED * distances, transcendentals=distances, reads=reads)


@rule("com.microsoft.GatedRelativePositionBias", kind="other", product=("query", "weight"))
@takes("query query_bias rel_pos weight bias eco_a token_offset?")
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


@rule("com.microsoft.DecoderMaskedSelfAttention", product=("x", "weights"))
@takes(
    "x weights bias? mask_index? past? attention_bias? past_sequence_length? beam_width? cache_indirection?"
)
def decoder_masked_self_attention(
    of: Operands,
    *,
    num_heads: int,
    past_present_share_buffer: int = 0,
    do_rotary: int = 0,
    outputs: Outputs = (True,),
) -> Estimate:
    """As Attention for one row per sequence; the beam indices of the keys are read too."""
    estimate = attention(
        *of.but("beam_width cache_indirection"),
        num_heads=num_heads,
        past_present_share_buffer=past_present_share_buffer,
        do_rotary=do_rotary,
        outputs=outputs,
    )
    return replace(estimate, reads=(*estimate.reads, of.beam_width, of.cache_indirection))


@rule("com.microsoft.DecoderMaskedMultiHeadAttention", product=("query", "key"))
@takes(
    "query key? value? mask_index? attention_bias? past_key? past_value? past_sequence_length? beam_width? "
    "cache_indirection? bias?"
)
def decoder_masked_multi_head_attention(
    of: Operands, *, num_heads: int, past_present_share_buffer: int = 0, outputs: Outputs = (True,)
) -> Estimate:
    """As MultiHeadAttention for one row per sequence, over all that the past holds."""
    filled = of.past_sequence_length if past_present_share_buffer else None
    estimate = multi_head_attention(
        *of.named("query key value bias mask_index attention_bias past_key past_value"),
        *(filled, of.cache_indirection),
        num_heads=num_heads,
        outputs=outputs,
    )
    return replace(estimate, reads=(*estimate.reads, of.beam_width))


@rule("com.microsoft.DecoderAttention", product=("query", "q_weight"))
@takes(
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
    problem = meet(q, num_heads, keys, q.shape[-1])
    products = (matmul(of.query, of.q_weight), matmul(source.like((fresh, batch, hidden)), of.kv_weight))
    pasts = of.named("key_cache value_cache") if cached else (None, None)
    key = of.key if crossed and fresh != 0 else None
    return attended(
        problem,
        of.query.like(),
        tuple(Cache(past, rows_of(q, fresh), keys) for past in pasts),
        *map(biased, products),
        per_score(problem, of.key_padding_mask),
        reads=(of.query, key, *of.named("q_weight kv_weight bias key_padding_mask")),
        outputs=outputs,
    )
