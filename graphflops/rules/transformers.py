"""Operators that transformers and diffusers register: products of experts, and attention by kernels from elsewhere."""

from __future__ import annotations

from graphflops.cost import Estimate
from graphflops.dims import Dim, prod
from graphflops.rules.attention import Attention, attend
from graphflops.rules.attention_packed import heads_first
from graphflops.rules.matmul import grouped_mm
from graphflops.rules.registry import rule
from graphflops.tensor import FLOAT32, TensorType

KIND = "attention"


@rule("transformers.grouped_mm_fallback", product=("a", "b"), kind="product")
def grouped_mm_fallback(a: TensorType, b: TensorType, offs: TensorType) -> Estimate:
    """Rows sorted by expert, each multiplied by its expert's matrix."""
    return grouped_mm(a, b, offs)


@rule("transformers.grouped_mm_fallback_backward", kind="product")
def grouped_mm_fallback_backward(
    a: TensorType, b: TensorType, offs: TensorType, grad: TensorType
) -> Estimate:
    """The gradients of rows and matrices: a product of the forward's size for each; all experts' gradients are written."""
    forward = grouped_mm(a, b, offs)
    gradients = (a.like(), b.like())
    return Estimate(gradients, 2 * forward.matrix_flops, reads=(grad, *forward.reads), matrix_dtype=a.dtype)


@rule("transformers_msa.sparse_atten")
def sparse_attention(
    q: TensorType,
    k: TensorType,
    v: TensorType,
    q2k: TensorType,
    cu_seqlens_q: TensorType,
    cu_seqlens_k: TensorType,
    topk: Dim,
    block_size: Dim,
    *attributes: object,
) -> Estimate:
    """Each query of (rows, heads, width) meets the keys of the `topk` blocks chosen for it, fewer near the beginning."""
    rows = prod(q.shape[:2])
    problem = Attention(q, k, v, None, rows, rows * topk * block_size)
    return problem.forward(q.like(), reads=(q2k, cu_seqlens_q, cu_seqlens_k))


@rule("_diffusers_flash_attn_3._flash_attn_forward")
def flash_attention_3(
    q: TensorType,
    k: TensorType,
    v: TensorType,
    softmax_scale: float | None = None,
    causal: bool = False,
    *attributes: object,
) -> Estimate:
    """Attention over (batch, rows, heads, width), with the logarithm of each row's sum; causal by the last key."""
    right = 0 if causal else None
    problem = attend(*map(heads_first, (q, k, v)), right=right, bottom_right=True)
    return problem.forward(q.like((*q.shape[:-1], v.shape[-1])), q.like(q.shape[:-1], FLOAT32))
