"""Work of a device, kernels and exchanges; and what a layer saves for backward: a minimum cut of bytes against seconds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple

from graphflops.base.record import Record
from graphflops.inductor.partition import SINK, SOURCE, Edge, beyond_cut
from graphflops.time.schedule import beside

_STEPS = 24  # prices of a second (in bytes) that are tried, each half the one before


class Tally(NamedTuple):
    """Seconds, FLOPs, and bytes read and written by kernels; NaN where unknown."""

    seconds: float = 0.0
    flops: float = 0.0
    nbytes: float = 0.0

    def plus(self, other: Tally, times: float = 1.0) -> Tally:
        """The sum of this tally and `times` the other."""
        return Tally(*(one + times * more for one, more in zip(self, other, strict=True)))

    def scaled(self, part: Tally, whole: Tally) -> Tally:
        """The tally times the share that `part` is of `whole`."""
        triples = zip(self, part, whole, strict=True)
        return Tally(*(one * (some / all_) if all_ else 0.0 for one, some, all_ in triples))


NOTHING = Tally()


class Work(NamedTuple):
    """Kernels, or a message along axes of the mesh."""

    name: str
    tally: Tally  # a message has seconds only
    axes: tuple[str, ...] = ()  # of a message
    nbytes: int = 0  # of one device's operand of the message
    ring: Work | None = None  # the message that is sent while the kernels run

    @property
    def seconds(self) -> float:
        """Seconds without the ring."""
        return self.tally.seconds

    @property
    def whole(self) -> float:
        """Seconds with the ring beside it."""
        return self.seconds if self.ring is None else beside(self.seconds, self.ring.seconds)

    def again(self, part: Tally, whole: Tally) -> Work:
        """The recomputed work: the share of this work that `part` is of `whole`."""
        ring = None if self.ring is None else self.ring.again(part, whole)
        name, share = self.name if self.axes else "recomputation", part.seconds / whole.seconds
        return Work(name, self.tally.scaled(part, whole), self.axes, int(self.nbytes * share), ring)

    def without(self, others: Work) -> Work:
        """The work without the kernels of another, which run at another time."""
        return self._replace(tally=self.tally.plus(others.tally, -1))


class Block(NamedTuple):
    """A part of a program for one micro-batch, forward or backward."""

    works: tuple[Work, ...]  # in sequence
    sharded: tuple[Work, ...]  # beside them: gathers of sharded weights, and sums of their gradients

    @property
    def seconds(self) -> float:
        """Seconds of both together."""
        return beside(sum([one.whole for one in self.works]), sum([one.seconds for one in self.sharded]))


class Call(Record, frozen=True):
    """A call of a layer."""

    name: str
    done: Tally
    # Of its results and of what else it saves, on one device; None if they cannot be saved by themselves, such as a view's.
    bytes: int | None
    reads: tuple[str, ...]  # the calls of the layer whose results it reads
    is_needed: bool  # the backward reads its results
    leaves: bool  # the next layer reads its results


class Recompute(Record, frozen=True):
    """What one layer saves for backward, and what it recomputes."""

    name: str  # `none`, `full`, or `cut N %`, where N is the recomputed share of the layer's forward
    kept: int  # bytes
    done: Tally = NOTHING  # the recomputed work


def choices(calls: Sequence[Call]) -> list[Recompute]:
    """Ways to recompute a layer, from none to full, each with the fewest saved bytes for its seconds."""
    whole = sum(call.done.seconds for call in calls) or 1.0
    most = sum(call.bytes or 0 for call in calls) / whole
    none = kept_at(calls, {call.name for call in calls if call.is_needed and call.bytes is not None}, "none")
    full = kept_at(calls, (), "full")
    found = {none.kept: none, full.kept: full}
    for step in range(_STEPS):
        # Which calls to recompute if a second is worth `price` bytes. A call has two nodes: 0 on the source's side says that
        # the backward has its results, 1 that the call is recomputed for that.
        price, edges = most * 2.0 ** (8 - step), list[Edge]()
        for call in calls:
            there, here = ((call.name, place) for place in range(2))
            edges.append((there, here, inf if call.bytes is None else call.bytes))
            edges.append((here, SINK, inf if call.leaves else max(int(price * call.done.seconds), 0)))
            edges += [(here, (read, 0), inf) for read in call.reads]
            if call.is_needed or call.leaves:
                edges.append((SOURCE, there, inf))
        beyond = beyond_cut(edges)
        again = {call.name for call in calls if (call.name, 1) not in beyond}
        kept = {call.name for call in calls if call.name not in again and call.bytes is not None}
        one = kept_at(calls, kept, "")
        name = f"cut {100 * one.done.seconds / whole:.0f} %"
        if full.kept < one.kept < none.kept and one.done.seconds < full.done.seconds:
            found.setdefault(one.kept, replace(one, name=name))
    return sorted(found.values(), key=lambda one: -one.kept)


def kept_at(calls: Sequence[Call], kept: Collection[str], name: str) -> Recompute:
    """What is saved and recomputed if the results of `kept` calls may be saved; those that leave the layer always are."""
    by_name = {call.name: call for call in calls}
    used: set[str] = set()
    again: set[str] = set()
    left = [call.name for call in calls if call.is_needed or call.leaves]
    while left:
        call = by_name[left.pop()]
        if call.name in used or call.name in again:
            continue
        if call.bytes is not None and (call.name in kept or call.leaves):
            used.add(call.name)
            continue
        again.add(call.name)
        left += call.reads
    done = Tally(*map(sum, zip(NOTHING, *(by_name[one].done for one in again), strict=True)))
    return Recompute(name, sum(by_name[one].bytes or 0 for one in used), done)
