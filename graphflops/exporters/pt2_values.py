"""Literals, element types and result names of a `.pt2`: what is read without the rest of the program."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from graphflops.errors import FileError, shown
from graphflops.tensor import DTYPES, DType

if TYPE_CHECKING:
    from graphflops.exporters import pt2_schema as schema

SCALAR_TYPES: dict[int, DType] = {
    number: DTYPES[name]
    for number, name in (
        *((1, "uint8"), (2, "int8"), (3, "int16"), (4, "int32"), (5, "int64")),
        *((6, "float16"), (7, "float32"), (8, "float64"), (13, "bfloat16"), (12, "bool")),
        *((9, "complex32"), (10, "complex64"), (11, "complex128")),
        *((28, "uint16"), (34, "uint32"), (35, "uint64")),
        *((29, "float8_e4m3fn"), (30, "float8_e5m2"), (31, "float8_e4m3fnuz"), (32, "float8_e5m2fnuz")),
        (33, "float8_e8m0fnu"),
    )
}
MEMORY_FORMATS = ("unknown", "contiguous_format", "channels_last", "channels_last_3d", "preserve_format")
LAYOUTS = (
    "unknown",
    "sparse_coo",
    "sparse_csr",
    "sparse_csc",
    "sparse_bsr",
    "sparse_bsc",
    "_mkldnn",
    "strided",
)
_SPECIAL_FLOATS = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}


def results(arg: schema.Argument) -> tuple[str | None, ...]:
    """Names that an output, or an input, defines; None for a result that is nothing or a literal."""
    if arg.as_tensor is not None:
        return (arg.as_tensor.name,)
    if arg.as_tensors is not None:
        return tuple([item.name for item in arg.as_tensors])
    for scalar in (arg.as_sym_int, arg.as_sym_float, arg.as_sym_bool):
        if scalar is not None:
            return (scalar.as_name,)
    for scalars in (arg.as_sym_ints, arg.as_sym_floats, arg.as_sym_bools):
        if scalars is not None:
            return tuple([item.as_name for item in scalars])
    if arg.as_optional_tensor is not None:
        return (None if arg.as_optional_tensor.as_tensor is None else arg.as_optional_tensor.as_tensor.name,)
    if arg.as_optional_tensors is not None:
        return tuple(
            [None if item.as_tensor is None else item.as_tensor.name for item in arg.as_optional_tensors]
        )
    if arg.as_nested_tensors is not None:
        return tuple([item.name for items in arg.as_nested_tensors for item in items])
    if arg.as_string_to_argument is not None:
        return tuple([name for item in arg.as_string_to_argument.values() for name in results(item)])
    return (None if arg.as_custom_obj is None else arg.as_custom_obj.name,)


def number(value: float | str) -> float:
    """A float, which may be written as `Infinity`, `-Infinity` or `NaN`."""
    if isinstance(value, str):
        try:
            return _SPECIAL_FLOATS[value]
        except KeyError:
            raise FileError(f"{shown(value)} is not a number") from None
    return value


def literal(value: schema.Literal) -> Any:
    """The value of an input that the export fixed."""
    if value.as_float is not None:
        return number(value.as_float)
    for fixed in (value.as_int, value.as_string, value.as_bool):
        if fixed is not None:
            return fixed
    return None


def dtype_of(number: int, name: str) -> DType:
    """The element type of that number in the schema."""
    try:
        return SCALAR_TYPES[number]
    except KeyError:
        whose = f" of value {shown(name)}" if name else ""
        raise FileError(
            f"element type number {number}{whose} is not one this graphflops knows: update graphflops"
        ) from None


def named(names: tuple[str, ...], number: int) -> str:
    """An entry of a table, or the number itself where the table has none."""
    return names[number] if 0 <= number < len(names) else f"number {number}"


def device(device: schema.Device) -> str:
    """`cpu`, `cuda:1`."""
    return device.type if device.index is None else f"{device.type}:{device.index}"
