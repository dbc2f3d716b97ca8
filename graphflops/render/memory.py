"""The memory of a program on a device, for a terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from graphflops.base.numbered import numbered, unnumbered
from graphflops.dims import Dim, total
from graphflops.memory.ledger import ENTRIES, is_alive
from graphflops.memory.replay import OPTIMIZER
from graphflops.render.text import Numbers, safe
from graphflops.render.training import optimizer
from graphflops.report import Held, HeldKind, PhaseMemory, Report, Timeline

_LARGEST = 10
_EXACT = ("weights", "buffers", "inputs", "optimizer", "context")  # calls of unknown cost add nothing to them
_VERBS = {"inference": "runs", "training": "trains"}
_KINDS = {
    "input": "input", "value": "result", "saved": "saved", "workspace": "temporary", "nested": "nested graph",
    "gradient": "gradient", "library": "workspace",
}  # fmt: skip
# What is alive throughout, or in the optimizer's step, as one entry each.
_TOGETHER: dict[HeldKind, str] = {
    "weight": "parameters",
    "buffer": "buffers",
    "optimizer": "optimizer state",
    "temporary": "optimizer step",
}


def need(report: Report, numbers: Numbers) -> str:
    """`runs in 1.520 GB, trains in 20.10 GB on NVIDIA H200 SXM (eager, AdamW)`."""
    phases = []
    for entry in report.memory_use:
        phases.append(f"{_VERBS[entry.phase]} in {_least(report, entry)}{numbers.memory(entry.taken)}")
    device = report.memory_use[0].device
    place = f" on {safe(device, 60)}" if device else ""
    return f"{', '.join(phases)}{place} ({described(report)})"


def at_least(report: Report) -> str:
    """What stands before an amount of memory that calls of unknown cost may add to."""
    return ">= " if report.coverage.unknown else ""


def _least(report: Report, entry: PhaseMemory) -> str:
    """As `at_least`; without a device its context and workspaces are missing too."""
    return at_least(report) or (">= " if entry.context is None else "")


def described(report: Report) -> str:
    """How the program runs and is trained: `eager, AdamW`."""
    step = "" if report.training is None else f", {optimizer(report.training)}"
    return f"{report.execution}{step}"


def parts(report: Report, numbers: Numbers) -> Iterator[tuple[str, ...]]:
    """A line for each part of the ledger that is not zero everywhere, with a figure for each phase."""
    names = (*dict.fromkeys(ENTRIES.values()), "requested_peak", "allocated_peak", "reserved_peak")
    for name in (*names, "context", "device_total"):
        sizes: list[Dim | None] = [getattr(entry, name) for entry in report.memory_use]
        if any(size != 0 for size in sizes):
            yield (
                label(name),
                *("?" if size is None else amount(report, name, size, numbers) for size in sizes),
            )


def amount(report: Report, name: str, size: Dim, numbers: Numbers) -> str:
    """An entry of the ledger as a figure; a lower bound where calls of unknown cost may add to it."""
    return ("" if name in _EXACT else at_least(report)) + numbers.memory(size)


def label(name: str) -> str:
    """An entry of the ledger in words."""
    return "total on the device" if name == "device_total" else name.replace("_", " ")


def peak_line(report: Report, entry: PhaseMemory, moment: int) -> str:
    """Where a phase has its peak, which is at that moment."""
    from graphflops.render.summary import located

    turn = entry.timeline.gradients_from
    if entry.timeline.rows[moment] == OPTIMIZER:
        return "the optimizer's step" if entry.phase == "training" else "the whole program"
    if report.origin.format == "recorded":
        return located(report, entry.peak_node)
    gradient = "gradient of " if turn is not None and moment >= turn else ""
    name, place = safe(entry.peak_node, 80), located(report, entry.peak_node)
    return gradient + (place if place.partition(" (")[0] == name else f"{name} in {place}")


def folded(timeline: Timeline) -> Timeline:
    """The timeline with parameters, buffers and the optimizer as one entry each."""
    held = [one for one in timeline.held if one.kind not in _TOGETHER]
    for kind, called in _TOGETHER.items():
        parts = [one for one in timeline.held if one.kind == kind]
        if parts:
            size = total(one.bytes for one in parts)
            held.append(Held(called, kind, parts[0].first, parts[0].last, size))
    held = [one._replace(first=0) if one.kind == "library" else one for one in held]
    return Timeline(timeline.rows, tuple(held), timeline.gradients_from)


def at_peak(
    report: Report, entry: PhaseMemory, numbers: Numbers, moment: int
) -> Iterator[tuple[str, str, str, str]]:
    """The largest of what is alive at the peak of a phase: name, what it is, where it is made, and its bytes.

    Parameters are one line, and so are equal results of layers that differ in their number.
    """
    alive = [held for held in folded(entry.timeline).held if is_alive(held, moment)]
    named = {held.name for held in alive}
    makers = {out.name: row for row in report.rows for out in row.outputs if out.name in named}
    alike: dict[tuple[str, ...], list[Held]] = {}
    for held in alive:
        row = makers.get(held.name)
        made = () if row is None else (row.op, unnumbered(row.module or row.source), str(held.bytes))
        alike.setdefault((held.kind, *(made or (held.name,))), []).append(held)
    groups = [(total(one.bytes for one in group), group) for group in alike.values()]
    groups.sort(key=lambda item: -(numbers.value(item[0]) or 0))
    for size, group in groups[:_LARGEST]:
        names = [one.name for one in sorted(group, key=lambda one: one.first)]
        rows = [makers[name] for name in names if name in makers]
        more = f" and {len(group) - 1:,} more" if len({*names}) > 1 else f" (x{len(group)})"
        place = numbered([row.module or row.source for row in rows]) if rows else ""
        name = safe(names[0]) + (more if len(group) > 1 else "")
        yield name, _KINDS.get(group[0].kind, ""), safe(place), numbers.memory(size)
    rest = [one for _, group in groups[_LARGEST:] for one in group]
    if rest:
        yield f"… {len(rest):,} more", "", "", numbers.memory(total(one.bytes for one in rest))
