"""Both ways of counting a training step, for every kind of layer that trains, against torch and each other.

    python tests/oracle/training.py [--quick] [--only NAME,NAME] [--verbose]

Each module is exported with a scalar loss. Its joint graph of forward and backward must have no unknown call and no
diagnostic, and its matrix FLOPs must equal FlopCounterMode's around forward and backward in eager mode under
`sdpa_kernel(MATH)`. The training analysis of the forward program alone must have as many matrix FLOPs as the joint graph
(attention fused in both), and vector FLOPs and bytes within a factor of RATIO. Where torch's counter is wrong, the case
states the right number as a product; where the joint graph spells an operator out in many calls, it says so. Prints each
failure and one summary line; exits 1 if there is a failure.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch._decomp import core_aten_decompositions
from torch.export.experimental import _export_forward_backward
from torch.export.exported_program import _decompose_exported_program
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

import graphflops

RATIO = 3.0
SMALL = 4096  # bytes and operations; below, the loss around a module outweighs it


@dataclass(frozen=True)
class Case:
    """One module with inputs.

    matrix: matrix FLOPs of forward and backward, where torch's counter is wrong.
    joint: whether torch can export the joint graph; if not, the training analysis is compared with the count.
    spelled: why the joint graph's vector work or traffic is more than RATIO times the operator's.
    """

    build: Callable[[], tuple[nn.Module, tuple[Any, ...]]]
    matrix: int | None = None
    joint: bool = True
    spelled: str = ""


class Loss(nn.Module):
    """The sum of a module's floating results, each squared: a gradient that is not constant."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any) -> torch.Tensor:
        results = pytree.tree_leaves(self.module(*args))
        return sum((r * r).sum() for r in results if r.is_floating_point() and r.requires_grad)


class Call(nn.Module):
    """A function of a linear layer's result: what has no parameters is differentiated through one."""

    def __init__(self, function: Callable[..., Any], features: int) -> None:
        super().__init__()
        self.function, self.linear = function, nn.Linear(features, features)

    def forward(self, x: torch.Tensor, *rest: Any) -> Any:
        return self.function(self.linear(x), *rest)


class Heads(nn.Module):
    """Projections to query, key and value around an attention function."""

    def __init__(self, attend: Callable[..., torch.Tensor], width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.attend, self.heads, self.kv_heads = attend, heads, kv_heads
        self.size = width // heads
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * kv_heads * self.size)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, *mask: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q = self.q(x).view(batch, length, self.heads, self.size).transpose(1, 2)
        k, v = self.kv(x).view(batch, length, 2, self.kv_heads, self.size).permute(2, 0, 3, 1, 4)
        return self.out(self.attend(q, k, v, *mask).transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """A decoder block, pre-norm."""

    def __init__(self, width: int, attention: nn.Module) -> None:
        super().__init__()
        self.before, self.attention, self.between = nn.LayerNorm(width), attention, nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before(x))
        return x + self.mlp(self.between(x))


