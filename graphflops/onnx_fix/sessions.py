"""Runs ONNX files in onnxruntime: to compare a file before and after it was fixed, at sizes that it takes.

The steps of a fix that read weights or run calls are each done in a child process: a hostile file may crash or hang it.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from graphflops.analysis import analyze
from graphflops.base.lazy import imported
from graphflops.base.record import Record
from graphflops.errors import RunError, shown
from graphflops.exporters import onnx
from graphflops.graph import Graph
from graphflops.onnx_audit.registry import Edit
from graphflops.runtime.isolated import answered, child_command
from graphflops.runtime.onnx_run import line_of, opened_session, random_arrays
from graphflops.view import View

_RUNS = 3
_SIZES = (2, 5, 1, 16, 24, 33, 64, 96, 128, 224, 384)  # tried for open sizes, the small ones first
# Share of the largest number of a result: what the last bits of float32 and half precision add up to over a network.
_TOLERANCE = {"float64": 1e-6, "float32": 1e-4, "float16": 1e-2, "bfloat16": 4e-2}


class Run(msgspec.Struct, frozen=True, array_like=True):
    """One run: the sizes of the program's open axes by name, and the seed of the numbers in its inputs."""

    dims: dict[str, int]
    seed: int


# How the results of two files compare: why they do not hold, "" if they do; the largest relative difference.
Verdict = tuple[str, float]


def planned(path: str, folder: str, given: Mapping[str, int]) -> list[Run]:
    """Three runs that the file can do, at different sizes where some are open. Raises RunError if it can do none."""
    graph, session = onnx.read(path), opened_session(Path(path).read_bytes(), folder, is_alike=True)
    report = analyze(graph, dims=given, fused=False)
    open_sizes = {
        name: (max(info.minimum or 1, 1), info.maximum)
        for name, info in report.symbols.items()
        if info.where and info.given_by != "user"
    }
    runs: list[Run] = []
    reason = ""
    for dims in [*_candidates(open_sizes), {}]:  # where no small sizes work, those that an analysis assumes
        if any(run.dims == {**dims, **given} for run in runs):
            continue
        try:
            run = Run({**dims, **given}, len(runs))
            session.run(None, _inputs(graph, run))
            runs.append(run)
        except Exception as error:  # noqa: BLE001 sizes that the program does not take
            reason = line_of(error)
        if len(runs) == _RUNS:
            return runs
    if not runs:
        raise RunError(f"onnxruntime cannot run it: {reason}")
    return [*runs, *(Run(runs[-1].dims, seed) for seed in range(len(runs), _RUNS))]


def _candidates(open_sizes: Mapping[str, tuple[int, int | None]]) -> Iterator[dict[str, int]]:
    """Sizes within their ranges: first all different, so that none is taken for another, then all equal."""
    for size, step in product(_SIZES if open_sizes else (), (1, 0)[: len(open_sizes)]):
        wanted = (size + step * place for place in range(len(open_sizes)))
        yield {
            name: min(max(number, low), number if high is None else high)
            for number, (name, (low, high)) in zip(wanted, open_sizes.items(), strict=True)
        }


def compared(old: str, new: str, folder: str, runs: Sequence[Run], exact: bool) -> Verdict:
    """Whether both files give the same results: bit for bit, or within the tolerance of their element type."""
    graph = onnx.read(old)
    feeds = [_inputs(graph, run) for run in runs]
    results = []
    for path in (old, new):
        session = opened_session(Path(path).read_bytes(), folder, is_alike=True)
        try:
            results.append([session.run(None, feed) for feed in feeds])
        except Exception as error:  # noqa: BLE001 onnxruntime's errors have no common base
            raise RunError(f"onnxruntime cannot run it: {line_of(error)}") from None
    names = [entry.name for entry in session.get_outputs()]
    verdicts: list[Verdict] = [("", 0.0)]
    for run, ours, theirs in zip(runs, *results, strict=True):
        for name, a, b in zip(names, ours, theirs, strict=True):
            problem, difference = _difference(a, b, exact)
            at = ", ".join(f"{size}={number}" for size, number in run.dims.items())
            said = f"{shown(name)} {problem}{f' at {shown(at)}' if at else ''}" if problem else ""
            verdicts.append((said, difference))
    return max(verdicts, key=lambda each: (bool(each[0]), each[1]))


