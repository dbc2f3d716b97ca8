"""Finds the attentions of a priced program and the FLOPs on pairs that their masks hide."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from graphflops.errors import shown
from graphflops.passes.price import Fact
from graphflops.passes.program import summed_quantity
from graphflops.view import View

if TYPE_CHECKING:
    from graphflops.attention.flex import FlexAttentions
    from graphflops.attention.user_masks import Stated
    from graphflops.dims import Dim
    from graphflops.graph import Graph, Node
    from graphflops.passes.price import FindFact
    from graphflops.passes.program import PricedProgram
    from graphflops.report import Row


_NOT_FOLLOWED = ": masks of attention by it are not followed, and count as hiding nothing"
_NEEDS_SIZES = (
    "what a mask of attention hides is counted in full only if sizes are numbers: give them, as with --dim"
)


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
    """
    from graphflops.attention.program import attentions, may_hold

    if not masks and not any(map(may_hold, program.operators)):
        return program
    given = None if program.binding.moved else program.binding.given
    view = View(program.graph, program.main.rows, given, program.facts)
    uses, masked, of_gradients, inputs, unfollowed, needs_sizes = attentions(view, masks)
    if inputs:
        text = (
            f"attention adds {', '.join(map(shown, inputs))} to its scores, or masks them by it; its contents are not known,"
            f" so it counts as hiding nothing: say what it hides, as with --mask {shown(inputs[0])}=causal"
        )
        program.notes.say("GF117", "", text)
    if unfollowed:
        made = ", ".join(map(shown, unfollowed))
        program.notes.say("GF117", "", f"{made}{_NOT_FOLLOWED}")
    if needs_sizes:
        program.notes.say("GF117", "", _NEEDS_SIZES)

    # masked FLOPs go into the rows whose rules found none
    main = program.main
    rows = [_masked(row, masked.get(row.node, 0), of_gradients.get(row.node, 0)) for row in main.rows]
    if any(row is not was for row, was in zip(rows, main.rows, strict=True)):
        costs, gradients = [row.cost for row in rows], [row.backward for row in rows if row.backward]
        cost = replace(main.cost, masked_flops=summed_quantity("masked_flops", costs, program.names))
        hidden = summed_quantity("masked_flops", gradients, program.names)
        backward = replace(main.backward, masked_flops=hidden)
        main = replace(main, rows=tuple(rows), cost=cost, backward=backward)
    return replace(program, main=main, attentions=uses)


def _masked(row: Row, forward: Dim, backward: Dim) -> Row:
    if forward != 0 and row.cost.masked_flops == 0:
        row = row._replace(cost=replace(row.cost, masked_flops=forward))
    if backward != 0 and row.backward is not None and row.backward.masked_flops == 0:
        row = row._replace(backward=replace(row.backward, masked_flops=backward))
    return row
