"""Merges modules with the same change into one entry: `blocks.0-11.mlp`."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

from graphflops.comparison.result import Figure, Fold

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from graphflops.comparison.result import ModuleChange


def folded(modules: Iterable[ModuleChange]) -> list[Fold]:
    """Merges entries with the same change whose paths differ in numbers or in the last name only."""
    groups: dict[Hashable, list[ModuleChange]] = {}
    for module in modules:
        groups.setdefault(_key(module), []).append(module)
    return [fold for members in groups.values() for fold in _folds(members)]


def _key(module: ModuleChange) -> Hashable:
    changed = tuple((name, figure.before, figure.after) for name, figure in module.figures.items())
    back = tuple((name, figure.before, figure.after) for name, figure in module.backward.items())
    ends = {path.rpartition(".")[2] for path in (module.before, module.after) if path is not None}
    named = module.status == "moved" or len(ends) > 1
    paths = [_pattern(path, named) for path in (module.before, module.after)]
    types = (module.before_type, module.after_type, module.before_unknown, module.after_unknown)
    return (module.status, *paths, types, module.whole, module.modules, module.facts, changed, back)


def _parts(path: str | None) -> list[str]:
    return path.split(".") if path else []


def _numbered(part: str) -> bool:
    return part.isascii() and part.isdecimal() and len(part) < 10


def _pattern(path: str | None, whole: bool) -> tuple[str | None, ...] | None:
    """The path without its numbers, and without the last name unless `whole`."""
    if path is None:
        return None
    parts = [None if _numbered(part) else part for part in _parts(path)]
    return (*parts,) if whole or not parts else (*parts[:-1], None)


def _folds(members: Sequence[ModuleChange]) -> list[Fold]:
    """One fold, or several if the paths are not the product of their components."""
    before, after = (_joined(paths) for paths in zip(*((m.before, m.after) for m in members), strict=True))
    if before.whole and after.whole:
        folds = _times(members, "figures"), _times(members, "backward")
        return [Fold(after.text, before.text, tuple(members), *folds)]
    columns = [*zip(*(_parts(module.path) for module in members), strict=True)]
    column = next(column for column in columns if len({*column}) > 1)
    parts: dict[str, list[ModuleChange]] = {}
    for name, module in zip(column, members, strict=True):
        parts.setdefault(name, []).append(module)
    return [fold for part in parts.values() for fold in _folds(part)]


class _JoinedPath(NamedTuple):
    text: str | None
    whole: bool


def _joined(paths: Sequence[str | None]) -> _JoinedPath:
    """The paths as one text, and whether that text matches exactly these paths."""
    if paths[0] is None or len(paths) == 1:
        return _JoinedPath(paths[0], True)
    columns = [[*dict.fromkeys(column)] for column in zip(*map(_parts, paths), strict=True)]
    count = prod(len(column) for column in columns)
    return _JoinedPath(".".join(map(_together, columns)), count == len(paths))


def _together(names: Sequence[str]) -> str:
    """`0-11`, `0,2,4` or `{q,k}`."""
    if len(names) == 1:
        return names[0]
    if not all(map(_numbered, names)):
        return f"{{{','.join(names)}}}"
    runs: list[list[int]] = []
    for number in sorted(map(int, names)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)


def _times(members: Sequence[ModuleChange], name: str) -> Mapping[str, Figure]:
    figures: Mapping[str, Figure] = getattr(members[0], name)
    n = len(members)
    if n == 1:
        return figures

    def value(number: int | None) -> int | None:
        return None if number is None else number * n

    return {
        name: Figure(
            figure.before * n, figure.after * n, value(figure.before_value), value(figure.after_value)
        )
        for name, figure in figures.items()
    }
