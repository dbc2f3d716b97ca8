"""Attention over whole batches, with or without a cache; operators of onnxruntime may include the projections.

In onnxruntime, a causal query sees the past and the keys up to its own position: the last query is aligned with the last
key. Operands are (batch, rows, heads * width); the past and the present are (batch, heads, rows, width). A growing cache is
read and written whole; a buffer that is provably long enough is written in place.
"""

from typing import NamedTuple

from graphflops.base.record import replace
from graphflops.cost import Estimate
from graphflops.dims import Dim, at_least, differ, floor_div, meet
from graphflops.rules.attention import Attention, attend, by_head, leading_axes
from graphflops.rules.matmul import matmul
from graphflops.rules.onnx.entries import Outputs, Touched, fused, is_wanted, onnx_dtype, said, work
from graphflops.rules.operands import Operands
from graphflops.rules.registry import ForwardCall, backward, require, rule
from graphflops.rules.shapes import Shape, only_result, replaced
from graphflops.tensor import FLOAT32, FLOAT64, TensorType

KIND = "attention"

ROTATE = 3  # multiply 2, add 1: what a rotary embedding does per element


def merged(x: TensorType, width: Dim) -> TensorType:
    """The result of a query (batch, heads, rows, _) as (batch, rows, heads * width)."""
    batch, heads, rows, _ = x.shape
    return x.like((batch, rows, heads * width))


def attention_to(
    query: TensorType,
    heads: Dim,
    keys: Dim,
    width: Dim,
    bias: TensorType | None = None,
    *,
    causal: bool = False,
    window: Dim | None = None,
    bottom_right: bool = True,
) -> Attention:
    """The attention of a query (batch, heads, rows, _) to `keys` keys, of which it sees `window`; values `width` wide."""
    batch = query.shape[0]
    key = query.like((batch, heads, keys, query.shape[-1]))
    left = None if window is None else window - 1
    right = 0 if causal or window is not None else None
    value = query.like((batch, heads, keys, width))
    problem = attend(query, key, value, left=left, right=right, bottom_right=bottom_right)
    return replace(problem, mask=bias)


def per_score(problem: Attention, *masks: TensorType | None) -> Estimate:
    """One more operation per score for each mask that is given."""
    return work(problem.scores * sum(mask is not None for mask in masks))


class Cache(NamedTuple):
    """A state of keys or values: `fresh` rows join those of `past` into `keys` rows."""

    past: TensorType | None  # (..., rows, width); a buffer has more rows than are filled; None at first
    fresh: TensorType
    keys: Dim
    shared: bool = False


def rows_of(state: TensorType, rows: Dim) -> TensorType:
    """A state (..., rows, width) with that many rows."""
    return state.like((*state.shape[:-2], rows, state.shape[-1]))


def past_rows(past: TensorType | None, filled: TensorType | None, shared: bool) -> Dim:
    """Rows of the past; for a buffer the number of filled rows, which may be data-dependent."""
    if past is None:
        return 0
    return said(filled, "past_sequence_length") if shared else past.shape[-2]


def attended(
    problem: Attention,
    out: TensorType,
    caches: tuple[Cache, ...],
    *parts: Estimate,
    reads: Touched,
    outputs: Outputs,
    more: tuple[TensorType, ...] = (),
) -> Estimate:
    """Attention together with other `parts` of its operator; results are `out`, the present states, and `more`."""
    presents, written, pasts = list[TensorType](), [out], list[TensorType | None]()
    for past, fresh, keys, shared in caches:
        if past is not None:
            meet(past.shape[-3], fresh.shape[-3], f"a past {past} for heads of {fresh}")
        state, new = past or fresh, fresh.shape[-2]
        presents.append(state.like() if shared else rows_of(state, keys))
        written.append(rows_of(presents[-1], new if shared else keys))
        pasts.append(None if past is None else rows_of(past, keys - new))
    writes = tuple(x for place, x in enumerate((*written, *more)) if is_wanted(outputs, place))
    results, read = (out, *presents, *more), (*reads, *pasts)
    return fused(results, problem.forward(), *parts, reads=read, writes=writes)


def biased(product: Estimate) -> Estimate:
    """The work of a product and of adding a bias to it."""
    return Estimate(matrix_flops=product.matrix_flops, vector_flops=only_result(product).numel)


def project(
    x: TensorType, weights: TensorType, bias: TensorType | None, heads: Dim, widths: Shape
) -> tuple[Estimate, TensorType, TensorType]:
    """The product with the joint weight of queries, keys and values, and its bias.

    Also returns queries and values, (batch, heads, rows, width); keys have the shape of queries.
    """
    require(len(widths) in (0, 3), f"{len(widths)} widths for queries, keys and values")
    third = floor_div(weights.shape[1], 3)
    query, _, value = widths or (third,) * 3
    product = matmul(x, weights)
    made = Estimate(matrix_flops=product.matrix_flops) if bias is None else biased(product)
    q, v = (by_head(x.like((*x.shape[:2], width)), heads) for width in (query, value))
    return made, q, v


