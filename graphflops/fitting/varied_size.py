"""The memory of a phase at other values of a size: from formulas if the size is open, else by new analyses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from typing import Any

from graphflops.base.record import Record, field, replace
from graphflops.derived.resize import values_at
from graphflops.devices import Device
from graphflops.dims import Dim, evaluate
from graphflops.dims.solving import common
from graphflops.errors import ModelError
from graphflops.memory.allocator import MIB, OPTIMIZER, Allocator, OutOfMemory, repeat, without_value
from graphflops.memory.ledger import at_sizes, evaluated, on_device
from graphflops.open_sizes import of_report
from graphflops.ops import operator
from graphflops.report import ENTRIES, LASTING, PEAKS, PhaseMemory, Report, Row, Timeline
from graphflops.report.size_names import AXIS

# The gaps between the allocator's blocks are not predicted exactly (docs/evidence-memory.md). So a phase must also run with
# everything but parameters and optimizer larger by each of these thousandths, and with one segment less.
_MARGINS = (70, 50, 35, 20, 0)
SPARE = _MARGINS[0] / 1000
_SPARE_BYTES = 20 * MIB
_MOST = 2**40


def room(device: Device) -> int:
    """Bytes that the driver leaves to the allocator."""
    return device.memory_bytes - (device.context_bytes or 0)


class VariedSize(Record, frozen=True):
    """A size whose values are tried. Without a name, no size varies."""

    report: Report
    name: str = ""  # as the user gives it
    sizes: range = range(1, _MOST + 1)  # the values that the axis can have
    axes: tuple[tuple[str, int], ...] = ()  # input and axis, if the size is fixed in the file
    report_of: Callable[..., Report] | None = None  # analyzes the model with other shapes of some inputs
    known: dict[int, Report] = field(default_factory=dict)  # a memo of its reports by value

    @staticmethod
    def of(report: Report, name: str | None, report_of: Callable[..., Report] | None) -> VariedSize:
        """The size with this name: a symbol, an input axis, or several equal ones (`ids[0]=mask[0]`)."""
        if name is None:
            return VariedSize(report)
        sizes = of_report(report).sizes_of(name) if report_of is not None else {}
        axes = [AXIS.fullmatch(place) for place, size in sizes.items() if isinstance(size, int)]
        if report_of is None or len(axes) != len(sizes):  # the size is open, or the name is not an axis
            return VariedSize(report, name, common(of_report(report).taken(name), range(1, _MOST + 1)))
        fixed = tuple([(axis[1], int(axis[2])) for axis in axes if axis])
        return VariedSize(report, name, axes=fixed, report_of=report_of)

    def start(self, device: Device) -> int:
        """The number of sizes with which the search begins, if memory grows at most as the square of a size."""
        entry = on_device(self.report.memory_use[-1], device)
        pairs = zip(entry.timeline.held, known_sizes(entry, self.report.values), strict=True)
        lasting = sum(size for held, size in pairs if held.kind in LASTING)
        requested = evaluate(entry.requested_peak, self.report.values) or 0
        times = (room(device) - lasting) / max((1 + SPARE) * (requested - lasting), 1)
        place = (int(self.value * sqrt(times)) - self.sizes.start) // self.sizes.step if times > 1 else 0
        return max(1, place + 1)

    @property
    def value(self) -> int:
        """The value in the report, or the smallest value if the report has none."""
        sizes = of_report(self.report).sizes_of(self.name).values()
        return min([evaluate(size, self.report.values) or self.sizes.start for size in sizes])

    def at(self, value: int | None, device: Device, limit: int | None = None) -> PhaseMemory:
        """The memory of the last phase on a device. value: of the size, None for the report's.

        Raises OutOfMemory if it takes more than the limit minus a margin for errors, ModelError for an open size.
        """
        entry, report, values = self._entry(value, device, limit)
        found = at_sizes(entry, values, Allocator(), report.rows)
        names = (*dict.fromkeys(ENTRIES.values()), *PEAKS)
        given = {name: size for name in names if (size := getattr(found, name)) is not None}
        quantities: dict[str, Any] = {name: evaluate(size, values) for name, size in given.items()}
        if limit is not None and quantities["reserved_peak"] > limit:  # cached memory is returned in time
            quantities["reserved_peak"] = limit
            if entry.context is not None:
                quantities["device_total"] = limit + entry.context
        return replace(found, **quantities)

    def _entry(
        self, value: int | None, device: Device, limit: int | None
    ) -> tuple[PhaseMemory, Report, Mapping[str, int]]:
        """The last phase on a device within a limit, without the allocator's figures; its report, and the sizes."""
        report, values = self._at(value)
        entry = on_device(report.memory_use[-1], device)
        known_sizes(entry, values)  # raises for a size without a value
        if limit is not None:
            entry = below_limit(entry, values, limit - _SPARE_BYTES, report.rows, _MARGINS)
        return entry, report, values

    def is_within(self, value: int | None, device: Device) -> bool:
        """Whether the last phase fits on a device at this value."""
        try:
            self._entry(value, device, room(device))
        except OutOfMemory:
            return False
        return True

    def needed(self, device: Device) -> tuple[int, bool]:
        """Bytes of the last phase on a device, including the driver's, and whether the device has them."""
        is_enough = self.is_within(None, device)
        total = self.at(None, device, room(device) if is_enough else None).taken
        assert isinstance(total, int)
        if is_enough or total > device.memory_bytes:
            return total, is_enough
        entry = on_device(self.report.memory_use[-1], device)
        surely = repeated_peak(entry, self.report.values, _MARGINS[0]) + _SPARE_BYTES + (entry.context or 0)
        return max(surely, device.memory_bytes + 1), False

    def _at(self, value: int | None) -> tuple[Report, Mapping[str, int]]:
        """The report for a value, and the sizes at which to evaluate its formulas."""
        if value is None:
            return self.report, self.report.values
        if not self.axes:
            return self.report, {**self.report.values, **values_at(self.report, {self.name: value})}
        wanted = {name for name, _ in self.axes}
        types = {named.name: named.type for named in self.report.inputs if named.name in wanted}
        shapes = {name: [self._number(size) for size in type_.shape] for name, type_ in types.items()}
        for name, axis in self.axes:
            shapes[name][axis] = value
        assert self.report_of is not None
        if value not in self.known:
            self.known[value] = self.report_of({name: tuple(shape) for name, shape in shapes.items()})
        return self.known[value], self.known[value].values

    def _number(self, size: Dim) -> int:
        """The size of an axis that does not vary."""
        number = evaluate(size, self.report.values)
        if number is None:
            raise ModelError(f"the size {size} has no value: give it with --dim")
        return number


