"""The attentions of a program, as one operator or spelled out, and the FLOPs of their products on hidden pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from graphflops.attention.attention_use import AttentionUse, Hidden, window
from graphflops.attention.match import Sizes, Spelled, copies, role, role_of, spelled
from graphflops.dims import Dim, floor_div, prod, same, total
from graphflops.errors import DimError
from graphflops.ops import operator

if TYPE_CHECKING:
    from graphflops.attention.hidden_pairs import Hiding
    from graphflops.attention.user_masks import Stated
    from graphflops.rules.flex import Seen
    from graphflops.tensor import TensorType
    from graphflops.view import Call, View


def fused(call: Call, view: View, hiding: Callable[[], Hiding]) -> tuple[AttentionUse, Hidden] | None:
    """The attention that a call computes, and what its mask hides; None for other calls and for operands of unknown type."""
    family = _SIZES.get(call.operator.name)
    if family is None or call.row.state != "counted":
        return None
    operands = [view.types.get(name) for name in call.operands]
    if not operands or operands[0] is None:
        return None
    sizes = family(call, [*operands, None, None])
    if sizes is None or 0 in sizes:
        return None
    batch, heads, kv_heads, queries, keys, width, value_width = sizes
    row, cost = call.row, call.cost
    seen = view.flexible.get(call.node)
    partial, full = (None, None) if seen is None else (seen.partial_blocks, seen.full_blocks)
    hidden, masked = _hidden_by(call, seen, hiding, queries, keys)
    element = operands[0].dtype.bits // 8
    repeats, growth = copies(call.operand(1), view)
    more, _ = copies(call.operand(2), view)
    kv_heads = floor_div(kv_heads, growth)
    use = AttentionUse(
        *((call.name,), call.node.op, row.module, row.source),
        *(batch, heads, kv_heads, queries, keys, width, value_width),
        mask=hidden.mask,
        pattern=hidden.pattern,
        flops=cost.matrix_flops,
        masked_flops=masked,
        repeated_bytes=sum((each.bytes for each in dict.fromkeys((*repeats, *more))), start=0),
        kv_bytes=batch * kv_heads * keys * (width + value_width) * element * row.times,
        times=row.times,
        partial_blocks=None if partial is None else partial * row.times,
        full_blocks=None if full is None else full * row.times,
    )
    return use, hidden


def _hidden_by(
    call: Call, seen: Seen | None, hiding: Callable[[], Hiding], queries: Dim, keys: Dim
) -> tuple[Hidden, Dim]:
    """What an operator's mask hides, and the FLOPs on hidden pairs. seen: what is known of flexible attention."""
    mask, masked = call.value("mask"), call.cost.masked_flops
    if seen is not None:
        return Hidden(mask=seen.mask, pattern=seen.pattern), masked
    if masked == 0:
        hidden = hiding().of_operator(call, mask, queries, keys) if mask else Hidden()
        return hidden, masked_part(call.cost.matrix_flops, hidden, queries, keys)
    # The operator's own mask: causal, unless its windows say otherwise.
    local = call.attribute("local_window_size", -1)
    left, right = call.attribute("left_window_size", -1), call.attribute("right_window_size", -1)
    if call.attribute("is_causal", 0) or max(left, right) < 0:
        right = 0
    left = local - 1 if local > 0 else left
    if left < 0:
        pattern = "causal" if right == 0 else f"window up to {right} after"
    else:
        pattern = window(left, right) if right >= 0 else f"window from {left} before"
    return Hidden(mask="structure", pattern=pattern), masked


def _heads_first(call: Call, operands: list[TensorType | None]) -> Sizes | None:
    """Operands of shape (..., heads, rows, width)."""
    query, key, value = operands[:3]
    if query is None or key is None or value is None or min(query.rank, key.rank, value.rank) < 2:
        return None
    heads = query.shape[-3] if query.rank > 2 else 1
    kv_heads = key.shape[-3] if key.rank > 2 else 1
    batch = prod(query.shape[:-3])
    return batch, heads, kv_heads, query.shape[-2], key.shape[-2], query.shape[-1], value.shape[-1]


