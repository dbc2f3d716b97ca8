"""Time of real models on a GPU against the predictions, for each way to run them.

`python -m benchmarks.time --device h200` builds each model of `later_models.py` and `memory_models.py` with random weights,
in bfloat16 and some in float32, measures it eagerly, an AdamW step, and as a CUDA graph, and prints measured and predicted
milliseconds. Models of the first two tables were never used for constants of kernels, some of the third were.

Eager times depend on the CPU, each core of which is slower by a factor of up to two for tenths of a second at a time, where
other work shares it. So a group of models is measured in rounds, one model after the other, and a time is the least of all
rounds; the column `spread` says by how much the median round took longer, for an inference and a step. Micro-benchmarks in
each round tell how fast the CPU is; the columns `here` are predicted by it.
`--only WORD` runs the models whose name holds the word; `--compiled` measures torch.compile for a few, which takes minutes;
`--limit SECONDS` starts no further group after that time. On an idle H200 all take about six minutes.
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
from functools import partial
from pathlib import Path
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from msgspec.structs import replace
from torch.utils import _pytree as pytree

import graphflops
from benchmarks.drawn_models import DRAWN
from benchmarks.drawn_transformers import DRAWN_AFTER, DRAWN_TRANSFORMERS
from benchmarks.later_models import LATER
from benchmarks.memory_models import HELD_OUT, READ_FROM
from benchmarks.newest_models import NEWEST, NEWEST_FLOAT32
from graphflops.devices import complete, device
from graphflops.runtime.profile.host import host_benchmarks, scaled_host, slowness
from graphflops.runtime.profile.make import encoded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

FLOAT32 = ("resnet50", "gpt2", "deit", "swin", "convnext")  # measured in float32 too
LATER_FLOAT32 = ("gernet", "swinv2_cr", "upscaler", "olmo")
COMPILED = ("resnet18_b1", "gpt2", "vit_b_16", "mobilenet_v2", "llama", "bert")
WAYS = ("eager", "eager here", "graph", "step", "step here", "compiled")
PROCESSES = 3  # one measures, the others export and analyze
GROUP = 8  # models that are on the GPU together
ROUNDS, RUNS = 10, 3  # of each round: runs of a model in each way
MORE_RUNS = 15  # where no rounds are measured
LAST = 90  # seconds that groups which have begun may take after the limit


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


class Row(NamedTuple):
    """One model. slowness: of the host, by the reference. spreads: of the rounds, of an inference and of a step."""

    slowness: float
    spreads: tuple[float, float]
    pairs: dict[str, Pair]


def times_of(run: Callable[[], object], runs: int) -> list[float]:
    """Seconds of synchronised runs."""
    times: list[float] = []
    for _ in range(runs):
        torch.cuda.synchronize()
        start = perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(perf_counter() - start)
    return times


class Subject:
    """A model on the GPU, and the least seconds of each round by way to run it."""

    def __init__(self, name: str) -> None:
        self.name = name
        key, _, dtype = name.partition(" ")
        kind = getattr(torch, dtype or "bfloat16")
        with torch.device("cuda"):
            model, args, kwargs = {
                **READ_FROM,
                **HELD_OUT,
                **LATER,
                **NEWEST,
                **DRAWN,
                **DRAWN_TRANSFORMERS,
                **DRAWN_AFTER,
            }[key]()
        self.model = model.to("cuda", kind).eval()
        for part in self.model.modules():
            if isinstance(part, torch.nn.RNNBase):  # cuDNN has no backward of it otherwise
                part.train()
        place = partial(placed, dtype=kind)
        self.args, self.kwargs = pytree.tree_map_only(torch.Tensor, place, (args, kwargs))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
        self.rounds: dict[str, list[float]] = {"eager": [], "step": []}
        self.seconds: dict[str, float] = {}

    def infer(self) -> object:
        """One inference."""
        with torch.no_grad():
            return self.model(*self.args, **self.kwargs)

    def step(self) -> None:
        """One training step."""
        leaves = pytree.tree_leaves(self.model(*self.args, **self.kwargs))
        sum(x.sum() for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def measure_round(self) -> None:
        """Measure inferences and steps once more."""
        for way, run in (("eager", self.infer), ("step", self.step)):
            self.rounds[way].append(min(times_of(run, RUNS)))

    def measure_rest(self, *, compiled: bool) -> None:
        """Measure the ways that do not wait for the CPU, or compile."""
        self.seconds = {way: min(times) for way, times in self.rounds.items()}
        if compiled and self.name in COMPILED:
            fast = torch.compile(self.model)
            with torch.no_grad():
                self.seconds["compiled"] = statistics.median(
                    times_of(lambda: fast(*self.args, **self.kwargs), MORE_RUNS)
                )
        try:
            self.seconds["graph"] = statistics.median(times_of(graphed(self.infer), MORE_RUNS))
        except RuntimeError:  # a program that waits for the GPU cannot be captured
            torch.cuda.synchronize()
            graphed(partial(torch.zeros, 1, device="cuda"))  # ends what the capture left of random numbers

    @property
    def spreads(self) -> tuple[float, float]:
        """By how much the median round took longer than the fastest, of an inference and of a step."""
        eager, step = (statistics.median(times) / min(times) - 1 for times in self.rounds.values())
        return eager, step


def placed(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """An input on the GPU, in the model's element type where it is a float."""
    return x.to("cuda", dtype) if x.is_floating_point() else x.to("cuda")


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


