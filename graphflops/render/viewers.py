"""A report as files that other programs show: a trace for Perfetto, a profile for speedscope."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec

from graphflops.base.units import interval
from graphflops.cost import Cost
from graphflops.derived.timeline import Span, timeline
from graphflops.dims import Dim
from graphflops.errors import OptionError
from graphflops.render import summary
from graphflops.render.exact import inert
from graphflops.render.ledger import Ledger, traffic
from graphflops.render.text import operator_name, safe, short_type
from graphflops.report import Report, Row
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
    yield meta("process_name", 0, f"{summary.title(report)} on {safe(report.device, 60)}, predicted")
    tracks = {_PHASES: "phases", _MODULES: "modules", _CALLS: "calls"}
    if report.network:
        tracks[_COLLECTIVES] = "collectives"
    for track, name in tracks.items():
        yield meta("thread_name", track, name)


def meta(kind: str, track: int, name: str, process: int = 1) -> dict[str, Any]:
    """The name of a track or of a process."""
    return {"ph": "M", "name": kind, "pid": process, "tid": track, "args": {"name": name}}


def _events(report: Report) -> Iterator[dict[str, Any]]:
    spans = timeline(report)
    yield from _phases(spans)
    modules, phase = _Modules(), ""
    for span in spans:
        row = report.rows[span.row]
        if span.is_exchange:
            event = complete(operator_name(row.op), _COLLECTIVES, span.start, span.end)
            yield {**event, "args": {"node": safe(row.node), "module": safe(row.module)}}
        elif span.end > span.start and (span.row >= 0 or span.phase != "optimizer"):
            if span.phase != phase:
                yield from modules.enter("", span.start)
            phase = span.phase
            yield from modules.enter(row.module if span.row >= 0 else "", span.start)
            yield _call(row, span)
    yield from modules.enter("", max((span.end for span in spans if span.row >= 0), default=0.0))


def _phases(spans: Sequence[Span]) -> Iterator[dict[str, Any]]:
    """One event for each run of spans of a phase, which ends where the next one begins."""
    calls = [span for span in spans if not span.is_exchange]
    groups = [[*group] for _, group in groupby(calls, lambda span: span.phase)]
    last = max((span.end for span in spans), default=0.0)
    ends = [group[0].start for group in groups[1:]] + [last]
    for group, end in zip(groups, ends, strict=False):
        yield complete(group[0].phase, _PHASES, group[0].start, end)


def _call(row: Row, span: Span) -> dict[str, Any]:
    time = span.time
    if time is None:
        return {**complete("outside of calls", _CALLS, span.start, span.end), "args": {}}
    event = complete(operator_name(row.op), _CALLS, span.start, span.end)
    facts = {"node": row.node, "module": row.module, "source": row.source, "kernel": time.kernel}
    facts |= {"limited by": time.bound, "90 % interval": interval(time.low, time.high)}
    return {**event, "args": {name: safe(text) for name, text in facts.items() if text}}


def complete(name: str, track: int, start: float, end: float, process: int = 1) -> dict[str, Any]:
    """What runs on a track: Perfetto calls it a complete event. start, end: seconds."""
    times = {"ts": start * _MICROSECONDS, "dur": (end - start) * _MICROSECONDS}
    return {"ph": "X", "name": safe(name), "cat": "predicted", "pid": process, "tid": track, **times}


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
            yield complete(name, _MODULES, since, now)
        self.open += [(name, now) for name in parts[kept:]]


_DEEPEST_STACK = 100  # modules around a call; the rest of a longer path is the name of the last one
_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_PROFILES: dict[str, tuple[str, Callable[[Cost], Dim]]] = {
    "FLOPs": ("none", lambda cost: cost.matrix_flops),
    "vector FLOPs": ("none", lambda cost: cost.vector_flops),
    "bytes": ("bytes", traffic),
}


def speedscope(report: Report) -> str:
    """Profiles of time if a device is known, FLOPs, vector FLOPs and bytes, both phases together, at the known sizes.

    Calls without cost are left out, and so are calls of unknown cost; a profile's name says how many those are.
    """
    ledger = Ledger(report)
    stacks = _Stacks(report)
    samples = [(stacks.of(index), ledger.group({kind: 1})) for index, kind in enumerate(ledger.of)]
    profiles = []
    for name, (unit, quantity) in _PROFILES.items():
        values = [ledger.numbers.value(quantity(group.cost)) for _, group in samples]
        pairs = zip(values, samples, strict=True)
        missing = sum(value is None or group.unknown for value, (_, group) in pairs)
        weights = [value or 0 for value in values]
        profiles.append(
            {
                "type": "sampled",
                "name": f"{name}{f', without {missing:,} unknown calls' if missing else ''}",
                "unit": unit,
                "startValue": 0,
                "endValue": sum(weights),
                "samples": [stack for (stack, _), weight in zip(samples, weights, strict=True) if weight],
                "weights": [weight for weight in weights if weight],
            }
        )
    if report.device:
        profiles.insert(0, _of_time(report, stacks))
    whole = {
        "$schema": _SCHEMA,
        "name": summary.title(report),
        "exporter": f"graphflops {__version__}",
        "activeProfileIndex": 0,
        "shared": {"frames": stacks.frames},
        "profiles": profiles,
    }
    return inert(msgspec.json.encode(whole))


def _of_time(report: Report, stacks: _Stacks) -> dict[str, Any]:
    times = [sum(t.seconds for t in (row.time, row.backward_time) if t is not None) for row in report.rows]
    return {
        "type": "sampled",
        "name": f"time on {safe(report.device, 60)}",
        "unit": "microseconds",
        "startValue": 0,
        "endValue": sum(times) * 1e6,
        "samples": [stacks.of(index) for index, time in enumerate(times) if time],
        "weights": [time * 1e6 for time in times if time],
    }


class _Stacks:
    """The frames of each call: the program, the modules around it, its operator with the source line."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.frames: list[dict[str, Any]] = []
        self._frames: dict[tuple[str, str, str], int] = {}
        self._modules: dict[str, list[int]] = {}

    def of(self, index: int) -> list[int]:
        row = self.report.rows[index]
        if row.module not in self._modules:
            root = short_type(self.report.modules.get("", "")) or "(program)"
            stack = [self._frame(root, "", "")]
            parts = row.module.split(".", _DEEPEST_STACK - 1) if row.module else []
            for depth in range(1, len(parts) + 1):
                above = ".".join(parts[:depth])
                kind = short_type(self.report.modules.get(above, ""))
                name = f"{parts[depth - 1]} ({kind})" if kind else parts[depth - 1]
                stack.append(self._frame(name, above, ""))
            self._modules[row.module] = stack
        return [*self._modules[row.module], self._frame(operator_name(row.op), "", row.source)]

    def _frame(self, name: str, path: str, source: str) -> int:
        key = (name, path, source)
        if key not in self._frames:
            self._frames[key] = len(self.frames)
            frame: dict[str, Any] = {"name": safe(name)}
            file, _, line = source.rpartition(":")
            if file and line.isascii() and line.isdecimal():
                frame |= {"file": safe(file), "line": int(line[:9])}
            self.frames.append(frame)
        return self._frames[key]