def _difference(a: Any, b: Any, exact: bool) -> Verdict:
    """How two results differ, in words and as a share of the largest number; lists and mappings by their elements."""
    import numpy

    if isinstance(a, (dict, list)):
        parts = [list(each.items()) if isinstance(each, dict) else each for each in (a, b)]
        lengths = len(parts[0]), len(parts[1])
        pairs = zip(*parts, strict=False) if lengths[0] == lengths[1] else [lengths]
        return max((_difference(x, y, exact) for x, y in pairs), default=("", 0.0))
    a, b = numpy.asarray(a), numpy.asarray(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"is {b.dtype}{list(b.shape)} instead of {a.dtype}{list(a.shape)}", 0.0
    if (a.tolist() == b.tolist()) if a.dtype.hasobject else (a.tobytes() == b.tobytes()):
        return "", 0.0
    tolerance = 0.0 if exact else _TOLERANCE.get(a.dtype.name, 0.0)
    if a.dtype.name not in _TOLERANCE:
        return "differs", 0.0
    wide, other = a.astype("float64"), b.astype("float64")
    finite = numpy.isfinite(wide)
    if not numpy.array_equal(wide[~finite], other[~finite], equal_nan=True):
        return "differs where it is not finite", 0.0
    scale = float(numpy.abs(wide[finite]).max(initial=0.0)) or 1.0
    difference = float(numpy.abs(wide[finite] - other[finite]).max(initial=0.0)) / scale
    due = f"{tolerance:g} is" if tolerance else "the same bits are"
    is_near = tolerance and difference <= tolerance
    return "" if is_near else f"differs by {difference:.1g} of its largest number where {due} due", difference


def _inputs(graph: Graph, run: Run) -> dict[str, Any]:
    report = analyze(graph, dims=run.dims, fused=False)
    return random_arrays(report, View(graph, report.rows), run.seed)


_LARGEST = 2**31 - 1  # bytes of a protobuf message


class Steps(Record, frozen=True):
    """Asks child processes for steps. path: of the file that is fixed; seconds: that each step may take."""

    path: str
    seconds: float

    @property
    def folder(self) -> str:
        return os.path.dirname(os.path.realpath(self.path))

    def asked(self, step: str, *arguments: Any) -> Any:
        """The result of a step of `STEPS`. Raises RunError if the step fails, FileError if its process does."""
        *_, kind = STEPS[step]
        with tempfile.NamedTemporaryFile(prefix="graphflops") as file:
            file.write(msgspec.json.encode(arguments))
            file.flush()
            writes = _LARGEST if step == "apply" else 0
            request = {"arguments": file.name, "seconds": self.seconds, "writes": writes}
            found = answered(child_command(step, request), self.seconds, self.path)
        return msgspec.json.decode(found, type=kind)


# What the child process runs: each function with the types of its arguments and of its result.
STEPS: dict[str, tuple[str, Any, Any]] = {
    "apply": ("graphflops.onnx_fix.apply:apply", tuple[str, str, str, list[list[Edit]]], list[int]),
    "plan": ("graphflops.onnx_fix.sessions:planned", tuple[str, str, dict[str, int]], list[Run]),
    "compare": ("graphflops.onnx_fix.sessions:compared", tuple[str, str, str, list[Run], bool], Verdict),
}


def done(step: str, arguments: bytes) -> bytes:
    """Do a step in the child process; its arguments and its result are JSON."""
    function, kind, _ = STEPS[step]
    return msgspec.json.encode(imported(function)(*msgspec.json.decode(arguments, type=kind)))
