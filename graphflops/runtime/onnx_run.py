"""Runs an ONNX file in onnxruntime, and compares the type of every value with the derived type."""

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, groupby
from timeit import repeat
from typing import Any

from graphflops.analysis import analyze
from graphflops.dims import evaluate
from graphflops.errors import FileError, ModelError, RunError, shown
from graphflops.graph import Graph
from graphflops.open_sizes import of_report
from graphflops.report import Report
from graphflops.runtime.input_plans import checked, random_values, stored
from graphflops.runtime.validation import CheckResult, NodeResult, RunSizes, Validation
from graphflops.tensor import DType, TensorType
from graphflops.view import View

_AT_ONCE = 2**31  # bytes of values that one run returns
_INNER = "a value inside a nested graph or function, which onnxruntime does not return"
_NAMES = {"object": "string", "str_": "string"}


def validate_onnx(
    graph: Graph, repeats: int, *, inputs: Mapping[str, Any] | str | None, random_weights: bool, seed: int,
    profile: str | None, **sizes: Any,
) -> Validation:  # fmt: skip
    """Run an ONNX file without optimizations. Options as of `validate`. Raises RunError if onnxruntime does not run it."""
    given = stored(inputs, "numpy") if isinstance(inputs, str) else inputs
    shapes = {name: tuple(array.shape) for name, array in given.items()} if given else None
    report = analyze(graph, inputs=shapes, device=profile, fused=False, **sizes)
    try:
        view = View(graph, report.rows)
        arrays = random_arrays(report, view, seed) if given is None else checked(given, report, dtype_of)
    except MemoryError:
        raise ModelError("inputs of these sizes do not fit in memory: give smaller sizes by --dim") from None
    return _run_file(graph.origin.path, report, arrays, repeats, random_weights)


