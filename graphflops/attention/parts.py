"""What operators are to an attention: the part that each has in its pattern, matrix products, and axes from call to call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Union

from graphflops.base.record import Record
from graphflops.dims import differ, prod, same
from graphflops.graph import Ref
from graphflops.ops import Op
from graphflops.ops.operator import by_name
from graphflops.view import Call, View

Part = Literal[
    "product", "softmax", "layout", "cast", "dropout", "scale", "bias", "choice", "cap", "join", "part"
]
Role = Union[Part, Literal["power", "sum"]]

# By canonical name; every other operator has the role of its kind.
_BY_ROLE: dict[Role | None, str] = {
    "product": "matmul bmm mm addmm baddbmm einsum gemm int_matmul qlinear_matmul",
    "softmax": "softmax masked_softmax",
    "layout": "repeat repeat_interleave",
    "part": "slice narrow split getitem",
    None: "select chunk unbind diagonal unfold as_strided view_dtype",
    "dropout": "bernoulli",
    "scale": "mul div neg pow sqrt",
    "bias": "add sub rsub add_relu add_n maximum minimum fmax fmin clamp clamp_min clamp_max addcmul lerp",
    "choice": "where masked_fill masked_scatter index_put tril triu",
    "cast": "nan_to_num",
    "cap": "tanh log_softmax",
    "join": "cat",
    "power": "exp exp2",
    "sum": "sum",
}
_BY_NAME: Mapping[str, Role | None] = by_name(
    {name: role for role, names in _BY_ROLE.items() for name in names.split()}
)
_BY_KIND: dict[str, Role] = {
    **dict.fromkeys(("view", "identity"), "layout"),
    **dict.fromkeys(("cast", "quantisation"), "cast"),
    "dropout": "dropout",
}


def role(op: Op) -> Role | None:
    """The part of an operator in an attention pattern; None where it has none."""
    return _BY_NAME[op.name] if op.name in _BY_NAME else _BY_KIND.get(op.kind)


def role_of(call: Call) -> Role | None:
    """The part of a call in an attention pattern; None where it has none, or no rule."""
    return role(call.operator) if call.is_priced else None


class Product(Record, frozen=True):
    """A matrix product. Axes are counted from the end."""

    left: str
    right: str
    left_axis: int  # of the left operand, that is summed over
    right_axis: int
    rows: int  # axis of the result that the left operand alone gives
    columns: int

    def beside(self, axis: int) -> tuple[str, int, str] | None:
        """Where an axis of the result is of one operand alone: the other one, its axis that is summed over, and that one."""
        if axis == self.columns:
            return self.left, self.left_axis, self.right
        return (self.right, self.right_axis, self.left) if axis == self.rows else None


def product_of(call: Call) -> Product | None:
    """The product that a call is; None where it is none, or sums over more than one axis."""
    if call.operator.name == "einsum":
        equation, names = call.argument("equation", ""), call.uses
        if not isinstance(equation, str) or len(names) != 2 or "->" not in equation:
            return None
        terms, _, result = equation.replace(" ", "").partition("->")
        a, _, b = terms.partition(",")
        summed = (set(a) & set(b)) - set(result) - {"."}
        alone = [
            max((result.rfind(x) for x in result if x in one and x not in other), default=-1)
            for one, other in ((a, b), (b, a))
        ]
        if len(summed) != 1 or -1 in alone:
            return None
        (letter,) = summed
        axes = a.index(letter) - len(a), b.index(letter) - len(b), *(place - len(result) for place in alone)
        return Product(*names, *axes)
    left, right = call.value("a"), call.value("b")
    if not left or not right:
        return None
    turned = [bool(call.argument(name, 0)) for name in ("turn_a", "turn_b")]
    return Product(left, right, -1 - turned[0], -2 + turned[1], -2, -1)


def axis_before(call: Call, axis: int, operand: str, view: View) -> int | None:
    """The axis of an operand that an axis of the result is, both counted from the end; None where there is none."""
    source, result = view.types.get(operand), view.types.get(call.result)
    if source is None or result is None or max(-axis, 1) > result.rank:
        return None
    order = call.operator.turned(call.arguments, source.rank)
    if order is not None:
        return order[axis] - source.rank if -axis <= source.rank else None
    if role_of(call) != "layout" or call.operator.kind == "identity":
        return axis if -axis <= source.rank else None
    behind = prod(result.shape[axis + 1 or result.rank :])
    for place in range(-1, -source.rank - 1, -1):
        is_alike = same(prod(source.shape[place + 1 or source.rank :]), behind)
        if is_alike and same(source.shape[place], result.shape[axis]):
            return place
    is_last = axis == -1 and source.rank and result.shape[-1] != 1
    return -1 if is_last and not differ(source.shape[-1], result.shape[-1]) else None


def axis_after(call: Call, axis: int, operand: str, view: View) -> int | None:
    """The axis of the result that an axis of an operand is."""
    rank = view.types[call.result].rank if call.result in view.types else 0
    return next((at for at in range(-1, -rank - 1, -1) if axis_before(call, at, operand, view) == axis), None)


def first_of(call: Call) -> str:
    """Name of the first value that a call uses; "" where there is none."""
    return call.uses[0] if call.uses else ""


def is_mask(name: str, view: View) -> bool:
    """True if a value has more than one element, so that it may differ from score to score."""
    typed = view.types.get(name)
    return typed is not None and typed.numel != 1


def axis_along(call: Call, view: View) -> int | None:
    """The one axis that a softmax or a reduction goes along, counted from the end; None where it is not one."""
    op, typed = call.operator, view.types.get(first_of(call))
    given = call.argument("axis", call.argument("axes"))
    if isinstance(given, Ref):
        given = view.types[given.name].value if given.name in view.types else None
    if given is None and op.kind == "softmax":
        given = 1 if op.is_onnx and op.version < 13 else -1
    axis = given[0] if isinstance(given, tuple) and len(given) == 1 else given
    if typed is None or not typed.rank or not isinstance(axis, int):
        return None
    axis = axis % typed.rank - typed.rank
    is_flat = op.is_onnx and op.kind == "softmax" and op.version < 13  # along all axes from that one on
    return None if is_flat and axis != -1 else axis
