"""Predicted and measured times of programs on the CPU of this machine, by PyTorch and by onnxruntime.

    python -m benchmarks.cpu [--runtime onnxruntime] [--cpu-time]

Needs torch; onnxruntime and onnxscript for the second. Measures a profile, exports the models, predicts them by it, and runs
them. No constant or rule was made from these models. With --cpu-time everything runs on one core and CPU time counts: for a
machine on which other programs run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

import graphflops
from graphflops.base.units import seconds

if TYPE_CHECKING:
    from collections.abc import Callable

_MEASURED = 2.0  # seconds of runs of one model
_FEWEST = 5


class Case(NamedTuple):
    """A model and its input."""

    model: Callable[[], nn.Module]
    given: tuple[Any, ...]


class Squeezed(nn.Module):  # type: ignore[misc]
    """An inverted bottleneck with squeeze and excitation, as in EfficientNet."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = 4 * width
        self.wide = nn.Sequential(nn.Conv2d(width, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.SiLU())
        depthwise = nn.Conv2d(inner, inner, 5, padding=2, groups=inner, bias=False)
        self.deep = nn.Sequential(depthwise, nn.BatchNorm2d(inner), nn.SiLU())
        self.gate = nn.Sequential(nn.Conv2d(inner, width // 4, 1), nn.SiLU(), nn.Conv2d(width // 4, inner, 1))
        self.narrow = nn.Sequential(nn.Conv2d(inner, width, 1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Any) -> Any:
        y = self.deep(self.wide(x))
        return x + self.narrow(y * self.gate(y.mean((2, 3), keepdim=True)).sigmoid())


class Modern(nn.Module):  # type: ignore[misc]
    """A block of ConvNeXt: a depthwise convolution, then a norm and products with channels last."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.deep = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.rest = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Any) -> Any:
        return x + self.rest(self.deep(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Mixing(nn.Module):  # type: ignore[misc]
    """A layer of an MLP-Mixer: products over tokens, then over channels."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.tokens = nn.Sequential(nn.Linear(tokens, 4 * tokens), nn.GELU(), nn.Linear(4 * tokens, tokens))
        self.channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Any) -> Any:
        x = x + self.tokens(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norms[1](x))


class Grouped(nn.Module):  # type: ignore[misc]
    """A layer of a decoder whose query heads share keys, with a gated product."""

    def __init__(self, width: int, heads: int, shared: int) -> None:
        super().__init__()
        self.heads, self.shared, self.size = heads, shared, width // heads
        self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * shared * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up, self.down = (
            nn.Linear(width, 6 * width, bias=False),
            nn.Linear(3 * width, width, bias=False),
        )

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        y = self.norms[0](x)
        q = self.q(y).view(batch, length, self.heads, self.size).transpose(1, 2)
        k, v = self.kv(y).view(batch, length, 2 * self.shared, self.size).transpose(1, 2).chunk(2, 1)
        k, v = (each.repeat_interleave(self.heads // self.shared, 1) for each in (k, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        gate, up = self.up(self.norms[1](x)).chunk(2, -1)
        return x + self.down(functional.silu(gate) * up)


class Spelled(nn.Module):  # type: ignore[misc]
    """A layer of an encoder with its attention as products and a softmax."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.products = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.heads, self.size).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        weights = torch.softmax(q @ k.transpose(-1, -2) / self.size**0.5, -1)
        x = self.norms[0](x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width)))
        return self.norms[1](x + self.products(x))


class Bags(nn.Module):  # type: ignore[misc]
    """A recommender: rows of tables, their products in pairs, and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(5000, 64) for _ in range(26)])
        self.dense = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 64), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(64 + 27 * 27, 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, numbers: Any, places: Any) -> Any:
        dense = self.dense(numbers)
        rows = [table(places[:, index]) for index, table in enumerate(self.tables)]
        all_of_them = torch.stack([dense, *rows], 1)
        pairs = torch.bmm(all_of_them, all_of_them.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([dense, pairs], 1))


class Steps(nn.Module):  # type: ignore[misc]
    """Two layers of a GRU, and classes."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.head = nn.GRU(80, 192, 2, batch_first=True), nn.Linear(192, 40)

    def forward(self, x: Any) -> Any:
        return self.head(self.steps(x)[0])


def _dilated() -> nn.Module:
    layers = [nn.Conv1d(40, 128, 1)]
    for index in range(6):
        gap = 2**index
        layers += [nn.Conv1d(128, 128, 3, padding=gap, dilation=gap), nn.BatchNorm1d(128), nn.ReLU()]
    return nn.Sequential(*layers)


def _generator() -> nn.Module:
    widths = (256, 128, 64, 32)
    layers: list[nn.Module] = [nn.ConvTranspose2d(64, 256, 4)]
    for before, after in pairwise(widths):
        layers += [nn.BatchNorm2d(before), nn.ReLU(), nn.ConvTranspose2d(before, after, 4, 2, 1)]
    return nn.Sequential(*layers, nn.Conv2d(32, 3, 3, padding=1), nn.Tanh())


def _small_images() -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 128)):
        layers += [
            nn.Conv2d(before, after, 3, padding=1),
            nn.BatchNorm2d(after),
            nn.LeakyReLU(0.1),
            nn.MaxPool2d(2),
        ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 16, 10))


def _points() -> nn.Module:
    widths = (3, 64, 128, 1024)
    pairs = pairwise(widths)
    layers = [part for a, b in pairs for part in (nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU())]
    return nn.Sequential(*layers, nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(1024, 40))


def _text(layer: Callable[[], nn.Module], width: int, count: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(
        nn.Embedding(4000, width), *[layer() for _ in range(count)], nn.Linear(width, 4000, bias=False)
    )


def _image(batch: int, channels: int, side: int) -> tuple[Any, ...]:
    return (torch.randn(batch, channels, side, side),)


def _tokens(batch: int, length: int) -> tuple[Any, ...]:
    return (torch.randint(0, 4000, (batch, length)),)


def _repeated(block: Callable[[], nn.Module], count: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*[block() for _ in range(count)])


CASES = {
    "efficient blocks, batch 1": Case(_repeated(lambda: Squeezed(40), 6), _image(1, 40, 28)),
    "efficient blocks, batch 8": Case(_repeated(lambda: Squeezed(40), 6), _image(8, 40, 28)),
    "convnext blocks": Case(_repeated(lambda: Modern(96), 6), _image(1, 96, 56)),
    "mixer": Case(_repeated(lambda: Mixing(196, 256), 8), (torch.randn(2, 196, 256),)),
    "small images, batch 64": Case(_small_images, _image(64, 3, 32)),
    "small image": Case(_small_images, _image(1, 3, 32)),
    "image generator": Case(_generator, _image(8, 64, 1)),
    "decoder, 128 tokens": Case(_text(lambda: Grouped(384, 6, 2), 384, 6), _tokens(1, 128)),
    "decoder, one token": Case(_text(lambda: Grouped(384, 6, 2), 384, 6), _tokens(1, 1)),
    "encoder, spelled attention": Case(_text(lambda: Spelled(256, 8), 256, 4), _tokens(4, 96)),
    "recommender": Case(Bags, (torch.randn(256, 13), torch.randint(0, 5000, (256, 26)))),
    "gru": Case(Steps, (torch.randn(8, 100, 80),)),
    "dilated convolutions": Case(_dilated, (torch.randn(4, 40, 800),)),
    "points": Case(_points, (torch.randn(4, 3, 1024),)),
}


@torch.no_grad()  # type: ignore[untyped-decorator]
def _measured(run: Callable[[], object]) -> float:
    """The shortest run, as of the kernels of a profile: whatever else runs on the machine only makes them longer."""
    run()
    taken: list[float] = []
    ended = time.monotonic() + _MEASURED
    while time.monotonic() < ended or len(taken) < _FEWEST:
        begun = time.perf_counter()
        run()
        taken.append(time.perf_counter() - begun)
    return min(taken)


@torch.no_grad()  # type: ignore[untyped-decorator]
def _exported(case: Case, folder: str, runtime: str) -> tuple[str, Callable[[], object]]:
    """The file of a model, and a call that runs it."""
    model = case.model().eval()
    path = str(Path(folder, "model.onnx" if runtime == "onnxruntime" else "model.pt2"))
    if runtime == "torch":
        torch.export.save(torch.export.export(model, case.given), path)
        return path, lambda: model(*case.given)
    import onnxruntime

    torch.onnx.export(model, case.given, path, dynamo=True, verbose=False, external_data=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    values = {name: tensor.numpy() for name, tensor in zip(names, case.given, strict=True)}
    return path, lambda: session.run(None, values)


def _on_one_core() -> None:
    """Count CPU time, on one core: clocks of the profile are then those of the thread too."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    time.perf_counter = time.monotonic = time.thread_time


def main() -> None:
    """Measure the profile, then each model; print the table and its errors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runtime", choices=("torch", "onnxruntime"), default="torch")
    parser.add_argument("--cpu-time", action="store_true")
    options = parser.parse_args()
    if options.cpu_time:
        _on_one_core()
    from graphflops.runtime.profile.make import encoded, profile

    errors, inside = [], 0
    with tempfile.TemporaryDirectory() as folder:
        known = Path(folder, "cpu.json")
        found = profile("cpu", options.runtime)
        known.write_bytes(encoded(found))
        print(f"{found.name}, {found.calibration[0].software}, {torch.get_num_threads()} threads\n")
        print(f"{'model':28}{'measured':>10}{'predicted':>11}{'error':>8}   90 % interval")
        for name, case in CASES.items():
            path, run = _exported(case, folder, options.runtime)
            took = _measured(run)
            guess = graphflops.analyze(path, device=str(known)).totals.time
            assert guess is not None
            errors.append(abs(guess.seconds / took - 1))
            inside += guess.low <= took <= guess.high
            share = f"{100 * (guess.seconds / took - 1):+.0f} %"
            ends = f"{seconds(guess.low)} to {seconds(guess.high)}"
            print(f"{name:28}{seconds(took):>10}{seconds(guess.seconds):>11}{share:>8}   {ends}", flush=True)
    mean, middle = statistics.mean(errors), statistics.median(errors)
    print(
        f"\nerror: mean {mean:.0%}, median {middle:.0%}, worst {max(errors):.0%}; {inside} of {len(errors)} inside"
    )


if __name__ == "__main__":
    main()
