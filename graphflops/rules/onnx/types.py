"""Element types by the numbers that ONNX files give them."""

from __future__ import annotations

from graphflops.errors import DimError
from graphflops.tensor import DTYPES, DType

_NAMES = (
    *(
        None,
        "float32",
        "uint8",
        "int8",
        "uint16",
        "int16",
        "int32",
        "int64",
        "string",
        "bool",
        "float16",
        "float64",
    ),
    *(
        "uint32",
        "uint64",
        "complex64",
        "complex128",
        "bfloat16",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
    ),
    *("float8_e5m2fnuz", "uint4", "int4", "float4_e2m1fn", "float8_e8m0fnu", "uint2", "int2"),
    *("float6_e2m3fn", "float6_e3m2fn"),
)
_BY_CODE: dict[int, DType] = {code: DTYPES[name] for code, name in enumerate(_NAMES) if name is not None}
_CODES: dict[DType, int] = {dtype: code for code, dtype in _BY_CODE.items()}


def onnx_dtype(code: int) -> DType:
    """The element type of a `TensorProto.DataType`; raises DimError for a number that no ONNX version has defined."""
    try:
        return _BY_CODE[code]
    except KeyError:
        raise DimError(f"unknown element type {code}") from None


def onnx_code(dtype: DType) -> int:
    """The `TensorProto.DataType` of an element type; raises DimError where ONNX has none."""
    try:
        return _CODES[dtype]
    except KeyError:
        raise DimError(f"ONNX has no element type {dtype}") from None
