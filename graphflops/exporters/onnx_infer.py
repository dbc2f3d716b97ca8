"""Element types of an ONNX call's results by onnx's own inference, for calls whose results no rule types.

onnx gets element types and attributes, but no sizes: it is written in C++, and for some operators it reads axes that a
damaged file's operands do not have, which would end the whole process.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from graphflops.cost import data_dependent
from graphflops.errors import DimError, FileError
from graphflops.exporters.onnx_values import type_of
from graphflops.ops import operator
from graphflops.ops.onnx_versions import VERSIONS
from graphflops.rules.onnx.entries import onnx_code
from graphflops.tensor import OptionalType, SequenceType, TensorType, UnknownType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.cost import Value
    from graphflops.dims import Dim
    from graphflops.graph import Node

_SIMPLE = (int, float, str, tuple)


def inferred(node: Node, operands: Sequence[Value]) -> list[Value]:
    """The types that onnx infers for a call's results, None for a result without one; [] if it infers nothing."""
    called = operator(node.op)
    if called.base.removeprefix("onnx.") not in VERSIONS:
        return []  # onnx has no schema of it: importing onnx takes 0.1 s
    onnx = importlib.import_module("onnx")
    inference = importlib.import_module("onnx.shape_inference")
    try:
        schema = onnx.defs.get_schema(
            called.word, called.version, "" if called.dialect == "onnx" else called.dialect
        )
        inputs = [f"i{place}" if operand is not None else "" for place, operand in enumerate(operands)]
        results = [f"o{place}" for place in range(len(node.outputs))]
        known = schema.attributes
        given = {key: value for key, value in node.kwargs if key in known and isinstance(value, _SIMPLE)}
        proto = onnx.helper.make_node(called.word, inputs, results, domain=schema.domain, **given)
        pairs = zip(inputs, operands, strict=True)
        types = {name: _without_sizes(onnx, operand) for name, operand in pairs if name}
        imports = [onnx.helper.make_opsetid(schema.domain, called.version)]
        found = inference.infer_node_outputs(schema, proto, types, opset_imports=imports)
    except Exception:  # noqa: BLE001 its failures do not matter: it is used only where no better type is known
        return []
    return [_readable(found[name]) if name in found else None for name in results]


def _readable(proto: Any) -> Value:
    try:
        return type_of(proto, _size)  # type: ignore[return-value]
    except FileError:
        return None


def _size(dim: Any, _: int) -> Dim:
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return int(dim.dim_value)
    return data_dependent("unknown")


def _without_sizes(onnx: Any, value: Value) -> Any:
    helper = onnx.helper
    if isinstance(value, (TensorType, UnknownType)):
        return helper.make_tensor_type_proto(onnx_code(value.dtype) if value.dtype else 0, None)
    if isinstance(value, SequenceType):
        return helper.make_sequence_type_proto(_without_sizes(onnx, value.element or UnknownType()))
    if isinstance(value, OptionalType):
        return helper.make_optional_type_proto(_without_sizes(onnx, value.element or UnknownType()))
    raise DimError(f"ONNX has no type for {value}")
