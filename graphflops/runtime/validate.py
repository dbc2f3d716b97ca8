"""Runs a program, one from a file in a child process, and compares its analysis: a .pt2 by torch, ONNX by onnxruntime."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from graphflops.analysis import as_graph
from graphflops.base.limits import SECONDS
from graphflops.errors import ModelError
from graphflops.exporters import reader_of, regular_file
from graphflops.graph import Graph
from graphflops.report import Report
from graphflops.runtime import isolated
from graphflops.runtime.counters import available
from graphflops.runtime.onnx_run import validate_onnx
from graphflops.runtime.validation import Validation

if TYPE_CHECKING:
    from graphflops.runtime.run import Run

_REPEATS = 5
_ONNX = "onnxruntime runs an ONNX file on the CPU: omit --device and --counters"


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
    options["profile"], limits = profile, isolated.ChildLimits(time_limit, memory_limit)
    counted = _countable(model, options) if counters == "hardware" else None
    found = _validated(model, repeats, options, limits, rule_files, nproc)
    return found if counted is None else isolated.with_counters(found, counted, options)


def _validated(
    model: object, repeats: int, options: dict[str, Any], limits: isolated.ChildLimits,
    rule_files: Sequence[str], nproc: int | None,
) -> Validation:  # fmt: skip
    """Validates a file in a child process with limits, a recorded step in several, and any other model in this process."""
    path = os.fsdecode(model) if isinstance(model, (str, os.PathLike)) else None
    is_recorded = path is not None and reader_of(regular_file(path)).name == "recorded"
    if nproc is not None and not is_recorded:
        raise ModelError("--nproc is of the file of a recorded step: leave it out")
    if path is None:
        return validate_here(model, repeats, **options)
    if is_recorded:
        return isolated.validate_ranks(path, nproc or 1, repeats, options, limits)
    return isolated.validate_file(path, repeats, options, limits, rule_files)


def validate_here(
    model: object, repeats: int, *, model_name: str | None, device: str, **options: Any
) -> Validation:
    """Validate in this process. options: dims, names, inputs, random_weights, seed, profile: see `validate`."""
    graph = as_graph(model, model_name)
    if graph.declared is None:
        return _prepared(graph, device=device, **options).validated(repeats)
    if device != "cpu" or not graph.origin.path:
        raise ModelError(_ONNX)
    with _needing("onnxruntime"):
        import onnxruntime  # type: ignore[import-untyped]  # noqa: F401
    return validate_onnx(graph, repeats, **options)


def _countable(model: object, options: Mapping[str, Any]) -> Report:
    """The analysis of a run. Raises ModelError if its hardware counters cannot be read."""
    graph = as_graph(model, options["model_name"])
    if graph.declared is not None:
        raise ModelError(_ONNX)
    if graph.step is not None:
        raise ModelError("--counters hardware runs programs, not recorded steps: leave it out")
    run = _prepared(graph, **options)
    if run.device.type != "cuda":
        raise ModelError("--counters hardware reads the counters of a GPU: give --device cuda")
    if not graph.origin.path:
        raise ModelError("--counters hardware runs the program in a separate process: save it to a file")
    if available() is None:
        raise ModelError("no Nsight Compute: put ncu on PATH (it comes with the CUDA toolkit)")
    return run.report


def _prepared(graph: Graph, **options: Any) -> Run:
    with _needing("runtime"):
        from graphflops.runtime.run import prepared
    return prepared(graph, **options)


@contextmanager
def _needing(extra: str) -> Iterator[None]:
    """For imports: if a package is missing, the error names the extra of graphflops that installs it."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.startswith("graphflops"):
            raise
        needs = f"running this model needs {missing.name}: pip install 'graphflops[{extra}]'"
        raise ModelError(needs) from None
