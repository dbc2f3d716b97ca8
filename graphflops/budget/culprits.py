"""The largest contributions to a figure, or to its growth: groups of calls, or modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from graphflops.budget.measure import TOP, unnumbered
from graphflops.cost import QUANTITIES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from graphflops.budget.baseline import Before
    from graphflops.budget.measure import Figure, Measures

_NOTHING: Mapping[str, Figure] = {}


class Culprit(NamedTuple):
    """A group of calls, or a module: its part of a figure and the source line of most of its calls."""

    name: str
    op: str
    calls: int
    amount: int
    source: str


def culprits(measures: Measures, path: str, quantity: str, before: Before | None = None) -> list[Culprit]:
    """The contributions to a quantity of the model or of the module at `path`; with `before`, to its growth."""
    if quantity == "parameters":
        found = _holders(measures, path, before)
    elif quantity in (*QUANTITIES, "macs"):
        found = _callers(measures, path, quantity, before)
    else:
        return []
    return sorted((culprit for culprit in found if culprit.amount > 0), key=lambda culprit: -culprit.amount)


def _callers(measures: Measures, path: str, quantity: str, before: Before | None) -> Iterator[Culprit]:
    stored, of_each = ("matrix_flops", 2) if quantity == "macs" else (quantity, 1)
    for line in measures.lines_in(path):
        then = before.lines.get(line.name, _NOTHING).get(stored, 0) if before else 0
        now = measures.figure(getattr(line.group.cost, stored))
        if isinstance(now, int) and isinstance(then, int):
            amount = (now - then) // of_each
            yield Culprit(line.module or TOP, line.op, line.group.calls, amount, line.source)


def _holders(measures: Measures, path: str, before: Before | None) -> Iterator[Culprit]:
    sources = {line.module: line.source for line in reversed(measures.lines)}
    for module, count in measures.parameters_in(path).items():
        then = before.lines.get(module or TOP, _NOTHING).get("parameters", 0) if before else 0
        if isinstance(then, int):
            yield Culprit(module or TOP, "", 0, count - then, sources.get(unnumbered(module), ""))
