"""The simulated CUDA caching allocator, by the rules of c10/cuda/CUDACachingAllocator.cpp."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from graphflops.memory.allocator import MIB, Allocator, Block, ExpandableAllocator, OutOfMemory


def test_sizes_are_rounded_to_512_bytes() -> None:
    allocator = Allocator()
    blocks = [allocator.allocate(size) for size in (1, 513)]
    assert ([block.requested for block in blocks], allocator.allocated) == ([1, 513], 512 + 1024)


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (21 * MIB, 22 * MIB),
    ],
)
def test_a_request_gets_a_segment_of_its_class(size: int, segment: int) -> None:
    allocator = Allocator()
    allocator.allocate(size)
    assert allocator.reserved == segment


def test_the_large_pool_splits_only_remainders_of_more_than_1_mib() -> None:
    allocator = Allocator()
    whole = allocator.allocate(21 * MIB)  # of 22 MiB: 1 MiB is left, which stays with the block
    assert allocator.allocated == 22 * MIB
    allocator.free(whole)
    allocator.allocate(20 * MIB)  # of the same 22 MiB: 2 MiB are split off
    assert allocator.allocated == 20 * MIB
    assert allocator.reserved == 22 * MIB


def test_the_smallest_block_that_suffices_is_taken() -> None:
    allocator = Allocator()
    blocks = [allocator.allocate(size * MIB) for size in (40, 30, 50)]
    for block in blocks:
        allocator.free(block)
    assert allocator.allocate(29 * MIB).address == blocks[1].address
    assert allocator.reserved == 120 * MIB


def test_freed_neighbours_are_merged() -> None:
    allocator = Allocator()
    first, second = allocator.allocate(6 * MIB), allocator.allocate(6 * MIB)
    allocator.free(first)
    allocator.free(second)
    allocator.allocate(9 * MIB)
    allocator.allocate(9 * MIB)
    assert allocator.reserved == 20 * MIB


def test_streams_share_no_blocks() -> None:
    allocator = Allocator()
    allocator.free(allocator.allocate(4 * MIB, stream=1))
    allocator.allocate(4 * MIB, stream=2)
    assert allocator.reserved == 40 * MIB


def test_unused_segments_are_returned_before_memory_runs_out() -> None:
    allocator = Allocator(limit=100 * MIB)
    allocator.free(allocator.allocate(60 * MIB))
    allocator.allocate(80 * MIB)
    assert allocator.reserved == 80 * MIB
    assert allocator.peak_reserved == 80 * MIB
    with pytest.raises(OutOfMemory):
        allocator.allocate(30 * MIB)


def test_an_expandable_segment_grows_by_pages() -> None:
    allocator = ExpandableAllocator()
    first = allocator.allocate(30 * MIB)
    assert allocator.reserved == 40 * MIB
    allocator.free(first)
    allocator.allocate(50 * MIB)  # the 40 MiB that are mapped and one page more
    assert allocator.reserved == 60 * MIB
    allocator.allocate(MIB)
    assert allocator.reserved == 62 * MIB


@pytest.mark.parametrize("kind", [Allocator, ExpandableAllocator])
def test_nothing_stays_when_all_is_freed(kind: type[Allocator]) -> None:
    allocator = kind()
    sizes = [512 * (7 * index % 5000 + 1) for index in range(2000)]
    blocks = [allocator.allocate(size) for size in sizes]
    assert allocator.allocated >= sum(sizes)
    for block in [*blocks[::3], *blocks[1::3], *blocks[2::3]]:
        allocator.free(block)
    assert allocator.allocated == sum(block.requested for block in blocks) == 0
    allocator.empty_cache()
    assert allocator.reserved == 0


def test_an_expandable_segment_is_as_long_as_its_largest_request() -> None:
    allocator = ExpandableAllocator()
    allocator.allocate(2**50)
    assert allocator.reserved == -(-(2**50) // (20 * MIB)) * 20 * MIB


def linked(block: Block) -> list[Block]:
    """A block with its neighbours, from the first address on."""
    while block.previous is not None:
        block = block.previous
    found = [block]
    while found[-1].next is not None:
        found.append(found[-1].next)
    return found


@pytest.mark.parametrize("kind", [Allocator, ExpandableAllocator])
@pytest.mark.parametrize("seed", range(3))
def test_addresses_and_sums_hold_after_any_requests(kind: type[Allocator], seed: int) -> None:
    """Blocks follow one another, free neighbours are one, every sum is that of the blocks, and peaks are the most so far."""
    choose = random.Random(seed)
    allocator, used = kind(), []
    most = (0, 0)
    for turn in range(400):
        if used and choose.random() < 0.48:
            allocator.free(used.pop(choose.randrange(len(used))))
        else:
            size = choose.choice((1, 600, 300_000, MIB, MIB + 1, 3 * MIB, 11 * MIB, 21 * MIB + 5, 47 * MIB))
            used.append(allocator.allocate(size, stream=choose.randrange(2)))
        if turn % 100 == 99:
            allocator.empty_cache()
        assert allocator.allocated == sum(block.size for block in used)
        most = (max(most[0], allocator.allocated), max(most[1], allocator.reserved))
        free = [block for pool in allocator.pools.values() for _, _, block in pool.free]
        blocks = {id(block): block for start in (*used, *free) for block in linked(start)}
        mapped = sum(block.size for block in blocks.values() if block.is_mapped)
        assert mapped == allocator.reserved
        assert kind is ExpandableAllocator or mapped == sum(allocator.segments.values())
        for block in blocks.values():
            after = block.next
            if after is not None:
                assert (after.previous, after.address) == (block, block.address + block.size)
                assert block.is_used or after.is_used or block.is_mapped != after.is_mapped
            entry = (block.size, block.address, block)
            assert block.is_used or not block.is_mapped or entry in block.pool.free
        spans = sorted((block.address, block.size) for block in blocks.values() if block.is_mapped)
        assert all(a + size <= b for (a, size), (b, _) in pairwise(spans))
        for pool in allocator.pools.values():
            assert pool.free == sorted((block.size, block.address, block) for _, _, block in pool.free)
    assert (allocator.peak_allocated, allocator.peak_reserved) >= most
    allocator.reset_peaks()
    assert (allocator.peak_allocated, allocator.peak_reserved) == (allocator.allocated, allocator.reserved)


def test_pages_in_the_middle_of_a_free_block_are_unmapped() -> None:
    allocator = ExpandableAllocator()
    first, middle, last = (allocator.allocate(size * MIB) for size in (30, 60, 30))
    assert allocator.reserved == 120 * MIB
    allocator.free(middle)  # from 30 to 90 MiB: whole pages are those from 40 to 80
    allocator.empty_cache()
    assert allocator.reserved == 80 * MIB
    again = allocator.allocate(60 * MIB)
    assert (again.address - first.address, allocator.reserved) == (30 * MIB, 120 * MIB)
    assert last.address - first.address == 90 * MIB
    small = allocator.allocate(700_000)
    assert allocator.reserved == 122 * MIB
    allocator.free(small)
    allocator.empty_cache()
    assert allocator.reserved == 120 * MIB
