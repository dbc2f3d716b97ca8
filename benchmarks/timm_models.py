"""Predicted against measured times of timm's models on a device: the tables in `benchmarks/measured/models`.

`python -m benchmarks.timm_models` (needs timm) exports each model in float16 without weights, at the batch of its row,
predicts its time on an RTX 4090 and prints the errors. `--fit` also fits the profile's `family_ratios` to half of the
models, judges them on the other half, and prints those fitted to all. The 219 models take about half an hour;
`--only WORD` takes those whose name holds the word, `--exports FOLDER` keeps the exports for the next time.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import tempfile
import warnings
from collections import defaultdict
from contextlib import suppress
from hashlib import md5
from math import exp, log
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from graphflops.analysis import as_graph
from graphflops.devices import complete, device, platform_of
from graphflops.execution.runs import Runs
from graphflops.inductor.plan import Plans
from graphflops.kernels.kernel import bytes_of
from graphflops.passes.attention import find_attentions
from graphflops.passes.bind import bind
from graphflops.passes.price import price
from graphflops.time.compiled import CompiledLauncher
from graphflops.time.launches import Launcher
from graphflops.time.predict import names_of_constants, predict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from graphflops.graph import Graph
    from graphflops.kernels.kernel import Kernel

TABLES = Path(__file__).parent / "measured" / "models"
NEAR, PULL = 0.05, 0.3  # of logarithms of errors, and how much those of ratios are held together
STEPS = (*[0.3] * 6, *[0.1] * 6, *[0.03] * 6)  # of logarithms of ratios


class Row(NamedTuple):
    """A model, its measured seconds, and those of its kernels by family: without ratios, and at the peak."""

    model: str
    execution: str
    measured: float
    kernels: Mapping[str, Sequence[tuple[float, float]]]

    def error(self, ratios: Mapping[str, float]) -> float:
        """Relative error of the prediction with ratios by family."""
        parts = self.kernels.items()
        total = sum(max(own * ratios[family], peak) for family, each in parts for own, peak in each)
        return total / self.measured - 1


def exported(model: str, size: int, batch: int, folder: Path) -> Graph:
    """The graph of a model of timm, in float16 and without weights. folder: where its export is or will be."""
    import timm
    import torch

    path = folder / f"{model}-{size}-{batch}.pt2"
    if path.exists():
        return as_graph(path)
    with torch.device("meta"), torch.no_grad():
        module = timm.create_model(model)
        if module.default_cfg["input_size"][-1] != size:
            with suppress(TypeError):  # one of any size
                module = timm.create_model(model, img_size=size)
        images = torch.empty(batch, 3, size, size, dtype=torch.float16)
        program = torch.export.export(module.half().eval(), (images,), strict=False)
        torch.export.save(program, path)
    return as_graph(path)


def launcher(graph: Graph, execution: str) -> Launcher:
    """The program as it runs under an execution."""
    program = find_attentions(price(graph, bind(graph, {}, {})), {})
    known = complete(device("rtx4090"))
    host, platform = known.host, platform_of(known)
    assert host is not None
    if execution == "compiled":
        return CompiledLauncher(program, {}, Plans(program, platform), host.seconds)
    return Launcher(program, {}, Runs(program.attentions, platform, is_eager=True), host.seconds)


def rows(only: str, folder: Path) -> Iterator[Row]:
    """The rows of the tables with the kernels of their models."""
    known = complete(device("rtx4090"))
    plain, least = (replace(known, family_ratios={"other": ratio}) for ratio in (1.0, 1e-6))
    for execution in ("eager", "compiled"):
        with (TABLES / f"rtx4090_timm_{execution}.csv").open(newline="") as file:
            for row in csv.DictReader(file):
                if only not in row["model"]:
                    continue
                graph = exported(row["model"], int(row["size"]), int(row["batch"]), folder)
                found: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
                for launch in launcher(graph, execution).forward(records=False):
                    for kernel in launch.kernels or ():
                        own, peak = (predict(kernel, each).seconds * launch.times for each in (plain, least))
                        found[family(kernel, known.family_ratios)].append((own, peak))
                yield Row(row["model"], execution, float(row["milliseconds"]) * 1e-3, found)


def family(kernel: Kernel, ratios: Mapping[str, float]) -> str:
    """The family in a profile that a kernel belongs to."""
    names = names_of_constants(kernel, bytes_of(kernel.dtype))
    return next((name for name in names if name in ratios), "other")


def fitted(known: Sequence[Row], families: Iterable[str]) -> dict[str, float]:
    """The ratios that make the logarithms of the errors small, one after the other in smaller and smaller steps.

    What few rows tell is held by the other families: a ratio far from their median costs as much as errors do.
    """
    ratios = dict.fromkeys(families, 1.0)

    def badness() -> float:
        middle = log(statistics.median(ratios.values()))
        apart = sum((log(ratio) - middle) ** 2 for ratio in ratios.values())
        return PULL * apart + sum((log(1 + row.error(ratios)) ** 2 + NEAR**2) ** 0.5 for row in known)

    best = badness()
    for step in STEPS:
        for name in ratios:
            for factor in (exp(step), exp(-step)):
                ratios[name] *= factor
                if (now := badness()) < best:
                    best = now
                else:
                    ratios[name] /= factor
    return ratios


def line(name: str, errors: Sequence[float]) -> str:
    """The errors of a table as a line."""
    found = [abs(error) for error in errors] or [0.0]
    middle, mean, worst = statistics.median(found), statistics.mean(found), max(found)
    return f"{name:<40} {len(errors):>6} {middle:>8.1%} {mean:>8.1%} {worst:>8.0%}"


def print_errors(found: Sequence[Row], *, fits: bool) -> None:
    """A line for each table, and with `fits` one by the ratios of other models."""
    ratios = device("rtx4090").family_ratios
    halves = [[row for row in found if md5(row.model.encode()).digest()[0] % 2 == half] for half in (0, 1)]
    by_others = (
        list(zip([fitted(half, ratios) for half in halves], reversed(halves), strict=True)) if fits else []
    )
    print(f"{'table':<40} {'models':>6} {'median':>8} {'mean':>8} {'worst':>8}")
    for execution in ("eager", "compiled"):
        errors = [row.error(ratios) for row in found if row.execution == execution]
        print(line(f"rtx4090 timm {execution}", errors))
        if fits:
            crossed = [
                (row, fit) for fit, others in by_others for row in others if row.execution == execution
            ]
            print(
                line(f"rtx4090 timm {execution}, by other models", [row.error(fit) for row, fit in crossed])
            )
    if fits:
        print(json.dumps({name: round(value, 2) for name, value in fitted(found, ratios).items()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help="models whose name holds this word")
    parser.add_argument("--fit", action="store_true", help="fit the ratios of families")
    parser.add_argument("--exports", type=Path, help="folder to keep the exports in")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        found = list(rows(given.only, given.exports or Path(folder)))
    print_errors(found, fits=given.fit)


if __name__ == "__main__":
    main()
