"""Copies of gradients that lie otherwise than their values, against those that torch makes in a backward on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import graphflops
from graphflops.analysis import as_graph
from graphflops.devices import HOPPER, device
from graphflops.execution.runs import Runs
from graphflops.passes.bind import bind
from graphflops.passes.price import price
from graphflops.time.launches import Launcher

HEADS, WIDTH = 2, 8


class Clones(TorchDispatchMode):
    """The shapes of the copies that `reshape` and `contiguous` make."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.clone.default:
            self.shapes.append(tuple(args[0].shape))
        return func(*args, **(kwargs or {}))


class Attention(nn.Module):
    """Attention of heads, spelled out. is_scaled: the scores are scaled, and the weights are used twice."""

    def __init__(self, is_scaled: bool = False) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.is_scaled = is_scaled

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (f(x).view(*x.shape[:2], HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2)
        weights = (scores * 0.5 if self.is_scaled else scores).softmax(-1)
        return torch.relu(self.o((weights @ v).transpose(1, 2).reshape(x.shape)))


class Turned(nn.Module):
    """Rows that are multiplied along either axis, as in a mixer."""

    def __init__(self) -> None:
        super().__init__()
        self.along, self.across, self.norm = nn.Linear(6, 6), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.across(x)
        return torch.relu(self.across(y + self.along(y.transpose(1, 2)).transpose(1, 2)))


class Packed(nn.Module):
    """Queries, keys and values from one product, that are taken apart along an inner or an outer axis."""

    def __init__(self, is_outer: bool) -> None:
        super().__init__()
        self.qkv, self.is_outer = nn.Linear(WIDTH, 3 * WIDTH), is_outer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.qkv(x).view(*x.shape[:2], 3, HEADS, -1)
        if self.is_outer:
            q, k, v = y.permute(2, 0, 3, 1, 4).unbind(0)
        else:
            q, k, v = (each.transpose(1, 2) for each in y.unbind(2))
        return torch.relu(((q @ k.transpose(-1, -2)).softmax(-1) @ v).transpose(1, 2).reshape(x.shape))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    "module", [Attention(), Attention(True), Turned(), Packed(True), Packed(False)], ids=str
)
def test_gradients_are_copied_where_torch_copies_them(module: nn.Module, batch: int) -> None:
    x = torch.randn(batch, 6, WIDTH)
    loss = module(x).square().sum()  # a gradient with a value for each element
    with Clones() as made:
        loss.backward()
    graph = as_graph(graphflops.capture(module, (x,)))
    program = price(graph, bind(graph, {}, {}), training=graphflops.Training(optimizer="none"))
    launcher = Launcher(program, {}, Runs((), HOPPER, is_eager=True), device("h200").host.seconds)  # type: ignore[union-attr]
    copies = [
        kernel for each in launcher.backward() for kernel in each.kernels or () if kernel.family == "copy"
    ]
    own = [kernel.written_bytes // 4 for kernel in copies if kernel.variant == "strided"]
    assert sorted(own) == sorted(torch.Size(shape).numel() for shape in made.shapes)
