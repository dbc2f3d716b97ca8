"""onnxruntime's attention of decoders with one row per step, and DecoderAttention, which flags control."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.rules.matmul import matmul
from graphflops.rules.onnx.entries import size
from graphflops.rules.onnx.microsoft_attention import (
    Cache,
    attended,
    attention,
    biased,
    by_head,
    meet,
    multi_head_attention,
    per_score,
    rows_of,
)
from graphflops.rules.registry import rule

if TYPE_CHECKING:
    from graphflops.cost import Estimate
    from graphflops.rules.onnx.fused import Outputs
    from graphflops.tensor import TensorType

KIND = "attention"


@rule("com.microsoft.DecoderMaskedSelfAttention", product=("x", "weights"))
def decoder_masked_self_attention(
    x: TensorType,
    weights: TensorType,
    bias: TensorType | None = None,
    mask_index: TensorType | None = None,
    past: TensorType | None = None,
    attention_bias: TensorType | None = None,
    past_sequence_length: TensorType | None = None,
    beam_width: TensorType | None = None,
    cache_indirection: TensorType | None = None,
    *,
    num_heads: int,
    past_present_share_buffer: int = 0,
    do_rotary: int = 0,
    outputs: Outputs = (True,),
) -> Estimate:
    """As Attention for one row per sequence; the beam indices of the keys are read too."""
    estimate = attention(
        *(x, weights, bias, mask_index, past, attention_bias, past_sequence_length),
        num_heads=num_heads,
        past_present_share_buffer=past_present_share_buffer,
        do_rotary=do_rotary,
        outputs=outputs,
    )
    return replace(estimate, reads=(*estimate.reads, beam_width, cache_indirection))


@rule("com.microsoft.DecoderMaskedMultiHeadAttention", product=("query", "key"))
def decoder_masked_multi_head_attention(
    query: TensorType,
    key: TensorType | None = None,
    value: TensorType | None = None,
    mask_index: TensorType | None = None,
    attention_bias: TensorType | None = None,
    past_key: TensorType | None = None,
    past_value: TensorType | None = None,
    past_sequence_length: TensorType | None = None,
    beam_width: TensorType | None = None,
    cache_indirection: TensorType | None = None,
    bias: TensorType | None = None,
    *,
    num_heads: int,
    past_present_share_buffer: int = 0,
    outputs: Outputs = (True,),
) -> Estimate:
    """As MultiHeadAttention for one row per sequence, over all that the past holds."""
    filled = past_sequence_length if past_present_share_buffer else None
    estimate = multi_head_attention(
        *(
            query,
            key,
            value,
            bias,
            mask_index,
            attention_bias,
            past_key,
            past_value,
            filled,
            cache_indirection,
        ),
        num_heads=num_heads,
        outputs=outputs,
    )
    return replace(estimate, reads=(*estimate.reads, beam_width))


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
