"""A Llama-shaped decoder on fake tensors, exported to a `.pt2`: 70 billion parameters on a small machine.

    python benchmarks/llama.py OUT.pt2 [LAYERS]

Needs torch. The file holds the program and no weights: every parameter is fake, so the archive stays as small
as the graph.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Shape:
    """Sizes of the decoder; the defaults are those of Llama 70B."""

    layers: int = 80
    hidden: int = 8192
    heads: int = 64
    kv_heads: int = 8
    mlp: int = 28672
    vocabulary: int = 128256

    @property
    def head(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads

    @property
    def parameters(self) -> int:
        """Number of parameters, embedding and output projection counted apart."""
        attention = 2 * self.hidden * self.hidden + 2 * self.hidden * self.kv_heads * self.head
        layer = attention + 3 * self.hidden * self.mlp + 2 * self.hidden
        return self.layers * layer + self.hidden + 2 * self.vocabulary * self.hidden

    def matrix_flops(self, batch: int, time: int) -> int:
        """Multiply-adds of one forward pass, two FLOPs each, no credit for the causal mask."""
        norms = self.hidden * (2 * self.layers + 1)
        weights = self.parameters - norms - self.vocabulary * self.hidden
        attention = 4 * self.layers * batch * self.heads * time * time * self.head
        return 2 * batch * time * weights + attention


class RMSNorm(nn.Module):
    """Root-mean-square normalisation, computed in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * (wide * scale).to(x.dtype)


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    """A quarter turn of each pair of features."""
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding of one operand."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return x * cos + rotate_half(x) * sin


class Attention(nn.Module):
    """Causal self-attention with fewer key and value heads than query heads."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.hidden, shape.heads * shape.head, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head, shape.hidden, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, time, _ = x.shape
        q = self.q_proj(x).view(batch, time, self.shape.heads, self.shape.head).transpose(1, 2)
        k = self.k_proj(x).view(batch, time, self.shape.kv_heads, self.shape.head).transpose(1, 2)
        v = self.v_proj(x).view(batch, time, self.shape.kv_heads, self.shape.head).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).contiguous().view(batch, time, -1))


class MLP(nn.Module):
    """Gated feed-forward layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.mlp, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.mlp, bias=False)
        self.down_proj = nn.Linear(shape.mlp, shape.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """One decoder layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden)
        self.mlp = MLP(shape)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Token ids to logits."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head = shape.head
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.hidden)
        self.lm_head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        frequency = 500000.0 ** (-torch.arange(0, self.head, 2, dtype=torch.float32) / self.head)
        angle = torch.arange(ids.shape[1], dtype=torch.float32)[None, :, None] * frequency
        angles = torch.cat((angle, angle), -1)
        cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.lm_head(self.norm(x))


def build(layers: int = 80, **sizes: int) -> tuple[nn.Module, tuple[torch.Tensor, ...], FakeTensorMode]:
    """The decoder in bfloat16 and an example input, both fake, and the mode that they belong to."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        torch.set_default_dtype(torch.bfloat16)
        try:
            model = Decoder(Shape(layers, **sizes)).eval()
        finally:
            torch.set_default_dtype(torch.float32)
        ids = torch.zeros(2, 512, dtype=torch.int64)
    return model, (ids,), mode


def export(path: str | Path, layers: int = 80, **sizes: int) -> None:
    """Export the decoder with a free batch and sequence length, and save it."""
    model, inputs, mode = build(layers, **sizes)
    batch, time = torch.export.Dim("batch", min=1, max=1024), torch.export.Dim("time", min=2, max=131072)
    with mode, torch.no_grad():
        program = torch.export.export(model, inputs, dynamic_shapes=({0: batch, 1: time},), strict=False)
    torch.export.save(program, path)


if __name__ == "__main__":
    export(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 80)
