"""Collectives: what each device sends to the others, over the fastest link of the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.time.kernel import Exchange, Kernel
from graphflops.time.lowering.moved import copy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from graphflops.passes.program import PricedProgram
    from graphflops.time.concrete import ConcreteCall

_COPIED_FIRST = ("all_reduce", "broadcast")  # they work in place, on a copy of the operand
_FEWEST = 2
_BACKWARD = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather"}


def collective(call: ConcreteCall) -> list[Kernel]:
    """The exchange, after a copy of the operand where it works in place; nothing for a wait."""
    name = call.operator.name
    if name == "wait_tensor" or not call.operands:
        return []
    copies = [copy(x) for x in call.operands] if name in _COPIED_FIRST else []
    return [*copies, _exchange(call, name, sum(x.full_bytes for x in call.operands))]


def collective_backward(call: ConcreteCall) -> list[Kernel]:
    """The exchange that takes the gradients back: parts are gathered where they were scattered, and the reverse."""
    name = call.operator.name
    if name == "wait_tensor" or not call.results:
        return []
    return [_exchange(call, _BACKWARD.get(name, name), sum(x.full_bytes for x in call.results))]


def group_sizes(program: PricedProgram) -> dict[object, int]:
    """How many devices take part in each group of which any collective tells it."""
    found: dict[object, int] = {}
    for call in program.main.calls:
        if call.node.operator.kind == "collective":
            arguments = call.node.arguments()
            if isinstance(size := arguments.get("group_size"), int):
                found[arguments.get("group_name")] = size
    return found


def sent_bytes(name: str, operand_bytes: int, devices: int) -> int:
    """What each device sends, by the ring algorithms of NCCL; operand_bytes: of one device's operand.

    Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md, the factors of the bus bandwidth.
    """
    others = devices - 1
    if name == "all_reduce":
        return 2 * others * operand_bytes // devices
    if name == "all_gather":
        return others * operand_bytes
    return operand_bytes if name == "broadcast" else others * operand_bytes // devices


def _exchange(call: ConcreteCall, name: str, operand_bytes: int) -> Kernel:
    devices = call.groups.get(call.arguments.get("group_name"))
    read, written = call.cost.read_bytes, call.cost.written_bytes
    sent = sent_bytes(name, operand_bytes, devices or _FEWEST)
    return Kernel(
        "collective", call.operands[0].dtype, 0, 0, read, written, Exchange(sent, devices), variant=name
    )


def has_open_group(kernels: Iterable[Kernel]) -> bool:
    """Whether an exchange does not tell how many devices take part, so that its time is that of two: the least."""
    return any(isinstance(kernel.sizes, Exchange) and kernel.sizes.devices is None for kernel in kernels)
