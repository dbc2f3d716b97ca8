"""A report at many sizes: its formulas are evaluated, without the file; times are predicted for each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from graphflops.base.rendered import Rendered
from graphflops.cost import QUANTITIES, Cost
from graphflops.derived.items import throughput
from graphflops.derived.resize import values_at
from graphflops.dims import Dim, Expr, evaluate
from graphflops.errors import ModelError, shown
from graphflops.open_sizes import is_computed, of_report
from graphflops.passes.sizes import refuse_impossible
from graphflops.report import Report
from graphflops.report.call_time import PhaseTime
from graphflops.report.size_names import span

MOST = 10_000  # points


@dataclass(frozen=True, slots=True)
class Point:
    """Cost of a program at one choice of sizes; None for a quantity whose formula has another size without a value.

    cost: FLOPs and bytes as in a report; in a training analysis those of the whole step. time: of the same, predicted for
    these sizes; None without a device. rates: how many tokens, images and the like a second. serving: of a decoder's step,
    quantities by name (fitting/cells.py).
    """

    sizes: Mapping[str, int]
    cost: Mapping[str, int | None]
    peak_bytes: int | None
    time: PhaseTime | None = None
    rates: Mapping[str, float] = field(default_factory=dict)
    serving: Mapping[str, float] = field(default_factory=dict)

    @property
    def traffic(self) -> int | None:
        """Bytes read and written."""
        read, written = self.cost["read_bytes"], self.cost["written_bytes"]
        return None if read is None or written is None else read + written

    @property
    def intensity(self) -> float | None:
        """Matrix FLOPs a byte."""
        flops, moved = self.cost["matrix_flops"], self.traffic
        return flops / moved if flops is not None and moved else None


@dataclass(frozen=True, slots=True, repr=False)
class Sweep(Rendered):
    """A report at many sizes. notes: sizes that the program was not exported for, and where times are left out."""

    report: Report
    points: tuple[Point, ...]
    notes: tuple[str, ...] = ()

    @staticmethod
    def of(
        report: Report,
        sizes: Mapping[str, Sequence[int]],
        report_of: Callable[[Mapping[str, int]], Report] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Sweep:
        """The points of `sweep`, and a note for each size that has values beyond its range.

        report_of: the analysis at given sizes, by symbol. Times are no formulas, so a report for a device takes one for each
        point; without it points have no times. progress: called with (points done, points in all).
        """
        points, notes = sweep(report, sizes), beyond(report, sizes)
        if report.device and report_of is not None:
            points = list(_timed(points, report, report_of, progress))
        elif report.device:
            notes.append("times are no formulas: a saved report has none at other sizes; give the model")
        return Sweep(report, tuple(points), tuple(notes))


def sweep(report: Report, sizes: Mapping[str, Sequence[int]]) -> list[Point]:
    """The program at every combination of the sizes.

    sizes: values by symbol (`s27`), label, input axis (`ids[1]`, its own size) or pattern (`past_*[2]`), in the order in
    which they vary, the last one fastest; sizes that are always equal under all of their names (`keys[2]=values[2]`).
    Raises ModelError for a name that no open size of the report has or that is given twice, for an axis that cannot have a
    size, where a size of a result is negative, and for more than 10,000 points.
    """
    given = [symbol for name in sizes for symbol in _symbols(report, name)]
    twice = next((symbol for symbol in given if given.count(symbol) > 1), None)
    if twice is not None:
        raise ModelError(f"the sweep gives {shown(report.names[twice])} twice: every size once")
    points = 1
    for values in sizes.values():
        points *= len(values)
    if points > MOST:
        raise ModelError(f"the sweep has {points:,} points, more than {MOST:,}: give fewer values")
    step = report.step() or report.totals
    return [
        _point(report, dict(zip(sizes, chosen, strict=True)), step.cost, step.peak_bytes)
        for chosen in product(*sizes.values())
    ]


def _symbols(report: Report, name: str) -> frozenset[str]:
    """The symbols that a size of this name is made of."""
    sizes = of_report(report).sizes_of(name).values()
    return frozenset().union(*(size.symbols for size in sizes if isinstance(size, Expr)))


def _timed(
    points: Sequence[Point],
    report: Report,
    report_of: Callable[[Mapping[str, int]], Report],
    progress: Callable[[int, int], None] | None,
) -> Iterator[Point]:
    """The points with their predicted times."""
    for done, point in enumerate(points, 1):
        found = report_of(values_at(report, point.sizes))
        yield replace(point, time=found.step_time or found.totals.time, rates=throughput(found))
        if progress is not None:
            progress(done, len(points))


def beyond(report: Report, sizes: Mapping[str, Sequence[int]]) -> list[str]:
    """One line for each size with values outside the range for which the program was exported."""
    lines = []
    for name, values in sizes.items():
        for size in of_report(report).sizes_of(name).values():
            info = None if is_computed(size) else report.symbols.get(str(size))
            low, high = (None, None) if info is None else (info.minimum, info.maximum)
            outside = [
                value
                for value in values
                if (low is not None and value < low) or (high is not None and value > high)
            ]
            if outside:
                told = ", ".join(f"{value:,}" for value in outside[:3]) + (", …" if len(outside) > 3 else "")
                lines.append(f"{shown(name)} = {told}: the program was exported for {span(low, high)}")
                break
    return lines


def _point(report: Report, chosen: Mapping[str, int], cost: Cost, peak: Dim) -> Point:
    values = {**report.values, **values_at(report, chosen)}
    refuse_impossible(report.symbols, report.inputs, report.rows, values)
    at = {name: evaluate(getattr(cost, name), values) for name in QUANTITIES}
    return Point(chosen, at, evaluate(peak, values))
