"""A report as files for other programs: traces for Perfetto, profiles for speedscope, exact lines for `git diff`."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec

from graphflops.base.aligned import equal_at_start
from graphflops.base.patterns import ModuleNode, module_at
from graphflops.base.record import field
from graphflops.base.units import exact, interval, is_index, spans
from graphflops.budget.measure import TOP, Measures
from graphflops.cost import QUANTITIES, REPORTED, Cost
from graphflops.derived.timeline import Span, timeline
from graphflops.dims import Dim
from graphflops.errors import OptionError
from graphflops.open_sizes import of_report
from graphflops.render import summary
from graphflops.render.ledger import Ledger, traffic
from graphflops.render.text import count_of, inert, operator_name, safe, short_type
from graphflops.report import Report
from graphflops.report.contradictions import contradictions
from graphflops.report.size_names import collapsed, named
from graphflops.tensor import grouped
from graphflops.version import __version__

_MICROSECONDS = 1e6
_PHASES, _MODULES, _CALLS, _COLLECTIVES = 1, 2, 3, 4  # tracks
_DEEPEST = 40  # modules around a call that are drawn


def chrome_trace(report: Report) -> str:
    """An event a call, module and phase; gradients follow the forward. OptionError for a report without times."""
    if not report.device:
        raise OptionError("--format chrome-trace: the report has no times: name a device with --device")
    tracks = {_PHASES: "phases", _MODULES: "modules", _CALLS: "calls"}
    spans = timeline(report)
    streams = dict.fromkeys(span.stream for span in spans if span.stream is not None)
    groups = {name: _COLLECTIVES + place for place, name in enumerate(streams)}  # the tracks of collectives
    named = {track: f"collectives {_along(report, name)}".strip() for name, track in groups.items()}
    tracks |= named if len(groups) > 1 else dict.fromkeys(named, "collectives")
    process = f"{summary.title(report)} on {safe(report.device, 60)}, predicted"
    names = [meta("thread_name", track, name) for track, name in tracks.items()]
    events = [meta("process_name", 0, process), *names, *_events(report, spans, groups)]
    return trace(events, {"execution": report.execution})


def trace(events: Sequence[dict[str, Any]], about: dict[str, Any]) -> str:
    """The file of events that Perfetto reads. about: facts about it."""
    other = {"exporter": f"graphflops {__version__}", **about}
    return inert(msgspec.json.encode({"displayTimeUnit": "ns", "otherData": other, "traceEvents": events}))


def meta(kind: str, track: int, name: str, process: int = 1) -> dict[str, Any]:
    """The name of a track or of a process."""
    return {"ph": "M", "name": kind, "pid": process, "tid": track, "args": {"name": name}}


def _along(report: Report, name: str) -> str:
    """The axis of the mesh along which a group of devices lies, where it is known; else the name of the group."""
    group = None if report.mesh is None else report.mesh.groups.get(name)
    return safe(name if group is None else group.axis)


def _events(report: Report, spans: Sequence[Span], groups: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    """groups: the tracks of collectives."""
    # One event for each run of spans of a phase, which ends where the next one begins.
    calls = [span for span in spans if span.stream is None]
    starts = [(phase, next(group).start) for phase, group in groupby(calls, lambda span: span.phase)]
    ends = [start for _, start in starts[1:]] + [max((span.end for span in spans), default=0.0)]
    for (name, start), end in zip(starts, ends, strict=False):
        yield complete(name, _PHASES, start, end)
    modules, phase = list[tuple[str, float]](), ""
    for span in spans:
        row = report.rows[span.row]
        if span.stream is not None:
            event = complete(operator_name(row.op), groups[span.stream], span.start, span.end)
            yield {**event, "args": {"node": safe(row.node), "module": safe(row.module)}}
        elif span.end > span.start and (span.row >= 0 or span.phase != "optimizer"):
            if span.phase != phase:
                yield from _enter(modules, "", span.start)
            phase = span.phase
            yield from _enter(modules, row.module if span.row >= 0 else "", span.start)
            event = complete("outside of calls", _CALLS, span.start, span.end)
            facts: dict[str, str] = {}
            if time := span.time:
                event = complete(operator_name(row.op), _CALLS, span.start, span.end)
                facts = {"node": row.node, "module": row.module, "source": row.source, "kernel": time.kernel}
                facts |= {"limited by": time.bound, "90 % interval": interval(time.low, time.high)}
            yield {**event, "args": {name: safe(text) for name, text in facts.items() if text}}
    yield from _enter(modules, "", max((span.end for span in spans if span.row >= 0), default=0.0))


def complete(name: str, track: int, start: float, end: float, process: int = 1) -> dict[str, Any]:
    """A complete event (Perfetto's name) on a track. start, end: seconds."""
    times = {"ts": start * _MICROSECONDS, "dur": (end - start) * _MICROSECONDS}
    return {"ph": "X", "name": safe(name), "cat": "predicted", "pid": process, "tid": track, **times}


def _enter(opened: list[tuple[str, float]], path: str, now: float) -> Iterator[dict[str, Any]]:
    """Closes open modules that `path` is not in, and opens those that it is in. opened: open ones with their starts."""
    parts = path.split(".")[:_DEEPEST] if path else []
    kept = equal_at_start(parts, [name for name, _ in opened])
    while len(opened) > kept:
        name, since = opened.pop()
        yield complete(name, _MODULES, since, now)
    opened += [(name, now) for name in parts[kept:]]


_DEEPEST_STACK = 100  # modules around a call; the rest of a longer path is the name of the last one
_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_PROFILES: dict[str, tuple[str, Callable[[Cost], Dim]]] = {
    "FLOPs": ("none", lambda cost: cost.matrix_flops),
    "vector FLOPs": ("none", lambda cost: cost.vector_flops),
    "bytes": ("bytes", traffic),
}


def speedscope(report: Report) -> str:
    """Profiles of time (on a device), FLOPs, vector FLOPs and bytes, both phases, without calls of no or unknown cost."""
    ledger = Ledger(report)
    frames, stacks = _stacks(report)
    groups = [ledger.group({kind: 1}) for kind in ledger.of]
    profiles = []
    for name, (unit, quantity) in _PROFILES.items():
        values = [ledger.numbers.value(quantity(group.cost)) for group in groups]
        missing = sum(value is None or group.unknown for value, group in zip(values, groups, strict=True))
        called = f"{name}, without {missing:,} unknown calls" if missing else name
        profiles.append(_profile(called, unit, stacks, values))
    if report.device:
        times = [row.seconds for row in report.rows]
        profiles.insert(0, _profile(f"time on {safe(report.device, 60)}", "microseconds", stacks, times, 1e6))
    whole = {
        "$schema": _SCHEMA,
        "name": summary.title(report),
        "exporter": f"graphflops {__version__}",
        "activeProfileIndex": 0,
        "shared": {"frames": frames},
        "profiles": profiles,
    }
    return inert(msgspec.json.encode(whole))


def _profile(
    name: str, unit: str, stacks: Sequence[list[int]], values: Sequence[float | None], scale: float = 1
) -> dict[str, Any]:
    """A profile of values by stack; those that are 0 or not known are left out. scale: to the unit."""
    known = [(stack, value) for stack, value in zip(stacks, values, strict=True) if value]
    return {
        "type": "sampled",
        "name": name,
        "unit": unit,
        "startValue": 0,
        "endValue": sum(value for _, value in known) * scale,
        "samples": [stack for stack, _ in known],
        "weights": [value * scale for _, value in known],
    }


def _stacks(report: Report) -> tuple[list[dict[str, Any]], list[list[int]]]:
    """All frames, and each call's frames: the program, the modules around the call, its operator with the source line."""
    numbers: dict[tuple[str, str, str], int] = {}  # of frames by name, path and source

    def number(name: str, path: str = "", source: str = "") -> int:
        return numbers.setdefault((name, path, source), len(numbers))

    root = short_type(report.modules.get("", "")) or "(program)"
    modules: dict[str, list[int]] = {}
    stacks = []
    for row in report.rows:
        if row.module not in modules:
            stack = modules[row.module] = [number(root)]
            parts = row.module.split(".", _DEEPEST_STACK - 1) if row.module else []
            for depth, part in enumerate(parts, 1):
                above = ".".join(parts[:depth])
                kind = short_type(report.modules.get(above, ""))
                stack.append(number(f"{part} ({kind})" if kind else part, above))
        stacks.append([*modules[row.module], number(operator_name(row.op), "", row.source)])
    frames: list[dict[str, Any]] = []
    for name, _, source in numbers:
        file, _, line = source.rpartition(":")
        is_line = file and line.isascii() and line.isdecimal()
        frames.append({"name": safe(name)} | ({"file": safe(file), "line": int(line[:9])} if is_line else {}))
    return frames, stacks


# The unit after each quantity's number: `vector`, `masked FLOPs`, `B read`.
_UNITS = {
    quantity.name: f"{'B ' if quantity.unit == 'B' else ''}{quantity.head}{' FLOPs' if quantity.part_of else ''}"
    for quantity in REPORTED
    if quantity.name in QUANTITIES
}
_FORMULA = 2_000  # characters of a formula; a longer one is cut in the middle


class _Module(ModuleNode):
    texts: list[str] = field(default_factory=list)

    def lines(self) -> tuple[str, ...]:
        """The texts, each after its path from here; of alike numbered modules only the first one's."""
        of = {name: module.lines() for name, module in self.children.items()}
        alike = grouped((lines, int(name)) for name, lines in of.items() if is_index(name))
        most = max(map(len, alike.values()), default=0)
        found = [f" {text}" for text in self.texts]
        for name, lines in of.items():
            numbers, called = alike[lines] if is_index(name) else [], safe(name)
            if numbers and int(name) != numbers[0]:
                continue
            if len(numbers) > 1:
                called, most = ("*", 0) if len(numbers) == most else (called, most)
                found.append(f".{called}: {len(numbers):,} alike ({spans(sorted(numbers))})")
            found += [f".{called}{line}" for line in lines]
        return tuple(found)


def textconv(report: Report) -> str:
    """Totals with formulas, then costs of each module's operators, unaligned; alike layers are one."""
    return "".join(f"{line}\n" for line in _lines(Measures(report)))


def _lines(measures: Measures) -> Iterator[str]:
    report = measures.report
    yield f"exported by {safe(report.origin.producer or report.origin.format)}"
    sizes = of_report(report)
    for name, info in report.symbols.items():
        called, size = sizes.stated[name]
        axes = collapsed(axis for axis in info.where if axis != called and axis not in info.computed)
        told = [*axes, *(f"{axis} = {info.computed[axis]}" for axis in info.computed if axis != called)]
        told += [str(size)] * (called in info.computed)
        where = f" ({', '.join(map(safe, told))})" if told else ""
        value = report.value(size)
        yield f"size {safe(called)}{where} = {'?' if value is None else value}"
    totals = report.step() or report.totals
    least = ">= " if report.coverage.unknown else ""
    for name in QUANTITIES:
        quantity = getattr(totals.cost, name)
        if quantity != 0:
            is_number = isinstance(quantity, int) or isinstance(measures.figure(quantity), str)
            beside = "" if is_number else f" = {safe(named(str(quantity), report.names), _FORMULA)}"
            yield f"total {_UNITS[name]}: {least}{_exact(measures, quantity)}{beside}"
    yield f"peak memory: {least}{_exact(measures, totals.peak_bytes)} B"
    held = map(exact, (report.parameters, report.parameter_bytes, report.buffer_bytes))
    yield "parameters: {} in {} B, buffers {} B".format(*held)
    cover = report.coverage
    yield f"coverage: {cover.counted:,} counted, {cover.free:,} free, {cover.unknown:,} unknown"
    for found in contradictions(report):
        yield f"contradiction {found.code} {safe(found.node)}: {safe(found.message, _FORMULA)}"
    for line in _program(measures).lines():
        yield TOP + line if line.startswith(" ") else line[1:]


def _program(measures: Measures) -> _Module:
    top = _Module("", "")
    by_path = {"": top}
    ledger, rows = measures.ledger, measures.report.rows
    kinds_of = grouped(((row.module, row.op), kind) for row, kind in zip(rows, ledger.of, strict=True))
    for (path, op), found in kinds_of.items():
        group = ledger.group(Counter(found))
        costs = [(getattr(group.cost, name), unit) for name, unit in _UNITS.items()]
        parts = [f"{_exact(measures, quantity)} {unit}" for quantity, unit in costs if quantity != 0]
        if group.unknown:
            parts.append(f"cost of {count_of(group.unknown, 'call')} unknown")
        work = ", ".join([count_of(group.calls, "call"), *parts]) if parts else ""
        if work:
            module_at(by_path, path, {}).texts.append(f"{safe(op)}: {work}")
    for path, count in measures.report.parameter_modules.items():
        module_at(by_path, path, {}).texts.append(f"parameters: {exact(count)}")
    return top


def _exact(measures: Measures, quantity: Dim) -> str:
    figure = measures.figure(quantity)
    return exact(figure) if isinstance(figure, int) else safe(figure, _FORMULA)
