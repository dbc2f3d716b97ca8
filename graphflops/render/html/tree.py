"""The module tree of one report, or of two laid over each other, as a page draws it: equal siblings folded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from graphflops.base.numbered import is_index, spans
from graphflops.render.text import short_type
from graphflops.render.tree import Tree, TreeModule


@dataclass(slots=True)
class Place:
    """One node: a module, several equal siblings together, or the rest of a long list (no path).

    parent: number of the place around it, -1 for the program. times: the number of modules in one line.
    """

    parent: int
    label: str
    path: str
    type: str
    times: int


@dataclass(slots=True)
class Layout:
    """All places, the parent before the child; and by side where each module's calls and parameters belong."""

    places: list[Place]
    home: list[dict[TreeModule, int]]
    # By side and place, those of the modules themselves.
    parameters: list[list[int]] = field(default_factory=list)

    def outermost(self, place: int) -> int:
        """The enclosing place in the program itself."""
        while self.places[place].parent > 0:
            place = self.places[place].parent
        return place


def laid_out(trees: Sequence[Tree], most: int, limit: int) -> Layout:
    """One tree for all sides.

    most: places under one place, the lightest others sharing one. limit: places in all; what is below belongs to the last.
    """
    roots = tuple(tree.root for tree in trees)
    label = next((short_type(root.type) for root in roots if root.type), "") or "(program)"
    layout = Layout(
        [Place(-1, label, "", next((r.type for r in roots if r.type), ""), 1)], [{} for _ in trees]
    )
    grower = _Grower(trees, layout, most, limit)
    grower.grow([roots], 0, "")
    for side, tree in enumerate(trees):
        own = [0] * len(layout.places)
        for module in tree.modules():
            own[layout.home[side][module]] += module.parameters
        layout.parameters.append(own)
    return layout


class _Grower:
    def __init__(self, trees: Sequence[Tree], layout: Layout, most: int, limit: int) -> None:
        self.trees = trees
        self.layout = layout
        self.most = most
        self.limit = limit

    def grow(self, members: list[tuple[TreeModule | None, ...]], place: int, path: str) -> None:
        """Place what is below these modules, which all look the same from here down."""
        if len(self.layout.places) >= self.limit:
            for member in members:
                self.settle_all(member, place)
            return
        for member in members:
            self.settle(member, place)
        groups = self.folded(members[0])
        kept = self.heaviest(members, groups)
        rest: list[str] = []
        for index, names in enumerate(groups):
            if index not in kept:
                rest += names
                continue
            below = [self.children(member, name) for member in members for name in names]
            span = names[0] if len(names) == 1 else spans(sorted(map(int, names)))
            self.line(below, place, f"{path}.{span}" if path else span, span, len(names))
        if rest:
            other = self.add(place, f"… {len(rest):,} more", "", "", len(members) * len(rest))
            for member in members:
                for name in rest:
                    self.settle_all(self.children(member, name), other)

    def line(
        self, members: list[tuple[TreeModule | None, ...]], parent: int, path: str, label: str, times: int
    ) -> None:
        label = f"{label} (x{times})" if times > 1 else label
        first = members[0]
        while not any(m is not None and (m.own or m.parameters) for m in first):
            below = self.folded(first)  # a container that holds one thing only shares a line with it
            if len(below) != 1:
                break
            names = below[0]
            span = names[0] if len(names) == 1 else spans(sorted(map(int, names)))
            label = f"{label} (x{len(names)})" if len(names) > 1 else f"{label}.{span}"
            path = f"{path}.{span}"
            outer, members = members, [self.children(m, name) for m in members for name in names]
            first = members[0]
            place = len(self.layout.places)  # of the line that is added below
            for member in outer:
                self.settle(member, place)
        kind = next((m.type for m in first if m is not None and m.type), "")
        self.grow(members, self.add(parent, label, path, kind, len(members)), path)

    def add(self, parent: int, label: str, path: str, kind: str, times: int) -> int:
        self.layout.places.append(Place(parent, label, path, kind, times))
        return len(self.layout.places) - 1

    def settle(self, member: tuple[TreeModule | None, ...], place: int) -> None:
        for side, module in enumerate(member):
            if module is not None:
                self.layout.home[side][module] = place

    def settle_all(self, member: tuple[TreeModule | None, ...], place: int) -> None:
        self.settle(member, place)
        for name in self.names(member):
            self.settle_all(self.children(member, name), place)

    def names(self, member: Iterable[TreeModule | None]) -> list[str]:
        return [*dict.fromkeys(name for module in member if module is not None for name in module.children)]

    def children(self, member: tuple[TreeModule | None, ...], name: str) -> tuple[TreeModule | None, ...]:
        return tuple(None if module is None else module.children.get(name) for module in member)

    def folded(self, member: tuple[TreeModule | None, ...]) -> list[list[str]]:
        """Names of the children by line: numbered ones that are equal on every side share one."""
        groups: dict[tuple[object, ...], list[str]] = {}
        for name in self.names(member):
            shapes = tuple(
                -1 if child is None else tree.shape_of[child]
                for tree, child in zip(self.trees, self.children(member, name), strict=True)
            )
            groups.setdefault((shapes, None if is_index(name) else name), []).append(name)
        return list(groups.values())

    def heaviest(self, members: list[tuple[TreeModule | None, ...]], groups: list[list[str]]) -> set[int]:
        """Which groups of children get places of their own."""
        if len(groups) <= self.most:
            return set(range(len(groups)))

        def weight(index: int) -> list[int]:
            child = self.children(members[0], groups[index][0])
            weights = [
                tree.weight(module)
                for tree, module in zip(self.trees, child, strict=True)
                if module is not None
            ]
            return [len(groups[index]) * sum(parts) for parts in zip(*weights, strict=True)]

        return set(sorted(range(len(groups)), key=weight, reverse=True)[: self.most])
