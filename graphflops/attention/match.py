"""Attention spelled out: a product, calls on its scores, a softmax over them, and a second product.

Operators are classified by their role in the pattern: product, softmax, mask addition, layout and so on. The pattern is
structural. From each softmax it goes back to the product that made the scores, only through calls that scale, mask, cap,
cast or re-lay them, and forward to the product that takes the probabilities as rows. From the operands of the two products
it goes back through the same layout calls to where queries, keys and values come from, so that keys that are repeated for
several query heads are counted once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, Union

from graphflops.base.record import Record
from graphflops.dims import Dim, differ, floor_div, prod, same
from graphflops.ops import Op
from graphflops.ops.operator import by_name
from graphflops.tensor import TensorType
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
    """The role of an operator in an attention pattern; None if it has none."""
    return _BY_NAME[op.name] if op.name in _BY_NAME else _BY_KIND.get(op.kind)


def role_of(call: Call) -> Role | None:
    """The role of a call in an attention pattern; None if it has none, or if no rule prices it."""
    return role(call.operator) if call.is_priced else None


class Product(Record, frozen=True):
    """A matrix product."""

    left: str  # the operand that gives the rows
    right: str  # the operand that gives the columns
    left_axis: int = -1  # the axis that is summed over, counted from the end


def product_of(call: Call) -> Product | None:
    """The product that a call computes; None if it is no product, or sums over more than one axis."""
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


def keeps_last(call: Call, shape: Sequence[Dim], keys: Dim) -> bool:
    """Whether the keys' axis is still the last after a call that may reorder axes.

    Axes of size 1 behind it do not count: decompositions of `einsum` put them anywhere.
    """
    order = call.operator.turned(call.arguments, len(shape))
    if order is None:
        return bool(shape)
    long = [axis for axis in order if keys == 1 or shape[axis] != 1]
    return bool(long) and long[-1] == max(long)


def source_of(name: str, view: View) -> tuple[str, tuple[Call, ...]]:
    """The value that an operand is a layout, scaling or cast of, and the calls in between, last first."""
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


def first_of(call: Call) -> str:
    """Name of the first value that a call uses; "" if it uses none."""
    return call.uses[0] if call.uses else ""


def is_mask(name: str, view: View) -> bool:
    """Whether a value has more than one element, and so may differ from score to score."""
    typed = view.types.get(name)
    return typed is not None and typed.numel != 1


_MOST_BACK = 24  # calls from the softmax back to the scores
_MOST_ON = 12
_UNARY: frozenset[Role] = frozenset({"layout", "cast", "cap", "dropout"})
_AFTER: frozenset[Role] = frozenset({"layout", "cast", "dropout", "scale", "choice"})
_SEVERAL: frozenset[Role] = frozenset({"scale", "bias", "choice", "join"})


class Masking(Record, frozen=True):
    """A call that may hide scores: its operands other than the scores, and the scores' name."""

    call: Call
    scores: str
    others: tuple[str, ...]


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
    width: Dim
    heads: Dim
    kv_heads: Dim


def spelled(view: View) -> Iterator[Spelled]:
    """Every attention that is not a single operator, in program order."""
    for last, softmax, probabilities, scores in _softmaxes(view):
        typed = view.types.get(scores)
        if typed is None or typed.rank < 2:
            continue
        back = _back(scores, typed, view, _MOST_BACK, set())
        if back is None:
            continue
        first, between, masks = back
        on = _on(probabilities, typed.shape[-1], view, any(role_of(call) == "join" for call in between))
        if on is None:
            continue
        second, after = on
        found = _completed(first, second, softmax, (*between, *last, *after), masks, view)
        if found is not None:
            yield found


def _softmaxes(view: View) -> Iterator[tuple[tuple[Call, ...], Call, str, str]]:
    """Each softmax along the last axis: its calls, the call that names it, its result and its operand."""
    for call in view.calls:
        role, op, operand = role_of(call), call.operator, view.types.get(first_of(call))
        if role == "softmax" and operand is not None and operand.rank:
            axis = call.argument("axis", 1 if op.is_onnx and op.version < 13 else -1)
            if isinstance(axis, int) and axis % operand.rank == operand.rank - 1:
                yield (call,), call, call.result, first_of(call)
        elif role == "power":
            yield from _written_out(call, view)


def _written_out(power: Call, view: View) -> Iterator[tuple[tuple[Call, ...], Call, str, str]]:
    """exp(x - max(x)) / sum(exp(x - max(x))), as decompositions write a softmax."""
    scores, calls = first_of(power), [power]
    maker = view.makers.get(scores)
    if maker is not None and maker.operator.name == "sub":
        operands = maker.uses
        top = view.makers.get(operands[1]) if len(operands) == 2 else None
        if top is not None and top.operator.name in ("amax", "max") and first_of(top) == operands[0]:
            scores, calls = operands[0], [top, maker, power]
    users = {id(user): user for user in view.users.get(power.result, [])}.values()
    total = next((user for user in users if role_of(user) == "sum"), None)
    for user in users:
        if total is not None and user.operator.name == "div" and user.uses == (power.result, total.result):
            source, summed = view.types.get(power.result), view.types.get(total.result)
            if source is None or summed is None or source.shape[-1:] in ((), (1,)):
                continue
            if summed.shape == (*source.shape[:-1], 1):
                yield (*calls, total, user), user, user.result, scores
                return


