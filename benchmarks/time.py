"""Time of real models on a GPU against the predictions, for each way to run them.

`python -m benchmarks.time --device h200` builds each model of `memory_models.py` with random weights, in bfloat16 and some
in float32, measures it eagerly, as a CUDA graph and under `torch.compile`, and an AdamW step, and prints measured and
predicted milliseconds. Constants were fitted to models of the first table; those of the second were never used for them.
`--only WORD` runs the models whose name holds the word; `--compiled` adds torch.compile, which takes minutes.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import statistics
import warnings
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

import graphflops
from benchmarks.memory_models import HELD_OUT, READ_FROM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from benchmarks.memory_models import Built

FLOAT32 = ("resnet50", "gpt2", "deit", "swin", "convnext")  # measured in float32 too
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


def measured(model: torch.nn.Module, args: Any, kwargs: Any, *, compiled: bool) -> dict[str, float]:
    """Seconds by way to run."""

    def infer() -> object:
        with torch.no_grad():
            return model(*args, **kwargs)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step() -> None:
        leaves = pytree.tree_leaves(model(*args, **kwargs))
        sum(x.sum() for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    found = {"eager": median_seconds(infer)}
    try:
        found["graph"] = median_seconds(graphed(infer))
    except RuntimeError:  # a program that waits for the GPU cannot be captured
        torch.cuda.synchronize()
    found["step"] = median_seconds(step)
    if compiled:
        fast = torch.compile(model)

        def infer_fast() -> object:
            with torch.no_grad():
                return fast(*args, **kwargs)

        found["compiled"] = median_seconds(infer_fast)
    return found


def predicted(
    model: torch.nn.Module, args: Any, kwargs: Any, device: str, ways: Mapping[str, float]
) -> dict[str, Pair]:
    """The measured times beside the predicted ones."""
    exported = graphflops.capture(model, args, kwargs)  # moved to meta, tied weights would be two
    pairs = {}
    for way, seconds in ways.items():
        execution: Any = "eager" if way == "step" else way
        report = graphflops.analyze(exported, device=device, execution=execution, training=way == "step")
        found = report.step_time or report.totals.time
        assert found is not None
        pairs[way] = Pair(seconds, found.seconds, found.low, found.high)
    return pairs


def rows(
    models: Mapping[str, Built], only: str, device: str, *, compiled: bool
) -> Iterator[tuple[str, dict[str, Pair]]]:
    """Each model with its times, in bfloat16, and some in float32."""
    for name, built in models.items():
        for dtype in (torch.bfloat16, torch.float32):
            if only not in name or (dtype is torch.float32 and name not in FLOAT32):
                continue
            try:
                found = row(built, dtype, device, compiled=compiled)
            except Exception as error:  # noqa: BLE001 a model that this machine's libraries cannot build or export
                print(f"{name:22} not run: {str(error).splitlines()[0][:90]}", flush=True)
                continue
            yield f"{name}{' float32' if dtype is torch.float32 else ''}", found
            gc.collect()
            torch.cuda.empty_cache()


def row(built: Built, dtype: torch.dtype, device: str, *, compiled: bool) -> dict[str, Pair]:
    """The times of one model in one element type."""
    with torch.device("cuda"):
        model, args, kwargs = built()
    model = model.to("cuda", dtype).eval()
    for part in model.modules():
        if isinstance(part, torch.nn.RNNBase):  # cuDNN has no backward of it otherwise
            part.train()
    args, kwargs = pytree.tree_map_only(torch.Tensor, partial(placed, dtype=dtype), (args, kwargs))
    return predicted(model, args, kwargs, device, measured(model, args, kwargs, compiled=compiled))


def placed(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """An input on the GPU, in the model's element type where it is a float."""
    return x.to("cuda", dtype) if x.is_floating_point() else x.to("cuda")


def table(title: str, models: Mapping[str, Built], options: argparse.Namespace) -> None:
    """One table with a line a model, and the errors of all."""
    print(f"\n{title}\n{'model':22}", *(f"{way:>22}" for way in ("eager", "graph", "step", "compiled")))
    errors: dict[str, list[Pair]] = {}
    for name, pairs in rows(models, options.only, options.device, compiled=options.compiled):
        cells = []
        for way in ("eager", "graph", "step", "compiled"):
            pair = pairs.get(way)
            errors.setdefault(way, []).extend([pair] if pair else [])
            text = "" if pair is None else f"{pair.measured * 1e3:.3f} / {pair.predicted * 1e3:.3f}"
            cells.append(f"{text:>22}")
        print(f"{name:22}", *cells, flush=True)
    for way, found in errors.items():
        if found:
            every = [pair.error for pair in found]
            held = sum(pair.is_covered for pair in found) / len(found)
            middle = statistics.median(every)
            mean, worst = statistics.mean(every), max(every)
            print(
                f"{way}: mean error {mean:.1%}, median {middle:.1%}, worst {worst:.0%}; intervals hold {held:.0%}"
            )


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="h200")
    parser.add_argument("--only", default="")
    parser.add_argument("--compiled", action="store_true")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    os.environ["HF_HUB_OFFLINE"] = "1"
    print(f"measured / predicted milliseconds on {torch.cuda.get_device_name()}, torch {torch.__version__}")
    table("constants were fitted to kernels of some of these", READ_FROM, options)
    table("never used for fitting", HELD_OUT, options)


if __name__ == "__main__":
    main()
