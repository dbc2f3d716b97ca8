"""The element types that each version of an ONNX operator takes, and which of its operands have the same.

`onnx_operands.txt` is written by `python -m graphflops.ops.onnx_operands`, from the installed onnx and onnxruntime. A line
names operators with the same operands: of each the type parameter, "" if no other operand has it, and the kinds of element
types that it takes, `T=fi`. onnxruntime loads no model whose operands differ from that. Of a kind any width is taken: other
runtimes have kernels for more types than an opset names.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from graphflops.tensor import DType, TensorType

TABLE = Path(__file__).with_name("onnx_operands.txt")
_KINDS = {"float": "f", "int": "i", "uint": "i", "bool": "b", "complex": "c", "other": "s"}
_SPELLED = {"double": "f", "bfloat": "f", "uint": "i"}


@lru_cache(maxsize=1)
def _table() -> Mapping[str, tuple[tuple[str, str], ...]]:
    found = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        operators, _, operands = line.partition(": ")
        taken = tuple(
            (name, kinds) for name, _, kinds in (entry.partition("=") for entry in operands.split())
        )
        found.update(dict.fromkeys(operators.split(), taken))
    return found


def fault(op: str, operands: Iterable[object]) -> str:
    """What is wrong with the element types of a call's operands; "" if nothing is."""
    takes = _table().get(op, ())
    bound: dict[str, DType] = {}
    for place, operand in enumerate(operands if takes else ()):
        name, kinds = takes[min(place, len(takes) - 1)]
        if not isinstance(operand, TensorType):
            continue
        if kinds and _KINDS[operand.dtype.kind] not in kinds:
            return f"operand {place + 1} of {op} cannot be {operand.dtype}"
        first = bound.setdefault(name, operand.dtype) if name else operand.dtype
        if first is not operand.dtype:
            return f"operands of {op} must have one element type, not {first} and {operand.dtype}"
    return ""


def table() -> str:
    """The text of the table."""
    from onnx import defs
    from onnxruntime.capi.onnxruntime_pybind11_state import (  # type: ignore[import-untyped]
        get_all_operator_schema,
    )

    spelled: dict[str, list[str]] = defaultdict(list)
    for schema in (*defs.get_all_schemas_with_history(), *get_all_operator_schema()):
        domain = schema.domain or "onnx"
        op = f"{domain}.{schema.name}"
        op = op if domain.startswith("com.") else f"{op}.{schema.since_version}"
        operands = " ".join(_operands(schema))
        if operands and not any(op in operators for operators in spelled.values()):
            spelled[operands].append(op)
    lines = sorted((" ".join(sorted(operators)), operands) for operands, operators in spelled.items())
    return "".join(f"{operators}: {operands}\n" for operators, operands in lines)


def _operands(schema: Any) -> list[str]:
    allowed = {each.type_param_str: _letters(each.allowed_type_strs) for each in schema.type_constraints}
    found = []
    for each in schema.inputs:
        name = getattr(each, "type_str", None) or each.typeStr
        repeated = str(each.option).endswith("Variadic")
        free = repeated and not getattr(each, "is_homogeneous", getattr(each, "isHomogeneous", True))
        found.append((name, "" if free else allowed.get(name, _letters([name])), repeated and not free))
    times = Counter(name for name, _, _ in found)
    return [
        f"{name if name in allowed and kinds and (times[name] > 1 or repeated) else ''}={kinds}"
        for name, kinds, repeated in found
    ]


def _letters(types: Iterable[str]) -> str:
    """The kinds of a set of types as ONNX spells them, `tensor(float16)`; "" where some are no tensors."""
    found = set()
    for spelled in types:
        if not spelled.startswith("tensor("):
            return ""
        word = spelled[len("tensor(") : -1]
        found.add("f" if word.startswith("float") else _SPELLED.get(word.rstrip("0123456789"), word[0]))
    return "".join(sorted(found))


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")
