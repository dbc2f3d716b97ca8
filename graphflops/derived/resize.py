"""Evaluates a saved report at other sizes: its formulas hold them open, so the model itself is not needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from graphflops.dims import Expr
from graphflops.errors import ModelError, shown
from graphflops.open_sizes import of_report
from graphflops.passes.bind import axes_of_inputs, outside
from graphflops.passes.guards import known_sizes, refuse_broken
from graphflops.passes.sizes import refuse_impossible
from graphflops.report import Report, Timeline, Totals, known_values, without_assumed

_ADVICE = "analyze the model itself"


def resized(report: Report, dims: Mapping[str, int], inputs: Mapping[str, Sequence[int]]) -> Report:
    """The report at other sizes, as an analysis of the model at these sizes would give it.

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
    resized_report = _with_memory_use(_with_peaks(report, changed))
    return _without_times(resized_report) if given else resized_report


def values_at(report: Report, sizes: Mapping[str, int]) -> dict[str, int]:
    """The values of a report's symbols at which sizes are as given, by any of their names; an axis by its own size.

    Raises ModelError for a name that no size has, and for a size that the report does not hold open.
    """
    values, fixed = of_report(report).solved(sizes)
    refuse_guarded(report, values)
    for place in fixed:
        (size,) = of_report(report).sizes_of(place).values()
        now = report.symbols[place].value if place in report.symbols else size
        raise ModelError(f"{shown(place)} is {now} in the report, which does not hold it open: {_ADVICE}")
    return values


def refuse_guarded(report: Report, values: Mapping[str, int]) -> None:
    """Raise ModelError for values of symbols that break a guard of the export, whatever the assumed sizes are."""
    if report.guards:
        axes, known = of_report(report).axes, known_values(without_assumed(report.symbols))
        refuse_broken(report.guards, known_sizes(axes, known), known_sizes(axes, {**known, **values}))


class _Substitution:
    """Puts values in for symbols everywhere in frozen data; what holds none of them stays the same object."""

    def __init__(self, given: Mapping[str, int]) -> None:
        self.given = given
        self.known: dict[int, tuple[object, Any]] = {}  # by identity, with the object kept alive

    def of(self, value: Any) -> Any:
        if value is None or isinstance(value, (str, int, float)):
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
        old = {entry.name: getattr(value, entry.name) for entry in fields(value) if entry.init}
        new = {name: self.of(part) for name, part in old.items()}
        changed = {name: part for name, part in new.items() if part is not old[name]}
        return replace(value, **changed) if changed else value  # type: ignore[type-var]


def _with_peaks(old: Report, new: Report) -> Report:
    """The report with the calls where memory peaks at its sizes; "" where only the model itself tells."""
    nodes = {id(part): _peak_node(new, part) for part in (new.totals, new.backward) if part is not None}
    if old.backward is None:
        return replace(new, totals=replace(new.totals, peak_node=nodes[id(new.totals)]))
    kept = new.totals.peak_node if isinstance(old.totals.peak_bytes, int) else ""
    assert new.backward is not None
    return replace(
        new,
        totals=replace(new.totals, peak_node=kept),
        backward=replace(new.backward, peak_node=nodes[id(new.backward)]),
    )


def _with_memory_use(report: Report) -> Report:
    """The report with what its phases need on a device at its sizes."""
    if not report.memory_use:
        return report
    from graphflops.memory.allocator import Allocator
    from graphflops.memory.ledger import at_sizes

    entries = [at_sizes(entry, report.values, Allocator(), report.rows) for entry in report.memory_use]
    return replace(report, memory_use=tuple(entries))


def _without_times(report: Report) -> Report:
    """The report without predicted times: they are no formulas, and hold at the sizes that they were predicted for alone."""
    if not report.device:
        return report
    backward, optimizer = (
        None if part is None else replace(part, time=None) for part in (report.backward, report.optimizer)
    )
    return replace(
        report,
        device="",
        network="",
        profile_errors={},
        rows=tuple([row._replace(time=None, backward_time=None) for row in report.rows]),
        totals=replace(report.totals, time=None),
        backward=backward,
        optimizer=optimizer,
        step_time=None,
    )


def _peak_node(report: Report, totals: Totals) -> str:
    """The call at which the timeline holds the most; "" where there is no timeline, or a size is open."""
    held = _held(report, report.memory)
    if held is None:
        return totals.peak_node if isinstance(totals.peak_bytes, int) and not report.memory.rows else ""
    return report.rows[report.memory.rows[held.index(max(held))]].node if held else totals.peak_node


def _held(report: Report, memory: Timeline) -> list[int] | None:
    """Bytes held at each moment; None where a size has no value."""
    from graphflops.memory.ledger import live_bytes

    sizes = [report.value(entry.bytes) for entry in memory.held]
    known = [size for size in sizes if size is not None]
    return live_bytes(memory, known) if len(known) == len(sizes) else None
