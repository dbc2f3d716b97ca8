"""What a device runs of a part of a program: kernels and exchanges one after the other, and collectives beside them.

Which results of a layer are kept for its gradients, and which are computed again: a cut of bytes against seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple

from graphflops.base.record import Record
from graphflops.inductor.partition import SINK, SOURCE, Edge, beyond_cut
from graphflops.time.schedule import beside

_STEPS = 24  # prices of a second that are tried, each double the one before
_PERCENT = 100


class Tally(NamedTuple):
    """What kernels take, products and others: seconds, FLOPs, and bytes that they read and write; NaN where not known."""

    seconds: float = 0.0
    flops: float = 0.0
    nbytes: float = 0.0

    def plus(self, other: Tally, times: float = 1.0) -> Tally:
        """Both, the other so many times."""
        return Tally(*(one + times * more for one, more in zip(self, other, strict=True)))

    def scaled(self, part: Tally, whole: Tally) -> Tally:
        """As much of it as a part is of a whole."""
        triples = zip(self, part, whole, strict=True)
        return Tally(*(one * (some / all_) if all_ else 0.0 for one, some, all_ in triples))


NOTHING = Tally()


class Work(NamedTuple):
    """Kernels, or what is sent along axes of the mesh."""

    name: str
    tally: Tally  # of what is sent the seconds
    axes: tuple[str, ...] = ()
    nbytes: int = 0  # of a device's operand
    ring: Work | None = None  # what is sent while they run

    @property
    def seconds(self) -> float:
        """Seconds of it alone."""
        return self.tally.seconds

    @property
    def whole(self) -> float:
        """Seconds of all of it."""
        return self.seconds if self.ring is None else beside(self.seconds, self.ring.seconds)

    def again(self, part: Tally, whole: Tally) -> Work:
        """So much of it once more as a part is of a whole."""
        ring = None if self.ring is None else self.ring.again(part, whole)
        name, share = self.name if self.axes else "recomputation", part.seconds / whole.seconds
        return Work(name, self.tally.scaled(part, whole), self.axes, int(self.nbytes * share), ring)

    def without(self, others: Work) -> Work:
        """What is left where some of its kernels run at another time."""
        return self._replace(tally=self.tally.plus(others.tally, -1))


class Block(NamedTuple):
    """A part of a program for one micro-batch, forward or backward."""

    works: tuple[Work, ...]  # one after the other
    sharded: tuple[Work, ...]  # gathers of weights and sums of their gradients, beside all of them

    @property
    def seconds(self) -> float:
        """Seconds of all of it."""
        return beside(sum([one.whole for one in self.works]), sum([one.seconds for one in self.sharded]))


class Call(Record, frozen=True):
    """A call of a layer."""

    name: str
    done: Tally
    # Of its results, and of what it keeps beside them, on one device; None where they cannot be kept alone, as those of a
    # view.
    bytes: int | None
    reads: tuple[str, ...]  # the calls of the layer whose results it reads
    is_needed: bool  # gradients read its results
    leaves: bool  # the next layer reads them


class Recompute(Record, frozen=True):
    """What one layer keeps, and what of its forward runs again."""

    name: str  # `none`, `full`, or `cut N %`, the part of the layer's forward that runs again
    kept: int
    done: Tally = NOTHING  # of its forward that run again
    again: frozenset[str] = frozenset()  # the calls that do


def choices(calls: Sequence[Call]) -> list[Recompute]:
    """Ways to recompute a layer, from none to full, each with the fewest bytes for its seconds."""
    whole = sum(call.done.seconds for call in calls) or 1.0
    most = sum(call.bytes or 0 for call in calls) / whole
    none = kept_at(calls, {call.name for call in calls if call.is_needed and call.bytes is not None}, "none")
    full = kept_at(calls, (), "full")
    found = {none.kept: none, full.kept: full}
    for step in range(_STEPS):
        # The calls that run again where a second costs so many bytes. Each call has two nodes: its results are there for
        # the gradients, and it runs again. On the source's side both hold.
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
        name = f"cut {_PERCENT * one.done.seconds / whole:.0f} %"
        if full.kept < one.kept < none.kept and one.done.seconds < full.done.seconds:
            found.setdefault(one.kept, replace(one, name=name))
    return sorted(found.values(), key=lambda one: -one.kept)


def kept_at(calls: Sequence[Call], kept: Collection[str], name: str) -> Recompute:
    """What is kept and computed again where results of these calls may be kept; those that leave the layer always are."""
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
    return Recompute(name, sum(by_name[one].bytes or 0 for one in used), done, frozenset(again))
