"""Calls of attention at random sizes, each as a GPU runs it, against the prediction of its kernel.

    python -m benchmarks.attentions --measure benchmarks/measured/h200_attention.csv [--flash]    (on a GPU)
    python -m benchmarks.attentions    (anywhere)

Batches of 1 to 64 and windows of up to 8,192, heads of 32 to 256 elements, shared or not, causal or with a mask, in 16 bits
and float32, laid out in three ways. Before each run the cache is emptied and what the kernel reads is written. Microseconds
are the median of four runs by the profiler: of the attention's own kernel and of those around it that read what is as large
as the query, without what makes numbers of a mask or adds up heads. `--flash` forces FlashAttention, which PyTorch does not
choose on Hopper, without the forwards in which it splits the keys. A table of constants was fitted to every second row that
it is for; the other rows judge it.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import time
import warnings
from collections import Counter, defaultdict
from contextlib import nullcontext
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from graphflops.kernels.kernel import Kernel

MEASURED = Path(__file__).with_name("measured")
TOGETHER, RUNS = 8, 4
MOST_WORK, MOST_ELEMENTS, MOST_SCORES = 4e11, 3e8, 4e8
EMPTIED = 1 << 27  # bytes that are written to empty the cache
OWN = {"cudnn": "cudnn", "flash": "flash", "efficient": "fmha"}  # a kernel by a word in its name


class Case(NamedTuple):
    """Sizes of a call. mask: "", or bool, float or grad and its axes of b, h, q and k, as "bool b11k"."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    width: int
    dtype: str
    is_causal: bool
    mask: str
    layout: str


def drawn(rng: Random, flash: bool) -> Case:
    """A case; the other way round each kernel has enough of them."""
    weights = (100, 25, 0, 0, 0, 25) if flash else (100, 25, 35, 25, 30, 18)
    (kind,) = rng.choices(("plain", "window", "mask", "gradient", "float32", "wide"), weights)
    while True:
        narrow = (32, 40, 48, 64, 64, 64, 64, 72, 80, 80, 96, 96, 112, 128, 128, 128)
        width = rng.choice((136, 160, 192, 256, 256) if kind == "wide" else narrow)
        batch, queries = _spread(rng, 1, 64), _length(rng, 16, 8192)
        if kind == "window":
            batch, queries = _spread(rng, 64, 8192), rng.choice((16, 36, 49, 49, 64, 64, 98, 144, 196, 256))
        heads = rng.choice((1, 2, 3, 4, 6, 8, 12, 12, 16, 16, 20, 24, 32, 32, 40))
        shared = kind in ("plain", "wide") and rng.random() < 0.25
        kv_heads = rng.choice([n for n in (1, 2, 4, 8) if heads % n == 0]) if shared else heads
        keys = queries
        if rng.random() < 0.2:
            keys = 4 * queries if kind == "window" else _length(rng, 16, 4096)
        is_float = kind == "float32" or (kind == "gradient" and rng.random() < 0.3)
        scores = batch * heads * queries * keys
        if (
            scores * width > MOST_WORK / (4 if is_float else 1)
            or batch * (heads * queries + kv_heads * keys) * width > MOST_ELEMENTS
            or (kind in ("mask", "gradient") and scores > MOST_SCORES)
        ):
            continue
        dtype = "float32" if is_float else rng.choice(("bfloat16", "bfloat16", "float16"))
        is_causal = kind in ("plain", "wide", "float32") and rng.random() < 0.45 and keys == queries
        mask = {
            "mask": f"{rng.choice(('bool', 'float'))} {rng.choice(('b1qk', 'bhqk', '11qk', 'b11k'))}",
            "gradient": f"grad {rng.choice(('1hqk', 'bhqk', '11qk'))}",
        }.get(kind, "")
        layout = rng.choice(("bshd", "bshd", "bhsd", "packed"))
        return Case(batch, heads, kv_heads, queries, keys, width, dtype, is_causal, mask, layout)


