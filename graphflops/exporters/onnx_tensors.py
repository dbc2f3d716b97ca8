"""Stored tensors of an ONNX model: their types, their contents, and where their data contradict their types.

The data are in one place: the raw field, the field for the element type, or another file, which is never opened. onnxruntime
refuses data that are longer or shorter than the type needs. Large contents are read when they are first needed.
"""

import array
import os
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Any, NamedTuple

from graphflops.dims import at_least, prod
from graphflops.errors import FileError, shown
from graphflops.exporters import onnx_proto
from graphflops.graph import Stored
from graphflops.rules.shapes import nested
from graphflops.tensor import DType, TensorType, flat

Complain = Callable[[str], None]

_OF_FIELDS = {"float_data": "f", "double_data": "d", "int64_data": "q", "uint64_data": "Q", "int32_data": "i"}


def stored(path: str, proto: Any) -> Stored | None:
    """The contents of a stored tensor; None if its data are in another file, or its elements are not whole bytes.

    proto: without large data; None if the value is not stored. Raises FileError for data of another length than its type's.
    """
    if proto is None or proto.data_location == onnx_proto.EXTERNAL:
        return None
    dtype, shape = onnx_proto.dtype_of(proto.data_type), tuple(proto.dims)
    if dtype.bits % 8 or dtype.kind in ("complex", "other"):
        return None
    dropped = onnx_proto.dropped(proto)
    try:
        memory = _in_file(path, dropped[-1], dtype) if dropped else _held(proto, dtype)
    except OverflowError:
        return None
    if memory is None:
        return None
    strides = tuple([prod(shape[axis + 1 :]) for axis in range(len(shape))])
    needed = prod(shape) * dtype.bits // 8
    if memory.nbytes != needed:
        what = f"tensor {shown(proto.name)} needs {needed:,} bytes, and the file has {memory.nbytes:,}"
        raise FileError(f"{shown(path)}: {what}: export the model again")
    return Stored(dtype, shape, strides, 0, memory)  # type: ignore[arg-type]


def _in_file(path: str, place: onnx_proto.Dropped, dtype: DType) -> memoryview | None:
    """Data that were dropped when the program was read; None if the file no longer has them."""
    with open(path, "rb") as file:
        if place.begin + place.length > os.fstat(file.fileno()).st_size:
            return None
        data = bytearray(place.length)
        file.seek(place.begin)
        file.readinto(data)
    if place.field == "raw_data":
        return memoryview(data)
    try:
        return _held(onnx_proto.tensor_of_field(place.field, bytes(data)), dtype)
    except onnx_proto.decode_error():
        return None


def _held(proto: Any, dtype: DType) -> memoryview:
    """The data of a message in the layout of `raw_data`. Raises OverflowError for a number too large for a float type.

    As in onnxruntime, an integer type takes the lowest bits, and any nonzero number is true, even 256.
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


MOST_FLOATS = 16  # elements of a tensor whose contents are kept; of integers, SMALL
HOLD = frozenset({"raw_data", "int32_data", *onnx_proto.FIELDS.values()})
_WIDTHS = {"raw_data": 1, "float_data": 4, "double_data": 8}  # bytes of an entry; an integer takes one to ten
_ELSEWHERE = "another file"
_NAMES = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 bfloat16 float32 float64"
_LETTERS = dict(zip(_NAMES.split(), "BbBhHiIqQeHfd", strict=True))  # of `struct`


class _Place(NamedTuple):
    """One place with data of a tensor, with the least and greatest number of entries there (of bytes, for raw data)."""

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
    """The type of a sparse tensor, which is a dense one: runtimes make it dense when they load the file."""
    stored = tensor_of(proto.values, name, complain)
    whole = TensorType(_sizes(proto, name), stored.dtype)
    count, axes = stored.numel, tuple(proto.indices.dims)  # one index per number, or one for each axis
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
    """The value of a Constant node; None if no attribute has it. Raises FileError if two do: runtimes take the first."""
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
            small = dtype != 8 and len(shape and values) <= onnx_proto.SMALL
            return TensorType(shape, onnx_proto.dtype_of(dtype), value=values if small else None)
    return None


# Element types, and fields of one number.
_LITERALS = {"float": (1, "f"), "int": (7, "i"), "string": (8, "s")}


def stored_names(graph: Any) -> frozenset[str]:
    """Names of the stored tensors of a graph."""
    dense = [tensor.name for tensor in graph.initializer]
    return frozenset([*dense, *(tensor.values.name for tensor in graph.sparse_initializer)])


def memory_of(tensor: Any) -> tuple[Any, ...]:
    """Where a tensor's data are in another file, equal for tensors that share them; () if they are in this file."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if tensor.data_location != onnx_proto.EXTERNAL or entries.keys().isdisjoint(("offset", "length")):
        return ()
    return tuple(entries.get(key, "") for key in ("location", "offset", "length"))


def _sizes(proto: Any, name: str) -> tuple[int, ...]:
    onnx_proto.require_axes(len(proto.dims))
    if any(size < 0 for size in proto.dims):
        raise FileError(f"tensor {shown(name)} has a negative size: {list(proto.dims)}")
    return tuple(proto.dims)


def _places(proto: Any) -> list[_Place]:
    """Every place that has data of a tensor: in this file (also data that were dropped on reading) or in another."""
    found = [_Place(x.name, len(held), len(held)) for x, held in proto.ListFields() if x.name in HOLD]
    for place in onnx_proto.dropped(proto):
        width = _WIDTHS.get(place.field)
        numbers = (-(-place.length // 10), place.length) if width is None else (place.length // width,) * 2
        found.append(_Place(place.field, *numbers))
    if proto.data_location == onnx_proto.EXTERNAL:
        entries = {entry.key: entry.value for entry in proto.external_data}
        told = onnx_proto.whole_number(entries.get("length", "")) or 0  # else the rest of the file
        found.append(_Place(_ELSEWHERE, told, told or 2**63))
    return found


def _contradiction(proto: Any, tensor: TensorType, places: Sequence[_Place]) -> str:
    """Says how the data of a tensor differ from what its type needs; "" if they do not.
    It may have none, as a weight that somebody left out, unless its contents decide on sizes.
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
    """True for a tensor that is small enough to be read, because sizes may follow from its contents."""
    rows = prod([max(size, 1) for size in tensor.shape])  # type: ignore[type-var]  # 2^40 rows without elements are many
    most = MOST_FLOATS if tensor.dtype.kind == "float" else onnx_proto.SMALL
    return at_least(most, rows) and tensor.dtype.kind not in ("complex", "other")
