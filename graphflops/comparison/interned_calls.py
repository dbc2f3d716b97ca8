"""Numbers the distinct calls of two programs: equal calls have equal numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphflops.comparison.result import WORK, Figure
from graphflops.cost import Cost

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping

    from graphflops.comparison.sizes import Renamed
    from graphflops.dims import Dim
    from graphflops.report import Report

_NOTHING = Cost()
Counts = tuple[tuple[int, int], ...]  # calls by kind, in the order of the kinds


@dataclass(frozen=True, slots=True)
class InternedCall:
    """The operator and cost of equal calls; costs are in joint sizes."""

    op: str
    unknown: bool
    cost: Cost
    backward: Cost


class InternedCalls:
    """Numbers for the distinct calls of both programs, and sums of their costs.

    Calls without cost have number None: one view more does not change a module.
    """

    def __init__(self, value: Callable[[Dim], int | None]) -> None:
        self.kinds: list[InternedCall] = []
        self._value = value
        self._numbers: dict[Hashable, int] = {}
        self._figures: dict[Hashable, Mapping[str, Figure]] = {}
        self._sums: dict[tuple[Counts, bool], Cost] = {}

    def of(self, report: Report, renamed: Renamed) -> list[int | None]:
        """The number of each row's kind."""
        types: dict[int, Hashable] = {}
        costs: dict[int, Cost] = {}
        numbers: list[int | None] = []
        for row in report.rows:
            if row.state == "free" and not row.cost and not row.backward:
                numbers.append(None)
                continue
            cost = costs.get(id(row.cost))
            if cost is None:
                cost = costs[id(row.cost)] = renamed.cost(row.cost)
            backward = _NOTHING
            if row.backward is not None:
                known = costs.get(id(row.backward))
                backward = costs[id(row.backward)] = renamed.cost(row.backward) if known is None else known
            tensors = []
            for _, type_ in (*row.inputs, *row.outputs):
                seen = types.get(id(type_))
                if seen is None:
                    seen = types[id(type_)] = (*map(renamed, type_.shape), type_.dtype)
                tensors.append(seen)
            what = (row.op, row.state, row.phase, row.matrix_dtype, len(row.inputs))
            key = (what, cost, backward, renamed(row.times), *tensors)
            number = self._numbers.setdefault(key, len(self.kinds))
            if number == len(self.kinds):
                self.kinds.append(InternedCall(row.op, row.state == "unknown", cost, backward))
            numbers.append(number)
        return numbers

    def unknown(self, counts: Counts) -> int:
        """How many of these calls have no known cost."""
        return sum(times for number, times in counts if self.kinds[number].unknown)

    def figures(
        self, before: Counts, after: Counts, parameters: tuple[int, int] | None, *, backward: bool = False
    ) -> Mapping[str, Figure]:
        """The work of these calls before and after, and parameters where they are given."""
        key = (before, after, parameters, backward)
        found = self._figures.get(key)
        if found is None:
            found = self.compared(self._sum(before, backward), self._sum(after, backward))
            if parameters is not None:
                found = {**found, "parameters": self.figure(*parameters)}
            self._figures[key] = found
        return found

    def compared(self, before: Cost, after: Cost) -> Mapping[str, Figure]:
        """The work of two costs in joint sizes, side by side."""
        return {name: self.figure(getattr(before, name), getattr(after, name)) for name in WORK}

    def figure(self, before: Dim, after: Dim) -> Figure:
        """One quantity, in joint sizes, side by side."""
        return Figure(before, after, self._value(before), self._value(after))

    def _sum(self, counts: Counts, backward: bool) -> Cost:
        known = self._sums.get((counts, backward))
        if known is None:
            kinds = ((self.kinds[number], times) for number, times in counts)
            known = Cost.sum((kind.backward if backward else kind.cost) * times for kind, times in kinds)
            self._sums[counts, backward] = known
        return known


def counted(numbers: Iterable[int | None]) -> Counts:
    """How many calls of each kind there are."""
    return tuple(sorted(Counter(number for number in numbers if number is not None).items()))


def together(counts: Iterable[Counts]) -> Counts:
    """Several counts as one."""
    total: Counter[int] = Counter()
    for part in counts:
        total.update(dict(part))
    return tuple(sorted(total.items()))
