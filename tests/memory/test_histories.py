"""The simulated allocator against histories that PyTorch recorded on a GPU: all addresses, segments and statistics."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from graphflops.memory.allocator import Allocator, Block, ExpandableAllocator

RECORDED: dict[str, Any] = json.loads(
    gzip.decompress((Path(__file__).parent / "data/histories.json.gz").read_bytes())
)


def statistics(allocator: Allocator) -> list[int]:
    return [
        *(allocator.allocated, allocator.peak_allocated),
        *(allocator.reserved, allocator.peak_reserved),
    ]


@pytest.mark.parametrize("history", RECORDED["histories"], ids=lambda history: history["program"])
def test_every_event_of_a_recorded_run(history: Any) -> None:
    events = history["events"]
    marks = {place: found for _, place, (_requested, _most_requested, *found) in history["marks"]}
    segments = iter([(address, size) for action, address, size in events if action == "s"])

    class Placed(Allocator):
        def _place(self, size: int) -> int:
            address, recorded = next(segments)
            assert size == recorded
            return int(address)

    limit = history["limit"]
    allocator = ExpandableAllocator(limit) if history["expandable"] else Placed(limit)
    blocks: dict[int, Block] = {}
    for index, (action, address, size) in enumerate(events):
        if index in marks:
            assert statistics(allocator) == marks.pop(index)
        if action == "a":
            block = blocks[address] = allocator.allocate(size)
            assert history["expandable"] or block.address == address
        elif action == "f":
            allocator.free(blocks.pop(address))
        elif action == "r" and limit is None and events[index - 1][0] != "r":
            allocator.empty_cache()  # below a limit the allocator returns segments by itself
    assert statistics(allocator) == marks.pop(len(events))
    assert not marks
    assert next(segments, None) is None
