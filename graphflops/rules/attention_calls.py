"""Attention as torch calls it, with operators for the forward and for its gradients; whole modules; operators of libraries.

A module has its projections, its heads, and in an encoder the layer around them. Biases, residual additions, activations and
normalisations are vector work.
"""

from collections.abc import Callable

from graphflops.base.record import replace
from graphflops.cost import Estimate, data_dependent, free
from graphflops.dims import Dim, ceil_div, dim_max, floor_div, meet, prod, same
from graphflops.rules import attention
from graphflops.rules.attention import Attention, Given
from graphflops.rules.elementwise import WORK
from graphflops.rules.matmul import grouped_mm
from graphflops.rules.norm import AFFINE, NORMALISE, STATISTICS
from graphflops.rules.operands import Operands, takes
from graphflops.rules.registry import ForwardCall, backward, rule
from graphflops.rules.shapes import Shape, results
from graphflops.tensor import BFLOAT16, FLOAT32, FLOAT64, INT64, UINT64, TensorType

KIND = "attention"


@rule("aten.scaled_dot_product_attention").takes("query key value mask? dropout_p? is_causal? * enable_gqa?")
def scaled_dot_product_attention(of: Operands) -> Estimate:
    """Two products per score, as a fused kernel; `is_causal` aligns the first query with the first key."""
    rows = (*attention.leading_axes(of.query, of.key, of.value, bool(of.enable_gqa)), of.query.shape[-2])
    return attention.dense(of.given).forward(of.query.like((*rows, of.value.shape[-1])))


@rule("aten._scaled_dot_product_attention_math", "aten._scaled_dot_product_attention_math_for_mps").takes(
    "query key value mask? dropout_p? is_causal? dropout_mask? * enable_gqa?"
)
def attention_math(of: Operands) -> Estimate:
    """The same two products with the scores written, read and returned."""
    problem = attention.dense(of.given)
    problem = replace(problem, dropout=problem.dropout or of.dropout_mask is not None)
    rows = (*attention.leading_axes(of.query, of.key, of.value, bool(of.enable_gqa)), of.query.shape[-2])
    widths = of.value.shape[-1], of.key.shape[-2]
    return problem.stored(*(of.query.like((*rows, width)) for width in widths))


def result_of(query: TensorType, value: TensorType) -> TensorType:
    """The type of the result: the query's shape with the values' width; operands of 8 bits give bfloat16."""
    dtype = BFLOAT16 if query.dtype.bits == 8 else query.dtype
    return query.like((*query.shape[:-1], value.shape[-1]), dtype)


def philox(query: TensorType) -> tuple[TensorType, TensorType]:
    """Seed and offset of the random numbers that dropout drew."""
    return query.like((), INT64), query.like((), INT64)


def padded_sums(query: TensorType, rows: Shape, longest: Dim, wanted: bool) -> TensorType:
    """Row sums of memory-efficient attention, padded to blocks of 32; empty unless wanted."""
    return query.like((*rows, 32 * ceil_div(longest, 32) if wanted else 0), FLOAT32)


def flash_state(query: TensorType, heads_rows: Shape, keys: Dim, wants_mask: bool) -> tuple[TensorType, ...]:
    """Flash attention's random state, an unused result, and the mask for debugging, which is empty unless wanted."""
    dtype = BFLOAT16 if query.dtype.bits == 8 else query.dtype
    state = query.like((2,), UINT64), query.like((), UINT64)
    if not wants_mask:
        return *state, query.like((0,), dtype)
    block = 128 if not same(dim_max(query.shape[-1], 64), 64) else 256
    blocks = ceil_div(heads_rows[-1], block)
    if same(dim_max(keys, 256), 256):
        blocks = 128 if same(dim_max(keys, 128), 128) else 256
    return *state, query.like((*heads_rows, blocks), dtype)


@rule("aten._scaled_dot_product_flash_attention").takes(
    "query key value * dropout_p? is_causal? return_debug_mask? q_descale? k_descale? v_descale?"
)
def flash_attention(of: Operands) -> Estimate:
    """Two products per score; row sums are kept for the backward pass. Of eight-bit operands the scales are read too."""
    query, keys = of.query, of.key.shape[-2]
    state = flash_state(query, query.shape[:-1], keys, bool(of.return_debug_mask))
    row_sums, sizes = query.like(query.shape[:-1], FLOAT32), (None, None, query.shape[-2], keys)
    results, scales = (result_of(query, of.value), row_sums), of.named("q_descale k_descale v_descale")
    return attention.dense(of.given).forward(*results, *sizes, *state, reads=scales)


