"""The nodes that inductor schedules: pointwise loops, reductions, and calls of libraries."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from graphflops.inductor.splits import split_lengths

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from graphflops.time.kernel import Kernel

# Limits of inductor's config: realize_reads_threshold, realize_acc_reads_threshold, realize_opcount_threshold.
_MOST_READS_OF_SHARED, _MOST_READS, _MOST_OPERATIONS = 4, 8, 30


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor as kernels read it.

    reads: bytes by buffer. operations: instructions for one element, which every kernel that reads the value runs again; a
    stored value has none. slow: how many loads' time the slow ones of these take. is_stored: whether it is one buffer.
    inner, outer: how many of the tensors that it is computed from have their last axis innermost, and how many have not.
    """

    reads: Mapping[str, int]
    operations: int = 0
    slow: int = 0
    is_stored: bool = False
    inner: int = 0
    outer: int = 0

    def is_worth_storing(self, *, is_shared: bool) -> bool:
        """Whether inductor stores it, as it takes many reads or much arithmetic. is_shared: several calls read it."""
        most = _MOST_READS_OF_SHARED if is_shared else _MOST_READS
        return len(self.reads) > most or self.operations > _MOST_OPERATIONS

    @staticmethod
    def of(values: Iterable[Value], operations: int = 0, slow: int = 0) -> Value:
        """A value that is computed from others wherever it is read."""
        reads: dict[str, int] = {}
        inner = outer = 0
        most = slowest = (
            0  # of values that are computed from the same buffers, which share their instructions
        )
        for value in values:
            if value.reads.keys() & reads.keys():
                most, slowest = max(most, value.operations), max(slowest, value.slow)
            else:
                operations, slow, most, slowest = (
                    operations + most,
                    slow + slowest,
                    value.operations,
                    value.slow,
                )
            inner += value.inner
            outer += value.outer
            for buffer, size in value.reads.items():
                reads[buffer] = max(size, reads.get(buffer, 0))
        operations, slow = operations + most, slow + slowest
        return Value(reads, operations, slow, inner=inner, outer=outer)


@dataclass(slots=True)
class Node:
    """One loop, or one call that is not fused.

    results, length: elements of the result, and how many elements each is reduced from; a pointwise loop has length 1.
    is_inner: whether these lie side by side, as a pointwise loop visits them.
    reads, writes: bytes by buffer. depth: kernels that must have run before, at least; nodes of one depth may be fused.
    kernels: those of a call that is not fused, None where they cannot be told. nested: whether graphs run in the call.
    """

    row: int
    results: int
    length: int
    reads: Mapping[str, int]
    writes: Mapping[str, int]
    slow: int = 0
    depth: int = 0
    is_inner: bool = True
    is_fusible: bool = True
    kernels: tuple[Kernel, ...] | None = ()
    call: int | None = None

    def can_join(self, other: Node) -> bool:
        """Whether one kernel can run both: loops over the same elements, or over the rows of a reduction."""
        if not (self.is_fusible and other.is_fusible):
            return False
        if self.length > 1 and other.length > 1:
            return (self.results, self.length) == (other.results, other.length)
        loop, rows = (self, other) if self.length == 1 else (other, self)
        return loop.results == rows.results or (rows.is_inner and loop.results == rows.results * rows.length)


@dataclass(slots=True)
class Recorder:
    """Nodes in program order.

    producers, readers: by buffer, the node that writes it and those that read it. whole: by part of a buffer, the buffer.
    """

    nodes: list[Node] = field(default_factory=list)
    producers: dict[str, int] = field(default_factory=dict)
    whole: dict[str, str] = field(default_factory=dict)
    readers: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def loop(self, row: int, elements: int, value: Value, buffer: str, nbytes: int) -> Value:
        """A pointwise loop that stores a value."""
        return self._add(Node(row, elements, 1, value.reads, {buffer: nbytes}, value.slow))

    def reduction(
        self, row: int, sizes: tuple[int, int], value: Value, buffer: str, *, is_inner: bool
    ) -> Value:
        """A reduction to results of 4 bytes, in several steps where results are few. sizes: results and their length."""
        results, length = sizes
        steps = split_lengths(results, length, is_inner=is_inner)
        for place, (count, reduced) in enumerate(steps):
            name = buffer if place == len(steps) - 1 else f"{buffer}/{place}"
            along = is_inner or place > 0  # parts of a result lie side by side
            node = Node(row, count, reduced, value.reads, {name: 4 * count}, value.slow, is_inner=along)
            value = self._add(node)
        return value

    def own(
        self, row: int, values: Iterable[Value], writes: Mapping[str, int], kernels: tuple[Kernel, ...] | None
    ) -> None:
        """A call with kernels of its own."""
        self._add(Node(row, 0, 0, Value.of(values).reads, writes, is_fusible=False, kernels=kernels))

    def _add(self, node: Node) -> Value:
        for part in node.reads:
            self.readers[self.whole.get(part, part)].append(len(self.nodes))
            place = self.producers.get(self.whole.get(part, part))
            if place is not None:
                before = self.nodes[place]
                node.depth = max(node.depth, before.depth + (not before.can_join(node)))
        self.producers.update(dict.fromkeys(node.writes, len(self.nodes)))
        self.nodes.append(node)
        return Value(node.writes, is_stored=True)

    def part(self, name: str, of: Value, nbytes: int) -> Value:
        """A part of a value, which reads a part of each buffer that this reads."""
        reads = {}
        for buffer, size in of.reads.items():
            own = name if of.is_stored else f"{name}/{buffer}"
            self.whole[own] = self.whole.get(buffer, buffer)
            reads[own] = min(nbytes, size)
        return replace(of, reads=reads)
