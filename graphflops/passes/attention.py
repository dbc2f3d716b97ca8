"""Finds the attentions of a priced program and the FLOPs on pairs that their masks hide."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from graphflops.cost import Cost
from graphflops.errors import shown
from graphflops.passes.price import Fact
from graphflops.passes.program import summed_quantity
from graphflops.view import View

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphflops.attention.flex import FlexAttentions
    from graphflops.attention.user_masks import Stated
    from graphflops.dims import Dim
    from graphflops.graph import Graph, Node
    from graphflops.passes.price import FindFact
    from graphflops.passes.program import PricedProgram
    from graphflops.report import Row


_NOT_FOLLOWED = ": masks of attention by it are not followed, and count as hiding nothing"
_NEEDS_SIZES = (
    "what a mask of attention hides is counted in full only where sizes are numbers: give them, as with --dim"
)


def facts_of(graph: Graph) -> FindFact:
    """What the rule of flexible attention needs to know of a call: the pairs that its functions leave visible."""

    @cache
    def interpreter() -> FlexAttentions:
        from graphflops.attention.flex import FlexAttentions

        return FlexAttentions(graph)

    def visible(graph: Graph, node: Node, arguments: tuple[Any, ...]) -> Fact:
        seen, problem = interpreter().seen(graph, node, arguments)
        return Fact("seen", seen, "GF117", problem)

    return lambda op: visible if op.has_score_function else None


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

    def grown(whole: Cost, pairs: Sequence[tuple[Cost | None, Cost | None]]) -> Cost:
        """A total to which the masked FLOPs of some calls are added."""
        more = [after for after, before in pairs if after is not None and after is not before]
        return replace(whole, masked_flops=summed_quantity("masked_flops", [whole, *more], program.names))

    # masked FLOPs go into the rows whose rules found none
    main = program.main
    rows = [_masked(row, masked.get(row.node, 0), of_gradients.get(row.node, 0)) for row in main.rows]
    changed = [(row, was) for row, was in zip(rows, main.rows, strict=True) if row is not was]
    cost = grown(main.cost, [(row.cost, was.cost) for row, was in changed])
    back = grown(main.backward, [(row.backward, was.backward) for row, was in changed])
    main = replace(main, rows=tuple(rows), cost=cost, backward=back)
    return replace(program, main=main, attentions=uses)


def _masked(row: Row, forward: Dim, backward: Dim) -> Row:
    if forward != 0 and row.cost.masked_flops == 0:
        row = row._replace(cost=replace(row.cost, masked_flops=forward))
    if backward != 0 and row.backward is not None and row.backward.masked_flops == 0:
        row = row._replace(backward=replace(row.backward, masked_flops=backward))
    return row
