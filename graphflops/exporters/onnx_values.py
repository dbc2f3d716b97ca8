"""Types and small contents of an ONNX model's values, and the roles of its stored tensors."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from graphflops.dims import at_least, prod
from graphflops.errors import DimError, FileError, shown
from graphflops.exporters.onnx_proto import DROPPED
from graphflops.graph import Graph, Opaque
from graphflops.ops import operator
from graphflops.rules.onnx.entries import onnx_dtype
from graphflops.tensor import DType, OptionalType, SequenceType, TensorType, UnknownType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from graphflops.dims import Dim
    from graphflops.graph import Argument, InputRole, Type
    from graphflops.tensor import Contents

MOST_INTEGERS = 64  # elements of a tensor whose contents are kept
MOST_FLOATS = 16
_LARGEST_BYTES = 2**63
_MOST_AXES = 256  # a file with more is damaged or malicious
SMALL = 64  # elements; a larger integer tensor is weights in a quantised model, not a shape
EXTERNAL = 1  # TensorProto.DataLocation.EXTERNAL
_STATISTICS = ("mean", "var")  # parameters of operators that take state, not trained weights

_LETTERS = {
    "bool": "B",
    "int8": "b",
    "uint8": "B",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
    "float16": "e",
    "bfloat16": "H",
    "float32": "f",
    "float64": "d",
}
FIELDS = {
    "float32": "float_data",
    "float64": "double_data",
    "int64": "int64_data",
    "uint32": "uint64_data",
    "uint64": "uint64_data",
}  # all other element types are held in `int32_data`
_BYTES_OF_FIELD = {
    "float": 4,
    "double": 8,
}  # of one element in a typed field; integers take as many as they need


def require_holdable(what: str, sizes: Sequence[int], nbytes: int) -> None:
    """Raises FileError for a size larger than any machine's memory."""
    if nbytes >= _LARGEST_BYTES:
        raise FileError(f"{what} has the sizes {list(sizes)}, more than any machine can hold")


def _require_axes(count: int) -> None:
    if count > _MOST_AXES:
        raise FileError(f"a tensor has {count} axes: the file is damaged")


def type_of(proto: Any, size: Callable[[Any, int], Dim]) -> Type:
    """The type that a TypeProto states; `size` reads one size, given with its axis."""
    kind = proto.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        tensor = getattr(proto, kind)
        dtype = dtype_of(tensor.elem_type) if tensor.elem_type else None
        if dtype is None or not tensor.HasField("shape"):
            return UnknownType(dtype)
        _require_axes(len(tensor.shape.dim))
        return TensorType(tuple([size(dim, axis) for axis, dim in enumerate(tensor.shape.dim)]), dtype)
    if kind in ("sequence_type", "optional_type"):
        held = getattr(proto, kind)
        element = type_of(held.elem_type, size) if held.HasField("elem_type") else None
        typed = element if isinstance(element, (TensorType, SequenceType, OptionalType)) else None
        return SequenceType(typed) if kind == "sequence_type" else OptionalType(typed)
    return UnknownType() if kind is None else Opaque(kind.removesuffix("_type"))


def dtype_of(code: int) -> DType:
    """The element type by its number; raises FileError for one that no ONNX version has."""
    try:
        return onnx_dtype(code)
    except DimError:
        raise FileError(
            f"element type {code} is not one of ONNX: update graphflops, or export again"
        ) from None


def tensor_of(proto: Any, name: str, complain: Callable[[str], None]) -> TensorType:
    """The type of a stored tensor, with its contents if it is small and stored in the file itself."""
    checked(name), checked(proto.name)
    _require_axes(len(proto.dims))
    shape = tuple(proto.dims)
    dtype = dtype_of(proto.data_type)
    if any(size < 0 for size in shape):
        raise FileError(f"tensor {shown(name)} has a negative size: {list(shape)}")
    bare = TensorType(shape, dtype)
    expected = bare.nbytes
    assert isinstance(expected, int)
    require_holdable(f"tensor {shown(name)}", shape, expected)
    if len(proto.external_data):
        _check_length(proto, bare, expected, complain)
        return bare
    if proto.raw_data and len(proto.raw_data) != expected:
        complain(_data_length(name, bare, expected, "in the file", len(proto.raw_data)))
        return bare
    elements = prod(shape)
    assert isinstance(elements, int)
    rows = prod(max(size, 1) for size in shape)  # a tensor of 2^40 rows without elements is not small
    assert isinstance(rows, int)
    if rows > (MOST_FLOATS if dtype.kind == "float" else MOST_INTEGERS) or dtype.kind in (
        "complex",
        "other",
    ):
        return bare
    try:
        numbers = _numbers(proto, dtype, elements)
    except struct.error:  # a number out of range of its type
        numbers = ()
    if numbers is None:
        return bare
    if len(numbers) < elements:
        complain(f"tensor {shown(name)} of {elements} elements holds data for {len(numbers)}")
        return bare
    return TensorType(shape, dtype, value=_nested(iter(numbers), shape))


