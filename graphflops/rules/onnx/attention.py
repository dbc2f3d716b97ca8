"""Attention with its rotary embedding, and linear attention."""

from __future__ import annotations

from dataclasses import replace

from graphflops.cost import Estimate, Region
from graphflops.dims import Dim, at_least, differ, meet
from graphflops.rules.attention import attend, leading_axes
from graphflops.rules.onnx.entries import onnx_dtype
from graphflops.rules.onnx.fused import Outputs, chosen, fused, work
from graphflops.rules.onnx.microsoft_attention import by_head, merged, rotated
from graphflops.rules.registry import ForwardCall, backward, require, rule
from graphflops.rules.shapes import replaced
from graphflops.tensor import FLOAT32, FLOAT64, TensorType

KIND = "attention"

SOFTCAP = 2  # divide, multiply; and a hyperbolic tangent


@rule("onnx.Attention", product=("query", "key", "value"))
def attention(
    query: TensorType,
    key: TensorType,
    value: TensorType,
    attn_mask: TensorType | None = None,
    past_key: TensorType | None = None,
    past_value: TensorType | None = None,
    nonpad_kv_seqlen: TensorType | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    right_window_size: int = -1,
    softcap: float = 0.0,
    outputs: Outputs = (),
) -> Estimate:
    """Two products per score; a causal query sees the past and the keys up to its own position.

    Where only data say how much of a cache is filled, it is taken to be all of it.
    """
    q = _split(query, q_num_heads)
    k, v = _joined(past_key, _split(key, kv_num_heads)), _joined(past_value, _split(value, kv_num_heads))
    mask = _fitting(attn_mask, q.shape[-2], k.shape[-2])
    problem = attend(
        *(q, k, v, mask),
        left=None if left_window_size < 0 else left_window_size,
        right=0 if is_causal else None if right_window_size < 0 else right_window_size,
        bottom_right=nonpad_kv_seqlen is not None,
        offset=0 if past_key is None else past_key.shape[-2],
    )
    capped = work(SOFTCAP * problem.scores, problem.scores) if softcap else Estimate()
    out = _result(q, k, v)
    y = merged(out, v.shape[-1]) if query.rank == 3 else out
    scores = q.like((*out.shape[:-1], k.shape[-2]))
    reads = (query, key, value, attn_mask, past_key, past_value, nonpad_kv_seqlen)
    return fused(chosen(outputs, y, k.like(), v.like(), scores), problem.forward(), capped, reads=reads)


@backward("onnx.Attention")
def attention_backward(call: ForwardCall) -> Estimate:
    """Two and a half times the forward's products: the scores are computed again."""
    given = call.arguments
    heads = {"query": given.get("q_num_heads"), "key": given.get("kv_num_heads")}
    q, k, v = (_split(given[name], heads.get(name, heads["key"])) for name in ("query", "key", "value"))
    problem = attend(q, k, v, given.get("attn_mask"), right=0 if given.get("is_causal") else None)
    back = problem.backward(
        call.wants | {"mask"} if "attn_mask" in call.wants else call.wants, _result(q, k, v)
    )
    names = ("query", "key", "value", "attn_mask")
    return replace(back, out=tuple(given[name].like() for name in names if name in call.wants))


def _result(q: TensorType, k: TensorType, v: TensorType) -> TensorType:
    """The result's type, with its heads apart."""
    return q.like((*leading_axes(q, k, v, grouped=True), q.shape[-2], v.shape[-1]))


@rule("ai.onnx.preview.FlexAttention", product=("query", "key", "value"))
def flex_attention(
    query: TensorType,
    key: TensorType,
    value: TensorType,
    *,
    prob_mod: Region | None = None,
    score_mod: Region | None = None,
    softmax_precision: int | None = None,
) -> Estimate:
    """Two products per score, and the arithmetic of the functions that change scores and probabilities on chip."""
    problem = attend(query, key, value)
    out = _result(query, key, value)
    precise = FLOAT64 if query.dtype == FLOAT64 else FLOAT32
    dtype = precise if softmax_precision is None else onnx_dtype(softmax_precision)
    scores = query.like((*out.shape[:-1], key.shape[-2]), dtype)
    runs = [function(scores) for function in (score_mod, prob_mod) if function is not None]
    functions = [
        Estimate(vector_flops=run.cost.vector_flops, transcendentals=run.cost.transcendentals) for run in runs
    ]
    estimate = fused((out,), problem.forward(), *functions, reads=problem.operands)
    return replace(estimate, regions=tuple((run, 0) for run in runs))


