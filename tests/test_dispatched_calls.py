"""What is predicted of each family of operators, against what torch dispatches: kernels and live bytes, both ways."""

from __future__ import annotations

from typing import Any

import pytest
from torch import __version__ as RELEASE

from graphflops.tensor import FLOAT32
from tests.dispatched import MOVED_OTHERWISE, by_torch, by_us
from tests.one_call import g
from tests.support import t


def i(*shape: int) -> Any:
    """Indices."""
    return t(*shape, dtype="int64")


def h(*shape: int) -> Any:
    """An operand in bfloat16 that wants a gradient."""
    return g(*shape, dtype="bfloat16")


MASK = t(4, 64, dtype="bool")
IMAGE, WIDE, ROWS, ONE, ONES = g(2, 8, 16, 16), g(64, 32), g(4, 64), g(32), g(4, 32)
CALLS: list[tuple[Any, ...]] = [
    # products
    ("linear", ROWS, g(32, 64), ONE),
    ("linear", g(2, 4, 64), g(32, 64), ONE),
    ("linear", g(2, 4, 64), g(32, 64)),
    ("addmm", ONE, ROWS, WIDE),
    ("addmm", g(4, 32), ROWS, WIDE),
    ("baddbmm", g(2, 4, 32), g(2, 4, 64), g(2, 64, 32)),
    ("addbmm", g(4, 32), g(2, 4, 64), g(2, 64, 32)),
    ("addmv", g(4), ROWS, g(64)),
    ("mm", ROWS, WIDE),
    ("bmm", g(2, 4, 64), g(2, 64, 32)),
    ("mv", ROWS, g(64)),
    ("dot", g(64), g(64)),
    ("matmul", g(2, 3, 4, 64), g(2, 3, 64, 32)),
    ("matmul", g(2, 4, 64), WIDE),
    ("matmul", g(2, 3, 4, 64), g(3, 64, 32)),
    ("matmul", g(1, 3, 4, 64), g(2, 3, 64, 32)),
    ("linear", g(64), g(32, 64), ONE),
    ("outer", g(32), g(64)),
    ("kron", g(6, 6), g(6, 8)),
    ("inner", ROWS, g(32, 64)),
    ("inner", g(64), g(64)),
    ("rnn_tanh_cell", ROWS, g(4, 32), g(32, 64), g(32, 32), ONE, ONE),
    ("addr", g(4, 64), g(4), g(64)),
    ("addr", g(4, 64), g(4), g(64), {"alpha": 2, "beta": 3}),
    ("bilinear", ROWS, ONES, g(16, 64, 32), g(16)),
    ("bilinear", g(2, 2, 64), g(2, 2, 32), g(16, 64, 32)),
    ("lstm_cell", ROWS, (ONES, ONES), g(128, 64), g(128, 32), g(128), g(128)),
    ("gru_cell", ROWS, ONES, g(96, 64), g(96, 32), g(96), g(96)),
    ("rnn_relu_cell", ROWS, g(4, 32), g(32, 64), g(32, 32)),
    ("einsum", "bij,bjk->bik", (g(2, 4, 8), g(2, 8, 16))),
    ("einsum", "ij,jk->ik", (g(4, 8), g(8, 16))),
    ("einsum", "ij,jk,kl->il", (g(4, 8), g(8, 16), g(16, 4))),
    ("einsum", "bi,ij,bj->b", (g(4, 8), g(8, 16), g(4, 16))),
    ("einsum", "bthd,bshd->bhts", (g(2, 8, 4, 16), g(2, 8, 4, 16))),
    ("einsum", "bhqd,bhkd->bhqk", (g(1, 4, 8, 16), g(1, 4, 6, 16))),
    ("einsum", "i,j->ij", (g(32), g(64))),
    ("einsum", "ij->i", (g(4, 8),)),
    ("conv1d", g(2, 8, 16), g(16, 8, 3), g(16)),
    ("conv2d", IMAGE, g(16, 8, 3, 3), g(16)),
    ("conv2d", IMAGE, g(16, 8, 3, 3)),
    ("conv3d", g(2, 8, 8, 8, 8), g(16, 8, 3, 3, 3), g(16)),
    ("conv_transpose2d.input", IMAGE, g(8, 16, 3, 3), g(16)),
    ("conv_transpose1d", g(2, 8, 16), g(8, 16, 3), g(16)),
    ("tensordot", g(4, 8), g(8, 4), (1,), (0,)),
    ("chain_matmul", (g(4, 8), g(8, 4))),
    # attention without a kernel of its own: of three axes, and of heads in float32 that share keys
    ("scaled_dot_product_attention", g(6, 40, 16), g(6, 24, 16), g(6, 24, 16)),
    ("scaled_dot_product_attention", g(6, 40, 16), g(6, 24, 16), g(6, 24, 16), t(40, 24)),
    ("scaled_dot_product_attention", g(6, 40, 16), g(6, 40, 16), g(6, 40, 16), None, 0.0, True),
    ("scaled_dot_product_attention", h(6, 40, 16), h(6, 24, 16), h(6, 24, 16), t(40, 24, dtype="bool")),
    ("scaled_dot_product_attention", g(2, 6, 40, 16), *[g(2, 2, 24, 16)] * 2, {"enable_gqa": True}),
    # normalisations and softmax
    ("layer_norm", ROWS, (64,), g(64), g(64)),
    ("layer_norm", ROWS, (64,)),
    ("layer_norm", t(4, 64), (64,), g(64), g(64)),
    ("native_layer_norm", ROWS, (64,), g(64), g(64), 1e-5),
    ("group_norm", g(4, 8, 5, 5), 2, g(8), g(8)),
    ("batch_norm", g(4, 8, 5, 5), g(8), g(8), t(8), t(8), True, 0.1, 1e-5, False),
    ("batch_norm", g(4, 8, 5, 5), g(8), g(8), t(8), t(8), False, 0.1, 1e-5, False),
    ("instance_norm", g(32, 8, 9, 9), g(8), g(8), None, None, True, 0.1, 1e-5, False),
    ("instance_norm", g(32, 8, 9, 9), g(8), g(8), t(8), t(8), True, 0.1, 1e-5, False),
    ("instance_norm", g(4, 8, 9, 9), None, None, t(8), t(8), False, 0.1, 1e-5, False),
    ("softmax.int", ROWS, -1),
    ("softmax.int", h(4, 64), -1, FLOAT32),
    ("softmax.int", g(2, 8, 4, 4), 1),
    ("rms_norm", ROWS, (64,), g(64), 1e-5),
    ("log_softmax.int", ROWS, -1),
    ("log_softmax.int", h(4, 64), -1, FLOAT32),
    # reductions, scans, sorts
    ("sum.dim_IntList", ROWS, (-1,)),
    ("sum", ROWS),
    ("sum.dim_IntList", g(2, 8, 4, 4), (0, 2, 3)),
    ("mean", ROWS),
    ("mean.dim", ROWS, (-1,), True),
    ("prod.dim_int", ROWS, -1),
    ("amax", ROWS, (-1,)),
    ("amin", ROWS, (-1,)),
    ("aminmax", ROWS, {"dim": -1}),
    ("aminmax", ROWS),
    ("count_nonzero", t(4, 64)),
    ("count_nonzero.dim_IntList", t(4, 64), (-1,)),
    ("trace", g(64, 64)),
    ("max.dim", ROWS, -1),
    ("max", ROWS),
    ("min.dim", ROWS, -1),
    ("var.correction", ROWS, (-1,)),
    ("std.correction", ROWS, (-1,)),
    ("var_mean.correction", ROWS, (-1,)),
    ("logsumexp", ROWS, (-1,)),
    ("linalg_vector_norm", ROWS, 2, (-1,)),
    ("linalg_vector_norm", ROWS, 1, (-1,)),
    ("norm.ScalarOpt_dim", ROWS, 2, (-1,)),
    ("std_mean.correction", ROWS, (-1,)),
    ("nansum", ROWS),
    ("nanmean", ROWS),
    ("nanmean", ROWS, (-1,)),
    ("renorm", g(4, 64, dtype="float64"), 2, 0, 1.0),  # on `meta` float32 would be added up in float64
    ("renorm", g(4, 8, 8, dtype="float64"), 1, -2, 1.0),
    ("dist", ROWS, ROWS),
    ("dist", ROWS, t(4, 64), 1),
    ("cdist", ROWS, g(8, 64)),
    ("cdist", ROWS, t(8, 64), 1.0),
    ("cdist", g(2, 32, 64), g(2, 40, 64)),
    ("cdist", g(2, 32, 64), g(2, 40, 64), 2.0, 2),
    ("cdist", ROWS, g(8, 64), 2.0, 1),
    ("median.dim", ROWS, -1),
    ("kthvalue", ROWS, 3, -1),
    ("mode", ROWS, -1),
    ("argmax", t(4, 64), -1),
    ("cumsum", ROWS, -1),
    ("cumprod", ROWS, -1),
    ("logcumsumexp", ROWS, -1),
    ("cummax", ROWS, -1),
    ("cummin", ROWS, -1),
    ("linalg_norm", ROWS),
    ("linalg_cross", g(4, 3), g(4, 3)),
    ("sort", ROWS, -1),
    ("msort", ROWS),
    ("topk", ROWS, 8, -1),
    # losses
    ("mse_loss", ROWS, t(4, 64)),
    ("mse_loss", ROWS, ROWS),
    ("mse_loss", ROWS, t(4, 64), 0),
    ("smooth_l1_loss", ROWS, t(4, 64)),
    ("huber_loss", ROWS, t(4, 64)),
    ("l1_loss", ROWS, t(4, 64)),
    ("kl_div", ROWS, t(4, 64)),
    ("soft_margin_loss", ROWS, t(4, 64)),
    ("binary_cross_entropy", ROWS, t(4, 64)),
    ("binary_cross_entropy_with_logits", ROWS, t(4, 64)),
    ("nll_loss_nd", ROWS, i(4)),
    ("cross_entropy_loss", ROWS, i(4)),
    ("cross_entropy_loss", ROWS, i(4), None, 1, -100, 0.1),
    ("cross_entropy_loss", ROWS, t(4, 64)),
    ("l1_loss", ROWS, t(4, 64), 0),
    ("cosine_similarity", ROWS, ROWS),
    ("cosine_similarity", WIDE, ONE),
    ("pairwise_distance", ROWS, ROWS),
    ("l1_loss", ROWS, ROWS),
    ("poisson_nll_loss", ROWS, t(4, 64), True, False, 1e-8, 1),
    ("poisson_nll_loss", ROWS, t(4, 64), False, False, 1e-8, 1),
    ("hinge_embedding_loss", ROWS, t(4, 64)),
    ("margin_ranking_loss", ROWS, ROWS, t(4, 64)),
    ("cosine_embedding_loss", ROWS, ROWS, t(4)),
    ("triplet_margin_loss", ROWS, ROWS, ROWS),
    ("triplet_margin_loss", ROWS, ROWS, ROWS, 1.0, 2.0, 1e-6, True),
    # pooling and interpolation
    ("max_pool1d", g(2, 8, 16), (2,)),
    ("max_pool2d", IMAGE, (2, 2), (2, 2)),
    ("max_pool2d_with_indices", IMAGE, (2, 2), (2, 2)),
    ("max_pool3d", g(2, 8, 4, 8, 8), (2, 2, 2)),
    ("avg_pool1d", g(2, 8, 16), (2,)),
    ("avg_pool2d", IMAGE, (2, 2), (2, 2)),
    ("avg_pool3d", g(2, 8, 4, 8, 8), (2, 2, 2)),
    ("adaptive_avg_pool1d", g(2, 8, 16), (4,)),
    ("adaptive_avg_pool3d", g(2, 4, 4, 4, 4), (2, 2, 2)),
    ("adaptive_avg_pool2d", IMAGE, (1, 1)),
    ("adaptive_avg_pool2d", IMAGE, (4, 4)),
    ("adaptive_max_pool2d", IMAGE, (4, 4)),
    ("upsample_nearest1d.vec", g(2, 8, 16), None, (2.0,)),
    ("upsample_nearest2d.vec", IMAGE, None, (2.0, 2.0)),
    ("upsample_linear1d.vec", g(2, 8, 16), None, False, (2.0,)),
    ("upsample_trilinear3d.vec", g(2, 4, 4, 4, 4), None, False, (2.0, 2.0, 2.0)),
    ("upsample_bilinear2d.vec", IMAGE, None, False, (2.0, 2.0)),
    ("upsample_bicubic2d.vec", IMAGE, None, False, (2.0, 2.0)),
    ("grid_sampler", IMAGE, g(2, 8, 8, 2), 0, 0, False),
    # indexing
    ("embedding", g(100, 16), i(4, 8)),
    ("index.Tensor", g(100, 16), (i(8),)),
    ("index_select", g(100, 16), 0, i(8)),
    ("gather", ROWS, 1, i(4, 8)),
    ("scatter.src", ROWS, 1, i(4, 8), g(4, 8)),
    ("scatter.value", ROWS, 1, i(4, 8), 0.0),
    ("scatter_add", ROWS, 1, i(4, 8), g(4, 8)),
    *[("scatter_reduce.two", ROWS, 1, i(4, 8), g(4, 8), how) for how in ("sum", "mean", "amax", "prod")],
    *[("index_reduce", WIDE, 0, i(8), g(8, 32), how) for how in ("mean", "amin", "prod")],
    ("take", ROWS, i(8)),
    ("take_along_dim", ROWS, i(4, 8), 1),
    ("take_along_dim", ROWS, i(1, 8), -1),
    ("take_along_dim", ROWS, i(4, 8)),
    ("index_add", WIDE, 0, i(8), g(8, 32)),
    ("index_copy", WIDE, 0, i(8), g(8, 32)),
    ("index_fill.int_Scalar", WIDE, 0, i(8), 0.0),
    ("index_put", WIDE, (i(8),), g(8, 32)),
    ("masked_fill.Scalar", ROWS, MASK, 0.0),
    ("masked_scatter", ROWS, MASK, ROWS),
    # layout: joins, pads, parts
    ("cat", (ROWS, g(4, 32)), 1),
    ("cat", (ROWS, h(4, 32)), 1),
    ("stack", (ROWS, h(4, 64)), 0),
    ("stack", (ROWS, ROWS), 0),
    ("hstack", (ROWS, ROWS)),
    ("dstack", (ROWS, ROWS)),
    ("column_stack", (ROWS, ROWS)),
    ("repeat_interleave.self_int", ROWS, 32, 1),
    ("repeat_interleave.self_int", ROWS, 32),
    ("pad", ROWS, (1, 1)),
    ("pad", IMAGE, (1, 1, 1, 1), "reflect"),
    ("pad", IMAGE, (1, 1, 1, 1), "replicate"),
    ("repeat", ROWS, (32, 1)),
    ("tile", ROWS, (32, 1)),
    ("constant_pad_nd", ROWS, (1, 1)),
    ("replication_pad1d", g(2, 8, 16), (1, 1)),
    ("reflection_pad2d", IMAGE, (1, 1, 1, 1)),
    ("flip", ROWS, (1,)),
    ("fliplr", ROWS),
    ("rot90", g(64, 64)),
    ("roll", ROWS, (1,), (1,)),
    ("roll", ROWS, (1, 2), (0, 1)),
    ("slice.Tensor", ROWS, 1, 0, 32),
    ("select.int", ROWS, 0, 1),
    ("narrow", ROWS, 1, 0, 32),
    ("split.Tensor", ROWS, 32, 1),
    ("chunk", ROWS, 2, 1),
    ("movedim.int", ROWS, 0, 1),
    ("flatten.using_ints", IMAGE, 1),
    ("unbind.int", ROWS, 0),
    ("expand", g(4, 1), (4, 64)),
    ("transpose.int", ROWS, 0, 1),
    ("clone", ROWS),
    ("tril", g(64, 64)),
    ("triu", g(64, 64)),
    ("diagonal_scatter", g(64, 64), g(64)),
    ("select_scatter", g(64, 64), g(64), 0, 1),
    ("slice_scatter", g(64, 64), WIDE, 1, 0, 32),
    ("slice_scatter", t(64, 64), WIDE, 1, 0, 32),
    ("diag_embed", ROWS),
    ("diagonal", g(64, 64)),
    ("unfold", ROWS, 1, 8, 4),
    ("im2col", IMAGE, (3, 3), (1, 1), (0, 0), (1, 1)),
    ("pixel_shuffle", IMAGE, 2),
    ("pixel_unshuffle", IMAGE, 2),
    ("channel_shuffle", IMAGE, 2),
    ("to.dtype", h(4, 64), FLOAT32),
    # random numbers
    ("native_dropout", ROWS, 0.1, True),
    ("alpha_dropout", ROWS, 0.1, True),
    ("feature_alpha_dropout", g(2, 8, 4, 4), 0.1, True),
    ("feature_dropout", g(2, 8, 4, 4), 0.1, True),
    ("dropout", ROWS, 0.1, True),
    # elementwise: repeated operands, several element types, gradients of several operands
    *[(name, ROWS) for name in ("relu", "relu6", "hardtanh", "elu", "celu", "selu", "softplus", "silu")],
    *[(name, ROWS) for name in ("hardswish", "hardsigmoid", "softshrink", "hardshrink", "tanh", "sigmoid")],
    *[(name, ROWS) for name in ("exp", "log1p", "rsqrt", "erf", "square", "sign", "logit", "digamma")],
    *[(name, ROWS, ROWS) for name in ("hypot", "logaddexp", "fmax", "fmod.Tensor", "xlogy.Tensor")],
    ("special_entr", ROWS),
    ("mish", ROWS),
    ("log_sigmoid", ROWS),
    ("leaky_relu", ROWS, 0.1),
    ("threshold", ROWS, 0.5, 0.0),
    ("remainder.Scalar", ROWS, 2.0),
    ("div.Tensor_mode", ROWS, ROWS, {"rounding_mode": "floor"}),
    ("div.Tensor_mode", ROWS, ROWS, {"rounding_mode": None}),
    ("gelu", ROWS),
    ("prelu", g(40, 8, 4), g(8)),
    ("glu", ROWS, -1),
    ("where.self", MASK, ROWS, ROWS),
    ("where.ScalarOther", MASK, ROWS, 0.0),
    ("where.ScalarSelf", MASK, 0.0, ROWS),
    ("where.Scalar", MASK, 1.0, 0.0),
    ("clamp", ROWS, 0.0, 1.0),
    ("clamp", ROWS, 0.0),
    ("clamp.Tensor", ROWS, t(4, 64), t(4, 64)),
    ("add.Tensor", WIDE, ONE),
    ("add.Tensor", ROWS, ROWS, {"alpha": 2}),
    ("rsub.Tensor", ROWS, ROWS, {"alpha": 2}),
    ("sub.Tensor", WIDE, ONE),
    ("sub.Tensor", ROWS, ROWS),
    ("mul.Tensor", WIDE, ONE),
    ("div.Tensor", WIDE, ONE),
    ("maximum", WIDE, ONE),
    ("rsub.Scalar", ROWS, 1.0),
    ("mul.Tensor", h(4, 64), ROWS),
    ("add.Tensor", h(4, 64), ROWS),
    ("addcmul", ROWS, ROWS, ROWS),
    ("addcmul", ROWS, ROWS, ROWS, {"value": 2}),
    ("addcdiv", ROWS, ROWS, ROWS),
    ("lerp.Scalar", ROWS, ROWS, 0.5),
    ("lerp.Scalar", WIDE, ONE, 0.5),
    ("lerp.Tensor", ROWS, ROWS, ROWS),
    ("pow.Tensor_Scalar", ROWS, 3),
    ("pow.Tensor_Tensor", ROWS, ROWS),
    ("pow.Scalar", 2.0, ROWS),
    ("float_power.Tensor_Scalar", ROWS, 3.0),
    ("float_power.Tensor_Tensor", ROWS, ROWS),
    ("float_power.Scalar", 2.0, ROWS),
    ("atan2", ROWS, ROWS),
    ("polar", ROWS, ROWS),
    ("sinc", ROWS),
    ("copysign.Tensor", ROWS, ROWS),
    ("copysign.Scalar", ROWS, 1.0),
    ("ldexp.Tensor", ROWS, t(4, 64)),
    ("ldexp.Tensor", ROWS, ROWS),
    ("nan_to_num", ROWS),
]
EXTREMES = "PyTorch 2.13 divides by the number of extremes first, 2.11 last"
IN_PLACE = "this test takes what is added to zeros to be added in place"
EVERYTHING = "forward kernels, forward bytes, backward kernels, backward bytes"
# Where CUDA differs from what torch dispatches here, or where we do: by operator, what differs, and why.
DIFFERENT = {
    "prod": ("backward kernels, backward bytes", "zeros are counted first on a device, but not under a mode"),
    **dict.fromkeys(("amax", "amin"), ("backward bytes", EXTREMES)),
    "roll": (EVERYTHING, "a kernel for each axis: TensorTransformations.cu"),
    "mish": (
        "backward kernels, backward bytes",
        "one kernel on a device: Activation.cpp; `meta` has its parts",
    ),
    "log_sigmoid": (
        "forward bytes, backward bytes",
        "the buffer is empty on CUDA: ActivationLogSigmoidKernel.cu",
    ),
    "conv3d": (EVERYTHING, "cuDNN copies what it wants to lie otherwise: kernels that an H200 ran"),
    "rms_norm": (EVERYTHING, "fused on CUDA: layer_norm_kernel.cu"),
    "dropout": ("forward kernels, forward bytes, backward bytes", "one kernel, a mask of bytes: Dropout.cpp"),
    "cumprod": (
        "backward kernels, backward bytes",
        "zeros are counted first on a device, but not under a mode",
    ),
    f"log_softmax:{FLOAT32}": ("backward bytes", "the test holds the gradient of the result"),
    "rnn_tanh_cell": ("backward bytes", "the test holds the gradient of the result"),
    "rnn_relu_cell": ("backward bytes", "the test holds the gradient of the result"),
    "scaled_dot_product_attention": ("backward bytes", "the test holds the gradient of the result"),
    "cosine_embedding_loss": (
        "backward bytes",
        "gradients of one tensor are added in place, not under a mode",
    ),
    "index": ("backward bytes", "sorts lists of its indices on CUDA: Indexing.cu"),
    "index_reduce:prod": ("backward kernels", IN_PLACE),
    "scatter_reduce": (
        "forward kernels",
        "the operand is copied twice on a device: kernels that an H200 ran",
    ),
    "scatter_reduce:prod": ("forward kernels, backward kernels", IN_PLACE),
    "upsample_bicubic2d": ("forward kernels", "the result is zeroed first on CUDA: UpSampleBicubic2d.cu"),
    "im2col": ("forward kernels", "a kernel for each image on CUDA: Im2Col.cu"),
    "lstm_cell": (EVERYTHING, "one kernel after the products on a device: RNN.cu"),
    "gru_cell": (EVERYTHING, "one kernel after the products on a device: RNN.cu"),
}


