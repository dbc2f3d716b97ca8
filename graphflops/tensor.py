"""Types of values, known before anything runs: element type, shape, contents of small integer tensors; tuples of values."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Literal, TypeVar, Union

from graphflops.base.record import Record, replace
from graphflops.dims import Dim, Expr, dim_min, prod
from graphflops.errors import DimError

Kind = Literal["bool", "uint", "int", "float", "complex", "other"]
Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class DType(Record, frozen=True, eq=False):
    """An element type, one object per type so that comparing is cheap. `bits` is its packed width: two int4 share a byte."""

    name: str
    kind: Kind
    bits: int

    @property
    def is_floating(self) -> bool:
        """True for real and complex floating point, the types that can carry a gradient."""
        return self.kind in ("float", "complex")

    def __str__(self) -> str:
        return self.name


DTYPES: dict[str, DType] = {}  # all of these by name


def _named(name: str, kind: Kind, bits: int) -> DType:
    return DTYPES.setdefault(name, DType(name, kind, bits))


BOOL = _named("bool", "bool", 8)
STRING = _named("string", "other", 64)  # the width of a reference; a string's own size is unknown
UINT2 = _named("uint2", "uint", 2)
UINT4 = _named("uint4", "uint", 4)
UINT8 = _named("uint8", "uint", 8)
UINT16 = _named("uint16", "uint", 16)
UINT32 = _named("uint32", "uint", 32)
UINT64 = _named("uint64", "uint", 64)
INT2 = _named("int2", "int", 2)
INT4 = _named("int4", "int", 4)
INT8 = _named("int8", "int", 8)
INT16 = _named("int16", "int", 16)
INT32 = _named("int32", "int", 32)
INT64 = _named("int64", "int", 64)
FLOAT16 = _named("float16", "float", 16)
BFLOAT16 = _named("bfloat16", "float", 16)
FLOAT32 = _named("float32", "float", 32)
FLOAT64 = _named("float64", "float", 64)
COMPLEX32 = _named("complex32", "complex", 32)
BCOMPLEX32 = _named("bcomplex32", "complex", 32)
COMPLEX64 = _named("complex64", "complex", 64)
COMPLEX128 = _named("complex128", "complex", 128)
FLOAT4 = _named("float4_e2m1fn", "float", 4)
FLOAT4_PAIR = _named("float4_e2m1fn_x2", "float", 8)  # two numbers to an element
FLOAT6 = tuple(_named(name, "float", 6) for name in ("float6_e2m3fn", "float6_e3m2fn"))
FLOAT8 = tuple(
    _named(name, "float", 8)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
)


_PLACE_BYTES = 8  # of one index of an element of a sparse tensor


class TensorType(Record, frozen=True):
    """The type of one tensor."""

    shape: tuple[Dim, ...]  # each an int or an `Expr` over the program's symbols
    dtype: DType
    stored: Dim | None = None  # elements in memory if fewer than `numel`, as behind `expand`; None: all
    # Contents of a small integer tensor, nested tuples in row-major order (an int or `Expr` for a scalar), or None. Also of
    # a floating-point constant from which sizes may be computed (the scales of a resizing).
    value: Contents | None = None
    requires_grad: bool = False  # whether a training step wants the gradient of this value
    # The number that all elements hold, where they are too many for `value` or their number is unknown.
    uniform: float | None = None
    # Level and size of each axis that operators do not see, as inside vmap; its elements take memory too.
    mapped: tuple[tuple[int, Dim], ...] = ()
    nonzeros: Dim | None = None  # elements that a sparse tensor stores, each with its indices; None: dense

    def __hash__(self) -> int:
        """Of every field that may take arbitrarily many values, so that no file can make many types collide."""
        return hash((self.shape, self.dtype, self.value, self.uniform, self.stored, self.nonzeros))

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> Dim:
        """Number of elements, repeats behind a broadcast view included."""
        return prod(self.shape)

    @property
    def nbytes(self) -> Dim:
        """Bytes of memory behind the tensor: repeats of a broadcast view are not counted, sub-byte types are packed."""
        if self.nonzeros is not None:
            return self.nonzeros * (self.dtype.bits // 8 + _PLACE_BYTES * self.rank)
        elements = self.numel if self.stored is None else self.stored
        for _, size in self.mapped:
            elements = elements * size
        bits = self.dtype.bits
        return elements * (bits // 8) if bits % 8 == 0 else -((-elements * bits) // 8)

    def like(self, shape: Iterable[Dim] | None = None, dtype: DType | None = None) -> TensorType:
        """A fresh, fully stored tensor of this one's shape and element type, except where given."""
        return TensorType(self.shape if shape is None else tuple(shape), dtype or self.dtype)

    def view(self, shape: Iterable[Dim], dtype: DType | None = None) -> TensorType:
        """A tensor that shares this one's memory; a broadcast stays a broadcast."""
        out = self.like(shape, dtype)
        return out if self.stored is None else replace(out, stored=dim_min(self.stored, out.numel))

    def __str__(self) -> str:
        # Until the analysis names it, a size that depends on data is a rule's Symbol('a?').
        sizes = ("?" if size.endswith("?')") else size for size in map(str, self.shape))
        return f"{self.dtype}[{', '.join(sizes)}]"


