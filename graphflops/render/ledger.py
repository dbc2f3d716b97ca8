"""Sums of a report's rows by any key, counted by distinct cost; its modules as a tree, equal siblings as one line."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from math import inf
from typing import NamedTuple

from graphflops.base.patterns import ModuleNode, module_at
from graphflops.base.record import Record, field
from graphflops.base.units import is_index, spans
from graphflops.cost import QUANTITIES, Cost
from graphflops.dims import Dim, evaluate, symbol, total
from graphflops.errors import DimError
from graphflops.render.text import Numbers, short_type
from graphflops.report import Report, Row, State

_RANKED_AT = 1024  # assumed for sizes without a value where groups are ranked


class RowKind(Record, frozen=True):
    """The state and the costs that many rows have in common."""

    state: State
    forward: Cost
    backward: Cost


Counts = dict[int, int]  # rows by the number of their kind


class Group(Record, frozen=True, dict=True):
    """Rows added up, with the work of both phases. Sums are integers where every size has a value."""

    calls: int  # how many
    unknown: int  # how many of them
    forward: Cost
    backward: Cost

    @cached_property
    def cost(self) -> Cost:
        sides = (self.forward, self.backward)
        return Cost(*(_total(getattr(cost, quantity) for cost in sides) for quantity in QUANTITIES))


class Ledger:
    """The rows of one report, ready to be summed."""

    def __init__(self, report: Report, formula_width: int = 40) -> None:
        self.report = report
        self._ranked_at = defaultdict(lambda: _RANKED_AT, report.values)
        self.numbers = Numbers(report.value, formula_width, report.names)
        self.of: list[int] = []  # the kind of each row
        by_value: dict[RowKind, int] = {}
        nothing = Cost()
        by_object: dict[tuple[str, str, int, int], int] = {}
        for row in report.rows:
            seen = (row.state, row.phase, id(row.cost), id(row.backward))
            kind = by_object.get(seen)
            if kind is None:
                is_backward = row.phase == "backward"
                costs = (nothing, row.cost) if is_backward else (row.cost, row.backward or nothing)
                kind = by_object[seen] = by_value.setdefault(RowKind(row.state, *costs), len(by_value))
            self.of.append(kind)
        self.kinds = [*by_value]
        self.phases = report.backward is not None or any(row.phase == "backward" for row in report.rows)
        value = self.numbers.value
        self._values = [
            [[value(getattr(cost, name)) for name in QUANTITIES] for cost in (kind.forward, kind.backward)]
            for kind in self.kinds
        ]

    def counts(self, key: Callable[[Row], str]) -> dict[str, Counts]:
        """Rows by key and kind; keys in the order of the program."""
        counted = Counter(zip(map(key, self.report.rows), self.of, strict=True))
        groups: dict[str, Counts] = {}
        for (name, kind), times in counted.items():
            groups.setdefault(name, {})[kind] = times
        return groups

    def group(self, counts: Mapping[int, int], times: int = 1) -> Group:
        return Group(
            calls=times * sum(counts.values()),
            unknown=times * sum(n for kind, n in counts.items() if self.kinds[kind].state == "unknown"),
            forward=self._sum(counts, times, backward=False),
            backward=self._sum(counts, times, backward=True) if self.phases else Cost(),
        )

    def groups(self, counts: Mapping[str, Counts]) -> dict[str, Group]:
        """Counted rows added up by key, the most work first, then the most traffic."""
        made = {name: self.group(own) for name, own in counts.items()}
        return dict(sorted(made.items(), key=lambda item: self.weight(item[1]), reverse=True))

    def weight(self, group: Group) -> tuple[int, ...]:
        """The sort key of groups; sizes without a value are all assumed to be equal."""
        cost, value = group.cost, self.numbers.value
        quantities = (cost.matrix_flops, traffic(cost), cost.vector_flops)
        return tuple([value(each) or evaluate(each, self._ranked_at) or 0 for each in quantities])

    def _sum(self, counts: Mapping[int, int], times: int, *, backward: bool) -> Cost:
        side = "backward" if backward else "forward"
        parts = [(getattr(self.kinds[k], side), self._values[k][backward], n) for k, n in counts.items()]
        sums: list[Dim] = []
        for index, quantity in enumerate(QUANTITIES):
            known = [n * value for _, values, n in parts if (value := values[index]) is not None]
            if len(known) == len(parts):
                sums.append(times * sum(known))
            else:
                sums.append(_total(getattr(cost, quantity) * (n * times) for cost, _, n in parts))
        return Cost(*sums)


def traffic(cost: Cost) -> Dim:
    """Bytes read and written together."""
    return _total((cost.read_bytes, cost.written_bytes))


def _total(dims: Iterable[Dim]) -> Dim:
    """The sum; in words where its formula grows too large."""
    try:
        return total(dims)
    except DimError:
        return symbol("a formula too large to print")


LINES = 25  # the default depth is the deepest with about so many lines
_CHILDREN = 24  # default number of lines under one module


class Line(Record, frozen=True):
    """One line: a module, or several equal siblings together."""

    level: int  # 0 for the program, one more for each step in
    label: str  # the last part of the path, with `(x12)` where twelve were folded; not escaped
    path: str  # the whole path; `blocks.0-11.attn` for the twelve
    type: str
    parameters: int
    group: Group
    first: str | None = None  # the path of the first of them; None for a part of a module


class TreeModule(ModuleNode):
    """A module with the calls made in itself, by kind."""

    own: Counts = field(default_factory=dict)
    shape: int = -1  # the number of all that are equal, submodules included


Totals = tuple[Counts, int]  # calls by kind, and parameters


def _together(parts: Iterable[Totals]) -> Totals:
    counts: Counter[int] = Counter()
    held = 0
    for own, parameters in parts:
        counts.update(own)
        held += parameters
    return counts, held


class Tree:
    """The module tree of one report. Calls without cost are left out unless `idle`: another view does not change a layer."""

    def __init__(self, report: Report, ledger: Ledger, *, idle: bool = False) -> None:
        self.ledger = ledger
        self.shapes: dict[Hashable, int] = {}  # by types, names, costs and parameters, submodules included
        self.totals: list[Totals] = []  # by number of the shape
        root = self.root = TreeModule("", "", type=report.modules.get("", ""))
        by_path = self.by_path = {"": root}
        works = [idle or one.state == "unknown" or bool(one.forward or one.backward) for one in ledger.kinds]
        for path, counts in ledger.counts(lambda row: row.module).items():
            own = {kind: times for kind, times in counts.items() if works[kind]}
            module_at(by_path, path, report.modules).own = own
        for row in report.rows:
            module = by_path[row.module]
            module.type = module.type or row.module_type
        for path, parameters in report.parameter_modules.items():
            module_at(by_path, path, report.modules).parameters += parameters
        self._shape(root)

    def lines(self, depth: int | None = None, most: int | None = None) -> list[Line]:
        """The lines down to a depth (None: as deep as fits in `LINES`), at most `most` under one module."""
        if depth is not None:
            return [*self._lines(depth, most)]
        lines: list[Line] = []
        deeper, depth = [*self._lines(1, most)], 1
        while not lines or len(lines) < len(deeper) <= LINES:
            lines, depth = deeper, depth + 1
            deeper = [*self._lines(depth, most)]
        return lines

    def weight(self, module: TreeModule) -> tuple[int, ...]:
        return self.ledger.weight(self.ledger.group(self.totals[module.shape][0]))

    def paths(self, depth: int | None = None) -> Iterator[Line]:
        """Every module by itself, nothing folded, paths of at most `depth` components."""
        waiting = [(self.root, 0)]
        while waiting:
            module, level = waiting.pop()
            counts, parameters = self.totals[module.shape]
            yield Line(level, module.name, module.path, module.type, parameters, self.ledger.group(counts))
            if depth is None or level < depth:
                waiting += [(child, level + 1) for child in reversed(module.children.values())]

    def _shape(self, module: TreeModule) -> int:
        """The number of the module's shape; shapes of its submodules are numbered first."""
        children = tuple((name, self._shape(child)) for name, child in module.children.items())
        shape = (module.type, frozenset(module.own.items()), module.parameters, children)
        number = self.shapes.setdefault(shape, len(self.totals))
        if number == len(self.totals):
            own = (module.own, module.parameters)
            self.totals.append(_together([own, *(self.totals[child] for _, child in children)]))
        module.shape = number
        return number

    def _lines(self, depth: int, most: int | None) -> Iterator[Line]:
        group = self.ledger.group
        for level, label, path, members, _, is_rest in placed([self], most or _CHILDREN, depth):
            modules = [module for (module,) in members if module is not None]
            totals = [self.totals[module.shape] for module in modules]
            if is_rest:
                counts, held = _together(totals)
                yield Line(level, label, path, "", held, group(counts))
                continue
            first, times, (counts, held) = modules[0], len(modules), totals[0]
            kind = first.type if level else ""
            yield Line(level, label, path, kind, times * held, group(counts, times), first.path)
            if level < depth and first.children and first.own:
                itself = group(first.own, times)
                if itself.unknown or (itself.forward.matrix_flops, itself.backward.matrix_flops) != (0, 0):
                    own = f"{path}.(itself)" if path else "(itself)"
                    yield Line(level + 1, "(itself)", own, "", 0, itself)


