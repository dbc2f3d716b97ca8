"""Which addresses an allocator takes, block by block: what the sums alone do not show."""

from __future__ import annotations

from graphflops.memory.allocator import MIB, Allocator, Block, ExpandableAllocator


def lengths(allocator: Allocator, *sizes: int) -> list[Block]:
    return [allocator.allocate(size * MIB) for size in sizes]


def test_segments_follow_one_another_at_multiples_of_2_mib() -> None:
    allocator = Allocator()
    first, second, small, third = *lengths(allocator, 21, 5), allocator.allocate(1), allocator.allocate(2**25)
    assert [block.address // MIB for block in (first, second, small, third)] == [2, 24, 44, 46]
    assert allocator.segments == {
        2 * MIB: 22 * MIB,
        24 * MIB: 20 * MIB,
        44 * MIB: 2 * MIB,
        46 * MIB: 32 * MIB,
    }


def test_a_new_allocator_has_nothing() -> None:
    allocator = Allocator()
    assert (allocator.allocated, allocator.reserved) == (0, 0)
    assert (allocator.peak_allocated, allocator.peak_reserved) == (0, 0)


def test_a_free_block_has_no_request() -> None:
    allocator = Allocator()
    block = allocator.allocate(100)
    assert (block.requested, block.is_used) == (100, True)
    allocator.free(block)
    assert (block.requested, block.is_used) == (0, False)


def test_what_is_cached_is_told_by_places_and_sizes() -> None:
    """Two allocators with equal histories have equal caches, of blocks that are not the same objects."""
    found = []
    for _ in range(2):
        allocator = Allocator()
        first, _ = lengths(allocator, 4, 8)
        allocator.free(first)
        found.append(allocator.cached())
    assert found[0] == found[1]
    assert found[0] == ({2 * MIB: 20 * MIB}, [([(4 * MIB, 2 * MIB), (8 * MIB, 14 * MIB)], [])])


def test_of_free_blocks_the_one_that_can_grow_least_is_taken() -> None:
    """Two of 20 MiB are free: one between others, and the last one, behind which there is room to the end of the range."""
    allocator = ExpandableAllocator()
    blocks = lengths(allocator, 20, 20, 20, 20)
    allocator.free(blocks[1])
    allocator.free(blocks[3])
    taken = allocator.allocate(20 * MIB)
    assert taken.address == blocks[1].address
    assert allocator.allocate(20 * MIB).address == blocks[3].address
    assert allocator.reserved == 80 * MIB


def test_a_larger_block_between_others_is_taken_before_one_that_can_grow() -> None:
    """Of 20 MiB with room behind it and 40 without the second one is smaller."""
    allocator = ExpandableAllocator()
    blocks = lengths(allocator, 20, 40, 20, 20)
    allocator.free(blocks[1])
    allocator.free(blocks[3])
    taken = allocator.allocate(10 * MIB)
    assert taken.address == blocks[1].address
    assert allocator.allocate(30 * MIB).address == taken.address + 10 * MIB  # what was left of it
    assert allocator.reserved == 100 * MIB


def test_of_equal_blocks_that_of_the_lowest_address_is_taken() -> None:
    for kind in (Allocator, ExpandableAllocator):
        allocator = kind()
        blocks = lengths(allocator, 20, 20, 20, 20, 20)
        for place in (3, 1):
            allocator.free(blocks[place])
        assert allocator.allocate(20 * MIB).address == blocks[1].address


def test_pages_that_were_unmapped_are_mapped_again_first() -> None:
    """Between two blocks there are 40 MiB of addresses: 60 do not fit, 30 and what is left of its pages do."""
    allocator = ExpandableAllocator()
    first, middle, last = lengths(allocator, 20, 40, 20)
    allocator.free(middle)
    allocator.empty_cache()
    assert allocator.reserved == 40 * MIB
    behind = allocator.allocate(60 * MIB)
    assert behind.address == last.address + 20 * MIB
    between = allocator.allocate(30 * MIB)
    assert between.address == first.address + 20 * MIB
    assert allocator.reserved == (20 + 40 + 20 + 60) * MIB
    assert allocator.allocate(10 * MIB).address == between.address + 30 * MIB
    assert allocator.reserved == 140 * MIB


def test_a_free_block_before_unmapped_pages_grows_into_them() -> None:
    """10 MiB are left of the second page; for 25 one page more is mapped, behind 15 of which 5 are left."""
    allocator = ExpandableAllocator()
    (first,) = lengths(allocator, 30)
    second = allocator.allocate(25 * MIB)
    assert second.address == first.address + 30 * MIB
    assert allocator.reserved == 60 * MIB
    third = allocator.allocate(5 * MIB)
    assert (third.address, allocator.reserved) == (second.address + 25 * MIB, 60 * MIB)


def test_pages_are_kept_that_a_used_block_begins_or_ends_in() -> None:
    allocator = ExpandableAllocator()
    blocks = lengths(
        allocator, 10, 10, 40, 5, 15
    )  # pages of 20: one of two blocks, two of one, and one of two
    for place in (1, 3):
        allocator.free(blocks[place])
    allocator.empty_cache()
    assert allocator.reserved == 80 * MIB
    allocator.free(blocks[2])  # from 10 to 65 MiB: whole pages are those from 20 to 60
    allocator.empty_cache()
    assert allocator.reserved == 40 * MIB
    assert allocator.allocate(10 * MIB).address == blocks[0].address + 10 * MIB
    assert allocator.allocate(5 * MIB).address == blocks[4].address - 5 * MIB
    assert allocator.reserved == 40 * MIB


def test_an_expandable_range_begins_at_a_page() -> None:
    allocator = ExpandableAllocator()
    assert allocator.allocate(20 * MIB).address % (20 * MIB) == 0
    assert allocator.allocate(1).address % (2 * MIB) == 0
    assert allocator.allocate(2**25, stream=1).address % (20 * MIB) == 0
