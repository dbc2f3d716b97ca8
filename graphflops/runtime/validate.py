"""Runs a program and compares its analysis with the execution: a .pt2 by torch, an ONNX file by onnxruntime.

A program from a file runs in a child process.

The result of a validation, from which all its renderers read; the sizes that a run reveals.
"""

from __future__ import annotations

import os
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from graphflops.analysis import analyze, as_graph
from graphflops.base.limits import SECONDS
from graphflops.base.rendered import Rendered
from graphflops.dims import Dim, evaluate, symbol
from graphflops.errors import ModelError
from graphflops.exporters import reader_of, regular_file
from graphflops.report.call_time import CallTime, PhaseTime
from graphflops.tensor import TensorType
from graphflops.view import View

if TYPE_CHECKING:
    from graphflops.graph import Graph
    from graphflops.runtime.run import Run

_REPEATS = 5


def validate(
    model: object,
    *,
    model_name: str | None = None,
    dims: Mapping[str, int] | None = None,
    names: Mapping[str, str] | None = None,
    inputs: Mapping[str, Any] | str | None = None,
    device: str = "cpu",
    random_weights: bool = False,
    repeats: int = _REPEATS,
    seed: int = 0,
    counters: Literal["none", "hardware"] = "none",
    time_limit: float = SECONDS,
    memory_limit: int | None = None,
    rule_files: Sequence[str] = (),
    profile: str | None = None,
    nproc: int | None = None,
) -> Validation:
    """Run a program and compare the analysis of each call with its execution.

    model: path of a `.pt2` or `.onnx`, a `Graph`, or a `torch.export.ExportedProgram` (one with flexible attention, say).
    A file is run in a child process, the others in this process.
    dims: sizes by name, symbol (`s27`) or input axis (`ids[1]`). names: what to call open sizes, `{"batch": "ids[0]"}`.
    inputs: tensors by name, or a `.npz` or `.safetensors` file; random by default. device: `cpu`, `cuda`, `cuda:1`.
    random_weights: use random weights instead of the stored ones, so that a program saved without weights runs too.
    repeats: number of timed runs after the first; 0 times nothing. counters: `hardware` runs a file once more under Nsight
    Compute, and compares the counts of the GPU. For the child process: time_limit in seconds; memory_limit in bytes, by
    default what is free; rule_files: Python files of rules. profile: device, or path of a profile, whose predicted times are
    compared with the measured ones; by default that of the GPU that runs the program. nproc: processes that run the file of
    a recorded step, as many as its mesh has devices.
    Raises FileError for an unreadable file, ModelError if the arguments contradict the program or the machine, RunError if
    the program cannot run.
    """
    options: dict[str, Any] = {"model_name": model_name, "dims": dict(dims or {}), "names": dict(names or {})}
    options |= {"inputs": inputs, "device": device, "random_weights": random_weights, "seed": seed}
    options["profile"] = profile
    if counters == "hardware":
        _refuse_uncountable(model, options)
    found = _validated(model, repeats, options, (time_limit, memory_limit), rule_files, nproc)
    if counters == "none":
        return found
    from graphflops.runtime.isolated import with_counters
    from graphflops.runtime.run import prepared

    return with_counters(found, prepared(model, **options).report, options)


def _validated(
    model: object, repeats: int, options: dict[str, Any], limits: tuple[float, int | None],
    rule_files: Sequence[str], nproc: int | None,
) -> Validation:  # fmt: skip
    """Validates a file in a child process with limits, a recorded step in several, anything else in this process."""
    path = os.fsdecode(model) if isinstance(model, (str, os.PathLike)) else None
    is_recorded = path is not None and reader_of(regular_file(path)).name == "recorded"
    if nproc is not None and not is_recorded:
        raise ModelError("--nproc is of the file of a recorded step: leave it out")
    if path is None:
        return validate_here(model, repeats, **options)
    from graphflops.runtime.isolated import ChildLimits, validate_file, validate_ranks

    if not is_recorded:
        return validate_file(path, repeats, options, ChildLimits(*limits), rule_files)
    return validate_ranks(path, nproc or 1, repeats, options, ChildLimits(*limits))


def validate_here(
    model: object, repeats: int, *, model_name: str | None, device: str, **options: Any
) -> Validation:
    """Validate in this process. options: dims, names, inputs, random_weights, seed, profile: see `validate`."""
    graph = as_graph(model, model_name)
    if graph.declared is not None:
        if device != "cpu" or not graph.origin.path:
            raise ModelError("onnxruntime runs an ONNX file on the CPU: omit --device and --counters")
        return _validated_onnx(graph, repeats, **options)
    return _prepared(graph, device=device, **options).validated(repeats)


