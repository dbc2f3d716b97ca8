"""Hours and energy of a run: given, or predicted from the profile of a device; seconds that its work takes at least."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from graphflops.devices import Device
    from graphflops.report import Report

HOUR = 3600


@dataclass(frozen=True, slots=True)
class Interval:
    """A quantity between two bounds. basis: whether the user gives it, or graphflops predicts it."""

    low: float
    high: float
    basis: Literal["given", "predicted"]


def least_seconds(flops: Mapping[str, int], device: Device) -> float:
    """Seconds that matrix work by element type takes at the published peaks of one device; nan where one is not known."""
    from graphflops.time.predict import matrix_peak

    return sum(count / (matrix_peak(dtype, device) or nan) for dtype, count in flops.items())


def predicted_hours(report: Report, tokens: int, items: int, devices: int) -> Interval | None:
    """Hours in which devices that share all work evenly, and wait for nothing, take in so many tokens."""
    time, step = report.step_time or report.totals.time, report.training
    if time is None:
        return None
    runs = tokens / (items * (step.accumulate if step else 1) * devices * HOUR)
    return Interval(time.low * runs, time.high * runs, "predicted")


def added(parts: Iterable[Interval | None]) -> Interval | None:
    """The sum of predicted intervals; None where one is not known, or there is none."""
    known = [*parts]
    if None in known or not known:
        return None
    return Interval(sum(p.low for p in known if p), sum(p.high for p in known if p), "predicted")


def energy(hours: Interval | None, device: Device | None, devices: int) -> Interval | None:
    """Kilowatt-hours of the nodes that devices are in, from their power limit; None where hours or limit are not known."""
    if hours is None or device is None or device.power_watts is None:
        return None
    kilowatts, share = devices * device.power_watts / 1000, node_power()
    return Interval(hours.low * kilowatts * share["low"], hours.high * kilowatts * share["high"], "predicted")


def node_power() -> dict[str, Any]:
    """Power of a node in training over the power limits of its devices, `low` to `high`, and where that is from."""
    found: dict[str, Any] = json.loads((Path(__file__).parent / "power.json").read_text("utf-8"))
    return found
