"""The modules of a report as the lines of a tree: equal siblings folded into one, in program order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct, field

from graphflops.base.record import Record
from graphflops.base.units import is_index, spans
from graphflops.render.ledger import Counts, Group, Ledger
from graphflops.render.text import short_type
from graphflops.report import Report

LINES = 25  # default depth: the deepest with about so many lines
_CHILDREN = 24  # default number of lines under one module
DEEPEST = 100  # components of a path; what goes on past them counts as the last one


class Line(Record, frozen=True):
    """One line: a module, or several equal siblings together."""

    level: int  # 0 for the program, one more for each step in
    label: str  # the last part of the path, with `(x12)` where twelve were folded; not escaped
    path: str  # the whole path; `blocks.0-11.attn` for the twelve
    type: str
    parameters: int
    group: Group
    first: str | None = None  # the path of the first of them; None for a part of a module


class TreeModule(Struct, eq=False):
    """A module with the calls made in itself, by kind, and the parameters it holds itself."""

    name: str
    path: str
    type: str = ""
    own: Counts = field(default_factory=dict)
    parameters: int = 0
    children: dict[str, TreeModule] = field(default_factory=dict)

    def walk(self) -> Iterator[TreeModule]:
        """The module and all in it, one before those in it."""
        waiting = [self]
        while waiting:
            module = waiting.pop()
            yield module
            waiting += module.children.values()


class _Totals(NamedTuple):
    counts: Counts
    parameters: int

    @staticmethod
    def together(parts: Sequence[_Totals]) -> _Totals:
        counts: Counter[int] = Counter()
        for part in parts:
            counts.update(part.counts)
        return _Totals(counts, sum(part.parameters for part in parts))


class Tree:
    """The module tree of one report.

    Calls without cost are left out unless `idle`: one more view does not change a layer.
    """

    def __init__(self, report: Report, ledger: Ledger, *, idle: bool = False) -> None:
        self.ledger = ledger
        self.shapes: dict[Hashable, int] = {}  # by types, names, costs and parameters, submodules included
        self.totals: list[_Totals] = []  # by number of the shape
        self.shape_of: dict[TreeModule, int] = {}
        self.by_path = _grown(report, ledger, idle)
        self.root = self.by_path[""]
        self.known = self._shape(self.root)

    def lines(self, depth: int | None = None, most: int | None = None) -> list[Line]:
        """The lines down to a depth (None: as deep as fits in `LINES`), at most `most` under one module."""
        if depth is not None:
            return [*self._lines(depth, most)]
        lines, depth = [*self._lines(1, most)], 1
        while True:
            depth += 1
            deeper = [*self._lines(depth, most)]
            if len(deeper) > LINES or len(deeper) == len(lines):
                return lines
            lines = deeper

    def weight(self, module: TreeModule) -> tuple[int, ...]:
        """What a module is ranked by, everything in it included."""
        return self.ledger.weight(self.ledger.group(self.totals[self.shape_of[module]].counts))

    def paths(self, depth: int | None = None) -> Iterator[Line]:
        """Every module by itself, nothing folded, paths of at most `depth` components."""

        def walk(module: TreeModule, level: int) -> Iterator[Line]:
            counts, parameters = self.totals[self.shape_of[module]]
            yield Line(level, module.name, module.path, module.type, parameters, self.ledger.group(counts))
            if depth is None or level < depth:
                for child in module.children.values():
                    yield from walk(child, level + 1)

        return walk(self.root, 0)

    def _shape(self, module: TreeModule) -> int:
        """The number of the module's shape, those below it numbered first."""
        children = tuple((name, self._shape(child)) for name, child in module.children.items())
        shape = (module.type, frozenset(module.own.items()), module.parameters, children)
        number = self.shapes.setdefault(shape, len(self.totals))
        if number == len(self.totals):
            own = _Totals(module.own, module.parameters)
            self.totals.append(_Totals.together([own, *(self.totals[child] for _, child in children)]))
        self.shape_of[module] = number
        return number

    def _lines(self, depth: int, most: int | None) -> Iterator[Line]:
        kinds, group = self.ledger.kinds, self.ledger.group
        for level, label, path, members, _, is_rest in placed([self], most or _CHILDREN, depth):
            modules = [module for (module,) in members if module is not None]
            totals = [self.totals[self.shape_of[module]] for module in modules]
            if is_rest:
                rest = _Totals.together(totals)
                yield Line(level, label, path, "", rest.parameters, group(rest.counts))
                continue
            first, times, whole = modules[0], len(modules), totals[0]
            kind, held = (first.type if level else ""), times * whole.parameters
            yield Line(level, label, path, kind, held, group(whole.counts, times), first.path)
            if level < depth and first.children and any(kinds[kind].has_matrix_work for kind in first.own):
                own = f"{path}.(itself)" if path else "(itself)"
                yield Line(level + 1, "(itself)", own, "", 0, group(first.own, times))


