"""Groups modules that changed alike: those of one name and change as one entry, `blocks.0-11.mlp`, and those of one reason.

A layer made wider changes every product that reads or writes it. Compared is also how fast totals grow with each size.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from math import prod

from graphflops.base.units import is_index, runs_of
from graphflops.comparison.result import (
    Cause,
    Crossing,
    Fact,
    Figure,
    Fold,
    GrowthChange,
    JointSize,
    ModuleChange,
    Resized,
)
from graphflops.dims import Dim, Expr, evaluate

_SIZED = frozenset({"shape", "heads", "parameters"})  # facts that a changed size explains
_AXES = re.compile(r"[^,]+")
_LOOKED_AT = 100  # groups with sizes of one ratio
# Nouns of sizes; what is said of heads comes before these.
_TELLING = ("rows", "channels", "wide", "kernel", "")


def causes(folds: Iterable[Fold]) -> list[Cause]:
    """Entries that have a changed size in common as one cause.

    A module without weights whose sizes changed in the same ratio as those around it or in it belongs to that cause too:
    twice as many heads of half as many channels each.
    """
    groups: dict[int, list[Fold]] = {}
    sizes: dict[int, Counter[Resized]] = {}
    group_of: dict[tuple[int, int], int] = {}
    for number, fold in enumerate(folds):
        mine = _resized(fold)
        joined = sorted({group_of[size[:2]] for size in mine if size[:2] in group_of})
        into, *others = joined or [number]
        for other in others:  # this entry connects groups that had no size in common
            groups[into] += groups.pop(other)
            sizes[into].update(sizes.pop(other))
        groups.setdefault(into, []).append(fold)
        sizes.setdefault(into, Counter()).update(mine)
        group_of.update({size[:2]: into for size in (sizes[into] if others else mine)})
    _attach(groups, sizes)
    return [_cause(group, sizes[number]) for number, group in groups.items()]


def _attach(groups: dict[int, list[Fold]], sizes: dict[int, Counter[Resized]]) -> None:
    """Moves groups without changed weights into one with sizes of the same ratio, in a module around it or in it."""
    ratios = {}
    for number, counts in sizes.items():
        ratios[number] = {Fraction(size.after, size.before) for size in counts if size.before}
    by_ratio: dict[Fraction, list[int]] = {}
    for number, found in ratios.items():
        for ratio in found:
            by_ratio.setdefault(ratio, []).append(number)
    for number in reversed([*groups]):
        if any(size.noun in _TELLING[:-1] for size in sizes[number]):
            continue
        place = _place(groups[number])
        alike = dict.fromkeys(other for ratio in ratios[number] for other in by_ratio[ratio][:_LOOKED_AT])
        for other in alike:
            if other == number or other not in groups:
                continue
            if all(one == its for one, its in zip(place, _place(groups[other]), strict=False)):
                groups[other] += groups.pop(number)
                sizes[other].update(sizes.pop(number))
                break


def _resized(fold: Fold) -> Counter[Resized]:
    """The fixed sizes that changed; none for a module that is new, gone, moved or that does something else too."""
    first = fold.first
    if first.status != "changed" or any(fact.kind not in _SIZED for fact in first.facts):
        return Counter()
    found = Counter[Resized]()
    for fact in first.facts:
        for size in _sizes(fact, first.after_type):
            found[size] += len(fold.members) * (1 + 2 * fact.what.endswith("weight"))
    return found


def _sizes(fact: Fact, module_type: str) -> Iterator[Resized]:
    if fact.kind == "heads":
        if fact.before.isdecimal() and fact.after.isdecimal():
            yield Resized(int(fact.before), int(fact.after), f"{fact.what} heads")
        return
    sides = [_AXES.findall(side.strip("[]").replace(" ", "")) for side in (fact.before, fact.after)]
    if fact.kind != "shape" or len(sides[0]) != len(sides[1]):
        return
    for axis, (ours, theirs) in enumerate(zip(*sides, strict=True)):
        if ours != theirs and ours.isdecimal() and theirs.isdecimal():
            yield Resized(int(ours), int(theirs), _noun(fact.what, axis, len(sides[0]), module_type))


def _noun(what: str, axis: int, rank: int, module_type: str) -> str:
    """What an axis of a weight counts; "" of other operands."""
    if not what.endswith("weight"):
        return ""
    if module_type.endswith("Embedding"):
        return "wide" if axis else "rows"
    if rank > 2:
        return "channels" if axis < 2 else "kernel"
    return "wide"


def _cause(folds: Sequence[Fold], counts: Mapping[Resized, int]) -> Cause:
    place = _place(folds)
    modules = {tuple(member.path.split(".")[: len(place)]) for fold in folds for member in fold.members}
    return Cause(
        tuple(folds),
        _named(counts),
        ".".join(place),
        len(folds[0].members) if len(folds) == 1 else len(modules),
        summed([fold.figures for fold in folds]),
        summed([fold.backward for fold in folds if fold.backward]),
    )


def _named(counts: Mapping[Resized, int]) -> tuple[Resized, ...]:
    """Each pair of sizes once, by its most telling noun, the most frequent first."""
    total: dict[tuple[int, int], int] = {}
    nouns: dict[tuple[int, int], str] = {}
    for size in sorted(counts, key=lambda size: _telling(size.noun)):
        total[size[:2]] = total.get(size[:2], 0) + counts[size]
        nouns.setdefault(size[:2], size.noun)
    ranked = sorted(total, key=lambda pair: (_telling(nouns[pair]) > 1, nouns[pair] == "", -total[pair]))
    return tuple(Resized(*pair, nouns[pair]) for pair in ranked)


def _telling(noun: str) -> int:
    return _TELLING.index(noun) if noun in _TELLING else -1


def _place(folds: Sequence[Fold]) -> list[str]:
    """The components with which the paths of all entries begin."""
    paths = [(fold.path or "").split(".") if fold.path else [] for fold in folds]
    place = []
    for parts in zip(*paths, strict=False):
        if len({*parts}) > 1:
            break
        place.append(parts[0])
    return place


def summed(parts: Sequence[Mapping[str, Figure]]) -> Mapping[str, Figure]:
    """Figures added up by quantity."""
    names = parts[0] if parts else ()
    return {name: added([part[name] for part in parts if name in part]) for name in names}


def added(figures: Iterable[Figure]) -> Figure:
    """Figures of one quantity added up; a sum with an unknown part has no value."""
    listed = list(figures)

    def known(values: Iterable[int | None]) -> int | None:
        numbers = list(values)
        return None if None in numbers else sum(number for number in numbers if number is not None)

    return Figure(
        sum((figure.before for figure in listed), 0),
        sum((figure.after for figure in listed), 0),
        known(figure.before_value for figure in listed),
        known(figure.after_value for figure in listed),
    )


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


def _pattern(path: str | None, whole: bool) -> tuple[str | None, ...] | None:
    """The path without its numbers, and without the last name unless `whole`."""
    if path is None:
        return None
    parts = [None if is_index(part) else part for part in _parts(path)]
    return (*parts,) if whole or not parts else (*parts[:-1], None)


def _folds(members: Sequence[ModuleChange]) -> list[Fold]:
    """One fold, or several if the paths are not the product of their components."""
    sides = zip(*((m.before, m.after) for m in members), strict=True)
    (before, is_before), (after, is_after) = (_joined(paths) for paths in sides)
    if is_before and is_after:
        folds = _times(members, "figures"), _times(members, "backward")
        return [Fold(after, before, tuple(members), *folds)]
    columns = [*zip(*(_parts(module.path) for module in members), strict=True)]
    column = next(column for column in columns if len({*column}) > 1)
    parts: dict[str, list[ModuleChange]] = {}
    for name, module in zip(column, members, strict=True):
        parts.setdefault(name, []).append(module)
    return [fold for part in parts.values() for fold in _folds(part)]


def _joined(paths: Sequence[str | None]) -> tuple[str | None, bool]:
    """The paths as one text, and whether that text matches exactly these paths."""
    if paths[0] is None or len(paths) == 1:
        return paths[0], True
    columns = [[*dict.fromkeys(column)] for column in zip(*map(_parts, paths), strict=True)]
    count = prod(len(column) for column in columns)
    return ".".join(map(_together, columns)), count == len(paths)


def _together(names: Sequence[str]) -> str:
    """`0-11`, `0,2,4` or `{q,k}`."""
    if len(names) == 1:
        return names[0]
    if not all(map(is_index, names)):
        return f"{{{','.join(names)}}}"
    return ",".join(runs_of(sorted(map(int, names))))


def _times(members: Sequence[ModuleChange], name: str) -> Mapping[str, Figure]:
    figures: Mapping[str, Figure] = getattr(members[0], name)
    n = len(members)

    def whole(figure: Figure) -> Figure:
        values = (figure.before_value, figure.after_value)
        known = (None if value is None else value * n for value in values)
        return Figure(figure.before * n, figure.after * n, *known)

    return figures if n == 1 else {name: whole(figure) for name, figure in figures.items()}


_MODULES = 20  # modules named for one change
_FARTHEST = 2**32  # of sizes without an upper bound


def growth(
    totals: Mapping[str, Figure], sizes: Iterable[JointSize], folds: Sequence[Fold]
) -> Iterator[GrowthChange]:
    """Totals whose degree in a size changed, for sizes that both programs leave open."""
    open_sizes = [size.name for size in sizes if isinstance(size.before, str) and isinstance(size.after, str)]
    for quantity, figure in totals.items():
        for size in open_sizes:
            degrees = degree(figure.before, size), degree(figure.after, size)
            if degrees[0] != degrees[1]:
                where = _where(quantity, size, degrees[1] > degrees[0], folds)
                yield GrowthChange(quantity, size, *degrees, where)


def crossings(
    totals: Mapping[str, Figure],
    sizes: Iterable[JointSize],
    ranges: Mapping[str, tuple[int, int]],
    values: Mapping[str, int],
) -> Iterator[Crossing]:
    """Totals whose delta has one sign at the lowest value of a size and the other at the highest.

    ranges: lowest and highest value of each size by its joint name.
    """
    names = [size.name for size in sizes if isinstance(size.before, str) and isinstance(size.after, str)]
    for quantity, figure in totals.items():
        formula = figure.formula
        if isinstance(formula, int):
            continue
        for size in names:
            at = _crossing(formula, size, *ranges[size], values) if size in formula.symbols else None
            if at is not None:
                yield Crossing(quantity, size, *at)


def _crossing(
    formula: Expr, size: str, low: int, high: int, values: Mapping[str, int]
) -> tuple[int, bool] | None:
    """The smallest value at which the formula has its final sign, and whether that is positive."""

    def sign(value: int) -> int:
        found = evaluate(formula, {**values, size: value}) or 0
        return (found > 0) - (found < 0)

    first, last = sign(low), sign(high)
    if first * last >= 0:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if sign(middle) == last else (middle, high)
    return high, last > 0


def bounds(sizes: Iterable[JointSize]) -> dict[str, tuple[int, int]]:
    """The values that both programs were exported for, by joint name."""
    return {
        size.name: (max(1, size.minimum or 1), min(_FARTHEST, size.maximum or _FARTHEST)) for size in sizes
    }


def degree(quantity: Dim, size: str) -> int:
    """The degree of the quantity in the size: 0 constant, 1 linear, 2 quadratic."""
    return max(quantity.degree(size), 0) if isinstance(quantity, Expr) else 0


def _where(quantity: str, size: str, faster: bool, folds: Sequence[Fold]) -> tuple[str, ...]:
    """Modules whose own degree changed in the same direction, in the order given."""
    found = []
    for fold in folds:
        figure = fold.figures.get(quantity)
        if figure is not None:
            change = degree(figure.after, size) - degree(figure.before, size)
            if change > 0 if faster else change < 0:
                found.append((fold.path if fold.path is not None else fold.before_path) or "")
    return tuple(found[:_MODULES])
