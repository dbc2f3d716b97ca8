"""What a predicted time means for a user: tokens or images a second, what a million cost, what belongs to no call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.derived.items import items

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphflops.report import Report

_HOUR = 3600
_MILLION = 1e6
_ROUNDING = 1e-9  # seconds
_LARGEST = 2**64  # no device takes so many in


def throughput(report: Report) -> dict[str, float]:
    """Samples, tokens and the like a second, of the training step where there is one; {} where no time is predicted."""
    time = report.step_time or report.totals.time
    if time is None or not time.seconds:
        return {}
    runs = 1 if report.step_time is None or report.training is None else report.training.accumulate
    counts = {name: count for name, count in items(report).items() if count < _LARGEST}
    return {name: runs * count / time.seconds for name, count in counts.items()}


def cost_per_million(rates: Mapping[str, float], price_per_hour: float | None) -> dict[str, float]:
    """What a million of each cost, in the currency of the price of one device for an hour; {} without a price."""
    if price_per_hour is None:
        return {}
    return {name: price_per_hour / _HOUR / rate * _MILLION for name, rate in rates.items()}


def outside_of_calls(report: Report) -> dict[str, float]:
    """Seconds of the forward and the backward of a micro-step, or of an inference, that belong to no call.

    The CPU takes them for the loss, for autograd and for the guards of a compiled program. Phases without any are left out.
    """
    rows, found = report.rows, {}
    inside = {
        "forward": sum(row.time.seconds for row in rows if row.time is not None),
        "backward": sum(row.backward_time.seconds for row in rows if row.backward_time is not None),
    }
    for phase, seconds in _micro_step(report).items():
        if seconds - inside[phase] > _ROUNDING:
            found[phase] = seconds - inside[phase]
    return found


def _micro_step(report: Report) -> dict[str, float]:
    """Seconds of the forward and the backward of one micro-step, or of an inference."""
    if report.totals.time is None:
        return {}
    if report.step_time is None or report.training is None:
        return {"forward": report.totals.time.seconds}
    backward, optimizer = (
        0.0 if totals is None or totals.time is None else totals.time.seconds
        for totals in (report.backward, report.optimizer)
    )
    both = (report.step_time.seconds - optimizer) / report.training.accumulate
    return {"forward": both - backward, "backward": backward}
