"""The memory of a program on a device, phase by phase: what is alive at the peak, and what PyTorch's allocator takes for it.

A phase starts from the timeline of activations that liveness gives. Parameters and buffers are alive throughout, and so are
the optimizer's state and the workspaces of libraries; the optimizer's step comes last in a training phase.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from graphflops.dims import dim_max, evaluate, total
from graphflops.memory.allocator import Allocator
from graphflops.memory.optimizer import optimizer_memory
from graphflops.memory.replay import replay
from graphflops.report import Held, PhaseMemory, Timeline

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphflops.devices import Device
    from graphflops.dims import Dim
    from graphflops.passes.program import MemoryUse, PricedProgram
    from graphflops.report import HeldKind, MemoryPhase, Report

OPTIMIZER = -1  # the row of the moment at which the optimizer runs
_SOME_SIZE = 4096  # of a size without a value, where moments are compared
# The entry of a ledger that memory of a kind is part of.
ENTRIES: Mapping[HeldKind, str] = {
    "weight": "weights",
    "buffer": "buffers",
    "input": "inputs",
    "value": "activations",
    "saved": "activations",
    "nested": "activations",
    "gradient": "gradients",
    "optimizer": "optimizer",
    "workspace": "temporaries",
    "temporary": "temporaries",
    "library": "workspaces",
}
_LASTING = ("weight", "buffer", "optimizer", "library")  # alive in the whole phase


class _Phase(NamedTuple):
    """A phase before it is measured.

    activations: their peak with the inputs. update: bytes alive in the optimizer's step beside what lasts throughout.
    """

    name: MemoryPhase
    timeline: Timeline
    activations: Dim
    update: Dim = 0


def ledger(
    report: Report, program: PricedProgram, memory: MemoryUse, device: Device | None
) -> tuple[PhaseMemory, ...]:
    """What each phase of a program needs on a device. report: of the program, for its execution and the values of sizes."""
    lasting = [Held(name, "weight", 0, 0, value.nbytes) for name, value in program.typed_inputs("parameter")]
    buffers = program.typed_inputs("buffer", "constant")
    lasting += [Held(name, "buffer", 0, 0, value.nbytes) for name, value in buffers]
    inference = _with_lasting(memory.inference, [*lasting, *_workspaces(program, device, threads=1)])
    phases = [_Phase("inference", inference, memory.forward.bytes)]
    if memory.training is not None and memory.step is not None:
        lasting += _workspaces(program, device, threads=2)
        phases.append(_training(program, memory, lasting))
    return tuple([_measured(phase, report, device) for phase in phases])


def at_sizes(entry: PhaseMemory, values: Mapping[str, int], allocator: Allocator) -> PhaseMemory:
    """The entry of a phase with the allocator's figures at other sizes. Raises OutOfMemory at the allocator's limit."""
    sizes = [evaluate(held.bytes, values) for held in entry.timeline.held]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return replace(entry, allocated_peak=None, reserved_peak=None, device_total=None)
    replay(entry.timeline, known, allocator)
    reserved = allocator.peak_reserved
    whole = None if entry.context is None else reserved + entry.context
    return replace(entry, allocated_peak=allocator.peak_allocated, reserved_peak=reserved, device_total=whole)


def live_bytes(timeline: Timeline, sizes: Sequence[int]) -> list[int]:
    """Bytes alive at each moment. sizes: bytes by entry of the timeline."""
    changes = [0] * (len(timeline.rows) + 1)
    for held, size in zip(timeline.held, sizes, strict=True):
        changes[held.first] += size
        changes[held.last + 1] -= size
    return [*accumulate(changes)][:-1]


def _training(program: PricedProgram, memory: MemoryUse, lasting: Sequence[Held]) -> _Phase:
    """The training phase: the forward, the gradients, and after them the optimizer's step."""
    step = memory.step
    assert step is not None
    assert memory.training is not None
    state, made = optimizer_memory(program)
    moment, ended = len(step.rows), len(step.held) - memory.lasting
    alive = [held._replace(last=moment) for held in step.held[ended:]]
    alive += [Held(name, "temporary", moment, moment, size) for name, size in made]
    whole = Timeline((*step.rows, OPTIMIZER), (*step.held[:ended], *alive), step.gradients_from)
    states = [Held(name, "optimizer", 0, 0, size) for name, size in state]
    timeline = _with_lasting(whole, [*lasting, *states])
    return _Phase("training", timeline, memory.training.bytes, total(held.bytes for held in alive))


def _with_lasting(timeline: Timeline, lasting: Sequence[Held]) -> Timeline:
    """The timeline with what is held from its first moment to its last."""
    rows = timeline.rows or (OPTIMIZER,)  # a program without calls has its weights in memory too
    held = [entry._replace(last=len(rows) - 1) for entry in lasting]
    return Timeline(rows, (*held, *timeline.held), timeline.gradients_from)


def _workspaces(program: PricedProgram, device: Device | None, *, threads: int) -> list[Held]:
    """Workspaces of cuBLAS: one for each thread that multiplies matrices; the backward pass runs in a thread of its own."""
    size = None if device is None else device.blas_workspace_bytes
    has_product = any(call.node.operator.kind == "product" for call in program.main.calls)
    return [Held("cuBLAS", "library", 0, 0, size)] * threads if size and has_product else []


def _measured(phase: _Phase, report: Report, device: Device | None) -> PhaseMemory:
    """A phase with its peak, by liveness and by the allocator."""
    held = phase.timeline.held
    moment = peak_moment(phase.timeline, report)
    parts: dict[str, list[Dim]] = {name: [] for name in ENTRIES.values()}
    for entry in held:
        if entry.first <= moment <= entry.last:
            parts[ENTRIES[entry.kind]].append(entry.bytes)
    sums = {name: total(found) for name, found in parts.items()}
    workspaces = sums.pop("workspaces")
    row = phase.timeline.rows[moment]
    measured = PhaseMemory(
        phase=phase.name,
        device="" if device is None else device.name,
        execution=report.execution,
        **sums,
        workspaces=None if device is None else workspaces,
        requested_peak=total(entry.bytes for entry in held if entry.kind in _LASTING)
        + dim_max(phase.activations, phase.update),
        allocated_peak=None,
        reserved_peak=None,
        context=None if device is None else device.context_bytes,
        device_total=None,
        peak_node=report.rows[row].node if row != OPTIMIZER else "",
        timeline=phase.timeline,
    )
    return at_sizes(measured, report.values, Allocator())


def peak_moment(timeline: Timeline, report: Report) -> int:
    """The moment at which most is alive; a size without a value is taken to be large."""
    values = {**dict.fromkeys(report.symbols, _SOME_SIZE), **report.values}
    known: dict[Dim, int] = {}
    for entry in timeline.held:
        if entry.bytes not in known:
            known[entry.bytes] = evaluate(entry.bytes, values) or 0
    live = live_bytes(timeline, [known[entry.bytes] for entry in timeline.held])
    return live.index(max(live))
