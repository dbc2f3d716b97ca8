"""Time of real models on a GPU against the predictions, for each way to run them.

`python -m benchmarks.time --device h200` builds each model of `later_models.py` and `memory_models.py` with random weights,
in bfloat16 and some in float32, measures it eagerly, an AdamW step, and as a CUDA graph, and prints measured and predicted
milliseconds. Eager times depend on the CPU: micro-benchmarks before and after each model tell how fast it is, and the
columns `here` are predicted by it. Models of the first two tables were never used for constants of kernels, some of the
third were.
`--only WORD` runs the models whose name holds the word; `--compiled` measures torch.compile for a few, which takes minutes;
`--limit SECONDS` starts no further model after that time. On an idle H200 all take about six minutes.
"""

from __future__ import annotations

import argparse
import gc
import logging
import multiprocessing
import os
import queue
import statistics
import tempfile
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

import graphflops
from benchmarks.later_models import LATER
from benchmarks.memory_models import HELD_OUT, READ_FROM
from graphflops.devices import complete, device
from graphflops.runtime.profile.host import host_benchmarks, scaled_host, slowness
from graphflops.runtime.profile.make import encoded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

FLOAT32 = ("resnet50", "gpt2", "deit", "swin", "convnext")  # measured in float32 too
LATER_FLOAT32 = ("resnet101", "caformer", "unet3d", "phi")
COMPILED = ("resnet18_b1", "gpt2", "vit_b_16", "mobilenet_v2", "llama", "bert")
WAYS = ("eager", "eager here", "graph", "step", "step here", "compiled")
PROCESSES = 3  # one measures, the others export and analyze
LAST = 90  # seconds that models which have begun may take after the limit
LEAST, MOST, BUDGET = 7, 30, 0.2  # runs of one measurement, and about how many seconds it takes


class Pair(NamedTuple):
    """Measured seconds, and the prediction with its interval."""

    measured: float
    predicted: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return abs(self.predicted / self.measured - 1)

    @property
    def is_covered(self) -> bool:
        """Whether the interval holds the measured time."""
        return self.low <= self.measured <= self.high


def median_seconds(run: Callable[[], object]) -> float:
    """Median of synchronised runs, once everything is warm."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    times: list[float] = []
    while len(times) < LEAST or (len(times) < MOST and sum(times) < BUDGET):
        torch.cuda.synchronize()
        start = perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(perf_counter() - start)
    return statistics.median(times)


def graphed(run: Callable[[], object]) -> Callable[[], None]:
    """The run as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    replay: Callable[[], None] = graph.replay
    return replay


def measured(
    model: torch.nn.Module, args: Any, kwargs: Any, *, compiled: bool
) -> tuple[dict[str, float], Any]:
    """Seconds by way to run, and those of the host's micro-benchmarks meanwhile.

    The CUDA graph is the last: a capture that fails breaks the random numbers of the process.
    """

    def infer() -> object:
        with torch.no_grad():
            return model(*args, **kwargs)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step() -> None:
        leaves = pytree.tree_leaves(model(*args, **kwargs))
        sum(x.sum() for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    before = host_benchmarks("cuda", rounds=3)
    found = {"eager": median_seconds(infer), "step": median_seconds(step)}
    after = host_benchmarks("cuda", rounds=3)
    if compiled:
        fast = torch.compile(model)
        with torch.no_grad():
            found["compiled"] = median_seconds(lambda: fast(*args, **kwargs))
    try:
        found["graph"] = median_seconds(graphed(infer))
    except RuntimeError:  # a program that waits for the GPU cannot be captured
        torch.cuda.synchronize()
    return found, {name: (before[name] + after[name]) / 2 for name in before}


def predicted(exported: Any, seconds: dict[str, float], here: str, name: str) -> dict[str, Pair]:
    """The measured times beside the predicted ones. name: of the device. here: its profile with the host as it is now."""
    pairs = {}
    for way in WAYS:
        kind, _, where = way.partition(" ")
        if kind not in seconds:
            continue
        execution: Any = "eager" if kind == "step" else kind
        profile = here if where else name
        report = graphflops.analyze(exported, device=profile, execution=execution, training=kind == "step")
        found = report.step_time or report.totals.time
        assert found is not None
        pairs[way] = Pair(seconds[kind], found.seconds, found.low, found.high)
    return pairs


def row(name: str, profile: str, alone: Any, *, compiled: bool) -> tuple[float, dict[str, Pair]]:
    """How much slower the host is than the reference, and the times of one model. alone: a lock held while measuring."""
    key, _, dtype = name.partition(" ")
    kind = getattr(torch, dtype or "bfloat16")
    with alone:
        with torch.device("cuda"):
            model, args, kwargs = {**READ_FROM, **HELD_OUT, **LATER}[key]()
        model = model.to("cuda", kind).eval()
        for part in model.modules():
            if isinstance(part, torch.nn.RNNBase):  # cuDNN has no backward of it otherwise
                part.train()
        args, kwargs = pytree.tree_map_only(torch.Tensor, partial(placed, dtype=kind), (args, kwargs))
        seconds, benchmarks = measured(model, args, kwargs, compiled=compiled and name in COMPILED)
    known = complete(device(profile))
    assert known.host is not None
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder) / "here.json"
        here.write_bytes(encoded(replace(known, host=scaled_host(known.host, benchmarks))))
        exported = graphflops.capture(model, args, kwargs)  # moved to meta, tied weights would be two
        return slowness(benchmarks, known.host), predicted(exported, seconds, str(here), profile)


