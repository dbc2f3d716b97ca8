"""The memory of a program on a device, for a terminal and for Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.memory.ledger import ENTRIES, OPTIMIZER, is_alive
from graphflops.render.text import safe
from graphflops.render.training import optimizer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from graphflops.dims import Dim
    from graphflops.render.text import Numbers
    from graphflops.report import Held, PhaseMemory, Report

_LARGEST = 10
_EXACT = ("weights", "buffers", "inputs", "optimizer", "context")  # calls of unknown cost add nothing to them
_VERBS = {"inference": "runs", "training": "trains"}
_KINDS = {
    "input": "input",
    "value": "result",
    "saved": "saved",
    "workspace": "kernel's buffer",
    "nested": "nested graph",
    "gradient": "gradient",
    "weight": "parameter",
    "buffer": "buffer",
    "optimizer": "optimizer state",
    "temporary": "optimizer step",
    "library": "workspace",
}


def need(report: Report, numbers: Numbers) -> str:
    """`runs in 1.520 GB, trains in 20.10 GB on NVIDIA H200 SXM (eager, AdamW)`."""
    phases = [
        f"{_VERBS[entry.phase]} in {_least(report, entry)}{numbers.memory(entry.taken)}"
        for entry in report.memory_use
    ]
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
    """Where a phase has its peak, which is at this moment."""
    from graphflops.render.summary import located

    if entry.timeline.rows[moment] == OPTIMIZER:
        return "the optimizer's step" if entry.phase == "training" else "the whole program"
    turn = entry.timeline.gradients_from
    gradient = "gradient of " if turn is not None and moment >= turn else ""
    return f"{gradient}{safe(entry.peak_node, 60)} in {located(report, entry.peak_node)}"


def largest(
    report: Report, entry: PhaseMemory, moment: int, numbers: Numbers
) -> Iterator[tuple[str, str, str, str]]:
    """The largest of what is alive at a moment: name, what it is, where it is made, and its bytes."""
    alive = [held for held in entry.timeline.held if is_alive(held, moment)]
    alive.sort(key=lambda held: -(numbers.value(held.bytes) or 0))
    makers = {output.name: row for row in report.rows for output in row.outputs}
    for held in alive[:_LARGEST]:
        row = makers.get(held.name)
        place = "" if row is None else safe(row.module or row.source, 60)
        yield safe(held.name, 80), _KINDS[held.kind], place, numbers.memory(held.bytes)
    if len(alive) > _LARGEST:
        rest = alive[_LARGEST:]
        yield f"{len(rest):,} more", "", "", numbers.memory(_sum(rest))


def _sum(held: list[Held]) -> Dim:
    from graphflops.dims import total

    return total(entry.bytes for entry in held)
