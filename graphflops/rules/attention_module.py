"""Whole attention modules as one operator, and the operators that transformers and diffusers register.

A module has its projections, its heads, and in an encoder the layer around them. Biases, residual additions, activations and
normalisations are vector work: 1 per added element, ReLU 1, GELU 4 and an error function, layer normalisation 7.
"""

from __future__ import annotations

from graphflops.cost import Estimate
from graphflops.dims import floor_div, meet, prod
from graphflops.rules.attention import Attention, attend, by_head, heads_first
from graphflops.rules.matmul import grouped_mm
from graphflops.rules.norm import AFFINE, NORMALISE, STATISTICS
from graphflops.rules.operands import Operands
from graphflops.rules.registry import rule
from graphflops.rules.shapes import results
from graphflops.tensor import FLOAT32, TensorType

KIND = "attention"


rule("transformers.grouped_mm_fallback", product=("a", "b")).derived(grouped_mm, order="a b offs")


@rule("transformers.grouped_mm_fallback_backward", kind="product")
def grouped_mm_fallback_backward(
    a: TensorType, b: TensorType, offs: TensorType, grad: TensorType
) -> Estimate:
    """The gradients of rows and matrices: a product of the forward's size for each; all experts' gradients are written."""
    forward = grouped_mm(a, b, offs)
    gradients = (a.like(), b.like())
    return Estimate(gradients, 2 * forward.matrix_flops, reads=(grad, *forward.reads), matrix_dtype=a.dtype)


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
    problem = attend(*map(heads_first, (q, k, v)), right=0 if causal else None, bottom_right=True)
    return problem.forward(q.like((*q.shape[:-1], v.shape[-1])), q.like(q.shape[:-1], FLOAT32))


GELU = 4


def multi_head(
    query: TensorType, key: TensorType, value: TensorType, heads: int, mask: TensorType | None
) -> tuple[Attention, Estimate]:
    """The attention of a module, and its work together with four square projections and their biases."""
    problem = attend(by_head(query, heads), by_head(key, heads), by_head(value, heads), mask)
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
    _, attention = multi_head(src, src, src, num_heads, of.mask)
    tokens = floor_div(src.numel, embed_dim)
    hidden = tokens * of.ffn_weight_1.shape[0]
    normed = 2 * src.numel * (STATISTICS + NORMALISE + AFFINE)
    activated = hidden * (GELU if use_gelu else 1)
    return attention.plus(
        out=(src.like(),),
        matrix_flops=2 * hidden * (embed_dim + of.ffn_weight_2.shape[0]),
        vector_flops=hidden + activated + 3 * src.numel + normed,
        transcendentals=hidden * use_gelu + 2 * tokens,
        reads=(*of,),
    )
