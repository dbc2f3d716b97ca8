"""The attentions of a program, in whatever spelling."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from graphflops.attention.attention_use import AttentionUse
from graphflops.attention.fused import fused, is_fused
from graphflops.attention.gradients import hidden_in_gradients, hidden_in_operator
from graphflops.attention.hidden_pairs import Hidden, Hiding, masked_part
from graphflops.attention.match import Spelled, spelled
from graphflops.attention.operator_kinds import role
from graphflops.attention.user_masks import refuse_unused
from graphflops.dims import floor_div, prod, same
from graphflops.errors import DimError
from graphflops.ops import operator

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphflops.attention.user_masks import Stated
    from graphflops.dims import Dim
    from graphflops.view import Call, View


def may_hold(spelling: str) -> bool:
    """Whether a program that has the operator can have an attention."""
    op = operator(spelling)
    return is_fused(op) or role(op) in ("softmax", "power")


class Found(NamedTuple):
    """The attentions of a program, in program order.

    masked: by row, the part of its matrix FLOPs that a mask makes needless; of_gradients: the same of its backward.
    inputs: names of inputs that mask, where what they hide is not told.
    """

    uses: tuple[AttentionUse, ...] = ()
    masked: Mapping[str, Dim] = {}
    of_gradients: Mapping[str, Dim] = {}
    inputs: tuple[str, ...] = ()


def attentions(view: View, stated: Mapping[str, Stated] | None = None) -> Found:
    """Finds every attention of a program, as one operator or spelled out, and the FLOPs that their masks make needless.

    stated: what the user says of inputs that are masks, by name. Raises ModelError where that does not fit the program.
    An attention with a size of 0, or whose sizes grow too large an expression, is left out.
    """
    hiding = Hiding(view, stated or {})
    found: list[tuple[int, AttentionUse]] = []
    masked: dict[str, Dim] = {}
    of_gradients: dict[str, Dim] = {}
    inputs: dict[str, None] = {}

    def keep(use: AttentionUse, hidden: Hidden, *products: Call) -> None:
        if use.flops == 0:
            return
        found.append((products[0].place, use))
        inputs.update(dict.fromkeys(hidden.inputs))
        for call in products:
            part = [
                masked_part(flops, hidden, use.queries, use.keys) for flops in _forward_and_backward(call)
            ]
            masked[call.name], of_gradients[call.name] = part

    for call in view.calls:
        with suppress(DimError, ZeroDivisionError):
            operator = fused(call, hiding)
            if operator is not None:
                keep(*operator, call)
            masked.update(hidden_in_operator(call, hiding))
    for group in spelled(view):
        with suppress(DimError, ZeroDivisionError):
            hidden = hiding.of_spelled(group)
            keep(_use(group, hidden, view), hidden, group.first, group.second)
            masked.update(hidden_in_gradients(group, hidden, view))
    if hiding.stated:
        refuse_unused(hiding.stated, hiding.used)
    uses = [use for _, use in sorted(found, key=lambda entry: entry[0])]
    return Found(tuple(uses), masked, of_gradients, tuple(inputs))


def _forward_and_backward(call: Call) -> tuple[Dim, Dim]:
    backward = call.row.backward
    return call.cost.matrix_flops, 0 if backward is None else backward.matrix_flops


def _use(group: Spelled, hidden: Hidden, view: View) -> AttentionUse:
    scores, out = view.types[group.first.result], view.types[group.second.result]
    times = group.first.row.times
    queries, keys = scores.shape[-2:]
    flops = group.first.cost.matrix_flops + group.second.cost.matrix_flops
    return AttentionUse(
        calls=tuple(call.name for call in group.between),
        op="",
        module=group.softmax.row.module,
        source=group.softmax.row.source,
        batch=floor_div(prod(scores.shape[:-2]), group.heads),
        heads=group.heads,
        kv_heads=group.kv_heads,
        queries=queries,
        keys=keys,
        width=group.width,
        value_width=out.shape[-1],
        mask=hidden.mask,
        flops=flops,
        masked_flops=masked_part(flops, hidden, queries, keys),
        score_bytes=_score_bytes(group, view) * times,
        repeated_bytes=sum((call.bytes for call in group.repeats), start=0),
        kv_bytes=(view.types[group.key].nbytes + view.types[group.value].nbytes) * times,
        times=times,
    )


def _score_bytes(group: Spelled, view: View) -> Dim:
    """Bytes of scores and probabilities that the calls read and write."""
    elements = view.types[group.first.result].numel
    others = {
        *(name for masking in group.masks for name in masking.others),
        group.second.result,
        *(name for name, _ in group.first.row.inputs),
    }
    moved: Dim = 0
    for call in group.between:
        if call.row.state == "counted":
            for name, typed in dict((*call.row.inputs, *call.row.outputs)).items():
                if name not in others and same(typed.numel, elements):
                    moved = moved + typed.nbytes
    return moved
