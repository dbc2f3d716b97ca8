"""What activation checkpointing costs: work that is done again, and activations that are kept only while it is.

`torch.utils.checkpoint` keeps what goes into a checkpoint. When the first gradient needs a value from inside, it runs the
calls again up to the last one that keeps a value for its gradient; these values are then kept until they are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from graphflops.passes.program import PricedCall
    from graphflops.report import Row


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Calls first to last of a graph; those before `end` run again.

    saved: by value that gradients read, the first call whose gradient does.
    """

    first: int
    last: int
    end: int
    saved: Mapping[str, int]


def checkpoints(
    calls: Sequence[PricedCall],
    marks: Mapping[str, int],
    kept_by: Callable[[PricedCall], tuple[Sequence[str], Sequence[str]]],
) -> list[Checkpoint]:
    """The checkpoints of a graph. marks: number of its checkpoint by name of a call.

    kept_by: the values among operands and results that a call keeps for its gradient, by the names of their memory;
    "" for memory of its own.
    """
    found = []
    for places in _together(calls, marks):
        saved: dict[str, int] = {}
        end = places[0]
        for place in places:
            operands, results = kept_by(calls[place])
            if results:
                end = place + 1
            elif operands:
                end = place
            for name in (*operands, *results):
                saved.setdefault(name, place)
        found.append(Checkpoint(places[0], places[-1], end, saved))
    return found


def _together(calls: Sequence[PricedCall], marks: Mapping[str, int]) -> Iterator[list[int]]:
    """Positions of the calls of each checkpoint."""
    groups: dict[int, list[int]] = {}
    for place, call in enumerate(calls):
        if call.node.name in marks:
            groups.setdefault(marks[call.node.name], []).append(place)
    yield from groups.values()


def gradient_checkpoints(calls: Sequence[PricedCall], marks: Mapping[str, int]) -> list[Checkpoint]:
    """The checkpoints of a graph, by what the gradients of its calls read, wherever in memory that lies."""
    return checkpoints(calls, marks, _kept) if marks else []


def add_recomputation(calls: Sequence[PricedCall], rows: list[Row], marks: Mapping[str, int]) -> None:
    """Add the work that checkpoints do again to the gradients of the calls that do it."""
    ends = [call.row for call in calls[1:]] + [len(rows)]
    for checkpoint in gradient_checkpoints(calls, marks):
        for place in range(checkpoint.first, checkpoint.end):
            for row in range(calls[place].row, ends[place]):
                own = rows[row]
                again = own.cost if own.backward is None else own.backward + own.cost
                rows[row] = own._replace(backward=again)


def _kept(call: PricedCall) -> tuple[Sequence[str], Sequence[str]]:
    """Positions, as texts, of what a call keeps for its gradient."""
    if call.gradient is None:
        return (), ()
    gradient = call.gradient
    own = [""] if gradient.beside else []
    return [str(place) for place in gradient.operands], [*(str(place) for place in gradient.results), *own]
