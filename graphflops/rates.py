"""What a predicted time means for a user: samples and tokens a second, and what a million of them cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphflops.report import Report

_HOUR = 3600
_MILLION = 1e6
_TEXT_RANK = 2


def items(report: Report) -> Mapping[str, int]:
    """How many samples, tokens and other things one run of the program takes in.

    Samples: the first axis of the first input. Tokens: the elements of the first input of integers in rows and columns.
    """
    found: dict[str, int] = {}
    for named in report.inputs:
        shape = [report.value(size) for size in named.type.shape]
        if not shape or None in shape:
            continue
        sizes = [size or 0 for size in shape]
        found.setdefault("samples", sizes[0])
        if named.type.dtype.kind in ("int", "uint") and len(sizes) == _TEXT_RANK:
            found.setdefault("tokens", sizes[0] * sizes[1])
    return {name: count for name, count in found.items() if count}


def throughput(report: Report) -> dict[str, float]:
    """Samples and tokens a second, of the training step where there is one; {} where no time is predicted."""
    time = report.step_time or report.totals.time
    if time is None or not time.seconds:
        return {}
    return {name: count / time.seconds for name, count in items(report).items()}


def cost_per_million(report: Report, price_per_hour: float) -> dict[str, float]:
    """What a million samples or tokens cost, in the currency of the price of one device for an hour."""
    return {name: price_per_hour / _HOUR / rate * _MILLION for name, rate in throughput(report).items()}