@pytest.mark.parametrize(
    "call", CALLS, ids=lambda call: f"{call[0]}{[getattr(x, 'shape', x) for x in call[1:]]}"
)
def test_predicted_kernels_and_bytes_are_those_that_torch_dispatches(call: tuple[Any, ...]) -> None:
    name, *operands = call
    named = operands.pop() if isinstance(operands[-1], dict) else {}
    op = f"aten.{name if '.' in name else f'{name}.default'}"
    if name == "aminmax" and RELEASE < "2.13":
        pytest.skip("PyTorch 2.11 has no gradient of aminmax")
    theirs, ours = by_torch(op, *operands, **named), by_us(op, *operands, **named)
    different = set()
    for word, torch, own in (
        ("forward", theirs.forward, ours.forward),
        ("backward", theirs.backward, ours.backward),
    ):
        if +torch.kernels != +own.kernels:
            different.add(f"{word} kernels")
        if (
            abs(torch.peak - own.peak) > 64 + torch.peak // 100
        ):  # numbers and vectors of one element for each row
            different.add(f"{word} bytes")
        if name.split(".")[0] not in MOVED_OTHERWISE[word].split():
            for bytes_of_torch, bytes_of_ours in zip(torch.moved, own.moved, strict=True):
                assert abs(bytes_of_torch - bytes_of_ours) <= 64 + bytes_of_torch // 50, (torch, own)
    word = name.split(".")[0]
    known, _ = DIFFERENT.get(f"{word}:{operands[-1]}", DIFFERENT.get(word, ("", "")))
    one_axis = name == "roll" and len(operands[1]) == 1
    expected = set() if one_axis else set(filter(None, known.split(", ")))
    assert different == expected, f"\n{op}: torch {theirs}\n{op}: ours  {ours}"
