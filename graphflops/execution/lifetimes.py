"""How long Python holds tensors, and that as a run recorded it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphflops.graph import EagerRun
    from graphflops.passes.program import PricedCall


class Lifetimes(NamedTuple):
    """What Python holds.

    until: for each tensor that it refers to past its last use, the position of the last call during which it does; keys are
    owners of memory. assumed: those of which the lines do not say it.
    """

    until: Mapping[str, int]
    assumed: frozenset[str]


def recorded(calls: Sequence[PricedCall], eager: EagerRun) -> Lifetimes:
    """How long Python refers to each tensor, as a run recorded it; what it did not make goes after its last use."""
    made = {name: place for place, call in enumerate(calls) for name in call.node.outputs if name is not None}
    latest, last = [], -1  # by value of the record: the latest call that has run when it is made
    for name in eager.values:
        last = max(last, made.get(name, last))
        latest.append(last)
    held = {name: latest[until] for name, until in zip(eager.values, eager.until, strict=True) if until >= 0}
    return Lifetimes({name: until for name, until in held.items() if name in made}, frozenset())
