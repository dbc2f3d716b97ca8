"""How much slower kernels and programs run once a GPU has reached its power limit, and their energy.

    python -m benchmarks.power --measure benchmarks/measured/h100_power.json    (on a GPU)
    python -m benchmarks.power                                                  (anywhere: prints what was measured)

Each runs for `--seconds` without a pause, after a rest. Its first time is that of its first milliseconds, its sustained time
and its energy, by NVML's counter, are those of the last half. Operands are random numbers where the name says nothing else.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MEASURED = [Path(__file__).parent / "measured" / f"{name}_power.json" for name in ("h100", "h200")]
REST = 0.4  # seconds before each
FIRST = 4e-3  # seconds of a run that count as its begin


class Counter:
    """NVML's counter of energy, and the clock of the multiprocessors."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libnvidia-ml.so.1")
        self.library.nvmlInit_v2()
        self.handle = ctypes.c_void_p()
        self.library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.handle))

    def joules(self) -> float:
        """Energy since the driver was loaded."""
        found = ctypes.c_ulonglong()
        if self.library.nvmlDeviceGetTotalEnergyConsumption(self.handle, ctypes.byref(found)):
            return 0.0
        return found.value / 1e3

    def megahertz(self) -> int:
        """The clock now."""
        found = ctypes.c_uint()
        self.library.nvmlDeviceGetClockInfo(self.handle, 1, ctypes.byref(found))
        return found.value


def randn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype)


Case = tuple[str, int, int, "Callable[[], object]"]  # kind, FLOPs, bytes, run


def product(
    m: int, n: int, k: int, layout: str = "tn", dtype: torch.dtype = torch.bfloat16, fill: float = 1.0
) -> Case:
    a = randn(k, m, dtype=dtype).mul_(fill).t() if layout == "nt" else randn(m, k, dtype=dtype).mul_(fill)
    b = randn(n, k, dtype=dtype).mul_(fill).t() if layout == "tn" else randn(k, n, dtype=dtype).mul_(fill)
    size = a.element_size()
    return "matrix", 2 * m * n * k, size * (m * k + k * n + m * n), partial(torch.mm, a, b)


def float8(n: int) -> Case:
    a, b = randn(n, n).to(torch.float8_e4m3fn), randn(n, n).to(torch.float8_e4m3fn).t()
    one = torch.ones((), device="cuda")
    run = partial(torch._scaled_mm, a, b, one, one, out_dtype=torch.bfloat16)
    return "matrix", 2 * n**3, 4 * n * n, run


def attention(batch: int, heads: int, length: int, *, causal: bool) -> Case:
    q, k, v = (randn(batch, heads, length, 128) for _ in range(3))
    flops = 4 * batch * heads * length * length * 128 // (2 if causal else 1)
    run = partial(F.scaled_dot_product_attention, q, k, v, is_causal=causal)
    return "matrix", flops, 4 * 2 * q.numel(), run


def convolution(batch: int, channels: int, size: int) -> Case:
    x = randn(batch, channels, size, size).to(memory_format=torch.channels_last)
    layer = (
        nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        .cuda()
        .bfloat16()
        .to(memory_format=torch.channels_last)
    )
    return "matrix", 2 * x.numel() * channels * 9, 4 * x.numel(), torch.no_grad()(partial(layer, x))


def stream(do: Callable[..., object], reads: int, numel: int = 1 << 29, writes: int = 1) -> Case:
    operands = [randn(numel) for _ in range(reads)]
    return "memory", 0, 2 * numel * (reads + writes), partial(do, *operands)


def rows(do: Callable[[torch.Tensor], object]) -> Case:
    x = randn(65536, 4096)
    return "memory", 0, 4 * x.numel(), partial(do, x)