def _refuse_uncountable(model: object, options: Mapping[str, Any]) -> None:
    """Raise ModelError if the hardware counters of a run cannot be read."""
    graph = as_graph(model, options["model_name"])
    if graph.declared is not None:
        raise ModelError("onnxruntime runs an ONNX file on the CPU: omit --device and --counters")
    if graph.step is not None:
        raise ModelError("--counters hardware runs programs, not recorded steps: leave it out")
    _prepared(graph, **options).refuse_uncountable()


def _prepared(graph: Graph, **options: Any) -> Run:
    try:
        from graphflops.runtime.run import prepared
    except ModuleNotFoundError as missing:
        raise _without(missing, "runtime") from None
    return prepared(graph, **options)


def _validated_onnx(
    graph: Graph, repeats: int, *, dims: Mapping[str, int], names: Mapping[str, str],
    inputs: Mapping[str, Any] | str | None, random_weights: bool, seed: int, profile: str | None,
) -> Validation:  # fmt: skip
    try:
        import onnxruntime  # type: ignore[import-untyped]  # noqa: F401

        from graphflops.runtime.input_plans import checked
        from graphflops.runtime.onnx_run import arrays_from, dtype_of, random_arrays, validate_onnx
    except ModuleNotFoundError as missing:
        raise _without(missing, "onnxruntime") from None
    given = arrays_from(inputs) if isinstance(inputs, str) else inputs
    shapes = {name: tuple(array.shape) for name, array in given.items()} if given else None
    report = analyze(graph, dims=dims, names=names, inputs=shapes, device=profile, fused=False)
    try:
        view = View(graph, report.rows)
        arrays = random_arrays(report, view, seed) if given is None else checked(given, report, dtype_of)
    except MemoryError:
        raise ModelError("inputs of these sizes do not fit in memory: give smaller sizes by --dim") from None
    return validate_onnx(graph.origin.path, report, arrays, repeats, random_weights)


def _without(missing: ModuleNotFoundError, extra: str) -> Exception:
    """The error that says which extra of graphflops brings the missing package; a missing part of graphflops is a defect."""
    if missing.name is None or missing.name.startswith("graphflops"):
        return missing
    return ModelError(f"running this model needs {missing.name}: pip install 'graphflops[{extra}]'")


