"""Real models, exported, analyzed, and compared with torch.

    python tests/oracle/models.py [--quick | --all] [--only WORD,WORD] [--table NAME,NAME] [--jobs N] [--verbose]

Each model of the tables in `zoo/` is exported with every size open that may vary, and once more as it stands; each program is
analyzed as it is in memory, read back from its saved file, and after `run_decompositions()`. No node may be unknown, nothing
may be diagnosed, parameters must be the module's own, and matrix FLOPs, in all and of each innermost module, must equal what
FlopCounterMode counts under `sdpa_kernel(MATH)`: at the sizes exported, and at others that the open sizes are bound to. Where
torch counts wrong, the table says what is right and why. A table whose package is missing is skipped. `--quick` keeps to one
binding and neither decomposes nor exports again; `--all` takes every form of every model, and every architecture that
torchvision and timm register. Prints each failure and one summary line; exits 1 if there is a failure.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import io
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

import graphflops
from graphflops.analysis import analyze, as_graph
from graphflops.dims import evaluate
from graphflops.errors import ModelError
from graphflops.report import Report

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.oracle.zoo.case import Case, Sizes

TABLES = ("torch_nn", "programs", "mixers", "vision", "language", "timm_zoo")
SECONDS_PER_MODEL = 120
# What a report may say of a program that is priced in full, and of an operator that its case says is unknown.
REMARKS = ("unknown-operator", "costly-order", "fused-conversions", "mask-not-known")


class OutOfTimeError(Exception):
    """A model took longer than SECONDS_PER_MODEL."""


@dataclass(frozen=True)
class Effort:
    """How much is done about each model: `level` 0 for --quick, 1, or 2 for --all."""

    level: int

    def forms(self, dynamic: bool, only: bool) -> tuple[str, ...]:
        """The forms to analyze of a program beside itself; `only`: no other program of the model can be exported."""
        if self.level == 0:
            return ("saved",)
        return ("saved", "decomposed") if dynamic or only or self.level > 1 else ()


@dataclass(frozen=True)
class Count:
    """What torch counts at some sizes: in all, and by innermost module."""

    total: int
    by_module: dict[str, int]


def main(arguments: list[str] | None = None) -> int:
    """Run the sweep; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    level = parser.add_mutually_exclusive_group()
    level.add_argument(
        "--quick", dest="level", action="store_const", const=0, default=1, help="one binding, two forms"
    )
    level.add_argument(
        "--all", dest="level", action="store_const", const=2, help="every architecture in every form"
    )
    parser.add_argument(
        "--only", default="", help="comma-separated words, one of which a model's name must hold"
    )
    parser.add_argument("--table", default=",".join(TABLES), help="comma-separated tables of zoo/")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--verbose", action="store_true", help="name each model and how long it took")
    options = parser.parse_args(arguments)
    effort = Effort(options.level)
    count: Counter[str] = Counter()
    chosen = []
    for table in options.table.split(","):
        try:
            names = [case.name for case in table_of(table, effort)]
        except ModuleNotFoundError as missing:
            print(f"skipped table {table}: no package {missing.name}")
            count["skipped tables"] += 1
        else:
            words = options.only.split(",")
            chosen += [(table, name, effort) for name in names if any(word in name for word in words)]
    for (_, name, _), outcome in zip(chosen, outcomes(chosen, options.jobs), strict=True):
        count["models"] += 1
        count.update(kind for _, kind, _ in outcome.verdicts)
        tell(name, outcome, options.verbose)
    print(
        f"models of torch {torch.__version__.partition('+')[0]}: {count['models']} models, "
        f"{count['skipped tables']} tables skipped, {count['equal'] + count['wrong'] + count['refused']} analyses: "
        f"{count['equal']} equal, {count['wrong']} wrong, {count['refused']} of sizes that the program fixes; "
        f"{count['not exportable']} forms not exportable"
    )
    return 1 if count["wrong"] else 0


def tell(name: str, outcome: Outcome, verbose: bool) -> None:
    """Print what is wrong with a model, and what a table says of torch's count."""
    for form, kind, why in outcome.verdicts:
        if kind == "wrong" or (verbose and kind == "not exportable"):
            print(f"{name} [{form}] {kind}: {why}", flush=True)
    if verbose:
        print(
            f"{name}: {dict(Counter(kind for _, kind, _ in outcome.verdicts))} {outcome.seconds:.1f} s",
            flush=True,
        )
    if outcome.because:
        print(f"deviates by name: {name}: {outcome.because}", flush=True)