def _onnx(call: Call, operands: list[TensorType | None]) -> Sizes | None:
    """Operands of shape (batch, heads, rows, width), or (batch, rows, heads * width) with the heads in attributes.

    Values may be missing; keys may be cached, so their number follows from the products.
    """
    query, key, value = operands[:3]
    if query is not None and query.rank == 4:
        sizes = _heads_first(call, operands)
        if sizes is None:
            return None
        batch, heads, kv_heads, rows, _, width, value_width = sizes
    else:
        heads = call.attribute("num_heads") or call.attribute("q_num_heads")
        kv_heads = call.attribute("kv_num_heads", heads)
        if query is None or key is None or (query.rank, key.rank) != (3, 3) or not heads or not kv_heads:
            return None
        batch, rows, _ = query.shape
        width = floor_div(key.shape[2], kv_heads)
        value_width = floor_div(value.shape[2], kv_heads) if value is not None and value.rank == 3 else width
    keys = floor_div(call.cost.matrix_flops, 2 * batch * heads * rows * (width + value_width))
    return batch, heads, kv_heads, rows, keys, width, value_width


_SIZES: dict[str, Callable[[Call, list[TensorType | None]], Sizes | None]] = {
    "scaled_dot_product_attention": _heads_first,
    "flex_attention": _heads_first,
    **dict.fromkeys(("onnx_attention", "multi_head_attention", "group_query_attention"), _onnx),
}


_MOST_PRODUCTS = 4  # of the gradients of queries, keys and values, and of the probabilities


def hidden_in_gradients(group: Spelled, hidden: Hidden, view: View) -> dict[str, Dim]:
    """Masked FLOPs, by row, of the gradient products of a spelled-out attention.

    They are the backward's products next to the probabilities: only calls on tensors of equal size are in between.
    """
    if hidden.doubled == 0:
        return {}
    scores = view.types[group.first.result]
    after = (call for call in group.between if call.place >= group.softmax.place)
    waiting = [call.result for call in after if call is not group.second]
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
    found = {name: call.cost.matrix_flops for name, call in products.items()}
    return {name: masked_part(flops, hidden, *group.sizes[3:5]) for name, flops in found.items()}


def hidden_in_operator(call: Call, view: View, hiding: Callable[[], Hiding]) -> dict[str, Dim]:
    """Masked FLOPs of an operator that computes all gradients of an attention; {} for other calls."""
    if call.operator.name != "scaled_dot_product_attention_backward" or call.cost.masked_flops != 0:
        return {}
    mask = call.value("mask")
    query, key = (view.types.get(call.value(name)) for name in ("query", "key"))
    if not mask or query is None or key is None or min(query.rank, key.rank) < 2:
        return {}
    queries, keys = query.shape[-2], key.shape[-2]
    hidden = hiding().of_operator(call, mask, queries, keys)
    return {call.name: masked_part(call.cost.matrix_flops, hidden, queries, keys)}


def may_hold(spelling: str) -> bool:
    """Whether a program with this operator can have an attention."""
    op = operator(spelling)
    return op.name in _SIZES or role(op) in ("softmax", "power", "gate")


class Found(NamedTuple):
    """The attentions of a program, in program order."""

    uses: tuple[AttentionUse, ...] = ()
    masked: Mapping[str, Dim] = {}  # by row, the part of its matrix FLOPs that a mask makes needless
    of_gradients: Mapping[str, Dim] = {}  # the same of its backward
    inputs: tuple[str, ...] = ()  # names of inputs that are masks, if it is unknown what they hide
    unfollowed: tuple[str, ...] = ()  # operators that masks are made by, and which are not followed
    needs_sizes: bool = False  # whether masks may hide more that is known only of numbers of queries and keys