class Group:
    """Models that are on the GPU together. failed: why a model has no times, by its name. host: micro-benchmarks."""

    def __init__(self, names: Sequence[str], *, compiled: bool) -> None:
        self.names, self.compiled = names, compiled
        self.subjects: dict[str, Subject] = {}
        self.failed: dict[str, str] = {}
        self.host: dict[str, float] = {}

    def measure(self) -> None:
        """Build the models and measure them in rounds."""
        self._each(self._build)
        gc.collect()
        gc.freeze()  # looking through several models for garbage takes longer than through one
        rounds = []
        for _ in range(ROUNDS):
            rounds.append(host_benchmarks("cuda", rounds=5))
            self._each(lambda name: self.subjects[name].measure_round())
        self._each(lambda name: self.subjects[name].measure_rest(compiled=self.compiled))
        self.host = {name: min(each[name] for each in rounds) for name in rounds[0]}

    def _build(self, name: str) -> None:
        subject = self.subjects[name] = Subject(name)
        subject.infer()
        subject.step()

    def _each(self, do: Callable[[str], object]) -> None:
        """Do something with each model; one that fails is left out from then on."""
        for name in self.names:
            if name in self.failed:
                continue
            try:
                do(name)
            except Exception as error:  # noqa: BLE001 a model that this machine's libraries cannot build or run
                self.failed[name] = reason(error)
                self.subjects.pop(name, None)


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


def results(names: Sequence[str], profile: str, alone: Any, *, compiled: bool) -> Iterator[tuple[str, Any]]:
    """Each model of a group with its times, or why it has none. alone: a lock held while measuring."""
    group = Group(names, compiled=compiled)
    with alone:
        group.measure()
    yield from group.failed.items()
    known = complete(device(profile))
    assert known.host is not None
    slow = slowness(group.host, known.host)
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder) / "here.json"
        here.write_bytes(encoded(replace(known, host=scaled_host(known.host, group.host))))
        for name, subject in group.subjects.items():
            try:
                exported = graphflops.capture(subject.model, subject.args, subject.kwargs)
                yield (
                    name,
                    Row(slow, subject.spreads, predicted(exported, subject.seconds, str(here), profile)),
                )
            except Exception as error:  # noqa: BLE001 a model that cannot be exported
                yield name, reason(error)


def reason(error: Exception) -> str:
    """The first line of an error."""
    return str(error).splitlines()[0][:90] if str(error) else repr(error)


def work(names: Sequence[str], shared: Shared, options: argparse.Namespace, ended: float) -> None:
    """Measure group after group until none is left."""
    quiet()
    with shared.alone:  # a process that begins to use the GPU slows the launches of the others
        torch.zeros(1, device="cuda")
    while monotonic() < ended:
        with shared.taken.get_lock():
            place = shared.taken.value
            shared.taken.value += GROUP
        if place >= len(names):
            return
        mine = names[place : place + GROUP]
        for found in results(mine, options.device, shared.alone, compiled=options.compiled):
            shared.done.put(found)
        gc.unfreeze()
        gc.collect()
        torch.cuda.empty_cache()


class Shared(NamedTuple):
    """What the processes share: how many models were taken, a lock held while measuring, and the results."""

    taken: Any
    alone: Any
    done: Any


def rows(names: Sequence[str], options: argparse.Namespace, ended: float) -> Iterator[tuple[str, Any]]:
    """Each model with its times, or why it has none, from processes that are replaced when they die."""
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
    """One table with a line a model, and the errors of all; none where there is no time for it."""
    if monotonic() > ended:
        return
    print(f"\n{title}\n{'model':22} {'host':>5} {'spread':>9}", *(f"{way:>19}" for way in WAYS))
    errors: dict[str, list[Pair]] = {}
    for name, found in rows([name for name in names if options.only in name], options, ended):
        if isinstance(found, str):
            print(f"{name:22} not run: {found}", flush=True)
            continue
        for way, pair in found.pairs.items():
            errors.setdefault(way, []).append(pair)
        spread = " ".join(f"{each:4.0%}" for each in found.spreads)
        cells = (f"{cell(found.pairs.get(way)):>19}" for way in WAYS)
        print(f"{name:22} {found.slowness:5.2f} {spread}", *cells, flush=True)
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
    parser.add_argument("--table", default="", help="a word that a table's title must hold")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--limit", type=float, default=1000.0)
    options = parser.parse_args()
    quiet()
    ended = monotonic() + options.limit
    print(f"measured / predicted milliseconds on {torch.cuda.get_device_name()}, torch {torch.__version__}")
    tables = {
        "drawn at random from transformers once more, never used for any constant": list(DRAWN_AFTER),
        "drawn at random from transformers, constants were fitted to calls like theirs": list(
            DRAWN_TRANSFORMERS
        ),
        "drawn at random from timm, constants were not fitted to them": list(DRAWN),
        "newest models, kernels of some of which constants were fitted to": [
            *NEWEST,
            *(f"{name} float32" for name in NEWEST_FLOAT32),
        ],
        "later models, never used for any constant": [*LATER, *(f"{name} float32" for name in LATER_FLOAT32)],
        "never used for constants of kernels": list(HELD_OUT),
        "constants were fitted to kernels of some of these": [
            *READ_FROM,
            *(f"{name} float32" for name in FLOAT32),
        ],
    }
    for title, names in tables.items():
        if options.table in title:
            table(title, names, options, ended)


if __name__ == "__main__":
    main()
