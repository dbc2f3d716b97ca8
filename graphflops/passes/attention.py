"""Finds the attentions of a priced program, as one operator or spelled out, and the FLOPs on pairs that masks hide."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from graphflops.attention.attention_use import AttentionUse, Hidden, window
from graphflops.attention.match import Sizes, Spelled, copies, role, role_of, spelled
from graphflops.base.record import replace
from graphflops.dims import Dim, floor_div, prod, same, total
from graphflops.errors import DimError, shown
from graphflops.ops import operator
from graphflops.passes.price import Fact, FindFact
from graphflops.passes.program import Notes, PricedProgram, summed_quantity
from graphflops.view import Call, View

if TYPE_CHECKING:
    from graphflops.attention.flex import FlexAttentions
    from graphflops.attention.hidden_pairs import Hiding
    from graphflops.attention.user_masks import Stated
    from graphflops.graph import Graph, Node
    from graphflops.report import Row
    from graphflops.rules.flex import Seen
    from graphflops.tensor import TensorType


def facts_of(graph: Graph) -> FindFact:
    """What the rule of flexible attention needs to know of a call: the pairs that its functions leave visible."""

    @cache
    def interpreter() -> FlexAttentions:
        from graphflops.attention.flex import FlexAttentions

        return FlexAttentions(graph)

    def visible(graph: Graph, node: Node, arguments: tuple[Any, ...]) -> Fact | None:
        if not node.operator.has_score_function:
            return None
        return Fact("seen", *interpreter().seen(graph, node, arguments))

    return visible


def find_attentions(program: PricedProgram, masks: Mapping[str, Stated]) -> PricedProgram:
    """The program with its attentions, and with the masked FLOPs in the rows of their calls.

    masks: the user masks, by input name. Raises ModelError for one that contradicts the program.
    An attention with a size of 0, or with sizes whose expressions grow too large, is omitted.
    """
    if not masks and not any(map(_may_hold, program.operators)):
        return program
    given = None if program.binding.moved else program.binding.given
    found = _Attentions(View(program.graph, program.main.rows, given, program.facts), masks)
    for call in [call for call in found.view.calls if call.operator.kind == "attention"]:
        with suppress(DimError, ZeroDivisionError):
            found.add_operator(call)
    for group in spelled(found.view):
        with suppress(DimError, ZeroDivisionError):
            found.add_spelled(group)
    if masks:
        from graphflops.attention.user_masks import refuse_unused

        refuse_unused(masks, found.hiding.used)
    found.say_unknown(program.notes)

    # masked FLOPs go into the rows whose rules found none
    main = program.main
    rows = [_masked(row, found.masked.get(row.node, 0), found.backward.get(row.node, 0)) for row in main.rows]
    if any(row is not was for row, was in zip(rows, main.rows, strict=True)):
        costs, gradients = [row.cost for row in rows], [row.backward for row in rows if row.backward]
        cost = replace(main.cost, masked_flops=summed_quantity("masked_flops", costs, program.names))
        hidden = summed_quantity("masked_flops", gradients, program.names)
        backward = replace(main.backward, masked_flops=hidden)
        main = replace(main, rows=tuple(rows), cost=cost, backward=backward)
    uses = tuple([use for _, use in sorted(found.uses, key=lambda entry: entry[0])])
    return replace(program, main=main, attentions=uses)


def _masked(row: Row, forward: Dim, backward: Dim) -> Row:
    if forward != 0 and row.cost.masked_flops == 0:
        row = row._replace(cost=replace(row.cost, masked_flops=forward))
    if backward != 0 and row.backward is not None and row.backward.masked_flops == 0:
        row = row._replace(backward=replace(row.backward, masked_flops=backward))
    return row


def _may_hold(spelling: str) -> bool:
    """Whether a program with this operator can have an attention."""
    op = operator(spelling)
    return op.name in _SIZES or role(op) in ("softmax", "power", "gate")


_MOST_PRODUCTS = 4  # of the gradients of queries, keys and values, and of the probabilities


class _Attentions:
    """The attentions found so far, and what their masks hide. stated: the user masks, by input name."""

    def __init__(self, view: View, stated: Mapping[str, Stated]) -> None:
        self.view, self.stated = view, stated
        self.uses: list[tuple[int, AttentionUse]] = []  # with their places in the program
        # By row, the part of its matrix FLOPs that a mask makes needless, and the same of its backward.
        self.masked, self.backward = dict[str, Dim](), dict[str, Dim]()
        self.told: list[Hidden] = []

    @cached_property
    def hiding(self) -> Hiding:
        from graphflops.attention.hidden_pairs import Hiding  # programs without masks do not need it

        return Hiding(self.view, self.stated)

    def add(self, use: AttentionUse, *products: tuple[Call, Hidden]) -> None:
        if use.flops == 0:
            return
        self.uses.append((products[0][0].place, use))
        for call, hidden in products:
            self.told.append(hidden)
            backward = 0 if call.row.backward is None else call.row.backward.matrix_flops
            flops = call.cost.matrix_flops, backward
            parts = (_masked_part(each, hidden, use.queries, use.keys) for each in flops)
            self.masked[call.name], self.backward[call.name] = parts

    def add_operator(self, call: Call) -> None:
        """Add the attention that a call computes, or what masks hide of the gradients that it computes."""
        if call.operator.name == "scaled_dot_product_attention_backward":
            self.add_gradients(call)
        family = _SIZES.get(call.operator.name)
        operands = [self.view.types.get(name) for name in call.operands]
        if family is None or call.row.state != "counted" or not operands or operands[0] is None:
            return
        sizes = family(call, [*operands, None, None])
        if sizes is None or 0 in sizes:
            return
        batch, heads, kv_heads, queries, keys, width, value_width = sizes
        row, seen = call.row, self.view.flexible.get(call.node)
        partial, full = (None, None) if seen is None else (seen.partial_blocks, seen.full_blocks)
        hidden, masked = self.hidden_by(call, seen, queries, keys)
        repeats, growth = copies(call.operand(1), self.view)
        more, _ = copies(call.operand(2), self.view)
        kv_heads = floor_div(kv_heads, growth)
        kv_bytes = batch * kv_heads * keys * (width + value_width) * (operands[0].dtype.bits // 8)
        use = AttentionUse(
            *((call.name,), call.node.op, row.module, row.source),
            *(batch, heads, kv_heads, queries, keys, width, value_width),
            mask=hidden.mask,
            pattern=hidden.pattern,
            flops=call.cost.matrix_flops,
            masked_flops=masked,
            repeated_bytes=sum((each.bytes for each in dict.fromkeys((*repeats, *more))), start=0),
            kv_bytes=kv_bytes * row.times,
            times=row.times,
            partial_blocks=None if partial is None else partial * row.times,
            full_blocks=None if full is None else full * row.times,
        )
        self.add(use, (call, hidden))

    def hidden_by(self, call: Call, seen: Seen | None, queries: Dim, keys: Dim) -> tuple[Hidden, Dim]:
        """What an operator's mask hides, and the FLOPs on hidden pairs. seen: what is known of flexible attention."""
        mask, masked = call.value("mask"), call.cost.masked_flops
        if seen is not None:
            return Hidden(mask=seen.mask, pattern=seen.pattern), masked
        if masked == 0:
            hidden = self.hiding.of_operator(call, mask, queries, keys) if mask else Hidden()
            return hidden, _masked_part(call.cost.matrix_flops, hidden, queries, keys)
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

    def add_gradients(self, call: Call) -> None:
        """Add the masked FLOPs of an operator that computes all gradients of an attention."""
        query, key = (self.view.types.get(call.value(name)) for name in ("query", "key"))
        mask, is_known = call.value("mask"), call.cost.masked_flops != 0
        if is_known or not mask or query is None or key is None or min(query.rank, key.rank) < 2:
            return
        sizes = query.shape[-2], key.shape[-2]
        hidden = self.hiding.of_operator(call, mask, *sizes)
        self.masked[call.name] = _masked_part(call.cost.matrix_flops, hidden, *sizes)

    def add_spelled(self, group: Spelled) -> None:
        """Add a spelled-out attention, and what masks hide of its gradients.

        Where probabilities are hidden that sum to one over all scores, and are not made to sum to one again, the first
        product needs these scores.
        """
        hidden = of_scores = self.hiding.of_spelled(group) if group.masks else Hidden()
        place = min((each.call.place for each in group.masks if each.is_after), default=None)
        if place is not None and role_of(group.softmax) != "gate":
            late = [call.result for call in group.between[:-1] if call.place >= place]
            if all(role_of(user) != "sum" for name in late for user in self.view.users.get(name, ())):
                before = tuple(each for each in group.masks if not each.is_after)
                of_scores = self.hiding.of_spelled(replace(group, masks=before))
        products = (group.first, of_scores), (group.second, hidden)
        if hidden.doubled != 0 or role_of(group.softmax) != "gate":  # which may be no attention
            self.add(_use(group, products, self.view), *products)
        gradients = self.gradient_products(group) if of_scores.doubled != 0 else {}
        if len(gradients) <= _MOST_PRODUCTS:
            sizes = group.sizes[3:5]
            self.masked.update({name: _masked_part(n, of_scores, *sizes) for name, n in gradients.items()})

    def gradient_products(self, group: Spelled) -> dict[str, Dim]:
        """By row, the FLOPs of the backward's products next to a spelled-out attention's probabilities.

        Only calls on tensors of equal size are in between.
        """
        view = self.view
        scores = view.types[group.first.result]
        after = (call for call in group.between if call.place >= group.softmax.place)
        waiting = [call.result for call in after if call is not group.second]
        seen = set(waiting)
        products: dict[str, Dim] = {}
        while waiting:
            name = waiting.pop()
            maker = view.makers.get(name)
            for call in [*view.users.get(name, ()), *([maker] if maker else ())]:
                if call.row.phase != "backward":
                    continue
                if call.cost.matrix_flops != 0:
                    if role_of(call) == "product":
                        products[call.name] = call.cost.matrix_flops
                    continue
                for other in (*call.uses, *filter(None, call.node.outputs)):
                    made, typed = view.makers.get(other), view.types.get(other)
                    if other in seen or made is None or made.row.phase != "backward":
                        continue
                    if typed is not None and same(typed.numel, scores.numel):
                        seen.add(other)
                        waiting.append(other)
        return products

    def say_unknown(self, notes: Notes) -> None:
        """Note what is not known of masks."""
        if inputs := dict.fromkeys(shown(name) for hidden in self.told for name in hidden.inputs):
            text = (
                f"attention adds {', '.join(inputs)} to its scores, or masks them by it; its contents are not known,"
                f" so it counts as hiding nothing: say what it hides, as with --mask {next(iter(inputs))}=causal"
            )
            notes.say("GF117", "", text)
        if made := dict.fromkeys(shown(name) for hidden in self.told for name in hidden.unfollowed):
            by = ": masks of attention by it are not followed, and count as hiding nothing"
            notes.say("GF117", "", f"{', '.join(made)}{by}")
        if any(hidden.needs_sizes for hidden in self.told):
            what = "what a mask of attention hides is counted in full only if sizes are numbers"
            notes.say("GF117", "", f"{what}: give them, as with --dim")


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


def _use(group: Spelled, products: Sequence[tuple[Call, Hidden]], view: View) -> AttentionUse:
    scores, times = view.types[group.first.result], group.first.row.times
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
    row, sizes, (_, hidden) = group.softmax.row, group.sizes[3:5], products[-1]
    return AttentionUse(
        *(tuple(call.name for call in group.between), "", row.module, row.source),
        *group.sizes,
        mask=hidden.mask,
        pattern=hidden.pattern,
        flops=total(call.cost.matrix_flops for call, _ in products),
        masked_flops=total(_masked_part(call.cost.matrix_flops, part, *sizes) for call, part in products),
        score_bytes=score_bytes * times,
        repeated_bytes=sum((call.bytes for call in group.repeats), start=0),
        kv_bytes=(view.types[group.key].nbytes + view.types[group.value].nbytes) * times,
        times=times,
    )


def _masked_part(flops: Dim, hidden: Hidden, queries: Dim, keys: Dim) -> Dim:
    """The FLOPs on hidden pairs, of products over all pairs."""
    if hidden.doubled == 0:
        return 0
    return floor_div(floor_div(flops, 2 * queries * keys) * hidden.doubled, hidden.problems)
