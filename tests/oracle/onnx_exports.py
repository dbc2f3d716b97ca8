"""Real models as ONNX files: every size derived, compared with what runs; totals compared with torch and with the `.pt2`.

    python -m tests.oracle.onnx_exports [--only WORD,WORD] [--table NAME,NAME] [--forms FAMILY,FAMILY]
        [--exporters NAME,NAME] [--keep FOLDER] [--jobs N] [--verbose]

Each model of zoo/exports.py is exported with every size open that may vary, by both exporters of torch, and each file is
fused and quantised by onnxruntime's tools. What a file states of intermediate values and results is removed. Then every
size must be a number or an expression in the sizes of the inputs, or in a size named after the operator whose data tell it;
at other inputs it must be what a run of the file gives, all intermediate values fetched; bound to those inputs it must be
a number. Matrix FLOPs must be what FlopCounterMode counts under `sdpa_kernel(MATH)`, at three inputs, and the formula that
of the module's `.pt2`. Where they cannot be, the model says by name what is right and why. Prints each failure, a line for
each family of files, and one for all; exits 1 if there is a failure.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Union

import numpy as np
import onnx
import onnxruntime
import torch

from graphflops.analysis import analyze
from graphflops.dims import Expr, evaluate, symbol
from graphflops.errors import GraphflopsError
from graphflops.exporters import load
from graphflops.passes.bind import bind
from tests.oracle import models, onnx_forms
from tests.oracle.models import OutOfTimeError, counted, exported, quiet
from tests.oracle.zoo.exports import flat, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from graphflops.dims import Dim
    from graphflops.graph import Graph
    from graphflops.report import Report
    from graphflops.tensor import TensorType
    from tests.oracle.zoo.case import Case

SECONDS_PER_PROGRAM, SECONDS_PER_MODEL = 300, 900
EXPORTERS = ("dynamo", "torchscript")
DEAD = "results that nobody uses are not computed"
FIXED = "products of constants were computed when the file was made"
# What sizes are named after that data tell, or the machine; a size that has another name was lost on the way.
TELLING = ("nonzero", "nms", "unique", "compress", "topk", "range", "loop_trips", "padded_channels")
_NUMBERED = re.compile(r"_\d+$")


class Wanted(NamedTuple):
    """What to do about a model: by which exporters, in which forms, and the folder to keep the files in, "" for none."""

    exporters: tuple[str, ...]
    forms: tuple[str, ...]
    keep: str


@dataclass
class Tally:
    """What is found about one file. totals: `equal`, `deviate` or `wrong`."""

    family: str
    name: str
    values: int = 0
    resolved: int = 0
    told: int = 0
    lost: int = 0  # values without numbers for sizes when the inputs' are bound
    checked: int = 0
    wrong: int = 0
    totals: Counter[str] = field(default_factory=Counter)
    same_formula: bool = False
    problems: list[str] = field(default_factory=list)
    missing: str = ""
    because: str = ""
    unrun: str = ""


def main(arguments: list[str] | None = None) -> int:
    """Run the sweep; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", default="", help="comma-separated words, one of which a model's name must hold"
    )
    parser.add_argument("--table", default="exports", help="comma-separated tables of zoo/")
    families = (*EXPORTERS, *onnx_forms.MAKERS)
    parser.add_argument("--forms", default=",".join(families), help="comma-separated families of files")
    parser.add_argument("--exporters", default=",".join(EXPORTERS), help="which of torch's exporters")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--keep", default="", help="a folder to keep the files in")
    parser.add_argument("--verbose", action="store_true", help="a line for every file")
    options = parser.parse_args(arguments)
    words = options.only.split(",")
    wanted = Wanted(tuple(options.exporters.split(",")), tuple(options.forms.split(",")), options.keep)
    chosen = [
        (table, case.name, wanted)
        for table in options.table.split(",")
        for case in models.table_of(table, models.Effort(1))
        if any(word in case.name for word in words)
    ]
    tallies: list[Tally] = []
    for (_, name, _), found in zip(chosen, outcomes(chosen, options.jobs), strict=True):
        for tally in found:
            tell(name, tally, options.verbose)
        tallies += found
    for family in (*families, ""):
        of = [tally for tally in tallies if tally.family and family in ("", tally.family)]
        if of:
            print(summary(family or "all", of))
    return 1 if any(tally.problems for tally in tallies) or not tallies else 0


