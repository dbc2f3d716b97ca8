"""A small decoder, and edits of it: each makes the program that a reviewer would be shown beside the first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

import graphflops
from graphflops.report import Report


@dataclass(frozen=True)
class Shape:
    """What the edits change."""

    vocabulary: int = 96
    width: int = 32
    heads: int = 4
    kv_heads: int = 4
    inner: int = 64
    layers: int = 2
    causal: bool = False
    tied: bool = False
    bias: bool = False
    rank: int = 0
    window: int = 0
    extra: int = -1  # the layer with one block of another kind before it
    mlp: str = "mlp"
    act: Callable[[], nn.Module] = nn.SiLU
    norm: Callable[[int], nn.Module] = nn.LayerNorm
    post_norm: bool = False
    head_first: bool = False
    convert: torch.dtype = torch.float32
    double: bool = False


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        size = shape.width // shape.heads
        self.q = nn.Linear(shape.width, shape.width, bias=shape.bias)
        self.k = nn.Linear(shape.width, shape.kv_heads * size, bias=shape.bias)
        self.v = nn.Linear(shape.width, shape.kv_heads * size, bias=shape.bias)
        self.out = nn.Linear(shape.width, shape.width, bias=shape.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part.unflatten(-1, (-1, self.shape.width // self.shape.heads)).transpose(1, 2)
            for part in (self.q(x), self.k(x), self.v(x))
        )
        grouped = self.shape.kv_heads != self.shape.heads
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.shape.causal, enable_gqa=grouped)
        return self.out(y.transpose(1, 2).flatten(2))


class Mixer(nn.Module):
    """Instead of attention: linear in the number of tokens."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.mix = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mix(x)


class LowRank(nn.Module):
    """Two thin products for one thick one."""

    def __init__(self, wide: int, rank: int, out: int) -> None:
        super().__init__()
        self.down = nn.Linear(wide, rank, bias=False)
        self.up = nn.Linear(rank, out, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(self.down(x))


class MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.up = (
            LowRank(shape.width, shape.rank, shape.inner)
            if shape.rank
            else nn.Linear(shape.width, shape.inner, bias=False)
        )
        self.act = shape.act()
        self.down = nn.Linear(shape.inner, shape.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.act(self.up(x)))


class Block(nn.Module):
    def __init__(self, shape: Shape, attention: type[nn.Module]) -> None:
        super().__init__()
        self.shape = shape
        self.norm = shape.norm(shape.width)
        self.attention = attention(shape)
        self.add_module(shape.mlp, MLP(shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.attention(x)) if self.shape.post_norm else self.attention(self.norm(x))
        x = x + y
        y = self.get_submodule(self.shape.mlp)(x)
        return x + (self.get_submodule(self.shape.mlp)(y) if self.shape.double else y)


class Decoder(nn.Module):
    def __init__(self, shape: Shape, attention: type[nn.Module] = Attention) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        blocks: list[nn.Module] = [Block(shape, attention) for _ in range(shape.layers)]
        if shape.extra >= 0:
            blocks.insert(shape.extra, nn.Linear(shape.width, shape.width, bias=False))
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        if shape.tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Served(nn.Module):
    """The decoder inside another module."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(ids).softmax(-1)


class Renamed(Decoder):
    """The same decoder, whose layers go by another name."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.layers = self.blocks
        del self.blocks

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for block in self.layers:
            x = block(x)
        return self.head(self.norm(x))


BATCH, TIME = 2, 8
SHAPE = Shape()


def report(
    model: nn.Module, *, batch: bool = False, time: bool = True, training: bool = False, tokens: int = TIME
) -> Report:
    """What the model costs on `BATCH` rows of `tokens` token ids; batch, time: whether that axis is open."""
    ids = torch.zeros(BATCH, tokens, dtype=torch.int64)
    axes = {0: Dim("batch", max=64) if batch else None, 1: Dim("time", min=2, max=512) if time else None}
    program = graphflops.capture(model.eval(), (ids,), dynamic_shapes=({k: v for k, v in axes.items() if v},))
    return graphflops.analyze(program, training=training)


def decoder(**edits: object) -> nn.Module:
    """The decoder with some of its shape changed."""
    return Decoder(replace(SHAPE, **edits))  # type: ignore[arg-type]
