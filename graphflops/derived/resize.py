"""A report at other sizes, one or many, from its formulas: only times need the model itself."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import product
from typing import Any

from graphflops.base.record import Record
from graphflops.base.rendered import Rendered
from graphflops.cost import QUANTITIES
from graphflops.derived.items import throughput
from graphflops.dims import Expr, Sums, dim_max, evaluate, total
from graphflops.errors import ModelError, shown
from graphflops.open_sizes import is_computed, of_report
from graphflops.ops import Op
from graphflops.passes.bind import axes_of_inputs, known_sizes, outside, refuse_broken
from graphflops.passes.sizes import refuse_impossible
from graphflops.report import Report, Totals, known_values, without_assumed
from graphflops.report.size_names import span
from graphflops.report.timeline import PhaseTime

_ADVICE = "analyze the model itself"


def resized(report: Report, dims: Mapping[str, int], inputs: Mapping[str, Sequence[int]]) -> Report:
    """The report at other sizes: what an analysis of the model at these sizes gives.

    dims: by symbol (`s27`), label, input axis (`ids[1]`) or a pattern of them. inputs: whole shapes.
    Raises ModelError for a size that the report does not hold open, and where a size of a result would be negative.
    """
    axes, _ = axes_of_inputs({named.name: named.type for named in report.inputs}, inputs)
    given = values_at(report, {**dims, **axes})
    changed: Report = _Substitution(given).of(report)
    symbols = {
        name: replace(info, value=given[name], given_by="user") if name in given else info
        for name, info in report.symbols.items()
    }
    diagnostics = (*report.diagnostics, *outside(given, report.symbols))
    changed = replace(changed, symbols=symbols, diagnostics=diagnostics)
    refuse_impossible(changed.symbols, changed.inputs, changed.rows)
    # Peaks of memory at these sizes, and the calls where they are; "" where only the model tells.
    if changed.backward is None:
        changed = replace(changed, totals=_at_its_peak(changed, changed.totals))
    else:
        kept = changed.totals.peak_node if isinstance(report.totals.peak_bytes, int) else ""
        totals, backward = replace(changed.totals, peak_node=kept), _at_its_peak(changed, changed.backward)
        changed = replace(changed, totals=totals, backward=backward)
    if changed.memory_use:
        from graphflops.memory.allocator import Allocator
        from graphflops.memory.ledger import at_sizes

        used = [at_sizes(entry, changed.values, Allocator(), changed.rows) for entry in changed.memory_use]
        changed = replace(changed, memory_use=tuple(used))
    return _without_times(changed) if given else changed


def values_at(report: Report, sizes: Mapping[str, int]) -> dict[str, int]:
    """Values of symbols for sizes by symbol, label or axis (its own size). ModelError if no open size has that name."""
    values, fixed = of_report(report).solved(sizes)
    refuse_guarded(report, values)
    for place in fixed:
        (size,) = of_report(report).sizes_of(place).values()
        now = report.symbols[place].value if place in report.symbols else size
        raise ModelError(f"{shown(place)} is {now} in the report, which does not hold it open: {_ADVICE}")
    return values


def refuse_guarded(report: Report, values: Mapping[str, int]) -> None:
    """Raise ModelError for values of symbols at which the program does not run: they break what it requires."""
    if report.guards:
        axes, known = of_report(report).axes, known_values(without_assumed(report.symbols))
        old, new = ({**given, **known_sizes(axes, given)} for given in (known, {**report.values, **values}))
        refuse_broken(report.guards, old, new, report.names)


class _Substitution:
    """Replaces symbols by values everywhere in frozen data; parts without these symbols stay the same objects."""

    def __init__(self, given: Mapping[str, int]) -> None:
        self.given = given
        self.known: dict[int, tuple[object, Any]] = {}  # by identity, with the object kept alive

    def of(self, value: Any) -> Any:
        if value is None or isinstance(value, (str, int, float, Op)):
            return value
        if id(value) not in self.known:
            self.known[id(value)] = value, self._made(value)
        return self.known[id(value)][1]

    def _made(self, value: Any) -> Any:
        if isinstance(value, Expr):
            return value.substitute(self.given)
        if isinstance(value, Mapping):
            return {key: self.of(part) for key, part in value.items()}
        if isinstance(value, tuple):
            parts = [self.of(part) for part in value]
            if all(new is old for new, old in zip(parts, value, strict=True)):
                return value
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        if not is_dataclass(value):
            return value
        old = {entry.name: getattr(value, entry.name) for entry in fields(value)}
        new = {name: self.of(part) for name, part in old.items()}
        changed = {name: part for name, part in new.items() if part is not old[name]}
        return replace(value, **changed) if changed else value  # type: ignore[type-var]


def _without_times(report: Report) -> Report:
    if not report.device:
        return report
    backward, optimizer = (
        None if part is None else replace(part, time=None) for part in (report.backward, report.optimizer)
    )
    rows = tuple([row._replace(time=None, backward_time=None) for row in report.rows])
    totals = replace(report.totals, time=None)
    timeless = replace(report, rows=rows, totals=totals, backward=backward, optimizer=optimizer)
    return replace(timeless, device="", network="", profile_errors={}, step_time=None)


def _at_its_peak(report: Report, totals: Totals) -> Totals:
    """The totals with the peak of the timeline and its call: the formula of a peak covers only some moments."""
    timeline = report.memory.own
    if (known := timeline.sizes(report.value)) is None:
        is_known = isinstance(totals.peak_bytes, int) and not timeline.rows
        return replace(totals, peak_node=totals.peak_node if is_known else "")
    held = timeline.live_bytes(known)
    if not held:
        return totals
    moment = held.index(max(held))
    alive = total(entry.bytes for entry in timeline.held if entry.first <= moment <= entry.last)
    node = report.rows[timeline.rows[moment]].node
    return replace(totals, peak_bytes=dim_max(totals.peak_bytes, alive), peak_node=node)


MOST = 10_000  # points


class Point(Record, frozen=True):
    """The cost of a program at one choice of sizes; None for a quantity that depends on another, unknown size."""

    sizes: Mapping[str, int]
    # FLOPs and bytes as in a report; in a training analysis, of the whole step.
    cost: Mapping[str, int | None]
    peak_bytes: int | None
    time: PhaseTime | None = None  # of the same, predicted for these sizes; None without a device
    rates: Mapping[str, float] = {}  # tokens, images and the like per second
    serving: Mapping[str, float] = {}  # a decoder's step, named by fitting/cells.py
    is_lower_bound: bool = False  # calls of unknown cost are in no figure

    @property
    def traffic(self) -> int | None:
        read, written = self.cost["read_bytes"], self.cost["written_bytes"]
        return None if read is None or written is None else read + written

    @property
    def intensity(self) -> float | None:
        """Matrix FLOPs per byte; None if a part of either is unknown."""
        flops, moved = self.cost["matrix_flops"], self.traffic
        return flops / moved if flops is not None and moved and not self.is_lower_bound else None


class Sweep(Rendered, Record, frozen=True):
    """A report at many sizes. notes: sizes beyond the export's ranges, calls of unknown cost, missing times."""

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
        """The points of `sweep`, and a note for each size with values beyond its range.

        report_of: analyzes the model at given sizes, by symbol. Times are no formulas, so a report for a device needs one
        analysis per point; without `report_of`, points have no times. progress: called with (points done, all points).
        """
        points, notes = sweep(report, sizes), beyond(report, sizes)
        if unknown := report.coverage.unknown_ops:
            notes += [f"the cost of these is unknown, and in no figure: {shown(', '.join(unknown), 200)}"]
        if report.device and report_of is not None:
            for place, point in enumerate(points):
                found = report_of(values_at(report, point.sizes))
                time = found.step_time or found.totals.time
                points[place] = replace(point, time=time, rates=throughput(found))
                if progress is not None:
                    progress(place + 1, len(points))
        elif report.device:
            notes.append("times are no formulas: a saved report has none at other sizes; give the model")
        return Sweep(report, tuple(points), tuple(notes))


