"""ONNX's protobuf messages: models without their weights; types of values, kinds of attributes, roles of stored tensors."""

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from graphflops.base.protobuf import field
from graphflops.dims import Dim
from graphflops.errors import DimError, FileError, shown
from graphflops.exporters.archive import Pages
from graphflops.graph import Argument, InputRole, Opaque, Ref, Type
from graphflops.ops import operator
from graphflops.rules.onnx.entries import onnx_dtype
from graphflops.tensor import DType, OptionalType, SequenceType, TensorType, UnknownType

Buffer = bytes | memoryview

KEPT_BYTES = 1024  # longer data are dropped; a tensor whose contents decide on sizes is never longer
# Key in `external_data` of where data are that were dropped from a tensor.
DROPPED = "graphflops.dropped_bytes"
EXTERNAL = 1  # TensorProto.DataLocation.EXTERNAL
FIELDS = {  # all other element types are held in `int32_data`
    "float32": "float_data", "complex64": "float_data", "float64": "double_data", "complex128": "double_data",
    "int64": "int64_data", "uint32": "uint64_data", "uint64": "uint64_data", "string": "string_data",
}  # fmt: skip

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
# By kind of message and field number: the messages inside it that may hold tensor data.
_INSIDE: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
_DATA_FIELDS = {
    4: "float_data", 5: "int32_data", 7: "int64_data", 9: "raw_data", 10: "double_data", 11: "uint64_data"
}  # fmt: skip
_PLACE = re.compile(rf"({'|'.join(_DATA_FIELDS.values())}):(\d{{1,19}}):(\d{{1,19}})", re.ASCII)
_MOST_NESTED = 100  # protobuf's own limit


@lru_cache(maxsize=1)
def messages() -> Any:
    """The module of ONNX's message classes: its import takes a fifth of the 0.3 s of the package `onnx`."""
    loaded = sys.modules.get("onnx.onnx_ml_pb2")
    if loaded is not None:
        return loaded
    package = importlib.util.find_spec("onnx")
    for folder in (package and package.submodule_search_locations) or ():
        path = Path(folder) / "onnx_ml_pb2.py"
        spec = importlib.util.spec_from_file_location("graphflops._onnx_messages", path)
        if path.exists() and spec is not None and spec.loader is not None:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    import onnx

    return onnx


def decode_error() -> type[Exception]:
    """The exception that parsing raises for bytes that are not a message."""
    error: type[Exception] = importlib.import_module("google.protobuf.message").DecodeError
    return error


def without_weights(data: bytes | Pages) -> bytes:
    """A serialized ModelProto without the large data of its tensors, each with an entry that says where they are.

    Bytes that are no well-formed message are returned unchanged: parsing them will report what is wrong.
    """
    view = data if isinstance(data, Pages) else memoryview(data)
    try:
        pieces = list(_slimmed(view, 0, len(view), "model", 0))
    except (IndexError, ValueError):
        return bytes(view[:])
    if len(pieces) == 1 and isinstance(data, bytes):
        return data  # nothing was dropped
    return b"".join(pieces)


def _slimmed(data: memoryview | Pages, at: int, end: int, kind: str, depth: int) -> Iterator[Buffer]:
    """The parts of the message in data[at:end] that are kept; adjacent parts are one piece."""
    kept_from, marks = at, list[str]()
    for number, body, stop, start in _fields(data, at, end):
        length = stop - body
        if length <= KEPT_BYTES:
            continue
        if kind == "tensor" and number in _DATA_FIELDS:
            yield data[kept_from:start]
            kept_from = stop
            marks.append(f"{_DATA_FIELDS[number]}:{length}:{body}")
        elif number in _INSIDE[kind] and depth < _MOST_NESTED:
            pieces = list(_slimmed(data, body, stop, _INSIDE[kind][number], depth + 1))
            if sum(map(len, pieces)) != length:
                yield data[kept_from:start]
                yield field(number, b"".join(pieces))
                kept_from = stop
    yield data[kept_from:end]
    for text in marks:
        yield field(13, field(1, DROPPED.encode()) + field(2, text.encode()))  # TensorProto.external_data


