"""Which kernels cuDNN takes for convolutions, and what they need: measured on this machine's GPU, and as predicted.

    python -m benchmarks.convolutions measure --seconds 110 --seed 1 --output convolutions.jsonl [--kinds groups,filters]
    python -m benchmarks.convolutions judge convolutions.jsonl
    python -m benchmarks.convolutions fit convolutions.jsonl > trees.json

`measure` runs random convolutions, forward and both gradients, and writes a line for each pass: its sizes, the bytes that it
allocates beside operands and results, and its kernels with their times; `--sizes` takes the sizes of such lines instead.
Kernels of groups run beside one another, so these are judged by their time in a CUDA graph.
`judge` compares them with what graphflops predicts. `fit` reads decision trees from kernels and workspaces (it needs
scikit-learn): with them `graphflops/kernels/choices` is made for a new release of cuDNN.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections import defaultdict
from math import log, prod
from pathlib import Path
from typing import Any

from graphflops.devices import HOPPER, device
from graphflops.execution.strides import row_major
from graphflops.kernels import cudnn
from graphflops.kernels.call import Tensor
from graphflops.kernels.choices import library
from graphflops.kernels.convolution import Convolution, Layout
from graphflops.kernels.cudnn import Problem
from graphflops.tensor import DTYPES, TensorType
from graphflops.time.predict import predict

Row = dict[str, Any]
PHASES = ("forward", "input_gradient", "weight_gradient")
CHANNELS = (*range(16, 65, 8), *range(80, 257, 16), *range(288, 577, 32), *range(640, 2049, 128), 2304, 3072)
SIDES = (
    1,
    *range(4, 22),
    7,
    7,
    14,
    14,
    24,
    25,
    27,
    28,
    28,
    31,
    32,
    35,
    37,
    40,
    48,
    56,
    56,
    63,
    64,
    96,
    112,
    128,
)
OF_A_GROUP = (*range(2, 25, 2), *range(32, 65, 8), *range(72, 145, 16), 168, 192, 224, 264, 320)
BATCHES = (1, 1, 2, 3, 4, 6, 8, 8, 16, 16, 32, 32, 64, 128)
WINDOWS = {
    "dense": ((3, 3), (3, 3), (5, 5), (1, 7), (7, 1), (1, 3)),
    "groups": ((3, 3), (3, 3), (1, 1), (5, 5)),
    "filters": ((3, 3), (3, 3), (5, 5), (7, 7)),
}
OFTEN = {
    "product": 50,
    "strided": 6,
    "stem": 8,
    "dense": 18,
    "groups": 8,
    "filters": 2,
    "transposed": 4,
    "sequence": 4,
}
CONVERSIONS = ("nchwtonhwc", "nhwctonchw", "tensortransform", "addpadding")
MOST_ELEMENTS, MOST_FLOPS = 1.2e8, 1.5e11
LEAST_OF_A_LEAF = 5
FEWEST_EACH = 20  # passes to a leaf, on average
LEAVES = (80, 120, 200)  # of a tree at most
_REAL = 3  # how often a pass of a real network counts
NEAR, MOST_PARTS = 6000, 140  # bytes that alignment adds, and parts that a sum may have


def picked(chance: random.Random, kinds: list[str]) -> Row:
    """Sizes of a random convolution of one of these kinds; filters: each channel has several of its own."""
    (kind,) = chance.choices(kinds, [OFTEN[each] for each in kinds])
    side, stride, groups, window = chance.choice(SIDES), 1, 1, (1, 1)
    channels, results = (
        chance.choice(CHANNELS) if chance.random() < 0.85 else chance.randrange(8, 1500) for _ in range(2)
    )
    if kind == "strided":
        stride = 2
    elif kind == "stem":
        side, size = (
            chance.choice((96, 128, 160, 224, 224, 288)),
            chance.choice((2, 3, 4, 5, 7, 8, 14, 16, 32)),
        )
        is_patch = size not in (3, 5, 7) and chance.random() < 0.8
        channels, window, stride = chance.choice((1, 3, 3, 4, 6)), (size, size), size if is_patch else 2
        results = chance.choice((16, 32, 64, 96, 192, 384, 768))
    elif kind in WINDOWS:
        window, stride = chance.choice(WINDOWS[kind]), chance.choice((1, 1, 2))
        channels, results = min(channels, 1024), min(results, 1024)
    elif kind == "transposed":
        window, stride, results = chance.choice(((2, 2), (3, 3), (4, 4))), 2, chance.choice((3, 16, 64, 256))
    if kind == "groups":
        groups = chance.choice((2, 3, 4, 6, 8, 16, 32))
        channels = groups * chance.choice(OF_A_GROUP)
        results = channels * chance.choice((1, 1, 2))
    elif kind == "filters":
        groups = channels = chance.choice((32, 64, 96, 128, 192, 256, 384))
        results = channels * chance.choice((2, 2, 3, 4))
    axes = 1 if kind == "sequence" else 2
    image = [chance.choice((49, 197, 400, 1000, 3000))] if axes == 1 else [side, side]
    window = (chance.choice((1, 3, 5, 7)),) if axes == 1 else window
    padding = [0 if stride == size else size // 2 for size in window]
    return {
        "kind": kind,
        "dtype": chance.choice(("float16", "bfloat16", "bfloat16", "float32")),
        "batch": chance.choice(BATCHES),
        "cin": channels,
        "cout": results,
        "image": image,
        "groups": groups,
        "kernel": [*window],
        "stride": [stride] * axes,
        "padding": padding,
        "transposed": kind == "transposed",
        "last": axes == 2 and chance.random() < 0.12,
    }


def shapes(row: Row) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Of operand, weight and result."""
    ends = list(zip(row["image"], row["stride"], row["padding"], row["kernel"], strict=True))
    x = (row["batch"], row["cin"], *row["image"])
    if row["transposed"]:
        out = [(size - 1) * step - 2 * pad + taps for size, step, pad, taps in ends]
        return x, (row["cin"], row["cout"] // row["groups"], *row["kernel"]), (x[0], row["cout"], *out)
    out = [(size + 2 * pad - taps) // step + 1 for size, step, pad, taps in ends]
    return x, (row["cout"], row["cin"] // row["groups"], *row["kernel"]), (x[0], row["cout"], *out)


def measure(seconds: float, seed: int, output: Path, sizes: list[Row] | None, kinds: list[str]) -> None:
    """Runs random convolutions on the GPU, or given ones, each three times between markers that the profiler sees."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    def mark() -> None:
        torch.cuda._sleep(100)

    chance, begun = random.Random(seed), time.monotonic()
    mark()
    with output.open("w") as lines:
        while time.monotonic() - begun < seconds and sizes != []:
            rows: list[Row] = []
            with profile(activities=[ProfilerActivity.CUDA]) as trace:
                for _ in range(60 if sizes is None else min(60, len(sizes))):
                    row = picked(chance, kinds) if sizes is None else sizes.pop()
                    x, weight, out = shapes(row)
                    is_large = max(prod(x), prod(out)) > MOST_ELEMENTS
                    if min(out) < 1 or is_large or 2 * prod(out) * prod(weight[1:]) > MOST_FLOPS:
                        continue
                    for phase, call in zip(PHASES, calls(row, x, weight), strict=True):
                        call()
                        rows.append({**row, "phase": phase, "workspace": allocated(call)})
                        for _ in range(3):
                            torch.cuda.synchronize()
                            mark()
                            call()
                        torch.cuda.synchronize()
                        mark()
                        torch.cuda.synchronize()
            events = trace.profiler.kineto_results.events()
            found = sorted(
                (e.start_ns(), e.name(), e.duration_ns()) for e in events if "CUDA" in str(e.device_type())
            )
            runs: list[list[tuple[str, int]]] = [[]]
            for _, name, duration in found:
                runs[-1].append((name, duration)) if "spin" not in name else runs.append([])
            for place, row in enumerate(rows):
                three = runs[1 + 4 * place : 4 + 4 * place]
                if len({len(run) for run in three}) == 1 and three[0]:
                    times = zip(*three, strict=True)
                    row["kernels"] = [
                        [each[0][0][:110], sorted(t for _, t in each)[1] / 1e3] for each in times
                    ]
                    if row["groups"] > 1:  # without the profiler, which slows graphs
                        x, weight, _ = shapes(row)
                        row["in_graph"] = took(calls(row, x, weight)[PHASES.index(row["phase"])])
                    lines.write(json.dumps(row) + "\n")


def calls(row: Row, x_shape: tuple[int, ...], weight_shape: tuple[int, ...]) -> list[Any]:
    import torch

    dtype, axes = getattr(torch, row["dtype"]), len(row["image"])
    x = torch.randn(x_shape, device="cuda", dtype=dtype)
    x = x.to(memory_format=torch.channels_last) if row["last"] else x
    weight = torch.randn(weight_shape, device="cuda", dtype=dtype)
    options = (row["stride"], row["padding"], [1] * axes, row["transposed"], [0] * axes, row["groups"])
    forward, backward = torch.ops.aten.convolution, torch.ops.aten.convolution_backward
    gradient = torch.randn_like(forward(x, weight, None, *options))
    return [
        lambda: forward(x, weight, None, *options),
        lambda: backward(gradient, x, weight, None, *options, [True, False, False]),
        lambda: backward(gradient, x, weight, None, *options, [False, True, False]),
    ]


def took(call: Any, times: int = 4) -> float:
    """Microseconds of a call in a CUDA graph that has it several times; the middle of three runs."""
    import torch

    graph, ends = torch.cuda.CUDAGraph(), [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    with torch.cuda.graph(graph):
        for _ in range(times):
            call()
    found = []
    graph.replay()
    for _ in range(3):
        ends[0].record()
        graph.replay()
        ends[1].record()
        ends[1].synchronize()
        found.append(1e3 * ends[0].elapsed_time(ends[1]) / times)
    return sorted(found)[1]


def allocated(call: Any) -> int:
    """Bytes at the peak of a call beside what is there before or after it."""
    import torch

    def requested(which: str) -> int:
        return int(torch.cuda.memory_stats()[f"requested_bytes.all.{which}"])

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before, result = requested("current"), call()
    torch.cuda.synchronize()
    after, peak = requested("current"), requested("peak")
    del result
    return peak - max(before, after)


def problem(row: Row) -> Problem:
    x, weight, out = (tensor(shape, row["dtype"]) for shape in shapes(row))
    if row["last"] and x.shape[1] > 1:
        x, out = last(x), last(out)
    return Problem(convolution(row), x, weight, out, row["last"] and x.shape[1] > 1, row["phase"])


def tensor(shape: tuple[int, ...], dtype: str) -> Tensor:
    bits = DTYPES[dtype].bits
    return Tensor(shape, dtype, bits, tuple(map(int, row_major(shape))), prod(shape) * bits // 8)  # type: ignore[arg-type]


def last(value: Tensor) -> Tensor:
    strides = row_major(value.shape, (0, *range(2, value.rank), 1))
    return Tensor(value.shape, value.dtype, value.bits, tuple(map(int, strides)), value.nbytes)  # type: ignore[arg-type]


def convolution(row: Row) -> Convolution:
    x, weight, out = (TensorType(shape, DTYPES[row["dtype"]]) for shape in shapes(row))
    return Convolution(
        x, weight, out, tuple(row["stride"]), tuple(row["padding"]), row["groups"], row["transposed"]
    )


def judge(rows: list[Row]) -> None:
    """Prints, by kind and phase, how often the way is the library's, and how far workspace and time are off."""
    known, found = device("h200"), defaultdict(list)
    for row in rows:
        conv, what = convolution(row), problem(row)
        is_last = what.is_channels_last
        held = cudnn.workspace(conv, row["phase"], Layout(is_last), HOPPER)
        places = prod(shapes(row)[0 if row["transposed"] else 2])
        kernels = what.kernels(2 * places * prod(shapes(row)[1][1:]))
        seconds = sum(predict(kernel, known).seconds for kernel in kernels)
        tensors = sum(prod(shape) for shape in shapes(row)) * conv.x.dtype.bits // 8
        measured = row["in_graph"] if conv.groups > 1 else sum(each for _, each in row["kernels"])
        converts = any(part in name.lower() for name, _ in row["kernels"] for part in CONVERSIONS)
        found[row["kind"], row["phase"]].append(
            (
                abs(int(held) - row["workspace"]) <= 0.03 * tensors + 70_000,  # type: ignore[arg-type]
                bool(what.converted("xwo")) == converts or conv.groups > 1 or is_last,
                abs(log(1e6 * seconds / measured)),
            )
        )
    print(
        f"{'kind':12}{'phase':18}{'passes':>8}{'workspace within 3 %':>22}{'same copies':>13}{'time off, median':>18}"
    )
    for (kind, phase), each in sorted(found.items()):
        workspace, same = (f"{sum(row[n] for row in each) / len(each):.0%}" for n in (0, 1))
        off = f"{statistics.median(row[2] for row in each):.0%}"
        print(f"{kind:12}{phase:18}{len(each):8}{workspace:>22}{same:>13}{off:>18}")


def way(row: Row) -> str | None:
    """The way that a pass took, by the names of its kernels and its workspace; None where these show none that is known.

    The names tell which tensors were copied, for whole parts of sums and copies may take equally many bytes.
    """
    conv, phase = convolution(row), row["phase"]
    if row["last"] and conv.groups == 1:
        return way_of_few(conv, row["workspace"])
    names = [name.lower() for name, _ in row["kernels"]]
    into, back, slices, swaps = (
        sum(any(part in name for part in parts) for name in names)
        for parts in (CONVERSIONS, ("nhwctonchw",), ("nhwcslice",), ("generictran",))
    )
    if conv.groups > 1:
        if not into + slices + swaps:
            return None if any("winograd" in name for name in names) else "direct"
        copied = max(
            back or (into - back) // 2, slices // 2, swaps // 2
        )  # of each group, where it runs alone
        return "one_by_one" if copied >= conv.groups else "packed"
    copies = conv.copies()
    weight = 0 if conv.is_pointwise and conv.is_aligned else int(copies["w"])  # type: ignore[arg-type]
    x, out = int(copies["x"]), int(copies["o"])  # type: ignore[arg-type]
    written = {"forward": out, "input_gradient": x, "weight_gradient": int(copies["w"])}[phase]  # type: ignore[arg-type]
    part = written * (2 if conv.is_half else 1)
    ways = {"converted": x + weight + out} if into - back else {"as_it_lies": 0}
    if into - back and phase == "forward":
        ways["operands_converted"] = x + weight
    found: list[tuple[int, str]] = []
    is_each = phase == "weight_gradient" and conv.is_pointwise
    most = max(MOST_PARTS, 1 + conv.batch) if is_each else MOST_PARTS
    for name, size in ways.items():
        rest = row["workspace"] - size
        parts = round(rest / part)
        is_whole = abs(rest - parts * part) < 0.01 * (size + parts * part) + NEAR
        if rest > -NEAR and parts < most and is_whole:
            found.append((parts, name))
    if not found:
        return None
    parts, name = min(found)
    is_scalar = any("convolve_sgemm" in name for name, _ in row["kernels"])
    if not parts and name == "as_it_lies" and is_scalar and phase == "forward" and conv.is_pointwise:
        return "scalar"
    if not parts or name != "as_it_lies":
        return f"{name}_split" if parts else name
    return "by_entry" if is_each and abs(parts - conv.batch) <= 0.13 * conv.batch else "split"


def way_of_few(conv: Convolution, held: int) -> str | None:
    """The way that a convolution took whose few channels are last, by its workspace beside PyTorch's copy of the weight."""
    copies, own = conv.copies(), 0 if conv.is_pointwise else conv.weight.nbytes
    is_out = conv.aligned(conv.results) != conv.results and not conv.is_pointwise
    ways = {
        "as_it_lies": 0,
        "copied": conv.x.nbytes + conv.weight.nbytes,
        "padded": copies["x"] + copies["w"] + (copies["o"] if is_out else 0),
    }
    off, name = min((abs(int(held - own - size)), name) for name, size in ways.items())  # type: ignore[arg-type]
    return name if off <= 0.03 * int(conv.x.nbytes + conv.out.nbytes) + NEAR else None  # type: ignore[arg-type]


def tree_of(row: Row) -> str | None:
    """The name of the tree that chooses the way of a pass; None where nothing is chosen."""
    conv = convolution(row)
    if conv.is_depthwise or (conv.is_one_position and conv.groups == 1):
        return None
    if conv.groups > 1:
        return f"groups.{row['phase']}{'.channels_last' if row['last'] else ''}"
    kind = cudnn.KINDS.get(conv.axes) or ("pointwise" if conv.is_pointwise else "window")
    if not row["last"]:
        return f"{row['phase']}.{kind}"
    is_few = kind in ("pointwise", "window") and conv.channels < cudnn.FEW and not conv.transposed
    return f"few_channels.{row['dtype']}" if row["phase"] == "forward" and is_few else None


def fit(rows: list[Row]) -> None:
    """Prints trees of the ways, fitted to four fifths and judged on the rest, with as many leaves as err least on that.

    Sizes of real networks count three times.
    """
    from sklearn.tree import DecisionTreeClassifier

    facts = sorted({part[0] for choice in library("cudnn_9").choices.values() for part in nodes(choice.tree)})
    found: dict[str, list[tuple[list[int], str, int]]] = defaultdict(list)
    for row in rows:
        name = tree_of(row)
        taken = way(row) if name else None
        if name and taken:
            conv = convolution(row)
            weight = _REAL if row["kind"] == "real" else 1
            found[name].append(([int(getattr(conv, fact)) for fact in facts], taken, weight))
    trees = {}
    for name, all_rows in found.items():
        fitted, held = [row for n, row in enumerate(all_rows) if n % 5], all_rows[::5]
        sizes, ways, weights = zip(*fitted, strict=True)
        tried = []
        for leaves in LEAVES:
            model = DecisionTreeClassifier(
                max_leaf_nodes=min(leaves, 1 + len(all_rows) // FEWEST_EACH),
                min_samples_leaf=LEAST_OF_A_LEAF,
                random_state=0,
            )
            model.fit(sizes, ways, sample_weight=weights)
            tried.append((1 - model.score(*[*zip(*held, strict=True)]), leaves, read(model, facts)))
        error, _, tree = min(tried)
        trees[name] = {"measured": len(all_rows), "held_out_error": round(error, 3), "tree": tree}
    print(json.dumps(trees))


def read(model: Any, facts: list[str], place: int = 0) -> Any:
    """A fitted tree as `graphflops/kernels/choices` writes it."""
    tree = model.tree_
    if tree.children_left[place] < 0:
        return str(model.classes_[tree.value[place][0].argmax()])
    below, above = (
        read(model, facts, int(side[place])) for side in (tree.children_left, tree.children_right)
    )
    return below if below == above else [facts[tree.feature[place]], int(tree.threshold[place]), below, above]


def nodes(tree: Any) -> list[Any]:
    return [] if isinstance(tree, str) else [tree, *nodes(tree[2]), *nodes(tree[3])]


def lines_of(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("measure", "judge", "fit"))
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--seconds", type=float, default=110)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("convolutions.jsonl"))
    parser.add_argument("--sizes", type=Path)
    parser.add_argument("--kinds", default=",".join(OFTEN))
    options = parser.parse_args()
    if options.what == "measure":
        sizes = lines_of(options.sizes) if options.sizes else None
        return measure(options.seconds, options.seed, options.output, sizes, options.kinds.split(","))
    rows = lines_of(options.file)
    return judge(rows) if options.what == "judge" else fit(rows)


if __name__ == "__main__":
    main()
