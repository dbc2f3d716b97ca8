"""Runs a timeline of memory through the simulated allocator."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.memory.allocator import Allocator, Block
    from graphflops.report import Timeline

BEFORE = ("weight", "buffer", "input")  # allocated before the first moment
_BUFFERS = ("workspace", "nested", "temporary")  # of a kernel, which takes them after its results
_KEPT = ("library", "optimizer")  # allocated in the first run, to stay
_RUNS = 2  # after the first one an optimizer has its state, which lies where memory was free


class Moment(NamedTuple):
    """What happens at one moment, in order, by places in the timeline.

    kept: taken in the first run, to stay: workspaces of libraries, the state of an optimizer. taken: results, then the
    buffers of kernels. freed: these buffers first.
    """

    kept: list[int]
    taken: list[int]
    freed: list[int]


def moments(timeline: Timeline, sizes: Sequence[int]) -> list[Moment]:
    """What each moment of a run takes and gives back; what outlives the run is given back at its end. sizes: by entry."""
    found = [Moment([], [], []) for _ in timeline.rows]
    buffers: list[int] = []
    for entry, held in enumerate(timeline.held):
        if not sizes[entry] or held.kind in BEFORE:
            continue
        if held.kind in _KEPT:
            found[-1 if held.kind == "optimizer" else held.first].kept.append(entry)
        else:
            if held.first == held.last:
                found[held.last].freed.append(entry)
            if held.kind in _BUFFERS:
                buffers.append(entry)
            else:
                found[held.first].taken.append(entry)
    for entry in buffers:
        found[timeline.held[entry].first].taken.append(entry)
    for entry, held in enumerate(timeline.held):
        if sizes[entry] and held.first != held.last and held.kind not in (*BEFORE, *_KEPT):
            found[held.last].freed.append(entry)
    return found


def replay(timeline: Timeline, sizes: Sequence[int], allocator: Allocator) -> list[int]:
    """Run a timeline until memory is as in every later run; returns the bytes reserved at each moment.

    sizes: bytes by entry of the timeline. Before the last run the cache is emptied, as people do before they measure a run
    (`torch.cuda.empty_cache()`); the allocator's peaks are those of the last run.
    Raises OutOfMemory at the allocator's limit.
    """
    for kind in BEFORE:
        for held, size in zip(timeline.held, sizes, strict=True):
            if held.kind == kind and size:
                allocator.allocate(size)
    order = moments(timeline, sizes)
    blocks: dict[int, Block] = {}
    reserved: list[int] = []
    for run in range(_RUNS):
        allocator.empty_cache()
        allocator.reset_peaks()
        reserved = []
        for kept, taken, freed in order:
            for entry in kept if run == 0 else ():
                allocator.allocate(sizes[entry])
            for entry in taken:
                blocks[entry] = allocator.allocate(sizes[entry])
            reserved.append(allocator.reserved)
            for entry in freed:
                allocator.free(blocks.pop(entry))
    return [*accumulate(reserved, max)]