def _run_file(
    path: str, report: Report, inputs: Mapping[str, Any], repeats: int, random_weights: bool
) -> Validation:
    import onnx
    import onnxruntime  # type: ignore[import-untyped]

    model = onnx.load(path, load_external_data=False)
    _check_external(model, path, random_weights)
    sizes = RunSizes(dict(report.values))
    made = [name for node in model.graph.node if node.op_type != "Constant" for name in node.output if name]
    stated = {value.name for value in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made if name not in stated)
    try:
        session = opened_session(model.SerializeToString(), os.path.dirname(os.path.abspath(path)))
    except RunError as error:
        advice = ": use --random-weights" if "xternal data" in str(error.__cause__) else ""
        raise RunError(f"{shown(path)}: {error}{advice}") from None
    feed = {entry.name: inputs[entry.name] for entry in session.get_inputs() if entry.name in inputs}
    real: dict[str, tuple[str, tuple[int, ...]]] = {}
    for names in _portions(made, report):
        real.update(zip(names, map(_type, _run(session, names, feed)), strict=True))
    outputs = [value.name for value in model.graph.output if value.name in stated]
    seconds = repeat(partial(_run, session, outputs, feed), repeat=repeats, number=1)
    return Validation(
        path=path,
        device=f"onnxruntime {onnxruntime.__version__}, CPU",
        torch="",
        sizes=sizes.known,
        nodes=tuple(_results(report, real, sizes)),
        stated=of_report(report).values(sizes.known),
        predicted_peak_bytes=None,
        seconds=sorted(seconds)[len(seconds) // 2] if seconds else None,
        profile=report.device or "",
        predicted=report.totals.time if seconds else None,
    )


def _results(
    report: Report, real: Mapping[str, tuple[str, tuple[int, ...]]], sizes: RunSizes
) -> Iterator[NodeResult]:
    for place, row in enumerate(report.rows):
        checks = [sizes.check(typed, *real[name]) for name, typed in row.outputs if name in real]
        ran = bool(checks)
        if not ran and row.outputs:
            checks.append(CheckResult("type", "explained", "", "", _INNER))
        flops = evaluate(row.cost.matrix_flops, sizes.known)
        moved = evaluate(row.cost.moved_bytes, sizes.known)
        named = place, row.node, row.op, row.module
        yield NodeResult(*named, tuple(checks), int(ran), flops, moved, row.matrix_dtype)


def _check_external(model: Any, path: str, random_weights: bool) -> None:
    """Replace external weights by small random numbers, if wanted; else raise FileError for data outside the folder."""
    import numpy
    from onnx import helper, numpy_helper

    for tensor in model.graph.initializer:
        if random_weights and tensor.external_data:
            dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
            numbers = numpy.random.default_rng(0).normal(0, 0.02, tuple(tensor.dims)).astype(dtype)
            tensor.CopyFrom(numpy_helper.from_array(numbers, tensor.name))
        for entry in tensor.external_data:
            parts = entry.value.replace("\\", "/").split("/")
            if entry.key == "location" and (".." in parts or parts[0] == "" or ":" in parts[0]):
                where = f"{shown(tensor.name)} is stored at {shown(entry.value)}"
                raise FileError(f"{shown(path)}: {where}, outside the model's folder")


def opened_session(model: bytes, folder: str, *, is_alike: bool = False) -> Any:
    """A session for a model, without optimizations. folder: where its external data are. Raises RunError.

    is_alike: products with a stored factor use the same kernel and order of sums as those with a computed factor.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    if is_alike:
        options.add_session_config_entry("session.disable_prepacking", "1")
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    try:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise RunError(f"onnxruntime does not load it: {line_of(error)}") from error


def _run(session: Any, names: Sequence[str], feed: Mapping[str, Any]) -> list[Any]:
    try:
        found: list[Any] = session.run(list(names), dict(feed))
    except Exception as error:  # noqa: BLE001 onnxruntime's own errors have no common base
        raise RunError(f"onnxruntime cannot run it: {line_of(error)}") from None
    return found


def _portions(names: Sequence[str], report: Report) -> Iterator[list[str]]:
    """Lists of values, each for one run to return, so that the values of a run fit in memory."""
    types = {name: typed for row in report.rows for name, typed in row.outputs}
    made = map(types.get, names)
    sizes = [report.value(typed.nbytes) or 0 if isinstance(typed, TensorType) else 0 for typed in made]
    ends = zip(accumulate(sizes), names, strict=True)
    for _, portion in groupby(ends, lambda end: end[0] // _AT_ONCE):
        yield [name for _, name in portion]


def _type(value: Any) -> tuple[str, tuple[int, ...]]:
    """Element type and shape; for a value that is not a tensor, the name of its class."""
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return type(value).__name__, ()
    name = str(getattr(dtype, "name", dtype))
    return _NAMES.get(name, name), tuple(value.shape)


def line_of(error: Exception) -> str:
    """The message of onnxruntime in one short line."""
    return shown(" ".join(str(error).split()), 240)


def random_arrays(report: Report, view: View, seed: int = 0) -> dict[str, Any]:
    """One random array for each input of the program, as `random_values` says; strings are empty."""
    import numpy

    generator = numpy.random.default_rng(seed)
    normal = partial(generator.standard_normal, dtype=numpy.float32)
    made = random_values(report, view, normal, numpy.ones, generator.integers)
    return {
        name: numpy.full(numbers.shape, "", object)
        if dtype.name == "string"
        else numbers.astype(dtype_of(dtype))
        for name, dtype, numbers in made
    }


def dtype_of(dtype: DType) -> Any:
    """Numpy's element type with that name. Raises ModelError if there is none."""
    import ml_dtypes
    import numpy

    if dtype.name == "string":
        return numpy.dtype(object)
    try:
        return numpy.dtype(getattr(ml_dtypes, dtype.name, dtype.name))
    except TypeError:
        raise ModelError(f"numpy has no element type {shown(dtype.name)}") from None
