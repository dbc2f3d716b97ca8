"""Contents of the tensors in an ONNX file, read when first needed; data in other files is never opened."""

from __future__ import annotations

import array
import mmap
import sys
from pathlib import Path
from typing import Any

from graphflops.dims import prod
from graphflops.errors import FileError, shown
from graphflops.exporters.onnx_proto import DROPPED, EXTERNAL, FIELDS, decode_error, fields, messages
from graphflops.exporters.onnx_values import dtype_of
from graphflops.graph import Stored
from graphflops.tensor import DType

_GRAPH, _NODE, _INITIALIZER = 7, 1, 5  # numbers of fields
_OUTPUT, _OP_TYPE, _ATTRIBUTE = 2, 4, 5  # of a node
_ATTRIBUTE_NAME, _ATTRIBUTE_TENSOR = 1, 5
_TENSOR_NAME, _RAW = 8, 9
_LETTERS = {"float_data": "f", "double_data": "d", "int64_data": "q", "uint64_data": "Q", "int32_data": "i"}


def stored(path: str, proto: Any, name: str) -> Stored | None:
    """What a stored tensor holds; None for data in another file and for elements that are not whole bytes.

    path: the file, "" for a model in memory. proto: the tensor without large data; None for a value that is not stored.
    name: its name in the program's own graph, "" where it is in another.
    Raises FileError where the data is not as long as its type needs.
    """
    if proto is None or proto.data_location == EXTERNAL:
        return None
    dtype, shape = dtype_of(proto.data_type), tuple(proto.dims)
    if dtype.bits % 8 or dtype.kind in ("complex", "other"):
        return None
    if any(entry.key == DROPPED for entry in proto.external_data):
        memory = _in_file(Path(path), name, dtype) if name and path else None
    else:
        memory = _held(proto, dtype)
    if memory is None:
        return None
    strides = tuple([prod(shape[axis + 1 :]) for axis in range(len(shape))])
    needed = prod(shape) * dtype.bits // 8
    if memory.nbytes != needed:
        what = (
            f"tensor {shown(proto.name or name)} needs {needed:,} bytes, and the file has {memory.nbytes:,}"
        )
        raise FileError(f"{shown(path)}: {what}: export the model again")
    return Stored(dtype, shape, strides, 0, memory)  # type: ignore[arg-type]


def _in_file(path: Path, name: str, dtype: DType) -> memoryview | None:
    """Data that was left out when the program was read."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
        data = memoryview(whole)
        try:
            begin, end = _place(data, name.encode())
            raw = [field for field in fields(data, begin, end) if field[0] == _RAW]
            if raw:
                return memoryview(bytearray(data[slice(*raw[-1][1:])]))
            proto = messages().TensorProto.FromString(bytes(data[begin:end]))
        except (IndexError, ValueError, decode_error()):
            return None
        finally:
            data.release()
    return _held(proto, dtype)


def _place(data: memoryview, name: bytes) -> tuple[int, int]:
    """Begin and end of a tensor of the program's own graph; raises ValueError if there is none of that name."""
    for number, at, end in fields(data, 0, len(data)):
        for inner, start, stop in fields(data, at, end) if number == _GRAPH else ():
            if inner == _INITIALIZER and _is(data, start, stop, _TENSOR_NAME, name):
                return start, stop
            if (
                inner == _NODE
                and _is(data, start, stop, _OUTPUT, name)
                and _is(data, start, stop, _OP_TYPE, b"Constant")
            ):
                for part, first, last in fields(data, start, stop):
                    if part == _ATTRIBUTE and _is(data, first, last, _ATTRIBUTE_NAME, b"value"):
                        for tensor, left, right in fields(data, first, last):
                            if tensor == _ATTRIBUTE_TENSOR:
                                return left, right
    raise ValueError


def _is(data: memoryview, at: int, end: int, number: int, text: bytes) -> bool:
    """True if a field of a message is that text; of one stated twice the last counts, as for every reader of protobuf."""
    stated = [(a, b) for found, a, b in fields(data, at, end) if found == number]
    return bool(stated) and data[slice(*stated[-1])] == text


def _held(proto: Any, dtype: DType) -> memoryview | None:
    """The data of a message as raw bytes; None if a number is too large for its type."""
    if proto.HasField("raw_data"):
        return memoryview(bytearray(proto.raw_data))
    name = FIELDS.get(dtype.name, "int32_data")
    try:
        numbers = array.array(_LETTERS[name], getattr(proto, name))
    except OverflowError:
        return None
    if sys.byteorder != "little":
        numbers.byteswap()
    held = memoryview(bytearray(numbers.tobytes()))
    width = dtype.bits // 8
    if width >= numbers.itemsize or numbers.itemsize % width:
        return held
    letter = {1: "B", 2: "H", 4: "I"}[width]
    return memoryview(bytearray(held.cast(letter)[:: numbers.itemsize // width].tobytes()))  # type: ignore[call-overload]
