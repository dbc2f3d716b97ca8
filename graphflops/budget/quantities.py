"""What can be limited, in which unit, and one limit on it."""

from __future__ import annotations

from dataclasses import dataclass

from graphflops.budget.amounts import AllowedGrowth, Unit
from graphflops.cost import REPORTED
from graphflops.fitting.cells import QUANTITIES, ServedQuantity

_WORK: dict[str, Unit] = {quantity.name: quantity.unit for quantity in REPORTED}
# Of requests that a decoder serves, by the name of the limit.
SERVED: dict[str, ServedQuantity] = {one.limit: one for one in QUANTITIES if one.unit is not None}
# What can be limited, in which unit; `OF_MODULES` also of one module.
UNITS: dict[str, Unit] = {
    **_WORK, "peak_bytes": "B", "parameters": "", "parameter_bytes": "B", "buffer_bytes": "B",
    "max_device_bytes": "B", "max_seconds": "ns",
    **{name: one.unit for name, one in SERVED.items() if one.unit is not None},
}  # fmt: skip
OF_DEVICES = ("max_device_bytes", "max_seconds", *SERVED)  # limits that need the budget to name a device
OF_MODULES = (*_WORK, "parameters")


@dataclass(frozen=True, slots=True)
class Limit:
    """The largest allowed value of one quantity: a number, or an increase over the baseline. `text`: as it is written.

    Of a quantity of which more is better it is the least allowed value, a number.
    """

    quantity: str
    most: int | AllowedGrowth
    text: str

    @property
    def relative(self) -> bool:
        """True if it compares with the baseline."""
        return isinstance(self.most, AllowedGrowth)

    @property
    def is_least(self) -> bool:
        """True if it is the least allowed value."""
        return self.quantity in SERVED and SERVED[self.quantity].is_more_better

    def allowed(self, then: int) -> int:
        """The allowed value, given the value measured before."""
        return self.most.allowed(then) if isinstance(self.most, AllowedGrowth) else self.most

    def is_broken(self, now: int, then: int) -> bool:
        """Whether a measured value passes it, given the value before."""
        return now < self.allowed(then) if self.is_least else now > self.allowed(then)
