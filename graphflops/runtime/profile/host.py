"""Micro-benchmarks of a device's host CPU, on tensors so small that a GPU always waits for it."""

import os
import statistics
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn

from graphflops.base.record import replace
from graphflops.devices import Host, Part

# A core shared with other work is slow for tenths of a second at a time. Of many short rounds, some miss those moments.
_ROUNDS, _ROUND_SECONDS = 200, 1e-3
_BLOCKS = 4
_DIGITS = 4
_FASTER, _SLOWER = 1.15, 1.7  # from program to program, and from one moment to the next


def host_benchmarks(device: str, rounds: int = _ROUNDS) -> dict[str, float]:
    """The least CPU seconds of each micro-benchmark on "cuda" or "cpu". They take turns, for about three seconds in all."""
    x, image = torch.randn(16, 16, device=device), torch.randn(1, 8, 8, 8, device=device)
    linear, norm = nn.Linear(16, 16, device=device), nn.LayerNorm(16, device=device)
    convolution = nn.Conv2d(8, 8, 3, device=device)
    single: dict[str, Callable[[], object]] = {
        "addition": partial(torch.add, x, x),
        "product": partial(torch.mm, x, x),
        "linear_layer": partial(linear, x),
        "normalisation_layer": partial(norm, x),
        "convolution_layer": partial(convolution, image),
        "view_of_tensor": partial(x.view, -1),
    }
    calls = {name: torch.no_grad()(call) for name, call in single.items()} | _programs(device)
    counts, found = dict[str, int](), dict[str, list[float]]()
    for name, call in calls.items():  # as many calls as fill a round
        _seconds(call, 3, device)
        counts[name] = max(1, int(_ROUND_SECONDS / max(_seconds(call, 5, device), 1e-7)))
        found[name] = []
    for _ in range(rounds):
        for name, call in calls.items():
            found[name].append(_seconds(call, counts[name], device))
    return {name: min(times) for name, times in found.items()}


def slowness(measured: dict[str, float], reference: Host) -> float:
    """How many times slower a CPU is than the reference: the median over the benchmarks that both have."""
    known = [(name, cost) for name, cost in reference.benchmarks.items() if name in measured]
    return statistics.median([measured[name] / cost for name, cost in known])


def scaled_host(reference: Host, measured: dict[str, float]) -> Host:
    """The host section of the measured CPU: costs of the reference, times the CPU's slowness."""
    factor = slowness(measured, reference)
    seconds = {kind: rounded(cost * factor) for kind, cost in reference.seconds.items()}
    return replace(reference, seconds=seconds, benchmarks=measured, faster=_FASTER, slower=_SLOWER)


def rounded(number: float) -> float:
    """A number with the digits that a profile has."""
    return float(f"{number:.{_DIGITS}g}")


def _programs(device: str) -> dict[str, Callable[[], object]]:
    """Programs of many small calls: a transformer and a convolutional network without gradients, and a training step."""
    transformer = nn.Sequential(*[_Attention() for _ in range(_BLOCKS)]).to(device)
    blocks = [
        nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        for _ in range(_BLOCKS)
    ]
    network = nn.Sequential(*blocks).to(device).eval()
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
    """One transformer layer, as model code spells it."""

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
        return x + self.gelu(self.out(merged))


def _seconds(call: Callable[[], object], count: int, device: str) -> float:
    """CPU seconds of one call until it returns; the GPU may still be running it."""
    begun = time.perf_counter()
    for _ in range(count):
        call()
    seconds = (time.perf_counter() - begun) / count
    if device == "cuda":
        torch.cuda.synchronize()
    return seconds


_WAIT = 1.5  # seconds after which a GPU's utilisation no longer includes our own work
_ASKED = ("nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-i")


class Others:
    """Watches other processes from now on. gpu: identifier of the GPU that is measured; "" for none."""

    def __init__(self, gpu: str = "") -> None:
        self.gpu = gpu
        self.before = _gpu_share(gpu)
        self.begun = _processor_seconds()

    def shares(self) -> dict[Part, float]:
        """The shares that others took: of the processor the mean, of the GPU the larger one before and after."""
        ended = _processor_seconds()
        found: dict[Part, float] = {}
        if self.begun is not None and ended is not None and ended[1] > self.begun[1]:
            used, passed = (late - early for late, early in zip(ended, self.begun, strict=True))
            found["cpu"] = min(max(used / passed, 0.0), 1.0)
        if self.before is not None:
            time.sleep(_WAIT)
            found["gpu"] = max(self.before, _gpu_share(self.gpu) or 0.0)
        return {name: round(share, 3) for name, share in found.items()}


def _processor_seconds() -> tuple[float, float] | None:
    """Seconds that other processes ran on the cores that this one may use, and all seconds of these cores, since boot."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
        cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    except (OSError, AttributeError):
        return None
    rows = [[int(part) for part in line.split()[1:9]] for line in lines if line.partition(" ")[0] in cores]
    total, own = sum(map(sum, rows)), os.times()
    idle = sum(row[3] + row[4] for row in rows)  # columns four and five: idle, and waiting for a disk
    tick = os.sysconf("SC_CLK_TCK")
    return (total - idle) / tick - sum(own[:4]), total / tick


def _gpu_share(gpu: str) -> float | None:
    """The share of recent time in which kernels ran on a GPU; None if nvidia-smi does not show it."""
    if not gpu:
        return None
    try:
        told = subprocess.run([*_ASKED, gpu], capture_output=True, text=True, timeout=10, check=True).stdout
        return int(told) / 100
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
