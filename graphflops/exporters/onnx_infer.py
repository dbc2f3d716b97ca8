"""Result types of one ONNX call by onnx's own shape inference, for operators whose rule is missing or fails."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from graphflops.cost import data_dependent
from graphflops.errors import DimError, FileError
from graphflops.exporters.onnx_values import type_of
from graphflops.rules.onnx.types import onnx_code
from graphflops.tensor import OptionalType, SequenceType, TensorType, UnknownType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphflops.cost import Value
    from graphflops.dims import Dim


def inferred(op: str, operands: Sequence[Value], attributes: Mapping[str, Any], outputs: int) -> list[Value]:
    """The types of a call's results, None for those that onnx cannot tell; empty where it cannot tell any.

    op: the operator with its version: `onnx.Conv.11`.
    """
    name, _, version = op.rpartition(".")
    domain, _, kind = name.rpartition(".")
    onnx = importlib.import_module("onnx")
    inference = importlib.import_module("onnx.shape_inference")
    names: dict[str, Dim] = {}
    try:
        schema = onnx.defs.get_schema(kind, int(version), "" if domain == "onnx" else domain)
        inputs = [f"i{place}" if operand is not None else "" for place, operand in enumerate(operands)]
        results = [f"o{place}" for place in range(outputs)]
        simple = (int, float, str, tuple)
        known = schema.attributes
        given = {
            key: value for key, value in attributes.items() if key in known and isinstance(value, simple)
        }
        node = onnx.helper.make_node(kind, inputs, results, domain=schema.domain, **given)
        types = {
            name: _type(onnx, operand, names) for name, operand in zip(inputs, operands, strict=True) if name
        }
        contents = {
            name: data
            for name, operand in zip(inputs, operands, strict=True)
            if (data := _contents(onnx, operand)) is not None
        }
        imports = [onnx.helper.make_opsetid(schema.domain, int(version))]
        found = inference.infer_node_outputs(schema, node, types, contents, opset_imports=imports)
    except Exception:  # noqa: BLE001 whatever it cannot do, it is only asked where nothing better is known
        return []

    def size(dim: Any, _: int) -> Dim:
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            return int(dim.dim_value)
        known = names.get(dim.dim_param) if dim.HasField("dim_param") else None
        return data_dependent("unknown") if known is None else known

    return [_readable(found[name], size) if name in found else None for name in results]


def _readable(proto: Any, size: Any) -> Value:
    try:
        return type_of(proto, size)  # type: ignore[return-value]
    except FileError:
        return None


def _type(onnx: Any, value: Value, names: dict[str, Dim]) -> Any:
    helper = onnx.helper
    if isinstance(value, UnknownType):
        return helper.make_tensor_type_proto(onnx_code(value.dtype) if value.dtype else 0, None)
    if isinstance(value, TensorType):
        shape = [dim if isinstance(dim, int) else _named(dim, names) for dim in value.shape]
        return helper.make_tensor_type_proto(onnx_code(value.dtype), shape)
    if isinstance(value, SequenceType):
        return helper.make_sequence_type_proto(_type(onnx, value.element or UnknownType(), names))
    if isinstance(value, OptionalType):
        return helper.make_optional_type_proto(_type(onnx, value.element or UnknownType(), names))
    raise DimError(f"ONNX has no type for {value}")


def _named(dim: Dim, names: dict[str, Dim]) -> str:
    name = f"d{len(names)}"
    names[name] = dim
    return name


def _contents(onnx: Any, value: Value) -> Any:
    """Known contents as a TensorProto, where they are all numbers."""
    if (
        not isinstance(value, TensorType)
        or value.value is None
        or value.dtype.kind not in ("int", "uint", "bool")
    ):
        return None
    flat = list(_flat(value.value))
    if any(not isinstance(number, int) for number in flat):
        return None
    return onnx.helper.make_tensor("", onnx_code(value.dtype), value.shape, flat)


def _flat(contents: Any) -> Any:
    if isinstance(contents, tuple):
        for part in contents:
            yield from _flat(part)
    else:
        yield contents
