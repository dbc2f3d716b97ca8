"""The attentions of a program, in whatever spelling."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from graphflops.attention.fused import fused, is_fused
from graphflops.attention.group import AttentionUse
from graphflops.attention.masks import Masks
from graphflops.attention.match import Spelled, spelled
from graphflops.attention.roles import role
from graphflops.attention.visible import hidden_pairs, seen
from graphflops.dims import floor_div, prod, same
from graphflops.errors import DimError

if TYPE_CHECKING:
    from graphflops.dims import Dim
    from graphflops.view import View

__all__ = ["AttentionUse", "attentions", "masked_rows", "may_hold"]


def may_hold(op: str) -> bool:
    """Whether a program that has the operator can have an attention."""
    return is_fused(op) or role(op) in ("softmax", "power")


def attentions(view: View) -> tuple[AttentionUse, ...]:
    """Every attention of a program, operators and spelled out, in program order.

    One whose sizes are nothing, or grow too large an expression, is left out.
    """
    masks = Masks(view)
    found: list[tuple[int, AttentionUse]] = []
    for call in view.calls:
        with suppress(DimError, ZeroDivisionError):
            use = fused(call, masks)
            if use is not None:
                found.append((call.place, use))
    for group in spelled(view):
        with suppress(DimError, ZeroDivisionError):
            found.append((group.first.place, _use(group, masks)))
    return tuple(use for _, use in sorted(found, key=lambda entry: entry[0]) if use.flops != 0)


def masked_rows(use: AttentionUse) -> dict[str, Dim]:
    """By row, the part of its matrix FLOPs that the attention's mask makes needless."""
    if use.is_fused or use.masked_flops == 0:
        return {use.calls[0]: use.masked_flops} if use.is_fused else {}
    pair = floor_div(use.masked_flops, use.width + use.value_width)
    return {use.calls[0]: pair * use.width, use.calls[-1]: pair * use.value_width}


def _is_known(group: Spelled, view: View) -> bool:
    """Whether its calls could be priced, and what they compute on is known and not empty."""
    names = (group.first.result, group.second.result, group.key, group.value)
    counted = group.first.row.state == group.second.row.state == "counted"
    return counted and all(name in view.types and view.types[name].numel != 0 for name in names)


def _use(group: Spelled, masks: Masks) -> AttentionUse:
    view = masks.view
    scores, out = view.types[group.first.result], view.types[group.second.result]
    times = group.first.row.times
    heads = prod(scores.shape[:-2]) * times
    hidden = hidden_pairs(seen(group, masks), scores.shape[-2], scores.shape[-1])
    width, value_width = group.width, out.shape[-1]
    return AttentionUse(
        calls=tuple(call.name for call in group.between),
        op="",
        module=group.softmax.row.module,
        source=group.softmax.row.source,
        batch=floor_div(prod(scores.shape[:-2]), group.heads),
        heads=group.heads,
        kv_heads=group.kv_heads,
        queries=scores.shape[-2],
        keys=scores.shape[-1],
        width=width,
        value_width=value_width,
        mask="structure" if hidden != 0 else "tensor" if group.masks else "none",
        flops=group.first.cost.matrix_flops + group.second.cost.matrix_flops,
        masked_flops=hidden * heads * (width + value_width),
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
