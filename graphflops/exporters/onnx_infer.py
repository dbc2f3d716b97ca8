"""Element types of one ONNX call's results by onnx's own inference, for calls of which no rule tells any.

onnx is told element types and attributes, but no sizes: it is written in C++, and of some operators it looks at axes that
a damaged file's operands do not have, at which the whole process would end.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from graphflops.cost import data_dependent
from graphflops.errors import DimError, FileError
from graphflops.exporters.onnx_values import type_of
from graphflops.exporters.onnx_versions import VERSIONS
from graphflops.rules.onnx.types import onnx_code
from graphflops.tensor import OptionalType, SequenceType, TensorType, UnknownType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphflops.cost import Value
    from graphflops.dims import Dim

_SIMPLE = (int, float, str, tuple)


def inferred(op: str, operands: Sequence[Value], attributes: Mapping[str, Any], outputs: int) -> list[Value]:
    """What onnx tells of a call's results, None for those of which it tells nothing; empty where it tells nothing at all.

    op: the operator with its version: `onnx.Conv.11`.
    """
    name, _, version = op.rpartition(".")
    domain, _, kind = name.rpartition(".")
    if name.removeprefix("onnx.") not in VERSIONS:
        return []  # onnx has no schema of it: importing onnx takes 0.1 s
    onnx = importlib.import_module("onnx")
    inference = importlib.import_module("onnx.shape_inference")
    try:
        schema = onnx.defs.get_schema(kind, int(version), "" if domain == "onnx" else domain)
        inputs = [f"i{place}" if operand is not None else "" for place, operand in enumerate(operands)]
        results = [f"o{place}" for place in range(outputs)]
        known = schema.attributes
        given = {
            key: value for key, value in attributes.items() if key in known and isinstance(value, _SIMPLE)
        }
        node = onnx.helper.make_node(kind, inputs, results, domain=schema.domain, **given)
        pairs = zip(inputs, operands, strict=True)
        types = {name: _without_sizes(onnx, operand) for name, operand in pairs if name}
        imports = [onnx.helper.make_opsetid(schema.domain, int(version))]
        found = inference.infer_node_outputs(schema, node, types, opset_imports=imports)
    except Exception:  # noqa: BLE001 whatever it cannot do, it is only asked where nothing better is known
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
