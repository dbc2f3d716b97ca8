"""Hours and energy of a run: as they are given, or predicted from the profile of a device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from graphflops.report import Report

if TYPE_CHECKING:
    from graphflops.devices import Device

HOUR = 3600  # seconds


class Interval(msgspec.Struct, frozen=True):
    """A quantity between two bounds. basis: whether the user gives it, or graphflops predicts it."""

    low: float
    high: float
    basis: Literal["given", "predicted"]


def predicted_hours(report: Report, runs: float) -> Interval | None:
    """Hours of so many runs, or micro-steps of training; None where no time is predicted."""
    time, step = report.step_time or report.totals.time, report.training
    if time is None:
        return None
    runs /= HOUR * (step.accumulate if step else 1)
    return Interval(time.low * runs, time.high * runs, "predicted")


def added(parts: Sequence[Interval | None]) -> Interval | None:
    """The sum of predicted intervals; None where one is not known."""
    known = [part for part in parts if part]
    if len(known) < len(parts):
        return None
    return Interval(sum(part.low for part in known), sum(part.high for part in known), "predicted")


def energy(hours: Interval | None, device: Device | None, devices: int) -> Interval | None:
    """Kilowatt-hours of the nodes that devices are in, from their power limit; None where hours or limit are not known."""
    if hours is None or device is None or device.power_watts is None:
        return None
    kilowatts, share = devices * device.power_watts / 1000, node_power()
    return Interval(hours.low * kilowatts * share["low"], hours.high * kilowatts * share["high"], "predicted")


def node_power() -> dict[str, Any]:
    """Power of a node in training over the power limits of its devices, `low` to `high`, and where that is from."""
    found: dict[str, Any] = msgspec.json.decode((Path(__file__).parent / "power.json").read_bytes())
    return found
