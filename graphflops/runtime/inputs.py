"""Inputs to run a program on: given in a file, or random ones that fit what the program does with them."""

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

_FREELY = 2**20  # a range without an end is used up to here
# Operators after which numbers are still what they were, elsewhere.
_MOVES = frozenset(
    (
        "view",
        "reshape",
        "_unsafe_view",
        "flatten",
        "squeeze",
        "unsqueeze",
        "expand",
        "permute",
        "transpose",
        "t",
        "clone",
        "contiguous",
        "alias",
        "detach",
        "_to_copy",
        "to",
        "slice",
        "select",
        "split",
        "split_with_sizes",
        "chunk",
        "cat",
        "stack",
        "repeat",
        "flip",
        "roll",
        "narrow",
        "lift_fresh_copy",
        "expand_as",
        "view_as",
        "unbind",
        "clamp",
        "clamp_min",
        "clamp_max",
        "where",
        "Cast",
        "Reshape",
        "Unsqueeze",
        "Squeeze",
        "Transpose",
        "Identity",
        "Slice",
        "Concat",
        "Expand",
        "Split",
        "Flatten",
        "Tile",
        "Where",
    )
)
# Operators that look places up: which operand is the table, which the axis (None: the first or an attribute; -1: none),
# which the places.
_LOOKS_UP: dict[str, tuple[int, int | None, int]] = {
    "embedding": (0, None, 1),
    "embedding_bag": (0, None, 1),
    "_embedding_bag": (0, None, 1),
    "_embedding_bag_forward_only": (0, None, 1),
    "index_select": (0, 1, 2),
    "gather": (0, 1, 2),
    "take_along_dim": (0, 2, 1),
    "scatter": (0, 1, 2),
    "scatter_add": (0, 1, 2),
    "scatter_reduce": (0, 1, 2),
    "index_copy": (0, 1, 2),
    "index_add": (0, 1, 2),
    "index_fill": (0, 1, 2),
    "take": (0, -1, 1),
    "Gather": (0, None, 1),
    "GatherElements": (0, None, 1),
    "ScatterElements": (0, None, 1),
}


def random_inputs(report: Report, view: View, device: torch.device, seed: int = 0) -> dict[str, Any]:
    """One tensor for each that a caller passes.

    Numbers are normal; truth values true, so that a mask hides nothing by accident; integers are places in the tables that
    the program looks them up in, else within the range that the program states, else 1.
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
    """The type with what is known of its sizes put in."""
    shape = tuple([size.substitute(values) if isinstance(size, Expr) else size for size in typed.shape])
    return TensorType(shape, typed.dtype)


def _range(view: View, name: str) -> tuple[int, int]:
    """From which number to before which one integers of an input fit all that the program does with them."""
    limits = [limit for limit in _limits(view, name) if limit is not None]
    tables = [high for low, high in limits if low == 0]
    stated = [entry for entry in limits if entry[0] != 0]
    if tables:
        return 0, max(min(tables), 1)
    return stated[0] if stated else (1, 2)


def _limits(view: View, name: str) -> Iterator[tuple[int, int] | None]:
    """What each use of an input, or of what is moved about of it, allows."""
    waiting, seen = [(name, 0)], {name}
    while waiting:
        value, shift = waiting.pop()
        for call in view.users.get(value, []):
            word = call.node.op.split(".")[1].rstrip("_") if call.node.op.count(".") else call.node.op
            high = _table(view, call, word, value)
            if high is not None:
                yield 0, high - shift
                continue
            if word in ("item", "_local_scalar_dense"):
                yield _stated(view, call)
            more = 0
            if word in ("add", "sub", "rsub", "Add", "Sub"):
                numbers_added = [x for x in call.given[1:2] if isinstance(x, int)]
                more = abs(numbers_added[0]) if numbers_added else 0
            elif word not in _MOVES:
                continue
            for result in call.node.outputs:
                if result and result not in seen:
                    seen.add(result)
                    waiting.append((result, shift + more))


def _table(view: View, call: Call, word: str, value: str) -> int | None:
    """Size of the axis that a call looks the value up along; None where it looks up nothing."""
    given = call.given
    if (
        word in ("index", "index_put", "_unsafe_index", "_unsafe_index_put")
        and len(given) > 1
        and isinstance(given[1], tuple)
    ):
        axes = [axis for axis, place in enumerate(given[1]) if isinstance(place, Ref) and place.name == value]
        table = view.types.get(call.operand(0))
        return _size(table, axes[0]) if axes and table is not None else None
    if word == "one_hot" and len(given) > 1 and isinstance(given[1], int):
        return given[1] if given[1] > 0 else None
    if word in ("nll_loss_forward", "nll_loss", "cross_entropy_loss", "nll_loss_nd", "nll_loss2d_forward"):
        scores = view.types.get(call.operand(0))
        return (
            _size(scores, min(1, scores.rank - 1))
            if scores is not None and call.operand(1) == value
            else None
        )
    if word not in _LOOKS_UP:
        return None
    if word.endswith(("embedding_bag", "forward_only")) and call.operand(2) == value:
        return 1  # where bags begin: the first at the start, and so may all
    at, axis, places = _LOOKS_UP[word]
    table = view.types.get(call.operand(at))
    if table is None or call.operand(places) != value:
        return None
    if axis == -1:
        return table.numel if isinstance(table.numel, int) else None
    where = call.attribute("axis", 0) if axis is None else given[axis] if len(given) > axis else 0
    return _size(table, where) if isinstance(where, int) else None


def _size(typed: TensorType | None, axis: int) -> int | None:
    if typed is None or not -typed.rank <= axis < typed.rank:
        return None
    size = typed.shape[axis]
    return size if isinstance(size, int) else 1  # an open size is at least one


def _stated(view: View, call: Call) -> tuple[int, int] | None:
    """The range that the program states of a number that it reads from a tensor."""
    known = view.graph.types.get(call.result)
    symbol = view.graph.symbols.get(str(known))
    if symbol is None:
        return None
    low = max(symbol.minimum or 0, 1)
    return low, min(symbol.maximum or _FREELY, low + 8) + 1


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
    except Exception as error:  # noqa: BLE001 whatever reading a stranger's file raises
        reason = shown(str(error).partition("\n")[0], 160)
        raise FileError(f"{where}: is no .npz or .safetensors file of plain tensors ({reason})") from None


def checked(given: Mapping[str, Any], report: Report, device: torch.device) -> dict[str, Any]:
    """The tensors given, on the device, once it is sure that they are what the program takes; ModelError where not."""
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