def tell(name: str, tally: Tally, verbose: bool) -> None:
    """Print what is wrong with one file."""
    for problem in tally.problems:
        print(f"{name} [{tally.name}] wrong: {problem}", flush=True)
    if tally.because:
        print(f"{name} [{tally.name}] deviates by name: {tally.because}", flush=True)
    if tally.unrun:
        print(f"{name} [{tally.name}] cannot be run here: {tally.unrun}", flush=True)
    if tally.missing and verbose:
        print(f"{name} [{tally.name}] not made: {tally.missing}", flush=True)
    elif verbose and tally.family:
        print(
            f"{name} [{tally.name}]: {tally.values} values, {tally.resolved} resolved, {tally.told} told by data, "
            f"{tally.values - tally.lost} static, {tally.checked} checked, {tally.wrong} wrong, {dict(tally.totals)}"
            f"{', same formula' if tally.same_formula else ''}",
            flush=True,
        )


def summary(family: str, tallies: list[Tally]) -> str:
    """One line for many files."""
    made = [tally for tally in tallies if not tally.missing]
    values = sum(tally.values for tally in made)
    known = sum(tally.resolved + tally.told for tally in made)
    told = sum(tally.told for tally in made)
    static = sum(tally.values - tally.lost for tally in made)
    totals: Counter[str] = sum((tally.totals for tally in made), Counter())
    return (
        f"{family}: {len(made)} graphs, {len(tallies) - len(made)} not made, {values} values: "
        f"{100 * known / max(values, 1):.2f} % resolved, of these {told} in sizes that data tell, "
        f"{100 * static / max(values, 1):.2f} % static when bound; {sum(t.checked for t in made)} compared with runs, "
        f"{sum(t.wrong for t in made)} wrong; totals: {totals['equal']} equal, {totals['deviate']} deviate by name, "
        f"{totals['wrong']} wrong; {sum(t.same_formula for t in made)} formulas are those of the .pt2"
    )


def outcomes(chosen: list[tuple[str, str, Wanted]], jobs: int) -> Iterator[list[Tally]]:
    """What is found about each model, in order."""
    if jobs == 1 or len(chosen) < 2:
        yield from map(outcome_of, chosen)
        return
    with ProcessPoolExecutor(
        jobs, mp_context=multiprocessing.get_context("spawn"), max_tasks_per_child=8
    ) as pool:
        yield from pool.map(outcome_of, chosen)


def outcome_of(task: tuple[str, str, Wanted]) -> list[Tally]:
    """Judge every file of one model."""
    table, name, wanted = task
    quiet()
    onnxruntime.set_default_logger_severity(4)
    case = next(case for case in models.table_of(table, models.Effort(1)) if case.name == name)
    signal.signal(signal.SIGALRM, models._out_of_time)
    found: list[Tally] = []
    try:
        for tally in judged(flat(case), wanted):
            found.append(tally)
    except OutOfTimeError:
        found.append(Tally("", "any", missing="out of time"))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{models._line(error)} at {where.filename}:{where.lineno}"
        found.append(Tally("", "any", problems=[text]))
    finally:
        signal.alarm(0)
    return found


