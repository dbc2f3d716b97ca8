"""Follows a mask back to the indices it was computed from, in ATen's spelling and in ONNX's.

A value is asked for at one place: for each of its axes an index that is affine in the query's place and the key's, or None
where it is neither (the batch). Calls that lay out change the indices; a range gives back its index as a number; comparing
numbers gives conditions.
"""

from __future__ import annotations

import operator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from graphflops.attention.predicates import (
    COLUMN,
    ROW,
    UNKNOWN,
    ZERO,
    Affine,
    Choice,
    Known,
    Truth,
    number_of,
)
from graphflops.attention.roles import base_of
from graphflops.dims import Expr
from graphflops.errors import DimError
from graphflops.graph import Ref

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from graphflops.tensor import TensorType
    from graphflops.view import Call, View

_MOST = 400  # calls looked at for one mask
Indices = tuple["Affine | None", ...]


class Masks:
    """The masks of a program, each at the pair (i, j) of its last two axes."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.left = _MOST
        self.pairs: dict[str, Known] = {}

    def at_pair(self, name: str) -> Known:
        """What is known of the value of that name, which may broadcast, at a query and a key."""
        typed = self.view.types.get(name)
        if typed is None:
            return None
        if name not in self.pairs:
            self.left = _MOST
            indices: Indices = (*[None] * (typed.rank - 2), ROW, COLUMN)[-typed.rank :] if typed.rank else ()
            self.pairs[name] = self.of(name, _clipped(indices, typed))
        return self.pairs[name]

    def of(self, name: str, at: Indices) -> Known:
        """The value at a place."""
        self.left -= 1
        typed, maker = self.view.types.get(name), self.view.makers.get(name)
        if self.left < 0 or typed is None or len(at) != typed.rank:
            return None
        known = _constant(typed, at)
        if known is not None:
            return known
        handler = None if maker is None else _HANDLERS.get(base_of(maker))
        found = None
        if (
            maker is not None
            and handler is not None
            and maker.result == name
            and maker.row.state != "unknown"
        ):
            # Whatever a file holds, not to follow a mask is never wrong.
            with suppress(ArithmeticError, DimError, LookupError, TypeError, ValueError):
                found = handler(self, maker, at)
        return UNKNOWN if found is None and typed.dtype.kind == "bool" else found

    def operand(self, argument: Any, at: Indices) -> Known:
        """An operand that broadcasts to where the result is asked for, or a number."""
        if isinstance(argument, Ref):
            typed = self.view.types.get(argument.name)
            if typed is None:
                size = self.view.size(argument.name)
                return None if size is None else Affine(0, 0, size)
            return self.of(argument.name, _clipped(at[len(at) - typed.rank :], typed))
        if isinstance(argument, bool):
            return Truth() if argument else ~Truth()
        if isinstance(argument, (int, Expr)):
            return Affine(0, 0, argument)
        return Choice(Truth(), argument, argument) if isinstance(argument, float) else None

    def number(self, argument: Any) -> Any:
        """An argument that is a number or list of numbers, in the call or in a small tensor."""
        if isinstance(argument, Ref):
            typed = self.view.types.get(argument.name)
            return self.view.size(argument.name) if typed is None else typed.value
        if isinstance(argument, tuple):
            return tuple(map(self.number, argument))
        return argument


def _clipped(at: Indices, typed: TensorType) -> Indices:
    """Indices with that of an axis of size one replaced by 0: it broadcasts."""
    return tuple([ZERO if size == 1 else index for size, index in zip(typed.shape, at, strict=True)])


def _constant(typed: TensorType, at: Indices) -> Known:
    """The value of a tensor whose contents are known and, at this place, one number."""
    held: Any = typed.uniform
    if held is None:
        held = typed.value
        for index in at:
            if isinstance(held, tuple) and len(set(held)) == 1:
                held = held[0]
            elif (
                isinstance(held, tuple)
                and index is not None
                and index.is_number
                and isinstance(index.constant, int)
            ):
                held = held[index.constant] if index.constant < len(held) else None
            else:
                held = None
    if held is None or isinstance(held, tuple):
        return None
    if typed.dtype.kind == "bool":
        return Truth() if held else ~Truth()
    if isinstance(held, float) or typed.dtype.is_floating:
        return Choice(Truth(), held, held) if not isinstance(held, Expr) else None
    return Affine(0, 0, held)


def _args(call: Call) -> dict[str, Any]:
    """Arguments of an ATen call by the names that those handled here have."""
    names = _NAMES.get(base_of(call), ())
    return {**dict(zip(names, call.node.args, strict=False)), **dict(call.node.kwargs)}


# Calls that lay out


def _same(mask: Masks, call: Call, at: Indices) -> Known:
    value = mask.operand(call.given[0], at)
    result = mask.view.types[call.result]
    if isinstance(value, Truth) and result.dtype.kind != "bool":
        return Choice(value, 1, 0)
    if isinstance(value, Choice) and result.dtype.kind == "bool":
        return _truth(value)
    return value


def _unsqueeze(mask: Masks, call: Call, at: Indices) -> Known:
    axes = _axes(mask, call, len(at))
    if axes is None:
        return None
    return mask.operand(call.given[0], tuple([i for axis, i in enumerate(at) if axis not in axes]))


def _squeeze(mask: Masks, call: Call, at: Indices) -> Known:
    typed = mask.view.types[call.uses[0]]
    axes = _axes(mask, call, typed.rank)
    if axes is None:
        axes = {axis for axis, size in enumerate(typed.shape) if size == 1}
    rest = iter(at)
    return mask.operand(
        call.given[0], tuple([ZERO if axis in axes else next(rest, None) for axis in range(typed.rank)])
    )


def _axes(mask: Masks, call: Call, rank: int) -> set[int] | None:
    given = (
        mask.number(call.given[1]) if len(call.given) > 1 else call.attribute("dim", call.attribute("axes"))
    )
    given = (given,) if isinstance(given, int) else given
    if not isinstance(given, tuple) or not all(isinstance(axis, int) for axis in given):
        return None
    return {axis % rank for axis in given if rank}


def _reshape(mask: Masks, call: Call, at: Indices) -> Known:
    """Axes of size one come or go; nothing else is followed."""
    source, result = mask.view.types[call.uses[0]], mask.view.types[call.result]
    wide = [axis for axis, size in enumerate(result.shape) if size != 1]
    if [result.shape[axis] for axis in wide] != [size for size in source.shape if size != 1]:
        return None
    rest = iter([at[axis] for axis in wide])
    return mask.of(call.uses[0], tuple([ZERO if size == 1 else next(rest) for size in source.shape]))


def _permute(mask: Masks, call: Call, at: Indices) -> Known:
    rank = len(at)
    given = call.attribute("perm", call.attribute("dims", call.given[1] if len(call.given) > 1 else None))
    order = given if isinstance(given, tuple) else tuple(reversed(range(rank)))
    inner: list[Affine | None] = [None] * rank
    for place, axis in enumerate(order):
        inner[axis % rank] = at[place]
    return mask.of(call.uses[0], tuple(inner))


def _transpose(mask: Masks, call: Call, at: Indices) -> Known:
    args = _args(call)
    inner = list(at)
    a, b = args.get("dim0"), args.get("dim1")
    if not isinstance(a, int) or not isinstance(b, int):
        return None
    inner[a], inner[b] = inner[b], inner[a]
    return mask.of(call.uses[0], tuple(inner))


def _slice(mask: Masks, call: Call, at: Indices) -> Known:
    source = mask.view.types[call.uses[0]]
    if base_of(call) == "Slice":
        starts, axes, steps = (
            mask.number(a) for a in (*call.given[1:2], *(*call.given[3:5], None, None)[:2])
        )
        starts = call.attribute("starts", starts)
        axes = call.attribute("axes", axes) or tuple(range(len(starts or ())))
        steps = steps or (1,) * len(starts or ())
    else:
        args = _args(call)
        starts, axes, steps = (args.get("start") or 0,), (args.get("dim", 0),), (args.get("step", 1),)
    if not isinstance(starts, tuple) or not isinstance(axes, tuple) or not isinstance(steps, tuple):
        return None
    inner = list(at)
    for start, axis, step in zip(starts, axes, steps, strict=False):
        start = mask.number(start)
        index = inner[axis]
        if isinstance(start, int) and start < 0:
            start = start + source.shape[axis]
        if index is None or not isinstance(step, int) or not isinstance(start, (int, Expr)):
            return None
        inner[axis] = index * step + Affine(0, 0, start)
    return mask.of(call.uses[0], tuple(inner))


def _select(mask: Masks, call: Call, at: Indices) -> Known:
    args = _args(call)
    axis, index = args.get("dim"), mask.number(args.get("index"))
    if not isinstance(axis, int) or not isinstance(index, int) or index < 0:
        return None
    axis %= len(at) + 1
    return mask.of(call.uses[0], (*at[:axis], Affine(0, 0, index), *at[axis:]))


def _index(mask: Masks, call: Call, at: Indices) -> Known:
    """x[i, j, ...] by index tensors for its first axes, which broadcast with one another."""
    source = mask.view.types[call.uses[0]]
    given = call.given[1]
    if not isinstance(given, tuple) or any(not isinstance(index, Ref) for index in given):
        return None
    rest = source.rank - len(given)
    places = [mask.operand(index, at[: len(at) - rest]) for index in given]
    found = [place if isinstance(place, Affine) else None for place in places]
    return mask.of(call.uses[0], (*found, *at[len(at) - rest :]))


def _gather(mask: Masks, call: Call, at: Indices) -> Known:
    source, index = (mask.view.types.get(name) for name in call.uses[:2])
    if source is None or index is None:
        return None
    axis = call.attribute("axis", 0) % source.rank
    place = mask.of(call.uses[1], _clipped(at[axis : axis + index.rank], index))
    inner = place if isinstance(place, Affine) else None
    return mask.of(call.uses[0], (*at[:axis], inner, *at[axis + index.rank :]))


def _gather_nd(mask: Masks, call: Call, at: Indices) -> Known:
    """x[i, j, ...] with the indices side by side in the last axis of one tensor."""
    index = mask.view.types.get(call.uses[1])
    if index is None or call.attribute("batch_dims", 0) or not isinstance(index.shape[-1], int):
        return None
    outer = _clipped(at[: index.rank - 1], replace(index, shape=index.shape[:-1]))
    places = [mask.of(call.uses[1], (*outer, Affine(0, 0, k))) for k in range(index.shape[-1])]
    found = [place if isinstance(place, Affine) else None for place in places]
    return mask.of(call.uses[0], (*found, *at[index.rank - 1 :]))


def _concat(mask: Masks, call: Call, at: Indices) -> Known:
    """The part that holds the place, where its index along the axis is a number."""
    axis = call.attribute("axis", call.attribute("dim", 0)) % len(at)
    index = at[axis]
    place = None if index is None or not index.is_number else index.constant
    for name in call.uses:
        typed = mask.view.types.get(name)
        if typed is None or not isinstance(place, int) or not isinstance(size := typed.shape[axis], int):
            return None
        if place < size:
            return mask.of(name, (*at[:axis], Affine(0, 0, place), *at[axis + 1 :]))
        place -= size
    return None


# Numbers


def _range(mask: Masks, call: Call, at: Indices) -> Known:
    named = {key: mask.number(value) for key, value in call.node.kwargs}
    args = [mask.number(argument) for argument in call.node.args]
    start, step = (args[0], args[2] if len(args) > 2 else 1) if len(args) > 1 else (0, 1)
    start, step = named.get("start", start), named.get("step", step)
    if at[0] is None or not isinstance(start, (int, Expr)) or not isinstance(step, int):
        return None
    return at[0] * step + Affine(0, 0, start)


def _filled(mask: Masks, call: Call, at: Indices) -> Known:
    """The number that a new tensor is filled with."""
    base = base_of(call)
    number: Any = 0 if "zeros" in base else 1
    if base == "scalar_tensor":
        number = call.given[0]
    elif "full" in base:
        place = 1 if base in ("full", "full_like") else 2
        number = call.attribute("fill_value", call.given[min(place, len(call.given) - 1)])
    kind = mask.view.types[call.result].dtype.kind
    if kind == "bool":
        return Truth() if number else ~Truth()
    if kind == "float":
        return Choice(Truth(), number, number) if isinstance(number, (int, float)) else None
    return mask.operand(number, ())


def _cumsum(mask: Masks, call: Call, at: Indices) -> Known:
    """Of the same number everywhere: the index times that number."""
    source = mask.view.types[call.uses[0]]
    axis = mask.number(call.given[1]) if len(call.given) > 1 else call.attribute("dim")
    if not isinstance(axis, int):
        return None
    each, index = number_of(mask.of(call.uses[0], at)), at[axis % source.rank]
    if each is None or index is None or each != int(each):
        return None
    return (index + Affine(0, 0, 1)) * int(each)


def _sum(sign: int) -> Callable[[Masks, Call, Indices], Known]:
    def handler(mask: Masks, call: Call, at: Indices) -> Known:
        a, b = (mask.operand(argument, at) for argument in call.given[:2])
        if base_of(call) == "rsub":
            a, b = b, a
        if call.attribute("alpha", 1) != 1:
            return None
        if isinstance(a, Affine) and isinstance(b, Affine):
            return a + b * sign
        return _changed(a, b, lambda x, y: x + sign * y)

    return handler


def _product(mask: Masks, call: Call, at: Indices) -> Known:
    a, b = (mask.operand(argument, at) for argument in call.given[:2])
    if isinstance(a, Truth) and isinstance(b, Truth):
        return a & b
    for one, other in ((a, b), (b, a)):
        factor = number_of(other)
        if isinstance(one, Affine) and factor is not None and factor == int(factor):
            return one * int(factor)
    return _changed(a, b, operator.mul)


def _negative(mask: Masks, call: Call, at: Indices) -> Known:
    value = mask.operand(call.given[0], at)
    if isinstance(value, Affine):
        return value * -1
    return Choice(value.truth, -value.yes, -value.no) if isinstance(value, Choice) else None


def _changed(a: Known, b: Known, change: Callable[[float, float], float]) -> Known:
    """A choice of numbers and one number together."""
    x, y = number_of(a), number_of(b)
    if isinstance(a, Choice) and y is not None:
        return Choice(a.truth, change(a.yes, y), change(a.no, y))
    if isinstance(b, Choice) and x is not None:
        return Choice(b.truth, change(x, b.yes), change(x, b.no))
    return None


# Truths


def _comparison(row: int, shift: int) -> Callable[[Masks, Call, Indices], Known]:
    """`row * (a - b) + shift >= 0`."""

    def handler(mask: Masks, call: Call, at: Indices) -> Known:
        a, b = (mask.operand(argument, at) for argument in call.given[:2])
        if isinstance(a, Affine) and isinstance(b, Affine):
            return _settled((a + b * -1) * row + Affine(0, 0, shift))
        return None

    return handler


def _equal(wanted: bool) -> Callable[[Masks, Call, Indices], Known]:
    def handler(mask: Masks, call: Call, at: Indices) -> Known:
        a, b = (mask.operand(argument, at) for argument in call.given[:2])
        found = _same_number(a, b) or _same_number(b, a)
        return None if found is None else found if wanted else ~found

    return handler


def _same_number(a: Known, b: Known) -> Truth | None:
    """Where two values are equal."""
    number = number_of(b)
    if isinstance(a, Affine) and isinstance(b, Affine):
        difference = a + b * -1
        return _settled(difference) & _settled(difference * -1)
    if isinstance(a, Choice) and number is not None:
        return _truth(Choice(a.truth, a.yes == number, a.no == number))
    if isinstance(a, Truth) and number in (0, 1):
        return a if number else ~a
    return None


def _settled(term: Affine) -> Truth:
    """`term >= 0`, which may be so for every pair, or for none."""
    if term.is_number and isinstance(term.constant, int):
        return Truth() if term.constant >= 0 else ~Truth()
    return Truth((term,))


def _truth(choice: Choice) -> Truth:
    if bool(choice.yes) == bool(choice.no):
        return Truth() if choice.yes else ~Truth()
    return choice.truth if choice.yes else ~choice.truth


def _and(mask: Masks, call: Call, at: Indices) -> Known:
    a, b = _truths(mask, call.given[:2], at)
    return a & b


def _or(mask: Masks, call: Call, at: Indices) -> Known:
    a, b = _truths(mask, call.given[:2], at)
    return a | b


def _not(mask: Masks, call: Call, at: Indices) -> Known:
    (a,) = _truths(mask, call.given[:1], at)
    return ~a


def _truths(mask: Masks, arguments: Sequence[Any], at: Indices) -> list[Truth]:
    values = [mask.operand(argument, at) for argument in arguments]
    return [
        value if isinstance(value, Truth) else _truth(value) if isinstance(value, Choice) else UNKNOWN
        for value in values
    ]


def _where(mask: Masks, call: Call, at: Indices) -> Known:
    (condition,) = _truths(mask, call.given[:1], at)
    return chosen(condition, *(mask.operand(argument, at) for argument in call.given[1:3]))


def _masked_fill(mask: Masks, call: Call, at: Indices) -> Known:
    value = mask.operand(call.given[0], at)
    (condition,) = _truths(mask, call.given[1:2], at)
    return chosen(condition, mask.operand(call.given[2], at), value)


def chosen(condition: Truth, yes: Known, no: Known) -> Known:
    """`yes` where the condition holds, else `no`."""
    if isinstance(yes, Truth) and isinstance(no, Truth):
        return (condition & yes) | (~condition & no)
    numbers = number_of(yes), number_of(no)
    if numbers[0] is not None and numbers[1] is not None:
        return Choice(condition, numbers[0], numbers[1])
    return None


def _triangle(upper: bool | None) -> Callable[[Masks, Call, Indices], Known]:
    """The value on one side of a diagonal, zero on the other."""

    def handler(mask: Masks, call: Call, at: Indices) -> Known:
        is_upper = bool(call.attribute("upper", 1)) if upper is None else upper
        given = call.given[1] if len(call.given) > 1 else call.attribute("diagonal", 0)
        diagonal = mask.number(given)
        if len(at) < 2 or at[-1] is None or at[-2] is None or not isinstance(diagonal, (int, Expr)):
            return None
        over = at[-1] + at[-2] * -1 + Affine(0, 0, -diagonal)  # column - row - diagonal
        inside = Truth((over if is_upper else over * -1,))
        value = mask.operand(call.given[0], at)
        if isinstance(value, Truth):
            return inside & value
        number = number_of(value)
        return None if number is None else Choice(inside, number, 0)

    return handler


_TABLE: dict[Callable[[Masks, Call, Indices], Known], str] = {
    _same: "clone contiguous alias detach to _to_copy type_as convert_element_type lift_fresh_copy Cast CastLike Identity"
    " expand expand_as Expand expand_copy float bool half",
    _unsqueeze: "unsqueeze unsqueeze_copy Unsqueeze",
    _squeeze: "squeeze squeeze_copy Squeeze",
    _reshape: "view reshape _unsafe_view view_copy Reshape",
    _permute: "permute permute_copy Transpose",
    _transpose: "transpose transpose_copy",
    _slice: "slice slice_copy Slice",
    _select: "select select_copy",
    _index: "index",
    _gather: "Gather",
    _gather_nd: "GatherND",
    _concat: "Concat",
    _range: "arange Range",
    _filled: "zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full scalar_tensor",
    _cumsum: "cumsum CumSum",
    _sum(1): "add Add",
    _sum(-1): "sub Sub rsub",
    _product: "mul Mul",
    _negative: "neg Neg",
    _comparison(1, 0): "ge greater_equal GreaterOrEqual",
    _comparison(1, -1): "gt greater Greater",
    _comparison(-1, 0): "le less_equal LessOrEqual",
    _comparison(-1, -1): "lt less Less",
    _equal(True): "eq Equal",
    _equal(False): "ne not_equal",
    _and: "logical_and bitwise_and __and__ And BitwiseAnd",
    _or: "logical_or bitwise_or __or__ Or BitwiseOr",
    _not: "logical_not bitwise_not Not BitwiseNot",
    _where: "where Where",
    _masked_fill: "masked_fill",
    _triangle(True): "triu",
    _triangle(False): "tril",
    _triangle(None): "Trilu",
}
_HANDLERS = {name: handler for handler, names in _TABLE.items() for name in names.split()}
_NAMES = {
    "transpose": ("self", "dim0", "dim1"),
    "transpose_copy": ("self", "dim0", "dim1"),
    "slice": ("self", "dim", "start", "end", "step"),
    "slice_copy": ("self", "dim", "start", "end", "step"),
    "select": ("self", "dim", "index"),
    "select_copy": ("self", "dim", "index"),
}
