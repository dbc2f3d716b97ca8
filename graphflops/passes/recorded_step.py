"""A recorded step: its memory as the recording has it, call by call, and what it sends along each axis of its mesh."""

from __future__ import annotations

from collections.abc import Sequence

from graphflops.dims import Dim, total
from graphflops.graph import Phase, Step
from graphflops.passes.program import MemoryUse, Peak, PricedProgram
from graphflops.report import Exchange, Held, Row, Timeline
from graphflops.report.call_time import CallTime


def step_memory(program: PricedProgram, step: Step, buffers: Sequence[Dim] = ()) -> MemoryUse:
    """The peak of a step beside what is there throughout, and what is held when; one moment a call.

    buffers: bytes that the kernels of each call need on a device beside its operands and results, which no call shows.
    """
    rows = tuple([call.row for call in program.main.calls])
    storages = sorted([memory for memory in step.storages if memory.bytes], key=lambda memory: memory.last)
    changes = [0] * (len(rows) + 1)
    held = []
    for name, kind, first, last, size in storages:
        if kind == "host" or kind == "pinned":
            continue
        held.append(Held(name, "workspace" if kind == "temporary" else kind, max(first, 0), last, size))
        if kind not in ("weight", "buffer", "optimizer"):
            changes[max(first, 0)] += size
            changes[last + 1] -= size
    for moment, needed in enumerate(buffers):
        if isinstance(needed, int) and needed:
            held.append(Held(program.main.calls[moment].node.name, "workspace", moment, moment, needed))
            changes[moment] += needed
            changes[moment + 1] -= needed
    live = peak = place = 0
    for moment, change in enumerate(changes):
        live += change
        if live > peak:
            peak, place = live, moment
    turn = step.phases.index("backward") if step.is_training else None
    node = program.main.calls[place].node.name
    return MemoryUse(Peak(peak, node), Timeline(rows, tuple(held), turn))


def exchanges(program: PricedProgram, step: Step, rows: Sequence[Row]) -> tuple[Exchange, ...]:
    """What a step sends, by axis, operator, module and phase, in the order in which they are first called.

    rows: of the calls, with their times where a device is named.
    """
    groups = {} if step.mesh is None else step.mesh.groups
    found: dict[tuple[str, str, str, Phase], list[tuple[Dim, CallTime | None]]] = {}
    for call, phase in zip(program.main.calls, step.phases, strict=True):
        if call.node.operator.is_exchange:
            group = groups.get(str(call.node.arguments().get("group_name", "")))
            key = ("" if group is None else group.axis, call.node.op, call.node.module, phase)
            found.setdefault(key, []).append((call.estimate.link_bytes, rows[call.row].time))
    return tuple([_summed(key, calls) for key, calls in found.items()])


def _summed(key: tuple[str, str, str, Phase], calls: Sequence[tuple[Dim, CallTime | None]]) -> Exchange:
    times = [time for _, time in calls if time is not None]
    seconds, exposed = sum(time.collective for time in times), sum(time.exposed for time in times)
    return Exchange(*key, len(calls), total(sent for sent, _ in calls), seconds, exposed)