class Dropped(NamedTuple):
    """Where the file has data of a tensor that were dropped."""

    field: str  # of the TensorProto
    length: int  # in bytes
    begin: int


def dropped(tensor: Any) -> list[Dropped]:
    """The data that `without_weights` dropped from a TensorProto."""
    texts = [str(entry.value) for entry in tensor.external_data if entry.key == DROPPED]
    places = [place.groups() for place in map(_PLACE.fullmatch, texts) if place is not None]
    return [Dropped(name, int(length), int(begin)) for name, length, begin in places]


def tensor_of_field(name: str, data: bytes) -> Any:
    """A TensorProto that has one field, from the field's bytes. Raises `decode_error` for other bytes."""
    numbers = {held: number for number, held in _DATA_FIELDS.items()}
    return messages().TensorProto.FromString(field(numbers[name], data))


def _fields(data: memoryview | Pages, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Each length-delimited field in data[at:end]: its number, where its contents begin and end, where its tag begins.

    Raises ValueError or IndexError for bytes that are not a message.
    """
    while at < end:
        start = at
        tag, at = _varint(data, at, end)
        number, wire = tag >> 3, tag & 7
        if wire == _LENGTH:
            length, at = _varint(data, at, end)
            if at + length > end:
                raise ValueError("a field is longer than its message")
            yield number, at, at + length, start
            at += length
        elif wire == _VARINT:
            _, at = _varint(data, at, end)
        elif wire in (_FIXED64, _FIXED32):
            at += 8 if wire == _FIXED64 else 4
        else:
            raise ValueError("groups are not used")


def _varint(data: memoryview | Pages, at: int, end: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while True:
        at += 1
        if at >= end or shift > 63:
            raise ValueError("a number does not end")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7


# Values, attributes and stored tensors.

_LARGEST_BYTES = 2**63
_MOST_AXES = 256  # a file with more is damaged or malicious
# Elements of an integer tensor whose contents are kept; a larger one is weights in a quantised model, not a shape.
SMALL = 64
_STATISTICS = ("mean", "var")  # parameters of operators that take state, not trained weights


def require_holdable(what: str, sizes: Sequence[int], nbytes: int) -> None:
    """Raises FileError for a size larger than any machine's memory."""
    if nbytes >= _LARGEST_BYTES:
        raise FileError(f"{what} has the sizes {list(sizes)}, more than any machine can hold")


def require_axes(count: int) -> None:
    """Raises FileError for more axes than any tensor has."""
    if count > _MOST_AXES:
        raise FileError(f"a tensor has {count} axes: the file is damaged")


def type_of(proto: Any, size: Callable[[Any, int], Dim]) -> Type:
    """The type that a TypeProto states. size: reads one size from its message and axis."""
    kind = proto.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        tensor = getattr(proto, kind)
        dtype = dtype_of(tensor.elem_type) if tensor.elem_type else None
        if dtype is None or not tensor.HasField("shape"):
            return UnknownType(dtype)
        require_axes(len(tensor.shape.dim))
        return TensorType(tuple([size(dim, axis) for axis, dim in enumerate(tensor.shape.dim)]), dtype)
    if kind in ("sequence_type", "optional_type"):
        held = getattr(proto, kind)
        element = type_of(held.elem_type, size) if held.HasField("elem_type") else None
        typed = element if isinstance(element, (TensorType, SequenceType, OptionalType)) else None
        return SequenceType(typed) if kind == "sequence_type" else OptionalType(typed)
    return UnknownType() if kind is None else Opaque(kind.removesuffix("_type"))


def dtype_of(code: int) -> DType:
    """The element type of this number; raises FileError for a number that no ONNX version has."""
    try:
        return onnx_dtype(code)
    except DimError:
        said = f"element type {code} is not one of ONNX"
        raise FileError(f"{said}: update graphflops, or export again") from None


def checked(name: str | bytes) -> str:
    """The name; raises FileError for one that is not UTF-8, which protobuf returns as bytes."""
    if isinstance(name, bytes):
        raise FileError(f"the name {shown(repr(name))} is not UTF-8")
    return name


def whole_number(text: str) -> int | None:
    """The number that a text of at most 18 digits is; None for other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def state_of(op_type: str, operands: Sequence[Ref | None]) -> list[Ref | None]:
    """The operands that a call takes as state (running statistics), not as parameters."""
    parameters = operator(f"onnx.{op_type}").parameters
    return [given for name, given in zip(parameters, operands, strict=False) if name in _STATISTICS]


def role_of(typed: TensorType, target: str) -> InputRole:
    """The role of a stored tensor, guessed from its type and name: files do not state it."""
    elements = number_of_elements(typed)
    if elements == 1 and "." not in target:  # an epsilon or an exponent
        return "constant"
    is_integer = typed.dtype.kind in ("int", "uint")
    trained = typed.dtype.is_floating or (is_integer and typed.dtype.bits <= 8)
    wide = is_integer and typed.dtype.bits < 64 and elements > SMALL
    return "parameter" if typed.rank and (trained or wide) else "constant"


def number_of_elements(typed: TensorType) -> int:
    """The number of elements of a stored tensor, whose sizes are all numbers."""
    elements = typed.numel
    assert isinstance(elements, int)
    return elements


def named_once(attributes: Iterable[Any], node: str) -> dict[str, Any]:
    """Attributes by name; raises FileError if two have the same name, because readers disagree on which one counts."""
    found: dict[str, Any] = {}
    for attribute in attributes:
        if found.setdefault(checked(attribute.name), attribute) is not attribute:
            raise FileError(f"{shown(node)} states the attribute {shown(attribute.name)} twice")
    return found


def declared_otherwise(value: Any, tensor: Any) -> str:
    """What differs between a stored tensor and the type that the file declares under its name; "" if nothing does."""
    declared = value.type.tensor_type
    sizes = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in declared.shape.dim]
    pairs = zip(sizes, tensor.dims, strict=False)
    fits = len(sizes) == len(tensor.dims) and all(a in (-1, b) for a, b in pairs)
    if declared.HasField("shape") and not fits:
        shape = ", ".join(str(size) if size >= 0 else "?" for size in sizes)
        return f"is declared with the shape [{shape}], but has {[*tensor.dims]}"
    if declared.elem_type in (0, tensor.data_type):
        return ""
    is_known = declared.elem_type in type(tensor).DataType.values()
    stated = dtype_of(declared.elem_type) if is_known else f"element type {declared.elem_type}"
    return f"is declared as {stated}, but is {dtype_of(tensor.data_type)}"


# The fields of an AttributeProto for its value, by kind (AttributeProto.AttributeType).
_KINDS = "f i s t g floats ints strings tensors graphs sparse_tensor sparse_tensors tp type_protos"
_FIELDS = ("", *_KINDS.split())
PLAIN = ("f", "i", "s", "floats", "ints", "strings")


def field_of(proto: Any) -> str:
    """The field with an attribute's value, "" for none: that of the kind which it states, or, in files of the first IR
    version, the one that is set. Raises FileError if another is set.
    """
    held = [field.name for field, _ in proto.ListFields() if field.name in _FIELDS]
    stated = _FIELDS[proto.type] or next(iter(held), "")
    if any(name != stated for name in held):
        raise FileError(f"the attribute {shown(proto.name)} has a value of another kind than it states")
    return stated


def plain(held: Any) -> Argument:
    """A number, a text, in which bytes that are not UTF-8 are replaced, or a tuple of these."""
    if isinstance(held, bytes):
        return held.decode("utf-8", "replace")
    return held if isinstance(held, (int, float)) else tuple(map(plain, held))
