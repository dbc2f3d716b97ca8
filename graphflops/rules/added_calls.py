"""Calls of aten operators that a pass adds to a program, and what torch.autocast does with each operator on CUDA.

like: the call whose module and source line the new one gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec.structs import replace

from graphflops.graph import Argument, Node, Ref
from graphflops.ops import Op
from graphflops.tensor import DType


def converted(like: Node, name: str, x: Ref, dtype: DType) -> Node:
    """A copy of x in another element type."""
    return replace(_call(like, name, "aten._to_copy.default", (x,)), kwargs=(("dtype", dtype),))


def linear(like: Node, name: str, x: Argument, weight: Ref) -> Node:
    """X by the transposed weight."""
    return _call(like, name, "aten.linear.default", (x, weight))


def scaled(like: Node, name: str, x: Ref, factor: float) -> Node:
    """X times a number."""
    return _call(like, name, "aten.mul.Tensor", (x, factor))


def added(like: Node, name: str, x: Ref, y: Ref) -> Node:
    """The sum of two tensors."""
    return _call(like, name, "aten.add.Tensor", (x, y))


def viewed(like: Node, name: str, x: Ref, shape: Sequence[Argument]) -> Node:
    """X with another shape."""
    return _call(like, name, "aten.view.default", (x, tuple(shape)))


def cross_entropy(like: Node, name: str, logits: Ref, labels: Ref) -> Node:
    """The mean cross-entropy of logits against classes."""
    return _call(like, name, "aten.cross_entropy_loss.default", (logits, labels))


def _call(like: Node, name: str, op: str, args: tuple[Argument, ...]) -> Node:
    return replace(like, name=name, op=op, args=args, kwargs=(), outputs=(name,))


Treatment = Literal["lower", "single", "single result", "widest"]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What torch.autocast does (ATen/autocast_mode.h).
_LOWER = _names(
    """_convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution prelu
    addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot
    _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
    scaled_dot_product_attention lstm gru rnn_tanh rnn_relu"""
)
_SINGLE = _names(
    """acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus layer_norm
    native_layer_norm group_norm frobenius_norm nuclear_norm cosine_similarity poisson_nll_loss
    cosine_embedding_loss nll_loss nll_loss2d nll_loss_nd hinge_embedding_loss kl_div l1_loss smooth_l1_loss
    huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss
    multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp norm upsample_nearest1d
    _upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d
    _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d
    upsample_bicubic2d _upsample_bicubic2d_aa"""
)
# Reductions whose result is float32 without a conversion of the operand.
_SINGLE_RESULT = _names("prod softmax log_softmax cumprod cumsum linalg_vector_norm linalg_matrix_norm sum")
_WIDEST = _names("addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add")
_TREATMENTS: dict[Treatment, frozenset[str]] = {
    "lower": _LOWER,
    "single": _SINGLE,
    "single result": _SINGLE_RESULT,
    "widest": _WIDEST,
}


def autocast(operator: Op) -> Treatment | None:
    """How autocast runs an operator: operands in the lower, in single or in the widest type, or a single precision result.

    None for an operator that autocast leaves alone.
    """
    if operator.dialect != "aten":
        return None
    return next((how for how, words in _TREATMENTS.items() if operator.word in words), None)
