"""Runs a timeline of memory through the simulated allocator."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.memory.allocator import Allocator, Block
    from graphflops.report import Timeline

_LASTING = ("weight", "buffer", "input", "library")  # allocated before the first moment
_RUNS = 2  # after the first one memory is cached, and an optimizer has its state


class Event(NamedTuple):
    """Memory is taken (is_free False) or given back. entry: its place in the timeline. moment: -1 before the first."""

    entry: int
    is_free: bool
    moment: int


def events(timeline: Timeline) -> list[Event]:
    """What a run takes and gives back, in order; what outlives it is given back at its end.

    At a moment results are made first, then the buffers of the kernel, then what is no longer needed goes.
    """
    moments = len(timeline.rows)
    taken: list[list[int]] = [[] for _ in range(moments)]
    freed: list[list[int]] = [[] for _ in range(moments)]
    for entry, held in enumerate(timeline.held):
        if held.kind not in (*_LASTING, "optimizer"):
            taken[held.first].append(entry)
            freed[held.last].append(entry)
    order: list[Event] = []
    for moment in range(moments):
        brief = [entry for entry in taken[moment] if timeline.held[entry].last == moment]
        order += [
            Event(entry, False, moment) for entry in taken[moment] if timeline.held[entry].last != moment
        ]
        order += [Event(entry, False, moment) for entry in brief]
        order += [Event(entry, True, moment) for entry in brief]
        order += [
            Event(entry, True, moment) for entry in freed[moment] if timeline.held[entry].first != moment
        ]
    return order


def replay(timeline: Timeline, sizes: Sequence[int], allocator: Allocator) -> list[tuple[int, int]]:
    """Run a timeline until memory is as in every later run; returns the bytes allocated and reserved at each moment.

    sizes: bytes by entry of the timeline. The allocator's peaks of requested and allocated bytes are those of the last run.
    The state of an optimizer is made in the step of the first run. Raises OutOfMemory at the allocator's limit.
    """
    for kind in _LASTING:
        for held, size in zip(timeline.held, sizes, strict=True):
            if held.kind == kind and size:
                allocator.allocate(size)
    order = events(timeline)
    state = [
        size for held, size in zip(timeline.held, sizes, strict=True) if held.kind == "optimizer" and size
    ]
    for _ in range(_RUNS):
        allocator.reset_peaks()
        curve = _run(order, sizes, allocator, len(timeline.rows), state)
        state = []
    return curve


def _run(
    order: Sequence[Event], sizes: Sequence[int], allocator: Allocator, moments: int, state: Sequence[int]
) -> list[tuple[int, int]]:
    """One run; what is alive at its end is given back. state: what is allocated at the last moment, to stay."""
    blocks: dict[int, Block] = {}
    curve = [(0, 0)] * moments
    for event in order:
        if state and event.moment == moments - 1:
            for size in state:
                allocator.allocate(size)
            state = ()
        if not sizes[event.entry]:
            continue
        if event.is_free:
            allocator.free(blocks.pop(event.entry))
        else:
            blocks[event.entry] = allocator.allocate(sizes[event.entry])
            curve[event.moment] = max(curve[event.moment], (allocator.allocated, allocator.reserved))
    return curve
