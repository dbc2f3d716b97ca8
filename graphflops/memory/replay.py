"""Replays a timeline of memory on the simulated allocator."""

from collections.abc import Container, Mapping, Sequence
from itertools import accumulate

from graphflops.base.record import Record
from graphflops.dims import Expr
from graphflops.memory.allocator import Allocator, Block, OutOfMemory
from graphflops.report import Timeline
from graphflops.tensor import grouped

OPTIMIZER = -1  # the row of the optimizer's moment
BEFORE = ("weight", "buffer", "input")  # allocated before the first moment
_BUFFERS = ("workspace", "nested", "temporary")  # of a kernel, allocated after its results
_KEPT = ("library", "optimizer")  # allocated in the first run and never freed
_REPEATED = 3  # runs after which no further run needs more


def without_value(timeline: Timeline, values: Mapping[str, int]) -> str:
    """Names the first size in the timeline that has no value."""
    sizes = (held.bytes for held in timeline.held)
    names = {name for size in sizes if isinstance(size, Expr) for name in size.symbols} - {*values}
    return f"the size {min(names)}" if names else "a size"


class Moment(Record, frozen=True):
    """What happens at one moment, in order, as places of the timeline's entries."""

    kept: list[int]  # allocated in the first run and never freed: library workspaces, optimizer state
    taken: list[int]  # results, then the buffers of kernels
    freed: list[int]  # those buffers first


def moments(timeline: Timeline, sizes: Sequence[int]) -> list[Moment]:
    """What a run allocates and frees at each moment; what outlives the run is freed at its end. sizes: by entry."""
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
    """Replay a timeline as any run after the first; return the bytes reserved at each moment.

    sizes: bytes by entry. The cache is emptied before the run, as people do before a measurement
    (`torch.cuda.empty_cache()`), and the allocator's peaks are those of this run. The first run leaves optimizer state
    where memory was free, so it is replayed up to the last moment that leaves anything.
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
    """Replay a timeline with what the allocator has cached, as programs do, until further runs are equal.

    spared: entries that a kernel can do without. Returns those of them that could not be allocated.
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
    """Allocate what exists before the first run."""
    given = grouped((held.kind, size) for held, size in zip(timeline.held, sizes, strict=True) if size)
    for kind in BEFORE:
        for size in given.get(kind, ()):  # type: ignore[call-overload]
            allocator.allocate(size)


def _run(
    order: Sequence[Moment],
    sizes: Sequence[int],
    allocator: Allocator,
    is_first: bool,
    spared: Container[int] = (),
    missed: set[int] | None = None,
) -> list[int]:
    """Replay one run; return the bytes reserved at each moment. missed: receives spared entries that failed."""
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
