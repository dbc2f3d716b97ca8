"""Stored tensors of an ONNX model: their types, their contents, and where their data contradict them.

Data stand in exactly one place: the raw field, the field that the element type uses, or another file, which is not opened.
Contents that are not small are read when first needed. onnxruntime loads no tensor whose data are longer or shorter than its
type needs.
"""

from __future__ import annotations

import array
import mmap
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import cycle
from typing import Any, NamedTuple

from graphflops.dims import at_least, prod
from graphflops.errors import FileError, shown
from graphflops.exporters import onnx_proto
from graphflops.graph import Stored
from graphflops.rules.shapes import nested
from graphflops.tensor import DType, TensorType, flat

Complain = Callable[[str], None]


_GRAPH, _NODE, _INITIALIZER = 7, 1, 5  # numbers of fields
_OUTPUT, _OP_TYPE, _ATTRIBUTE = 2, 4, 5  # of a node
_ATTRIBUTE_NAME, _ATTRIBUTE_TENSOR = 1, 5
_TENSOR_NAME, _RAW = 8, 9
_OF_FIELDS = {"float_data": "f", "double_data": "d", "int64_data": "q", "uint64_data": "Q", "int32_data": "i"}


def stored(path: str, proto: Any, name: str) -> Stored | None:
    """The contents of a stored tensor; None for data in another file, and for elements that are not whole bytes.

    path: the file, "" for a model in memory. proto: the tensor without large data; None for a value that is not stored.
    name: its name in the program's own graph, "" if it is in another graph.
    Raises FileError if the data does not have the length that its type needs.
    """
    if proto is None or proto.data_location == onnx_proto.EXTERNAL:
        return None
    dtype, shape = onnx_proto.dtype_of(proto.data_type), tuple(proto.dims)
    if dtype.bits % 8 or dtype.kind in ("complex", "other"):
        return None
    try:
        if any(entry.key == onnx_proto.DROPPED for entry in proto.external_data):
            memory = _in_file(path, name, dtype) if name and path else None
        else:
            memory = _held(proto, dtype)
    except OverflowError:
        return None
    if memory is None:
        return None
    strides = tuple([prod(shape[axis + 1 :]) for axis in range(len(shape))])
    needed = prod(shape) * dtype.bits // 8
    if memory.nbytes != needed:
        there = f"needs {needed:,} bytes, and the file has {memory.nbytes:,}"
        what = f"tensor {shown(proto.name or name)} {there}"
        raise FileError(f"{shown(path)}: {what}: export the model again")
    return Stored(dtype, shape, strides, 0, memory)  # type: ignore[arg-type]


def _in_file(path: str, name: str, dtype: DType) -> memoryview | None:
    """Data that was left out when the program was read."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
        data = memoryview(whole)
        try:
            begin, end = _place(data, name.encode())
            raw = [field for field in onnx_proto.fields(data, begin, end) if field[0] == _RAW]
            if raw:
                return memoryview(bytearray(data[slice(*raw[-1][1:3])]))
            proto = onnx_proto.messages().TensorProto.FromString(bytes(data[begin:end]))
        except (IndexError, ValueError, onnx_proto.decode_error()):
            return None
        finally:
            data.release()
    return _held(proto, dtype)


def _place(data: memoryview, name: bytes) -> tuple[int, int]:
    """Begin and end of a tensor of the program's own graph; raises ValueError if there is none with that name."""
    for number, at, end, _ in onnx_proto.fields(data, 0, len(data)):
        for inner, start, stop, _ in onnx_proto.fields(data, at, end) if number == _GRAPH else ():
            stated = partial(_is, data, start, stop)
            if inner == _INITIALIZER and stated(_TENSOR_NAME, name):
                return start, stop
            if inner == _NODE and stated(_OUTPUT, name) and stated(_OP_TYPE, b"Constant"):
                for part, first, last, _ in onnx_proto.fields(data, start, stop):
                    if part == _ATTRIBUTE and _is(data, first, last, _ATTRIBUTE_NAME, b"value"):
                        for tensor, left, right, _ in onnx_proto.fields(data, first, last):
                            if tensor == _ATTRIBUTE_TENSOR:
                                return left, right
    raise ValueError


def _is(data: memoryview, at: int, end: int, number: int, text: bytes) -> bool:
    """Whether a field of a message is that text; a field that is stated twice has its last value, as protobuf says."""
    stated = [data[a:b] for found, a, b, _ in onnx_proto.fields(data, at, end) if found == number]
    return bool(stated) and stated[-1] == text


