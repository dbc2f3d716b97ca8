"""Runs a program and compares its analysis with the execution: a .pt2 by torch, an ONNX file by onnxruntime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from graphflops.analysis import analyze, as_graph
from graphflops.errors import ModelError
from graphflops.view import View

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphflops.graph import Graph
    from graphflops.runtime.run import Run
    from graphflops.runtime.validation import Validation

_REPEATS = 5


def validate(
    model: object,
    *,
    model_name: str | None = None,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Any] | str | None = None,
    device: str = "cpu",
    random_weights: bool = False,
    repeats: int = _REPEATS,
    seed: int = 0,
    counters: Literal["none", "hardware"] = "none",
) -> Validation:
    """Run a program and compare the analysis of each call with its execution.

    model: path of a `.pt2` or `.onnx`, a `Graph`, or a `torch.export.ExportedProgram` (one with flexible attention, say).
    dims: sizes by symbol (`s27`) or input axis (`ids[1]`). inputs: tensors by name, or a `.npz` or `.safetensors` file of
    them; random tensors by default. device: `cpu`, `cuda`, `cuda:1`.
    random_weights: use random weights instead of the stored ones, so that a program saved without weights runs too.
    repeats: number of timed runs after the first; 0 times nothing.
    counters: `hardware` runs a file once more under Nsight Compute, and compares the counts of the GPU.
    Raises FileError for an unreadable file, ModelError if the arguments contradict the program or the machine, RunError if
    the program cannot run.
    """
    graph = as_graph(model, model_name)
    options: dict[str, Any] = {"dims": dict(dims or {}), "inputs": inputs, "random_weights": random_weights}
    options["seed"] = seed
    if graph.declared is not None:
        if device != "cpu" or counters != "none" or not graph.origin.path:
            raise ModelError("onnxruntime runs an ONNX file on the CPU: omit --device and --counters")
        return _validated_onnx(graph, repeats, **options)
    run = _prepared(graph, device=device, **options)
    if counters == "hardware":
        run.refuse_uncountable()
    found = run.validated(repeats)
    if counters == "hardware":
        from graphflops.runtime.hardware import with_counters

        return with_counters(found, run.report, {**options, "model_name": model_name, "device": device})
    return found


def _prepared(graph: Graph, **options: Any) -> Run:
    try:
        from graphflops.runtime.run import prepared
    except ModuleNotFoundError as missing:
        raise _without(missing, "runtime") from None
    return prepared(graph, **options)


def _validated_onnx(
    graph: Graph,
    repeats: int,
    *,
    dims: Mapping[str, int],
    inputs: Mapping[str, Any] | str | None,
    random_weights: bool,
    seed: int,
) -> Validation:
    try:
        import onnxruntime  # type: ignore[import-untyped]  # noqa: F401

        from graphflops.runtime.onnx_inputs import arrays_from, checked_arrays, random_arrays
        from graphflops.runtime.onnx_run import validate_onnx
    except ModuleNotFoundError as missing:
        raise _without(missing, "onnxruntime") from None
    given = arrays_from(inputs) if isinstance(inputs, str) else inputs
    shapes = {name: tuple(array.shape) for name, array in given.items()} if given else None
    report = analyze(graph, dims=dims, inputs=shapes)
    try:
        view = View(graph, report.rows)
        arrays = random_arrays(report, view, seed) if given is None else checked_arrays(given, report)
    except MemoryError:
        raise ModelError("inputs of these sizes do not fit in memory: give smaller sizes by --dim") from None
    return validate_onnx(graph.origin.path, report, arrays, repeats, random_weights)


def _without(missing: ModuleNotFoundError, extra: str) -> Exception:
    """The error that says which extra of graphflops brings the missing package; a missing part of graphflops is a defect."""
    if missing.name is None or missing.name.startswith("graphflops"):
        return missing
    return ModelError(f"running this model needs {missing.name}: pip install 'graphflops[{extra}]'")
