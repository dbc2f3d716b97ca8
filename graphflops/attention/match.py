"""Attention spelled out: a product, calls on its scores, a softmax over them, and a second product.

The pattern is structural. From each softmax, or exponential whose results are divided by their sum, we go back along the
axis of the keys to the product that made the scores, through calls that scale, mask, cap, cast or lay them out anew and no
others, and on to the product that sums over that axis. From the operands of the two products we go back through the same
layout calls to where queries, keys and values come from, so that keys repeated for several query heads are counted once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from graphflops.base.record import Record
from graphflops.dims import Dim, differ, floor_div, prod, same
from graphflops.ops import Op
from graphflops.ops.operator import by_name
from graphflops.tensor import TensorType
from graphflops.view import Call, View, axis_along, first_of, is_mask

Role = Literal[
    "product", "softmax", "layout", "cast", "dropout", "scale", "bias", "choice", "cap", "join", "part", "power",
    "gate", "sum",
]  # fmt: skip

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
    "cap": "tanh log_softmax leaky_relu",
    "join": "cat",
    "power": "exp exp2",
    "gate": "sigmoid",
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


def source_of(name: str, view: View) -> tuple[str, tuple[Call, ...]]:
    """The value that an operand is a layout, scaling or cast of, and the calls in between, last first."""
    calls: list[Call] = []
    while (maker := view.makers.get(name)) and role_of(maker) in ("layout", "cast", "scale"):
        is_scale = role_of(maker) == "scale"
        operands = [operand for operand in maker.uses if not is_scale or is_mask(operand, view)]
        if not operands or (is_scale and len(operands) > 1):
            break
        calls.append(maker)
        name = operands[0]
    return name, tuple(calls)


def copies(name: str, view: View) -> tuple[tuple[Call, ...], Dim]:
    """The calls that repeat an operand for several query heads, with the calls after them, and the number of copies.

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


_MOST_BACK = 24  # calls from the softmax back to the scores
_MOST_ON = 12
_ONE: frozenset[Role] = frozenset({"layout", "cast", "cap", "dropout", "part"})
_AFTER: frozenset[Role] = frozenset({"layout", "cast", "dropout", "scale", "choice"})
_SEVERAL: frozenset[Role] = frozenset({"scale", "bias", "choice", "join"})


class Masking(Record, frozen=True):
    """A call that may hide scores: its operands other than the scores, and the scores' name."""

    call: Call
    scores: str
    others: tuple[str, ...]
    axes: tuple[int, int]  # of queries and keys in its result, counted from the end
    is_after: bool = False  # it is given probabilities


# Batch, heads of queries and of keys, queries, keys, widths of keys and of values.
Sizes = tuple[Dim, Dim, Dim, Dim, Dim, Dim, Dim]


class Spelled(Record, frozen=True):
    """One attention."""

    first: Call
    second: Call
    softmax: Call
    between: tuple[Call, ...]  # calls from the first product to the second, in program order
    repeats: tuple[Call, ...]  # calls that repeat keys and values for query heads, and calls on their results
    query: str  # where queries come from; so are keys and values below
    key: str
    value: str
    masks: tuple[Masking, ...]  # what masks the scores
    sizes: Sizes


class _Way(Record, frozen=True):
    """Calls from the product that makes scores to a value made of them, and those that may hide some."""

    between: tuple[Call, ...]
    axes: tuple[int, int]  # of queries and keys in the value
    first: tuple[int, int]  # the same in the scores
    masks: tuple[Masking, ...] = ()

    def on(self, *calls: Call, axes: tuple[int, int], masks: Sequence[Masking] = ()) -> _Way:
        return _Way((*self.between, *calls), axes, self.first, (*self.masks, *masks))


def spelled(view: View) -> Iterator[Spelled]:
    """Every attention that is not one operator, in program order."""
    for call in view.calls:
        role, scores = role_of(call), view.types.get(first_of(call))
        if role not in ("softmax", "power", "gate"):
            continue
        axis, sums = (axis_along(call, view), ()) if role == "softmax" else _normalised(call, view)
        axis = -1 if role == "gate" and axis is None else axis
        if scores is None or axis is None or scores.rank < max(2, -axis):
            continue
        back = _back(first_of(call), axis, scores.shape[axis], view, _MOST_BACK, set())
        on = back and _on(back.on(call, *sums, axes=back.axes), call.result, scores.shape[axis], view)
        if on is not None:
            by_sum = (each for each in on.between if sums and sums[0].result in each.uses)
            found = _completed(on, next(by_sum, call), view)
            if found is not None:
                yield found