class PartType(TensorType, frozen=True):
    """A part of an existing tensor that a gradient reads, such as some rows of an operand."""


Contents = Union[Dim, float, "tuple[Contents, ...]"]


class SequenceType(Record, frozen=True):
    """A list of tensors."""

    element: ElementType | None = None  # the type of all; None if unknown, as for an empty sequence
    length: Dim | None = None  # None if it is not known
    items: tuple[ElementType, ...] | None = None  # each element, where they are known one by one

    def __str__(self) -> str:
        length = "" if self.length is None else f" of {self.length}"
        return f"sequence({self.element or '?'}){length}"


class OptionalType(Record, frozen=True):
    """A value that may be absent. `present` is None where only data can tell."""

    element: ElementType | None = None
    present: bool | None = None

    def __str__(self) -> str:
        return f"optional({self.element or '?'})"


class UnknownType(Record, frozen=True):
    """A value of unknown rank."""

    dtype: DType | None = None

    def __str__(self) -> str:
        return f"{self.dtype or '?'}[...]"


ElementType = Union[TensorType, SequenceType, OptionalType]


def dtype_named(name: str) -> DType:
    """The element type of that name; raises DimError for a name we do not know."""
    try:
        return DTYPES[name]
    except KeyError:
        raise DimError(f"unknown element type {name!r}") from None


def with_sizes(value: Any, change: Callable[[Any], Any]) -> Any:
    """The value with `change` applied to every symbolic size in it, those among its contents included."""
    if isinstance(value, Expr):
        return change(value)
    if isinstance(value, TensorType):
        shape = tuple([change(size) for size in value.shape])
        stored = None if value.stored is None else change(value.stored)
        contents = None if value.value is None else with_sizes(value.value, change)
        return replace(value, shape=shape, stored=stored, value=contents)
    if isinstance(value, SequenceType):
        length = None if value.length is None else change(value.length)
        element, items = with_sizes(value.element, change), with_sizes(value.items, change)
        return replace(value, element=element, length=length, items=items)
    if isinstance(value, OptionalType):
        return replace(value, element=with_sizes(value.element, change))
    if isinstance(value, tuple):
        return tuple([with_sizes(part, change) for part in value])
    return value


def sizes_in(value: Any) -> list[Dim]:
    """Every symbolic size in a value, those among its contents included."""
    found: list[Dim] = []

    def keep(size: Any) -> Any:
        found.append(size)
        return size

    with_sizes(value, keep)
    return found


def extent(sizes: Sequence[int], strides: Sequence[int], offset: int) -> int:
    """Elements from the start of a tensor's memory to the last one that it uses; 0 for an empty tensor."""
    steps = zip(sizes, strides, strict=False)
    return 0 if 0 in sizes else 1 + offset + sum((size - 1) * stride for size, stride in steps)


def flat(values: Iterable[Any]) -> Iterator[Any]:
    """The values, and those in nested tuples and lists, in order."""
    for value in values:
        if isinstance(value, (tuple, list)):
            yield from flat(value)
        else:
            yield value


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """The value changed, or each one in nested tuples."""
    return tuple([mapped(item, change) for item in value]) if isinstance(value, tuple) else change(value)


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """The values of each key, keys and values in the order in which they come."""
    found: dict[Key, list[Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found
