"""Inputs of an ONNX file as arrays of numpy: read from a file, or random ones within the ranges that it allows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphflops.errors import ModelError, shown
from graphflops.report import Report
from graphflops.runtime.input_plans import checked_names, input_plans, opened
from graphflops.tensor import DType
from graphflops.view import View


def random_arrays(report: Report, view: View, seed: int = 0) -> dict[str, Any]:
    """One random array for each input, as `random_inputs` makes tensors; texts are empty."""
    import numpy

    generator = numpy.random.default_rng(seed)
    made: dict[str, Any] = {}
    for name, typed, shape, (low, high) in input_plans(report, view):
        dtype = _dtype(typed.dtype)
        if typed.dtype.is_floating:
            made[name] = generator.standard_normal(shape, dtype=numpy.float32).astype(dtype)
        elif typed.dtype.kind == "bool":
            made[name] = numpy.ones(shape, dtype)
        elif typed.dtype.name == "string":
            made[name] = numpy.full(shape, "", dtype)
        else:
            made[name] = generator.integers(low, high, shape).astype(dtype)
    return made


def arrays_from(path: str) -> dict[str, Any]:
    """Arrays by name from a `.npz` or `.safetensors` file; nothing in it is unpickled. Raises FileError."""
    import numpy

    with opened(path):
        if Path(path).suffix == ".safetensors":
            from safetensors.numpy import load_file

            return dict(load_file(path))
        with numpy.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}


def checked_arrays(given: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """The given arrays; ModelError if their names, shapes or types are not those of the program's inputs."""
    for name, typed in checked_names(given, report).items():
        array = given[name]
        if tuple(array.shape) != typed.shape or array.dtype != _dtype(typed.dtype):
            held = f"{list(array.shape)} {array.dtype}"
            raise ModelError(f"input {shown(name)} is {typed}, the file holds {held}")
    return dict(given)


def _dtype(dtype: DType) -> Any:
    """Numpy's element type of that name; ModelError where there is none."""
    import ml_dtypes
    import numpy

    if dtype.name == "string":
        return numpy.dtype(object)
    try:
        return numpy.dtype(getattr(ml_dtypes, dtype.name, dtype.name))
    except TypeError:
        raise ModelError(f"numpy has no element type {shown(dtype.name)}") from None