def outcomes(chosen: list[tuple[str, str, Effort]], jobs: int) -> Iterator[Outcome]:
    """What is found about each model, in order."""
    if jobs == 1 or len(chosen) < 2:
        yield from map(outcome_of, chosen)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(outcome_of, chosen)


@dataclass(frozen=True)
class Outcome:
    """The verdicts on one model, how long they took, and why torch's count is not taken."""

    verdicts: list[Verdict]
    seconds: float
    because: str


def outcome_of(task: tuple[str, str, Effort]) -> Outcome:
    """Judge one model, found in its table by name: cases hold functions, which do not travel between processes."""
    table, name, effort = task
    quiet()
    case = next(case for case in table_of(table, effort) if case.name == name)
    begun = time.perf_counter()
    verdicts = list(judged(case, effort))
    return Outcome(verdicts, time.perf_counter() - begun, case.because)


@functools.cache
def table_of(table: str, effort: Effort) -> tuple[Case, ...]:
    """The models of a table; raises ModuleNotFoundError where their package is missing."""
    root = str(Path(__file__).parents[2])
    if root not in sys.path:
        sys.path.insert(0, root)
    module = importlib.import_module(table if "." in table else f"tests.oracle.zoo.{table}")
    cases = getattr(module, "everything", module.cases) if effort.level > 1 else module.cases
    return tuple(cases())


def quiet() -> None:
    """Keep torch and the model libraries from talking."""
    torch._logging.set_logs(all=logging.CRITICAL)
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)  # the models are small
    torch.backends.mha.set_fastpath_enabled(False)  # FlopCounterMode counts 0 for its one call per layer
    os.environ.setdefault("HF_HUB_OFFLINE", "1")


Verdict = tuple[str, str, str]


def judged(case: Case, effort: Effort) -> Iterator[Verdict]:
    """(form, `equal` or `wrong` or `refused` or `not exportable`, why) of each form of the program."""
    signal.signal(signal.SIGALRM, _out_of_time)
    # again and again, for what is raised while Python collects garbage is lost
    signal.setitimer(signal.ITIMER_REAL, SECONDS_PER_MODEL, 5)
    try:
        yield from _judged(case, effort)
    except OutOfTimeError:
        yield "any", "not exportable", "out of time"
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        yield "any", "wrong", f"{_line(error)} at {where.filename}:{where.lineno}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _judged(case: Case, effort: Effort) -> Iterator[Verdict]:
    torch.manual_seed(0)
    with device(case):
        module = case.build().eval()
    opened = False
    for dynamic in (True, False) if len(case.sizes) > 1 else (False,):
        if opened and effort.level == 0:
            return
        variant = "dynamic" if dynamic else "static"
        try:
            program = exported(case, module, dynamic)
        except OutOfTimeError:
            raise
        except Exception as error:
            yield variant, "not exportable", _line(error)
            continue
        bindings = range(1, 2 if effort.level == 0 else len(case.sizes)) if dynamic else range(0)
        trial = Trial(case, module, program, (0, *bindings))
        yield from trial.verdicts(variant, program)
        for form, model in forms(program, effort.forms(dynamic, not opened)):
            if isinstance(model, Exception):
                yield f"{variant}, {form}", "not exportable", _line(model)
            else:
                yield from trial.verdicts(f"{variant}, {form}", model)
        opened = dynamic


