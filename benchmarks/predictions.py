"""What is predicted for many models, before a change and after it; no GPU is needed.

    python -m benchmarks.predictions export FOLDER              # once: programs of memory_models.py and later_models.py
    python -m benchmarks.predictions predict FOLDER before.json --checkout OTHER   # by the graphflops of another checkout
    python -m benchmarks.predictions predict FOLDER after.json                     # by this one
    python -m benchmarks.predictions compare before.json after.json --percent 2

`export` needs torch, and what the models come from (torchvision, timm, transformers). The files keep the lines of
code, not the weights. `predict` writes for each file the peaks in bytes beyond its inputs (inference, training,
graph, compiled, compiled training) and the times in seconds (graph, eager, step, compiled). `compare` prints what
moved by more than a percentage, and the errors of both against what was measured on an H200
(`benchmarks/results/memory.txt`, `time.txt`), with the releases of its day. `--only WORD` takes the models whose name
holds the word.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import multiprocessing
import os
import re
import statistics
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

DEVICE = "h200"
SECONDS = 60  # that one model may take to export
LIBRARIES = ("torchvision", "timm", "transformers")
RESULTS = Path(__file__).parent / "results"
FLOAT32 = ("gernet", "swinv2_cr", "upscaler", "olmo")  # measured in float32 too
PEAKS = ("inference", "training", "graph", "compiled", "compiled training")
TIMES = ("graph", "eager", "step", "compiled")
WAYS = (*(f"memory {way}" for way in PEAKS), *(f"time {way}" for way in TIMES))
Figures = dict[str, dict[str, float]]  # by program, by way


def export(folder: Path, only: str) -> None:
    """Write each model as a program, in bfloat16 and some in float32; each has its own process, which may be ended."""
    from benchmarks.later_models import LATER
    from benchmarks.memory_models import HELD_OUT, READ_FROM

    folder.mkdir(parents=True, exist_ok=True)
    names = [*LATER, *READ_FROM, *HELD_OUT, *(f"{name} float32" for name in FLOAT32)]
    missing = [name for name in names if only in name and not (folder / f"{name}.pt2").exists()]
    for library in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(library)  # once, not in each process
    context = multiprocessing.get_context("fork")
    for name in missing:
        process = context.Process(target=_export, args=(name, folder / f"{name}.pt2"))
        process.start()
        process.join(SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
            print(f"{name:22} not exported in {SECONDS} s", flush=True)


def _export(name: str, path: Path) -> None:
    import torch

    import graphflops
    from benchmarks.later_models import LATER
    from benchmarks.memory_models import HELD_OUT, READ_FROM

    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    key, _, dtype = name.partition(" ")
    kind = getattr(torch, dtype or "bfloat16")
    try:
        _leave_weights_unset()
        model, *given = {**READ_FROM, **HELD_OUT, **LATER}[key]()
        model = model.to(kind).eval()
        for part in model.modules():
            if isinstance(part, torch.nn.RNNBase):  # as it was measured
                part.train()
        args, kwargs = torch.utils._pytree.tree_map_only(
            torch.Tensor, lambda x: x.to(kind) if x.is_floating_point() else x, tuple(given)
        )
        program = graphflops.capture(model, args, kwargs)
        _drop_weights(program)
        program.example_inputs = None
        part_of = path.with_suffix(".part.pt2")
        torch.export.save(program, part_of)
        part_of.rename(path)
    except Exception as error:  # noqa: BLE001 a model that these libraries cannot build or export
        print(f"{name:22} not exported: {(str(error) or repr(error)).splitlines()[0][:90]}", flush=True)


def _leave_weights_unset() -> None:
    """Random weights take longer than everything else."""
    import torch

    def unset(x: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        return x

    for name in dir(torch.nn.init):
        if name.endswith("_") and not name.startswith("_"):
            setattr(torch.nn.init, name, unset)
    for name in ("normal_", "uniform_", "trunc_normal_"):
        if hasattr(torch.Tensor, name):
            setattr(torch.Tensor, name, unset)


def _drop_weights(program: torch.export.ExportedProgram) -> None:
    """Parameters get no memory; those that share it still do. Buffers keep their contents, which may be masks."""
    import torch

    empty: dict[Any, torch.Tensor] = {}
    for name, weight in program.state_dict.items():
        if isinstance(weight, torch.nn.Parameter):
            key = weight.untyped_storage()._cdata, weight.storage_offset(), weight.shape, weight.stride()
            if key not in empty:
                empty[key] = torch.nn.Parameter(weight.to("meta"), weight.requires_grad)
            program.state_dict[name] = empty[key]


def predict(folder: Path, only: str) -> Figures:
    """The figures of every program of a folder by the graphflops that Python finds."""
    import graphflops

    print(f"predicted by {Path(graphflops.__file__).parent}", file=sys.stderr)
    found: Figures = {}
    for path in sorted(folder.glob("*.pt2")):
        if only in path.stem and not path.stem.endswith(".part"):
            found[path.stem] = dict(_predicted(str(path)))
            gc.collect()
    return found


def _predicted(path: str) -> Iterator[tuple[str, float]]:
    from graphflops import Training, analyze

    without_update = Training(optimizer="none")
    for name, execution in (("", "eager"), ("graph", "graph"), ("compiled", "compiled")):
        report = analyze(path, training=without_update, execution=execution, device=DEVICE)  # type: ignore[arg-type]
        inputs = sum(int(entry.type.nbytes) for entry in report.inputs)
        step = report.step()
        assert step is not None
        yield f"memory {name or 'inference'}", (report.value(report.totals.peak_bytes) or 0) - inputs
        if name != "graph":
            yield f"memory {name} training".replace("  ", " "), (report.value(step.peak_bytes) or 0) - inputs
    for way in TIMES:
        execution = "eager" if way == "step" else way
        report = analyze(path, device=DEVICE, execution=execution, training=way == "step")  # type: ignore[arg-type]
        time = report.step_time if way == "step" else report.totals.time
        if time is not None:
            yield f"time {way}", time.seconds


def measured() -> Figures:
    """What was measured, in bytes and seconds, from the tables that benchmarks/memory.py and time.py have printed."""
    found: Figures = {}
    for line in (RESULTS / "memory.txt").read_text().splitlines():
        match = re.match(r"(\S+?)\s*((?:\s+[\d.]+){6})$", line)
        if match:
            cells = [1e6 * float(cell) for cell in match[2].split()[::2]]
            row = found.setdefault(match[1], {})
            row |= {f"memory {way}": cell for way, cell in zip(PEAKS, cells, strict=False)}
    columns = ("eager", "eager here", "graph", "step", "step here", "compiled")
    for line in (RESULTS / "time.txt").read_text().splitlines():
        cells = [line[39 + 20 * place : 59 + 20 * place] for place in range(len(columns))]
        for way, cell in zip(columns, cells, strict=True):
            if "/" in cell and not way.endswith("here") and line[23:28].strip()[:1].isdigit():
                found.setdefault(line[:22].strip(), {})[f"time {way}"] = float(cell.split("/")[0]) / 1e3
    return found


def compare(before: Figures, after: Figures, percent: float) -> None:
    """Print what moved, what is missing, and the errors of both."""
    real = measured()
    for way in WAYS:
        for name in sorted(before.keys() & after.keys()):
            old, new = before[name].get(way), after[name].get(way)
            if old is None or new is None:
                if old != new:
                    print(f"{way:26} {name:22} only in the {'later' if old is None else 'earlier'} file")
            elif abs(new - old) * 100 > percent * abs(old):
                known = real.get(name, {}).get(way)
                errors = "" if known is None else f"   error {old / known - 1:+.1%} -> {new / known - 1:+.1%}"
                moved = f"{new / old - 1:+.1%}" if old else "from zero"
                print(f"{way:26} {name:22} {_text(way, old)} -> {_text(way, new)}  {moved}{errors}")
    for name in sorted(before.keys() ^ after.keys()):
        print(f"{name}: only in the {'later' if name in after else 'earlier'} file")
    print(f"\n{'errors against measured':26} {'programs':>8} {'mean':>16} {'median':>16} {'worst':>16}")
    for way in WAYS:
        names = [name for name in real if all(way in table.get(name, {}) for table in (real, before, after))]
        if names:
            pairs = [_errors(table, real, way, names) for table in (before, after)]
            cells = (
                f"{of(pairs[0]):.2%} -> {of(pairs[1]):.2%}"
                for of in (statistics.mean, statistics.median, max)
            )
            print(f"{way:26} {len(names):8}", *(f"{cell:>16}" for cell in cells))


def _errors(
    predicted: Mapping[str, Mapping[str, float]], real: Figures, way: str, names: list[str]
) -> list[float]:
    return [abs(predicted[name][way] / real[name][way] - 1) for name in names]


def _text(way: str, figure: float) -> str:
    return f"{figure / 1e6:.2f} MB" if way.startswith("memory") else f"{figure * 1e3:.3f} ms"


def main() -> None:
    """Exports, predicts, or compares."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("export", "predict", "compare"))
    parser.add_argument("first", type=Path, help="the folder of programs; the earlier file")
    parser.add_argument("second", type=Path, nargs="?", help="the file to write; the later file")
    parser.add_argument("--only", default="", help="a word that a model's name must hold")
    parser.add_argument("--checkout", default="", help="the folder of the graphflops that predicts")
    parser.add_argument("--percent", type=float, default=2.0, help="what moved by more is printed")
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    if options.what == "export":
        export(options.first, options.only)
    elif options.second is None:
        parser.error(f"{options.what} needs a second path")
    elif options.what == "predict":
        sys.path[:0] = [options.checkout] if options.checkout else []
        options.second.write_text(json.dumps(predict(options.first, options.only), indent=1))
    else:
        files = [json.loads(path.read_text()) for path in (options.first, options.second)]
        compare(*files, options.percent)


if __name__ == "__main__":
    main()