@dataclass
class Subject:
    """One module, its exported program, and what torch counts."""

    case: Case
    module: torch.nn.Module
    program: torch.export.ExportedProgram | None

    @cached_property
    def inputs(self) -> list[tuple[torch.Tensor, ...]]:
        """The inputs at each of the sizes: the same for every file and every count."""
        torch.manual_seed(1)
        return [tuple(self.case.inputs(**sizes)) for sizes in self.case.sizes]

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(f"x{place}" for place in range(len(self.inputs[0])))

    @cached_property
    def axes(self) -> dict[str, dict[int, str]]:
        """The open axes of each input, each with a name of its own: which are equal the file does not say."""
        found: dict[str, dict[int, str]] = {}
        for place, name in enumerate(self.names):
            for axis in range(self.inputs[0][place].dim()):
                if len({given[place].shape[axis] for given in self.inputs}) > 1:
                    found.setdefault(name, {})[axis] = f"{name}_size{axis}"
        return found

    def arrays(self, index: int) -> dict[str, np.ndarray]:
        """The inputs at the sizes by their index, as onnxruntime takes them."""
        return {
            name: np.ascontiguousarray(tensor.numpy())
            for name, tensor in zip(self.names, self.inputs[index], strict=True)
        }

    @cached_property
    def counts(self) -> list[int]:
        """Matrix FLOPs at each of the sizes: what the case says, else what torch counts."""
        if self.case.expected:
            return [self.case.expected(**sizes) for sizes in self.case.sizes]
        fixed = [
            type(self.case)(self.case.name, self.case.build, lambda given=given: given)
            for given in self.inputs
        ]
        return [counted(case, self.module, {}).total for case in fixed]

    @cached_property
    def graph(self) -> Graph | None:
        """The module's `.pt2`, read."""
        if self.program is None:
            return None
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.pt2")
            torch.export.save(self.program, path)
            return load(path)

    @cached_property
    def recorded(self) -> Report | None:
        """The report of the module's `.pt2`."""
        return None if self.graph is None else analyze(self.graph)

    @cached_property
    def droppable(self) -> dict[int, str]:
        """Parts of the matrix FLOPs of the `.pt2` that files need not have, by number at the first sizes: why."""
        if self.graph is None or self.recorded is None:
            return {}
        reached = {entry.name for entry in self.graph.inputs if entry.role == "user"}
        calls = list(zip(self.graph.nodes, self.graph.operands, strict=True))
        for node, uses in calls:
            if not reached.isdisjoint(uses):
                reached.update(name for name in node.outputs if name is not None)
        needed = {name for output in self.graph.outputs for _, name in output.uses()}
        for node, uses in reversed(calls):
            if not needed.isdisjoint(node.outputs):
                needed.update(uses)
        fixed = dead = 0
        for row in self.recorded.rows:
            made = {named.name for named in row.outputs}
            flops = row.cost.matrix_flops
            if needed.isdisjoint(made):
                dead = dead + flops
            elif reached.isdisjoint(made):
                fixed = fixed + flops
        return {dead + fixed: f"{DEAD}; {FIXED}", fixed: FIXED, dead: DEAD}


def judged(case: Case, wanted: Wanted) -> Iterator[Tally]:
    """A verdict on each file of one model."""
    torch.manual_seed(0)
    module = case.build().eval().requires_grad_(False)
    signal.alarm(SECONDS_PER_PROGRAM)  # torch.export takes minutes over sums of remainders
    try:
        program = exported(case, module, dynamic=True)
    except Exception as error:
        program = None
        yield Tally("", "torch.export", missing=models._line(error))
    signal.alarm(SECONDS_PER_MODEL)
    if case.because:
        yield Tally("", "torch's count", because=case.because)
    subject = Subject(case, module, program)
    for exporter in wanted.exporters:
        if exporter == "dynamo" and program is None:
            continue
        try:
            model = (
                onnx_forms.dynamo(program, subject.names)
                if exporter == "dynamo"
                else onnx_forms.torchscript(module, subject.inputs[0], subject.names, subject.axes)
            )
        except OutOfTimeError:
            raise
        except Exception as error:
            yield Tally(exporter, exporter, missing=models._line(error))
            continue
        if exporter in wanted.forms:
            yield judge(Tally(exporter, exporter), subject, model, wanted.keep)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.onnx")
            onnx.save(model, path)
            source = onnx_forms.Source(
                path, folder, subject.arrays(0), kind_of(case), module.model, module.given
            )
            families = [
                family
                for family in wanted.forms
                if family in onnx_forms.MAKERS
                and (exporter == "dynamo" or not family.startswith("transformers"))
            ]
            for form in onnx_forms.made_of(source, families):
                tally = Tally(form.family, f"{exporter}, {form.family}")
                if isinstance(form.model, Exception):
                    tally.missing = models._line(form.model)
                    yield tally
                else:
                    yield judge(tally, subject, form.model, wanted.keep)


def judge(tally: Tally, subject: Subject, model: onnx.ModelProto, keep: str) -> Tally:
    """The tally with what is found about one file."""
    with contextlib.ExitStack() as stack:
        folder = keep or stack.enter_context(tempfile.TemporaryDirectory())
        stem = re.sub(r"\W+", "_", f"{subject.case.name}.{tally.name}")
        whole, bare = (os.path.join(folder, f"{stem}{end}.onnx") for end in ("", ".bare"))
        onnx.save(model, whole)
        onnx.save(stripped(model), bare)
        everywhere = range(len(subject.case.sizes))
        try:
            runs = run(whole, [subject.arrays(index) for index in everywhere])
        except Exception as error:  # a call that has no kernel for this machine
            tally.unrun = models._line(error)
            runs = [{} for _ in everywhere]
        try:
            file = File(load(bare), subject)
            count_values(tally, file.report)
            # What an exporter took for a number keeps a file from running at other sizes than those it was made at.
            possible = [
                index for index in everywhere if file.takes(index) and not isinstance(runs[index], Exception)
            ]
            if 0 not in possible:
                tally.unrun, possible, runs = models._line(runs[0]), [0], [{}]
            compare_totals(tally, file, {index: runs[index] for index in possible})
            if analyze(whole).total().matrix_flops != file.report.total().matrix_flops:
                tally.problems.append("what the file states of its values changes the total")
            for index in possible[1:]:
                compare_with_run(tally, file, index, runs[index])
        except GraphflopsError as error:
            tally.problems.append(f"{type(error).__name__}: {error}")
    return tally