def forms(program: torch.export.ExportedProgram, wanted: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """The program as a file, and decomposed; or why there is no such form."""
    if "saved" in wanted:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.pt2")
            try:
                torch.export.save(program, path)
            except Exception as error:
                yield "saved", error
            else:
                yield "saved", path
    if "decomposed" in wanted:
        try:
            decomposed = program.run_decompositions()
        except Exception as error:
            yield "decomposed", error
        else:
            yield "decomposed", decomposed


@dataclass
class Trial:
    """One exported program, judged at the sizes of its case by their index."""

    case: Case
    module: torch.nn.Module
    program: torch.export.ExportedProgram
    indices: tuple[int, ...]
    counts: dict[tuple[int, str], Count] = field(default_factory=dict)

    def count(self, index: int, form: str = "", program: torch.export.ExportedProgram | None = None) -> Count:
        """What torch counts when the module runs, or a program in some form."""
        key = (index, form)
        if key not in self.counts:
            module = self.module if program is None else program.module()
            self.counts[key] = counted(self.case, module, self.case.sizes[index])
        return self.counts[key]

    def counts_of_programs(self, index: int, model: Any) -> Iterator[int]:
        """What torch counts when programs run: some models run otherwise when exported, and what nobody uses is not decomposed."""
        yield self.count(index, "exported", self.program).total
        if isinstance(model, torch.export.ExportedProgram) and model is not self.program:
            yield self.count(index, "decomposed", model).total

    def is_refused_by_torch(self, index: int) -> bool:
        """Whether the program itself does not run at a size: one of its guards fails."""
        try:
            self.count(index, "exported", self.program)
        except AssertionError as error:
            return "Guard failed" in str(error)
        return False

    def verdicts(self, form: str, model: Any) -> Iterator[Verdict]:
        """One verdict at each of the sizes."""
        for index in self.indices:
            at = f"{form} at {self.case.sizes[index]}" if index else form
            dims = bound(self.case, self.program, self.case.sizes[index]) if index else {}
            try:
                report = analyze(model, dims=dims)
            except ModelError as error:
                fixed = is_fixed(model, dims) and "is fixed in the program" in str(error)
                guarded = "the program requires" in str(error) and self.is_refused_by_torch(index)
                yield at, "refused" if fixed or guarded else "wrong", f"ModelError {error}"
                continue
            problem = "; ".join((*self.said(report), *self.miscounted(report, index, form, model)))
            yield at, "wrong" if problem else "equal", problem

    def said(self, report: Report) -> Iterator[str]:
        """What the report itself says is not known, or not in order."""
        unknown = {op for op in report.coverage.unknown_ops if op not in self.case.unknown}
        if unknown or bool(self.case.unknown) != bool(report.coverage.unknown):
            yield f"unknown {sorted(unknown)} {[d.message for d in report.diagnostics][:2]}"
        said = [d for d in report.diagnostics if d.name not in REMARKS]
        if said:
            yield f"{len(said)} diagnostics: {said[0].name} at {said[0].node}: {said[0].message}"
        text = report.to_json()
        if Report.from_json(text).to_json() != text:
            yield "the report's JSON does not read back as the report"

    def hides_parameters(self, form: str) -> bool:
        """Whether the form cannot say which parameters there are.

        A file saved from the meta device does not say which submodules are one; decomposing takes apart weights of a class of
        their own.
        """
        if "saved" in form:
            return self.case.meta and any(path != first for path, first in _first_paths(self.module).items())
        known = (torch.Tensor, torch.nn.Parameter)
        return "decomposed" in form and any(
            type(parameter) not in known for parameter in self.module.parameters()
        )

    def miscounted(self, report: Report, index: int, form: str, model: Any) -> Iterator[str]:
        """Parameters and matrix FLOPs that are not torch's."""
        parameters = sum(parameter.numel() for parameter in self.module.parameters())
        if report.parameters != parameters and not self.hides_parameters(form):
            yield f"{report.parameters} parameters, the module has {parameters}"
        flops = report.total().matrix_flops
        ours = evaluate(flops, {**report.values, **self.case.turns})
        if self.case.expected:
            right = self.case.expected(**self.case.sizes[index])
            if ours != right:
                yield f"matrix FLOPs {ours} = {flops}, right are {right}"
        elif ours != self.count(index).total:
            if ours not in self.counts_of_programs(index, model):
                yield f"matrix FLOPs {ours} = {flops}, torch counts {self.count(index).total}"
        elif self.case.placed or "decomposed" not in form:
            yield from misplaced(report, self.module, self.count(index))


def is_fixed(model: Any, dims: dict[str, int]) -> bool:
    """Whether exporting or decomposing made a number of one of the sizes."""
    types = as_graph(model).types
    axes = [name.rstrip("]").rpartition("[") for name in dims if name.endswith("]")]
    return any(isinstance(types[name].shape[int(axis)], int) for name, _, axis in axes)


def misplaced(report: Report, module: torch.nn.Module, count: Count) -> Iterator[str]:
    """Innermost modules whose matrix FLOPs are not torch's."""
    ours: Counter[str] = Counter()
    first = _first_paths(module)
    for row in report.rows:
        ours[first.get(row.module, "?")] += report.value(row.cost.matrix_flops) or 0
    wrong = {path: (ours[path], flops) for path, flops in count.by_module.items() if ours[path] != flops}
    if wrong:
        path, (here, there) = next(iter(wrong.items()))
        yield f"{len(wrong)} modules misplaced: {path} has {here}, torch {there}"


def device(case: Case) -> Any:
    """Where the module and its inputs are made."""
    return torch.device("meta") if case.meta else contextlib.nullcontext()


def example(case: Case, sizes: Sizes) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword inputs at the given sizes."""
    with device(case):
        inputs = case.inputs(**sizes)
    return ((), inputs) if isinstance(inputs, dict) else (tuple(inputs), {})


def exported(case: Case, module: torch.nn.Module, dynamic: bool) -> torch.export.ExportedProgram:
    """The program at the first sizes; `dynamic`: every axis that differs at other sizes is left open."""
    args, kwargs = example(case, case.sizes[0])
    shapes = torch.export.ShapesCollection() if dynamic else None
    if shapes is not None:
        others = [pytree.tree_leaves(example(case, sizes)) for sizes in case.sizes[1:]]
        for leaf, *other in zip(pytree.tree_leaves((args, kwargs)), *others, strict=True):
            opened = _open(leaf, other)
            if opened:
                shapes[leaf] = opened
    torch._dynamo.reset()  # control flow is traced by it, and it remembers what it once refused
    with contextlib.redirect_stderr(io.StringIO()):  # torch prints whole programs where it gives up
        return graphflops.capture(module, args, kwargs, dynamic_shapes=shapes)


def _open(leaf: Any, others: list[Any]) -> dict[int, Any]:
    """The axes of an input that differ at other sizes."""
    if not isinstance(leaf, torch.Tensor):
        return {}
    axes = [
        axis for axis in range(leaf.dim()) if any(other.shape[axis] != leaf.shape[axis] for other in others)
    ]
    return dict.fromkeys(axes, torch.export.Dim.AUTO)


def bound(case: Case, program: torch.export.ExportedProgram, sizes: Sizes) -> dict[str, int]:
    """Sizes of the open axes, as the command line takes them: `input_ids[1]=17`."""
    leaves = [leaf for leaf in pytree.tree_leaves(example(case, sizes)) if leaf is not None]
    first = [leaf for leaf in pytree.tree_leaves(example(case, case.sizes[0])) if leaf is not None]
    names = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    return {
        f"{name}[{axis}]": size
        for name, leaf, before in zip(names, leaves, first, strict=True)
        if isinstance(leaf, torch.Tensor)
        for axis, size in enumerate(leaf.shape)
        if size != before.shape[axis]
    }


def counted(case: Case, module: torch.nn.Module, sizes: Sizes) -> Count:
    """FlopCounterMode's count."""
    args, kwargs = example(case, sizes)
    counter = FlopCounterMode(display=False)
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(
            False
        )  # the counter's hooks trip over parameters that are handed to submodules
    try:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), device(case), counter:
            module(*args, **kwargs)
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
    root = type(module).__name__
    by_module: Counter[str] = Counter()
    for path, first in _first_paths(module).items():
        if path and not list(module.get_submodule(path).children()):
            by_module[first] += sum(counter.flop_counts.get(f"{root}.{path}", {}).values())
    return Count(counter.get_total_flops(), {path: flops for path, flops in by_module.items() if flops})


def _first_paths(module: torch.nn.Module) -> dict[str, str]:
    """By path of each submodule, the first path of the same: one may hang at several places."""
    first: dict[torch.nn.Module, str] = {}
    return {path: first.setdefault(part, path) for path, part in module.named_modules(remove_duplicate=False)}


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"


def _out_of_time(*_: object) -> None:
    raise OutOfTimeError


if __name__ == "__main__":
    sys.exit(main())