def sparse_of(proto: Any, name: str, complain: Callable[[str], None]) -> TensorType:
    """The type of a sparse tensor; its memory is that of the stored elements."""
    stored = tensor_of(proto.values, name, complain)
    _require_axes(len(proto.dims))
    shape = tuple(proto.dims)
    if any(size < 0 for size in shape):
        raise FileError(f"tensor {shown(name)} has a negative size: {list(shape)}")
    whole = TensorType(shape, stored.dtype)
    if at_least(stored.numel, whole.numel + 1):
        complain(f"sparse tensor {shown(name)} is {whole}, but stores {stored.numel} elements")
        return whole
    return TensorType(shape, stored.dtype, stored=stored.numel)


def constant_of(
    attributes: Mapping[str, Any], name: str, complain: Callable[[str], None]
) -> TensorType | None:
    """What a Constant node holds; None if no attribute states it."""
    for key, attribute in attributes.items():
        if key == "value":
            return tensor_of(attribute.t, name, complain)
        if key == "sparse_value":
            return sparse_of(attribute.sparse_tensor, name, complain)
        if key in _LITERALS:
            dtype, field, is_list = _LITERALS[key]
            held = getattr(attribute, field)
            values = tuple(held) if is_list else held
            shape = (len(held),) if is_list else ()
            small = dtype != 8 and len(shape and values) <= MOST_INTEGERS
            return TensorType(shape, dtype_of(dtype), value=values if small else None)
    return None


_LITERALS = {
    "value_float": (1, "f", False),
    "value_floats": (1, "floats", True),
    "value_int": (7, "i", False),
    "value_ints": (7, "ints", True),
    "value_string": (8, "s", False),
    "value_strings": (8, "strings", True),
}


def checked(name: str | bytes) -> str:
    """The name; raises FileError for one that is not UTF-8, which protobuf returns as bytes."""
    if isinstance(name, bytes):
        raise FileError(f"the name {shown(repr(name))} is not UTF-8")
    return name


def text(value: bytes) -> str:
    """A string of the file; bytes that are not UTF-8 are replaced."""
    return value.decode("utf-8", "replace")


def _check_length(proto: Any, tensor: TensorType, expected: int, complain: Callable[[str], None]) -> None:
    """Compares the recorded length of a tensor's data with what its type needs; the data itself is not read."""
    entries = {entry.key: entry.value for entry in proto.external_data}
    where, length = "in another file", entries.get("length", "")
    if DROPPED in entries:
        field, _, length = entries[DROPPED].partition(":")
        where = "in the file"
        if field != "raw":
            if field not in _BYTES_OF_FIELD:
                return
            numbers = 2 if tensor.dtype.kind == "complex" else 1
            expected = _BYTES_OF_FIELD[field] * numbers * tensor.numel  # type: ignore[assignment]
    if length.isascii() and length.isdigit() and int(length) != expected:
        complain(_data_length(proto.name, tensor, expected, where, length))


def _data_length(name: str, tensor: TensorType, expected: int, where: str, length: int | str) -> str:
    return f"tensor {shown(name)} is {tensor}, {expected} bytes, but its data {where} has {length}"


