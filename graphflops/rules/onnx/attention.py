"""Attention with its rotary embedding, and linear attention."""

from __future__ import annotations

from msgspec.structs import replace

from graphflops.cost import Estimate, Region
from graphflops.dims import Dim, at_least, differ, meet
from graphflops.rules.attention import attend, leading_axes
from graphflops.rules.onnx.entries import fused, onnx_dtype, work
from graphflops.rules.onnx.microsoft_attention import by_head, merged, rotated
from graphflops.rules.operands import Operands, takes
from graphflops.rules.registry import ForwardCall, backward, require, rule
from graphflops.rules.shapes import replaced
from graphflops.tensor import FLOAT32, FLOAT64, TensorType

KIND = "attention"

SOFTCAP = 2  # divide, multiply; and a hyperbolic tangent


@rule("onnx.Attention", product=("query", "key", "value"))
@takes("query key value attn_mask? past_key? past_value? nonpad_kv_seqlen?")
def attention(
    of: Operands,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    right_window_size: int = -1,
    softcap: float = 0.0,
) -> Estimate:
    """Two products per score; a causal query sees the past and the keys up to its own position.

    Where only data say how much of a cache is filled, it is taken to be all of it.
    """
    q = _split(of.query, q_num_heads)
    pairs = ((of.past_key, of.key), (of.past_value, of.value))
    k, v = (_joined(past, _split(fresh, kv_num_heads)) for past, fresh in pairs)
    mask, valid = _fitting(of.attn_mask, q.shape[-2], k.shape[-2]), of.nonpad_kv_seqlen
    require(valid is None or valid.rank == 1, f"valid keys are a number for each sequence, not {valid}")
    problem = attend(
        *(q, k, v, mask),
        left=None if left_window_size < 0 else left_window_size,
        right=0 if is_causal else None if right_window_size < 0 else right_window_size,
        bottom_right=valid is not None,
        offset=0 if of.past_key is None else of.past_key.shape[-2],
    )
    capped = work(SOFTCAP * problem.scores, problem.scores) if softcap else Estimate()
    out = _result(q, k, v)
    y = merged(out, v.shape[-1]) if of.query.rank == 3 else out
    scores = q.like((*out.shape[:-1], k.shape[-2]))
    return fused((y, k.like(), v.like(), scores), problem.forward(), capped, reads=(*of,))


@backward("onnx.Attention")
def attention_backward(call: ForwardCall) -> Estimate:
    """Two and a half times the forward's products: the scores are computed again."""
    given = call.arguments
    heads = {"query": given.get("q_num_heads"), "key": given.get("kv_num_heads")}
    q, k, v = (_split(given[name], heads.get(name, heads["key"])) for name in ("query", "key", "value"))
    problem = attend(q, k, v, given.get("attn_mask"), right=0 if given.get("is_causal") else None)
    wants = call.wants | {"mask"} if "attn_mask" in call.wants else call.wants
    back = problem.backward(wants, _result(q, k, v))
    names = ("query", "key", "value", "attn_mask")
    return replace(back, out=call.gradients(*names))


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
    if past is None:
        return fresh
    require(past.rank == 4, f"a past of keys or values has four axes, not {past.rank}")
    return fresh.like(replaced(fresh.shape, 2, past.shape[2] + fresh.shape[2]))


def _fitting(mask: TensorType | None, queries: Dim, keys: Dim) -> TensorType | None:
    """The mask, padded to all keys if it is shorter."""
    if mask is None or mask.rank == 0:
        return mask
    (rows, seen), refused = (1, *mask.shape)[-2:], f"a mask {mask} for {queries} queries and {keys} keys"
    require(mask.rank <= 4 and not (differ(rows, queries) and differ(rows, 1)), refused)
    require(not at_least(seen, keys + 1), refused)
    return mask.like((*mask.shape[:-1], 1)) if differ(seen, keys) else mask


@rule("onnx.RotaryEmbedding", kind="elementwise")
@takes("x cos_cache sin_cache position_ids?")
def rotary_embedding(of: Operands, *, num_heads: int = 0, rotary_embedding_dim: int = 0) -> Estimate:
    """Two products and a sum per rotated element; of the caches, the rows of the positions given are read."""
    x, cache, places = of.x, of.cos_cache, of.position_ids
    apart = _split(x, num_heads) if num_heads or x.rank == 4 else x
    turned = rotary_embedding_dim or apart.shape[-1]
    meet(2 * cache.shape[-1], turned, f"a table {cache} for {turned} numbers in pairs")
    rotation = rotated(apart, width=rotary_embedding_dim)
    rows = cache if places is None else cache.like((*places.shape, cache.shape[-1]))
    return fused((x.like(),), rotation, reads=(x, rows, rows, places))


@rule("onnx.LinearAttention", kind="other")
@takes("query key value past_state? decay? beta?")
def linear_attention(
    of: Operands, *, kv_num_heads: int, q_num_heads: int, update_rule: str = "gated_delta"
) -> Estimate:
    """Per row a product of key and value into the state and a product of the query with the state.

    A decay scales the state, by an exponential for each of its numbers; a delta rule first takes out what the state holds
    for the key: one product more, a difference and a scaling of the value.
    """
    q, k, v = by_head(of.query, q_num_heads), by_head(of.key, kv_num_heads), by_head(of.value, kv_num_heads)
    width, depth = k.shape[-1], v.shape[-1]
    meet(q.shape[-1], width, f"query and key widths differ: {q.shape[-1]} and {width}")
    into, out_of = k.numel * depth, q.numel * depth
    delta, gated = "delta" in update_rule, "gated" in update_rule
    out = merged(q, depth)
    for given, numbers in ((of.decay, (kv_num_heads, kv_num_heads * width)), (of.beta, (1, kv_num_heads))):
        fits = given is None or not all(differ(given.shape[-1], number) for number in numbers)
        require(fits, f"{given} for {kv_num_heads} heads of {width}")
    vector = out.numel + (into if gated else 0) + (2 * v.numel if delta else 0)
    state = TensorType((q.shape[0], kv_num_heads, width, depth), (of.past_state or of.query).dtype)
    return Estimate(
        (out, state),
        matrix_flops=2 * ((2 if delta else 1) * into + out_of),
        vector_flops=vector,
        transcendentals=of.decay.numel if of.decay is not None and gated else 0,
        reads=(*of,),
    )
