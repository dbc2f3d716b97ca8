"""Predicted times of a page: of each phase and of each call, in whole picoseconds, which the page adds up exactly."""

from __future__ import annotations

from typing import Any

from graphflops.base.units import seconds
from graphflops.derived.items import outside_of_calls
from graphflops.render.text import safe
from graphflops.render.time import LEAST_SHARE, communication, limits, rates
from graphflops.report import Report, Row
from graphflops.report.call_time import PhaseTime

_SECOND = 10**12


def device_of(report: Report) -> dict[str, Any] | None:
    """The device with the times of the phases and the bytes that the last phase takes; None for a report without one."""
    if not report.device:
        return None
    taken = report.memory_use[-1].device_total if report.memory_use else None
    phases = {
        "forward": report.totals.time,
        "backward": None if report.backward is None else report.backward.time,
        "optimizer": None if report.optimizer is None else report.optimizer.time,
        "step": report.step_time,
    }
    whole = report.step_time or report.totals.time
    return {
        "name": safe(report.device, 60),
        "execution": report.execution,
        "times": {
            name: _phase(time, _outside(report, name)) for name, time in phases.items() if time is not None
        },
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
