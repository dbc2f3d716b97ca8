"""Inputs to run a program on: read from a file, or random ones within the ranges that the program allows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from graphflops.dims import Expr
from graphflops.errors import FileError, ModelError, shown
from graphflops.graph import Ref
from graphflops.runtime.tensors import dtype_of, numbers
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from graphflops.report import Report
    from graphflops.view import Call, View

_WIDEST = 2**20  # the largest value drawn from a range without an upper end


def random_inputs(report: Report, view: View, device: torch.device, seed: int = 0) -> dict[str, Any]:
    """One random tensor for each input of the program.

    Floats are normal; booleans are true, so that no mask hides anything by accident; integers are valid indices into the
    tensors that the program indexes by them, else within the range that the program states, else 1.
    Raises ModelError for a size that is not known.
    """
    generator = torch.Generator().manual_seed(seed)
    made: dict[str, Any] = {}
    for name, typed in report.inputs:
        shape, dtype = numbers(at_sizes(typed, report.values)), dtype_of(typed.dtype)
        if typed.dtype.is_floating:
            tensor = torch.randn(shape, generator=generator).to(dtype)
        elif typed.dtype.kind == "bool":
            tensor = torch.ones(shape, dtype=dtype)
        else:
            low, high = _range(view, name)
            tensor = torch.randint(low, high, shape, generator=generator).to(dtype)
        made[name] = tensor.to(device)
    return made


def at_sizes(typed: TensorType, values: Mapping[str, int]) -> TensorType:
    """The type with the known sizes substituted."""
    shape = tuple([size.substitute(values) if isinstance(size, Expr) else size for size in typed.shape])
    return TensorType(shape, typed.dtype)


def _range(view: View, name: str) -> tuple[int, int]:
    """The range (from, to before) of integers that every use of an input allows."""
    limits = [limit for limit in _limits(view, name) if limit is not None]
    lengths = [high for low, high in limits if low == 0]
    stated = [entry for entry in limits if entry[0] != 0]
    if lengths:
        return 0, max(min(lengths), 1)
    return stated[0] if stated else (1, 2)


def _limits(view: View, name: str) -> Iterator[tuple[int, int] | None]:
    """The range that each use of an input allows, directly or after its elements were moved or shifted by a constant."""
    waiting, seen = [(name, 0)], {name}
    while waiting:
        value, shift = waiting.pop()
        for call in view.users.get(value, []):
            length = _indexed_length(view, call, value)
            if length is not None:
                yield 0, length - shift
                continue
            op = call.operator
            if op.name == "item":
                yield _stated(view, call)
            more = 0
            if op.name in ("add", "sub", "rsub"):
                constant = call.argument("b")
                more = abs(constant) if isinstance(constant, int) else 0
            elif not op.moves_elements:
                continue
            for result in call.node.outputs:
                if result and result not in seen:
                    seen.add(result)
                    waiting.append((result, shift + more))


def _indexed_length(view: View, call: Call, value: str) -> int | None:
    """Length of the axis that a call indexes by the value; None if it does not use the value as an index."""
    op = call.operator
    source = view.types.get(call.value("weight") if op.is_embedding else call.value("x"))
    index = call.argument("index")
    if op.name == "one_hot":
        classes = call.argument("classes")
        return classes if isinstance(classes, int) and classes > 0 else None
    if op.kind == "loss" and call.value("labels") == value and source is not None:
        return _length(source, min(1, source.rank - 1))
    if op.is_embedding and call.value("offsets") == value:
        return 1  # offsets of bags: all zero are valid
    if op.kind not in ("gather", "scatter") or source is None:
        return None
    if isinstance(index, tuple):
        axes = [axis for axis, part in enumerate(index) if isinstance(part, Ref) and part.name == value]
        return _length(source, axes[0]) if axes else None
    if call.value("index") != value:
        return None
    if op.name == "take":  # it indexes all elements in their order in memory
        return source.numel if isinstance(source.numel, int) else None
    axis = call.argument("axis", 0)
    return _length(source, axis) if op.indexes_one_axis and isinstance(axis, int) else None


def _length(typed: TensorType, axis: int) -> int | None:
    if not -typed.rank <= axis < typed.rank:
        return None
    size = typed.shape[axis]
    return size if isinstance(size, int) else 1  # an open size is at least one


def _stated(view: View, call: Call) -> tuple[int, int] | None:
    """The range that the program states for a number that it reads from a tensor."""
    known = view.graph.types.get(call.result)
    symbol = view.graph.symbols.get(str(known))
    if symbol is None:
        return None
    low = max(symbol.minimum or 0, 1)
    return low, min(symbol.maximum or _WIDEST, low + 8) + 1


def inputs_from(path: str, device: torch.device) -> dict[str, Any]:
    """Tensors by name from a `.npz` or `.safetensors` file; nothing in it is unpickled. Raises FileError."""
    where = shown(path)
    try:
        if Path(path).suffix == ".safetensors":
            from safetensors.torch import load_file

            return dict(load_file(path, device=str(device)))
        import numpy

        with numpy.load(path, allow_pickle=False) as arrays:
            return {name: torch.from_numpy(arrays[name]).to(device) for name in arrays.files}
    except ImportError as missing:
        raise ModelError(f"{where}: reading it needs the package {missing.name}: install it") from None
    except FileNotFoundError:
        raise FileError(f"{where}: no such file") from None
    except Exception as error:  # noqa: BLE001 reading an untrusted file may raise anything
        reason = shown(str(error).partition("\n")[0], 160)
        raise FileError(f"{where}: not a .npz or .safetensors file of plain tensors ({reason})") from None


def checked(given: Mapping[str, Any], report: Report, device: torch.device) -> dict[str, Any]:
    """The given tensors on the device; ModelError if their names, shapes or types are not those of the program's inputs."""
    wanted = {name: at_sizes(typed, report.values) for name, typed in report.inputs}
    if wanted.keys() != given.keys():
        names = ", ".join(map(shown, wanted))
        odd = ", ".join(map(shown, sorted(wanted.keys() ^ given.keys())))
        raise ModelError(f"the program's inputs are {names}; the file differs in {odd}")
    for name, typed in wanted.items():
        tensor = given[name]
        if tuple(tensor.shape) != typed.shape or tensor.dtype != dtype_of(typed.dtype):
            held = f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
            raise ModelError(f"input {shown(name)} is {typed}, the file holds {held}")
    return {name: tensor.to(device) for name, tensor in given.items()}