@rule(
    "aten._scaled_dot_product_cudnn_attention", "aten._scaled_dot_product_fused_attention_overrideable"
).takes("query key value mask? * compute_log_sumexp? dropout_p? is_causal?")
def cudnn_attention(of: Operands) -> Estimate:
    """Two products per score; row sums are kept for the backward pass."""
    query, per_row = of.query, (*of.query.shape[:-1], 1)
    if of.compute_log_sumexp is None:  # the operator that backends override with their own
        per_row = per_row[:-1] if query.rank > 3 else (1, *per_row[:-1])
    results = (result_of(query, of.value), query.like(per_row, FLOAT32), None, None)
    sizes = query.shape[-2], of.key.shape[-2]
    return attention.dense(of.given).forward(*results, *sizes, *philox(query), None)


@rule("aten._scaled_dot_product_flash_attention_for_cpu").takes(
    "query key value * mask? dropout_p? is_causal?"
)
def flash_attention_for_cpu(of: Operands) -> Estimate:
    """Two products per score; row sums are kept for the backward pass."""
    row_sums = of.query.like(of.query.shape[:-1], FLOAT64 if of.query.dtype == FLOAT64 else FLOAT32)
    return attention.dense(of.given).forward(result_of(of.query, of.value), row_sums)


@rule("aten._scaled_dot_product_efficient_attention").takes(
    "query key value mask? * compute_log_sumexp= dropout_p? is_causal?"
)
def efficient_attention(of: Operands) -> Estimate:
    """Two products per score; row sums, padded to blocks of 32, are kept on demand."""
    *rows, longest, _ = of.query.shape
    row_sums = padded_sums(of.query, tuple(rows), longest, of.compute_log_sumexp)
    return attention.dense(of.given).forward(result_of(of.query, of.value), row_sums, *philox(of.query))


@rule("aten._triton_scaled_dot_attention")
def triton_attention(q: TensorType, k: TensorType, v: TensorType, dropout_p: float = 0.0) -> Estimate:
    """Two products per score."""
    return attention.attend(q, k, v, dropout_p=dropout_p).forward(result_of(q, v))


@rule("aten._fused_sdp_choice", kind="query")
def fused_sdp_choice() -> Estimate:
    """Which implementation would run, a number that depends on the machine: free."""
    return free(data_dependent("sdp_choice"), alias=False)


# Rows before heads, or packed. If a tensor `out` is given, only the row sums are returned.


def _returned(estimate: Estimate, out: TensorType | None) -> Estimate:
    sums = estimate.out[1:2]
    return estimate if out is None else replace(estimate, out=sums, writes=(out, *sums))


@rule("aten._flash_attention_forward").takes(
    "query key value offsets_q? offsets_k? * max_q= max_k= dropout_p? is_causal? left? right? window_size? "
    "return_debug_mask? seqused_k? alibi_slopes? block_table? q_descale? k_descale? v_descale? out?"
)
def flash_attention_forward(of: Operands) -> Estimate:
    """Two products per score; keys and values in pages are read as far as the longest sequence reaches."""
    query, key, value, offsets = of.named("query key value offsets_q")
    longest, heads = of.max_k, query.shape[-2]
    sequences, rows_each = query.shape[:2] if offsets is None else (offsets.numel - 1, of.max_q)
    if of.block_table is not None:
        key, value = (x.like((sequences, longest, *x.shape[-2:])) for x in (key, value))
    elif of.offsets_k is None:
        longest = key.shape[1]
    per_row = (sequences, heads, rows_each) if offsets is None else (heads, query.shape[0])
    state = flash_state(query, (sequences, heads, rows_each), longest, bool(of.return_debug_mask))
    more = of.named("seqused_k alibi_slopes block_table q_descale k_descale v_descale")
    problem, reads = attention.flash({**of.given, "key": key, "value": value}), (offsets, of.offsets_k, *more)
    results = (result_of(query, value), query.like(per_row, FLOAT32), *state)
    return _returned(problem.forward(*results, reads=reads), of.out)


rule("aten._flash_attention_forward_no_dropout_inplace", "torch_attn._varlen_attn_out").derived(
    flash_attention_forward, order="out query key value offsets_q offsets_k"
)
rule("torch_attn._varlen_attn").derived(
    flash_attention_forward, lambda found: replace(found, out=(found.reads[0].like(), *found.out[1:3]))
)


@rule("aten._efficient_attention_forward").takes(
    "query key value mask? offsets_q? offsets_k? * max_q? max_k? dropout_p? custom_mask_type= compute_log_sumexp? "
    "window_size? seqlen_k?"
)
def efficient_attention_forward(of: Operands) -> Estimate:
    """Two products per score; row sums, padded to blocks of 32, are kept on demand."""
    query, offsets = of.query, of.offsets_q
    longest_q = query.shape[1] if offsets is None or of.max_q is None else of.max_q
    longest_k = of.key.shape[1] if of.max_k is None else of.max_k
    sequences = query.shape[0] if offsets is None else offsets.shape[0] - 1
    row_sums = padded_sums(query, (sequences, query.shape[-2]), longest_q, bool(of.compute_log_sumexp))
    out = (result_of(query, of.value), row_sums, *philox(query), longest_q, longest_k)
    return attention.efficient(of.given).forward(*out, reads=of.named("offsets_q offsets_k seqlen_k"))


