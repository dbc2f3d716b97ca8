"""The figures of a report that limits are about and the calls behind each; what can be limited, and one limit on it."""

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import Union

from graphflops.base.patterns import is_within, modules_around
from graphflops.base.record import Record
from graphflops.base.units import starred
from graphflops.budget.amounts import AllowedGrowth, Unit
from graphflops.cost import REPORTED
from graphflops.dims import Dim
from graphflops.fitting.cells import QUANTITIES, Cell, ServedQuantity
from graphflops.open_sizes import of_report
from graphflops.render.ledger import Group, Ledger, Line as TreeLine, Tree
from graphflops.report import HELD, Report, Row
from graphflops.report.size_names import named

Figure = Union[int, str]  # a number, or the formula where a size has no value
TOP = "(model)"  # calls made in no module


class Line(Record, frozen=True):
    """Calls of one operator in modules that differ by number only: `blocks.*.attention.q aten.linear.default`."""

    module: str
    op: str
    group: Group
    sources: Mapping[str, int] = {}  # how many of them come from which line

    @property
    def name(self) -> str:
        """What a baseline and a diff call it."""
        return f"{self.module or TOP} {self.op}"

    @property
    def source(self) -> str:
        """The line of source that most of them come from; "" if the file records none."""
        return max(filter(None, self.sources), key=lambda line: self.sources[line], default="")


class Measures:
    """The figures of one report, each computed on first use. cell: a served decoder's step, then the only ones."""

    def __init__(self, report: Report, cell: Cell | None = None) -> None:
        self.report, self.cell = report, cell
        self.ledger = Ledger(report)
        self._lines: dict[str, list[Line]] = {}

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The sizes that the file leaves open and that have a value, by the axis that determines them, with its size."""
        sizes, infos = of_report(self.report), self.report.symbols
        told = (sizes.at_axis(name) for name, info in infos.items() if info.given_by != "user")
        found = {axis: self.report.value(size) for axis, size in told}
        return {axis: size for axis, size in found.items() if size is not None}

    def figure(self, quantity: Dim) -> Figure:
        value = self.ledger.numbers.value(quantity)
        return named(str(quantity), self.report.names) if value is None else value

    def total(self, quantity: str) -> Dim:
        """A quantity of the whole model, of the whole step where training is priced."""
        if quantity in HELD:
            return int(getattr(self.report, quantity))
        if quantity in SERVED:
            return self._served(quantity) or 0
        if quantity == "max_device_bytes":
            return self.report.memory_use[-1].taken  # by the last phase
        if quantity == "max_seconds":
            time = self.report.step_time or self.report.totals.time
            return 0 if time is None else round(time.seconds * 1e9)
        totals = self.report.step() or self.report.totals
        value: Dim = totals.peak_bytes if quantity == "peak_bytes" else getattr(totals.cost, quantity)
        return value

    def has(self, quantity: str) -> bool:
        """Whether the report has the quantity; quantities of a device need a device."""
        if self.cell is not None or quantity in SERVED:
            return quantity in SERVED and self._served(quantity) is not None
        return quantity not in OF_DEVICES or bool(self.report.device)

    def _served(self, quantity: str) -> int | None:
        """A quantity of the step that is served, a time in nanoseconds; None if it is not known."""
        found = None if self.cell is None else SERVED[quantity].of(self.cell)
        return None if found is None else int(found * (1e9 if UNITS[quantity] == "ns" else 1))

    def module(self, path: str, quantity: str) -> Dim:
        group, parameters = self.whole(path)
        value: Dim = parameters if quantity == "parameters" else getattr(group.cost, quantity)
        return value

    def whole(self, path: str) -> tuple[Group, int]:
        """The calls of one module with everything in it, added up, and the parameters there."""
        found = self._tree.get(path)
        return (self.ledger.group({}), 0) if found is None else (found.group, found.parameters)

    @cached_property
    def _tree(self) -> dict[str, TreeLine]:
        return {line.path: line for line in Tree(self.report, self.ledger, idle=True).paths()}

    def unknown(self, path: str = "") -> Counter[str]:
        return Counter(row.op for row in self._unknown if is_within(row.module, path))

    @cached_property
    def modules(self) -> list[str]:
        called = {module for path in self.report.modules for module in (*modules_around(path), path)}
        return sorted(called.union(self._tree) - {""})

    def lines_in(self, path: str = "") -> list[Line]:
        """The calls of one module with everything in it, by module without numbers and operator, in program order."""
        if path in self._lines:  # any number of limits is about the same calls
            return self._lines[path]
        sources: dict[tuple[str, str], Counter[str]] = {}
        counts: dict[tuple[str, str], Counter[int]] = {}
        for row, kind in zip(self.report.rows, self.ledger.of, strict=True):
            if is_within(row.module, path):
                key = (starred(row.module), row.op)
                counts.setdefault(key, Counter())[kind] += 1
                sources.setdefault(key, Counter())[row.source] += 1
        lines = [Line(*key, self.ledger.group(found), sources[key]) for key, found in counts.items()]
        self._lines[path] = lines
        return lines

    def parameters_in(self, path: str = "") -> dict[str, int]:
        """Parameters that the modules in one module hold themselves, by path without numbers."""
        held: Counter[str] = Counter()
        for name, count in self.report.parameter_modules.items():
            if is_within(name, path):
                held[starred(name)] += count
        return dict(held)

    @cached_property
    def _unknown(self) -> list[Row]:
        return [row for row in self.report.rows if row.state == "unknown"]


_WORK: dict[str, Unit] = {quantity.name: quantity.unit for quantity in REPORTED}
# Quantities of requests that a decoder serves, by the name of the limit.
SERVED: dict[str, ServedQuantity] = {one.limit: one for one in QUANTITIES if one.unit is not None}
# What can be limited, in which unit; `OF_MODULES` also of one module.
UNITS: dict[str, Unit] = {
    **_WORK, "peak_bytes": "B", "parameters": "", "parameter_bytes": "B", "buffer_bytes": "B",
    "max_device_bytes": "B", "max_seconds": "ns",
    **{name: one.unit for name, one in SERVED.items() if one.unit is not None},
}  # fmt: skip
OF_DEVICES = ("max_device_bytes", "max_seconds", *SERVED)  # limits that need the budget to name a device
OF_MODULES = (*_WORK, "parameters")


class Limit(Record, frozen=True):
    """The largest allowed value of one quantity: a number, or an increase over the baseline."""

    quantity: str
    most: int | AllowedGrowth  # of a quantity of which more is better, the least allowed value, a number
    text: str  # as it is written

    @property
    def relative(self) -> bool:
        """True if it compares with the baseline."""
        return isinstance(self.most, AllowedGrowth)

    @property
    def is_least(self) -> bool:
        return self.quantity in SERVED and SERVED[self.quantity].is_more_better

    def allowed(self, then: int) -> int:
        return self.most.allowed(then) if isinstance(self.most, AllowedGrowth) else self.most

    def is_broken(self, now: int, then: int) -> bool:
        return now < self.allowed(then) if self.is_least else now > self.allowed(then)