def _numbers(proto: Any, dtype: DType, elements: int) -> Sequence[int | float] | None:
    """The elements in row-major order, as many as the file holds; None for element types that are not read."""
    letter = _LETTERS.get(dtype.name)
    if letter is None and dtype.name not in ("int4", "uint4"):
        return None
    raw = proto.raw_data or _packed(proto, dtype, elements)
    if letter is None:
        return list(_nibbles(raw, dtype))[:elements]
    count = min(elements, len(raw) // struct.calcsize(letter))
    numbers = struct.unpack_from(f"<{count}{letter}", raw)
    if dtype.name == "bfloat16":
        return struct.unpack(f"<{count}f", b"".join(struct.pack("<I", bits << 16) for bits in numbers))
    return numbers


def _packed(proto: Any, dtype: DType, elements: int) -> bytes:
    """The elements of a typed field in the layout of raw data."""
    field = FIELDS.get(dtype.name)
    if field is not None:
        held = getattr(proto, field)[:elements]
        return struct.pack(f"<{len(held)}{_LETTERS[dtype.name]}", *held)
    width = max(dtype.bits // 8, 1)
    return b"".join((bits % 256**width).to_bytes(width, "little") for bits in proto.int32_data[:elements])


def _nibbles(packed: bytes, dtype: DType) -> Iterator[int]:
    for byte in packed:
        for part in (byte & 15, byte >> 4):
            yield part - 16 if dtype.kind == "int" and part > 7 else part


def _nested(elements: Iterator[int | float], shape: tuple[int, ...]) -> Contents:
    if not shape:
        return next(elements)
    return tuple([_nested(elements, shape[1:]) for _ in range(shape[0])])


def statistics(nodes: Iterable[Any]) -> set[str]:
    """Names of the stored tensors that calls use as state, not as parameters."""
    return {node.input[place] for node in nodes for place in _state(node.op_type) if place < len(node.input)}


@lru_cache(maxsize=1024)
def _state(op_type: str) -> tuple[int, ...]:
    """Places of the operands that are state."""
    parameters = operator(f"onnx.{op_type}").parameters
    return tuple([place for place, name in enumerate(parameters) if name in _STATISTICS])


def graphs_in(value: Argument) -> Sequence[Graph]:
    """The graphs that an attribute holds."""
    if isinstance(value, tuple):
        return [part for part in value if isinstance(part, Graph)]
    return (value,) if isinstance(value, Graph) else ()


def role_of(typed: TensorType, target: str, is_state: bool) -> InputRole:
    """The role of a stored tensor, guessed from its type and name: files do not state it."""
    if is_state:
        return "buffer"
    elements = number_of_elements(typed)
    if elements == 1 and "." not in target:  # an epsilon or an exponent
        return "constant"
    is_integer = typed.dtype.kind in ("int", "uint")
    trained = typed.dtype.is_floating or (is_integer and typed.dtype.bits <= 8)
    wide = is_integer and typed.dtype.bits < 64 and elements > SMALL
    return "parameter" if typed.rank and (trained or wide) else "constant"


def number_of_elements(typed: TensorType) -> int:
    """The elements of a stored tensor, all of whose sizes are numbers."""
    elements = typed.numel
    assert isinstance(elements, int)
    return elements


def memory_of(tensor: Any) -> tuple[Any, ...]:
    """Location of a tensor's data in another file, equal for tensors that share it; () if the file states none."""
    if tensor.data_location != EXTERNAL:
        return ()
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if "offset" not in entries and "length" not in entries:
        return ()
    return tuple(entries.get(key, "") for key in ("location", "offset", "length"))


# Kinds of attributes: AttributeProto.AttributeType.
FLOAT, INT, STRING, TENSOR, GRAPH, FLOATS, INTS, STRINGS, TENSORS, GRAPHS = range(1, 11)
TYPE = 13

PLAIN: dict[int | None, Callable[[Any], Argument]] = {
    FLOAT: lambda proto: proto.f,
    INT: lambda proto: proto.i,
    STRING: lambda proto: text(proto.s),
    FLOATS: lambda proto: tuple(proto.floats),
    INTS: lambda proto: tuple(proto.ints),
    STRINGS: lambda proto: tuple([text(item) for item in proto.strings]),
}


def kind_of(proto: Any) -> int | None:
    """The kind of an attribute by the field that is set: files of the first IR version do not state the kind."""
    for name, kind in (("f", FLOAT), ("i", INT), ("s", STRING), ("t", TENSOR), ("g", GRAPH)):
        if proto.HasField(name):
            return kind
    for name, kind in (("floats", FLOATS), ("ints", INTS), ("strings", STRINGS), ("graphs", GRAPHS)):
        if len(getattr(proto, name)):
            return kind
    return None
