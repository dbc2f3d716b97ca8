"""The predicted times of two programs on one device."""

from __future__ import annotations

from dataclasses import dataclass

from graphflops.report import Report


@dataclass(frozen=True, slots=True)
class TimeChange:
    """Seconds of one run before and after, of the training step where both have one.

    low, high: the interval that holds the measured time after the change in nine of ten cases.
    """

    device: str
    execution: str
    before: float
    after: float
    low: float
    high: float

    @staticmethod
    def of(old: Report, new: Report) -> TimeChange | None:
        """The times of two reports; None where one has none, or where they are for different devices or executions."""
        if not old.device or (old.device, old.execution) != (new.device, new.execution):
            return None
        times = [(old.step_time, new.step_time), (old.totals.time, new.totals.time)]
        found = next(
            ((before, after) for before, after in times if before is not None and after is not None), None
        )
        if found is None:
            return None
        before, after = found
        return TimeChange(new.device, new.execution, before.seconds, after.seconds, after.low, after.high)

    @property
    def percent(self) -> float | None:
        """The change in percent of before; None where that is 0."""
        return 100 * (self.after / self.before - 1) if self.before else None