def _back(
    name: str, like: TensorType, view: View, steps: int, dead: set[str]
) -> tuple[Call, tuple[Call, ...], tuple[Masking, ...]] | None:
    """The product that scores come from, the calls in between, and what was added to the scores or selected among them.

    dead: values that come from no product; none is followed twice.
    """
    maker, typed, keys = view.makers.get(name), view.types.get(name), like.shape[-1]
    if name in dead or maker is None or typed is None or not steps or typed.rank < 2:
        return None
    # Before other layouts, scores had as many keys in a row; the column of a sink and axes of size 1 do not count.
    last = typed.shape[-1] if keys == 1 else next((size for size in reversed(typed.shape) if size != 1), 1)
    if differ(last, keys) and differ(last + 1, keys):
        return None
    role = role_of(maker)
    if role == "product":
        bias = maker.value("bias") if maker.argument("beta", 1) != 0 else ""
        return maker, (), (Masking(maker, name, (bias,)),) if bias and is_mask(bias, view) else ()
    if role in _UNARY or role == "part":
        source = view.types.get(first_of(maker))
        kept = source is not None and keeps_last(maker, source.shape, keys)
        tries = maker.uses[:1] if kept else ()
    elif role in _SEVERAL:
        tries = maker.uses
    else:
        return None
    for operand in tries:
        found = _back(operand, like, view, steps - 1, dead)
        if found is not None:
            first, between, masks = found
            others = [other for other in maker.uses if other != operand]
            masking = tuple(other for other in others if role == "choice" or is_mask(other, view))
            if role in ("bias", "choice") and masking:
                masks = (*masks, Masking(maker, operand, masking))
            return first, (*between, maker), masks
    dead.add(name)
    return None


def _on(name: str, keys: Dim, view: View, has_sink: bool) -> tuple[Call, tuple[Call, ...]] | None:
    """The product that takes the probabilities as rows, and the calls in between."""
    waiting: deque[tuple[str, tuple[Call, ...]]] = deque([(name, ())])
    seen = {name}
    while waiting:
        at, between = waiting.popleft()
        for user in {id(user): user for user in view.users.get(at, [])}.values():
            role = role_of(user)
            if role == "product":
                product = product_of(user)
                typed = view.types.get(at)
                if product is None or typed is None or product.left != at or product.left_axis != -1:
                    continue
                if same(typed.shape[-1], keys) or has_sink:
                    return user, between
            elif len(between) < _MOST_ON and (role in _AFTER or (role == "part" and has_sink)):
                typed = view.types.get(at)
                if typed is not None and user.result not in seen and keeps_last(user, typed.shape, keys):
                    seen.add(user.result)
                    waiting.append((user.result, (*between, user)))
    return None


def _completed(
    first: Call, second: Call, softmax: Call, between: tuple[Call, ...], masks: tuple[Masking, ...],
    view: View,
) -> Spelled | None:  # fmt: skip
    one, two = product_of(first), product_of(second)
    scores, left = view.types.get(first.result), view.types.get(one.left) if one else None
    if one is None or two is None or scores is None or left is None or first is second:
        return None
    query, _ = source_of(one.left, view)
    (key, _), (value, _) = source_of(one.right, view), source_of(two.right, view)
    if not {query, key, value, second.result} <= view.types.keys():
        return None
    if key in view.stored or value in {call.result for call in between}:
        return None  # a layer whose activation is a softmax; probabilities of probabilities
    ranks = {view.types[name].rank if name in view.types else 0 for name in (one.left, one.right)}
    if not view.types[second.result].rank or left.rank < 2:
        return None  # recorded types that contradict the products
    if 0 in ranks or (not ranks & {3, 4, 5, 6} and scores.rank > 2):
        return None
    heads = _heads(scores, one, view)
    (of_keys, growth), (of_values, _) = copies(one.right, view), copies(two.right, view)
    whole, repeats = _in_order(first, *between, second), _in_order(*of_keys, *of_values)
    width, kv_heads = left.shape[one.left_axis], _shared(heads, scores, one, growth, view)
    return Spelled(first, second, softmax, whole, repeats, query, key, value, masks, width, heads, kv_heads)


def _in_order(*calls: Call) -> tuple[Call, ...]:
    """Calls in program order, each once."""
    return tuple(sorted({id(call): call for call in calls}.values(), key=lambda call: call.place))


def _heads(scores: TensorType, product: Product, view: View) -> Dim:
    """The number of query heads: the axes between the first and the rows; if the scores' first axis is batch and heads, the
    heads that the queries had before.
    """
    if scores.rank >= 4:
        return prod(scores.shape[1:-2])
    if scores.rank < 3:
        return 1
    left = view.types[product.left]
    for name in (product.left, *(first_of(call) for call in source_of(product.left, view)[1])):
        typed = view.types.get(name)
        if typed is None or typed.rank < 4 or not same(typed.numel, left.numel):
            continue
        shape = typed.shape if typed.rank == 4 else (typed.shape[0], *(n for n in typed.shape[1:] if n != 1))
        for batch, heads in ((0, 1), (0, 2), (1, 2)) if len(shape) == 4 else ():
            merged = shape[batch] * shape[heads]
            if same(merged, scores.shape[0]) and same(shape[-1], left.shape[-1]):
                return shape[heads]
    return 1


def _shared(heads: Dim, scores: TensorType, product: Product, growth: Dim, view: View) -> Dim:
    """The number of key heads: fewer than query heads if keys were repeated, or broadcast in the product."""
    repeated = growth
    right = view.types[product.right]
    if right.rank == scores.rank and scores.rank >= 4:
        for mine, all_of in zip(right.shape[1:-2], scores.shape[1:-2], strict=True):
            if mine == 1:
                repeated = repeated * all_of
    return heads if repeated in (0, 1) else floor_div(heads, repeated)