def _held(proto: Any, dtype: DType) -> memoryview:
    """The data of a message in the layout of raw data. Raises OverflowError for a number that its type has no room for.

    Where a number of `int32_data` is too large, onnxruntime takes the lowest bits of an integer, refuses a float, and
    takes any bit of a truth value: 256 is true.
    """
    if proto.HasField("raw_data"):
        return memoryview(bytearray(proto.raw_data))
    name, width = onnx_proto.FIELDS.get(dtype.name, "int32_data"), max(dtype.bits // 8, 1)
    numbers = array.array(_OF_FIELDS[name], getattr(proto, name))
    if dtype.kind == "bool":
        return memoryview(bytearray(map(bool, numbers)))
    refused = width < numbers.itemsize and (dtype.kind == "float" or name == "uint64_data")
    if refused and any(number >> dtype.bits for number in numbers):
        raise OverflowError
    if sys.byteorder != "little":
        numbers.byteswap()
    held = memoryview(bytearray(numbers.tobytes()))
    if width >= numbers.itemsize:
        return held
    letter = {1: "B", 2: "H", 4: "I"}[width]
    return memoryview(bytearray(held.cast(letter)[:: numbers.itemsize // width].tobytes()))  # type: ignore[call-overload]


MOST_INTEGERS = 64  # elements of a tensor whose contents are kept
MOST_FLOATS = 16
HOLD = frozenset({"raw_data", "int32_data", *onnx_proto.FIELDS.values()})
_WIDTHS = {"raw_data": 1, "float_data": 4, "double_data": 8}  # bytes of an entry; an integer takes one to ten
_ELSEWHERE = "another file"
_NAMES = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 bfloat16 float32 float64"
_LETTERS = dict(zip(_NAMES.split(), "BbBhHiIqQeHfd", strict=True))  # of `struct`


class _Place(NamedTuple):
    """Where data of a tensor stand, and how many entries (bytes, of raw data) there are at least and at most."""

    name: str
    fewest: int
    most: int


def tensor_of(proto: Any, name: str, complain: Complain) -> TensorType:
    """The type of a stored tensor, with its contents if it is small and stored in the file itself."""
    onnx_proto.checked(name), onnx_proto.checked(proto.name)
    bare = TensorType(_sizes(proto, name), onnx_proto.dtype_of(proto.data_type))
    assert isinstance(bare.nbytes, int)
    onnx_proto.require_holdable(f"tensor {shown(name)}", list(proto.dims), bare.nbytes)
    places, dtype, elements = _places(proto), bare.dtype, onnx_proto.number_of_elements(bare)
    if problem := _contradiction(proto, bare, places):
        complain(f"tensor {shown(name)} is {bare}, {problem}")
        return bare
    is_here = places and places[0].name != _ELSEWHERE
    if not is_here or not _is_small(bare) or dtype.name not in ("int4", "uint4", *_LETTERS):
        return bare
    try:
        raw = _held(proto, dtype)
        numbers: Sequence[Any]
        if dtype.bits == 4:
            nibbles = [part for byte in raw for part in (byte & 15, byte >> 4)][:elements]
            numbers = [part - 16 if dtype.kind == "int" and part > 7 else part for part in nibbles]
        else:
            numbers = struct.unpack(f"<{elements}{_LETTERS[dtype.name]}", raw)
    except (struct.error, OverflowError):
        complain(f"tensor {shown(name)} is {bare}, and holds a number that its type has no room for")
        return bare
    if dtype.name == "bfloat16":
        numbers = struct.unpack(f"<{elements}f", b"".join(struct.pack("<I", bits << 16) for bits in numbers))
    if dtype.kind == "bool":
        numbers = [int(number != 0) for number in numbers]
    return TensorType(bare.shape, dtype, value=nested(iter(numbers), tuple(proto.dims)))


def sparse_of(proto: Any, name: str, complain: Complain) -> TensorType:
    """The type of a sparse tensor: runtimes make it dense when they load the file."""
    stored = tensor_of(proto.values, name, complain)
    whole = TensorType(_sizes(proto, name), stored.dtype)
    count, axes = stored.numel, tuple(proto.indices.dims)  # one per number, or one for each of its axes
    what = f"sparse tensor {shown(name)} is {whole}, but stores"
    if at_least(count, whole.numel + 1) or axes not in ((count,), (count, whole.rank)):
        complain(f"{what} {count} elements at indices {list(axes)}")
        return whole
    places = flat((tensor_of(proto.indices, name, complain).value or (),))
    limits = cycle(whole.shape if len(axes) == 2 else (whole.numel,))
    if not all(0 <= place < limit for place, limit in zip(places, limits, strict=False)):
        complain(f"{what} an element outside of it")
    return whole


def constant_of(attributes: Mapping[str, Any], name: str, complain: Complain) -> TensorType | None:
    """The value of a Constant node; None if no attribute has it. FileError if two do, of which runtimes take the first."""
    stated = [key for key in attributes if key.startswith(("value", "sparse_value"))]
    if len(stated) > 1:
        raise FileError(f"the constant {shown(name)} has two values, {' and '.join(map(shown, stated[:2]))}")
    for key in stated:
        attribute = attributes[key]
        if key == "value":
            return tensor_of(attribute.t, name, complain)
        if key == "sparse_value":
            return sparse_of(attribute.sparse_tensor, name, complain)
        word = key.removeprefix("value_")
        if word.removesuffix("s") in _LITERALS:
            dtype, field = _LITERALS[word.removesuffix("s")]
            is_list = word.endswith("s")
            values = tuple(getattr(attribute, word)) if is_list else getattr(attribute, field)
            shape = (len(values),) if is_list else ()
            small = dtype != 8 and len(shape and values) <= MOST_INTEGERS
            return TensorType(shape, onnx_proto.dtype_of(dtype), value=values if small else None)
    return None


# Element types, and fields of one number.
_LITERALS = {"float": (1, "f"), "int": (7, "i"), "string": (8, "s")}


def stored_names(graph: Any) -> frozenset[str]:
    """Names of the stored tensors of a graph."""
    dense = [tensor.name for tensor in graph.initializer]
    return frozenset([*dense, *(tensor.values.name for tensor in graph.sparse_initializer)])


def memory_of(tensor: Any) -> tuple[Any, ...]:
    """Location of a tensor's data in another file, equal for tensors that share it; () if the file states none."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if tensor.data_location != onnx_proto.EXTERNAL or entries.keys().isdisjoint(("offset", "length")):
        return ()
    return tuple(entries.get(key, "") for key in ("location", "offset", "length"))


def _sizes(proto: Any, name: str) -> tuple[int, ...]:
    """The shape that a dense or sparse tensor states."""
    onnx_proto.require_axes(len(proto.dims))
    if any(size < 0 for size in proto.dims):
        raise FileError(f"tensor {shown(name)} has a negative size: {list(proto.dims)}")
    return tuple(proto.dims)


# Where data stand


def _places(proto: Any) -> list[_Place]:
    """Every place where data of a tensor stand, in the file (also where it was left out on reading) or in another."""
    found = [_Place(x.name, len(held), len(held)) for x, held in proto.ListFields() if x.name in HOLD]
    entries = [(entry.key, entry.value) for entry in proto.external_data]
    for key, text in entries:
        if key == onnx_proto.DROPPED:
            field, _, length = text.partition(":")
            nbytes, width = _number(length), _WIDTHS.get(f"{field}_data")
            entries_in = (-(-nbytes // 10), nbytes) if width is None else (nbytes // width, nbytes // width)
            found.append(_Place(f"{field}_data", *entries_in))
    if proto.data_location == onnx_proto.EXTERNAL:
        told = _number(dict(entries).get("length", ""))  # without a length, the rest of the file
        found.append(_Place(_ELSEWHERE, told, told or 2**63))
    return found


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


def _contradiction(proto: Any, tensor: TensorType, places: Sequence[_Place]) -> str:
    """Where the data of a tensor are not what its type needs, in words; "" where they are.

    A tensor without data is a weight that somebody left out, if it is not one that decides on sizes.
    """
    nbytes, elements, dtype = tensor.nbytes, onnx_proto.number_of_elements(tensor), tensor.dtype
    assert isinstance(nbytes, int)
    if len(places) > 1:
        return f"but has data twice: in {places[0].name} and in {places[1].name}"
    if not places:
        decides = dtype.kind in ("int", "uint", "bool") and elements and _is_small(tensor)
        return f"{nbytes} bytes, but its data in the file has 0" if decides else ""
    place, own = places[0], onnx_proto.FIELDS.get(dtype.name, "int32_data")
    keys = [entry.key for entry in proto.external_data]
    if place.name == _ELSEWHERE and len({*keys}) < len(keys):
        return "but tells twice where its data is in another file"
    if place.name in (_ELSEWHERE, "raw_data"):
        where, unit, needed = "another file" if place.name == _ELSEWHERE else "the file", "bytes", nbytes
    elif place.name != own:
        return f"but its data is in {place.name}, and that of {dtype} belongs in {own}"
    else:
        packed = nbytes if dtype.bits < 8 else elements
        where, unit, needed = "the file", "numbers", 2 * elements if dtype.kind == "complex" else packed
    if place.fewest <= needed <= place.most:
        return ""
    return f"{needed} {unit}, but its data in {where} has {place.fewest}"


def _is_small(tensor: TensorType) -> bool:
    """True for a tensor whose contents sizes may follow from."""
    rows = prod([max(size, 1) for size in tensor.shape])  # type: ignore[type-var]  # 2^40 rows without elements are many
    most = MOST_FLOATS if tensor.dtype.kind == "float" else MOST_INTEGERS
    return at_least(most, rows) and tensor.dtype.kind not in ("complex", "other")