def _spread(rng: Random, low: int, high: int) -> int:
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def _length(rng: Random, low: int, high: int) -> int:
    """A length: any, a multiple of 8 or 64, or a power of two and perhaps one more, as of a class token."""
    n, kind = _spread(rng, low, high), rng.random()
    if kind < 0.8:
        step = 1 if kind < 0.25 else 8 if kind < 0.5 else 64
        return -(-n // step) * step
    return 2 ** round(math.log2(n)) + (kind > 0.93)


def mask_shape(case: Case) -> list[int]:
    sizes = {"1": 1, "b": case.batch, "h": case.heads, "q": case.queries, "k": case.keys}
    return [sizes[axis] for axis in case.mask.split()[1]]


class Row(NamedTuple):
    """A kernel: the logarithm of its predicted over its measured time, and whether that is inside the interval."""

    device: str
    error: float
    is_inside: bool


class Call:
    """An attention with its operands on the GPU."""

    def __init__(self, case: Case) -> None:
        self.case, dtype = case, getattr(torch, case.dtype)

        def tensor(heads: int, length: int) -> torch.Tensor:
            if case.layout == "bhsd":
                return torch.randn(case.batch, heads, length, case.width, device="cuda", dtype=dtype)
            return torch.randn(case.batch, length, heads, case.width, device="cuda", dtype=dtype).transpose(
                1, 2
            )

        if case.layout == "packed" and case.queries == case.keys and case.heads == case.kv_heads:
            packed = torch.randn(
                case.batch, case.queries, 3, case.heads, case.width, device="cuda", dtype=dtype
            )
            operands = [part.transpose(1, 2) for part in packed.unbind(2)]
        else:
            keys = (case.kv_heads, case.keys)
            operands = [tensor(case.heads, case.queries), tensor(*keys), tensor(*keys)]
        self.operands = [x.detach().requires_grad_() for x in operands]
        self.mask = self._mask(dtype) if case.mask else None
        out = self.forward()
        self.gradient = torch.randn_like(out)
        self.backward(out)

    def _mask(self, dtype: torch.dtype) -> torch.Tensor:
        kind, shape = self.case.mask.split()[0], mask_shape(self.case)
        if kind == "bool":
            mask = torch.rand(shape, device="cuda") > 0.3
            mask[..., 0] = True
            return mask
        return torch.randn(shape, device="cuda", dtype=dtype, requires_grad=kind == "grad")

    def forward(self) -> torch.Tensor:
        case = self.case
        return functional.scaled_dot_product_attention(
            *self.operands,
            attn_mask=self.mask,
            is_causal=case.is_causal,
            enable_gqa=case.kv_heads != case.heads,
        )

    def backward(self, out: torch.Tensor) -> None:
        masks = [self.mask] if self.mask is not None and self.mask.requires_grad else []
        torch.autograd.grad(out, [*self.operands, *masks], self.gradient)


def profiled(calls: list[Call]) -> list[dict[str, tuple[str, float]]]:
    """Of each call, its kernel and microseconds by phase."""
    both = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    emptied = torch.empty(EMPTIED, dtype=torch.uint8, device="cuda")
    with torch.profiler.profile(activities=both) as profile:
        for at, call in enumerate(calls):
            for run in range(RUNS):
                emptied.zero_()
                for x in call.operands:
                    x.detach().mul_(1.0)
                with torch.profiler.record_function(f"case {at} {run} forward"):
                    out = call.forward()
                emptied.zero_()
                call.gradient.mul_(1.0)
                with torch.profiler.record_function(f"case {at} {run} backward"):
                    call.backward(out)
        torch.cuda.synchronize()
    found: dict[str, list[tuple[str, str, float]]] = defaultdict(list)
    for event in profile.events():
        if event.device_type != torch.autograd.DeviceType.CPU or not event.kernels:
            continue
        around = event
        while around is not None and not around.name.startswith("case "):
            around = around.cpu_parent
        if around is not None:
            found[around.name] += [(event.name, kernel.name, kernel.duration) for kernel in event.kernels]
    return [
        {
            phase: own_of([found[f"case {at} {run} {phase}"] for run in range(RUNS)])
            for phase in ("forward", "backward")
        }
        for at in range(len(calls))
    ]


def own_of(runs: list[list[tuple[str, str, float]]]) -> tuple[str, float]:
    """The kernel that ran an attention, and the median of its time with those around it that belong to it."""
    names = " ".join(name for _, name, _ in runs[0])
    kernel = next((kernel for kernel, word in OWN.items() if word in names), "math")
    if "splitkv" in names:
        return kernel, 0.0

    def belongs(op: str, name: str) -> bool:
        if kernel == "cudnn":
            return "ttention" in op and "reduce_head" not in name
        is_sum = kernel == "efficient" and "_f32_" in names and op in ("aten::mul", "aten::sum")
        return OWN.get(kernel, " ") in name or is_sum

    return kernel, statistics.median(sum(us for op, name, us in run if belongs(op, name)) for run in runs)


def measure(file: Path, seed: int, limit: float, *, flash: bool) -> None:
    torch.autograd.set_multithreading_enabled(False)
    rng, end = Random(seed), time.monotonic() + limit
    with (
        file.open("a", newline="") as out,
        sdpa_kernel([SDPBackend.FLASH_ATTENTION]) if flash else nullcontext(),
    ):
        rows = csv.writer(out)
        while time.monotonic() < end:
            calls = [Call(drawn(rng, flash)) for _ in range(TOGETHER)]
            for call, times in zip(calls, profiled(calls), strict=True):
                kernel, forward = times["forward"]
                if kernel != "math":
                    us = [f"{us:.2f}" if us else "" for us in (forward, times["backward"][1])]
                    rows.writerow([*call.case, kernel, *us])


def kernel_of(case: Case, name: Any, phase: Any) -> Kernel:
    """The kernel as an exported program has it."""
    from graphflops.attention.attention_use import causal_fraction
    from graphflops.kernels.kernel import Attention, Kernel, Masking

    element = 4 if case.dtype == "float32" else 2
    query = case.batch * case.heads * case.queries * case.width * element
    keys = 2 * case.batch * case.kv_heads * case.keys * case.width * element
    scores = case.batch * case.heads * case.queries * case.keys
    mask = math.prod(mask_shape(case)) * element if case.mask else 0
    moved = (query + keys + mask, query)
    if phase == "backward":
        sums = case.batch * case.heads * case.queries * 4
        moved = (
            3 * query + keys + mask + sums,
            query + keys + scores * element * case.mask.startswith("grad"),
        )
    masking: Masking = "masked" if case.mask else ""
    if masking and phase == "forward" and name == "cudnn":
        masking = "uneven" if case.keys % 2 else "masked" if "q" in case.mask.split()[1] else "row"
    computed = causal_fraction(case.queries, case.keys) if case.is_causal else 1.0
    each = (case.batch, case.heads, case.kv_heads, case.queries, case.keys, case.width)
    sizes = Attention(*each, computed, kernel=name, phase=phase, masking=masking)
    flops = int((10 if phase == "backward" else 4) * scores * case.width * computed)
    return Kernel("attention", case.dtype, flops, 0, *moved, sizes)


def measured() -> Iterator[tuple[str, Case, str, dict[str, float]]]:
    """Device, case, kernel and microseconds by phase."""
    for file in sorted(MEASURED.glob("*_attention.csv")):
        for row in csv.reader(file.open()):
            *sizes, dtype, causal, mask, layout, name, forward, backward = row
            case = Case(*map(int, sizes), dtype, causal == "True", mask, layout)  # type: ignore[arg-type]
            times = {"backward": float(backward), **({"forward": float(forward)} if forward else {})}
            yield file.name.split("_")[0], case, name, times


def judge() -> None:
    from graphflops import devices
    from graphflops.time.correction import variant_of
    from graphflops.time.predict import names_of_constants, predict

    profiles = {name: devices.complete(devices.device(name)) for name in ("h100", "h200")}
    halves: dict[tuple[str, ...], tuple[list[Row], list[Row]]] = defaultdict(lambda: ([], []))
    counts: Counter[str] = Counter()
    for on, case, name, times in measured():
        for phase, us in times.items():
            kernel = kernel_of(case, name, phase)
            time, seconds = predict(kernel, profiles[on]), us * 1e-6
            width = "to 64" if case.width <= 64 else "to 128" if case.width <= 128 else "wider"
            bits = 32 if case.dtype == "float32" else 16
            names = names_of_constants(kernel, bits / 8)
            table = next(each for each in names if each in profiles[on].rates)
            row = Row(on, abs(math.log(time.seconds / seconds)), time.low <= seconds <= time.high)
            halves[variant_of(kernel), f"{bits} bits", width][counts[table] % 2].append(row)
            counts[table] += 1
    print("errors of every second row, which constants were fitted to, and of the others, which judge them")
    print(
        f"{'kernel':24} {'':8} {'heads':7} {'fitted':>13} {'judged':>13} {'median':>7} {'inside':>6}  each GPU"
    )
    for (variant, bits, width), (fitted, judged) in sorted(halves.items()):
        if min(len(fitted), len(judged)) < 3:
            continue
        both = " ".join(
            f"{len(half):5} {statistics.mean(row.error for row in half):7.1%}" for half in (fitted, judged)
        )
        each = ", ".join(
            f"{on} {statistics.mean(errors):.1%}"
            for on in profiles
            if (errors := [row.error for row in judged if row.device == on])
        )
        median = statistics.median(row.error for row in judged)
        inside = statistics.mean(row.is_inside for row in judged)
        print(f"{variant:24} {bits:8} {width:7} {both} {median:7.1%} {inside:6.0%}  {each}")


def main() -> None:
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--measure", type=Path)
    parser.add_argument("--flash", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=120.0)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure, options.seed, options.limit, flash=options.flash)
    else:
        judge()


if __name__ == "__main__":
    main()
