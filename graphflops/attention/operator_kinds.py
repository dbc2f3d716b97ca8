"""Classifies operators by their part in an attention pattern: product, softmax, mask addition, layout and so on.

Follows an operand back through layouts, casts and scaling to the value that it comes from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Union

from graphflops.dims import Dim, floor_div, same
from graphflops.ops import Op
from graphflops.ops.operator import by_name
from graphflops.view import Call, View

Part = Literal[
    "product", "softmax", "layout", "cast", "dropout", "scale", "bias", "choice", "cap", "join", "part"
]
Role = Union[Part, Literal["power", "sum"]]

# By canonical name; every other operator has the role of its kind.
_BY_ROLE: dict[Role | None, str] = {
    "product": "matmul bmm mm baddbmm einsum gemm int_matmul qlinear_matmul",
    "softmax": "softmax masked_softmax",
    "layout": "repeat repeat_interleave",
    "part": "slice narrow split getitem",
    None: "select chunk unbind diagonal unfold as_strided view_dtype",
    "dropout": "bernoulli",
    "scale": "mul div neg pow sqrt",
    "bias": "add sub rsub add_relu add_n maximum minimum clamp clamp_min",
    "choice": "where masked_fill masked_scatter nan_to_num",
    "cap": "tanh",
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
    return role(call.operator) if call.row.state != "unknown" else None


class Product(NamedTuple):
    """A matrix product."""

    left: str  # the operand that gives the rows
    right: str  # the operand that gives the columns
    left_axis: int = -1  # that is summed over, counted from the end


def product_of(call: Call) -> Product | None:
    """The product that a call is; None where it is none, or sums over more than one axis."""
    if call.operator.name == "einsum":
        equation, names = call.argument("equation", ""), call.uses
        if not isinstance(equation, str) or len(names) != 2 or "->" not in equation:
            return None
        terms, _, result = equation.replace(" ", "").partition("->")
        a, _, b = terms.partition(",")
        summed = (set(a) & set(b)) - set(result) - {"."}
        if not result or len(summed) != 1 or (result[-1] in a) == (result[-1] in b):
            return None
        (letter,) = summed
        if result[-1] in b:
            return Product(names[0], names[1], a.index(letter) - len(a))
        return Product(names[1], names[0], b.index(letter) - len(b))
    left, right = call.value("a"), call.value("b")
    if not left or not right:
        return None
    return Product(left, right, -2 if call.argument("turn_a", 0) else -1)


def axis_of(call: Call, rank: int) -> int | None:
    """The axis that a softmax goes along, counted from the front."""
    op = call.operator
    axis = call.argument("axis", 1 if op.is_onnx and op.version < 13 else -1)
    return axis % rank if isinstance(axis, int) and rank else None


def keeps_last(call: Call, shape: Sequence[Dim], keys: Dim) -> bool:
    """Whether the axis of the keys is the last still after a call that may change the order of axes.

    Axes of length one behind it do not count: decompositions of `einsum` put them wherever they please.
    """
    order = _order(call, len(shape))
    if order is None:
        return bool(shape)
    long = [axis for axis in order if keys == 1 or shape[axis] != 1]
    return bool(long) and long[-1] == max(long)


def last_of(shape: Sequence[Dim], keys: Dim) -> Dim:
    """The size of the axis that would be that of the keys: the last, but for axes of length one."""
    return shape[-1] if keys == 1 else next((size for size in reversed(shape) if size != 1), 1)


def _order(call: Call, rank: int) -> list[int] | None:
    """The operand's axes in the order of the result; None where the call keeps their order, [] where it is not known."""
    name, order = call.operator.name, list(range(rank))
    if name == "permute":
        given = call.argument("order", tuple(reversed(order)))
        return [axis % rank for axis in given] if isinstance(given, tuple) and len(given) == rank else []
    axes: list[Any] = [-2, -1]
    if name in ("transpose", "movedim"):
        names = ("axis0", "axis1") if name == "transpose" else ("source", "destination")
        axes = [call.argument(each) for each in names]
        axes = [axis[0] if isinstance(axis, tuple) and len(axis) == 1 else axis for axis in axes]
    elif name != "t" or rank < 2:
        return None
    if not all(isinstance(axis, int) for axis in axes):
        return []
    first, second = (axis % rank for axis in axes)
    if name == "movedim":
        order.insert(second, order.pop(first))
    else:
        order[first], order[second] = order[second], order[first]
    return order


def source_of(name: str, view: View) -> tuple[str, tuple[Call, ...]]:
    """The value that an operand is a layout, scaling or cast of, and the calls in between, the last first."""
    calls: list[Call] = []
    while True:
        maker = view.makers.get(name)
        if maker is None or role_of(maker) not in ("layout", "cast", "scale"):
            return name, tuple(calls)
        operands = maker.uses
        if role_of(maker) == "scale":
            varying = [operand for operand in operands if is_mask(operand, view)]
            if len(varying) != 1:
                return name, tuple(calls)
            operands = tuple(varying)
        if not operands:
            return name, tuple(calls)
        calls.append(maker)
        name = operands[0]


def copies(name: str, view: View) -> tuple[tuple[Call, ...], Dim]:
    """The calls that repeat an operand for several query heads and what follows them, and the number of copies.

    Expanding one operand over the whole batch does not count as repeating it.
    """
    _, before = source_of(name, view)
    growth: Dim = 1
    last = 0
    for place, call in enumerate(before):
        source, result = view.types.get(first_of(call)), view.types.get(call.result)
        if source is None or result is None or source.numel in (0, result.numel) or result.numel == 0:
            continue
        times = floor_div(result.numel, source.numel)
        if source.rank == result.rank and source.rank and not same(source.shape[0], result.shape[0]):
            times = floor_div(times * source.shape[0], result.shape[0])
        growth, last = growth * times, place + 1
    return before[:last], growth


def first_of(call: Call) -> str:
    """Name of the first value that a call uses; "" where there is none."""
    return call.uses[0] if call.uses else ""


def is_mask(name: str, view: View) -> bool:
    """True if a value has more than one element, so that it may differ from score to score."""
    typed = view.types.get(name)
    return typed is not None and typed.numel != 1
