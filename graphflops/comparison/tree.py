"""The trees of modules of two programs, and their distinct calls by number: equal modules have equal signatures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

from msgspec import field

from graphflops.base.patterns import ModuleNode, module_at
from graphflops.base.units import is_index
from graphflops.comparison.result import WORK, Figure
from graphflops.comparison.sizes import Renamed
from graphflops.cost import Cost
from graphflops.dims import Dim
from graphflops.report import Report


class ComparedModule(ModuleNode):
    """A module of one program, with what is inside it."""

    kind: str = ""  # the type without its package, which exporters and moves between files change
    rows: list[int] = field(default_factory=list)  # of its own calls in program order
    calls: list[tuple[int, int]] = field(default_factory=list)  # (row, kind) of those that cost something
    first: int | None = None  # the first call inside it, as a row of the report
    mark: Hashable = ()  # the key by which its own calls are compared
    signature: int = -1  # equal for modules that are equal from here down except for their own names
    size: int = 1  # modules from here down; `counts` has their calls
    own: Counts = ()  # its own calls by kind
    counts: Counts = ()
    holds: int = 0  # elements of parameters from here down

    @property
    def numbered(self) -> bool:
        return is_index(self.name)

    def above(self) -> Iterator[ComparedModule]:
        """The modules around this one, the innermost first."""
        module = self.parent
        while module is not None:
            yield module
            module = module.parent


def grown(
    report: Report,
    kinds: Sequence[int | None],
    parameters: Mapping[str, int],
    signatures: dict[Hashable, int],
    mark: Callable[[ComparedModule], Hashable],
) -> ComparedModule:
    """The modules of a report. `signatures` is shared by the programs that are compared."""
    root = ComparedModule("", "", type=report.modules.get("", ""))
    by_path = {"": root}
    for index, (row, kind) in enumerate(zip(report.rows, kinds, strict=True)):
        module = module_at(by_path, row.module, report.modules)
        module.rows.append(index)
        if module.first is None and kind is not None:
            module.first = index
        module.type = module.type or row.module_type
        if kind is not None:
            module.calls.append((index, kind))
    for path, count in parameters.items():
        module_at(by_path, path, report.modules).parameters += count
    for path in report.modules:
        module_at(by_path, path, report.modules)
    for module in reversed([*root.walk()]):
        _finish(module, signatures, mark)
    return root


def _finish(
    module: ComparedModule, signatures: dict[Hashable, int], mark: Callable[[ComparedModule], Hashable]
) -> None:
    """Sorts the submodules of a module in program order and computes its signature from theirs."""
    module.kind = module.type.rpartition(".")[2]
    late = 1 << 60
    parts = sorted(module.children.values(), key=lambda part: late if part.first is None else part.first)
    module.children = {part.name: part for part in parts}
    module.first = min([part.first for part in (*parts, module) if part.first is not None], default=None)
    module.size = 1 + sum(part.size for part in parts)
    module.own = counted(kind for _, kind in module.calls)
    module.counts = together([module.own, *(part.counts for part in parts)]) if parts else module.own
    module.holds = module.parameters + sum(part.holds for part in parts)
    module.mark = mark(module)
    key = (module.mark, module.parameters, *((part.name, part.signature) for part in parts))
    module.signature = signatures.setdefault(key, len(signatures))


_NOTHING = Cost()
Counts = tuple[tuple[int, int], ...]  # calls by kind, in the order of the kinds


class InternedCalls:
    """Numbers for the distinct calls of both programs, and sums of their costs.

    Calls without cost have the number None: an additional view does not change a module.
    """

    def __init__(self, value: Callable[[Dim], int | None]) -> None:
        # By number: whether the cost is unknown, and the costs in joint sizes.
        self.kinds: list[tuple[bool, tuple[Cost, Cost]]] = []
        self._value = value
        self._numbers: dict[Hashable, int] = {}
        self._figures: dict[Hashable, Mapping[str, Figure]] = {}
        self._sums: dict[tuple[Counts, bool], Cost] = {}

    def of(self, report: Report, renamed: Renamed) -> list[int | None]:
        types: dict[int, Hashable] = {}
        costs: dict[int, Cost] = {id(None): _NOTHING}
        numbers: list[int | None] = []
        for row in report.rows:
            if row.state == "free" and not row.cost and not row.backward:
                numbers.append(None)
                continue
            for one in (row.cost, row.backward):
                if one is not None and id(one) not in costs:
                    costs[id(one)] = renamed.cost(one)
            cost, backward = costs[id(row.cost)], costs[id(row.backward)]
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
                self.kinds.append((row.state == "unknown", (cost, backward)))
            numbers.append(number)
        return numbers

    def unknown(self, counts: Counts) -> int:
        return sum(times for number, times in counts if self.kinds[number][0])

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
        return {name: self.figure(getattr(before, name), getattr(after, name)) for name in WORK}

    def figure(self, before: Dim, after: Dim) -> Figure:
        return Figure(before, after, self._value(before), self._value(after))

    def _sum(self, counts: Counts, backward: bool) -> Cost:
        known = self._sums.get((counts, backward))
        if known is None:
            known = Cost.sum(self.kinds[number][1][backward] * times for number, times in counts)
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