@rule("aten._cudnn_attention_forward").takes(
    "query key value mask? offsets_q? offsets_k? * max_q= max_k= compute_log_sumexp? dropout_p? is_causal? "
    "seqused_k? block_table? out?"
)
def cudnn_attention_forward(of: Operands) -> Estimate:
    """Two products per score; row sums are kept for the backward pass; keys and values may be in pages."""
    query, key, value = of.query, of.key, of.value
    if of.block_table is not None:  # reads no more of a pool of pages than the longest sequences could use
        key, value = (x.like((of.block_table.shape[0], of.max_k, *x.shape[-2:])) for x in (key, value))
    row_sums = query.like((*query.shape[:-1], 1), FLOAT32) if of.compute_log_sumexp else None
    out = result_of(query, value)
    results = (out, row_sums, *of.named("offsets_q offsets_k max_q max_k"), *philox(query), None)
    problem = attention.cudnn({**of.given, "key": key, "value": value})
    found = problem.forward(*results, reads=of.named("offsets_q offsets_k seqused_k block_table"))
    return _returned(replace(found, writes=(out, row_sums)), of.out)


rule("aten._cudnn_attention_forward_no_dropout_inplace").derived(
    cudnn_attention_forward,
    order="out query key value offsets_q offsets_k max_q max_k is_causal",
    mask=None,
    compute_log_sumexp=True,
)


# Gradients: operators of a joint graph, and of forward calls. Five products: the scores again, and one for each of the
# probabilities' and the operands' gradients; where the probabilities are stored, four.


@takes(
    "* query key value mask? offsets_q? offsets_k? max_k? dropout_p? is_causal? left? right? window_size? "
    "custom_mask_type? grad_input_mask? bias_requires_grad? out?"
)
def gradients(of: Operands, *, problem: Callable[[Given], Attention]) -> Estimate:
    """Five products, the scores being recomputed; a mask's gradient is found on demand."""
    wants_mask = of.bias_requires_grad if of.grad_input_mask is None else of.grad_input_mask[3]
    wants = {*attention.OPERANDS, *(("mask",) if wants_mask else ())}
    found = problem(of.given).backward(wants, result_of(of.query, of.value))
    if of.bias_requires_grad is not None:  # without a bias its gradient is a placeholder
        placeholder = of.query.like((), FLOAT32) if of.mask is None else of.mask.like()
        return replace(found, out=(*found.out[:3], placeholder))
    return found if of.grad_input_mask is not None else replace(found, out=found.out[:3])


def gradient(call: ForwardCall, problem: Callable[[Given], Attention], *, fused: bool = True) -> Estimate:
    """The gradients of the wanted operands of a call, in the order of the parameters."""
    found = problem(call.arguments).backward(call.wants, call.out, fused=fused)
    return replace(found, out=tuple(each for each in found.out if each is not None))


for _problem, _names in (
    (
        attention.dense,
        "aten._scaled_dot_product_flash_attention _scaled_dot_product_cudnn_attention "
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention "
        "_scaled_dot_product_fused_attention_overrideable",
    ),
    (attention.flash, "aten._flash_attention_forward"),
    (attention.flash, "torch_attn._varlen_attn"),
    (attention.cudnn, "aten._cudnn_attention_forward"),
    (attention.efficient, "aten._efficient_attention_forward"),
):
    _gradients = (f"{name.removesuffix('_forward')}_backward" for name in _names.split())
    rule(" ".join(_gradients)).derived(gradients, problem=_problem)
    backward(_names)(lambda call, problem=_problem: gradient(call, problem))  # type: ignore[misc]
backward("aten.scaled_dot_product_attention")(lambda call: gradient(call, attention.dense))
backward("aten._scaled_dot_product_attention_math", "aten._scaled_dot_product_attention_math_for_mps")(
    lambda call: gradient(call, attention.dense, fused=False)
)


rule("transformers.grouped_mm_fallback", product=("a", "b")).derived(grouped_mm, order="a b offs")


@rule("transformers.grouped_mm_fallback_backward", kind="product").takes("a b offs grad")
def grouped_mm_fallback_backward(of: Operands) -> Estimate:
    """The gradients of rows and matrices: a product of the forward's size for each; all experts' gradients are written."""
    forward = grouped_mm(of.a, of.b, of.offs)
    gradients, reads = (of.a.like(), of.b.like()), (of.grad, *forward.reads)
    return Estimate(gradients, 2 * forward.matrix_flops, reads=reads, matrix_dtype=of.a.dtype)


