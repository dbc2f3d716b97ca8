"""Values of a `.pt2`: literals, element types, sizes, types of tensors. Each distinct type is built once."""

import math
import sys
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Any

import msgspec
from msgspec.structs import astuple

from graphflops.base.limits import LimitPassed
from graphflops.dims import Dim, parse_dim
from graphflops.errors import DimError, FileError, shown
from graphflops.exporters import pt2_schema as schema, require_few
from graphflops.exporters.sources import Sources
from graphflops.exporters.types import Types
from graphflops.graph import Graph, Note
from graphflops.tensor import DTYPES, DType, TensorType

MAX_SIZE = 2**62  # elements along one axis

_TYPES = "uint8 int8 int16 int32 int64 float16 float32 float64 complex32 complex64 complex128 bool bfloat16"
_LATER = "uint16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu uint32 uint64"
SCALAR_TYPES: dict[int, DType] = {
    number: DTYPES[name]
    for first, names in ((1, _TYPES), (28, _LATER))
    for number, name in enumerate(names.split(), first)
}
MEMORY_FORMATS = ("unknown", "contiguous_format", "channels_last", "channels_last_3d", "preserve_format")
LAYOUTS = (
    "unknown", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc", "_mkldnn", "strided",
)  # fmt: skip
_SPECIAL_FLOATS = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}


def results(arg: schema.Argument) -> tuple[str | None, ...]:
    """Names of the values in an input or output; None for each part that is nothing or a literal."""
    if arg.as_tensor is not None:
        return (arg.as_tensor.name,)
    return tuple(_defined(next((value for value in astuple(arg) if value is not None), None)))


def refuse_other_names(
    what: str, arguments: Iterable[schema.Argument], specs: Iterable[schema.InputSpec | schema.OutputSpec]
) -> None:
    """Raises FileError if a signature lists other inputs or outputs than its graph: torch refuses such a file."""
    signed = [next((value for value in astuple(spec) if value is not None), None) for spec in specs]
    names = [name for spec in signed for name in _defined(getattr(spec, "arg", None))]
    listed = [name for argument in arguments for name in results(argument)]
    for place, (name, other) in enumerate(zip_longest(listed, names, fillvalue="missing")):
        if name != other:
            one, two = (shown(each or "a number") for each in (name, other))
            raise FileError(f"{what} #{place} of the program is {one}, in its signature {two}")


def _defined(given: Any) -> Iterator[str | None]:
    if isinstance(given, (list, dict)):
        for item in given.values() if isinstance(given, dict) else given:
            yield from _defined(item)
    elif isinstance(given, schema.Argument):
        yield from results(given)
    elif isinstance(given, schema.Scalar):
        yield given.as_name
    else:
        yield given.name if isinstance(given, schema.Named) else None


def number(value: float | str) -> float:
    """A float. It may be the text `Infinity`, `-Infinity` or `NaN`."""
    found = _SPECIAL_FLOATS.get(value) if isinstance(value, str) else value
    if found is None:
        raise FileError(f"{shown(str(value))} is not a number")
    return found


def literal(value: schema.Scalar) -> Any:
    """The value of an input that the export fixed to a literal."""
    if value.as_float is not None:
        return number(value.as_float)
    return next((x for x in (value.as_int, value.as_string, value.as_bool) if x is not None), None)


def dtype_of(number: int, name: str) -> DType:
    """The element type by its number in the schema."""
    if number in SCALAR_TYPES:
        return SCALAR_TYPES[number]
    whose = f" of value {shown(name)}" if name else ""
    what = "is not one this graphflops knows: update graphflops"
    raise FileError(f"element type number {number}{whose} {what}")


def operator_name(target: str) -> str:
    """`aten.add.Tensor` for `torch.ops.aten.add.Tensor`."""
    return sys.intern(target.removeprefix("torch.ops."))


def named(names: tuple[str, ...], number: int) -> str:
    """The name of this number in a table, or the number itself as text if the table has none."""
    return names[number] if 0 <= number < len(names) else f"number {number}"