class GPT(nn.Module):
    """A decoder whose head is its embedding, with cross entropy."""

    def __init__(self, words: int, width: int, tied: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.Sequential(*(Block(width, Heads(causal, width, 4, 4)) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.norm(self.blocks(self.embedding(ids))))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Residual(nn.Module):
    """A residual block of two convolutions."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        )
        self.second = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.second(F.relu(self.first(x))) + x)


class UNet(nn.Module):
    """One level down and up, joined."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = F.relu(self.down(x))
        deep = F.relu(self.deep(F.max_pool2d(skip, 2)))
        return self.out(torch.cat([self.up(deep), skip], 1))


class ViT(nn.Module):
    """Patches, a class token, positions, one block, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.token = nn.Conv2d(3, 32, 4, 4), nn.Parameter(torch.zeros(1, 1, 32))
        self.positions = nn.Parameter(torch.zeros(1, 17, 32))
        self.block, self.head = Block(32, Heads(full, 32, 4, 4)), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        return self.head(self.block(x)[:, 0])


class NoGradient(nn.Module):
    """A first layer run without recording gradients, and one whose result is detached."""

    def __init__(self) -> None:
        super().__init__()
        self.unrecorded, self.cut, self.trained = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x = self.unrecorded(x)
        return self.trained(self.cut(x).detach())


def full(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """Attention with every key, or with a mask."""
    return F.scaled_dot_product_attention(q, k, v, mask)


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention of several query heads to one key head."""
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def spelled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention as two products around a softmax."""
    return (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1) @ v


def frozen_first(module: nn.Sequential) -> nn.Sequential:
    """The module with its first layer not trained."""
    for parameter in module[0].parameters():
        parameter.requires_grad_(False)
    return module


R = torch.randn


def layer(module: Callable[[], nn.Module], *shape: int) -> Case:
    """A module of one floating input."""
    return Case(lambda: (module(), (R(*shape),)))


def through(function: Callable[..., Any], *shape: int, rest: tuple[Any, ...] = (), spelled: str = "") -> Case:
    """A function without parameters behind a linear layer."""
    return Case(lambda: (Call(function, shape[-1]), (R(*shape), *rest)), spelled=spelled)


def convolution(module: Callable[[], nn.Module], *shape: int, matrix: int) -> Case:
    """A grouped convolution behind a pointwise one: both its gradients are wanted, and torch miscounts them."""
    return Case(lambda: (module(), (R(*shape),)), matrix)


def positive(x: torch.Tensor) -> torch.Tensor:
    """A positive definite matrix from a square one."""
    return x @ x.mT + len(x) * torch.eye(len(x))


L = torch.linalg
# A function of (rows, 16), and the rows. The forms that check for errors cannot be exported with their gradients.
LINALG: dict[str, tuple[Callable[..., Any], int]] = {
    "cholesky": (lambda x: L.cholesky_ex(positive(x))[0], 16),
    "cholesky_solve": (lambda x: torch.cholesky_solve(x, L.cholesky_ex(positive(x))[0]), 16),
    "cholesky_inverse": (lambda x: torch.cholesky_inverse(L.cholesky_ex(positive(x))[0]), 16),
    "lu": (L.lu, 16),
    "lu_tall": (L.lu, 32),
    "lu_solve": (lambda x: L.lu_solve(*L.lu_factor_ex(positive(x))[:2], x), 16),
    "det": (lambda x: L.det(x / 4), 16),
    "slogdet": (L.slogdet, 16),
    "logdet": (lambda x: torch.logdet(positive(x)), 16),
    "qr": (L.qr, 16),
    "qr_tall": (L.qr, 32),
    "eigh": (lambda x: L.eigh(positive(x)), 16),
    "eigvalsh": (lambda x: L.eigvalsh(positive(x)), 16),
    "svd": (lambda x: L.svd(x, full_matrices=False), 16),
    "svd_tall": (lambda x: L.svd(x, full_matrices=False), 32),
    "svdvals": (L.svdvals, 32),
    "nuclear_norm": (lambda x: L.matrix_norm(x, "nuc"), 32),
    "spectral_norm": (lambda x: L.matrix_norm(x, 2), 32),
    "cond": (L.cond, 16),
    "inverse": (lambda x: L.inv_ex(positive(x))[0], 16),
    "solve": (lambda x: L.solve_ex(positive(x), x)[0], 16),
    "solve_one": (lambda x: L.solve_ex(positive(x), x[:, 0])[0], 16),
    "solve_triangular": (lambda x: L.solve_triangular(x.triu() + 16 * torch.eye(16), x, upper=True), 16),
    "matrix_power": (lambda x: L.matrix_power(x, 5), 16),
}
GATHERED = "the graph gathers each neighbour and weighs it by itself"
STEPS = "the graph reads the weights in every step"
SPELLED_LOSSES = dict.fromkeys(
    ("multi_margin", "hinge_embedding", "cosine_embedding"),
    "the graph spells the formula, with an intermediate per term",
)
ACTIVATIONS = [
    *(nn.ReLU, nn.ReLU6, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardsigmoid),
    *(nn.Hardtanh, nn.Hardshrink, nn.Softshrink, nn.Tanhshrink, nn.LeakyReLU, nn.LogSigmoid, nn.Sigmoid),
    *(nn.Softplus, nn.Softsign, nn.Tanh, nn.PReLU, nn.RReLU),
]
CLASSES, TARGET = torch.randint(0, 16, (64,)), torch.rand(64, 16)
SIGNS = torch.randint(0, 2, (64,)) * 2 - 1
CASES: dict[str, Case] = {
    "linear": layer(lambda: nn.Linear(64, 32), 16, 64),
    "linear3d": layer(lambda: nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 32, bias=False)), 4, 16, 32),
    "bilinear": Case(
        lambda: (nn.Bilinear(8, 16, 32), (R(4, 8), R(4, 16))),
        # x1 * W, that with x2; backward: the outer product of gradient and x1, contracted with x2 over the rows
        matrix=2 * 4 * 8 * 16 * 32 + 2 * 4 * 16 * 32 + 2 * 4 * 8 * 16 * 32,
    ),
    "einsum": through(lambda x: torch.einsum("bid,bjd->bij", x, x), 4, 16, 32),
    "baddbmm": through(lambda x: torch.baddbmm(x, x, x), 4, 32, 32),
    "embedding": Case(lambda: (nn.Embedding(100, 32), (torch.randint(0, 100, (4, 16)),))),
    "embedding_bag": Case(lambda: (nn.EmbeddingBag(100, 32), (torch.randint(0, 100, (4, 16)),))),
    **{
        f"conv{n}d{name}": layer(
            lambda n=n, k=k: nn.Sequential(
                getattr(nn, f"Conv{n}d")(4, 8, 3, **k), getattr(nn, f"Conv{n}d")(8, 4, 1)
            ),
            *(2, 4, *(8,) * n),
        )
        for n in (1, 2, 3)
        for name, k in {"": {}, "_strided": {"stride": 2, "padding": 1}, "_dilated": {"dilation": 2}}.items()
    },
    **{
        f"conv_transpose{n}d{name}": layer(
            lambda n=n, k=k: nn.Sequential(
                getattr(nn, f"Conv{n}d")(4, 8, 1), getattr(nn, f"ConvTranspose{n}d")(8, 4, 3, **k)
            ),
            *(2, 4, *(6,) * n),
        )
        for n in (1, 2, 3)
        for name, k in {"": {}, "_strided": {"stride": 2, "padding": 1, "output_padding": 1}}.items()
    },
    "conv2d_same_circular": layer(
        lambda: nn.Conv2d(4, 8, 3, padding="same", padding_mode="circular"), 2, 4, 8, 8
    ),
    # pointwise 4->32 (input wants no gradient: 2 x), then 32->64 in 4 groups (3 x)
    "conv2d_groups": convolution(
        lambda: nn.Sequential(nn.Conv2d(4, 32, 1), nn.Conv2d(32, 64, 3, padding=1, groups=4)),
        *(1, 4, 16, 16),
        matrix=2 * (2 * 256 * 4 * 32) + 3 * (2 * 256 * 9 * 8 * 64),
    ),
    "conv2d_depthwise": convolution(
        lambda: nn.Sequential(nn.Conv2d(4, 32, 1), nn.Conv2d(32, 32, 3, padding=1, groups=32)),
        *(1, 4, 16, 16),
        matrix=2 * (2 * 256 * 4 * 32) + 3 * (2 * 256 * 9 * 32),
    ),
    "conv1d_depthwise": convolution(
        lambda: nn.Sequential(nn.Conv1d(4, 32, 1), nn.Conv1d(32, 32, 4, groups=32)),
        *(2, 4, 19),
        matrix=2 * (2 * 38 * 4 * 32) + 3 * (2 * 2 * 16 * 4 * 32),
    ),
    "conv_transpose2d_depthwise": convolution(
        lambda: nn.Sequential(nn.Conv2d(4, 32, 1), nn.ConvTranspose2d(32, 32, 4, 2, 1, groups=32)),
        *(1, 4, 8, 8),
        matrix=2 * (2 * 64 * 4 * 32) + 3 * (2 * 64 * 16 * 32),
    ),
    "batch_norm1d": layer(lambda: nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32)), 64, 16),
    "batch_norm2d": layer(lambda: nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8)), 4, 3, 8, 8),
    "batch_norm3d": layer(lambda: nn.Sequential(nn.Conv3d(3, 8, 1), nn.BatchNorm3d(8)), 2, 3, 4, 4, 4),
    "batch_norm_eval": layer(lambda: nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8)).eval(), 4, 3, 8, 8),
    "layer_norm": layer(lambda: nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32)), 64, 16),
    "rms_norm": layer(lambda: nn.Sequential(nn.Linear(16, 32), nn.RMSNorm(32)), 64, 16),
    "group_norm": layer(lambda: nn.Sequential(nn.Conv2d(3, 8, 1), nn.GroupNorm(2, 8)), 4, 3, 8, 8),
    "instance_norm": layer(
        lambda: nn.Sequential(nn.Conv2d(3, 8, 1), nn.InstanceNorm2d(8, affine=True)), 4, 3, 8, 8
    ),
    "local_response_norm": through(nn.LocalResponseNorm(2), 4, 8, 8, 8),
    "weight_norm": layer(lambda: torch.nn.utils.parametrizations.weight_norm(nn.Linear(16, 32)), 64, 16),
    **{activation.__name__.lower(): through(activation(), 64, 32) for activation in ACTIVATIONS},
    "glu": through(nn.GLU(), 64, 32),
    "softmax": through(nn.Softmax(-1), 64, 32),
    "softmin": through(nn.Softmin(-1), 64, 32),
    "log_softmax": through(nn.LogSoftmax(-1), 64, 32),
    **{
        f"{kind}{n}d": through(getattr(nn, f"{kind}{n}d")(size), 2, 4, *(8,) * n)
        for n in (1, 2, 3)
        for kind, size in {
            "MaxPool": 2,
            "AvgPool": 2,
            "AdaptiveAvgPool": 4,
            "AdaptiveMaxPool": 4,
            "LPPool": (2, 2),
        }.items()
        if kind != "LPPool"
    },
    "LPPool2d": through(nn.LPPool2d(2, 2), 2, 4, 8, 8),
    "FractionalMaxPool2d": through(nn.FractionalMaxPool2d(2, output_size=4), 2, 4, 8, 8),
    "global_average": through(nn.AdaptiveAvgPool2d(1), 2, 4, 8, 8),
    "max_unpool": through(
        lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), kernel_size=2), 2, 4, 8, 8
    ),
    **{
        f"upsample_{mode}": through(
            nn.Upsample(scale_factor=2, mode=mode),
            *(2, 4, *(8,) * n),
            spelled="" if mode == "nearest" else GATHERED,
        )
        for mode, n in {"nearest": 2, "linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}.items()
    },
    "grid_sample": through(
        lambda x, grid: F.grid_sample(x, grid, align_corners=False),
        *(2, 4, 8, 8),
        rest=(torch.rand(2, 6, 6, 2),),
    ),
    "pixel_shuffle": through(nn.PixelShuffle(2), 2, 4, 8, 8),
    "unfold": through(nn.Unfold(3), 2, 4, 8, 8),
    "fold": through(nn.Fold((8, 8), 2, stride=2), 2, 16, 16),
    "zero_pad": through(nn.ZeroPad2d(1), 2, 4, 8, 8),
    "reflection_pad": through(nn.ReflectionPad2d(1), 2, 4, 8, 8),
    "replication_pad": through(nn.ReplicationPad2d(1), 2, 4, 8, 8),
    "circular_pad": through(nn.CircularPad2d(1), 2, 4, 8, 8, spelled="a copy of the whole for every side"),
    "dropout": through(nn.Dropout(), 64, 32),
    "dropout2d": through(nn.Dropout2d(), 4, 8, 8, 8),
    "alpha_dropout": through(nn.AlphaDropout(), 64, 32),
    **{
        f"{name}_loss": through(
            lambda x, loss=loss, y=y: loss(x, y), 64, 16, spelled=SPELLED_LOSSES.get(name, "")
        )
        for name, (loss, y) in {
            "l1": (nn.L1Loss(), TARGET),
            "mse": (nn.MSELoss(), TARGET),
            "smooth_l1": (nn.SmoothL1Loss(), TARGET),
            "huber": (nn.HuberLoss(), TARGET),
            "cross_entropy": (nn.CrossEntropyLoss(label_smoothing=0.1), CLASSES),
            "cross_entropy_soft": (nn.CrossEntropyLoss(), TARGET),
            "kl_div": (nn.KLDivLoss(reduction="batchmean"), TARGET),
            "bce_logits": (nn.BCEWithLogitsLoss(), TARGET),
            "soft_margin": (nn.SoftMarginLoss(), TARGET),
            "multi_margin": (nn.MultiMarginLoss(), CLASSES),
            "multilabel_soft_margin": (nn.MultiLabelSoftMarginLoss(), TARGET),
            "poisson_nll": (nn.PoissonNLLLoss(), TARGET),
            "hinge_embedding": (nn.HingeEmbeddingLoss(), TARGET.round() * 2 - 1),
            "cosine_embedding": (lambda x, y: F.cosine_embedding_loss(x, TARGET, y), SIGNS),
            "triplet_margin": (lambda x, y: F.triplet_margin_loss(x, y, y.flip(0)), TARGET),
            "nll": (lambda x, y: F.nll_loss(x.log_softmax(-1), y), CLASSES),
            "bce": (lambda x, y: F.binary_cross_entropy(x.sigmoid(), y), TARGET),
        }.items()
    },
    "attention_full": layer(lambda: Heads(full, 32, 4, 4), 2, 16, 32),
    "attention_causal": layer(lambda: Heads(causal, 32, 4, 4), 2, 16, 32),
    "attention_masked": Case(
        lambda: (Heads(full, 32, 4, 4), (R(2, 16, 32), torch.ones(16, 16).tril().bool()))
    ),
    "attention_biased": Case(lambda: (Heads(full, 32, 4, 4), (R(2, 16, 32), R(1, 4, 16, 16)))),
    "attention_grouped": layer(lambda: Heads(grouped, 32, 4, 2), 2, 16, 32),
    "attention_spelled": layer(lambda: Heads(spelled, 32, 4, 4), 2, 16, 32),
    "multihead_attention": Case(
        lambda: (nn.MultiheadAttention(32, 4, batch_first=True), (R(2, 16, 32), R(2, 16, 32), R(2, 16, 32)))
    ),
    "encoder_layer": layer(
        lambda: nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True), 2, 16, 32
    ),
    "decoder_layer": Case(
        lambda: (
            nn.TransformerDecoderLayer(32, 4, 64, dropout=0.0, batch_first=True),
            (R(2, 16, 32), R(2, 12, 32)),
        )
    ),
    "rnn_cell": Case(lambda: (nn.RNNCell(16, 32), (R(8, 16), R(8, 32)))),
    "lstm_cell": Case(lambda: (nn.LSTMCell(16, 32), (R(8, 16), (R(8, 32), R(8, 32))))),
    "gru_cell": Case(lambda: (nn.GRUCell(16, 32), (R(8, 16), R(8, 32)))),
    "rnn": Case(lambda: (nn.RNN(16, 32), (R(5, 8, 16),)), spelled=STEPS),
    "lstm": Case(
        lambda: (nn.LSTM(16, 32), (R(5, 8, 16),)),
        # twice for the input's matrix, three times for the hidden state's, less the first step's unwanted gradient
        matrix=2 * (2 * 5 * 8 * 16 * 128) + 3 * (2 * 5 * 8 * 32 * 128) - 2 * 8 * 32 * 128,
        spelled=STEPS,
    ),
    "gru": Case(lambda: (nn.GRU(16, 32), (R(5, 8, 16),)), spelled=STEPS),
    "mlp": layer(lambda: nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8)), 32, 16),
    "mlp_frozen_first": layer(
        lambda: frozen_first(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8))), 32, 16
    ),
    **{f"linalg_{name}": through(function, rows, 16) for name, (function, rows) in LINALG.items()},
    "linalg_pinv": Case(
        lambda: (Call(torch.linalg.pinv, 16), (R(32, 16),)),
        # of the linear layer the product and one gradient; of the inverse the product that torch counts not, and eight more
        matrix=2 * 2 * 32 * 16 * 16 + 2 * 16 * 16 * 32 + 4 * 2 * 32 * 16 * (32 + 16),
    ),
    "orthogonal": Case(
        lambda: (
            torch.nn.utils.parametrizations.orthogonal(nn.Linear(16, 32), orthogonal_map="householder"),
            (R(8, 16),),
        ),
        spelled="the graph writes the whole matrix for every reflector",
    ),
    "no_gradient": Case(lambda: (NoGradient(), (R(32, 16),)), joint=False),
    "cnn": layer(
        lambda: nn.Sequential(
            *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
            *(
                nn.Conv2d(8, 16, 3),
                nn.ReLU(inplace=True),
                nn.AdaptiveAvgPool2d(1),
                nn.Flatten(),
                nn.Linear(16, 10),
            ),
        ),
        *(4, 3, 16, 16),
    ),
    "residual": layer(lambda: nn.Sequential(nn.Conv2d(3, 8, 1), Residual(8)), 2, 3, 8, 8),
    "unet": layer(UNet, 2, 3, 16, 16),
    "vit": layer(ViT, 2, 3, 16, 16),
    "gpt": Case(
        lambda: (GPT(64, 32, tied=False), (torch.randint(0, 64, (2, 16)), torch.randint(0, 64, (2, 16))))
    ),
    "gpt_tied": Case(
        lambda: (GPT(64, 32), (torch.randint(0, 64, (2, 16)), torch.randint(0, 64, (2, 16)))),
        # 2 x 16 tokens through two blocks of 12 * 32 * 32 weights and the head, each three times;
        # scores and values of two blocks' attention, 3.5 times: fused, the scores are computed again
        matrix=3 * 2 * 32 * (2 * 12 * 32 * 32 + 32 * 64) + 7 * 2 * (2 * 2 * 16 * 16 * 32),
        joint=False,
    ),
}
QUICK = (
    "linear",
    "conv2d_groups",
    "batch_norm2d",
    "attention_causal",
    "unet",
    "gpt_tied",
    "mlp_frozen_first",
)


def main() -> int:
    """Run the cases; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a handful of cases")
    parser.add_argument("--only", default="", help="comma-separated names of cases")
    parser.add_argument("--verbose", action="store_true", help="a line for every case")
    options = parser.parse_args()
    torch._logging.set_logs(all=logging.CRITICAL)
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    names = options.only.split(",") if options.only else QUICK if options.quick else tuple(CASES)
    count: Counter[str] = Counter()
    for name in names:
        verdicts = judge(CASES[name], options.verbose and name)
        count["wrong" if any(v.startswith("wrong") for v in verdicts) else verdicts[0].partition(":")[0]] += 1
        for verdict in verdicts:
            if verdict != "right":
                print(f"{name}: {verdict}")
    print(
        f"torch {torch.__version__.partition('+')[0]}: {len(names)} modules trained: {count['right']} right, "
        f"{count['apart']} apart by name, {count['wrong']} wrong; {count['not exportable']} not exportable"
    )
    return 1 if count["wrong"] else 0


def judge(case: Case, verbose: Any = "") -> list[str]:
    """`right`, or what is not."""
    module, args = case.build()
    module = Loss(module)
    try:
        program = torch.export.export(module, args, strict=False)
        joints = [] if not case.joint else [*joint_graphs(program), _decomposed_math(module, args)]
    except Exception as error:
        return [f"not exportable: {(str(error).strip() or type(error).__name__).splitlines()[0][:120]}"]
    reports = [graphflops.analyze(joint) for joint in joints]
    training = graphflops.analyze(program, training=True)
    wrong = []
    for report in (*reports, training):
        if report.coverage.unknown:
            wrong.append(f"wrong: unknown {dict(report.coverage.unknown_ops)}")
        wrong += [f"wrong: {d.name} at {d.node}: {d.message}" for d in report.diagnostics]
    expected = counted(module, args) if case.matrix is None else case.matrix
    step = training.total() + training.backward.cost
    if not joints:
        if step.matrix_flops != expected:
            wrong.append(f"wrong: training analysis {step.matrix_flops} matrix FLOPs, expected {expected}")
        return wrong or ["right"]
    as_recorded, decomposed, math = (report.total() for report in reports)
    if math.matrix_flops != expected:
        wrong.append(f"wrong: joint graph {math.matrix_flops} matrix FLOPs, expected {expected}")
    if not step.matrix_flops == as_recorded.matrix_flops == decomposed.matrix_flops:
        wrong.append(
            f"wrong: matrix FLOPs {step.matrix_flops} in the training analysis, {as_recorded.matrix_flops} in the joint "
            f"graph, {decomposed.matrix_flops} decomposed"
        )
    apart = []
    for quantity, ours, theirs in (
        ("vector FLOPs", _operations(step), _operations(as_recorded)),
        ("bytes", step.read_bytes + step.written_bytes, as_recorded.read_bytes + as_recorded.written_bytes),
    ):
        if verbose:
            print(f"  {verbose}: {quantity} {ours} training, {theirs} joint: {ours / max(theirs, 1):.2f}")
        if max(ours, theirs) > SMALL and not 1 / RATIO <= ours / max(theirs, 1) <= RATIO:
            text = f"{quantity} {ours} in the training analysis, {theirs} in the joint graph"
            (apart if case.spelled else wrong).append(
                f"apart: {text}: {case.spelled}" if case.spelled else f"wrong: {text}"
            )
    return wrong or apart or ["right"]


def joint_graphs(program: torch.export.ExportedProgram) -> list[torch.export.ExportedProgram]:
    """Forward and backward in one graph, of the operators that autograd calls, and of core operators."""
    return [
        _decompose_exported_program(
            program,
            cia_to_decomp={},
            python_decomp_table=table,
            joint_loss_index=0,
            decompose_custom_triton_ops=False,
        )
        for table in ({}, core_aten_decompositions())
    ]


def _decomposed_math(module: nn.Module, args: tuple[Any, ...]) -> torch.export.ExportedProgram:
    with sdpa_kernel(SDPBackend.MATH):
        return _export_forward_backward(torch.export.export(module, args, strict=False))


def _operations(cost: Any) -> int:
    return int(cost.vector_flops + cost.transcendentals)


def counted(module: nn.Module, args: tuple[Any, ...]) -> int:
    """FlopCounterMode's count of forward and backward, attention as two products."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        module(*args).backward()
    return int(counter.get_total_flops())


if __name__ == "__main__":
    sys.exit(main())
