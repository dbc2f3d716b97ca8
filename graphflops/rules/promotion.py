"""Result element types by ATen's promotion: category first (bool < integer < float < complex), then width.

Within a category tensors with axes outrank 0-d tensors, and those outrank Python numbers
(https://pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.dims import Expr
from graphflops.tensor import (
    BCOMPLEX32,
    BFLOAT16,
    BOOL,
    COMPLEX32,
    COMPLEX64,
    COMPLEX128,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT16,
    INT64,
    DType,
    TensorType,
)

if TYPE_CHECKING:
    from graphflops.cost import Value

DEFAULT_FLOAT = FLOAT32
_CATEGORY = {"bool": 0, "uint": 1, "int": 1, "float": 2, "complex": 3}
_COMPLEX_OF = {FLOAT16: COMPLEX32, BFLOAT16: COMPLEX64, FLOAT32: COMPLEX64, FLOAT64: COMPLEX128}
_REAL_OF = {COMPLEX32: FLOAT16, BCOMPLEX32: BFLOAT16, COMPLEX64: FLOAT32, COMPLEX128: FLOAT64}


def result_type(*operands: Value) -> DType:
    """The element type ATen computes in for these tensors and Python numbers (None is skipped)."""
    ranked: list[tuple[int, DType]] = []  # (0 number, 1 tensor without axes, 2 tensor with axes), type
    for operand in operands:
        if isinstance(operand, TensorType):
            ranked.append((2 if operand.rank else 1, operand.dtype))
        elif operand is not None:
            ranked.append((0, _type_of_number(operand)))
    result: DType | None = None
    for priority in (2, 1, 0):
        group = [dtype for rank, dtype in ranked if rank == priority]
        if not group:
            continue
        promoted = group[0]
        for dtype in group[1:]:
            promoted = promote(promoted, dtype)
        if result is None:
            result = promoted
        elif category(promoted) > category(result):
            # A lower priority contributes its category only; the width stays.
            if promoted.kind == "complex" and result.kind == "float":
                promoted = complex_of(result)
            result = promoted
    return result or DEFAULT_FLOAT


def float_result(*operands: Value) -> DType:
    """As `result_type`, but integers become the default float, as for division, sqrt or mean."""
    dtype = result_type(*operands)
    return dtype if dtype.is_floating else DEFAULT_FLOAT


def promote(a: DType, b: DType) -> DType:
    """The smallest type both convert to."""
    if a == b:
        return a
    if category(a) != category(b):
        low, high = sorted((a, b), key=category)
        return (
            complex_of(low) if high.kind == "complex" and low.kind == "float" and _wider(low, high) else high
        )
    if a.kind == b.kind:
        if a.bits == b.bits:  # float16 with bfloat16
            return FLOAT32 if a.kind == "float" and a.bits == 16 else a
        return a if a.bits > b.bits else b
    unsigned, signed = (a, b) if a.kind == "uint" else (b, a)
    return signed if signed.bits > unsigned.bits else (INT16 if unsigned.bits == 8 else INT64)


def category(dtype: DType) -> int:
    """0 bool, 1 integer, 2 float, 3 complex."""
    return _CATEGORY.get(dtype.kind, 2)


def complex_of(dtype: DType) -> DType:
    """The complex type whose parts have this type."""
    return _COMPLEX_OF.get(dtype, dtype if dtype.kind == "complex" else COMPLEX64)


def real_of(dtype: DType) -> DType:
    """The type of a complex type's parts; other types are their own."""
    return _REAL_OF.get(dtype, dtype)


def _wider(real: DType, cplx: DType) -> bool:
    return complex_of(real).bits > cplx.bits


def _type_of_number(number: object) -> DType:
    if isinstance(number, bool):
        return BOOL
    if isinstance(number, (int, Expr)):
        return INT64
    return COMPLEX64 if isinstance(number, complex) else DEFAULT_FLOAT
