"""Runs a timeline of memory through the simulated allocator."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from graphflops.memory.allocator import OutOfMemory

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from graphflops.memory.allocator import Allocator, Block
    from graphflops.report import Timeline

BEFORE = ("weight", "buffer", "input")  # allocated before the first moment
_BUFFERS = ("workspace", "nested", "temporary")  # of a kernel, which takes them after its results
_KEPT = ("library", "optimizer")  # allocated in the first run, to stay
_RUNS = 2  # after the first one an optimizer has its state, which lies where memory was free
_REPEATED = 3  # runs after which no run needs more


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
    """
    _load(timeline, sizes, allocator)
    order = moments(timeline, sizes)
    reserved: list[int] = []
    for number in range(_RUNS):
        allocator.empty_cache()
        allocator.reset_peaks()
        reserved = _run(order, sizes, allocator, number == 0)
    return [*accumulate(reserved, max)]


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
    for kind in BEFORE:
        for held, size in zip(timeline.held, sizes, strict=True):
            if held.kind == kind and size:
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
    for kept, taken, freed in order:
        for entry in kept if is_first else ():
            allocator.allocate(sizes[entry])
        for entry in taken:
            try:
                blocks[entry] = allocator.allocate(sizes[entry])
            except OutOfMemory:
                if missed is None or entry not in spared:
                    raise
                missed.add(entry)
        reserved.append(allocator.reserved)
        for entry in freed:
            if (block := blocks[entry]) is not None:
                allocator.free(block)
    return reserved
