"""Types of an ONNX model's values, kinds of its attributes, and the roles of its stored tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

from graphflops.dims import Dim
from graphflops.errors import DimError, FileError, shown
from graphflops.graph import Argument, Graph, InputRole, Opaque, Type
from graphflops.ops import operator
from graphflops.rules.onnx.entries import onnx_dtype
from graphflops.tensor import DType, OptionalType, SequenceType, TensorType, UnknownType

_LARGEST_BYTES = 2**63
_MOST_AXES = 256  # a file with more is damaged or malicious
SMALL = 64  # elements; a larger integer tensor is weights in a quantised model, not a shape
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
    """The type that a TypeProto states; `size` reads one size, given with its axis."""
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
    """The element type by its number; raises FileError for one that no ONNX version has."""
    try:
        return onnx_dtype(code)
    except DimError:
        raise FileError(
            f"element type {code} is not one of ONNX: update graphflops, or export again"
        ) from None


def checked(name: str | bytes) -> str:
    """The name; raises FileError for one that is not UTF-8, which protobuf returns as bytes."""
    if isinstance(name, bytes):
        raise FileError(f"the name {shown(repr(name))} is not UTF-8")
    return name


def text(value: bytes) -> str:
    """A string of the file; bytes that are not UTF-8 are replaced."""
    return value.decode("utf-8", "replace")


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


def named_once(attributes: Iterable[Any], node: str) -> dict[str, Any]:
    """Attributes by name; raises FileError where two have one name: readers differ in which of them counts."""
    found: dict[str, Any] = {}
    for attribute in attributes:
        if found.setdefault(checked(attribute.name), attribute) is not attribute:
            raise FileError(f"{shown(node)} states the attribute {shown(attribute.name)} twice")
    return found


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


_FIELDS = "f i s t g floats ints strings tensors graphs sparse_tensor sparse_tensors tp type_protos"
_KINDS = {
    field: kind for kind, field in enumerate(_FIELDS.split(), FLOAT)
}  # by the field that holds the value


def kind_of(proto: Any) -> int | None:
    """The kind of an attribute; files of the first IR version state it by the field that is set alone.

    Raises FileError where the value is of another kind than is stated, or there are several.
    """
    held = [_KINDS[field.name] for field, _ in proto.ListFields() if field.name in _KINDS]
    stated = proto.type or (held[0] if held else None)
    if len(held) > 1 or (held and held[0] != stated):
        raise FileError(f"the attribute {shown(proto.name)} has a value of another kind than it states")
    return stated
