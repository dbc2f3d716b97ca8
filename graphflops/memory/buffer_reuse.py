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
    most = max(live, default=0)
    sizes = {buffer.name: buffer.size for buffer in buffers}
    instead: dict[str, str] = {}
    free: dict[int, list[tuple[int, str]]] = defaultdict(
        list
    )  # by size: when it became free, and its first name
    ends: dict[int, list[Buffer]] = defaultdict(list)
    taken: set[str] = set()
    place = 0
    for buffer in buffers:
        for position in range(place, buffer.first):
            for gone in ends.pop(position, ()):
                if gone.name not in taken and not gone.is_given:
                    free[gone.size].append((position, instead.get(gone.name, gone.name)))
        place = max(place, buffer.first)
        ends[buffer.last].append(buffer)
        if buffer.is_given:
            continue
        over = next(
            (name for name in buffer.over if sizes.get(name) == buffer.size and name not in taken), None
        )
        if over is not None:
            taken.add(over)
            name = instead[buffer.name] = instead.get(over, over)
            free[buffer.size] = [entry for entry in free[buffer.size] if entry[1] != name]
            continue
        if free[buffer.size] and not buffer.is_fresh:
            since, name = free[buffer.size][-1]
            between = live[since + 1 : buffer.first]
            if buffer.size + max(between, default=0) <= most:
                free[buffer.size].pop()
                live[since + 1 : buffer.first] = [amount + buffer.size for amount in between]
                instead[buffer.name] = name
    return instead


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
