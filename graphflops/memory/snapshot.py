"""A memory snapshot as `torch.cuda.memory._snapshot()` returns it, of a predicted run: pytorch.org/memory_viz draws it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from graphflops.dims import evaluate_all
from graphflops.errors import ModelError
from graphflops.memory.allocator import Allocator
from graphflops.memory.ledger import LASTING, OPTIMIZER, without_value
from graphflops.memory.replay import BEFORE, moments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.memory.allocator import Block
    from graphflops.report import Held, PhaseMemory, Report

Frames = list[dict[str, Any]]
_SOURCE = re.compile(r"(.{1,4096}?):(\d{1,9})")
_NOWHERE = {"filename": "", "line": 0}


def snapshot(report: Report, entry: PhaseMemory) -> dict[str, Any]:
    """The segments and blocks at the end of a run of a phase, and all events of the run from an empty allocator on.

    Raises ModelError where a size has no value.
    """
    timeline = entry.timeline
    sizes = evaluate_all([held.bytes for held in timeline.held], report.values)
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        open_size = without_value(timeline, report.values)
        raise ModelError(f"{open_size} has no value: a snapshot needs numbers, give it with --dim")
    run = _Run(known, [_frames(report, entry, held) for held in timeline.held])
    for place, held in enumerate(timeline.held):
        if held.kind in BEFORE:
            run.take(place)
    for kept, taken, freed in moments(timeline, known):
        for place in (*kept, *taken):
            run.take(place)
        for place in freed:
            run.give_back(place)
    return {
        "segments": run.segments(),
        "device_traces": [run.trace],
        "allocator_settings": {},
        "external_annotations": [],
    }


def _frames(report: Report, entry: PhaseMemory, held: Held) -> Frames:
    """Where memory is taken, as a stack: the value and what it is, the operator, the source line, the module."""
    top = {**_NOWHERE, "name": f"{held.name} ({held.kind})"}
    row = entry.timeline.rows[held.first]
    if held.kind in LASTING or held.kind == "input" or row == OPTIMIZER:
        return [top]
    call = report.rows[row]
    turn = entry.timeline.gradients_from
    phase = "gradient of " if turn is not None and held.first >= turn else ""
    found = _SOURCE.fullmatch(call.source)
    place = {"filename": found[1], "line": int(found[2])} if found else {"filename": call.source, "line": 0}
    return [top, {**place, "name": f"{phase}{call.op}"}, {**_NOWHERE, "name": call.module or "(program)"}]


class _Run:
    """A run of the allocator, recorded."""

    def __init__(self, sizes: Sequence[int], frames: Sequence[Frames]) -> None:
        self.sizes, self.frames = sizes, frames
        self.allocator = Allocator()
        self.blocks: dict[int, Block] = {}
        self.trace: list[dict[str, Any]] = []

    def take(self, place: int) -> None:
        """Allocate an entry of the timeline."""
        if not self.sizes[place]:
            return
        before = len(self.allocator.segments)
        block = self.blocks[place] = self.allocator.allocate(self.sizes[place])
        for address, size in [*self.allocator.segments.items()][before:]:
            self.record("segment_alloc", address, size, [])
        self.record("alloc", block.address, self.sizes[place], self.frames[place])

    def give_back(self, place: int) -> None:
        """Free an entry."""
        block = self.blocks.pop(place)
        for action in ("free_requested", "free_completed"):
            self.record(action, block.address, self.sizes[place], self.frames[place])
        self.allocator.free(block)

    def record(self, action: str, address: int, size: int, frames: Frames) -> None:
        """Note an event; times count events."""
        self.trace.append(
            {
                "action": action,
                "addr": address,
                "size": size,
                "stream": 0,
                "time_us": len(self.trace),
                "frames": frames,
            }
        )

    def segments(self) -> list[dict[str, Any]]:
        """All segments with their blocks."""
        places = {id(block): place for place, block in self.blocks.items()}
        starts = {block.address: block for block in self.blocks.values()}
        for pool in self.allocator.pools.values():
            starts.update((address, block) for _, address, block in pool.free)
        return [
            self._segment(address, size, starts[address], places)
            for address, size in self.allocator.segments.items()
        ]

    def _segment(self, address: int, size: int, first: Block, places: dict[int, int]) -> dict[str, Any]:
        blocks: list[dict[str, Any]] = []
        block: Block | None = first
        while block is not None:
            place = places.get(id(block))
            blocks.append(
                {
                    "address": block.address,
                    "size": block.size,
                    "requested_size": block.requested,
                    "state": "active_allocated" if block.is_used else "inactive",
                    "frames": [] if place is None else self.frames[place],
                }
            )
            block = block.next
        used = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
        return {
            "device": 0,
            "address": address,
            "total_size": size,
            "allocated_size": used,
            "active_size": used,
            "requested_size": sum(block["requested_size"] for block in blocks),
            "stream": 0,
            "segment_type": "small" if first.pool.is_small else "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": blocks,
        }
