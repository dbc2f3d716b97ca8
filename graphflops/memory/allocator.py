"""Simulates PyTorch's CUDA caching allocator, and replays a timeline of memory on it: what the device then reserves.

The rules are those of c10/cuda/CUDACachingAllocator.cpp with default settings. The smallest free block that is large enough
serves a request (among equals that of the lowest address); what it has more is split off, and freed blocks are merged with
free neighbours in their segment. If the device has no memory left, unused segments are returned and the request is tried
again. With expandable segments, a pool is one range of addresses that grows by whole pages.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Container, Mapping, Sequence
from itertools import accumulate

from msgspec import Struct

from graphflops.base.record import Record
from graphflops.dims import Expr
from graphflops.report import Held, Timeline

MIB = 2**20
_UNIT = 512  # bytes that sizes are rounded to
_SMALL = MIB  # the largest request that the small pool serves
_SMALL_SEGMENT, _LARGE_SEGMENT = 2 * MIB, 20 * MIB
_OWN_SEGMENT = 10 * MIB  # from this size on, a request gets a segment of its own
_ROUNDED = 2 * MIB
_RANGE = 2**44  # addresses of an expandable segment: more than any device has


class OutOfMemory(Exception):
    """The device has no memory left, even after all unused segments were returned."""


class Block(Struct, eq=False):
    """A part of a segment. requested: bytes that were asked for. is_mapped: False for addresses without memory."""

    address: int
    size: int
    pool: Pool
    previous: Block | None = None
    next: Block | None = None
    requested: int = 0
    is_used: bool = False
    is_mapped: bool = True


class Pool(Struct, eq=False):
    """The free blocks of one size class and stream."""

    is_small: bool
    least: int  # bytes that are split off a block; fewer stay with it
    free: list[tuple[int, int, Block]] = []  # by size and address, the order of best fit
    unmapped: list[Block] = []  # by address

    @property
    def page(self) -> int:
        return _SMALL_SEGMENT if self.is_small else _LARGE_SEGMENT

    def add(self, block: Block) -> None:
        if block.is_mapped:
            insort(self.free, (block.size, block.address, block))
        else:
            insort(self.unmapped, block, key=lambda block: block.address)

    def remove(self, block: Block) -> None:
        if block.is_mapped:
            del self.free[bisect_left(self.free, (block.size, block.address))]
        else:
            self.unmapped.remove(block)


class Allocator:
    """The allocator of one device. limit: bytes that the device has; None for no limit."""

    least = _SMALL + _UNIT  # bytes that are split off a large block

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.top = _SMALL_SEGMENT  # the address of the next segment
        self.pools: dict[tuple[bool, int], Pool] = {}
        self.allocated = self.reserved = 0  # bytes, as in `torch.cuda.memory_stats()`
        self.peak_allocated = self.peak_reserved = 0
        self.segments: dict[int, int] = {}  # bytes by address; empty if segments are expandable

    def reset_peaks(self) -> None:
        self.peak_allocated, self.peak_reserved = self.allocated, self.reserved

    def allocate(self, size: int, stream: int = 0) -> Block:
        """Serve a request of `size` > 0 bytes; raises OutOfMemory."""
        rounded = -(-size // _UNIT) * _UNIT
        is_small = rounded <= _SMALL
        pool = self.pools.get((is_small, stream))
        if pool is None:
            pool = self.pools[is_small, stream] = Pool(is_small, _UNIT if is_small else self.least)
        block = self._best_fit(pool, rounded)
        if block is None:  # it comes from new device memory
            try:
                block = self._taken(pool, rounded)
            except OutOfMemory:
                self.empty_cache()
                block = self._taken(pool, rounded)
        if block.size - rounded >= pool.least:
            self._split(block, rounded)
        block.is_used, block.requested = True, size
        self.allocated += block.size
        if self.allocated > self.peak_allocated:
            self.peak_allocated = self.allocated
        return block

    def free(self, block: Block) -> None:
        """Give a block back to its pool, merged with its free neighbours."""
        self.allocated -= block.size
        block.is_used, block.requested = False, 0
        block.pool.add(self._merged(block))

    def empty_cache(self) -> None:
        """Return all segments without used blocks to the device."""
        for pool in self.pools.values():
            for _, _, block in [*pool.free]:
                if block.previous is None and block.next is None:
                    pool.remove(block)
                    self.reserved -= block.size
                    del self.segments[block.address]

    def cached(self) -> tuple[object, ...]:
        """The segments and their free blocks. If two states are equal, they serve equal requests alike."""
        pools = [(pool.free, pool.unmapped) for pool in self.pools.values()]
        kept = [([entry[:2] for entry in free], [block.address for block in left]) for free, left in pools]
        return (dict(self.segments), kept)

    def _best_fit(self, pool: Pool, size: int) -> Block | None:
        at = bisect_left(pool.free, (size, 0))
        return None if at == len(pool.free) else pool.free.pop(at)[2]

    def _taken(self, pool: Pool, size: int) -> Block:
        taken = _LARGE_SEGMENT if size < _OWN_SEGMENT else -(-size // _ROUNDED) * _ROUNDED
        taken = _SMALL_SEGMENT if pool.is_small else taken
        self._reserve(taken)
        address = self._place(taken)
        self.segments[address] = taken
        return Block(address, taken, pool)

    def _reserve(self, size: int) -> None:
        if self.limit is not None and self.reserved + size > self.limit:
            raise OutOfMemory
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def _place(self, size: int) -> int:
        address = self.top
        self.top += -(-size // _SMALL_SEGMENT) * _SMALL_SEGMENT
        return address

    def _split(self, block: Block, size: int, is_mapped: bool = True) -> None:
        """Split off the rest of a block, which is free."""
        place = block.address + size
        rest = Block(place, block.size - size, block.pool, block, block.next, is_mapped=is_mapped)
        if block.next is not None:
            block.next.previous = rest
        block.next, block.size = rest, size
        block.pool.add(rest)

    def _merged(self, block: Block) -> Block:
        """The block merged with its free neighbours, which leave the pool."""
        for neighbour in (block.previous, block.next):
            if neighbour is None or neighbour.is_used or neighbour.is_mapped != block.is_mapped:
                continue
            block.pool.remove(neighbour)
            block, second = (neighbour, block) if neighbour is block.previous else (block, neighbour)
            block.size += second.size
            block.next = second.next
            if block.next is not None:
                block.next.previous = block
        return block


class ExpandableAllocator(Allocator):
    """The allocator with `expandable_segments:True`: each pool is one range of addresses that is mapped page by page."""

    least = _UNIT

    def _best_fit(self, pool: Pool, size: int) -> Block | None:
        """The free block that is smallest when counted together with the unmapped addresses after it."""
        at = bisect_left(pool.free, (size, 0))
        if at == len(pool.free):
            return None
        found = pool.free[at][2]
        for _, _, other in pool.free[at + 1 :]:
            if _expandable_size(other) >= _expandable_size(found):
                break
            found = other
        pool.remove(found)
        return found

    def _taken(self, pool: Pool, size: int) -> Block:
        """A block that is mapped as far as needed, at the lowest addresses that have room, or else in a new range."""
        for unmapped in pool.unmapped:
            before = unmapped.previous
            block = before if before is not None and not before.is_used else unmapped
            if _room(block) >= size:
                break
        else:
            room = max(_RANGE, -(-size // pool.page) * pool.page)
            block = Block(-(-self._place(room) // pool.page) * pool.page, room, pool, is_mapped=False)
            pool.add(block)
        if not block.is_mapped:
            block = self._map(block, min(block.size, size))
        while block.size < size:
            assert block.next is not None
            block = self._map(block.next, min(size - block.size, block.next.size))
        pool.remove(block)
        return block

    def _map(self, block: Block, size: int) -> Block:
        """Map whole pages at the start of a block; return the free block that contains them."""
        pool = block.pool
        mapped = -(-size // pool.page) * pool.page
        self._reserve(mapped)
        pool.remove(block)
        if mapped < block.size:
            self._split(block, mapped, is_mapped=False)
        block.is_mapped = True
        block = self._merged(block)
        pool.add(block)
        return block

    def empty_cache(self) -> None:
        """Unmap the whole pages of free blocks."""
        for pool in self.pools.values():
            for _, _, block in [*pool.free]:
                first = -(-block.address // pool.page) * pool.page
                last = (block.address + block.size) // pool.page * pool.page
                if first >= last:
                    continue
                pool.remove(block)
                self.reserved -= last - first
                if first > block.address:
                    self._split(block, first - block.address)
                    assert block.next is not None
                    pool.remove(block.next)
                    pool.add(block)
                    block = block.next
                if last < block.address + block.size:
                    self._split(block, last - first)
                block.is_mapped = False
                pool.add(self._merged(block))


def _expandable_size(block: Block) -> int:
    after = block.next
    return block.size + (after.size if after is not None and not after.is_mapped else 0)


def _room(block: Block | None) -> int:
    """Bytes of a free block and of all free blocks that follow it."""
    room = 0
    while block is not None and not block.is_used:
        room, block = room + block.size, block.next
    return room


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
    brief: list[tuple[int, Held]] = []
    for entry, held in enumerate(timeline.held):
        if sizes[entry] and held.kind in _KEPT:
            found[-1 if held.kind == "optimizer" else held.first].kept.append(entry)
        elif sizes[entry] and held.kind not in BEFORE:
            brief.append((entry, held))
    for entry, held in sorted(brief, key=lambda pair: pair[1].kind in _BUFFERS):
        found[held.first].taken.append(entry)
    for entry, held in sorted(brief, key=lambda pair: pair[1].first < pair[1].last):
        found[held.last].freed.append(entry)
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
    for kind in BEFORE:
        for size in [x for held, x in zip(timeline.held, sizes, strict=True) if x and held.kind == kind]:
            allocator.allocate(size)


def _run(
    order: Sequence[Moment], sizes: Sequence[int], allocator: Allocator, is_first: bool,
    spared: Container[int] = (), missed: set[int] | None = None,
) -> list[int]:  # fmt: skip
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
