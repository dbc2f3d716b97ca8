"""Which results of a layer are kept for its gradients, and which are computed again: a cut of bytes against seconds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import inf

from graphflops.inductor.partition import SINK, SOURCE, Edge, beyond_cut
from graphflops.planning.blocks import NOTHING, Tally

_STEPS = 24  # prices of a second that are tried, each double the one before
_PERCENT = 100


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a layer."""

    name: str
    seconds: float
    # Of its results, and of what it keeps beside them, on one device; None where they cannot be kept alone, as those of a
    # view.
    bytes: int | None
    reads: tuple[str, ...]  # the calls of the layer whose results it reads
    is_needed: bool  # gradients read its results
    leaves: bool  # the next layer reads them
    tally: Tally = NOTHING


@dataclass(frozen=True, slots=True)
class Recompute:
    """What one layer keeps, and what of its forward runs again."""

    name: str  # `none`, `full`, or `cut N %`, the part of the layer's forward that runs again
    kept: int
    seconds: float  # of its forward that run again
    again: frozenset[str] = frozenset()  # the calls that do
    tally: Tally = NOTHING  # theirs


def choices(calls: Sequence[Call]) -> list[Recompute]:
    """Ways to recompute a layer, from none to full, each with the fewest bytes for its seconds."""
    whole = sum(call.seconds for call in calls) or 1.0
    most = sum(call.bytes or 0 for call in calls) / whole
    none = kept_at(calls, {call.name for call in calls if call.is_needed and call.bytes is not None}, "none")
    full = kept_at(calls, (), "full")
    found = {none.kept: none, full.kept: full}
    for step in range(_STEPS):
        again = _cut(calls, most * 2.0 ** (8 - step))
        one = kept_at(
            calls, {call.name for call in calls if call.name not in again and call.bytes is not None}, ""
        )
        name = f"cut {_PERCENT * one.seconds / whole:.0f} %"
        if full.kept < one.kept < none.kept and one.seconds < full.seconds:
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
    seconds = sum(by_name[one].seconds for one in again)
    tally = Tally(*(sum(by_name[one].tally[at] for one in again) for at in range(2)))
    return Recompute(name, sum(by_name[one].bytes or 0 for one in used), seconds, frozenset(again), tally)


def _cut(calls: Sequence[Call], price: float) -> Collection[str]:
    """The calls that run again where a second costs so many bytes.

    Each call has two nodes: its results are there for the gradients, and it runs again. On the source's side both hold.
    """
    edges: list[Edge] = []
    for call in calls:
        there, again = ((call.name, place) for place in range(2))
        edges.append((there, again, inf if call.bytes is None else call.bytes))
        edges.append((again, SINK, inf if call.leaves else max(int(price * call.seconds), 0)))
        edges += [(again, (read, 0), inf) for read in call.reads]
        if call.is_needed or call.leaves:
            edges.append((SOURCE, there, inf))
    beyond = beyond_cut(edges)
    return {call.name for call in calls if (call.name, 1) not in beyond}
