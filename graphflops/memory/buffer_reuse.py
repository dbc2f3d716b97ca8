"""Which buffers inductor uses again: a result is written over an operand, or into a buffer that is free.

A kernel of elementwise calls or reductions writes over an operand that it is the last to read. Other results take the last
buffer of their size that became free, if keeping it until then does not raise the estimated peak of the graph. Inductor
estimates that peak as if nothing were used again.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Buffer(NamedTuple):
    """A tensor that a kernel makes.

    first, last: positions of the calls that make it and that read it last; end, where it outlives the graph, is behind all.
    over: tensors that it may be written over, which its kernel is the last to read. is_given: whether it is there before
    the graph runs; then a result may be written over it, but others do not take its memory later. is_fresh: whether a
    library allocates it, so that it takes no free memory.
    """

    name: str
    size: int
    first: int
    last: int
    over: tuple[str, ...] = ()
    is_given: bool = False
    is_fresh: bool = False


def reused(buffers: Sequence[Buffer], end: int, inside: Mapping[int, int] | None = None) -> dict[str, str]:
    """By tensor that takes another's buffer: the tensor that had it first. buffers: in the order in which they are made.

    inside: by position, bytes that the estimate counts beside the buffers: of tensors that stay inside of a kernel.
    """
    live = _live(buffers, end)
    for position, size in (inside or {}).items():
        live[position] += size
    plan = _Plan(live, {buffer.name: buffer.size for buffer in buffers})
    place = 0
    for buffer in buffers:
        for position in range(place, buffer.first):
            plan.free_at(position)
        place = max(place, buffer.first)
        plan.ends[buffer.last].append(buffer)
        if not buffer.is_given:
            plan.place(buffer)
    return plan.instead


class _Plan:
    """Free buffers while a graph runs. live: estimated bytes by position. instead: by tensor, the first that had its buffer.

    free: by size, the free buffers and the position since which each is free, the last one last. taken: tensors that are
    written over.
    """

    def __init__(self, live: list[int], sizes: Mapping[str, int]) -> None:
        self.live, self.sizes, self.most = live, sizes, max(live, default=0)
        self.instead: dict[str, str] = {}
        self.free: dict[int, dict[str, int]] = defaultdict(dict)
        self.ends: dict[int, list[Buffer]] = defaultdict(list)
        self.taken: set[str] = set()

    def free_at(self, position: int) -> None:
        """Free what is read at a position for the last time."""
        for gone in self.ends.pop(position, ()):
            if gone.name not in self.taken and not gone.is_given:
                free, name = self.free[gone.size], self.instead.get(gone.name, gone.name)
                free.pop(name, None)
                free[name] = position

    def place(self, buffer: Buffer) -> None:
        """Write a tensor over another, or into a buffer that is free, or leave it a buffer of its own."""
        free = self.free[buffer.size]
        over = next(
            (x for x in buffer.over if self.sizes.get(x) == buffer.size and x not in self.taken), None
        )
        if over is not None:
            self.taken.add(over)
            name = self.instead[buffer.name] = self.instead.get(over, over)
            free.pop(name, None)
        elif free and not buffer.is_fresh:
            name, since = next(reversed(free.items()))
            between = self.live[since + 1 : buffer.first]
            if buffer.size + max(between, default=0) <= self.most:
                del free[name]
                self.live[since + 1 : buffer.first] = [amount + buffer.size for amount in between]
                self.instead[buffer.name] = name


def _live(buffers: Sequence[Buffer], end: int) -> list[int]:
    """Bytes alive at each position if no buffer is used again."""
    change = [0] * (end + 2)
    for buffer in buffers:
        change[buffer.first] += buffer.size
        change[min(buffer.last, end) + 1] -= buffer.size
    live, total = [], 0
    for amount in change[: end + 1]:
        total += amount
        live.append(total)
    return live
