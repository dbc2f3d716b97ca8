"""Calls that a program makes only while it is exported: attention masks that eager execution leaves out.

transformers builds a mask only if it has to: without padding, full attention needs none, and causal attention is a flag of
scaled_dot_product_attention. Whether padding hides anything is a question about data, which an export cannot ask, so there
the mask is always built. These calls are found by the library's line that makes them, and by what they compute: a mask made
from sizes alone, which hides nothing or what `is_causal` hides. A record of an eager run tells them without lines.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.execution.library_code import has_fact
from graphflops.execution.shared_heads import with_shared_heads
from graphflops.execution.source_lines import code_lines
from graphflops.graph import Ref

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from graphflops.attention import AttentionUse
    from graphflops.cost import Value
    from graphflops.graph import EagerRun, Node
    from graphflops.passes.program import PricedCall

_COMBINES = frozenset({"add", "where"})
_SDPA = "scaled_dot_product_attention"


def as_run(
    calls: Sequence[PricedCall],
    attentions: Iterable[AttentionUse],
    values: Mapping[str, Value],
    eager: EagerRun | None = None,
) -> tuple[Sequence[PricedCall], Mapping[str, Value]]:
    """The calls that eager execution makes: `calls` without the masks that it does not build, and what comes of these.

    Also the types of their values. eager: the record of a run, where there is one.
    """
    if eager is None:
        made, nothing = _masks(calls)
    else:
        made = _of_sizes(calls, eager.left_out)
        nothing = made - {name for call in calls if _hides(call, eager) == "causal" for name in call.uses}
    if not made:
        return calls, values
    uses = {name: use for use in attentions for name in use.calls}
    instead: dict[str, str] = {}  # by result of a call that goes: the value that takes its place
    kept, unmasked = [], []
    for call in calls:
        mask = _mask_of(call.node)
        is_flag = _is_flag(uses.get(call.node.name)) if eager is None else bool(_hides(call, eager))
        if mask in made and (mask in nothing or is_flag):
            call = _without_mask(call, mask, is_causal=mask not in nothing)
            unmasked.append(call.node.name)
        elif (
            (other := _other_operand(call, nothing)) is not None
            and call.node.outputs[0] is not None
            and (eager is None or call.node.outputs[0] in eager.left_out)
        ):
            instead[call.node.outputs[0]] = instead.get(other, other)
            continue
        kept.append(call.renamed(instead) if instead.keys() & set(call.uses) else call)
    return with_shared_heads(_used(kept, made), unmasked, values)


def _hides(call: PricedCall, eager: EagerRun) -> str:
    """What an attention hides whose mask an eager run did not make; "" for one that has its mask, and for other calls."""
    return eager.attentions.get(call.node.outputs[0] or "", "") if call.node.outputs else ""


def _of_sizes(calls: Sequence[PricedCall], left_out: AbstractSet[str]) -> set[str]:
    """Values that are made from sizes alone, by an export and not by an eager run."""
    no_data: set[str] = set()
    for call in calls:
        if call.node.operator.kind == "size" or no_data.issuperset(call.uses):
            no_data.update(name for name in call.node.outputs if name is not None)
    return no_data & left_out


def _masks(calls: Sequence[PricedCall]) -> tuple[set[str], set[str]]:
    """Values that lines which build masks make from sizes alone, and those of them that hide nothing; views included."""
    no_data: set[str] = set()
    made: set[str] = set()
    nothing: set[str] = set()
    for call in calls:
        if call.node.operator.kind == "size" or no_data.issuperset(call.uses):
            outputs = [name for name in call.node.outputs if name is not None]
            no_data.update(outputs)
            lines = code_lines(call.node.python_stack, call.node.module_stack)
            if has_fact("export-only mask", lines) or not made.isdisjoint(call.uses):
                made.update(outputs)
            if has_fact("mask of nothing", lines) or not nothing.isdisjoint(call.uses):
                nothing.update(outputs)
    return made, nothing


def _mask_of(node: Node) -> str:
    if node.operator.name != _SDPA:
        return ""
    mask = node.arguments().get("mask")
    return mask.name if isinstance(mask, Ref) else ""


def _is_flag(use: AttentionUse | None) -> bool:
    """Whether a mask hides nothing, or what `is_causal` hides of as many queries as keys."""
    if use is None or use.mask not in ("none", "structure", "constant"):
        return False
    causal = use.queries == use.keys and 2 * use.queries * use.masked_flops == use.flops * (use.queries - 1)
    return causal or use.masked_flops == 0


def _other_operand(call: PricedCall, nothing: set[str]) -> str | None:
    """The other operand of a call that adds a mask which hides nothing."""
    if call.node.operator.name not in _COMBINES or nothing.isdisjoint(call.uses):
        return None
    others = [name for name in call.uses if name not in nothing]
    return others[0] if others else None


def _without_mask(call: PricedCall, mask: str, *, is_causal: bool) -> PricedCall:
    tensors = [name for name in call.uses if name != mask]
    operator = call.node.operator
    given = {**operator.arguments(call.node.args, call.node.kwargs), "mask": None, "is_causal": is_causal}
    node = replace(call.node, args=(), kwargs=tuple(given.items()))
    gradient = call.gradient
    if gradient is not None:
        gradient = replace(
            gradient, operands=frozenset(place for place in gradient.operands if place < len(tensors))
        )
    return replace(call, node=node, uses=tuple(tensors), gradient=gradient, form=None)


def _used(calls: Sequence[PricedCall], made: set[str]) -> list[PricedCall]:
    """Without calls that make masks which no call reads any more."""
    read: set[str] = set()
    kept = []
    for call in reversed(calls):
        outputs = set(call.node.outputs)
        if outputs <= made and outputs.isdisjoint(read):
            continue
        read.update(call.uses)
        kept.append(call)
    return kept[::-1]
