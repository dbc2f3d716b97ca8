"""The shapes that operands of ONNX operators must have to go together, as the operators' documentation gives them.

A line names an operator and the shape of each operand: a letter is a size that is the same wherever it stands, `3h` three
times h, `1` one, `_` any size, `...` any axes; `-` is an operand of any shape, `|` stands between forms of other ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import takewhile

from graphflops.dims import Dim, differ
from graphflops.ops.operator import operator
from graphflops.tensor import TensorType

_TABLE = """
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


def _forms(text: str) -> Iterator[Form]:
    for form in text.split("|"):
        yield tuple(None if shape == "-" else tuple(shape.split(",")) for shape in form.split())


_FORMS: dict[str, tuple[Form, ...]] = {
    f"onnx.{name}": tuple(_forms(text))
    for name, _, text in (line.partition(":") for line in _TABLE.strip().splitlines())
}


def fault(op: str, operands: Sequence[object]) -> str:
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