def attentions(view: View, stated: Mapping[str, Stated] | None = None) -> Found:
    """Finds every attention of a program, as one operator or spelled out, and the FLOPs on pairs that their masks hide.

    stated: the user masks, by input name. Raises ModelError for a mask that contradicts the program.
    An attention with a size of 0, or with sizes whose expressions grow too large, is omitted.
    """
    hiding = cache(lambda: _hiding(view, stated or {}))
    found: list[tuple[int, AttentionUse]] = []
    masked, of_gradients = dict[str, Dim](), dict[str, Dim]()
    told: list[Hidden] = []

    def keep(use: AttentionUse, *products: tuple[Call, Hidden]) -> None:
        if use.flops == 0:
            return
        found.append((products[0][0].place, use))
        for call, hidden in products:
            told.append(hidden)
            backward = 0 if call.row.backward is None else call.row.backward.matrix_flops
            part = (masked_part(n, hidden, use.queries, use.keys) for n in (call.cost.matrix_flops, backward))
            masked[call.name], of_gradients[call.name] = part

    for call in [call for call in view.calls if call.operator.kind == "attention"]:
        with suppress(DimError, ZeroDivisionError):
            operator = fused(call, view, hiding)
            if operator is not None:
                keep(operator[0], (call, operator[1]))
            masked.update(hidden_in_operator(call, view, hiding))
    for group in spelled(view):
        with suppress(DimError, ZeroDivisionError):
            products = (_, of_scores), (_, hidden) = _products(group, view, hiding)
            if hidden.doubled != 0 or role_of(group.softmax) != "gate":  # which may be no attention
                keep(_use(group, products, view), *products)
            masked.update(hidden_in_gradients(group, of_scores, view))
    if stated:
        from graphflops.attention.user_masks import refuse_unused

        refuse_unused(stated, hiding().used)
    uses = tuple([use for _, use in sorted(found, key=lambda entry: entry[0])])
    return Found(uses, masked, of_gradients, *_unknown(told))


def _unknown(told: Sequence[Hidden]) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """What is not known of masks, as in the last fields of `Found`."""
    return _once(x.inputs for x in told), _once(x.unfollowed for x in told), any(x.needs_sizes for x in told)


def _products(group: Spelled, view: View, hiding: Callable[[], Hiding]) -> Sequence[tuple[Call, Hidden]]:
    """Both products, each with the pairs that it need not compute. Where probabilities are hidden that sum to one over all
    scores, and are not made to sum to one again, the first needs these scores.
    """
    hidden = of_scores = hiding().of_spelled(group) if group.masks else Hidden()
    place = min((each.call.place for each in group.masks if each.is_after), default=None)
    if place is not None and role_of(group.softmax) != "gate":
        late = [call.result for call in group.between[:-1] if call.place >= place]
        if all(role_of(user) != "sum" for name in late for user in view.users.get(name, ())):
            before = tuple(each for each in group.masks if not each.is_after)
            of_scores = hiding().of_spelled(replace(group, masks=before))
    return (group.first, of_scores), (group.second, hidden)


def _once(names: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Each name once."""
    return tuple(dict.fromkeys(chain.from_iterable(names)))


def _hiding(view: View, stated: Mapping[str, Stated]) -> Hiding:
    from graphflops.attention.hidden_pairs import Hiding  # programs without masks do not need it

    return Hiding(view, stated)


def _use(group: Spelled, products: Sequence[tuple[Call, Hidden]], view: View) -> AttentionUse:
    scores, times = view.types[group.first.result], group.first.row.times
    flops = [call.cost.matrix_flops for call, _ in products]
    # Scores and probabilities are tensors of equal size that the calls in between read and write, masks excluded.
    others = {
        *(name for masking in group.masks if not masking.is_after for name in masking.others),
        group.second.result,
        *(name for name, _ in group.first.row.inputs),
    }
    score_bytes = total(
        typed.nbytes
        for call in group.between
        if call.row.state == "counted"
        for name, typed in dict((*call.row.inputs, *call.row.outputs)).items()
        if name not in others and same(typed.numel, scores.numel)
    )
    row, (queries, keys) = group.softmax.row, group.sizes[3:5]
    hidden = [each for _, each in products]
    return AttentionUse(
        *(tuple(call.name for call in group.between), "", row.module, row.source),
        *group.sizes,
        mask=hidden[-1].mask,
        pattern=hidden[-1].pattern,
        flops=total(flops),
        masked_flops=total(masked_part(*each, queries, keys) for each in zip(flops, hidden, strict=True)),
        score_bytes=score_bytes * times,
        repeated_bytes=sum((call.bytes for call in group.repeats), start=0),
        kv_bytes=(view.types[group.key].nbytes + view.types[group.value].nbytes) * times,
        times=times,
    )


def masked_part(flops: Dim, hidden: Hidden, queries: Dim, keys: Dim) -> Dim:
    """The FLOPs on hidden pairs, of products over all pairs."""
    if hidden.doubled == 0:
        return 0
    return floor_div(floor_div(flops, 2 * queries * keys) * hidden.doubled, hidden.problems)
