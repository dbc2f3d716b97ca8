"""A report as a profile for speedscope: modules are the stack, calls follow one another, their cost is the time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from graphflops.cost import Cost
from graphflops.dims import Dim
from graphflops.render import summary
from graphflops.render.json import inert
from graphflops.render.ledger import Ledger, traffic
from graphflops.render.text import operator_name, safe, short_type
from graphflops.report import Report
from graphflops.version import __version__

_DEEPEST = 100  # modules around a call; the rest of a longer path is the name of the last one
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
        missing = sum(
            value is None or group.unknown for value, (_, group) in zip(values, samples, strict=True)
        )
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
    """The profile of predicted time, gradients included."""
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
            self._modules[row.module] = self._around(row.module)
        return [*self._modules[row.module], self._frame(operator_name(row.op), "", row.source)]

    def _around(self, path: str) -> list[int]:
        root = short_type(self.report.modules.get("", "")) or "(program)"
        stack = [self._frame(root, "", "")]
        parts = path.split(".", _DEEPEST - 1) if path else []
        for depth in range(1, len(parts) + 1):
            above = ".".join(parts[:depth])
            kind = short_type(self.report.modules.get(above, ""))
            name = f"{parts[depth - 1]} ({kind})" if kind else parts[depth - 1]
            stack.append(self._frame(name, above, ""))
        return stack

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
