"""Sums the rows of a report by operator, module, source line or any other key.

A model of thousands of calls has a few dozen distinct costs: rows are counted by distinct cost first, and
sums are made of those few, as plain integers wherever every size has a value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from graphflops.base.record import Record
from graphflops.cost import QUANTITIES, Cost
from graphflops.dims import Dim, evaluate, symbol, total
from graphflops.errors import DimError
from graphflops.render.text import Numbers
from graphflops.report import Report, Row, State

_RANKED_AT = 1024  # what a size without a value counts as where groups are ranked


class RowKind(Record, frozen=True):
    """The state and the costs that many rows have in common."""

    state: State
    forward: Cost
    backward: Cost

    @property
    def has_matrix_work(self) -> bool:
        """Whether it has matrix work, or may have some."""
        work = (self.forward.matrix_flops, self.backward.matrix_flops)
        return self.state == "unknown" or any(flops != 0 for flops in work)


Counts = dict[int, int]  # rows by the number of their kind


class Group(Record, frozen=True):
    """Rows added up, with the work of both phases. Sums are integers where every size has a value."""

    calls: int  # how many
    unknown: int  # how many of them
    forward: Cost
    backward: Cost

    @property
    def cost(self) -> Cost:
        """Work of both phases together."""
        return _added([self.forward, self.backward])


class Ledger:
    """The rows of one report, ready to be summed."""

    def __init__(self, report: Report, formula_width: int = 40) -> None:
        self.report = report
        self.sizes = report.values
        self.numbers = Numbers(report.value, formula_width, report.names)
        self.kinds: list[RowKind] = []
        self.of: list[int] = []  # the kind of each row
        by_value: dict[RowKind, int] = {}
        nothing = Cost()
        by_object: dict[tuple[str, str, int, int], int] = {}
        for row in report.rows:
            seen = (row.state, row.phase, id(row.cost), id(row.backward))
            kind = by_object.get(seen)
            if kind is None:
                costs = (
                    (nothing, row.cost) if row.phase == "backward" else (row.cost, row.backward or nothing)
                )
                made = RowKind(row.state, *costs)
                kind = by_object[seen] = by_value.setdefault(made, len(self.kinds))
                if kind == len(self.kinds):
                    self.kinds.append(made)
            self.of.append(kind)
        # Whether there is backward work, in a training analysis or in a joint graph.
        self.phases = report.backward is not None or any(row.phase == "backward" for row in report.rows)
        self._values = [(self._value(kind.forward), self._value(kind.backward)) for kind in self.kinds]

    def counts(self, key: Callable[[Row], str]) -> dict[str, Counts]:
        """Rows by key and kind; keys in the order in which the program meets them."""
        counted = Counter(zip(map(key, self.report.rows), self.of, strict=True))
        groups: dict[str, Counts] = {}
        for (name, kind), times in counted.items():
            groups.setdefault(name, {})[kind] = times
        return groups

    def group(self, counts: Mapping[int, int], times: int = 1) -> Group:
        """Counted rows added up, `times` times."""
        return Group(
            calls=times * sum(counts.values()),
            unknown=times * sum(n for kind, n in counts.items() if self.kinds[kind].state == "unknown"),
            forward=self._sum(counts, times, backward=False),
            backward=self._sum(counts, times, backward=True) if self.phases else Cost(),
        )

    def groups(self, key: Callable[[Row], str]) -> dict[str, Group]:
        """Rows added up by key, the most work first, then the most traffic."""
        made = {name: self.group(counts) for name, counts in self.counts(key).items()}
        return dict(sorted(made.items(), key=lambda item: self.weight(item[1]), reverse=True))

    def rest(self, groups: Iterable[Group]) -> Group:
        """Several groups as one."""
        listed = list(groups)
        return Group(
            calls=sum(group.calls for group in listed),
            unknown=sum(group.unknown for group in listed),
            forward=_added([group.forward for group in listed]),
            backward=_added([group.backward for group in listed]),
        )

    def weight(self, group: Group) -> tuple[int, ...]:
        """The sort key of groups; sizes without a value are all assumed to be equal."""
        cost = group.cost
        return tuple(map(self._rough, (cost.matrix_flops, traffic(cost), cost.vector_flops)))

    def _rough(self, quantity: Dim) -> int:
        value = self.numbers.value(quantity)
        if value is not None or isinstance(quantity, int):
            return value or 0
        return evaluate(quantity, {name: self.sizes.get(name, _RANKED_AT) for name in quantity.symbols}) or 0

    def _value(self, cost: Cost) -> tuple[int | None, ...]:
        return tuple(self.numbers.value(getattr(cost, quantity)) for quantity in QUANTITIES)

    def _sum(self, counts: Mapping[int, int], times: int, *, backward: bool) -> Cost:
        side = "backward" if backward else "forward"
        parts = [
            (getattr(self.kinds[kind], side), self._values[kind][backward], n) for kind, n in counts.items()
        ]
        sums: list[Dim] = []
        for index, quantity in enumerate(QUANTITIES):
            exact = [None if (value := values[index]) is None else n * value for _, values, n in parts]
            known = [each for each in exact if each is not None]
            if len(known) == len(parts):
                sums.append(times * sum(known))
            else:
                sums.append(_total(getattr(cost, quantity) * (n * times) for cost, _, n in parts))
        return Cost(*sums)


def traffic(cost: Cost) -> Dim:
    """Bytes read and written together."""
    return _total((cost.read_bytes, cost.written_bytes))


def _added(costs: Sequence[Cost]) -> Cost:
    return Cost(*(_total(getattr(cost, quantity) for cost in costs) for quantity in QUANTITIES))


def _total(dims: Iterable[Dim]) -> Dim:
    """The sum; in words where its formula grows too large."""
    try:
        return total(dims)
    except DimError:
        return symbol("a formula too large to print")