class Program:
    """What the graphs of one program share."""

    def __init__(self) -> None:
        self.notes: list[Note] = []  # what the user should know about the program
        self.types = Types()
        self.sources = Sources()
        self.nested: dict[bytes, Graph] = {}  # graphs that are arguments, by their JSON text
        self.singles: set[int] = set()  # ids of nested graphs that return a single tensor, not a list
        self._metas: dict[bytes, TensorType] = {}
        self._calls = 0
        self._meta_decoder = msgspec.json.Decoder(schema.TensorMeta)
        self.graph_decoder = msgspec.json.Decoder(schema.Graph)
        self.node_decoder = msgspec.json.Decoder(schema.Node)

    def note(self, code: str, node: str, message: str) -> None:
        self.notes.append(Note(code, node, message))

    def count(self, calls: int) -> None:
        """Count the calls of a graph; raises FileError for more than a program may have."""
        self._calls += calls
        require_few(self._calls)

    def tensor(self, name: str, raw: msgspec.Raw) -> TensorType:
        """The type of a value; equal types are one object."""
        key = bytes(raw)
        known = self._metas.get(key)
        if known is None:
            meta = self.meta(name, key)
            shape = tuple([self.size(name, size) for size in meta.sizes])
            known = self._metas[key] = self.types.once(TensorType(shape, dtype_of(meta.dtype, name)))
            strides = [stride.as_int for stride in meta.strides]
            is_strided = named(LAYOUTS, meta.layout) == "strided"  # others have no strides
            wrong = len(strides) != known.rank and (is_strided or strides)
            if wrong or min((size or 0 for size in strides), default=0) < 0:
                raise FileError(f"value {shown(name)} has strides {strides}, which no tensor of {known} has")
            if meta.requires_grad and not known.dtype.is_floating:
                raise FileError(f"value {shown(name)} requires a gradient, which no tensor of {known} has")
        return known

    def meta(self, name: str, text: bytes | msgspec.Raw) -> schema.TensorMeta:
        return schema.decode_part(self._meta_decoder, text, f"the type of value {shown(name)}")

    def size(self, name: str, size: schema.Scalar) -> Dim:
        """The size of one axis of a tensor; raises FileError for one that no tensor has."""
        dim = self.integer(name, size)
        if isinstance(dim, int) and not 0 <= dim <= MAX_SIZE:
            what = f"an axis of {shown(str(dim), 40)} elements, which no tensor has"
            raise FileError(f"value {shown(name)} has {what}")
        return dim

    def integer(self, name: str, value: schema.Scalar) -> Dim:
        """A recorded integer; keeps the example value of an expression."""
        if value.as_int is not None:
            return value.as_int
        if value.as_expr is None:
            raise FileError(f"value {shown(name)} has a size of a kind that this graphflops does not know")
        hint = value.as_expr.hint
        try:
            return self.types.dim(value.as_expr.expr_str, None if hint is None else hint.as_int)
        except LimitPassed as passed:
            passed.at(f"value {shown(name)}")
            raise
        except DimError as error:
            raise FileError(f"value {shown(name)}: {error}") from None

    def floating(self, value: schema.Scalar) -> float:
        """A recorded float; if it is symbolic, its example value, or NaN if it has none."""
        recorded = value.as_float
        if recorded is None and value.as_expr is not None and value.as_expr.hint is not None:
            recorded = value.as_expr.hint.as_float
        return math.nan if recorded is None else number(recorded)

    def truth(self, value: schema.Scalar) -> Dim | bool | None:
        """A recorded truth value: a literal, or a comparison of sizes; None if that cannot be read."""
        if value.as_bool is not None or value.as_expr is None:
            return value.as_bool
        try:
            dim = parse_dim(value.as_expr.expr_str)
        except DimError:
            return None  # a comparison of floats, for example; no cost depends on it
        return bool(dim) if isinstance(dim, int) else dim
