"""The module tree of one report, or of two laid over each other, as a page draws it: equal siblings folded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from graphflops.render.tree import Tree, TreeModule, placed


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
    layout = Layout([], [{} for _ in trees])
    parents = [-1]  # by level, the place around the next one
    for place, line in enumerate(placed(trees, most, limit=limit)):
        level, label, path, members, around, is_rest = line
        kinds = (module.type for module in members[0] if module is not None and module.type)
        kind, path = ("", "") if is_rest else (next(kinds, ""), path)
        layout.places.append(Place(parents[level], label, path, kind, len(members)))
        parents[level + 1 :] = [place]
        for member in (*members, *around):
            for home, module in zip(layout.home, member, strict=True):
                # What is below a place belongs to it unless a later one takes it.
                home.update((one, place) for one in ([] if module is None else module.walk()))
    for side, tree in enumerate(trees):
        own = [0] * len(layout.places)
        for module in tree.root.walk():
            own[layout.home[side][module]] += module.parameters
        layout.parameters.append(own)
    return layout