def _normalised(power: Call, view: View) -> tuple[int | None, tuple[Call, ...]]:
    """The axis along which the results of an exponential are made to sum to one, and their sum, where it is computed."""
    scores = view.makers.get(first_of(power))
    if scores is not None and scores.uses:
        statistics = (each for name in scores.uses[1:] for each in _statistic(name, scores.uses[0], view))
        for call in (scores, *statistics):
            if call.operator.name in ("log_softmax", "logsumexp", "sum"):
                return axis_along(call, view), ()
    names = [power.result]
    for name in names:
        users = view.users.get(name, [])
        for user in users:
            if role_of(user) == "sum":
                return axis_along(user, view), (user,)
        if len(names) < _MOST_ON:
            names += [user.result for user in users if role_of(user) in _AFTER and user.result not in names]
    return None, ()


def _statistic(name: str, scores: str, view: View) -> tuple[Call, ...]:
    """The calls that make one number of each row of scores, such as its maximum; () where a value is none."""
    calls, names, typed, of = list[Call](), [name], view.types.get(name), view.types.get(scores)
    if typed is None or of is None or typed.numel == of.numel:
        return ()
    for each in names:
        maker = view.makers.get(each)
        if each != scores and maker is not None:
            calls.append(maker)
            names += [other for other in maker.uses if other not in names]
        if len(calls) > _MOST_ON:
            return ()
    return tuple(calls) if scores in names and any(x.operator.kind == "reduction" for x in calls) else ()


def _back(name: str, axis: int, keys: Dim, view: View, steps: int, dead: set[str]) -> _Way | None:
    """The way from the product that scores come from, along the axis of the keys.

    dead: values that come from no product; none is followed twice.
    """
    maker, typed = view.makers.get(name), view.types.get(name)
    if name in dead or maker is None or typed is None or not steps or max(2, -axis) > typed.rank:
        return None
    size, role = typed.shape[axis], role_of(maker)
    # Before they were laid out anew scores had as many rows of keys, a sink's column apart.
    if differ(size, keys) and differ(size + 1, keys):
        return None
    if role == "product":
        return _scored(maker, axis, view)
    for operand in maker.uses if role in _SEVERAL else maker.uses[:1] if role in _ONE else ():
        before = axis_before(maker, axis, operand, view)
        found = None if before is None else _back(operand, before, keys, view, steps - 1, dead)
        rows = None if found is None else axis_after(maker, found.axes[0], operand, view)
        if found is None or rows is None or rows == axis:
            continue
        others = [x for x in maker.uses if x != operand and (role == "choice" or is_mask(x, view))]
        statistics = [call for other in others for call in _statistic(other, operand, view)]
        others = [x for x in others if x not in {call.result for call in statistics}]
        hides = role == "choice" or (role == "bias" and others)
        masks = (Masking(maker, operand, tuple(others), (rows, axis)),) if hides else ()
        return found.on(*statistics, maker, axes=(rows, axis), masks=masks)
    dead.add(name)
    return None


def _scored(call: Call, axis: int, view: View) -> _Way | None:
    """The product that makes scores; None where the keys are weights of a layer, or not of one operand alone."""
    product = product_of(call)
    sides = None if product is None else product.beside(axis)
    if product is None or sides is None or source_of(sides[2], view)[0] in view.stored:
        return None
    axes = (product.rows if axis == product.columns else product.columns), axis
    if view.types[call.result].rank < -min(axes):
        return None
    bias = call.value("bias") if call.argument("beta", 1) != 0 else ""
    masks = (Masking(call, call.result, (bias,), axes),) if bias and is_mask(bias, view) else ()
    return _Way((call,), axes, axes, masks)


