"""Inputs to run a program on as tensors of torch: read from a file, or random ones within the ranges that it allows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from graphflops.errors import ModelError, shown
from graphflops.report import Report
from graphflops.runtime.input_plans import checked_names, input_plans, opened
from graphflops.runtime.tensors import dtype_of
from graphflops.view import View


def random_inputs(report: Report, view: View, device: torch.device, seed: int = 0) -> dict[str, Any]:
    """One random tensor for each input of the program.

    Floats are normal; booleans are true, so that no mask hides anything by accident; integers are valid indices into the
    tensors that the program indexes by them, else within the range that the program states, else 1.
    Raises ModelError for a size that is not known.
    """
    generator = torch.Generator().manual_seed(seed)
    made: dict[str, Any] = {}
    for name, typed, shape, (low, high) in input_plans(report, view):
        dtype = dtype_of(typed.dtype)
        if typed.dtype.is_floating:
            tensor = torch.randn(shape, generator=generator).to(dtype)
        elif typed.dtype.kind == "bool":
            tensor = torch.ones(shape, dtype=dtype)
        else:
            tensor = torch.randint(low, high, shape, generator=generator).to(dtype)
        made[name] = tensor.to(device)
    return made


def inputs_from(path: str, device: torch.device) -> dict[str, Any]:
    """Tensors by name from a `.npz` or `.safetensors` file; nothing in it is unpickled. Raises FileError."""
    with opened(path):
        if Path(path).suffix == ".safetensors":
            from safetensors.torch import load_file

            return dict(load_file(path, device=str(device)))
        import numpy

        with numpy.load(path, allow_pickle=False) as arrays:
            return {name: torch.from_numpy(arrays[name]).to(device) for name in arrays.files}


def checked(given: Mapping[str, Any], report: Report, device: torch.device) -> dict[str, Any]:
    """The given tensors on the device; ModelError if their names, shapes or types are not those of the program's inputs."""
    for name, typed in checked_names(given, report).items():
        tensor = given[name]
        if tuple(tensor.shape) != typed.shape or tensor.dtype != dtype_of(typed.dtype):
            held = f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
            raise ModelError(f"input {shown(name)} is {typed}, the file holds {held}")
    return {name: tensor.to(device) for name, tensor in given.items()}