def kernels() -> Iterator[tuple[str, Callable[[], Case]]]:
    """Single kernels."""
    for n in (2048, 4096, 8192):
        for layout in ("tn", "nn", "nt"):
            yield f"product {n} {layout}", partial(product, n, n, n, layout)
    yield "product 16384 x 4096 x 4096", partial(product, 16384, 4096, 4096)
    yield "product 8192 x 8192 x 1024", partial(product, 8192, 8192, 1024)
    yield "product 8192 of zeros", partial(product, 8192, 8192, 8192, fill=0.0)
    yield "product 8192 of small numbers", partial(product, 8192, 8192, 8192, fill=0.02)
    yield "product 4096 float32", partial(product, 4096, 4096, 4096, dtype=torch.float32)
    yield "product 8192 float8", partial(float8, 8192)
    yield "attention 4096", partial(attention, 4, 32, 4096, causal=False)
    yield "attention 8192 causal", partial(attention, 2, 32, 8192, causal=True)
    yield "convolution 256 channels", partial(convolution, 128, 256, 28)
    yield "copy", partial(stream, torch.clone, 1)
    yield "addition", partial(stream, torch.add, 2)
    yield "gelu", partial(stream, F.gelu, 1)
    yield "layer norm", partial(rows, lambda x: F.layer_norm(x, (4096,)))
    yield "softmax", partial(rows, lambda x: x.softmax(-1))
    yield "sum of rows", partial(rows, lambda x: x.sum(-1))


def mixed(share: float, n: int = 8192) -> Case:
    """Products and copies; share: of the time in products, about."""
    _, flops, moved, multiply = product(n, n, n)
    _, _, copied, copy = stream(torch.clone, 1, 1 << 28)
    products, copies = max(1, round(8 * share)), max(0, round(8 * (1 - share) * 4))

    def run() -> None:
        for _ in range(products):
            multiply()
        for _ in range(copies):
            copy()

    return "mix", products * flops, products * moved + copies * copied, run


