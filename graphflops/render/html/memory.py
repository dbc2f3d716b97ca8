"""The curve of live memory of a page: what is held when, and on a device what the allocator reserves for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from graphflops.dims import Dim, evaluate_all
from graphflops.memory.allocator import Allocator
from graphflops.memory.ledger import OPTIMIZER, live_bytes
from graphflops.memory.replay import replay
from graphflops.render.memory import folded
from graphflops.report import PhaseMemory, Report


def memory_of(
    report: Report,
    entry_of: Sequence[int],
    name: Callable[[str], int],
    formula: Callable[[Dim, Report], int],
) -> dict[str, Any] | None:
    """The timeline in columns; None where it is not known. Of a report for a device the whole memory of its last phase.

    entry_of: the entry of the page by row. name, formula: the place of a name and of a formula in the page.
    """
    entry = report.memory_use[-1] if report.memory_use else None
    memory = report.memory if entry is None else folded(entry.timeline)
    if not memory.rows or any(not OPTIMIZER <= row < len(entry_of) for row in memory.rows):
        return None
    columns = zip(
        *((name(h.name), h.kind, h.first, h.last, formula(h.bytes, report)) for h in memory.held),
        strict=True,
    )
    return {
        "calls": [None if row == OPTIMIZER else entry_of[row] for row in memory.rows],
        "gradients_from": memory.gradients_from,
        **dict(zip(("name", "kind", "first", "last", "bytes"), columns, strict=False)),
        **({} if entry is None else {"device": _device(report, entry)}),
    }


def _device(report: Report, entry: PhaseMemory) -> dict[str, Any]:
    """The device, and the bytes of the allocator's segments from a moment on; for the sizes at which `peak` is requested."""
    found: dict[str, Any] = {"name": entry.device, "phase": entry.phase, "segments": [], "peak": None}
    sizes = evaluate_all([held.bytes for held in entry.timeline.held], report.values)
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return found
    reserved = enumerate(replay(entry.timeline, known, Allocator()))
    steps = [next(group) for _, group in groupby(reserved, key=lambda step: step[1])]
    return {**found, "segments": steps, "peak": str(max(live_bytes(entry.timeline, known)))}