Member = tuple["TreeModule | None", ...]  # a module in each of some trees that are laid over each other


class Placed(NamedTuple):
    """A line: a module, several equal siblings together, or the rest of a long list."""

    level: int
    label: str
    path: str
    members: list[Member]  # its modules
    around: list[Member]  # modules without a line, which hold only these
    is_rest: bool = False


def placed(trees: Sequence[Tree], most: int, depth: float = inf, limit: float = inf) -> Iterator[Placed]:
    """The lines of trees laid over each other, each before those below it.

    most: lines below one; the lightest others share one. depth: levels. limit: from so many lines on, none is added below.
    """
    roots = tuple(tree.root for tree in trees)
    label = next((short_type(root.type) for root in roots if root.type), "") or "(program)"
    yield Placed(0, label, "", [roots], [])
    yield from _Folder(trees, most, depth, limit).below([roots], 1, "")


class _Folder:
    def __init__(self, trees: Sequence[Tree], most: int, depth: float, limit: float) -> None:
        self.trees, self.most, self.depth, self.limit = trees, most, depth, limit
        self.made = 1

    def below(self, members: list[Member], level: int, path: str) -> Iterator[Placed]:
        """The lines below these modules, which are all alike; the heaviest submodules have lines of their own."""
        if level > self.depth or self.made >= self.limit:
            return

        def weight(names: list[str]) -> list[int]:
            (child,) = _children(members[:1], names[:1])
            pairs = zip(self.trees, child, strict=True)
            weights = [tree.weight(module) for tree, module in pairs if module is not None]
            return [len(names) * sum(parts) for parts in zip(*weights, strict=True)]

        groups = kept = self.folded(members[0])
        if len(groups) > self.most:
            kept = sorted(groups, key=weight, reverse=True)[: self.most]
        own = {names[0] for names in kept}
        for names in [names for names in groups if names[0] in own]:
            yield from self.line(members, names, level, path)
        rest = [name for names in groups if names[0] not in own for name in names]
        if rest:
            self.made += 1
            label = f"… {len(rest):,} more"
            path = f"{path}.{label}" if path else label
            yield Placed(level, label, path, _children(members, rest), [], is_rest=True)

    def line(self, around: list[Member], names: list[str], level: int, path: str) -> Iterator[Placed]:
        members, label = _children(around, names), _span(names) + _times(names)
        path = f"{path}.{_span(names)}" if path else _span(names)
        alone: list[Member] = []
        while not any(module is not None and (module.own or module.parameters) for module in members[0]):
            below = self.folded(members[0])  # a container with one child shares its line
            if len(below) != 1:
                break
            (names,) = below
            label += _times(names) or f".{_span(names)}"
            path = f"{path}.{_span(names)}"
            alone += members
            members = _children(members, names)
        self.made += 1
        yield Placed(level, label, path, members, alone)
        yield from self.below(members, level + 1, path)

    def folded(self, member: Member) -> list[list[str]]:
        """Names of the children by line: numbered ones that are equal on every side share one."""
        groups: dict[tuple[object, ...], list[str]] = {}
        names = dict.fromkeys(name for module in member if module is not None for name in module.children)
        for name in names:
            (child,) = _children([member], [name])
            shapes = tuple(-1 if module is None else module.shape for module in child)
            groups.setdefault((shapes, None if is_index(name) else name), []).append(name)
        return list(groups.values())


def _children(members: Iterable[Member], names: Iterable[str]) -> list[Member]:
    wanted = [*names]
    return [
        tuple(None if module is None else module.children.get(name) for module in member)
        for member in members
        for name in wanted
    ]


def _span(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else spans(sorted(map(int, names)))


def _times(names: Sequence[str]) -> str:
    return f" (x{len(names)})" if len(names) > 1 else ""
