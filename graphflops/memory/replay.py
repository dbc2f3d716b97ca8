"""Runs a timeline of memory through the simulated allocator, and tells the run as `torch.cuda.memory._snapshot()` does.

pytorch.org/memory_viz draws such a snapshot.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from itertools import accumulate
from typing import Any

from graphflops.base.record import Record
from graphflops.dims import Expr, evaluate_all
from graphflops.errors import ModelError
from graphflops.memory.allocator import Allocator, Block, OutOfMemory
from graphflops.report import LASTING, Held, PhaseMemory, Report, Timeline

OPTIMIZER = -1  # the row of the moment at which the optimizer runs
BEFORE = ("weight", "buffer", "input")  # allocated before the first moment
_BUFFERS = ("workspace", "nested", "temporary")  # of a kernel, which takes them after its results
_KEPT = ("library", "optimizer")  # allocated in the first run, to stay
_REPEATED = 3  # runs after which no run needs more


def without_value(timeline: Timeline, values: Mapping[str, int]) -> str:
    """The first size in bytes held that nothing gives a value, by name."""
    sizes = (held.bytes for held in timeline.held)
    names = {name for size in sizes if isinstance(size, Expr) for name in size.symbols} - {*values}
    return f"the size {min(names)}" if names else "a size"


class Moment(Record, frozen=True):
    """What happens at one moment, in order, by places in the timeline."""

    kept: list[int]  # taken in the first run, to stay: workspaces of libraries, the state of an optimizer
    taken: list[int]  # results, then the buffers of kernels
    freed: list[int]  # these buffers first


def moments(timeline: Timeline, sizes: Sequence[int]) -> list[Moment]:
    """What each moment of a run takes and gives back; what outlives the run is given back at its end. sizes: by entry."""
    found = [Moment([], [], []) for _ in timeline.rows]
    buffers: list[tuple[int, int]] = []
    longer: list[tuple[int, int]] = []
    for entry, (_, kind, first, last, _) in enumerate(timeline.held):
        if not sizes[entry] or kind in BEFORE:
            continue
        if kind in _KEPT:
            found[-1 if kind == "optimizer" else first].kept.append(entry)
            continue
        if first == last:
            found[last].freed.append(entry)
        else:
            longer.append((last, entry))
        if kind in _BUFFERS:
            buffers.append((first, entry))
        else:
            found[first].taken.append(entry)
    for first, entry in buffers:
        found[first].taken.append(entry)
    for last, entry in longer:
        found[last].freed.append(entry)
    return found


def replay(timeline: Timeline, sizes: Sequence[int], allocator: Allocator) -> list[int]:
    """Run a timeline as in every later run; returns the bytes reserved at each moment.

    sizes: bytes by entry of the timeline. Before the run the cache is emptied, as people do before they measure a run
    (`torch.cuda.empty_cache()`); the allocator's peaks are those of this run. The first one, after which an optimizer has
    its state, which lies where memory was free, is run here until all that it leaves is there.
    """
    _load(timeline, sizes, allocator)
    order = moments(timeline, sizes)
    first = order[: max((at for at, moment in enumerate(order, 1) if moment.kept), default=0)]
    freed = {entry for moment in first for entry in moment.freed}
    alive = [entry for moment in first for entry in moment.taken if entry not in freed]
    allocator.empty_cache()
    _run([*first, Moment([], [], alive)], sizes, allocator, True)
    allocator.empty_cache()
    allocator.reset_peaks()
    return [*accumulate(_run(order, sizes, allocator, False), max)]


def repeat(
    timeline: Timeline, sizes: Sequence[int], allocator: Allocator, spared: Container[int] = ()
) -> set[int]:
    """Run a timeline again and again with what the allocator has cached, as programs do, until all further runs are equal.

    spared: entries without which a kernel runs too, if it does not get them. Returns those that were not got.
    Raises OutOfMemory at the allocator's limit.
    """
    _load(timeline, sizes, allocator)
    order = moments(timeline, sizes)
    missed: set[int] = set()
    before = None
    for number in range(_REPEATED):
        _run(order, sizes, allocator, number == 0, spared, missed)
        cached = allocator.cached()
        if cached == before:
            break
        before = cached
    return missed


def _load(timeline: Timeline, sizes: Sequence[int], allocator: Allocator) -> None:
    """Allocate what is there before the first run."""
    pairs = [
        (held.kind, size) for held, size in zip(timeline.held, sizes, strict=True) if held.kind in BEFORE
    ]
    for kind in BEFORE:
        for each, size in pairs:
            if each == kind and size:
                allocator.allocate(size)


def _run(
    order: Sequence[Moment],
    sizes: Sequence[int],
    allocator: Allocator,
    is_first: bool,
    spared: Container[int] = (),
    missed: set[int] | None = None,
) -> list[int]:
    """One run; returns the bytes reserved at each moment. missed: gets the spared entries that were not got."""
    blocks: list[Block | None] = [None] * len(sizes)
    reserved: list[int] = []
    for moment in order:
        for entry in moment.kept if is_first else ():
            allocator.allocate(sizes[entry])
        for entry in moment.taken:
            try:
                blocks[entry] = allocator.allocate(sizes[entry])
            except OutOfMemory:
                if missed is None or entry not in spared:
                    raise
                missed.add(entry)
        reserved.append(allocator.reserved)
        for entry in moment.freed:
            if (block := blocks[entry]) is not None:
                allocator.free(block)
    return reserved


Frames = list[dict[str, Any]]
_SOURCE = re.compile(r"(.{1,4096}?):(\d{1,9})")
_NOWHERE = {"filename": "", "line": 0}


def snapshot(report: Report, entry: PhaseMemory) -> dict[str, Any]:
    """Segments, blocks and events of a run of a phase from an empty allocator on; ModelError where a size is open."""
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
        places = {id(block): place for place, block in self.blocks.items()}
        starts = {block.address: block for block in self.blocks.values()}
        for pool in self.allocator.pools.values():
            starts.update((address, block) for _, address, block in pool.free)
        segments = []
        for address, size in self.allocator.segments.items():
            first, blocks = starts[address], list[dict[str, Any]]()
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
            segments.append(
                {
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
            )
        return segments
