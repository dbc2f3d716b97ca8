"""Predicted times as a trace for Perfetto and chrome://tracing: phases, modules and calls one after another.

Collectives have a track of their own, as they have a stream: each from where it is called, one after another. The track of
calls has the part of them that nothing hides.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from graphflops.base.units import interval
from graphflops.derived.items import outside_of_calls
from graphflops.errors import OptionError
from graphflops.render import summary
from graphflops.render.json import inert
from graphflops.render.text import operator_name, safe
from graphflops.report import Report, Row
from graphflops.report.call_time import CallTime
from graphflops.version import __version__

_MICROSECONDS = 1e6
_PHASES, _MODULES, _CALLS, _COLLECTIVES = 1, 2, 3, 4  # tracks
_DEEPEST = 40  # modules around a call that are drawn


def chrome_trace(report: Report) -> str:
    """One event a call, under those of its modules and its phase; the gradients follow the forward, last call first.

    Raises OptionError for a report without times.
    """
    if not report.device:
        raise OptionError("--format chrome-trace: the report has no times: name a device with --device")
    events = [*_names(report), *_events(report)]
    whole = {
        "displayTimeUnit": "ns",
        "otherData": {"exporter": f"graphflops {__version__}", "execution": report.execution},
        "traceEvents": events,
    }
    return inert(msgspec.json.encode(whole))


def _names(report: Report) -> Iterator[dict[str, Any]]:
    yield _meta("process_name", 0, f"{summary.title(report)} on {safe(report.device, 60)}, predicted")
    tracks = {_PHASES: "phases", _MODULES: "modules", _CALLS: "calls"}
    if report.network:
        tracks[_COLLECTIVES] = "collectives"
    for track, name in tracks.items():
        yield _meta("thread_name", track, name)


def _meta(kind: str, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": 1, "tid": track, "args": {"name": name}}


def _events(report: Report) -> Iterator[dict[str, Any]]:
    rows = report.rows
    forward = [(row, row.time) for row in rows if row.time is not None]
    backward = [(row, row.backward_time) for row in reversed(rows) if row.backward_time is not None]
    clock, sent, others = 0.0, 0.0, outside_of_calls(report)
    for phase, calls in (("forward", forward), ("backward", backward)):
        began, modules = clock, _Modules()
        if outside := others.get(phase):
            yield {**_span("outside of calls", _CALLS, clock, clock + outside), "args": {}}
            clock += outside
        for row, time in calls:
            if time.collective:
                start, sent = max(clock, sent), max(clock, sent) + time.collective
                event = _span(operator_name(row.op), _COLLECTIVES, start, sent)
                yield {**event, "args": {"node": safe(row.node), "module": safe(row.module)}}
            if not time.seconds:
                continue
            yield from modules.enter(row.module, clock)
            yield _call(row, time, clock)
            clock += time.seconds
        yield from modules.enter("", clock)
        if calls:
            yield _span(phase, _PHASES, began, clock)
    if report.optimizer is not None and report.optimizer.time is not None:
        yield _span("optimizer", _PHASES, clock, clock + report.optimizer.time.seconds)


def _call(row: Row, time: CallTime, start: float) -> dict[str, Any]:
    event = _span(operator_name(row.op), _CALLS, start, start + time.seconds)
    facts = {"node": row.node, "module": row.module, "source": row.source, "kernel": time.kernel}
    shown = {name: safe(text) for name, text in facts.items() if text}
    spread = interval(time.low, time.high)
    return {**event, "args": {**shown, "limited by": time.bound, "90 % interval": spread}}


def _span(name: str, track: int, start: float, end: float) -> dict[str, Any]:
    times = {"ts": start * _MICROSECONDS, "dur": (end - start) * _MICROSECONDS}
    return {"ph": "X", "name": safe(name), "cat": "predicted", "pid": 1, "tid": track, **times}


class _Modules:
    """The modules that are open: entered when a call is made in them, left with the next call outside."""

    def __init__(self) -> None:
        self.open: list[tuple[str, float]] = []

    def enter(self, path: str, now: float) -> Iterator[dict[str, Any]]:
        """Close what `path` is not in, open what it is in."""
        parts = path.split(".")[:_DEEPEST] if path else []
        kept = 0
        while kept < min(len(parts), len(self.open)) and self.open[kept][0] == parts[kept]:
            kept += 1
        while len(self.open) > kept:
            name, since = self.open.pop()
            yield _span(name, _MODULES, since, now)
        self.open += [(name, now) for name in parts[kept:]]