def placed(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """An input on the GPU, in the model's element type where it is a float."""
    return x.to("cuda", dtype) if x.is_floating_point() else x.to("cuda")


def work(names: Sequence[str], shared: Shared, options: argparse.Namespace, ended: float) -> None:
    """Measure models until none is left; a process in which a capture failed ends."""
    quiet()
    with shared.alone:  # a process that begins to use the GPU slows the launches of the others
        torch.zeros(1, device="cuda")
    while monotonic() < ended:
        with shared.taken.get_lock():
            place = shared.taken.value
            shared.taken.value += 1
        if place >= len(names):
            return
        try:
            found = row(names[place], options.device, shared.alone, compiled=options.compiled)
        except Exception as error:  # noqa: BLE001 a model that this machine's libraries cannot build or export
            shared.done.put((names[place], str(error).splitlines()[0][:90] if str(error) else repr(error)))
            return
        shared.done.put((names[place], found))
        if "graph" not in found[1]:
            return
        gc.collect()
        torch.cuda.empty_cache()


class Shared(NamedTuple):
    """What the processes share: how many models were taken, a lock held while measuring, and the results."""

    taken: Any
    alone: Any
    done: Any


def rows(names: Sequence[str], options: argparse.Namespace, ended: float) -> Iterator[tuple[str, Any]]:
    """Each model with its times, or why it has none, from processes that are replaced when they end."""
    context = multiprocessing.get_context("spawn")
    shared = Shared(context.Value("i", 0), context.Lock(), context.Queue())
    running: list[Any] = []
    while True:
        running = [process for process in running if process.is_alive()]
        is_done = shared.taken.value >= len(names) or monotonic() > ended
        while len(running) < (0 if is_done else PROCESSES):
            running.append(context.Process(target=work, args=(names, shared, options, ended), daemon=True))
            running[-1].start()
        try:
            yield shared.done.get(timeout=1)
        except queue.Empty:
            if (is_done and not running) or monotonic() > ended + LAST:
                return


def table(title: str, names: Sequence[str], options: argparse.Namespace, ended: float) -> None:
    """One table with a line a model, and the errors of all."""
    print(f"\n{title}\n{'model':22} {'host':>5}", *(f"{way:>19}" for way in WAYS))
    errors: dict[str, list[Pair]] = {}
    for name, found in rows([name for name in names if options.only in name], options, ended):
        if isinstance(found, str):
            print(f"{name:22} not run: {found}", flush=True)
            continue
        slow, pairs = found
        for way, pair in pairs.items():
            errors.setdefault(way, []).append(pair)
        print(f"{name:22} {slow:5.2f}", *(f"{cell(pairs.get(way)):>19}" for way in WAYS), flush=True)
    for way in WAYS:
        if every := errors.get(way):
            print(summary(way, every))


def cell(pair: Pair | None) -> str:
    """Measured and predicted milliseconds."""
    return "" if pair is None else f"{pair.measured * 1e3:.3f} / {pair.predicted * 1e3:.3f}"


def summary(way: str, pairs: Sequence[Pair]) -> str:
    """Errors of all models run in one way."""
    every = [pair.error for pair in pairs]
    held = sum(pair.is_covered for pair in pairs) / len(pairs)
    signed = statistics.median(pair.predicted / pair.measured - 1 for pair in pairs)
    return (
        f"{way:10} {len(pairs):3} models: mean error {statistics.mean(every):.1%}, median {statistics.median(every):.1%} "
        f"({signed:+.1%} signed), worst {max(every):.0%}; intervals hold {held:.0%}"
    )


def quiet() -> None:
    """No warnings and no downloads of the libraries that models come from."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    os.environ["HF_HUB_OFFLINE"] = "1"


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="h200")
    parser.add_argument("--only", default="")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--limit", type=float, default=1000.0)
    options = parser.parse_args()
    quiet()
    ended = monotonic() + options.limit
    print(f"measured / predicted milliseconds on {torch.cuda.get_device_name()}, torch {torch.__version__}")
    later = [*LATER, *(f"{name} float32" for name in LATER_FLOAT32)]
    table("later models, never used for any constant", later, options, ended)
    table("never used for constants of kernels", list(HELD_OUT), options, ended)
    known = [*READ_FROM, *(f"{name} float32" for name in FLOAT32)]
    table("constants were fitted to kernels of some of these", known, options, ended)


if __name__ == "__main__":
    main()
