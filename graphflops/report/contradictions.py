"""Contradictions: facts that a file states twice, differently, so that its totals cannot be relied on.

A program may record shapes that its operators cannot give, a table of weights may state other sizes than the program, and a
saved report other totals than its rows. Each is a diagnostic; `--strict` and budgets fail where there is one. They also fail
where sizes follow from nothing but what the file declares. Also the names of all kinds of diagnostics by their stable codes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from graphflops.base.lazy import imported
from graphflops.base.record import replace
from graphflops.cost import QUANTITIES, Cost
from graphflops.dims import Dim, at_least, differ, dim_max, evaluate, total
from graphflops.errors import DimError, FileError, shown
from graphflops.report import ENTRIES, HELD, PEAKS, Diagnostic, Report, Timeline
from graphflops.report.timeline import CallTime, PhaseTime
from graphflops.tensor import TensorType, dtype_named

# docs/report.md says for each code which fact is stated twice.
_CODES = frozenset({
    "GF102", "GF103", "GF105", "GF119", "GF120", "GF121", "GF127", "GF130", "GF131", "GF206", "GF210", "GF213",
})  # fmt: skip
_UNCONFIRMED = "GF131"  # said once, and nothing that is read confirms it
_BY_SHAPE = frozenset({"adafactor", "muon"})  # optimizers whose cost depends on shapes too
_ROUNDING = 1e-9  # relative, of times
_REACHED = ("matrix_utilization", "bandwidth_utilization", "energy_joules")  # of a phase's time
_LISTED = 3  # contradictions that one line names


def contradictions(report: Report) -> list[Diagnostic]:
    """The diagnostics that say where the file contradicts itself."""
    return [found for found in report.diagnostics if found.code in _CODES]


def contradicted(report: Report) -> str:
    """The first contradictions and how many there are in all, in one line; "" if there is none."""
    found = contradictions(report)
    named = "; ".join(
        f"{one.code} {shown(one.node, 80)}{': ' if one.node else ''}{shown(one.message, 300)}"
        for one in found[:_LISTED]
    )
    more = f"; and {len(found) - _LISTED:,} more" if len(found) > _LISTED else ""
    is_twofold = any(one.code != _UNCONFIRMED for one in found)
    why = "the file contradicts itself" if is_twofold else "sizes are known only from what the file declares"
    return f"{why}, so that its totals cannot be relied on: {named}{more}" if found else ""


def impossible(report: Report) -> list[Diagnostic]:
    """Diagnostics of what no runtime runs (GF118) or loads (GF210); each message names its call."""
    return [
        replace(one, message=f"{shown(one.node)} cannot run: {one.message}" if one.node else one.message)
        for one in report.diagnostics
        if one.code in ("GF118", "GF210")
    ]


def saved(report: Report) -> Report:
    """A report from JSON, a diagnostic for each contradicted total; FileError for impossible amounts, times and moments."""
    for name, amount in _amounts(report):
        value = evaluate(amount, report.values)
        if value is not None and value < 0:
            raise FileError(f"not a graphflops report: {name} is negative")
    for name, time in _times(report):
        reached = [getattr(time, figure, None) or 0 for figure in _REACHED]
        if min(reached) < 0:
            raise FileError(f"not a graphflops report: {name}: a utilization or the energy is negative")
        if not 0 <= time.low <= time.seconds <= time.high:
            span = f"{time.seconds} s, between {time.low} and {time.high} s"
            raise FileError(f"not a graphflops report: {name}: the time is {span}")
        shares = time.shares.values() if isinstance(time, PhaseTime) else ()
        if not all(0 <= share <= 1 + _ROUNDING for share in (*shares, sum(shares))):
            raise FileError(f"not a graphflops report: {name}: shares of the time are no parts of it")
        if isinstance(time, PhaseTime) and not 0 <= time.exposed <= time.communication * (1 + _ROUNDING):
            span = f"{time.exposed} s of {time.communication} s"
            raise FileError(f"not a graphflops report: {name}: {span} of communication are exposed")
    for name, timeline in _timelines(report):
        rows = len(report.rows)
        moments, turn = range(len(timeline.rows)), timeline.gradients_from
        if not (
            bool(moments)
            and all(-1 <= row < rows for row in timeline.rows)
            and (turn is None or 0 <= turn <= len(moments))
            and all(one.first in moments and one.last in moments for one in timeline.held)
        ):
            raise FileError(f"not a graphflops report: {name} names moments or rows that there are not")
    found = tuple(diagnostic("GF120", "", text) for text in _differences(report))
    found = tuple(one for one in found if one not in report.diagnostics)
    return replace(report, diagnostics=(*report.diagnostics, *found)) if found else report


def named_as_model(report: Report) -> Report:
    """A saved report in a file that is named as a model, with a diagnostic that says so."""
    text = "the file is named as a model and holds a saved report: no model was analyzed"
    return replace(report, diagnostics=(*report.diagnostics, diagnostic("GF121", "", text)))


def _amounts(report: Report) -> Iterator[tuple[str, Dim]]:
    """The counts and bytes of a report by name; those of equal rows once."""
    phases = [phase for phase in (report.totals, report.backward, report.optimizer) if phase is not None]
    costs = {id(cost): ("totals", cost) for cost in (phase.cost for phase in phases)}
    for row in report.rows:
        for cost in (row.cost, row.backward):
            if cost is not None:
                costs.setdefault(id(cost), (shown(row.node, 80), cost))
    for where, cost in costs.values():
        for name in QUANTITIES:
            yield f"{where}: {name}", getattr(cost, name)
    for phase in phases:
        yield "peak_bytes", phase.peak_bytes
    tensors = [*report.inputs, *(each for row in report.rows for each in (*row.inputs, *row.outputs))]
    for tensor in {id(each.type): each for each in tensors}.values():
        fixed = (size for size in tensor.type.shape if isinstance(size, int))
        yield from ((f"a size of {shown(tensor.name, 80)}", size) for size in fixed)
    for name in HELD:
        yield name, getattr(report, name)
    for entry in report.memory_use:
        for name in (*ENTRIES.values(), *PEAKS):
            yield f"memory_use: {name}", getattr(entry, name) or 0
    for name, timeline in _timelines(report):
        yield from ((name, size) for size in {held.bytes for held in timeline.held})


def _times(report: Report) -> Iterator[tuple[str, CallTime | PhaseTime]]:
    phases = [phase.time for phase in (report.totals, report.backward, report.optimizer) if phase is not None]
    for phase in (*phases, report.step_time):
        if phase is not None:
            yield "totals", phase
    for row in report.rows:
        yield from ((shown(row.node, 80), time) for time in (row.time, row.backward_time) if time is not None)


def _timelines(report: Report) -> Iterator[tuple[str, Timeline]]:
    """The timelines of a report by name; that of `memory` is empty if it is not known."""
    if report.memory.rows:
        yield "memory", report.memory
    for place, phase in enumerate(report.memory_use):
        yield f"memory_use[{place}].timeline", phase.timeline


def _differences(report: Report) -> Iterator[str]:
    backward = [row.backward for row in report.rows if row.backward is not None]
    yield from _unequal("totals", report.totals.cost, [row.cost for row in report.rows])
    if report.backward is not None:
        yield from _unequal("totals of the gradients", report.backward.cost, backward)
    states, cover = Counter(row.state for row in report.rows), report.coverage
    counted = (states["counted"], states["free"], states["unknown"])
    if counted != (cover.counted, cover.free, cover.unknown):
        yield "coverage tells other numbers of calls than the rows"
    if report.parameter_modules and sum(report.parameter_modules.values()) != report.parameters:
        yield "parameters are not the sum of those of the modules"
    if report.parameter_dtypes and sum(report.parameter_dtypes.values()) != report.parameter_bytes:
        yield "parameter_bytes are not the sum of those of the element types"
    yield from _update(report)
    phases = [time for _, time in _times(report) if isinstance(time, PhaseTime) and time.seconds]
    watts = [(time.energy_joules or 0.0) / time.seconds for time in phases]
    if watts and max(watts) > (1 + _ROUNDING) * min(watts):
        yield "energy_joules are not those of one power"
    for text, said, found in _peaks(report):
        values = [None if size is None else report.value(size) for size in (said, found)]
        if None not in values and values[0] != values[1]:
            yield text


def _peaks(report: Report) -> Iterator[tuple[str, Dim | None, Dim | None]]:
    """Amounts of memory: the message for a wrong one, the amount, and what it must be, None if that is not known."""
    whole = report.totals if report.backward is None else report.backward
    yield "peak_bytes is not the most that is held", whole.peak_bytes, _most_held(report, report.memory.own)
    if report.backward is not None:
        peaks = report.totals.peak_bytes, whole.peak_bytes
        yield "peak_bytes of the forward are more than the step's", dim_max(*peaks), whole.peak_bytes
    for entry in report.memory_use:
        peak, timeline = entry.requested_peak, entry.timeline
        if entry.phase == "inference":
            own = _most_held(report, timeline.own)
            yield "peak_bytes is not the most that is held in inference", report.totals.peak_bytes, own
        told = f"requested_peak of {entry.phase} is not the most that is held"
        yield told, peak, _most_held(report, timeline)
        made = imported("graphflops.memory.ledger:at_sizes")(
            entry, report.values, imported("graphflops.memory.allocator:Allocator")(), report.rows
        )
        for name in (*dict.fromkeys(ENTRIES.values()), *PEAKS):
            if name != "requested_peak":
                text = f"{name} of {entry.phase} is not that of what is held"
                yield text, getattr(entry, name), getattr(made, name)
        parts = total([getattr(entry, name) or 0 for name in dict.fromkeys(ENTRIES.values())])
        yield f"requested_peak of {entry.phase} is not the sum of its parts", peak, parts


def _update(report: Report) -> Iterator[str]:
    """Costs that no optimizer has: more than of all parameters or, if these have one type, unequal shares of it."""
    step, training, types = report.optimizer, report.training, report.parameter_dtypes
    if step is None or training is None or training.optimizer in _BY_SHAPE:
        return
    dtypes = {dtype_named(name): size for name, size in types.items()}
    parameter, update = (imported(f"graphflops.passes.optimizer:{name}") for name in ("Parameter", "update"))
    every = [parameter("", TensorType((8 * size // dtype.bits,), dtype)) for dtype, size in dtypes.items()]
    most: Cost = update(training, every).cost
    for name in QUANTITIES:
        own, all_of_it = getattr(step.cost, name), getattr(most, name)
        is_part = len(types) > 1 or not differ(own * most.written_bytes, all_of_it * step.cost.written_bytes)
        if not is_part or at_least(own, all_of_it + 1):
            yield f"optimizer: {name} is not that of parameters of the report"


def _most_held(report: Report, timeline: Timeline) -> int | None:
    known = timeline.sizes(report.value)
    return max(timeline.live_bytes(known)) if timeline.rows and known is not None else None


def _unequal(what: str, total: Cost, rows: Sequence[Cost]) -> Iterator[str]:
    try:
        summed = Cost.sum(rows)
    except DimError:  # formulas too large to add: their total goes by a name
        return
    for name in QUANTITIES:
        if differ(getattr(total, name), getattr(summed, name)):
            yield f"{what}: {name} is not the sum of the rows"


DIAGNOSTICS = {
    "GF101": "unknown-operator", "GF102": "shape-mismatch", "GF103": "dtype-mismatch", "GF104": "rule-failed",
    "GF105": "result-count", "GF106": "size-outside-range", "GF107": "assumed-trainable",
    "GF108": "costly-order", "GF109": "nothing-trained", "GF110": "type-not-derived",
    "GF213": "declared-otherwise", "GF112": "sizes-merged", "GF209": "version-unknown",
    "GF206": "unregistered-operator", "GF207": "domain-not-imported", "GF210": "data-length",
    "GF116": "size-named", "GF117": "mask-not-known",
    "GF118": "cannot-run", "GF119": "weights-differ", "GF120": "totals-differ", "GF121": "saved-report",
    "GF122": "unfused-attention", "GF123": "substituted-figures", "GF124": "measured-busy",
    "GF125": "assumed-lifetimes", "GF126": "fused-conversions", "GF127": "value-mismatch",
    "GF128": "record-ignored", "GF129": "recorded-lifetimes", "GF130": "read-differently",
    "GF131": "declared-alone", "GF132": "guessed-numbers", "GF133": "offloaded-tensors",
    "GF134": "exported-otherwise", "GF135": "own-streams", "GF136": "recorded-uncompiled",
    "GF137": "branch-cannot-run",
}  # fmt: skip


def diagnostic(code: str, node: str, message: str) -> Diagnostic:
    """A diagnostic with the name that belongs to its code."""
    return Diagnostic(code, DIAGNOSTICS[code], node, message)