class Layer(nn.Module):  # type: ignore[misc]
    """A decoder's layer with gated linear units."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.first(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        y = self.second(x)
        result: torch.Tensor = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return result


def program(build: Callable[[], tuple[nn.Module, torch.Tensor]], *, trains: bool) -> Case:
    torch.manual_seed(0)
    model, x = build()
    model = model.cuda().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)

    def step() -> None:
        if not trains:
            with torch.no_grad():
                model(x)
            return
        model(x).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return "training" if trains else "inference", 0, 0, step


def decoder(layers: int, batch: int, length: int) -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(*[Layer(4096, 32, 14336) for _ in range(layers)]), randn(batch, length, 4096)


def perceptron(width: int, layers: int, batch: int) -> tuple[nn.Module, torch.Tensor]:
    parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*parts), randn(batch, width)


def network(batch: int) -> tuple[nn.Module, torch.Tensor]:
    def block(channels: int) -> nn.Module:
        part = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        return nn.Sequential(part, nn.BatchNorm2d(channels), nn.ReLU())

    stem = nn.Conv2d(3, 128, 7, stride=4, padding=3)
    model = nn.Sequential(
        stem,
        *[block(128) for _ in range(6)],
        nn.Conv2d(128, 256, 1, stride=2),
        *[block(256) for _ in range(6)],
    )
    return model.to(memory_format=torch.channels_last), randn(batch, 3, 224, 224).to(
        memory_format=torch.channels_last
    )


PROGRAMS: dict[str, tuple[Callable[[], tuple[nn.Module, torch.Tensor]], bool]] = {
    "decoder, training, 2 x 4096": (partial(decoder, 4, 2, 4096), True),
    "decoder, prefill, 4 x 4096": (partial(decoder, 6, 4, 4096), False),
    "decoder, training, 8 x 1024": (partial(decoder, 3, 8, 1024), True),
    "decoder, 64 tokens": (partial(decoder, 8, 64, 1), False),
    "perceptron 8192, training": (partial(perceptron, 8192, 6, 8192), True),
    "perceptron 4096, training": (partial(perceptron, 4096, 8, 8192), True),
    "convolutions, training": (partial(network, 128), True),
    "convolutions, inference": (partial(network, 128), False),
}


def programs() -> Iterator[tuple[str, Callable[[], Case]]]:
    """Mixes of two kernels, and programs."""
    for share in (0.25, 0.5, 0.75):
        yield f"products {share:.0%} of the time", partial(mixed, share)
    for name, (build, trains) in PROGRAMS.items():
        yield name, partial(program, build, trains=trains)


def measured(case: Case, seconds: float, counter: Counter) -> dict[str, Any]:
    """Times of a run at the begin and later, and its energy."""
    kind, flops, moved, run = case
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    time.sleep(REST)
    events = [torch.cuda.Event(enable_timing=True)]
    events[0].record()
    begun, joules, clocks = time.perf_counter(), 0.0, []
    half = -1
    while True:
        for _ in range(4):
            run()
        events.append(torch.cuda.Event(enable_timing=True))
        events[-1].record()
        if len(events) > 3:
            events[-3].synchronize()  # a queue of two: the GPU never waits, and the CPU knows the time
        passed = time.perf_counter() - begun
        if half < 0 and passed > seconds / 2:
            events[-1].synchronize()
            half, joules, since = len(events) - 1, counter.joules(), time.perf_counter()
        if half >= 0 and len(events) % 4 == 0:
            clocks.append(counter.megahertz())
        if passed > seconds and half >= 0:
            break
    torch.cuda.synchronize()
    until, joules = time.perf_counter(), counter.joules() - joules
    spans = [a.elapsed_time(b) / 4e3 for a, b in pairwise(events)]
    ends = [sum(spans[: index + 1]) * 4 for index in range(len(spans))]
    begins = [each for each, end in zip(spans, ends, strict=True) if end - each * 4 <= FIRST] or spans[:1]
    marks = {}
    for mark in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0):
        near = [each for each, end in zip(spans, ends, strict=True) if mark / 1.5 <= end <= mark * 1.5]
        if near:
            marks[str(mark)] = statistics.median(near)
    runs = 4 * (len(spans) - half)
    return {
        "kind": kind, "flops": flops, "bytes": moved, "fast": min(begins), "marks": marks,
        "sustained": sum(spans[half:]) / len(spans[half:]), "joules": joules / runs if runs else 0.0,
        "watts": joules / (until - since), "megahertz": statistics.median(clocks) if clocks else 0,
    }  # fmt: skip


def measure(options: argparse.Namespace) -> None:
    """Measures all, and writes after each."""
    counter = Counter()
    torch.zeros(1, device="cuda")
    before, begun = counter.joules(), time.perf_counter()
    time.sleep(1.0)
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    found["idle_watts"] = (counter.joules() - before) / (time.perf_counter() - begun)
    for part, cases in (("kernels", kernels()), ("programs", programs())):
        found[part] = {}
        for name, build in cases:
            try:
                row = found[part][name] = measured(build(), options.seconds, counter)
                times = f"{row['fast'] * 1e3:9.3f} {row['sustained'] * 1e3:9.3f} ms"
                print(f"{name:32} {times} {row['watts']:6.0f} W {row['megahertz']:5} MHz", flush=True)
            except Exception as error:  # noqa: BLE001 # the others are measured all the same
                print(f"{name:32} {type(error).__name__}: {str(error)[:200]}", flush=True)
            torch.cuda.empty_cache()
            options.measure.write_text(json.dumps(found, indent=1))


def show(path: Path) -> None:
    """Prints what was measured."""
    whole = json.loads(path.read_text())
    print(f"{whole['device']}, torch {whole['torch']}, idle {whole['idle_watts']:.0f} W")
    print(
        f"{'':32}{'first ms':>10}{'sustained':>11}{'ratio':>7}{'watts':>7}{'MHz':>7}{'TFLOP/s':>9}{'joules':>9}"
    )
    for part in ("kernels", "programs"):
        for name, row in whole[part].items():
            first, last = row["fast"] * 1e3, row["sustained"] * 1e3
            rate = f"{row['flops'] / row['sustained'] / 1e12:9.0f}" if row["flops"] else " " * 9
            ratio = f"{last / first:7.2f}"
            print(
                f"{name:32}{first:10.3f}{last:11.3f}{ratio}{row['watts']:7.0f}{row['megahertz']:7.0f}{rate}{row['joules']:9.3f}"
            )


def main() -> None:
    """Measures, or prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--measure", type=Path)
    parser.add_argument("--seconds", type=float, default=1.2)
    options = parser.parse_args()
    if options.measure:
        measure(options)
    else:
        for path in MEASURED:
            show(path)


if __name__ == "__main__":
    main()
