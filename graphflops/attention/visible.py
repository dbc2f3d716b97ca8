"""Which pairs of a query and a key a mask lets through, counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.attention.predicates import HIDING, UNKNOWN, Band, Truth, band_of, number_of, visible_where
from graphflops.attention.roles import base_of
from graphflops.graph import Ref
from graphflops.rules.attention import doubled_pairs

if TYPE_CHECKING:
    from graphflops.attention.masks import Masks
    from graphflops.attention.match import Masking, Spelled
    from graphflops.dims import Dim
    from graphflops.view import View


def seen(group: Spelled, masks: Masks) -> Band:
    """The band of pairs that the masks of an attention that is spelled out leave."""
    shape = masks.view.types[group.first.result].shape[-2:]
    truth = Truth()
    for masking in group.masks:
        typed = masks.view.types.get(masking.scores)
        if typed is not None and typed.shape[-2:] == shape:
            truth = truth & _lets_through(masking, masks)
    return band_of(truth)


def seen_through(name: str, masks: Masks) -> Band:
    """The band of pairs that a mask lets through which an operator takes: a truth, or a number added to each score."""
    return band_of(visible_where(masks.at_pair(name)))


def hidden_pairs(band: Band, queries: Dim, keys: Dim) -> Dim:
    """Twice the pairs outside of the band."""
    return 2 * queries * keys - doubled_pairs(queries, keys, left=band.left, right=band.right) if band else 0


def _lets_through(masking: Masking, masks: Masks) -> Truth:
    call, base = masking.call, base_of(masking.call)
    if base in ("add", "Add"):
        return visible_where(masks.at_pair(masking.others[0]))
    if base in ("where", "Where", "masked_fill") and len(call.given) >= 3:
        fill = base == "masked_fill"
        first, second, third = call.given[:3]
        condition = second if fill else first
        keeps = not fill and isinstance(second, Ref) and second.name == masking.scores
        put = third if keeps or fill else second
        number = number_of(masks.operand(put, ())) if _is_number(put, masks.view) else None
        if number is not None and number <= HIDING and isinstance(condition, Ref):
            truth = masks.at_pair(condition.name)
            if isinstance(truth, Truth):
                return truth if keeps else ~truth
    return UNKNOWN


def _is_number(argument: object, view: View) -> bool:
    typed = view.types.get(argument.name) if isinstance(argument, Ref) else None
    return not isinstance(argument, Ref) or (typed is not None and typed.rank == 0)
