"""Operands of ONNX operators: element types by number, operands that hold sizes, axes or bounds, lists and their elements.

Also what fused operators share: summed work, optional results, scales, products of integers.
"""

from collections.abc import Sequence
from typing import Union

from graphflops import tensor
from graphflops.base.record import replace
from graphflops.cost import Estimate, Value, data_dependent
from graphflops.dims import Dim, Expr, differ, symbol, total
from graphflops.errors import DimError
from graphflops.rules.onnx.values import Number
from graphflops.rules.registry import require, require_known
from graphflops.rules.shapes import axis_of, only_result, shown
from graphflops.tensor import DTYPES, INT8, INT32, DType, TensorType, UnknownType, flat

# In the order of their numbers, from 1 on.
_NAMES = """float32 uint8 int8 uint16 int16 int32 int64 string bool float16 float64 uint32 uint64 complex64 complex128
bfloat16 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz uint4 int4 float4_e2m1fn float8_e8m0fnu uint2 int2
float6_e2m3fn float6_e3m2fn"""
_BY_CODE: dict[int, DType] = {code: DTYPES[name] for code, name in enumerate(_NAMES.split(), 1)}


def onnx_dtype(code: int) -> DType:
    """The element type of a `TensorProto.DataType`; raises DimError for a number that no ONNX version has defined."""
    if code not in _BY_CODE:
        raise DimError(f"unknown element type {code}")
    return _BY_CODE[code]


MOST_AXES = 256  # more axes than this: the file is damaged or malicious
# An operand, or an attribute in older versions.
Numbers = Union[TensorType, UnknownType, Sequence[Number], Number, None]


def numbers(given: Numbers) -> tuple[Number, ...] | None:
    """The contents of an operand or attribute in row-major order; None if unknown. A tensor without elements holds none."""
    if isinstance(given, TensorType):
        if given.value is None:
            return () if given.numel == 0 else None
        return tuple(flat((given.value,)))
    if given is None or isinstance(given, UnknownType):
        return None
    if isinstance(given, (int, float, Expr)):
        return (given,)
    return tuple(given)


def sizes(given: Numbers) -> tuple[Dim, ...] | None:
    """The contents of an operand or attribute as sizes; None if unknown or not integers."""
    found = numbers(given)
    if found is None or not all(not isinstance(x, float) or x.is_integer() for x in found):
        return None
    return tuple(int(x) if isinstance(x, float) else x for x in found)


def literals(given: Numbers) -> tuple[int, ...] | None:
    """The contents of an operand or attribute as plain integers; None if one of them is not known."""
    found = sizes(given)
    if found is None:
        return None
    plain = tuple(x for x in found if isinstance(x, int))
    return plain if len(plain) == len(found) else None


def size(given: Numbers) -> Dim | None:
    """The single size in an operand or attribute; None if unknown."""
    found = sizes(given)
    return found[0] if found else None


def said(given: Numbers, what: str) -> Dim:
    """The single size in an operand or attribute; a name for it if it is unknown."""
    found = size(given)
    return data_dependent(what) if found is None else found


def many(given: Numbers) -> int | None:
    """The number of entries of an operand or attribute; None if unknown."""
    if isinstance(given, TensorType):
        return given.numel if isinstance(given.numel, int) else None
    found = numbers(given)
    return None if found is None else len(found)


def chosen_axes(given: Numbers, rank: int, default: int | None = None) -> tuple[int, ...] | None:
    """Axes counted from the front: the named ones, each once, else the first `default` ones, else all; None if unknown."""
    if given is None:
        first = rank if default is None else default
        require(first <= rank, f"{first} entries for a tensor of {rank} axes")
        return tuple(range(first))
    named = literals(given)
    return None if named is None else tuple(dict.fromkeys([axis_of(place, rank) for place in named]))


def unknown(what: str, place: int) -> Dim:
    """A data-dependent size, with its own name for each axis of a result."""
    return data_dependent(f"{what}_axis{place}")


def rank_of(given: Numbers, what: str) -> int:
    """The number of entries of a shape operand; raises ShapeError if it is unknown."""
    count = many(given)
    require_known(count is not None, rank_depends_on_data(what))
    require(count is None or count <= MOST_AXES, f"the result of {what} would have {count} axes")
    return count or 0


def asked(given: Numbers, name: str, what: str) -> tuple[Dim, ...]:
    """The sizes that a shape operand requests; if they are unknown, a named size for each axis of the result."""
    known = sizes(given)
    return tuple(unknown(name, place) for place in range(rank_of(given, what))) if known is None else known