def stripped(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without what it states of intermediate values and results."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    _strip(bare.graph)
    for function in bare.functions:
        del function.value_info[:]
    return bare


def _strip(graph: onnx.GraphProto) -> None:
    del graph.value_info[:]
    for value in graph.output:
        value.ClearField("type")
    for node in graph.node:
        for attribute in node.attribute:
            for nested in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                _strip(nested)


@dataclass
class File:
    """One file, read: its report, and its sizes at those of the subject."""

    graph: Graph
    subject: Subject

    @cached_property
    def report(self) -> Report:
        return analyze(self.graph)

    def dims(self, index: int) -> dict[str, int]:
        """The open axes of the inputs at the sizes by their index."""
        return {
            f"{entry.name}[{axis}]": self.subject.inputs[index][int(entry.name[1:])].shape[axis]
            for entry in self.graph.inputs
            if entry.role == "user"
            for axis, size in enumerate(self.graph.types[entry.name].shape)
            if isinstance(size, Expr)
        }

    def takes(self, index: int) -> bool:
        """Whether the inputs at these sizes are what the file states of its inputs."""
        return all(
            isinstance(size, Expr) or size == real
            for entry in self.graph.inputs
            if entry.role == "user"
            for size, real in zip(
                self.graph.types[entry.name].shape,
                self.subject.inputs[index][int(entry.name[1:])].shape,
                strict=True,
            )
        )

    def values(self, index: int) -> dict[str, int]:
        """The sizes of the inputs by name."""
        return dict(bind(self.graph, self.dims(index), {}).given)


def types_of(report: Report) -> dict[str, TensorType]:
    """The type of every value that a call makes."""
    return {named.name: named.type for row in report.rows for named in row.outputs}


def telling(name: str) -> bool:
    """Whether a size is named after an operator whose data tell it."""
    return _NUMBERED.sub("", name) in TELLING


def count_values(tally: Tally, report: Report) -> None:
    """How many values have sizes in the inputs' alone, how many in others that data tell; what else there is, is wrong."""
    given = {name for name, info in report.symbols.items() if info.where}
    for row in report.rows:
        for named in row.outputs:
            tally.values += 1
            others = {s for size in named.type.shape if isinstance(size, Expr) for s in size.symbols} - given
            tally.resolved += not others
            tally.told += bool(others) and all(map(telling, others))
            lost = [name for name in others if not telling(name)]
            if lost and len(tally.problems) < 3:
                tally.problems.append(
                    f"{named.name} of {row.op} is {named.type}: {lost[0]} is no input's size"
                )
    # GF112: sizes that prove equal. GF207: onnxruntime's optimizer does not import the domain of what it puts in.
    # GF116: a formula too large to print; a size that is one has a name of its own, and is lost.
    said = [d for d in report.diagnostics if d.code not in ("GF112", "GF207", "GF116")]
    for diagnostic in said[:3]:
        tally.problems.append(f"{diagnostic.code} at {diagnostic.node}: {diagnostic.message}")
    if report.coverage.unknown:
        tally.problems.append(f"unknown {dict(report.coverage.unknown_ops)}")


def compare_totals(tally: Tally, file: File, runs: dict[int, Ran]) -> None:
    """Matrix FLOPs at the sizes that the file runs at with torch's count, the formula with that of the `.pt2`."""
    report, subject = file.report, file.subject
    flops = report.total().matrix_flops
    for index, ran in runs.items():
        right = subject.counts[index]
        ours = evaluate(flops, learned(file, index, ran))
        reason = "" if ours == right or ours is None else deviation(tally, file, index, ours, right)
        tally.totals["equal" if ours == right else "deviate" if reason else "wrong"] += 1
        if reason:
            tally.because = reason
        elif ours != right:
            tally.problems.append(
                f"matrix FLOPs {ours} = {flops}, right at {subject.case.sizes[index]} are {right}"
            )
            break
    if subject.recorded is not None:
        renamed = alike(subject.recorded, file)
        theirs = subject.recorded.total().matrix_flops
        tally.same_formula = (theirs.substitute(renamed) if isinstance(theirs, Expr) else theirs) == flops


def learned(file: File, index: int, ran: Ran) -> dict[str, int]:
    """The sizes of the inputs, and those that only data tell, from a run."""
    types, known = types_of(file.report), file.values(index)
    for name, real in ran.items():
        if real is not None and name in types:
            agrees(types[name], real, known)
    return known


def deviation(tally: Tally, file: File, index: int, ours: int, right: int) -> str:
    """Why a file's total is rightly another than that of the module; "" where it is not."""
    for part, why in file.subject.droppable.items():
        renamed = alike(file.subject.recorded, file)
        if (
            evaluate(part.substitute(renamed) if isinstance(part, Expr) else part, file.values(index))
            == right - ours
        ):
            return why
    if tally.family == "ort level 99" and ours > right:
        return "channels are padded to whole blocks of this machine's kernels"
    return ""


def alike(recorded: Report, file: File) -> dict[str, Dim]:
    """By size of the `.pt2`: its name in the ONNX file, that of the same axis."""
    theirs = {place: name for name, info in file.report.symbols.items() for place in info.where}
    found: dict[str, Dim] = {}
    for name, info in recorded.symbols.items():
        for place in info.where:
            operand, axis = re.fullmatch(r"\D*(\d+)\[(\d+)\]", place).groups()  # type: ignore[union-attr]
            other = theirs.get(f"x{operand}[{axis}]")
            if other is not None:
                found[name] = symbol(other)
    return found


def compare_with_run(tally: Tally, file: File, index: int, ran: Ran) -> None:
    """Every shape at the sizes by their index with that of a run."""
    formulas, numbers = types_of(file.report), types_of(analyze(file.graph, dims=file.dims(index)))
    lost = {
        name
        for name, typed in numbers.items()
        if not all(isinstance(size, int) or all(map(telling, size.symbols)) for size in typed.shape)
    }
    tally.lost = max(tally.lost, len(lost))
    if lost:
        name = min(lost)
        tally.problems.append(f"{name} is {numbers[name]} when bound")
    for types, known in ((formulas, file.values(index)), (numbers, {})):
        for name, real in ran.items():
            if real is None:
                continue
            tally.checked += 1
            if name not in types or not agrees(types[name], real, known):
                tally.wrong += 1
                if tally.wrong < 4:
                    tally.problems.append(f"{name} is {types.get(name)} at {known}, a run gives {real}")


def agrees(ours: TensorType, real: Made, known: dict[str, int]) -> bool:
    """Whether a type is that of a run; a size that only data tell is learned where it first stands alone."""
    if ours.dtype.name != real.dtype or ours.rank != len(real.shape):
        return False
    for size, length in zip(ours.shape, real.shape, strict=True):
        if isinstance(size, Expr) and size.symbols - known.keys():
            (name, *more) = size.symbols - known.keys()
            if more or size is not symbol(name):
                continue
            known[name] = length
        if evaluate(size, known) != length:
            return False
    return True


class Made(NamedTuple):
    """What a run made."""

    dtype: str
    shape: tuple[int, ...]


Ran = dict[str, Union[Made, None]]


def run(path: str, inputs: list[dict[str, np.ndarray]]) -> list[Ran | Exception]:
    """For each inputs, every value that a call of the model's graph makes, None for what is no tensor."""
    model = onnx.load(path)
    stated = {value.name for value in model.graph.output}
    calls = [node for node in model.graph.node if node.op_type != "Constant"]
    made = [name for node in calls for name in node.output if name]
    used = {name for node in model.graph.node for name in _uses(node)} | stated
    wanted = [name for name in made if name in used]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted if name not in stated)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return [_run_once(session, wanted, given) for given in inputs]


def _run_once(session: Any, wanted: list[str], inputs: dict[str, np.ndarray]) -> Ran | Exception:
    try:
        results = session.run(wanted, {entry.name: inputs[entry.name] for entry in session.get_inputs()})
    except Exception as error:  # what a trace took for a number, say
        return error
    return {
        name: Made(result.dtype.name, result.shape) if isinstance(result, np.ndarray) else None
        for name, result in zip(wanted, results, strict=True)
    }


def _uses(node: onnx.NodeProto) -> Iterator[str]:
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from _uses(inner)
            yield from (value.name for value in graph.output)


if __name__ == "__main__":
    sys.exit(main())
