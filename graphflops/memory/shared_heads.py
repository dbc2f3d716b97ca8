"""Heads of keys and values that a library repeats only while it exports.

transformers passes keys and values with fewer heads than queries as they are (`enable_gqa=True`) where no mask is needed. An
export always has a mask, for which transformers repeats the heads first: `key[:, :, None].expand(...).reshape(...)`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.graph import Ref
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from graphflops.cost import Value
    from graphflops.passes.program import PricedCall

_REPEAT = ("reshape", "expand", "unsqueeze")  # what repeats heads, from the last call to the first
_OPERANDS = ("query", "key", "value")


def with_shared_heads(
    calls: Sequence[PricedCall], unmasked: Iterable[str], values: Mapping[str, Value]
) -> Sequence[PricedCall]:
    """The calls without repeated heads for the attentions of these names, which have lost a mask that only an export has."""
    makers = {name: call for call in calls for name in call.node.outputs if name is not None}
    names = frozenset(unmasked)
    gone: set[str] = set()
    found = []
    for call in calls:
        if call.node.name in names:
            own = [_before_repeat(call, name, makers, values) for name in call.uses[1:3]]
            if len(own) == 2 and None not in own:
                gone.update(call.uses[1:3])
                call = _grouped(call, [name for name in own if name is not None], values)
        found.append(call)
    return [call for call in found if gone.isdisjoint(call.node.outputs)] if gone else calls


def _before_repeat(
    call: PricedCall, name: str, makers: Mapping[str, PricedCall], values: Mapping[str, Value]
) -> str | None:
    """What an operand of an attention was before its heads were repeated, in the line that calls the attention."""
    for operator in _REPEAT:
        maker = makers.get(name)
        if maker is None or maker.node.operator.name != operator or not maker.uses:
            return None
        if maker.node.python_stack != call.node.python_stack:
            return None
        name = maker.uses[0]
    return name if isinstance(values.get(name), TensorType) else None


def _grouped(call: PricedCall, own: Sequence[str], values: Mapping[str, Value]) -> PricedCall:
    """The attention on keys and values whose heads are shared."""
    names = dict(zip(_OPERANDS[1:], own, strict=True))
    given = {
        name: Ref(names[name]) if name in names else value for name, value in call.node.arguments().items()
    }
    given["enable_gqa"] = True
    node = replace(call.node, args=(), kwargs=tuple(given.items()))
    gradient = call.gradient
    if gradient is not None:
        types = [values[name] for name in own]
        out = list(gradient.estimate.out)
        for index, (place, _) in enumerate(gradient.gradients):
            if place in (1, 2) and index < len(out) and isinstance(value := types[place - 1], TensorType):
                out[index] = value.like()
        gradient = replace(gradient, estimate=replace(gradient.estimate, out=tuple(out)))
    return replace(call, node=node, uses=(call.uses[0], *own, *call.uses[3:]), gradient=gradient)
