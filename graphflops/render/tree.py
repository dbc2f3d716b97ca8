"""The modules of a report as the lines of a tree: equal siblings folded into one, in program order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from graphflops.base.numbered import is_index, spans
from graphflops.render.ledger import Counts, Group, Ledger
from graphflops.render.text import short_type
from graphflops.report import Report

LINES = 25  # default depth: the deepest with about so many lines
_CHILDREN = 24  # default number of lines under one module
DEEPEST = 100  # components of a path; what goes on past them counts as the last one


@dataclass(frozen=True, slots=True)
class Line:
    """One line: a module, or several equal siblings together.

    level: 0 for the program, one more for each step in.
    label: the last part of the path, with `(x12)` where twelve were folded; not escaped.
    path: the whole path; `blocks.0-11.attn` for the twelve. first: that of the first of them; None for a part of a module.
    """

    level: int
    label: str
    path: str
    type: str
    parameters: int
    group: Group
    first: str | None = None


@dataclass(eq=False, slots=True)
class TreeModule:
    """A module with the calls made in itself, by kind, and the parameters it holds itself."""

    name: str
    path: str
    type: str = ""
    own: Counts = field(default_factory=dict)
    parameters: int = 0
    children: dict[str, TreeModule] = field(default_factory=dict)


class _Shape(NamedTuple):
    """Modules of equal shape have equal types, names, costs and parameters, submodules included."""

    type: str
    own: frozenset[tuple[int, int]]
    parameters: int
    children: tuple[tuple[str, int], ...]


class _Totals(NamedTuple):
    counts: Counts
    parameters: int


class _Place(NamedTuple):
    """A line whose costs are not added up yet; `members` stand side by side and are equal."""

    level: int
    label: str
    path: str
    type: str
    parameters: int
    counts: Counts
    times: int
    first: str | None = None


class Tree:
    """The module tree of one report.

    Calls without cost are left out unless `idle`: one more view does not change a layer.
    """

    def __init__(self, report: Report, ledger: Ledger, *, idle: bool = False) -> None:
        self.ledger = ledger
        self.shapes: dict[_Shape, int] = {}
        self.totals: list[_Totals] = []  # by number of the shape
        self.shape_of: dict[TreeModule, int] = {}
        self.by_path = _grown(report, ledger, idle)
        self.root = self.by_path[""]
        self.known = self._shape(self.root)

    def lines(self, depth: int | None = None, most: int | None = None) -> list[Line]:
        """The lines down to a depth (None: as deep as fits in `LINES`), at most `most` under one module."""
        places = list(self._places(depth, most)) if depth is not None else self._fitting(most)
        return [
            Line(
                p.level, p.label, p.path, p.type, p.parameters, self.ledger.group(p.counts, p.times), p.first
            )
            for p in places
        ]

    def modules(self) -> Iterator[TreeModule]:
        """Every module, one before those in it."""
        waiting = [self.root]
        while waiting:
            module = waiting.pop()
            yield module
            waiting += module.children.values()

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

    def _fitting(self, most: int | None) -> list[_Place]:
        depth, places = 1, list(self._places(1, most))
        while True:
            depth += 1
            deeper = list(self._places(depth, most))
            if len(deeper) > LINES or len(deeper) == len(places):
                return places
            places = deeper

    def _shape(self, module: TreeModule) -> int:
        """The number of the module's shape, those below it numbered first."""
        children = tuple((name, self._shape(child)) for name, child in module.children.items())
        shape = _Shape(module.type, frozenset(module.own.items()), module.parameters, children)
        number = self.shapes.setdefault(shape, len(self.totals))
        if number == len(self.totals):
            counts, parameters = dict(module.own), module.parameters
            for _, child in children:
                parameters += self.totals[child].parameters
                for kind, times in self.totals[child].counts.items():
                    counts[kind] = counts.get(kind, 0) + times
            self.totals.append(_Totals(counts, parameters))
        self.shape_of[module] = number
        return number

    def _places(self, depth: int, most: int | None) -> Iterator[_Place]:
        label = short_type(self.root.type) or "(program)"
        counts, parameters = self.totals[self.known]
        yield _Place(0, label, "", "", parameters, counts, 1, "")
        yield from self._below(self.root, "", 1, 1, depth, most or _CHILDREN)

    def _below(
        self, module: TreeModule, path: str, level: int, times: int, depth: int, most: int
    ) -> Iterator[_Place]:
        if level > depth or not module.children:
            return
        groups = self._folded(module)
        chosen = self._largest(groups, most)
        if any(self._works(kind) for kind in module.own):
            yield _Place(
                level, "(itself)", f"{path}.(itself)" if path else "(itself)", "", 0, module.own, times
            )
        for index in chosen:
            yield from self._line(groups[index], path, level, times, depth, most)
        rest = [group for index, group in enumerate(groups) if index not in chosen]
        if rest:
            counts: Counts = {}
            parameters = 0
            for group in rest:
                total = self.totals[self.shape_of[group[0]]]
                parameters += total.parameters * len(group)
                for kind, n in total.counts.items():
                    counts[kind] = counts.get(kind, 0) + n * len(group)
            label = f"… {sum(map(len, rest)):,} more"
            yield _Place(
                level, label, f"{path}.{label}" if path else label, "", times * parameters, counts, times
            )

    def _line(
        self, group: list[TreeModule], path: str, level: int, times: int, depth: int, most: int
    ) -> Iterator[_Place]:
        module = group[0]
        times *= len(group)
        name = _span(group)
        label = name if len(group) == 1 else f"{name} (x{len(group)})"
        path = f"{path}.{name}" if path else name
        while True:  # a container that holds one thing only shares a line with it
            below = self._folded(module) if not module.own and not module.parameters else []
            if len(below) != 1:
                break
            module, inner = below[0][0], len(below[0])
            name = _span(below[0])
            label = f"{label} (x{inner})" if inner > 1 else f"{label}.{name}"
            path = f"{path}.{name}"
            times *= inner
        total = self.totals[self.shape_of[module]]
        held = times * total.parameters
        yield _Place(level, label, path, module.type, held, total.counts, times, module.path)
        yield from self._below(module, path, level + 1, times, depth, most)

    def _folded(self, module: TreeModule) -> list[list[TreeModule]]:
        """Children by line: numbered ones of equal shape share one."""
        groups: dict[tuple[int, str | None], list[TreeModule]] = {}
        for child in module.children.values():
            name = None if is_index(child.name) else child.name
            groups.setdefault((self.shape_of[child], name), []).append(child)
        return list(groups.values())

    def _largest(self, groups: list[list[TreeModule]], most: int) -> list[int]:
        if len(groups) <= most:
            return list(range(len(groups)))

        def weight(index: int) -> tuple[int, ...]:
            group = groups[index]
            return self.ledger.weight(
                self.ledger.group(self.totals[self.shape_of[group[0]]].counts, len(group))
            )

        return sorted(sorted(range(len(groups)), key=weight, reverse=True)[:most])

    def _works(self, kind: int) -> bool:
        entry = self.ledger.kinds[kind]
        return entry.state == "unknown" or entry.forward.matrix_flops != 0 or entry.backward.matrix_flops != 0


def _span(group: list[TreeModule]) -> str:
    return group[0].name if len(group) == 1 else spans(sorted(int(module.name) for module in group))


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