def rank_depends_on_data(what: str) -> str:
    """Why an operator that makes a tensor of computed sizes is not priced."""
    return f"how many axes the result of {what} has depends on data"


LISTED = 64  # elements that are followed one by one
VARIES = symbol("size that varies")  # stands for a size that differs between elements


def sequence_of(items: Sequence[tensor.ElementType | None]) -> tensor.SequenceType:
    """The sequence of these elements."""
    known = tuple(item for item in items if item is not None)
    each = known if len(known) == len(items) <= LISTED else None
    return tensor.SequenceType(common(items), len(items), each)


def element_of(value: Value) -> tensor.ElementType | None:
    """A value as a sequence element; None if nothing is known about it."""
    return value if isinstance(value, (TensorType, tensor.SequenceType, tensor.OptionalType)) else None


def common(items: Sequence[tensor.ElementType | None]) -> tensor.ElementType | None:
    """The common type of all elements."""
    first, *rest = items or (None,)
    for item in rest:
        first = alike(first, item)
    return first


def alike(a: tensor.ElementType | None, b: tensor.ElementType | None) -> tensor.ElementType | None:
    """The common type of two elements."""
    if a == b:
        return a
    if not isinstance(a, TensorType) or not isinstance(b, TensorType):
        return None
    if a.rank != b.rank or a.dtype != b.dtype:
        return None
    return a.like(mine if mine == other else VARIES for mine, other in zip(a.shape, b.shape, strict=True))


def one_of(element: tensor.ElementType | None) -> tensor.ElementType | UnknownType:
    """The type of an unknown element: a size that varies is data-dependent."""
    if isinstance(element, TensorType):
        sizes = enumerate(element.shape)
        return element.like(unknown("element", at) if size is VARIES else size for at, size in sizes)
    return UnknownType() if element is None else element


def listed(x: tensor.SequenceType) -> tuple[tensor.ElementType, ...] | None:
    """The elements one by one, if they are known or known to be equal."""
    if x.items is not None or not isinstance(x.length, int) or x.element is None or x.length > LISTED:
        return x.items
    varies = isinstance(x.element, TensorType) and VARIES in x.element.shape
    return None if varies else (x.element,) * x.length


# Which results of the call are wanted; () if that is not known.
Outputs = tuple[bool, ...]
Touched = tuple[TensorType | Dim | None, ...]


def fused(
    out: tuple[Value, ...],
    *parts: Estimate,
    reads: Touched,
    writes: Touched | None = None,
    matrix_dtype: DType | None = None,
) -> Estimate:
    """The summed work of all parts; intermediate results cause no traffic."""
    return Estimate(out, reads=reads, writes=writes, matrix_dtype=matrix_dtype).plus(*parts)


def work(vector: Dim, transcendentals: Dim = 0) -> Estimate:
    """An estimate of arithmetic only, as part of a fused operator."""
    return Estimate(vector_flops=vector, transcendentals=transcendentals)


def is_wanted(outputs: Outputs, place: int) -> bool:
    """True if the result at that index is wanted."""
    return not outputs or (place < len(outputs) and outputs[place])


def arithmetic(x: TensorType) -> DType:
    """The type under which a product with this operand is recorded: int8 for signed and unsigned 8-bit integers."""
    return INT8 if x.dtype.kind in ("int", "uint") and x.dtype.bits == 8 else x.dtype


def require_scales(own: Sequence[Dim], *scales: TensorType | None) -> None:
    """Raises ShapeError for a scale or zero point that is neither a scalar, nor of that shape, nor a vector for it."""
    for scale in filter(None, scales):
        whole = scale.rank == len(own) and not any(map(differ, scale.shape, own))
        vector = scale.rank < 2 and not all(differ(scale.numel, size) for size in (1, *own[-2:]))
        require(whole or vector, f"a scale or zero point {scale} is neither one number nor {shown(own)}")


def in_32_bits(product: Estimate, *factors: tuple[TensorType, TensorType | None]) -> Estimate:
    """A product of integers in 32 bits; each factor with its zero point, one subtraction per element if it has one."""
    return replace(
        product,
        out=(only_result(product).like(dtype=INT32),),
        vector_flops=total(x.numel for x, zero_point in factors if zero_point is not None),
        reads=(*(x for x, _ in factors), *(zero_point for _, zero_point in factors)),
        matrix_dtype=arithmetic(factors[0][0]),
    )