def _on(way: _Way, name: str, keys: Dim, view: View) -> _Way | None:
    """The way of probabilities to the product that sums them up over keys."""
    ways, seen, most = deque([(name, way)]), {name}, len(way.between) + _MOST_ON
    has_sink = any(role_of(each) == "join" for each in way.between)
    while ways:
        at, way = ways.popleft()
        for user in {id(user): user for user in view.users.get(at, [])}.values():
            role, product, typed = role_of(user), product_of(user), view.types.get(at)
            if typed is None or typed.rank < -min(way.axes):
                continue
            if role == "product" and product is not None:
                ends = (product.left, product.left_axis), (product.right, product.right_axis)
                if (at, way.axes[1]) in ends and (has_sink or same(typed.shape[way.axes[1]], keys)):
                    return way.on(user, axes=way.axes)
            elif len(way.between) < most and (role in _AFTER or (role == "part" and has_sink)):
                rows, axis = (axis_after(user, x, at, view) for x in way.axes)
                if user.result not in seen and rows is not None and axis is not None and rows != axis:
                    seen.add(user.result)
                    others = [x for x in user.uses if x != at and (role == "choice" or is_mask(x, view))]
                    hides = role == "choice" or (role == "scale" and others)
                    masks = [Masking(user, at, tuple(others), (rows, axis), is_after=True)] if hides else []
                    ways.append((user.result, way.on(user, axes=(rows, axis), masks=masks)))
    return None


def _completed(way: _Way, softmax: Call, view: View) -> Spelled | None:
    """The attention that a way is, by the sizes and sources of its operands; None where it is none."""
    (first, *others, second), types = way.between, view.types
    one, two, made = product_of(first), product_of(second), {call.result for call in (first, *others)}
    scores, out = types.get(first.result), types.get(second.result)
    sides = None if one is None else one.beside(way.first[1])
    if two is None or sides is None or scores is None or out is None or first is second:
        return None
    asking, summed, asked = sides
    weighed, place = (two.right, two.columns) if two.left in made else (two.left, two.rows)
    left = types.get(asking)
    query, key, value = (source_of(name, view)[0] for name in (asking, asked, weighed))
    if left is None or value in made or not {query, key, value, asked} <= types.keys():
        return None  # probabilities of probabilities
    ranks = {left.rank, types[asked].rank}
    is_odd = 0 in (*ranks, *scores.shape) or (not ranks & {3, 4, 5, 6} and scores.rank > 2)
    if out.rank < -place or left.rank < max(2, -summed) or is_odd:
        return None  # recorded types that contradict the products
    ends = [axis % scores.rank for axis in way.first]
    lead = tuple([size for axis, size in enumerate(scores.shape) if axis not in ends])
    (of_keys, growth), (of_values, _) = copies(asked, view), copies(weighed, view)
    heads = _heads(lead, asking, view)
    whole, repeats = _in_order(*way.between), _in_order(*of_keys, *of_values)
    kv_heads = _shared(heads, lead, types[asked], growth)
    queries, keys = (scores.shape[axis] for axis in ends)
    sizes = floor_div(prod(lead), heads), heads, kv_heads, queries, keys, left.shape[summed], out.shape[place]
    return Spelled(first, second, softmax, whole, repeats, query, key, value, way.masks, sizes)


def _in_order(*calls: Call) -> tuple[Call, ...]:
    return tuple(sorted({id(call): call for call in calls}.values(), key=lambda call: call.place))


def _heads(lead: Sequence[Dim], queries: str, view: View) -> Dim:
    """Query heads: the axes of scores beside batch, rows and keys; where batch and heads are one axis, those that queries
    had before they were laid out so.
    """
    if len(lead) != 1:
        return prod(lead[1:])
    left = view.types[queries]
    for name in (queries, *(first_of(call) for call in source_of(queries, view)[1])):
        typed = view.types.get(name)
        if typed is None or typed.rank < 4 or not same(typed.numel, left.numel):
            continue
        shape = typed.shape if typed.rank == 4 else (typed.shape[0], *(n for n in typed.shape[1:] if n != 1))
        for batch, heads in ((0, 1), (0, 2), (1, 2)) if len(shape) == 4 else ():
            if same(shape[batch] * shape[heads], lead[0]) and same(shape[-1], left.shape[-1]):
                return shape[heads]
    return 1


def _shared(heads: Dim, lead: Sequence[Dim], right: TensorType, growth: Dim) -> Dim:
    """Heads of the keys: fewer than those of the queries where keys were repeated, or broadcast in the product."""
    pairs = zip(right.shape[1:-2], lead[1:], strict=True) if right.rank == len(lead) + 2 else ()
    repeated = growth * prod(all_of for mine, all_of in pairs if mine == 1)
    return heads if repeated in (0, 1) else floor_div(heads, repeated)