def sweep(report: Report, sizes: Mapping[str, Sequence[int]]) -> list[Point]:
    """The program at every combination of the sizes.

    sizes: values by symbol (`s27`), label, input axis (`ids[1]`, its own size) or pattern (`past_*[2]`); the last one varies
    fastest. Sizes that are always equal are given once, under all of their names (`keys[2]=values[2]`). Raises ModelError
    for a name that is no open size of the report or is given twice, for an axis that cannot have a size, if a result has a
    negative size, and for more than 10,000 points.
    """
    parts = [of_report(report).sizes_of(name).values() for name in sizes]
    named = [{name for size in one if isinstance(size, Expr) for name in size.symbols} for one in parts]
    given = Counter(symbol for symbols in named for symbol in symbols)
    if twice := next((symbol for symbol in given if given[symbol] > 1), None):
        raise ModelError(f"the sweep gives {shown(report.names[twice])} twice: every size once")
    count = math.prod(map(len, sizes.values()))
    if count > MOST:
        raise ModelError(f"the sweep has {count:,} points, more than {MOST:,}: give fewer values")
    step, timeline = report.step() or report.totals, report.memory.own
    held = Sums([entry.bytes for entry in timeline.held])
    points = []
    for each in product(*sizes.values()):
        chosen = dict(zip(sizes, each, strict=True))
        values = {**report.values, **values_at(report, chosen)}
        refuse_impossible(report.symbols, report.inputs, report.rows, values)
        cost = {name: evaluate(getattr(step.cost, name), values) for name in QUANTITIES}
        peak, is_bound = evaluate(step.peak_bytes, values), report.coverage.unknown > 0
        sizes_held = [size for size in held.at(values) if size is not None]
        if peak is not None and timeline.rows and len(sizes_held) == len(timeline.held):
            # The formula of a peak covers only some moments
            peak = max(peak, *timeline.live_bytes(sizes_held))
        points.append(Point(chosen, cost, peak, is_lower_bound=is_bound))
    return points


def beyond(report: Report, sizes: Mapping[str, Sequence[int]]) -> list[str]:
    """One line for each size with values outside the range of the export."""
    lines = []
    for name, values in sizes.items():
        for size in of_report(report).sizes_of(name).values():
            info = None if is_computed(size) else report.symbols.get(str(size))
            low, high = (None, None) if info is None else (info.minimum, info.maximum)
            least, most = -math.inf if low is None else low, math.inf if high is None else high
            if outside := [value for value in values if not least <= value <= most]:
                told = ", ".join(f"{value:,}" for value in outside[:3]) + (", …" if len(outside) > 3 else "")
                lines.append(f"{shown(name)} = {told}: the program was exported for {span(low, high)}")
                break
    return lines