Member = tuple["TreeModule | None", ...]  # a module in each of some trees that are laid over each other


class Placed(NamedTuple):
    """A line: a module, several equal siblings together, or the rest of a long list."""

    level: int
    label: str
    path: str
    members: list[Member]  # its modules
    around: list[Member]  # modules that hold nothing but these, and have no line
    is_rest: bool = False


def placed(
    trees: Sequence[Tree], most: int, depth: float = math.inf, limit: float = math.inf
) -> Iterator[Placed]:
    """The lines of trees laid over each other, each before those below it.

    most: lines below one, the lightest others sharing one. depth: levels. limit: lines from which on none goes deeper.
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
        """What is below these modules, which all look the same from here down."""
        if level > self.depth or self.made >= self.limit:
            return
        groups = self.folded(members[0])
        kept = self.heaviest(members[0], groups)
        for names in [names for index, names in enumerate(groups) if index in kept]:
            yield from self.line(members, names, level, path)
        rest = [name for index, names in enumerate(groups) if index not in kept for name in names]
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
            below = self.folded(members[0])  # a container that holds one thing only shares a line with it
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
            pairs = zip(self.trees, child, strict=True)
            shapes = tuple(-1 if module is None else tree.shape_of[module] for tree, module in pairs)
            groups.setdefault((shapes, None if is_index(name) else name), []).append(name)
        return list(groups.values())

    def heaviest(self, member: Member, groups: list[list[str]]) -> set[int]:
        """Which groups of children get lines of their own."""
        if len(groups) <= self.most:
            return set(range(len(groups)))

        def weight(index: int) -> list[int]:
            (child,) = _children([member], groups[index][:1])
            pairs = zip(self.trees, child, strict=True)
            weights = [tree.weight(module) for tree, module in pairs if module is not None]
            return [len(groups[index]) * sum(parts) for parts in zip(*weights, strict=True)]

        return set(sorted(range(len(groups)), key=weight, reverse=True)[: self.most])


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


def _grown(report: Report, ledger: Ledger, idle: bool) -> dict[str, TreeModule]:
    """The modules that calls are made in and that hold parameters, by path; those around them hang on the first."""
    root = TreeModule("", "", report.modules.get("", ""))
    by_path = {"": root}

    def at(path: str) -> TreeModule:
        found = by_path.get(path)
        if found is None:
            parts = path.split(".", DEEPEST - 1)
            found, so_far = root, ""
            for part in parts:
                so_far = f"{so_far}.{part}" if so_far else part
                if part not in found.children:
                    found.children[part] = TreeModule(part, so_far, report.modules.get(so_far, ""))
                found = found.children[part]
            by_path[path] = found
        return found

    works = [
        idle or kind.state == "unknown" or bool(kind.forward) or bool(kind.backward) for kind in ledger.kinds
    ]
    for path, counts in ledger.counts(lambda row: row.module).items():
        module = at(path)
        for kind, times in counts.items():
            if works[kind]:
                module.own[kind] = module.own.get(kind, 0) + times
    for row in report.rows:
        module = by_path[row.module]
        module.type = module.type or row.module_type
    for path, parameters in report.parameter_modules.items():
        at(path).parameters += parameters
    return by_path
