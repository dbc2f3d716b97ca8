"""Intervals of sums: errors of single predictions cancel in part."""

from __future__ import annotations

from math import exp, log, sqrt
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

_CORRELATION = 0.25  # of the errors of two calls of one program: kernels of one kind err alike
_LEAST_ERROR = 0.06  # a program's time is never known better than this


class Interval(NamedTuple):
    """A prediction and the interval that holds the measured value in nine of ten cases."""

    seconds: float
    low: float
    high: float


def combined(parts: Sequence[Interval]) -> Interval:
    """The sum. Relative errors of its parts are partly shared and partly independent; the rest is the program's own."""
    seconds = sum(part.seconds for part in parts)
    if not seconds:
        return Interval(0.0, 0.0, 0.0)
    deviations = [part.seconds * (log(part.high / part.low) / 2 if part.low > 0 else 1.0) for part in parts]
    independent = sum(deviation * deviation for deviation in deviations)
    shared = sum(deviations) ** 2
    variance = _CORRELATION * shared + (1 - _CORRELATION) * independent
    error = sqrt(variance / seconds**2 + _LEAST_ERROR**2)
    return Interval(seconds, seconds * exp(-error), seconds * exp(error))
