"""Kernels of training steps at the sizes of large models, each alone, against the prediction.

    python -m benchmarks.step_kernels --measure benchmarks/measured/h100_step_kernels.json    (on a GPU)
    python -m benchmarks.step_kernels                                                         (anywhere)

Products of all layouts, lists of tensors as optimizers and FSDP handle them, norms, losses, attention, and tensors that lie
across; those of networks of images (`image_kernels.py`). Operands are random numbers: a GPU multiplies zeros, and the equal
gradients of a sum, faster. Each runs for some milliseconds in a CUDA graph after a rest, in which no power limit slows it
(`power.py` has that).

Every second case of a kind was used for constants (`fit`), the others judge.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
import warnings
from collections import defaultdict
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from benchmarks import image_kernels
from benchmarks.image_kernels import DEVICE, randn
from benchmarks.recorded import kernel_seconds
from graphflops import devices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MEASURED = Path(__file__).parent / "measured" / "h100_step_kernels.json"
BURST, ROUNDS, REST = 3e-3, 3, 2e-3  # seconds of a measurement, how many, seconds before each
MOST = 30  # calls of a measurement
HALF, SINGLE = torch.bfloat16, torch.float32

Run = "Callable[[], object]"
Case = tuple[str, dict[str, Any]]


def multiplied(layout: str, m: int, n: int, k: int) -> Run:
    a = randn(k, m).t() if layout == "nt" else randn(m, k)
    b = randn(n, k).t() if layout == "tn" else randn(k, n)
    return partial(torch.mm, a, b)


def batched(layout: str, batch: int, m: int, n: int, k: int) -> Run:
    a = randn(batch, k, m).transpose(1, 2) if layout == "nt" else randn(batch, m, k)
    b = randn(batch, n, k).transpose(1, 2) if layout == "tn" else randn(batch, k, n)
    return partial(torch.bmm, a, b)


def in_lists(name: str, count: int, numel: int, dtype: str) -> Run:
    """One call of an optimizer on lists of tensors."""
    kind = getattr(torch, dtype)

    def made() -> list[torch.Tensor]:
        return [randn(numel, dtype=kind).abs_() for _ in range(count)]

    if name == "fused_adamw":
        steps = [torch.ones((), device=DEVICE) for _ in range(count)]
        options = {"lr": 1e-6, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8}
        lists = [made() for _ in range(4)]
        return partial(torch._fused_adamw_, *lists, [], steps, **options, amsgrad=False, maximize=False)
    if name == "copy_narrowing":
        return partial(torch._foreach_copy_, [x.to(HALF) for x in made()], made())
    if name == "copy":
        return partial(torch._foreach_copy_, made(), made())
    call = getattr(torch, f"_foreach_{name}_")
    if name in ("addcmul", "addcdiv"):
        return partial(call, made(), made(), made(), 1e-6 if name == "addcmul" else [1e-6] * count)
    if name == "lerp":
        return partial(call, made(), made(), 0.1)
    if name == "add":
        return partial(call, made(), made(), alpha=1e-6)
    return partial(call, made(), *({"mul": [0.999], "div": [[1.001] * count], "sqrt": []}[name]))


def of_fsdp(name: str, count: int, rows: int, columns: int) -> Run:
    """Copies into and out of the buffers of FSDP's collectives."""
    import torch.distributed.fsdp

    matrices = [randn(rows, columns) for _ in range(count)]
    if name == "chunk_cat":
        out = torch.empty(2, count * rows * columns // 2, device=DEVICE)
        return partial(torch.ops.fsdp.chunk_cat, matrices, 0, 2, out=out)
    if name == "chunk_cat_same":
        out = torch.empty(2, count * rows * columns // 2, device=DEVICE, dtype=HALF)
        return partial(torch.ops.fsdp.chunk_cat, matrices, 0, 2, out=out)
    gathered = randn(2, count * rows * columns // 2)
    sizes = [rows * columns // 2] * count
    outs = [torch.empty(2, size, device=DEVICE, dtype=HALF) for size in sizes]
    return partial(torch.ops.fsdp.split_with_sizes_copy, gathered, sizes, 1, out=outs)


def norm(name: str, rows: int, columns: int, *, back: bool) -> Run:
    x, weight = randn(rows, columns).requires_grad_(back), randn(columns).requires_grad_(back)
    bias = randn(columns).requires_grad_(back)
    g = randn(rows, columns)

    def run() -> None:
        y = F.rms_norm(x, (columns,), weight) if name == "rms" else F.layer_norm(x, (columns,), weight, bias)
        if back:
            torch.autograd.grad(y, (x, weight) if name == "rms" else (x, weight, bias), g)

    return run


def loss(rows: int, classes: int, dtype: str) -> Run:
    x = randn(rows, classes, dtype=getattr(torch, dtype)).requires_grad_()
    target = torch.randint(0, classes, (rows,), device=DEVICE)
    return lambda: torch.autograd.grad(F.cross_entropy(x, target), x)


def attention(batch: int, heads: int, kv: int, length: int, width: int, *, causal: bool, back: bool) -> Run:
    q = randn(batch, heads, length, width).requires_grad_(back)
    k, v = (randn(batch, kv, length, width).requires_grad_(back) for _ in range(2))
    g = randn(batch, heads, length, width)

    def run() -> None:
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=kv != heads)
        if back:
            torch.autograd.grad(y, (q, k, v), g)

    return run


def across(name: str, batch: int, rows: int, columns: int) -> Run:
    """Tensors that lie across: those of patches, and of heads."""
    turned, straight = randn(batch, columns, rows).transpose(1, 2), randn(batch, rows, columns)
    heads = randn(batch, 16, rows, columns // 16).transpose(1, 2)
    return {
        "contiguous": lambda: turned.contiguous(),
        "add": lambda: turned + straight,
        "add_alike": lambda: turned + turned,
        "add_row": lambda: turned + straight[:1],
        "layer_norm": lambda: F.layer_norm(turned, (columns,)),
        "heads": lambda: heads.reshape(batch, rows, columns),
    }[name]


def elementwise(name: str, numel: int, dtype: str) -> Run:
    x, y = (randn(numel, dtype=getattr(torch, dtype)) for _ in range(2))
    return {
        "add": lambda: x + y,
        "mul": lambda: x * y,
        "gelu": lambda: F.gelu(x),
        "gelu_backward": lambda: torch.ops.aten.gelu_backward(x, y),
        "silu_backward": lambda: torch.ops.aten.silu_backward(x, y),
        "threshold_backward": lambda: torch.ops.aten.threshold_backward(x, y, 0.0),
        "cast": lambda: x.to(SINGLE if x.dtype == HALF else HALF),
        "sum_rows": lambda: x.view(-1, 4096).sum(0),
        "clone": lambda: x.clone(),
    }[name]


def batch_norm(batch: int, channels: int, size: int, *, last: bool) -> Run:
    form = torch.channels_last if last else torch.contiguous_format
    x = randn(batch, channels, size, size).to(memory_format=form).requires_grad_()
    weight, bias = (randn(channels).requires_grad_() for _ in range(2))
    mean, variance = (torch.zeros(channels, device=DEVICE, dtype=HALF) for _ in range(2))
    g = randn(batch, channels, size, size).to(memory_format=form)

    def run() -> None:
        y = F.batch_norm(x, mean, variance, weight, bias, training=True)
        torch.autograd.grad(y, (x, weight, bias), g)

    return run


def embedding(rows: int, width: int, tokens: int) -> Run:
    ids, g = torch.randint(0, rows, (tokens,), device=DEVICE), randn(tokens, width)
    return lambda: torch.ops.aten.embedding_dense_backward(g, ids, rows, -1, False)


ATTENTIONS = (
    *((4, 32, 32, 2048, 128), (2, 32, 8, 4096, 128), (8, 16, 16, 1024, 64), (1, 32, 8, 8192, 128)),
    *((64, 12, 12, 197, 64), (128, 16, 16, 256, 64), (16, 16, 16, 512, 64), (4, 16, 16, 4096, 64)),
    (8, 32, 32, 1024, 128),
)
MAKERS: dict[str, Callable[..., Run]] = {
    "product": multiplied, "batched": batched, "lists": in_lists, "fsdp": of_fsdp, "norm": norm, "loss": loss,
    "attention": attention, "across": across, "elementwise": elementwise, "batch_norm": batch_norm, "embedding": embedding,
    **image_kernels.MAKERS,
}  # fmt: skip


def cases() -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """Kind, operands and options of each; the same everywhere."""
    chance = Random(2711)

    def size(low: float, high: float, step: int = 8) -> int:
        return max(step, round(low * (high / low) ** chance.random() / step) * step)

    for layout in ("tn", "nn", "nt"):
        for index in range(44):
            step = (8, 128)[index % 4 > 0]
            m, n, k = size(128, 16384, step), size(256, 16384, step), size(256, 16384, step)
            if 2e9 < 2 * m * n * k < 2.5e12:
                yield "product", (layout, m, n, k), {}
        for _ in range(8):
            yield "batched", (layout, size(8, 128), size(128, 4096), size(64, 2048), size(64, 2048)), {}
    for name in (
        "add",
        "mul",
        "lerp",
        "addcmul",
        "addcdiv",
        "sqrt",
        "div",
        "copy",
        "copy_narrowing",
        "fused_adamw",
    ):
        for dtype in ("bfloat16", "float32"):
            for count, numel in ((4, 67_108_864), (24, 16_777_216), (64, 4_194_304), (200, 262_144)):
                is_small = (name, dtype) != ("copy_narrowing", "bfloat16") and count * numel * 4 < 1.2e9
                if is_small or count == 64:
                    yield "lists", (name, count, numel, dtype), {}
    for name in ("chunk_cat", "chunk_cat_same", "split"):
        for count, rows, columns in ((7, 4096, 4096), (1, 8192, 8192), (12, 2048, 2048), (40, 512, 1024)):
            yield "fsdp", (name, count, rows, columns), {}
    for name in ("rms", "layer"):
        for back in (False, True):
            for rows, columns in (
                (8192, 4096),
                (16384, 2048),
                (4096, 8192),
                (25216, 1024),
                (50432, 768),
                (2048, 5120),
            ):
                yield "norm", (name, rows, columns), {"back": back}
    for dtype in ("bfloat16", "float32"):
        for rows, classes in ((4096, 32000), (8192, 32000), (4096, 128256), (2048, 50304), (16384, 8192)):
            yield "loss", (rows, classes, dtype), {}
    for back, causal, shape in product((False, True), (False, True), ATTENTIONS):
        yield "attention", shape, {"causal": causal, "back": back}
    for name in ("contiguous", "add", "add_alike", "add_row", "layer_norm", "heads"):
        for batch, rows, columns in ((128, 196, 1024), (64, 256, 768), (8, 4096, 1024), (32, 577, 1280)):
            yield "across", (name, batch, rows, columns), {}
    for name in (
        "add", "mul", "gelu", "gelu_backward", "silu_backward", "threshold_backward", "cast", "sum_rows", "clone",
    ):  # fmt: skip
        for numel in (16_777_216, 67_108_864, 268_435_456):
            yield "elementwise", (name, numel, "bfloat16"), {}
    for last in (False, True):
        for batch, channels, side in (
            (128, 64, 56),
            (128, 256, 56),
            (128, 512, 14),
            (64, 128, 112),
            (256, 1024, 7),
        ):
            yield "batch_norm", (batch, channels, side), {"last": last}
    for rows, width, tokens in ((32000, 4096, 8192), (50304, 1024, 16384), (128256, 4096, 4096)):
        yield "embedding", (rows, width, tokens), {}
    yield from image_kernels.cases()


def label(kind: str, operands: tuple[Any, ...], options: dict[str, Any]) -> str:
    said = [str(each) for each in operands] + [name for name, is_on in options.items() if is_on]
    return f"{kind} {' '.join(said)}"


def captured(run: Run, count: int) -> torch.cuda.CUDAGraph:
    """The calls in a CUDA graph."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            run()
    return graph


def seconds(run: Run) -> float:
    """Median seconds of a call among several in a CUDA graph, each replay after a rest."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    begun, middle, ended = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    with torch.cuda.stream(stream):
        run()
        middle.record()
        run()
        ended.record()
    torch.cuda.synchronize()
    count = min(MOST, max(2, int(BURST / max(middle.elapsed_time(ended) / 1e3, 1e-6))))
    graph = captured(run, count)
    times = []
    for _ in range(ROUNDS + 1):
        time.sleep(REST)
        begun.record()
        graph.replay()
        ended.record()
        torch.cuda.synchronize()
        times.append(begun.elapsed_time(ended) / 1e3 / count)
    return statistics.median(times[1:])


def measure(options: argparse.Namespace) -> None:
    """Measures all cases within the time."""
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "seconds": {},
    }
    begun = time.monotonic()
    for kind, operands, given in cases():
        name = label(kind, operands, given)
        if options.only not in name:
            continue
        if time.monotonic() - begun > options.limit:
            print("the time is over", flush=True)
            break
        try:
            found["seconds"][name] = seconds(MAKERS[kind](*operands, **given))
        except Exception as error:  # noqa: BLE001 # the others are measured all the same
            print(f"{name}: {type(error).__name__}: {str(error)[:150]}", flush=True)
            captured(partial(torch.zeros, 1, device=DEVICE), 1)  # ends what a capture left of random numbers
        torch.cuda.empty_cache()
    options.measure.write_text(json.dumps(found, indent=1))
    print(f"{len(found['seconds'])} kernels in {time.monotonic() - begun:.0f} s")


def predicted(device: str, kind: str, operands: tuple[Any, ...], given: dict[str, Any]) -> float:
    """Seconds on the GPU of the same calls, recorded."""
    import graphflops

    def factory() -> Callable[[], None]:
        run = MAKERS[kind](*operands, **given)

        def step() -> None:
            run()

        return step

    launch = devices.device(device).launch
    gap = 0.0 if launch is None else launch.graph_seconds
    return kernel_seconds(graphflops.record(factory), device, gap)


def divided() -> dict[str, tuple[str, str, str, tuple[Any, ...], dict[str, Any]]]:
    """By title: the group and half of each case, and the case. One that chance drew twice is in the half of the last."""
    found, turns = {}, defaultdict[str, int](int)
    for kind, operands, given in cases():
        group = f"{kind} {operands[0]}" if isinstance(operands[0], str) else kind
        group += " back" if given.get("back") else ""
        turns[group] += 1
        half = ("judge", "fit")[turns[group] % 2]
        found[label(kind, operands, given)] = group, half, kind, operands, given
    return found


def judge(options: argparse.Namespace) -> None:
    """Prints measured and predicted microseconds, and errors by kind."""
    whole = json.loads(options.measured.read_text())
    name = next(one for one in ("h200", "h100") if one in whole["device"].lower())
    print(f"{whole['device']}, torch {whole['torch']}: measured, predicted microseconds")
    errors: dict[tuple[str, str], list[float]] = defaultdict(list)
    for title, (group, half, *case) in divided().items():
        if title not in whole["seconds"] or options.only not in title:
            continue
        seen, found = whole["seconds"][title], predicted(name, *case)
        errors[group, half].append(found / seen - 1)
        print(
            f"{title:52} {half:5} {seen * 1e6:10.1f} {found * 1e6:10.1f} {found / seen - 1:+7.1%}", flush=True
        )
        gc.collect()
    for half in ("fit", "judge"):
        errors["all", half] = [
            error for (_, each), every in errors.items() if each == half for error in every
        ]
    for (group, half), every in sorted(errors.items()):
        sizes = [abs(error) for error in every]
        print(
            f"{group:28} {half:5} {len(every):3}: mean {statistics.mean(sizes):6.1%}, median"
            f" {statistics.median(sizes):6.1%}, signed {statistics.median(every):+6.1%}, worst {max(sizes):5.0%}"
        )


def main() -> None:
    """Measures, or prints the comparison."""
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--measure", type=Path)
    parser.add_argument("--measured", type=Path, default=MEASURED)
    parser.add_argument("--only", default="")
    parser.add_argument("--limit", type=float, default=120.0)
    options = parser.parse_args()
    if options.measure:
        measure(options)
    else:
        judge(options)


if __name__ == "__main__":
    main()
