"""Masked FLOPs of an attention's backward in a joint graph: its products are over the same pairs as those of the forward."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.attention.hidden_pairs import masked_part
from graphflops.attention.operator_kinds import role_of
from graphflops.dims import same

if TYPE_CHECKING:
    from graphflops.attention.hidden_pairs import Hidden, Hiding
    from graphflops.attention.match import Spelled
    from graphflops.dims import Dim
    from graphflops.view import Call, View

_MOST_PRODUCTS = 4  # of the gradients of queries, keys and values, and of the probabilities


def hidden_in_gradients(group: Spelled, hidden: Hidden, view: View) -> dict[str, Dim]:
    """Masked FLOPs, by row, of the gradient products of a spelled-out attention.

    They are the backward's products next to the probabilities: between are only calls on tensors of as many elements.
    """
    if hidden.doubled == 0:
        return {}
    scores = view.types[group.first.result]
    inside = [
        call for call in group.between if call.place >= group.softmax.place and call is not group.second
    ]
    waiting = [call.result for call in inside]
    seen = set(waiting)
    products: dict[str, Call] = {}
    while waiting:
        name = waiting.pop()
        maker = view.makers.get(name)
        for call in [*view.users.get(name, ()), *([maker] if maker else ())]:
            if call.row.phase != "backward":
                continue
            if call.cost.matrix_flops != 0:
                if role_of(call) == "product":
                    products[call.name] = call
                continue
            for other in (*call.uses, *filter(None, call.node.outputs)):
                made = view.makers.get(other)
                if other in seen or made is None or made.row.phase != "backward":
                    continue
                typed = view.types.get(other)
                if typed is not None and same(typed.numel, scores.numel):
                    seen.add(other)
                    waiting.append(other)
    if len(products) > _MOST_PRODUCTS:
        return {}
    queries, keys = scores.shape[-2:]
    return {
        name: masked_part(call.cost.matrix_flops, hidden, queries, keys) for name, call in products.items()
    }


def hidden_in_operator(call: Call, hiding: Hiding) -> dict[str, Dim]:
    """Masked FLOPs of an operator that computes all gradients of an attention; {} for any other call."""
    mask = call.value("mask")
    if (
        call.operator.name != "scaled_dot_product_attention_backward"
        or not mask
        or call.cost.masked_flops != 0
    ):
        return {}
    query, key = (hiding.view.types.get(call.value(name)) for name in ("query", "key"))
    if query is None or key is None:
        return {}
    queries, keys = query.shape[-2], key.shape[-2]
    hidden = hiding.of_operator(call, mask, queries, keys)
    return {call.name: masked_part(call.cost.matrix_flops, hidden, queries, keys)}
