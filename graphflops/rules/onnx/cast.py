"""Conversions of elements to other types."""

from __future__ import annotations

from graphflops.cost import Estimate, Value
from graphflops.errors import DimError
from graphflops.rules.onnx import values
from graphflops.rules.onnx.entries import onnx_dtype
from graphflops.rules.registry import rule
from graphflops.tensor import DTYPES, DType, TensorType, UnknownType

_SPELLINGS = {"float": "float32", "double": "float64"}  # version 1 names the type, later versions number it


def converted(x: TensorType | UnknownType, dtype: DType) -> Estimate:
    """One operation per element if the type changes, else a copy."""
    if isinstance(x, UnknownType):
        return Estimate((UnknownType(dtype),), unknown="how many elements it converts is not known")
    out = values.folded(lambda number: number, x.like(dtype=dtype), x)
    return Estimate((out,), vector_flops=0 if dtype == x.dtype else x.numel, reads=(x,))


@rule("onnx.Cast", rankless=("x",))
def cast(x: TensorType | UnknownType, *, to: int | str, **attributes: Value) -> Estimate:
    """One operation per element where the type changes."""
    if isinstance(to, int):
        return converted(x, onnx_dtype(to))
    name = _SPELLINGS.get(to.lower(), to.lower())
    if name not in DTYPES:
        raise DimError(f"unknown element type {to!r}")
    return converted(x, DTYPES[name])


@rule("onnx.CastLike", rankless=("x",))
def cast_like(x: TensorType | UnknownType, target_type: TensorType, **attributes: Value) -> Estimate:
    """As `Cast` to the type of the second operand, whose data is not read."""
    return converted(x, target_type.dtype)
