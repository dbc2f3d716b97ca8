"""Micro-benchmarks of the CPU beside a device: how fast it runs Python and launches kernels of PyTorch.

The sizes are so small that a GPU waits for the CPU all the time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from graphflops.devices import Host

# A core that other work shares is slow for tenths of a second at a time: of many short rounds, some are in other moments.
_ROUNDS, _ROUND_SECONDS = 200, 1e-3
_BLOCKS = 4
_DIGITS = 4
_FASTER, _SLOWER = 1.15, 1.7  # from program to program, and from one moment to the next


def host_benchmarks(device: str, rounds: int = _ROUNDS) -> dict[str, float]:
    """Least CPU seconds of each micro-benchmark on a device ("cuda" or "cpu"); about three seconds in all.

    The benchmarks take turns, so that each has a moment in which no other work slows the core that it runs on.
    """
    calls = {**_single_calls(device), **_programs(device)}
    counts = {name: _count(call, device) for name, call in calls.items()}
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            found[name].append(_seconds(call, counts[name], device))
    return {name: min(times) for name, times in found.items()}


def slowness(measured: dict[str, float], reference: Host) -> float:
    """By what factor a CPU is slower than the reference: the median over the benchmarks that both have."""
    return statistics.median(
        [measured[name] / seconds for name, seconds in reference.benchmarks.items() if name in measured]
    )


def scaled_host(reference: Host, measured: dict[str, float]) -> Host:
    """The host section of the measured CPU: the costs of the reference, times its slowness."""
    factor = slowness(measured, reference)
    seconds = {kind: rounded(cost * factor) for kind, cost in reference.seconds.items()}
    return replace(reference, seconds=seconds, benchmarks=measured, faster=_FASTER, slower=_SLOWER)


def rounded(number: float) -> float:
    """A number with the digits that a profile has."""
    return float(f"{number:.{_DIGITS}g}")


def _single_calls(device: str) -> dict[str, Callable[[], object]]:
    x, image = torch.randn(16, 16, device=device), torch.randn(1, 8, 8, 8, device=device)
    linear, norm = nn.Linear(16, 16, device=device), nn.LayerNorm(16, device=device)
    convolution = nn.Conv2d(8, 8, 3, device=device)
    calls: dict[str, Callable[[], object]] = {
        "addition": partial(torch.add, x, x),
        "product": partial(torch.mm, x, x),
        "linear_layer": partial(linear, x),
        "normalisation_layer": partial(norm, x),
        "convolution_layer": partial(convolution, image),
        "view_of_tensor": partial(x.view, -1),
    }
    return {name: torch.no_grad()(call) for name, call in calls.items()}


def _programs(device: str) -> dict[str, Callable[[], object]]:
    """Programs of many small calls: a transformer and a convolutional network without gradients, and a training step."""
    transformer = nn.Sequential(*[_Attention() for _ in range(_BLOCKS)]).to(device)
    network = nn.Sequential(*[_convolutional_block() for _ in range(_BLOCKS)]).to(device).eval()
    tokens, image = torch.randn(1, 16, 64, device=device), torch.randn(1, 8, 8, 8, device=device)
    optimizer = torch.optim.AdamW(transformer.parameters(), lr=1e-6, foreach=True)

    def step() -> None:
        transformer(tokens).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return {
        "transformer": torch.no_grad()(partial(transformer, tokens)),
        "convolutional_network": torch.no_grad()(partial(network, image)),
        "training_step": step,
    }


class _Attention(nn.Module):  # type: ignore[misc]
    """One layer of a transformer, as model code spells it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.projection = nn.LayerNorm(64), nn.Linear(64, 192)
        self.out, self.gelu = nn.Linear(64, 64), nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.projection(self.norm(x)).view(batch, length, 3, 4, width // 4).unbind(2)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        attended = nn.functional.scaled_dot_product_attention(q, k, v)
        merged = attended.transpose(1, 2).reshape(batch, length, width)
        mixed: torch.Tensor = x + self.gelu(self.out(merged))
        return mixed


def _convolutional_block() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))


def _count(call: Callable[[], object], device: str) -> int:
    """How often a call is made in one round."""
    for _ in range(3):
        call()
    return max(1, int(_ROUND_SECONDS / max(_seconds(call, 5, device), 1e-7)))


def _seconds(call: Callable[[], object], count: int, device: str) -> float:
    """CPU seconds of one call until it returns: the GPU may still run it."""
    begun = time.perf_counter()
    for _ in range(count):
        call()
    seconds = (time.perf_counter() - begun) / count
    if device == "cuda":
        torch.cuda.synchronize()
    return seconds
