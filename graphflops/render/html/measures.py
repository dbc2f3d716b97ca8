"""The curve of live memory of a page: what is held when, and on a device what the allocator reserves for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from graphflops.base.units import seconds
from graphflops.derived.items import outside_of_calls
from graphflops.dims import Dim, evaluate_all
from graphflops.memory.allocator import Allocator
from graphflops.memory.replay import OPTIMIZER, replay
from graphflops.render import summary
from graphflops.render.memory import folded
from graphflops.render.text import safe
from graphflops.render.time import LEAST_SHARE, communication, limits, rates
from graphflops.report import PhaseMemory, Report, Row
from graphflops.report.timeline import PhaseTime


def memory_of(
    report: Report,
    entry_of: Sequence[int],
    name: Callable[[str], int],
    formula: Callable[[Dim, Report], int],
) -> dict[str, Any] | None:
    """The timeline in columns; None where it is not known. Of a report for a device the whole memory of its last phase.

    entry_of: the entry of the page by row. name, formula: the place of a name and of a formula in the page.
    """
    entry = report.memory_use[-1] if report.memory_use else None
    memory = report.memory if entry is None else folded(entry.timeline)
    if not memory.rows or any(not OPTIMIZER <= row < len(entry_of) for row in memory.rows):
        return None
    cells = [(name(h.name), h.kind, h.first, h.last, formula(h.bytes, report)) for h in memory.held]
    columns = zip(*cells, strict=True)
    return {
        "calls": [None if row == OPTIMIZER else entry_of[row] for row in memory.rows],
        "gradients_from": memory.gradients_from,
        **dict(zip(("name", "kind", "first", "last", "bytes"), columns, strict=False)),
        **({} if entry is None else {"device": _device(report, entry)}),
    }


def _device(report: Report, entry: PhaseMemory) -> dict[str, Any]:
    """The device, and the bytes of the allocator's segments from a moment on; for the sizes at which `peak` is requested."""
    found: dict[str, Any] = {"name": entry.device, "phase": entry.phase, "segments": [], "peak": None}
    sizes = evaluate_all([held.bytes for held in entry.timeline.held], report.values)
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return found
    reserved = enumerate(replay(entry.timeline, known, Allocator()))
    steps = [next(group) for _, group in groupby(reserved, key=lambda step: step[1])]
    return {**found, "segments": steps, "peak": str(max(entry.timeline.live_bytes(known)))}


_SECOND = 10**12


def device_of(report: Report) -> dict[str, Any] | None:
    """The device with the times of the phases and the bytes that the last phase takes; None for a report without one."""
    if not report.device:
        return None
    taken = report.memory_use[-1].device_total if report.memory_use else None
    phases = {name: totals.time for name, totals in summary.phases(report).items()}
    whole = report.step_time or report.totals.time
    return {
        "name": safe(report.device, 60),
        "execution": report.execution,
        "times": {name: _phase(time, _outside(report, name)) for name, time in phases.items() if time},
        "rates": [text for _, text in (*communication(report, whole), *rates(report, whole))]
        if whole
        else [],
        "bytes": None if taken is None else report.value(taken),
    }


def _outside(report: Report, phase: str) -> float:
    """Seconds of an inference or a step that belong to no call, which the modules of the page do not show."""
    if phase != ("forward" if report.step_time is None else "step"):
        return 0.0
    times = 1 if report.training is None else report.training.accumulate
    return sum(outside_of_calls(report).values()) * times


def _phase(time: PhaseTime, outside: float) -> dict[str, Any]:
    ends = [round(end * _SECOND) for end in (time.seconds, time.low, time.high)]
    is_said = outside > LEAST_SHARE * time.seconds
    limited = f"{limits(time)}; {seconds(outside)} outside of calls" if is_said else limits(time)
    return {"ends": ends, "limited_by": limited, "is_lower_bound": time.is_lower_bound}


def picoseconds(row: Row) -> int:
    """The time of a call with its gradients; 0 where it runs no kernel, or its cost is unknown, as its state says."""
    times = (row.time, row.backward_time)
    return round(sum(time.seconds for time in times if time is not None) * _SECOND)
