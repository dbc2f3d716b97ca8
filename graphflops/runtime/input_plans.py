"""Inputs on which a program can run: random ones, by shape and range of integers, or those of a file. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from graphflops.base import files
from graphflops.base.lazy import imported
from graphflops.dims import Expr
from graphflops.errors import FileError, ModelError, shown
from graphflops.graph import Ref
from graphflops.open_sizes import of_report
from graphflops.report import Report
from graphflops.report.size_names import collapsed
from graphflops.tensor import DType, TensorType
from graphflops.view import Call, View

_WIDEST = 2**20  # the largest value drawn from a range without an upper end
LARGEST = 2**40  # elements
Maker = Callable[..., Any]  # of a library: random numbers or ones of a shape


def random_values(
    report: Report, view: View, normal: Maker, ones: Maker, integers: Maker
) -> Iterator[tuple[str, DType, Any]]:
    """For each input of the program its name, its element type, and random numbers, as functions of a library make them.

    Floats are normal; booleans are true, so that no mask hides anything by accident; integers are valid indices into the
    tensors that the program indexes by them, else within the range that the program states, else 1.
    Raises ModelError, which names all sizes without a value.
    """
    types = {name: at_sizes(typed, report.values) for name, typed in report.inputs}
    unknown = [size for typed in types.values() for size in typed.shape if not isinstance(size, int)]
    if unknown:
        names = dict.fromkeys(name for size in unknown for name in sorted(size.symbols))
        stated = collapsed(of_report(report).stated[name].name for name in names)
        raise ModelError(f"sizes are unknown: give {', '.join(f'--dim {shown(name)}=N' for name in stated)}")
    for name, typed in types.items():
        if isinstance(typed.numel, int) and typed.numel > LARGEST:
            raise ModelError(f"input {shown(name)}, {shown(str(typed))}, does not fit in memory")
        if typed.dtype.is_floating:
            yield name, typed.dtype, normal(typed.shape)
        elif typed.dtype.kind == "bool":
            yield name, typed.dtype, ones(typed.shape)
        else:
            yield name, typed.dtype, integers(*_range(view, name), typed.shape)


def checked(given: Mapping[str, Any], report: Report, dtype_of: Callable[[DType], object]) -> dict[str, Any]:
    """The given arrays. Raises ModelError if their names, shapes or types are not those of the program's inputs."""
    wanted = {name: at_sizes(typed, report.values) for name, typed in report.inputs}
    if wanted.keys() != given.keys():
        names = ", ".join(map(shown, wanted))
        odd = ", ".join(map(shown, sorted(wanted.keys() ^ given.keys())))
        raise ModelError(f"the program's inputs are {names}; the file differs in {odd}")
    for name, typed in wanted.items():
        array = given[name]
        if tuple(array.shape) != typed.shape or array.dtype != dtype_of(typed.dtype):
            held = f"{list(array.shape)} {str(array.dtype).removeprefix('torch.')}"
            raise ModelError(f"input {shown(name)} is {typed}, the file holds {held}")
    return dict(given)


def at_sizes(typed: TensorType, values: Mapping[str, int]) -> TensorType:
    """The type with the known sizes substituted."""
    shape = tuple([size.substitute(values) if isinstance(size, Expr) else size for size in typed.shape])
    return TensorType(shape, typed.dtype)


def _range(view: View, name: str) -> tuple[int, int]:
    """The half-open range of integers that every use of an input allows, also after calls that move or shift them."""
    lengths, stated = list[int](), list[tuple[int, int]]()
    waiting, seen = [(name, 0)], {name}
    while waiting:
        value, shift = waiting.pop()
        for call in view.users.get(value, []):
            length = _indexed_length(view, call, value)
            if length is not None:
                lengths.append(length - shift)
                continue
            op = call.operator
            symbols = view.graph.symbols
            if op.name == "item" and (symbol := symbols.get(str(view.graph.types.get(call.result)))):
                low = max(symbol.minimum or 0, 1)  # least value of a size that is read from a tensor
                stated.append((low, min(symbol.maximum or _WIDEST, low + 8) + 1))
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
    if lengths:
        return 0, max(min(lengths), 1)
    return stated[0] if stated else (1, 2)


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
        return 1  # for offsets of bags, zeros are valid
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


def stored(path: str, library: str, made: Callable[[Any], Any] = lambda array: array) -> dict[str, Any]:
    """Arrays by name from a `.npz` or `.safetensors` file; nothing in it is unpickled.

    library: `numpy` or `torch`, whose arrays safetensors makes. made: applied to each array.
    Raises FileError, in one line, for anything that is wrong with the file.
    """
    where = shown(path)
    try:
        files.opened(path).close()
        if Path(path).suffix == ".safetensors":
            found = imported(f"safetensors.{library}:load_file")(path)
        else:
            with imported("numpy:load")(path, allow_pickle=False) as arrays:
                found = {name: arrays[name] for name in arrays.files}
        return {name: made(array) for name, array in found.items()}
    except FileError:
        raise
    except ImportError as missing:
        raise ModelError(f"{where}: reading it needs the package {missing.name}: install it") from None
    except FileNotFoundError:
        raise FileError(f"{where}: no such file") from None
    except Exception as error:  # noqa: BLE001 reading an untrusted file may raise anything
        said = str(error).partition("\n")[0]
        # numpy's message advises to unpickle objects
        reason = "it holds objects, which are not unpickled" if "allow_pickle" in said else shown(said, 160)
        raise FileError(f"{where}: not a .npz or .safetensors file of plain tensors ({reason})") from None