@rule("transformers_msa.sparse_atten").takes("q k v q2k cu_seqlens_q cu_seqlens_k topk= block_size=")
def sparse_attention(of: Operands, *attributes: object) -> Estimate:
    """Each query of (rows, heads, width) meets the keys of the `topk` blocks chosen for it, fewer near the beginning."""
    rows = prod(of.q.shape[:2])
    problem = Attention(of.q, of.k, of.v, None, rows, rows * of.topk * of.block_size)
    return problem.forward(of.q.like(), reads=of.named("q2k cu_seqlens_q cu_seqlens_k"))


@rule("_diffusers_flash_attn_3._flash_attn_forward").takes("q k v softmax_scale? causal?")
def flash_attention_3(of: Operands, *attributes: object) -> Estimate:
    """Attention over (batch, rows, heads, width), with the logarithm of each row's sum; causal by the last key."""
    q, k, v, _, causal = of
    operands = map(attention.heads_first, (q, k, v))
    problem = attention.attend(*operands, right=0 if causal else None, bottom_right=True)
    return problem.forward(q.like((*q.shape[:-1], v.shape[-1])), q.like(q.shape[:-1], FLOAT32))


@rule("torchao.qscaled_dot_product").takes("query key value attn_mask? dropout_p? is_causal?")
def quantized_attention(of: Operands, *attributes: object) -> Estimate:
    """Attention over quantised operands; probabilities and results are quantised again."""
    problem = attention.attend(of.query, of.key, of.value, of.attn_mask, right=0 if of.is_causal else None)
    requantized = WORK["quantize"].on(problem.scores + of.query.numel)
    return problem.forward(of.query.like()).plus(requantized)


GELU = 4


def multi_head(
    query: TensorType, key: TensorType, value: TensorType, heads: int, mask: TensorType | None
) -> tuple[Attention, Estimate]:
    """The attention of a module, and its work together with four square projections and their biases."""
    q, k, v = (attention.by_head(x, heads) for x in (query, key, value))
    problem = attention.attend(q, k, v, mask)
    projected = 2 * query.numel + key.numel + value.numel
    projections = Estimate(matrix_flops=2 * projected * query.shape[-1], vector_flops=projected)
    return problem, projections.plus(problem.forward())


@rule("aten._native_multi_head_attention").takes(
    "query key value * mask? qkv_weight qkv_bias proj_weight proj_bias; embed_dim num_head need_weights=True "
    "average_attn_weights=True"
)
def native_multi_head_attention(of: Operands) -> Estimate:
    """Four projections and the two products of attention; averaging the weights over the heads adds them."""
    query, key, value, mask, *weights_and_biases = of
    meet(query.shape[-1], of.embed_dim, f"width {query.shape[-1]} is not embed_dim {of.embed_dim}")
    problem, work = multi_head(query, key, value, of.num_head, mask)
    heads = () if of.average_attn_weights else (of.num_head,)
    weights = query.like((query.shape[0], *heads, query.shape[1], key.shape[1])) if of.need_weights else None
    averaged = problem.scores if of.need_weights and of.average_attn_weights else 0
    reads = (*problem.operands, *weights_and_biases)
    return work.plus(vector_flops=averaged, out=(query.like(), weights), reads=reads)


rule("aten._triton_multi_head_attention").derived(native_multi_head_attention, results(0), need_weights=False)


@rule("aten._transformer_encoder_layer_fwd", kind="other").takes(
    "src * mask? qkv_weight qkv_bias proj_weight proj_bias norm_weight_1 norm_bias_1 norm_weight_2 norm_bias_2 "
    "ffn_weight_1 ffn_bias_1 ffn_weight_2 ffn_bias_2"
)
def transformer_encoder_layer(of: Operands, *, embed_dim: int, num_heads: int, use_gelu: bool) -> Estimate:
    """Attention with its projections, two feed-forward products, two residuals and two layer norms."""
    src = of.src
    _, attended = multi_head(src, src, src, num_heads, of.mask)
    tokens = floor_div(src.numel, embed_dim)
    hidden = tokens * of.ffn_weight_1.shape[0]
    normed = 2 * src.numel * (STATISTICS + NORMALISE + AFFINE)
    activated = hidden * (GELU if use_gelu else 1)
    return attended.plus(
        out=(src.like(),),
        matrix_flops=2 * hidden * (embed_dim + of.ffn_weight_2.shape[0]),
        vector_flops=hidden + activated + 3 * src.numel + normed,
        transcendentals=hidden * use_gelu + 2 * tokens,
        reads=(*of,),
    )