Verdict = Literal["equal", "explained", "different", "not executed"]
What = Literal["type", "flops", "sent", "tiles", "visible", "hardware"]
_WORST: tuple[Verdict, ...] = ("different", "not executed", "explained", "equal")

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One number or type of the analysis, compared with a measured one.

    what: type: shape and element type of a result. flops: matrix FLOPs, against FlopCounterMode. sent: bytes to other
    devices, against those of the tensors that a process group got. tiles: executed by our
    attention kernel, against the prediction. visible: unmasked scores in the kernel, against the analysis.
    hardware: FLOPs read from the device's counters.
    reason: why the two differ, if known.
    """

    what: What
    verdict: Verdict
    ours: str
    measured: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NodeResult:
    """One call of the program, compared with its execution.

    row: index of its row in the report. turns: how often it ran.
    flops, bytes: of the analysis, for all turns, at the sizes of the run; None if unknown.
    seconds: of all turns in one run, the median of several runs; None if not timed.
    tile_flops: FLOPs of the tiles that our attention kernel executed for it; None if it did not run.
    counted_bytes: bytes of device memory read and written, as counted by the device; None if not counted.
    predicted: the time that the profile of the device predicts for all turns; None without a profile, or if unknown.
    """

    row: int
    node: str
    op: str
    module: str
    checks: tuple[CheckResult, ...]
    turns: int
    flops: int | None
    bytes: int | None
    matrix_dtype: str = ""
    seconds: float | None = None
    tile_flops: int | None = None
    counted_bytes: int | None = None
    predicted: CallTime | None = None

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of its checks."""
        if self.turns == 0 and not self.checks:
            return "not executed"
        found = {check.verdict for check in self.checks}
        return next((verdict for verdict in _WORST if verdict in found), "equal")

    @property
    def reason(self) -> str:
        """Why the verdict is not `equal`."""
        of = [check for check in self.checks if check.verdict == self.verdict]
        reasons = [one.reason or f"{one.what}: {one.ours}, ran {one.measured}" for one in of]
        return "; ".join(dict.fromkeys(reasons)) if self.verdict != "equal" else ""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Measured peak rates of the device.

    flops: FLOP/s of a large matrix product, by element type. bandwidth: bytes per second, read and written, of a large copy.
    """

    flops: Mapping[str, float]
    bandwidth: float


@dataclass(frozen=True, slots=True)
class RankResult:
    """One process of a recorded step that ran on several devices.

    different: calls that differ or could not run. peak_bytes: as of the validation. seconds: of a step, the median.
    communication: seconds that collectives ran in a step; exposed: in which nothing else did. None: not measured.
    """

    rank: int
    different: int
    peak_bytes: int | None = None
    seconds: float | None = None
    communication: float | None = None
    exposed: float | None = None


@dataclass(frozen=True, slots=True)
class TimeComparison:
    """Predicted and measured times of the calls that have both.

    calls: their number. covered: of these, those whose interval holds the measured time.
    median_error, mean_error: relative error of a call's prediction. share: part of the measured time that these calls take.
    """

    calls: int
    covered: int
    median_error: float
    mean_error: float
    share: float


@dataclass(frozen=True, slots=True, repr=False)
class Validation(Rendered):
    """A program that was run, compared with its analysis.

    device: description of the device. stated: the known sizes by the names that people read.
    sizes: of the symbols: given, recorded in the export, or found in the run.
    peak_bytes: measured peak of requested memory beside the weights, of a recorded step with them; predicted_peak_bytes: of
    the analysis; None if unknown.
    seconds: of one run, the sum over its calls; None if not timed. ranks: the processes of a recorded step, of which all
    else is that of the first.
    kernels: by call, the source of the functions generated for our attention kernel, each once.
    profile: name of the device whose profile predicts times; "" if none does. predicted: the time of a run by it.
    """

    path: str
    device: str
    torch: str
    sizes: Mapping[str, int]
    nodes: tuple[NodeResult, ...]
    stated: Mapping[str, int] = field(default_factory=dict)
    predicted_peak_bytes: int | None = None
    peak_bytes: int | None = None
    seconds: float | None = None
    ceilings: Ceilings | None = None
    kernels: Mapping[str, str] = field(default_factory=dict)
    profile: str = ""
    predicted: PhaseTime | None = None
    ranks: tuple[RankResult, ...] = ()

    @property
    def times(self) -> TimeComparison | None:
        """Predicted against measured times of calls; None where no call has both. Calls that launch nothing have none."""
        both = [
            (node.predicted, node.seconds)
            for node in self.nodes
            if node.predicted is not None and node.predicted.seconds and node.seconds
        ]
        if not both:
            return None
        errors = [abs(one.seconds / seconds - 1) for one, seconds in both]
        return TimeComparison(
            calls=len(both),
            covered=sum(one.low <= seconds <= one.high for one, seconds in both),
            median_error=statistics.median(errors),
            mean_error=statistics.mean(errors),
            share=sum(seconds for _, seconds in both) / sum(node.seconds or 0.0 for node in self.nodes),
        )

    @property
    def verdicts(self) -> Mapping[Verdict, int]:
        """Number of calls with each verdict."""
        found = Counter(node.verdict for node in self.nodes)
        return {verdict: found[verdict] for verdict in reversed(_WORST)}

    @property
    def holds(self) -> bool:
        """True if every check ran and no difference is unexplained."""
        return all(check.verdict in ("equal", "explained") for node in self.nodes for check in node.checks)


@dataclass
class RunSizes:
    """Known values of a program's symbols; data-dependent sizes are added when a run reveals them."""

    known: dict[str, int]

    def meet(self, size: Dim, real: int) -> int | None:
        """The value of a size; a symbol without a value is bound to `real`. None if the size remains unknown."""
        if isinstance(size, int):
            return size
        value = evaluate(size, self.known)
        if value is None and len(size.symbols) == 1:
            (name,) = size.symbols
            if size is symbol(name):
                self.known[name] = real
                return real
        return value

    def check(self, typed: TensorType, dtype: str, shape: Sequence[int]) -> CheckResult:
        """Compare a derived type with that of a tensor: `equal` or `different`."""
        sizes = [self.meet(size, real) for size, real in zip(typed.shape, shape, strict=False)]
        ran = written(dtype, shape)
        pairs = zip(sizes, shape, strict=True)
        same = len(typed.shape) == len(shape) and all(size in (None, real) for size, real in pairs)
        if same and typed.dtype.name == dtype:
            return CheckResult("type", "equal", ran, ran)
        missing = [None] * (len(typed.shape) - len(sizes))
        return CheckResult("type", "different", written(typed.dtype.name, [*sizes, *missing]), ran)


def written(dtype: str, shape: Sequence[int | None]) -> str:
    """`float32[2, 8]`; `?` for an unknown size."""
    return f"{dtype}[{', '.join('?' if size is None else str(size) for size in shape)}]"
