"""Decoders at published configurations, on the meta device: 405 billion parameters need no memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from torch.nn import functional

from graphflops import analyze

if TYPE_CHECKING:
    from graphflops.report import Report


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention: widths of the compressed queries and keys, and of a head with and without rotation."""

    query_rank: int
    key_rank: int
    plain: int
    rotated: int


@dataclass(frozen=True)
class Experts:
    """Routed experts: how many there are, how many a token takes, their width, and layers before them without experts."""

    number: int
    chosen: int
    width: int
    shared: int = 0
    dense_layers: int = 0
    dense_width: int = 0


@dataclass(frozen=True)
class Decoder:
    """Sizes of a decoder.

    mlp: width of the feed-forward layer; gated: whether it has three matrices. window: keys that a query sees in every other
    layer, 0 for all. positions: rows of a table of learned positions. tied: whether the embedding is the output projection.
    centred: whether norms are layer norms with a bias.
    kernel: of the attention: that which torch chooses, FlashAttention-2, or none (products and a softmax).
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    vocabulary: int
    mlp: int = 0
    gated: bool = True
    bias: bool = False
    norm_heads: bool = False
    sinks: bool = False
    tied: bool = False
    positions: int = 0
    norms: int = 2  # of a layer
    centred: bool = False
    window: int = 0
    kernel: Literal["", "flash", "none"] = ""
    experts: Experts | None = None
    latent: Latent | None = None


class Scale(nn.Module):
    """A root-mean-square norm, or a layer norm with a bias."""

    def __init__(self, width: int, centred: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width)) if centred else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.bias is None:
            return functional.rms_norm(x, self.weight.shape, self.weight)
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias)


class Attention(nn.Module):
    """Causal attention with shared keys; in a window where one is given."""

    def __init__(self, of: Decoder, window: int) -> None:
        super().__init__()
        self.of, self.window = of, window
        self.q = nn.Linear(of.hidden, of.heads * of.head, bias=of.bias)
        self.k = nn.Linear(of.hidden, of.kv_heads * of.head, bias=of.bias)
        self.v = nn.Linear(of.hidden, of.kv_heads * of.head, bias=of.bias)
        self.out = nn.Linear(of.heads * of.head, of.hidden, bias=of.bias)
        self.norms = nn.ModuleList([Scale(of.head), Scale(of.head)] if of.norm_heads else [])
        self.sinks = nn.Parameter(torch.empty(of.heads)) if of.sinks else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, _ = x.shape
        q, k, v = (make(x).view(batch, time, -1, self.of.head) for make in (self.q, self.k, self.v))
        if self.norms:
            q, k = self.norms[0](q), self.norms[1](k)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        y = attended(q, k, v, self.window, self.of.kernel)
        return self.out(y.transpose(1, 2).reshape(batch, time, -1))


class LatentAttention(nn.Module):
    """Multi-head latent attention as in DeepSeek-V3, expanded, as in training."""

    def __init__(self, of: Decoder, latent: Latent) -> None:
        super().__init__()
        self.of, self.latent = of, latent
        width = latent.plain + latent.rotated
        self.q_down = nn.Linear(of.hidden, latent.query_rank, bias=False)
        self.q_norm = Scale(latent.query_rank)
        self.q_up = nn.Linear(latent.query_rank, of.heads * width, bias=False)
        self.kv_down = nn.Linear(of.hidden, latent.key_rank + latent.rotated, bias=False)
        self.kv_norm = Scale(latent.key_rank)
        self.kv_up = nn.Linear(latent.key_rank, of.heads * (latent.plain + of.head), bias=False)
        self.out = nn.Linear(of.heads * of.head, of.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, _ = x.shape
        plain, rotated, heads = self.latent.plain, self.latent.rotated, self.of.heads
        q = self.q_up(self.q_norm(self.q_down(x))).view(batch, time, heads, plain + rotated)
        down, shared = self.kv_down(x).split([self.latent.key_rank, rotated], -1)
        k, v = self.kv_up(self.kv_norm(down)).view(batch, time, heads, -1).split([plain, self.of.head], -1)
        k = torch.cat([k, shared.unsqueeze(2).expand(-1, -1, heads, -1)], -1)
        y = attended(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), 0)
        return self.out(y.transpose(1, 2).reshape(batch, time, -1))


def attended(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int, kernel: str = ""
) -> torch.Tensor:
    """Causal attention; with a window each query sees that many keys, its own included."""
    if kernel == "flash":
        return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0]
    if kernel == "none":
        scores = functional.dropout((q @ k.transpose(-1, -2)).softmax(-1), 0.1)
        return scores @ v
    shared = q.shape[1] != k.shape[1]
    if not window:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=shared)
    place = torch.arange(q.shape[2], device=q.device)
    back = place[:, None] - place[None, :]
    mask = (back >= 0) & (back < window)
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=shared)


class FeedForward(nn.Module):
    """Two matrices, or three with a gate."""

    def __init__(self, of: Decoder, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(of.hidden, width, bias=False) if of.gated else None
        self.up = nn.Linear(of.hidden, width, bias=of.bias and not of.experts)
        self.down = nn.Linear(width, of.hidden, bias=of.bias and not of.experts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.gate is None:
            return self.down(functional.gelu(self.up(x)))
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Mixture(nn.Module):
    """Routed experts without padding: tokens sorted by expert, then one grouped product for each matrix."""

    def __init__(self, of: Decoder, experts: Experts) -> None:
        super().__init__()
        self.experts = experts
        number, width = experts.number, experts.width
        self.router = nn.Linear(of.hidden, number, bias=of.bias)
        self.up = nn.Parameter(torch.empty(number, of.hidden, 2 * width))
        self.down = nn.Parameter(torch.empty(number, width, of.hidden))
        self.up_bias = nn.Parameter(torch.empty(number, 2 * width)) if of.bias else None
        self.down_bias = nn.Parameter(torch.empty(number, of.hidden)) if of.bias else None
        self.shared = FeedForward(of, experts.shared) if experts.shared else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1])
        weights, chosen = self.router(flat).softmax(-1).topk(self.experts.chosen)
        order = chosen.flatten().argsort()
        counts = functional.one_hot(chosen.flatten(), self.experts.number).sum(0)
        ends = counts.cumsum(0).to(torch.int32)
        rows = flat[order // self.experts.chosen]
        gate, up = torch._grouped_mm(rows, self.up, ends).chunk(2, -1)
        rows = torch._grouped_mm(functional.silu(gate) * up, self.down, ends)
        rows = rows * weights.flatten()[order].unsqueeze(-1)
        y = torch.zeros_like(flat).index_add(0, order // self.experts.chosen, rows)
        return (y if self.shared is None else y + self.shared(flat)).view(x.shape)


class Layer(nn.Module):
    """One layer of a decoder."""

    def __init__(self, of: Decoder, number: int) -> None:
        super().__init__()
        window = of.window if number % 2 == 0 else 0
        self.norms = nn.ModuleList([Scale(of.hidden, of.centred) for _ in range(of.norms)])
        self.attention = LatentAttention(of, of.latent) if of.latent else Attention(of, window)
        if of.experts is None or number < of.experts.dense_layers:
            self.mlp: nn.Module = FeedForward(of, of.experts.dense_width if of.experts else of.mlp)
        else:
            self.mlp = Mixture(of, of.experts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[-1](x))


class Model(nn.Module):
    """The decoder: token ids in, logits out."""

    def __init__(self, of: Decoder) -> None:
        super().__init__()
        self.embedding = nn.Embedding(of.vocabulary, of.hidden)
        self.positions = nn.Embedding(of.positions, of.hidden) if of.positions else None
        self.layers = nn.ModuleList([Layer(of, number) for number in range(of.layers)])
        self.norm = Scale(of.hidden, of.centred)
        self.head = nn.Linear(of.hidden, of.vocabulary, bias=False)
        if of.tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        if self.positions is not None:
            x = x + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def report_of(decoder: Decoder, length: int, batch: int = 1, **options: Any) -> Report:
    """The analysis of a decoder in bfloat16, as exported, at a length of the sequence."""
    with torch.device("meta"):
        model = Model(decoder).to(torch.bfloat16)
        ids = torch.zeros(batch, length, dtype=torch.int64)
    return analyze(model, (ids,), **options)
