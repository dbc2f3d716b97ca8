"""Runs a timeline of memory through the simulated allocator."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from graphflops.memory.allocator import Allocator, Block
    from graphflops.report import Held, Timeline

BEFORE = ("weight", "buffer", "input")  # allocated before the first moment
_KEPT = ("library", "optimizer")  # allocated in the first run, to stay
_RUNS = 2  # after the first one memory is cached, and an optimizer has its state


class Event(NamedTuple):
    """Memory is taken, or given back if is_free. entry: its place in the timeline."""

    entry: int
    is_free: bool
    moment: int


def events(timeline: Timeline, *, is_first: bool) -> Iterator[Event]:
    """What a run takes and gives back, in order; what outlives it is given back at its end.

    At a moment what is kept is taken first, then results are made, then the buffers of kernels, which go first too.
    is_first: take workspaces of libraries at their first use, and the state of an optimizer at its step.
    """
    moments = len(timeline.rows)
    taken: list[list[int]] = [[] for _ in range(moments)]
    brief: list[list[int]] = [[] for _ in range(moments)]
    freed: list[list[int]] = [[] for _ in range(moments)]
    for entry, held in enumerate(timeline.held):
        if held.kind in _KEPT:
            if is_first:
                taken[_first_use(held, moments)].append(entry)
        elif held.kind not in BEFORE:
            (brief if held.first == held.last else taken)[held.first].append(entry)
            if held.first != held.last:
                freed[held.last].append(entry)
    for moment in range(moments):
        yield from (Event(entry, False, moment) for entry in taken[moment])
        yield from (Event(entry, False, moment) for entry in brief[moment])
        yield from (Event(entry, True, moment) for entry in (*brief[moment], *freed[moment]))


def _first_use(held: Held, moments: int) -> int:
    return moments - 1 if held.kind == "optimizer" else held.first


def replay(timeline: Timeline, sizes: Sequence[int], allocator: Allocator) -> list[int]:
    """Run a timeline until memory is as in every later run; returns the bytes reserved at each moment.

    sizes: bytes by entry of the timeline. The allocator's peaks of requested and allocated bytes are those of the last run.
    Raises OutOfMemory at the allocator's limit.
    """
    for kind in BEFORE:
        for held, size in zip(timeline.held, sizes, strict=True):
            if held.kind == kind and size:
                allocator.allocate(size)
    reserved: list[int] = []
    for run in range(_RUNS):
        allocator.reset_peaks()
        reserved = [allocator.reserved] * len(timeline.rows)
        blocks: dict[int, Block] = {}
        for entry, is_free, moment in events(timeline, is_first=run == 0):
            if not sizes[entry]:
                continue
            if is_free:
                allocator.free(blocks.pop(entry))
            else:
                blocks[entry] = allocator.allocate(sizes[entry])
                reserved[moment] = allocator.reserved
    return [*accumulate(reserved, max)]
