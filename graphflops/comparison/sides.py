"""What two programs have side by side: a size, the predicted times, what requests wait for and keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from graphflops.dims import Dim, evaluate
from graphflops.fitting.cells import cell_of, known_of
from graphflops.report import Report


@dataclass(frozen=True, slots=True)
class JointSize:
    """A size of the two programs: one axis of an input, or a size that depends on data."""

    name: str  # in every quantity of the comparison
    where: tuple[str, ...]
    # Its name in that program, as `after`, the number that program fixes it at, or None where there is no such size.
    before: str | int | None
    after: str | int | None
    value: int | None  # what both programs are compared at; None if not known, or if each has its own
    # What it is in that program, as `after_value`, by its own file or the user; these may differ.
    before_value: int | None
    after_value: int | None
    assumed: bool = False  # `value` is an assumption, because neither program has a value or an example
    minimum: int | None = None  # of the values that both programs were exported for, as `maximum`
    maximum: int | None = None
    # The size of each axis that is an expression of this one
    computed: Mapping[str, Dim] = field(default_factory=dict)
    axis: str = ""  # the one of them by which people read the size, "" where they read its own name
    # What the size of that program is, as `after_as`, where that is another one: the two may be `2*n` and `3*n`.
    before_as: Dim | None = None
    after_as: Dim | None = None

    @property
    def stated(self) -> str:
        """The name by which people read the size."""
        return self.axis or self.name

    @property
    def place(self) -> str:
        """An axis of this size; its name where it has none."""
        return self.axis or next((axis for axis in self.where if axis not in self.computed), self.name)

    def at(self, value: int) -> int:
        """What people read for a value of the size."""
        found = evaluate(self.computed[self.axis], {self.name: value}) if self.axis else None
        return value if found is None else found

    @property
    def opened(self) -> bool:
        """Fixed before, open now."""
        return isinstance(self.before, int) and isinstance(self.after, str)

    @property
    def fixed(self) -> bool:
        """Open before, fixed now."""
        return isinstance(self.before, str) and isinstance(self.after, int)


@dataclass(frozen=True, slots=True)
class TimeChange:
    """Seconds of one run before and after, of the training step where both have one."""

    device: str
    execution: str
    before: float
    after: float
    low: float  # of the interval that holds the measured time after the change in nine of ten cases
    high: float

    @staticmethod
    def of(old: Report, new: Report) -> TimeChange | None:
        """The times of two reports; None where one has none, or where they are for different devices or executions."""
        if not old.device or (old.device, old.execution) != (new.device, new.execution):
            return None
        times = [(old.step_time, new.step_time), (old.totals.time, new.totals.time)]
        both = ((before, after) for before, after in times if before is not None and after is not None)
        found = next(both, None)
        if found is None:
            return None
        before, after = found
        return TimeChange(new.device, new.execution, before.seconds, after.seconds, after.low, after.high)

    @property
    def percent(self) -> float | None:
        """The change in percent of before; None where that is 0."""
        return 100 * (self.after / self.before - 1) if self.before else None


@dataclass(frozen=True, slots=True)
class ServedChange:
    """Quantities of a step before and after, by the names of `fitting/cells.py`, as far as both programs tell them."""

    context: int  # tokens of each request, 0 where files of one size do not tell it
    before: Mapping[str, float]  # in seconds and bytes, as `after`
    after: Mapping[str, float]

    @staticmethod
    def of(old: Report, new: Report) -> ServedChange | None:
        """The steps of two reports; None where one has no cache among its inputs, or they are of other contexts."""
        before, after = cell_of(old), cell_of(new)
        if before is None or after is None or before.context != after.context:
            return None
        return ServedChange(after.context, known_of(before), known_of(after))
