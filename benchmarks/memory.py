"""Peak memory of real models run eagerly on a GPU, against both predictions.

`python -m benchmarks.memory` builds each model of `memory_models.py` in bfloat16 with random weights, runs it, and compares
the peak of requested bytes beyond weights and inputs with `analyze(..., execution="graph")` and `execution="eager"`: for
inference, and for a forward with `sum(outputs).backward()`. The rules in `graphflops/memory` were read from the models of
the first table; those of the second were never used for them. `--only WORD` runs the models whose name holds the word.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import platform
import statistics
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

import graphflops
from benchmarks.memory_models import HELD_OUT, READ_FROM

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.memory_models import Built

Pair = tuple[float, float]  # measured / predicted, by `graph` and by `eager`


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


def predicted(program: object, execution: str) -> tuple[int, int]:
    """The same peaks from the exported program, inputs not included."""
    report = graphflops.analyze(program, training=True, execution=execution)  # type: ignore[arg-type]
    inputs = sum(int(entry.type.nbytes) for entry in report.inputs)
    step = report.step()
    assert step is not None
    peaks = [report.value(peak) or 0 for peak in (report.totals.peak_bytes, step.peak_bytes)]
    return peaks[0] - inputs, peaks[1] - inputs


def compared(built: Built) -> tuple[Pair, Pair, int, int]:
    """Measured over predicted for inference and for training, and what was measured."""
    with torch.device("cuda"):
        model, args, kwargs = built()
    model = model.to("cuda", torch.bfloat16).eval()
    for part in model.modules():
        if isinstance(part, torch.nn.RNNBase):  # cuDNN has no backward of it otherwise
            part.train()
    args, kwargs = pytree.tree_map_only(torch.Tensor, lambda x: x.to("cuda"), (args, kwargs))
    inference, training = measured(model, args, kwargs)
    program = graphflops.capture(model, args, kwargs)  # moved to meta, tied weights would be two
    graph, eager = predicted(program, "graph"), predicted(program, "eager")
    pairs = [(real / graph[i], real / eager[i]) for i, real in enumerate((inference, training))]
    return pairs[0], pairs[1], inference, training


def table(title: str, models: Mapping[str, Built], only: str) -> None:
    """One line a model, then the errors of all."""
    print(f"\n{title}")
    print(
        f"{'model':14}{'inference MB':>13}{'graph':>8}{'eager':>8}{'fwd+bwd MB':>13}{'graph':>8}{'eager':>8}"
    )
    found: list[tuple[Pair, Pair]] = []
    for name, built in models.items():
        if only not in name:
            continue
        try:
            first, second, inference, training = compared(built)
        except Exception as error:  # noqa: BLE001 a model that this machine's libraries cannot build or export
            print(f"{name:14}not run: {str(error).splitlines()[0][:90]}", flush=True)
            continue
        found.append((first, second))
        figures = f"{inference / 1e6:13.2f}{first[0]:8.3f}{first[1]:8.3f}"
        print(f"{name:14}{figures}{training / 1e6:13.2f}{second[0]:8.3f}{second[1]:8.3f}", flush=True)
        gc.collect()
        torch.cuda.empty_cache()
    for what, place in (("inference", 0), ("forward and backward", 1)):
        for way, which in (("graph", 0), ("eager", 1)):
            errors = sorted(abs(1 / row[place][which] - 1) for row in found)
            if errors:
                within = [sum(error <= limit for error in errors) for limit in (0.01, 0.03, 0.05)]
                print(
                    f"{what}, {way}: median error {statistics.median(errors):.2%}, worst {errors[-1]:.0%}; "
                    f"within 1 / 3 / 5 %: {' / '.join(map(str, within))} of {len(errors)}"
                )


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="a word that a model's name must hold")
    only = parser.parse_args().only
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch.autograd.set_multithreading_enabled(False)
    device = torch.cuda.get_device_name()
    print(
        f"{device}, torch {torch.__version__.partition('+')[0]}, Python {platform.python_version()}, bfloat16"
    )
    print("measured: peak of requested bytes beyond weights and inputs; graph, eager: measured / predicted")
    table("models that the rules were read from", READ_FROM, only)
    table("models that were never used", HELD_OUT, only)


if __name__ == "__main__":
    main()
