"""Heads of keys and values that a library repeats only while it exports.

transformers passes keys and values with fewer heads than queries as they are (`enable_gqa=True`) where no mask is needed. An
export always has a mask, for which transformers repeats the heads first: `key[:, :, None].expand(...).reshape(...)`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from graphflops.graph import Ref
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from graphflops.cost import Value
    from graphflops.passes.program import PricedCall

_REPEAT = ("reshape", "expand", "unsqueeze")  # what repeats heads, from the last call to the first
_OPERANDS = ("query", "key", "value")


class _Own(NamedTuple):
    """An operand of an attention before its heads are repeated. cast: the call that converts it after, as autocast does."""

    name: str
    cast: PricedCall | None


def with_shared_heads(
    calls: Sequence[PricedCall], unmasked: Iterable[str], values: Mapping[str, Value]
) -> tuple[Sequence[PricedCall], Mapping[str, Value]]:
    """The calls without repeated heads for the attentions of these names, which have lost a mask that only an export has.

    Also the types of values, some of which are converted with fewer heads now.
    """
    makers = {name: call for call in calls for name in call.node.outputs if name is not None}
    names = frozenset(unmasked)
    instead: dict[str, PricedCall | None] = {}  # by result of a call that goes: what takes its place
    types: dict[str, Value] = {}
    found = []
    for call in calls:
        if call.node.name in names:
            owns = [_before_repeat(call, name, makers, values) for name in call.uses[1:3]]
            known = [own for own in owns if own is not None]
            if len(known) == len(_OPERANDS) - 1:
                operands = []
                for name, own in zip(call.uses[1:3], known, strict=True):
                    instead[name] = None
                    if own.cast is not None:
                        instead[own.cast.uses[0]] = None
                        instead[name] = _converted(own.cast, own.name, values, types)
                    operands.append(own.name if own.cast is None else name)
                call = _grouped(call, operands, [types.get(name, values[name]) for name in operands])
        found.append(call)
    if not instead:
        return calls, values
    kept = [instead.get(call.node.outputs[0] or "", call) if call.node.outputs else call for call in found]
    return [call for call in kept if call is not None], {**values, **types} if types else values


def _before_repeat(
    call: PricedCall, name: str, makers: Mapping[str, PricedCall], values: Mapping[str, Value]
) -> _Own | None:
    """What an operand of an attention was before its heads were repeated, in the line that calls the attention."""
    maker = makers.get(name)
    cast = maker if maker is not None and maker.node.operator.kind == "cast" else None
    if cast is not None:
        name = cast.uses[0]
    for operator in _REPEAT:
        maker = makers.get(name)
        if maker is None or maker.node.operator.name != operator or not maker.uses:
            return None
        if maker.node.python_stack != call.node.python_stack:
            return None
        name = maker.uses[0]
    return _Own(name, cast) if isinstance(values.get(name), TensorType) else None


def _converted(
    cast: PricedCall, own: str, values: Mapping[str, Value], types: dict[str, Value]
) -> PricedCall:
    """The conversion of an operand without repeated heads; adds the type of its result to `types`."""
    (result,) = cast.node.outputs
    before, after = values[own], values[result or ""]
    assert isinstance(before, TensorType)
    assert isinstance(after, TensorType)
    types[result or ""] = replace(after, shape=before.shape, stored=None)
    args = tuple(Ref(own) if isinstance(given, Ref) else given for given in cast.node.args)
    gradient = cast.gradient
    if gradient is not None:
        gradient = replace(gradient, estimate=replace(gradient.estimate, out=(before.like(),)))
    return replace(cast, node=replace(cast.node, args=args), uses=(own,), gradient=gradient)


def _grouped(call: PricedCall, own: Sequence[str], types: Sequence[Value]) -> PricedCall:
    """The attention on keys and values whose heads are shared. types: of `own`."""
    names = dict(zip(_OPERANDS[1:], own, strict=True))
    given = {
        name: Ref(names[name]) if name in names else value for name, value in call.node.arguments().items()
    }
    given["enable_gqa"] = True
    node = replace(call.node, args=(), kwargs=tuple(given.items()))
    gradient = call.gradient
    if gradient is not None:
        out = list(gradient.estimate.out)
        for index, (place, _) in enumerate(gradient.gradients):
            if place in (1, 2) and index < len(out) and isinstance(value := types[place - 1], TensorType):
                out[index] = value.like()
        gradient = replace(gradient, estimate=replace(gradient.estimate, out=tuple(out)))
    return replace(call, node=node, uses=(call.uses[0], *own, *call.uses[3:]), gradient=gradient)
