"""Collectives of torch.distributed that write into a given tensor, `dist.all_reduce(x)`, as eager execution runs them.

An export writes them down as a functional collective, a wait, and a copy into the tensor.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.execution.source_lines import code_lines, statements

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.graph import Node
    from graphflops.passes.program import Backward, PricedCall

_IN_PLACE = {"all_reduce": "all_reduce_", "broadcast": "broadcast_"}


def in_place(calls: Sequence[PricedCall]) -> Sequence[PricedCall]:
    """The calls with such a collective in place of the three that stand for it."""
    found = _found(calls)
    if not found:
        return calls
    gone = {name for wait, copied, _ in found.values() for name in (wait, copied)}
    kept = []
    for call in calls:
        if call.node.name in found:
            kept.append(_written_in_place(call, found[call.node.name][2]))
        elif call.node.name not in gone:
            kept.append(call)
    return kept


def _found(calls: Sequence[PricedCall]) -> dict[str, tuple[str, str, PricedCall]]:
    """By name of the collective: the names of its wait and of its copy, and the copy, the only reader of its result."""
    readers = Counter(name for call in calls for name in call.uses)
    maker = {call.node.outputs[0]: call for call in calls if len(call.node.outputs) == 1}
    found = {}
    for call in calls:
        if call.node.operator.name != "copy" or not call.in_place or len(call.uses) != 2:
            continue
        wait = maker.get(call.uses[1])
        if wait is None or wait.node.operator.name != "wait_tensor":
            continue
        start = maker.get(wait.uses[0])
        if start is None or start.node.operator.kind != "collective" or start.node.operator.mutates:
            continue
        is_read_once = readers[call.uses[1]] == readers[wait.uses[0]] == 1
        is_over_operand = start.node.operator.name in _IN_PLACE
        is_own = start.uses[:1] == call.uses[:1] if is_over_operand else call.uses[0] not in start.uses
        if is_read_once and is_own and not _is_spelled(call.node):
            found[start.node.name] = wait.node.name, call.node.name, call
    return found


def _is_spelled(node: Node) -> bool:
    """Whether the user's own code copies."""
    lines = code_lines(node.python_stack, node.module_stack)
    return bool(lines) and any("copy_" in statement.called for statement in statements(lines[-1].text))


def _written_in_place(call: PricedCall, copy: PricedCall) -> PricedCall:
    """The collective that writes over what the copy writes over."""
    word = _IN_PLACE.get(call.node.operator.name)
    op = call.node.op if word is None else f"_c10d_functional.{word}.default"
    node = replace(call.node, op=op, outputs=copy.node.outputs)
    if word is None:  # the tensor that it writes is its first operand
        call = replace(call, uses=(copy.uses[0], *call.uses), gradient=_shifted(call.gradient))
    return replace(call, node=node, estimate=replace(call.estimate, alias=True), form=None)


def _shifted(gradient: Backward | None) -> Backward | None:
    """The gradient of a call with one operand more before the others."""
    if gradient is None:
        return None
    return replace(
        gradient,
        gradients=tuple((place + 1, is_fresh) for place, is_fresh in gradient.gradients),
        operands=frozenset(place + 1 for place in gradient.operands),
    )