def rotated(*operands: TensorType, width: Dim = 0) -> Estimate:
    """A rotary embedding of each operand (..., width), or of its first `width` channels if given."""
    parts = (x.like((*x.shape[:-1], width or x.shape[-1])).numel for x in operands)
    return work(ROTATE * sum(parts))


@rule("com.microsoft.Attention", product=("x", "weights")).takes(
    "x weights bias? mask_index? past? attention_bias? past_sequence_length?; num_heads unidirectional=0 "
    "qkv_hidden_sizes=() past_present_share_buffer=0 do_rotary=0 rotary_embedding_dim=0"
)
def projected_attention(of: Operands, *, outputs: Outputs = (True,), **others: object) -> Estimate:
    """One projection for queries, keys and values, and the two products of attention."""
    product, q, v = project(of.x, of.weights, of.bias, of.num_heads, of.qkv_hidden_sizes)
    shared, causal = of.past_present_share_buffer != 0, of.unidirectional != 0
    keys = past_rows(of.past, of.past_sequence_length, shared) + of.x.shape[1]
    problem = attention_to(q, of.num_heads, keys, v.shape[-1], of.attention_bias, causal=causal)
    return attended(
        problem,
        merged(q, v.shape[-1]),
        (Cache(of.past, q.like((2, *q.shape)), keys, shared),),
        product,
        per_score(problem, of.mask_index),
        rotated(*(q, q) * (of.do_rotary != 0), width=of.rotary_embedding_dim),
        reads=of.but("past"),
        outputs=outputs,
    )


def separated(
    query: TensorType, key: TensorType | None, value: TensorType | None, heads: Dim, kv_heads: Dim
) -> tuple[TensorType, TensorType, TensorType]:
    """Queries, keys and values by head, (batch, heads, rows, width), from any packing; a query may hold all."""
    if query.rank == 5:  # (batch, rows, heads, 3, width)
        batch, rows, _, _, width = query.shape
        return (query.like((batch, heads, rows, width)),) * 3
    if key is None:
        batch, _, rows, width = by_head(query, heads + 2 * kv_heads).shape
        q, k = (query.like((batch, count, rows, width)) for count in (heads, kv_heads))
        return q, k, k
    q = by_head(query, heads)
    if key.rank == 5:  # (batch, rows, heads, 2, width)
        batch, rows, _, _, width = key.shape
        return q, *(key.like((batch, kv_heads, rows, width)),) * 2
    require(value is not None, "keys are given without values")
    assert value is not None
    k, v = (x if x.rank == 4 else by_head(x, kv_heads) for x in (key, value))
    return q, k, v


@rule("com.microsoft.MultiHeadAttention", product=("query", "key")).takes(
    "query key? value? bias? key_padding_mask? attention_bias? past_key? past_value? past_sequence_length? "
    "cache_indirection?; num_heads unidirectional=0"
)
def multi_head_attention(of: Operands, *, outputs: Outputs = (True,), **others: object) -> Estimate:
    """The two products of attention, after the projections' biases; a causal query sees all keys before it."""
    num_heads = of.num_heads
    q, k, v = separated(of.query, of.key, of.value, num_heads, num_heads)
    shared = of.past_sequence_length is not None
    keys = past_rows(of.past_key, of.past_sequence_length, shared) + k.shape[-2]
    causal, aligned = of.unidirectional != 0, of.past_key is not None
    problem = attention_to(
        q, num_heads, keys, v.shape[-1], of.attention_bias, causal=causal, bottom_right=aligned
    )
    if of.bias is not None:
        widths = num_heads * sum(x.shape[-1] for x in (q, k, v))
        meet(of.bias.numel, widths, f"a bias {of.bias} for {widths} features of queries, keys and values")
    biased = sum(x.numel for x in (q, k, v)) if of.bias is not None else 0
    return attended(
        problem,
        merged(q, v.shape[-1]),
        (Cache(of.past_key, k, keys, shared), Cache(of.past_value, v, keys, shared)),
        work(biased),
        per_score(problem, of.key_padding_mask),
        reads=of.but("past_key past_value"),
        outputs=outputs,
        more=(q.like((*q.shape[:-1], keys)),),
    )


SOFTCAP = 2  # divide, multiply; and a hyperbolic tangent