# The allocator under a phase that runs again and again.


def below_limit(
    entry: PhaseMemory,
    values: Mapping[str, int],
    limit: int,
    rows: Sequence[Row],
    margins: Sequence[int] = (0,),
) -> PhaseMemory:
    """The memory of a phase that runs again and again within `limit` bytes, without the workspaces that do not fit.

    If a convolution does not get its workspace, cuDNN takes an algorithm with less. It may take that one anyway; then the
    workspace's memory is not cached for others, so the phase must also run without the workspaces of convolutions.
    margins: one trial for each, with everything but parameters and optimizer larger by so many thousandths. A size that fits
    does not imply that a slightly smaller one does, whose cached blocks may be too small to use again. The last margin is
    that of the result. Raises OutOfMemory if the phase does not run, ModelError for an open size.
    """
    timeline, sizes = entry.timeline, known_sizes(entry, values)
    spared = set[int]()
    for place, each in enumerate(timeline.held):
        row = timeline.rows[each.first] if each.kind == "workspace" else OPTIMIZER
        if row != OPTIMIZER and operator(rows[row].op).kind == "convolution":
            spared.add(place)
    missed: set[int] = set()
    for margin in margins:
        larger = _larger(timeline, sizes, margin)
        missed = repeat(timeline, larger, Allocator(limit), spared)
        if spared:
            bare = [0 if place in spared else size for place, size in enumerate(larger)]
            repeat(timeline, bare, Allocator(limit))
    if not missed:
        return entry
    held = tuple(one for place, one in enumerate(timeline.held) if place not in missed)
    less = replace(timeline, held=held)
    known = [size for place, size in enumerate(sizes) if place not in missed]
    return replace(entry, timeline=less, requested_peak=max(less.live_bytes(known)))


def repeated_peak(entry: PhaseMemory, values: Mapping[str, int], margin: int) -> int:
    """The peak of the allocator's reserved bytes for a phase that runs again and again without a limit."""
    allocator = Allocator()
    repeat(entry.timeline, _larger(entry.timeline, known_sizes(entry, values), margin), allocator)
    return allocator.peak_reserved


def _larger(timeline: Timeline, sizes: Sequence[int], margin: int) -> list[int]:
    """The sizes, with everything but parameters and optimizer larger by `margin` thousandths."""
    pairs = zip(timeline.held, sizes, strict=True)
    return [size if held.kind in LASTING else size + size * margin // 1000 for held, size in pairs]


def known_sizes(entry: PhaseMemory, values: Mapping[str, int]) -> list[int]:
    """Bytes of each entry of a phase's timeline. Raises ModelError if one has no value or is negative."""
    sizes = [size for size in evaluated(entry.timeline, values) if size is not None]
    if len(sizes) < len(entry.timeline.held) or evaluate(entry.requested_peak, values) is None:
        raise ModelError(f"{without_value(entry.timeline, values)} has no value: give it with --dim")
    if any(size < 0 for size in sizes):
        raise ModelError("a size is negative there: give others with --dim")
    return sizes
