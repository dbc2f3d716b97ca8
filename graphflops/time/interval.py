"""Intervals of sums: errors of kernels cancel in part; the CPU is slow or fast as a whole."""

from __future__ import annotations

from math import exp, hypot, log, sqrt
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

_CORRELATION = 0.14  # of the errors of two calls of one program: kernels of one kind err alike
_LEAST_ERROR = 0.06  # a program's time is never known better than this
_MOST_TIMES = 100  # by which a program is faster beside a fast CPU


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


def combined(kernels: Sequence[Timed], whole: Interval, spread: float = 1.0) -> Interval:
    """The interval of a program or phase.

    kernels: the parts of it that the GPU decides: their relative errors are partly shared and partly independent; a part is
    the program's own. whole: its seconds, and those beside a fast and beside a slow CPU. spread: factor that all kernels of
    a device that was not measured may be off by together.
    """
    if not whole.seconds:
        return Interval(0.0, 0.0, 0.0)
    deviations = [*map(_deviation, kernels)]
    independent = sum(deviation * deviation for deviation in deviations)
    shared = sum(deviations) ** 2
    variance = _CORRELATION * shared + (1 - _CORRELATION) * independent
    own = sqrt(variance / whole.seconds**2 + _LEAST_ERROR**2 + log(spread) ** 2)
    least = whole.seconds / _MOST_TIMES  # beside a fast CPU a program without kernels may take no time at all
    low, high = (hypot(own, log(max(end, least) / whole.seconds)) for end in (whole.low, whole.high))
    return Interval(whole.seconds, whole.seconds * exp(-low), whole.seconds * exp(high))


def _deviation(part: Timed) -> float:
    return part.seconds * (log(part.high / part.low) / 2 if part.low > 0 else 1.0)