@rule("onnx.Attention", product=("query", "key", "value")).takes(
    "query key value attn_mask? past_key? past_value? nonpad_kv_seqlen?; is_causal=0 q_num_heads=None kv_num_heads=None "
    "left_window_size=-1 right_window_size=-1 softcap=0.0"
)
def attention(of: Operands) -> Estimate:
    """Two products per score; a causal query sees the past and the keys up to its own position; caches count as filled."""
    q = _split(of.query, of.q_num_heads)
    pairs = ((of.past_key, of.key), (of.past_value, of.value))
    k, v = (_joined(past, _split(fresh, of.kv_num_heads)) for past, fresh in pairs)
    mask, valid = _fitting(of.attn_mask, q.shape[-2], k.shape[-2]), of.nonpad_kv_seqlen
    require(valid is None or valid.rank == 1, f"valid keys are a number for each sequence, not {valid}")
    problem = attend(
        *(q, k, v, mask),
        left=None if of.left_window_size < 0 else of.left_window_size,
        right=0 if of.is_causal else None if of.right_window_size < 0 else of.right_window_size,
        bottom_right=valid is not None,
        offset=0 if of.past_key is None else of.past_key.shape[-2],
    )
    capped = work(SOFTCAP * problem.scores, problem.scores) if of.softcap else Estimate()
    out = _result(q, k, v)
    y = merged(out, v.shape[-1]) if of.query.rank == 3 else out
    scores = q.like((*out.shape[:-1], k.shape[-2]))
    return fused((y, k.like(), v.like(), scores), problem.forward(), capped, reads=(*of,))


@backward("onnx.Attention")
def attention_backward(call: ForwardCall) -> Estimate:
    """Two and a half times the forward's products: the scores are computed again."""
    heads = {"query": call.get("q_num_heads"), "key": call.get("kv_num_heads")}
    q, k, v = (_split(call[name], heads.get(name, heads["key"])) for name in ("query", "key", "value"))
    problem = attend(q, k, v, call.get("attn_mask"), right=0 if call.get("is_causal") else None)
    wants = call.wants | {"mask"} if "attn_mask" in call.wants else call.wants
    back = problem.backward(wants, _result(q, k, v))
    return replace(back, out=call.gradients("query", "key", "value", "attn_mask"))


def _result(q: TensorType, k: TensorType, v: TensorType) -> TensorType:
    return q.like((*leading_axes(q, k, v, grouped=True), q.shape[-2], v.shape[-1]))


@rule("ai.onnx.preview.FlexAttention", product=("query", "key", "value")).takes(
    "query key value; prob_mod=None score_mod=None softmax_precision=None"
)
def flex_attention(of: Operands) -> Estimate:
    """Two products per score, and the arithmetic of the functions that change scores and probabilities on chip."""
    query, key, value = of
    problem = attend(query, key, value)
    out = _result(query, key, value)
    precise = FLOAT64 if query.dtype == FLOAT64 else FLOAT32
    dtype = precise if of.softmax_precision is None else onnx_dtype(of.softmax_precision)
    scores = query.like((*out.shape[:-1], key.shape[-2]), dtype)
    runs = [function(scores) for function in (of.score_mod, of.prob_mod) if function is not None]
    functions = [work(run.cost.vector_flops, run.cost.transcendentals) for run in runs]
    estimate = fused((out,), problem.forward(), *functions, reads=problem.operands)
    return replace(estimate, regions=tuple((run, 0) for run in runs))


def _split(x: TensorType, heads: int | None) -> TensorType:
    """The operand as (batch, heads, rows, width); an operand of three axes has its heads side by side."""
    if x.rank == 4:
        return x
    require(bool(heads), f"how many heads {x} holds is not said")
    return by_head(x, heads or 1)


def _joined(past: TensorType | None, fresh: TensorType) -> TensorType:
    if past is None:
        return fresh
    return fresh.like(replaced(fresh.shape, 2, past.shape[2] + fresh.shape[2]))


def _fitting(mask: TensorType | None, queries: Dim, keys: Dim) -> TensorType | None:
    """The mask, padded to all keys if it is shorter."""
    if mask is None or mask.rank == 0:
        return mask
    (rows, seen), refused = (1, *mask.shape)[-2:], f"a mask {mask} for {queries} queries and {keys} keys"
    require(mask.rank <= 4 and not (differ(rows, queries) and differ(rows, 1)), refused)
    require(not at_least(seen, keys + 1), refused)
    return mask.like((*mask.shape[:-1], 1)) if differ(seen, keys) else mask


@rule("onnx.RotaryEmbedding", kind="elementwise").takes("x cos_cache sin_cache position_ids?")
def rotary_embedding(of: Operands, *, num_heads: int = 0, rotary_embedding_dim: int = 0) -> Estimate:
    """Two products and a sum per rotated element; the caches' rows at the given positions, one or more a row, are read."""
    x, rows, places, width = of.x, of.cos_cache, of.position_ids, rotary_embedding_dim
    apart = _split(x, num_heads) if num_heads or x.rank == 4 else x
    if width or apart is not x or x.rank == 4:
        turned = width or apart.shape[-1]
        meet(2 * rows.shape[-1], turned, f"a table {rows} for {turned} numbers in pairs")
    rotation = rotated(apart, width=width)
    if places is not None:
        rows = rows.like((*(places.shape[-2:] if places.rank > 1 else x.shape[-2:-1]), rows.shape[-1]))
    return fused((x.like(),), rotation, reads=(x, rows, rows, places))
