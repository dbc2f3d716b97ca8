"""Intervals of sums: errors of kernels cancel in part; the CPU is slow or fast as a whole."""

from __future__ import annotations

from math import exp, log, sqrt
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

_CORRELATION = 0.25  # of the errors of two calls of one program: kernels of one kind err alike
_LEAST_ERROR = 0.06  # a program's time is never known better than this


class Interval(NamedTuple):
    """A prediction and the interval that holds the measured value in nine of ten cases."""

    seconds: float
    low: float
    high: float


class Timed(Protocol):
    """Seconds with an interval."""

    @property
    def seconds(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


def combined(kernels: Sequence[Timed], launches: Sequence[Timed] = ()) -> Interval:
    """The sum of times that the GPU decides and of times that the CPU decides.

    Relative errors of kernels are partly shared and partly independent, those of launches are one and the same; a part is
    the program's own.
    """
    seconds = sum(part.seconds for part in (*kernels, *launches))
    if not seconds:
        return Interval(0.0, 0.0, 0.0)
    deviations = [*map(_deviation, kernels)]
    independent = sum(deviation * deviation for deviation in deviations)
    shared = sum(deviations) ** 2
    variance = _CORRELATION * shared + (1 - _CORRELATION) * independent + sum(map(_deviation, launches)) ** 2
    error = sqrt(variance / seconds**2 + _LEAST_ERROR**2)
    return Interval(seconds, seconds * exp(-error), seconds * exp(error))


def _deviation(part: Timed) -> float:
    return part.seconds * (log(part.high / part.low) / 2 if part.low > 0 else 1.0)
