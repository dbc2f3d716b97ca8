"""Operands of ONNX operators: the element types that each version takes, which are the same, and which sizes.

`onnx_operands.txt` is written by `python -m graphflops.ops.onnx_operands`, from the installed onnx and onnxruntime. A line
names operators with the same operands: of each the type parameter, "" if no other operand has it, and the kinds of element
types that it takes, `T=fi`. onnxruntime loads no model whose operands differ from that. Of a kind any width is taken: other
runtimes have kernels for more types than an opset names.

Shapes must go together as the operators' documentation says. A line below names an operator and the shape of each operand: a
letter is a size that is the same wherever it stands, `3h` three times h, `1` one, `_` any size, `...` any axes; `-` is an
operand of any shape, `|` stands between forms of other ranks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from graphflops.dims import Dim, differ
from graphflops.ops.operator import operator
from graphflops.tensor import DType, TensorType

TABLE = Path(__file__).with_name("onnx_operands.txt")
_KINDS = {"float": "f", "int": "i", "uint": "i", "bool": "b", "complex": "c", "other": "s"}
_SPELLED = {"double": "f", "bfloat": "f", "uint": "i"}
_SHAPES = """
AffineGrid: n,2,3 _ | n,3,4 _
Attention: b,_,_,d b,h,k,d b,h,k,_ - b,h,p,d b,h,p,_ | b,_,_ b,k,_ b,k,_
BatchNormalization: n,c,... c c c c | n | n,... _,_,... _,_,... _,_,... _,_,...
CausalConvWithState: b,c,t c,1,_ c b,c,_
DeformConv: n,_,_,_ m,_,_,_ n,_,y,x m n,_,y,x
GRU: _,_,i d,3h,i d,3h,h d,6h
GridSample: n,_,_,_ n,_,_,2 | n,_,_,_,_ n,_,_,_,3
GroupNormalization: n,c,... c c
InstanceNormalization: n,c,... c c
LSTM: _,_,i d,4h,i d,4h,h d,8h - - - d,3h
LinearAttention: b,t,_ b,t,_ b,t,_ b,_,_,_ b,t,_ b,t,_
NegativeLogLikelihoodLoss: n,c,... n,... c
NonMaxSuppression: b,n,4 b,_,n
RNN: _,_,i d,h,i d,h,h d,2h
RoiAlign: n,c,_,_ r,4 r
RotaryEmbedding: ... p,d p,d b,s | ... b,s,d b,s,d
SoftmaxCrossEntropyLoss: n,c,... n,... c
"""
Form = tuple[tuple[str, ...] | None, ...]


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


def _forms(text: str) -> Iterator[Form]:
    for form in text.split("|"):
        yield tuple(None if shape == "-" else tuple(shape.split(",")) for shape in form.split())


_FORMS: dict[str, tuple[Form, ...]] = {
    f"onnx.{name}": tuple(_forms(text))
    for name, _, text in (line.partition(":") for line in _SHAPES.strip().splitlines())
}


def misfit(op: str, operands: Sequence[object]) -> str:
    """What is wrong with the shapes of a call's operands; "" if nothing is."""
    forms = _FORMS.get(operator(op).base, ())
    if not forms or any(_has_ranks(form, operands) and _agree(form, operands) for form in forms):
        return ""
    shapes = (f"[{', '.join(map(str, each.shape))}]" for each in operands if isinstance(each, TensorType))
    return f"operands of {op} do not fit one another: {', '.join(shapes)}"


def _has_ranks(form: Form, operands: Sequence[object]) -> bool:
    for shape, operand in zip(form, operands, strict=False):
        if shape is not None and isinstance(operand, TensorType):
            least = len(shape) - ("..." in shape)
            if operand.rank < least or (operand.rank > least and "..." not in shape):
                return False
    return True


def _agree(form: Form, operands: Sequence[object]) -> bool:
    sizes: dict[str, list[tuple[int, Dim]]] = defaultdict(list)  # by letter: how many times it a size is
    for shape, operand in zip(form, operands, strict=False):
        there = operand.shape if shape is not None and isinstance(operand, TensorType) else ()
        for size, dim in zip(takewhile("...".__ne__, shape or ()), there, strict=False):
            letter = size.lstrip("0123456789")
            sizes[letter].append((int(size.removesuffix(letter) or 1), dim))
    sizes[""].append((1, 1))  # what is no letter is a number
    sizes.pop("_", None)
    for told in sizes.values():
        unit, first = min(told, key=lambda each: each[0])
        if any(differ(dim * unit, first * times) for times, dim in told):
            return False
    return True


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
