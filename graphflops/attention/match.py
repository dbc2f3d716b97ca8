"""Attention spelled out: a product, what may happen to its scores, a softmax over them, and a second product.

The pattern is structural. From each softmax we go back to the product that made the scores, through calls that scale,
mask, cap, cast or lay them out anew and no others, and on to the product that takes the probabilities as its rows. From
the operands of the two products we go back through the same layout calls to where queries, keys and values come from, so
that keys repeated for several query heads are counted once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from graphflops.attention.operator_kinds import (
    Product,
    Role,
    axis_of,
    copies,
    first_of,
    is_mask,
    keeps_last,
    last_of,
    product_of,
    role_of,
    source_of,
)
from graphflops.base.record import Record
from graphflops.dims import Dim, differ, floor_div, prod, same
from graphflops.tensor import TensorType
from graphflops.view import Call, View

_MOST_BACK = 24  # calls from the softmax back to the scores
_MOST_ON = 12
_UNARY: frozenset[Role] = frozenset({"layout", "cast", "cap", "dropout"})
_AFTER: frozenset[Role] = frozenset({"layout", "cast", "dropout", "scale", "choice"})
_SEVERAL: frozenset[Role] = frozenset({"scale", "bias", "choice", "join"})


class Masking(NamedTuple):
    """A call that may hide scores: what else it is given than the scores, and their name."""

    call: Call
    scores: str
    others: tuple[str, ...]


class Spelled(Record, frozen=True):
    """One attention."""

    first: Call
    second: Call
    softmax: Call
    between: tuple[Call, ...]  # calls from the first product to the second, in program order
    repeats: tuple[Call, ...]  # those that repeat keys and values for query heads, and what is done to those
    query: str  # where queries come from, as keys and values below
    key: str
    value: str
    masks: tuple[Masking, ...]  # what masks the scores
    width: Dim
    heads: Dim
    kv_heads: Dim


def spelled(view: View) -> Iterator[Spelled]:
    """Every attention that is not one operator, in program order."""
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
    """Each softmax along the last axis: its calls, the one to name it by, its result and its operand."""
    for call in view.calls:
        role = role_of(call)
        if role == "softmax":
            operand = view.types.get(first_of(call))
            if operand is not None and axis_of(call, operand.rank) == operand.rank - 1:
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
    """The product that scores come from, the calls between, and what was added to the scores or chose among them.

    dead: values that were found to come from no product; none is looked at twice.
    """
    maker = view.makers.get(name)
    typed = view.types.get(name)
    if name in dead or maker is None or typed is None or not steps or not _is_scores(typed, like):
        return None
    role = role_of(maker)
    if role == "product":
        return maker, (), ()
    if role in _UNARY or role == "part":
        source = view.types.get(first_of(maker))
        kept = source is not None and keeps_last(maker, source.shape, like.shape[-1])
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


def _is_scores(typed: TensorType, like: TensorType) -> bool:
    """Whether a tensor may be the scores before they were laid out anew: as many rows of keys, a sink's column apart."""
    if typed.rank < 2:
        return False
    mine, keys = last_of(typed.shape, like.shape[-1]), like.shape[-1]
    return not differ(mine, keys) or not differ(mine + 1, keys)


def _on(name: str, keys: Dim, view: View, has_sink: bool) -> tuple[Call, tuple[Call, ...]] | None:
    """The product that takes the probabilities as its rows, and the calls between."""
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
    of_keys, growth = copies(one.right, view)
    of_values, _ = copies(two.right, view)
    return Spelled(
        first=first,
        second=second,
        softmax=softmax,
        between=_in_order(first, *between, second),
        repeats=_in_order(*of_keys, *of_values),
        query=query,
        key=key,
        value=value,
        masks=masks,
        width=left.shape[one.left_axis],
        heads=heads,
        kv_heads=_shared(heads, scores, one, growth, view),
    )


def _in_order(*calls: Call) -> tuple[Call, ...]:
    """Calls in program order, each once."""
    return tuple(sorted({id(call): call for call in calls}.values(), key=lambda call: call.place))


def _heads(scores: TensorType, product: Product, view: View) -> Dim:
    """Query heads: the axes between the first and the rows; of scores whose first axis is batch and heads in one, what the
    queries had before they were laid out so.
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
    """Heads of the keys: fewer than those of the queries where keys were repeated, or broadcast in the product."""
    repeated = growth
    right = view.types[product.right]
    if right.rank == scores.rank and scores.rank >= 4:
        for mine, all_of in zip(right.shape[1:-2], scores.shape[1:-2], strict=True):
            if mine == 1:
                repeated = repeated * all_of
    return heads if repeated in (0, 1) else floor_div(heads, repeated)