def _split(x: TensorType, heads: int | None) -> TensorType:
    """The operand as (batch, heads, rows, width); one of three axes holds its heads side by side."""
    if x.rank == 4:
        return x
    require(bool(heads), f"how many heads {x} holds is not said")
    return by_head(x, heads or 1)


def _joined(past: TensorType | None, fresh: TensorType) -> TensorType:
    """The cached rows and the new ones."""
    if past is None:
        return fresh
    require(past.rank == 4, f"a past of keys or values has four axes, not {past.rank}")
    return fresh.like(replaced(fresh.shape, 2, past.shape[2] + fresh.shape[2]))


def _fitting(mask: TensorType | None, queries: Dim, keys: Dim) -> TensorType | None:
    """The mask, padded to all keys if it is shorter."""
    if mask is None or mask.rank == 0:
        return mask
    (rows, seen), refused = (1, *mask.shape)[-2:], f"a mask {mask} for {queries} queries and {keys} keys"
    require(not (differ(rows, queries) and differ(rows, 1)), refused)
    require(not at_least(seen, keys + 1), refused)
    return mask.like((*mask.shape[:-1], 1)) if differ(seen, keys) else mask


@rule("onnx.RotaryEmbedding", kind="elementwise")
def rotary_embedding(
    x: TensorType,
    cos_cache: TensorType,
    sin_cache: TensorType,
    position_ids: TensorType | None = None,
    *,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Estimate:
    """Two products and a sum per rotated element; of the caches, the rows of the positions given are read."""
    apart = _split(x, num_heads) if num_heads or x.rank == 4 else x
    turned = rotary_embedding_dim or apart.shape[-1]
    fits = not differ(2 * cos_cache.shape[-1], turned)
    require(fits, f"a table {cos_cache} for {turned} numbers in pairs")
    rotation = rotated(apart, width=rotary_embedding_dim)
    cache = cos_cache if position_ids is None else cos_cache.like((*position_ids.shape, cos_cache.shape[-1]))
    return fused((x.like(),), rotation, reads=(x, cache, cache, position_ids))


@rule("onnx.LinearAttention", kind="other")
def linear_attention(
    query: TensorType,
    key: TensorType,
    value: TensorType,
    past_state: TensorType | None = None,
    decay: TensorType | None = None,
    beta: TensorType | None = None,
    *,
    kv_num_heads: int,
    q_num_heads: int,
    update_rule: str = "gated_delta",
    outputs: Outputs = (),
) -> Estimate:
    """Per row a product of key and value into the state and a product of the query with the state.

    A decay scales the state, by an exponential for each of its numbers; a delta rule first takes out what the state holds
    for the key: one product more, a difference and a scaling of the value.
    """
    q, k, v = by_head(query, q_num_heads), by_head(key, kv_num_heads), by_head(value, kv_num_heads)
    width, depth = k.shape[-1], v.shape[-1]
    meet(q.shape[-1], width, f"query and key widths differ: {q.shape[-1]} and {width}")
    into, out_of = k.numel * depth, q.numel * depth
    delta, gated = "delta" in update_rule, "gated" in update_rule
    out = merged(q, depth)
    for given, numbers in ((decay, (kv_num_heads, kv_num_heads * width)), (beta, (1, kv_num_heads))):
        fits = given is None or not all(differ(given.shape[-1], number) for number in numbers)
        require(fits, f"{given} for {kv_num_heads} heads of {width}")
    vector = out.numel + (into if gated else 0) + (2 * v.numel if delta else 0)
    state = TensorType((q.shape[0], kv_num_heads, width, depth), (past_state or query).dtype)
    return Estimate(
        chosen(outputs, out, state),
        matrix_flops=2 * ((2 if delta else 1) * into + out_of),
        vector_flops=vector,
        transcendentals=decay.numel if decay is not None and gated else 0,
        reads=(query, key, value, past_state, decay, beta),
    )
