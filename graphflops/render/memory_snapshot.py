"""A run of a phase as `torch.cuda.memory._snapshot()` tells one, which pytorch.org/memory_viz draws."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping, Sequence
from typing import Any

from graphflops.dims import evaluate_all
from graphflops.errors import ModelError, OptionError
from graphflops.memory.allocator import Allocator, Block
from graphflops.memory.replay import BEFORE, OPTIMIZER, moments, without_value
from graphflops.report import LASTING, Held, PhaseMemory, Report

Frames = list[dict[str, Any]]
_SOURCE = re.compile(r"(.{1,4096}?):(\d{1,9})")
_NOWHERE = {"filename": "", "line": 0}


def snapshot(report: Report) -> bytes:
    """The last phase, a training step where there is one, from an empty allocator on; ModelError where a size is open."""
    if not report.memory_use:
        raise OptionError("a memory snapshot is of a device: name one with --device, such as h200")
    entry = report.memory_use[-1]
    timeline = entry.timeline
    sizes = evaluate_all([held.bytes for held in timeline.held], report.values)
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        open_size = without_value(timeline, report.values)
        raise ModelError(f"{open_size} has no value: a snapshot needs numbers, give it with --dim")
    run = _Recorded(known, [_frames(report, entry, held) for held in timeline.held])
    for place, held in enumerate(timeline.held):
        if held.kind in BEFORE:
            run.take(place)
    for moment in moments(timeline, known):
        for place in (*moment.kept, *moment.taken):
            run.take(place)
        for place in moment.freed:
            run.give_back(place)
    found = {"segments": run.segments(), "device_traces": [run.trace]}
    return pickle.dumps({**found, "allocator_settings": {}, "external_annotations": []}, protocol=4)


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


class _Recorded:
    """A run of the allocator, recorded."""

    def __init__(self, sizes: Sequence[int], frames: Sequence[Frames]) -> None:
        self.sizes, self.frames = sizes, frames
        self.allocator = Allocator()
        self.blocks: dict[int, Block] = {}
        self.trace: list[dict[str, Any]] = []

    def take(self, place: int) -> None:
        if not self.sizes[place]:
            return
        before = len(self.allocator.segments)
        block = self.blocks[place] = self.allocator.allocate(self.sizes[place])
        for address, size in [*self.allocator.segments.items()][before:]:
            self.record("segment_alloc", address, size, [])
        self.record("alloc", block.address, self.sizes[place], self.frames[place])

    def give_back(self, place: int) -> None:
        block = self.blocks.pop(place)
        for action in ("free_requested", "free_completed"):
            self.record(action, block.address, self.sizes[place], self.frames[place])
        self.allocator.free(block)

    def record(self, action: str, address: int, size: int, frames: Frames) -> None:
        """Note an event; times count events."""
        event = {"action": action, "addr": address, "size": size, "stream": 0}
        self.trace.append({**event, "time_us": len(self.trace), "frames": frames})

    def segments(self) -> list[dict[str, Any]]:
        starts = {block.address: block for block in self.blocks.values()}
        for pool in self.allocator.pools.values():
            starts.update((address, block) for _, address, block in pool.free)
        places = {id(block): place for place, block in self.blocks.items()}
        segments = self.allocator.segments.items()
        return [self.segment(starts[address], size, places) for address, size in segments]

    def segment(self, first: Block, size: int, places: Mapping[int, int]) -> dict[str, Any]:
        """A segment by its first block. places: of entries, by block."""
        blocks = list[dict[str, Any]]()
        block: Block | None = first
        while block is not None:
            place, state = places.get(id(block)), "active_allocated" if block.is_used else "inactive"
            told = {
                "address": block.address,
                "size": block.size,
                "requested_size": block.requested,
                "state": state,
            }
            blocks.append({**told, "frames": [] if place is None else self.frames[place]})
            block = block.next
        used = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
        return {
            "device": 0,
            "address": first.address,
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
