"""Fuses nodes into kernels: those of one depth that read or write a buffer in common and loop over the same elements."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING

from graphflops.time.kernel import Kernel

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from graphflops.time.inductor.nodes import Node, Recorder

_SHARED = 10  # bytes: less in common is not worth fusing
_MOST_FUSED = 64  # nodes
_LOOP = 2  # time of an element of a loop beside its loads, by that of a load
_INNER, _INNER_LOAD, _OUTER_LOAD = 5.5, 1.1, 2.2  # the same of an element that is reduced, and of its loads


def fused(recorder: Recorder) -> list[list[Node]]:
    """The nodes of each kernel, in the order in which they run."""
    nodes = recorder.nodes
    groups = _Groups(nodes)
    readers: dict[tuple[int, str], list[int]] = defaultdict(list)
    for place, node in enumerate(nodes):
        if not node.is_fusible:
            continue
        for part, size in node.reads.items():
            maker = recorder.producers.get(recorder.whole.get(part, part))
            if maker is not None and nodes[maker].depth == node.depth:
                groups.join(maker, place)
            if size >= _SHARED:
                for other in readers[node.depth, part]:
                    groups.join(other, place)
                readers[node.depth, part].append(place)
    members: dict[int, list[int]] = defaultdict(list)
    for place in range(len(nodes)):
        members[groups.of(place)].append(place)
    ordered = sorted(members.values(), key=partial(_place, recorder=recorder, groups=groups))
    return [[nodes[place] for place in places] for places in ordered]


def _place(places: Sequence[int], recorder: Recorder, groups: _Groups) -> float:
    """Where a kernel runs: after its last node, but before the first node of another kernel that reads its results."""
    own = groups.of(places[0])
    readers = [
        reader - 0.5
        for place in places
        for buffer in recorder.nodes[place].writes
        for reader in recorder.readers.get(buffer, ())
        if groups.of(reader) != own
    ]
    return min(places[-1], *readers) if readers else places[-1]


class _Groups:
    """Groups of nodes that are one kernel. shape: the node of each group that has its reduction, if it has one."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.parent = list(range(len(nodes)))
        self.shape = list(nodes)
        self.count = [1] * len(nodes)

    def of(self, place: int) -> int:
        while self.parent[place] != place:
            self.parent[place] = self.parent[self.parent[place]]
            place = self.parent[place]
        return place

    def join(self, one: int, other: int) -> None:
        one, other = self.of(one), self.of(other)
        if one == other or self.count[one] + self.count[other] > _MOST_FUSED:
            return
        if not self.shape[one].can_join(self.shape[other]):
            return
        self.parent[one] = other
        self.count[other] += self.count[one]
        if self.shape[one].length > 1:
            self.shape[other] = self.shape[one]


def readers_of(groups: Sequence[Sequence[Node]], recorder: Recorder) -> dict[str, set[int]]:
    """By buffer, the kernels that read it."""
    readers: dict[str, set[int]] = defaultdict(set)
    for index, group in enumerate(groups):
        for node in group:
            for part in node.reads:
                readers[recorder.whole.get(part, part)].add(index)
    return readers


def kernel_of(group: Sequence[Node], written: Collection[str], recorder: Recorder) -> Kernel:
    """A fused kernel: it reads what others made, each buffer once, and stores what is read elsewhere."""
    made = {buffer for node in group for buffer in node.writes}
    reads: dict[str, int] = {}
    for part, size in _reads(group):
        if recorder.whole.get(part, part) not in made:
            reads[part] = max(size, reads.get(part, 0))
    stored = sum(size for node in group for buffer, size in node.writes.items() if buffer in written)
    elements = max(node.results * node.length for node in group)
    slow = max(node.slow * node.results * node.length for node in group)
    moved = (sum(reads.values()), stored)
    reductions = [node for node in group if node.length > 1]
    if reductions:
        is_inner = all(node.is_inner for node in reductions)
        return reduction_kernel(elements, len(reads), *moved, slow=slow, is_inner=is_inner)
    return loop_kernel(elements, len(reads), *moved, slow=slow)


def loop_kernel(elements: int, loads: int, read: int, written: int, *, slow: int = 0) -> Kernel:
    """A pointwise kernel. loads: of each element. slow: loads that its slow instructions take as long as."""
    return Kernel(
        "elementwise", "float32", 0, elements * (_LOOP + loads) + slow, read, written, variant="fused"
    )


def reduction_kernel(
    elements: int, loads: int, read: int, written: int, *, slow: int = 0, is_inner: bool = True
) -> Kernel:
    """A kernel that reduces rows; arguments are those of a pointwise one. is_inner: along the innermost axis."""
    each = _INNER + _INNER_LOAD * loads if is_inner else _OUTER_LOAD * loads
    variant = "fused" if is_inner else "fused.outer"
    return Kernel("reduction", "float32", 0, int(elements * each) + slow, read, written, variant=variant)


def _reads(group: Sequence[Node]) -> Iterator[tuple[str, int]]:
    for node in group:
        yield from node.reads.items()
