"""Peak memory of real models run on a GPU, against the predictions.

`python -m benchmarks.memory` builds each model of `memory_models.py` and `later_models.py` in bfloat16 with random weights,
runs it, and compares the peak of requested bytes beyond weights and inputs with what `analyze(..., execution=...)` predicts:
eager inference; a forward with `sum(outputs).backward()`; inference by the exported graph, which frees each value after its
last use; and, with `--compiled`, inference and training under `torch.compile`. The rules of
`memory/` were read from the models of the second table, and from some of the last; none was read from the first.
`--only WORD` runs the models whose name holds the word, `--jobs N` so many at once.
"""

from __future__ import annotations

import argparse
import gc
import logging
import multiprocessing
import os
import platform
import statistics
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

import graphflops
from benchmarks.drawn_models import DRAWN
from benchmarks.later_models import LATER
from benchmarks.memory_models import HELD_OUT, READ_FROM
from benchmarks.newest_models import NEWEST

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphflops.report import Execution

TABLES = {
    "drawn at random, that no rule was read from": DRAWN,
    "newest models, that no rule was read from": NEWEST,
    "later models, that no rule was read from": LATER,
    "models that the rules were read from": READ_FROM,
    "models that most rules were not read from": HELD_OUT,
}
WAYS = ("inference", "training", "graph", "compiled", "compiled training")
Row = dict[str, tuple[int, int]]  # measured and predicted bytes by way


def requested_peak(run: Callable[[], object]) -> int:
    """The most bytes requested of the allocator at once during a run, beyond those before it."""
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    torch.cuda.reset_peak_memory_stats()
    result = run()
    torch.cuda.synchronize()
    peak = torch.cuda.memory_stats()["requested_bytes.all.peak"] - before
    del result
    return int(peak)


def measured(model: torch.nn.Module, args: Any, kwargs: Any) -> tuple[int, int]:
    """Peaks of inference and of forward and backward, once everything is warm."""

    def infer() -> object:
        with torch.no_grad():
            return model(*args, **kwargs)

    def train() -> None:
        leaves = pytree.tree_leaves(model(*args, **kwargs))
        sum(x.sum() for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad).backward()

    peaks = []
    for run in (infer, train):
        for _ in range(2):
            run()
            model.zero_grad(set_to_none=True)
        peaks.append(requested_peak(run))
        model.zero_grad(set_to_none=True)
    return peaks[0], peaks[1]


def graph_peak(program: Any, args: Any, kwargs: Any) -> int:
    """The peak of inference by the exported graph, whose code drops each value after its last use."""
    module = program.module()

    def infer() -> object:
        with torch.no_grad():
            return module(*args, **kwargs)

    infer()
    return requested_peak(infer)


def predicted(program: object, execution: Execution) -> tuple[int, int]:
    """Peaks of inference and of forward and backward from the exported program, inputs not included."""
    training = graphflops.Training(optimizer="none")
    report = graphflops.analyze(program, training=training, execution=execution, device="h200")  # type: ignore[arg-type]
    inputs = sum(int(entry.type.nbytes) for entry in report.inputs)
    step = report.step()
    assert step is not None
    peaks = [report.value(peak) or 0 for peak in (report.totals.peak_bytes, step.peak_bytes)]
    return peaks[0] - inputs, peaks[1] - inputs


def compared(title: str, name: str, *, compiled: bool) -> Row:
    """Measured and predicted peaks of one model."""
    _quiet()
    with torch.device("cuda"):
        model, args, kwargs = TABLES[title][name]()
    model = model.to("cuda", torch.bfloat16).eval()
    for part in model.modules():
        if isinstance(part, torch.nn.RNNBase):  # cuDNN has no backward of it otherwise
            part.train()
    args, kwargs = pytree.tree_map_only(torch.Tensor, _placed, (args, kwargs))
    inference, training = measured(model, args, kwargs)
    program = graphflops.capture(model, args, kwargs)  # moved to meta, tied weights would be two
    eager = predicted(program, "eager")
    row = {"inference": (inference, eager[0]), "training": (training, eager[1])}
    row["graph"] = (graph_peak(program, args, kwargs), predicted(program, "graph")[0])
    if compiled:
        found, expected = measured(torch.compile(model), args, kwargs), predicted(program, "compiled")
        row |= {way: (found[i], expected[i]) for i, way in enumerate(WAYS[3:])}
    return row


def _placed(x: torch.Tensor) -> torch.Tensor:
    return x.to("cuda", torch.bfloat16) if x.is_floating_point() else x.to("cuda")


def _quiet() -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch.autograd.set_multithreading_enabled(False)


def tried(title: str, name: str, *, compiled: bool) -> Row | str:
    """The row of a model, or why there is none."""
    try:
        return compared(title, name, compiled=compiled)
    except Exception as error:  # noqa: BLE001 a model that this machine's libraries cannot build or export
        return str(error).splitlines()[0][:90]
    finally:
        gc.collect()


def table(title: str, options: argparse.Namespace) -> None:
    """One line a model, then the errors of all."""
    ways = WAYS if options.compiled else WAYS[:3]
    print(f"\n{title}\n{'model':16}" + "".join(f"{way:>{_width(way)}} MB{'ratio':>7}" for way in ways))
    names = [name for name in TABLES[title] if options.only in name]
    found: dict[str, list[float]] = {way: [] for way in ways}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, context, max_tasks_per_child=4) as pool:
        rows = pool.map(partial(tried, title, compiled=options.compiled), names)
        for name, row in zip(names, rows, strict=True):
            if isinstance(row, str):
                print(f"{name:16}not run: {row}", flush=True)
                continue
            cells = ""
            for way in ways:
                real, said = row[way]
                cells += f"{real / 1e6:{_width(way) + 3}.2f}{real / said:7.3f}"
                found[way].append(abs(said / real - 1))
            print(f"{name:16}{cells}", flush=True)
    for way, errors in found.items():
        print(_errors(way, sorted(errors)))


def _width(way: str) -> int:
    return max(10, len(way) + 1)


def _errors(way: str, errors: list[float]) -> str:
    if not errors:
        return f"{way}: no model"
    within = [sum(error <= limit for error in errors) for limit in (0.01, 0.03, 0.05, 0.1)]
    return (
        f"{way}: median error {statistics.median(errors):.2%}, worst {errors[-1]:.0%}; "
        f"within 1 / 3 / 5 / 10 %: {' / '.join(map(str, within))} of {len(errors)}"
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="a word that a model's name must hold")
    parser.add_argument("--table", default="", help="a word that a table's title must hold")
    parser.add_argument("--jobs", type=int, default=1, help="models that are measured at once")
    parser.add_argument("--compiled", action="store_true", help="torch.compile too, which takes minutes")
    options = parser.parse_args()
    device = torch.cuda.get_device_name()
    print(
        f"{device}, torch {torch.__version__.partition('+')[0]}, Python {platform.python_version()}, bfloat16"
    )
    print("peak of requested bytes beyond weights and inputs; ratio: measured / predicted")
    for title in TABLES:
        if options.table in title:
            table(title, options)


if __name__ == "__main__":
    main()
