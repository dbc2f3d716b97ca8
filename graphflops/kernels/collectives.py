"""Collectives: what each device sends to the others, over the fastest link of the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.kernels.kernel import Exchange, Kernel
from graphflops.kernels.moved import copy

if TYPE_CHECKING:
    from graphflops.cost import Estimate
    from graphflops.kernels.call import ConcreteCall, Work

_COPIED_FIRST = ("all_reduce", "broadcast")  # they work in place, on a copy of the operand
_WAIT = "wait_tensor"
_BACKWARD = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather"}
ONE_TO_ONE = frozenset({"send", "receive", "send_and_receive"})


def collective(call: ConcreteCall) -> list[Kernel]:
    """The exchange, after a copy of the operand where it works in place; nothing for a wait."""
    operator = call.operator
    if operator.name == _WAIT or not call.operands:
        return []
    is_copied = operator.name in _COPIED_FIRST and not operator.mutates
    copies = [copy(x) for x in call.operands] if is_copied else []
    return [*copies, _exchange(call, operator.name, call.cost, call.estimate)]


def collective_backward(call: ConcreteCall) -> list[Kernel]:
    """The exchange that takes the gradients back: parts are gathered where they were scattered, and the reverse."""
    name = call.operator.name
    if name == _WAIT or not call.results or call.gradient is None:
        return []
    copies = [copy(x) for x in call.results] if name in _COPIED_FIRST else []
    return [*copies, _exchange(call, _BACKWARD.get(name, name), call.backward_cost, call.gradient.estimate)]


def _exchange(call: ConcreteCall, name: str, cost: Work, estimate: Estimate) -> Kernel:
    """A message to one device takes the kernel that messages to all take; who receives sends nothing, but waits as long."""
    sent = cost.written_bytes if name == "receive" else cost.link_bytes
    variant = "all_to_all" if name in ONE_TO_ONE else name
    moved = (cost.read_bytes, cost.written_bytes)
    sizes = Exchange(sent, call.sizes(estimate.devices))
    return Kernel("collective", call.operands[0].dtype, 0, 0, *moved, sizes, variant=variant)
