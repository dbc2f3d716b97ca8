"""Groups modules that changed alike, `blocks.0-11.mlp`, and what changed for one reason; how totals grow with sizes."""

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import takewhile
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
from graphflops.dims import Dim, Expr, evaluate, total
from graphflops.dims.solving import first_from
from graphflops.tensor import grouped

_SIZED = frozenset({"shape", "heads", "parameters"})  # facts that a changed size explains
_AXES = re.compile(r"[^,]+")
_LOOKED_AT = 100  # groups with sizes of one ratio
# Nouns of sizes, the most telling first; those of heads come before these.
_TELLING = ("rows", "channels", "wide", "kernel", "")


def causes(folds: Iterable[Fold]) -> list[Cause]:
    """Entries with a changed size in common as one cause; those without weights join others of the same ratio."""
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
    ratios = {
        number: {Fraction(size.after, size.before) for size in counts if size.before}
        for number, counts in sizes.items()
    }
    by_ratio = grouped((ratio, number) for number, own in ratios.items() for ratio in own)
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
    """The fixed sizes that changed, each with a noun for what an axis of a weight counts, "" for other operands."""
    if fact.kind == "heads":
        if fact.before.isdecimal() and fact.after.isdecimal():
            yield Resized(int(fact.before), int(fact.after), f"{fact.what} heads")
        return
    ours, theirs = (_AXES.findall(side.strip("[]").replace(" ", "")) for side in (fact.before, fact.after))
    if fact.kind != "shape" or len(ours) != len(theirs):
        return
    nouns = ["wide"] * len(ours)
    if not fact.what.endswith("weight"):
        nouns = [""] * len(ours)
    elif module_type.endswith("Embedding"):
        nouns[:1] = ["rows"]
    elif len(ours) > 2:
        nouns = ["channels", "channels", *["kernel"] * (len(ours) - 2)]
    for before, after, noun in zip(ours, theirs, nouns, strict=True):
        if before != after and before.isdecimal() and after.isdecimal():
            yield Resized(int(before), int(after), noun)


def _cause(folds: Sequence[Fold], counts: Mapping[Resized, int]) -> Cause:
    place = _place(folds)
    modules = {tuple(member.path.split(".")[: len(place)]) for fold in folds for member in fold.members}
    total: dict[tuple[int, int], int] = {}
    nouns: dict[tuple[int, int], str] = {}
    for size in sorted(counts, key=lambda size: _telling(size.noun)):
        total[size[:2]] = total.get(size[:2], 0) + counts[size]
        nouns.setdefault(size[:2], size.noun)
    ranked = sorted(total, key=lambda pair: (_telling(nouns[pair]) > 1, nouns[pair] == "", -total[pair]))
    return Cause(
        tuple(folds),
        tuple(Resized(*pair, nouns[pair]) for pair in ranked),
        ".".join(place),
        len(folds[0].members) if len(folds) == 1 else len(modules),
        summed([fold.figures for fold in folds]),
        summed([fold.backward for fold in folds if fold.backward]),
    )


def _telling(noun: str) -> int:
    return _TELLING.index(noun) if noun in _TELLING else -1


def _place(folds: Sequence[Fold]) -> list[str]:
    """The components with which the paths of all entries begin."""
    columns = zip(*(_parts(fold.path) for fold in folds), strict=False)
    return [parts[0] for parts in takewhile(lambda parts: len({*parts}) == 1, columns)]


def summed(parts: Sequence[Mapping[str, Figure]]) -> Mapping[str, Figure]:
    """Figures added up by quantity."""
    names = parts[0] if parts else ()
    return {name: added([part[name] for part in parts if name in part]) for name in names}


def added(figures: Iterable[Figure]) -> Figure:
    """Figures of one quantity added up; a sum with an unknown part has no value."""
    listed = list(figures)
    values = [figure.before_value for figure in listed], [figure.after_value for figure in listed]
    return Figure(
        total(figure.before for figure in listed),
        total(figure.after for figure in listed),
        *(None if None in side else sum(filter(None, side)) for side in values),
    )


def folded(modules: Iterable[ModuleChange]) -> list[Fold]:
    """Merges entries with the same change whose paths differ in numbers or in the last name only."""
    groups: dict[Hashable, list[ModuleChange]] = {}
    for module in modules:
        changed = tuple((name, figure.before, figure.after) for name, figure in module.figures.items())
        back = tuple((name, figure.before, figure.after) for name, figure in module.backward.items())
        ends = {path.rpartition(".")[2] for path in (module.before, module.after) if path is not None}
        named = module.status == "moved" or len(ends) > 1
        paths = [_pattern(path, named) for path in (module.before, module.after)]
        types = (module.before_type, module.after_type, module.before_unknown, module.after_unknown)
        key = (module.status, *paths, types, module.whole, module.modules, module.facts, changed, back)
        groups.setdefault(key, []).append(module)
    return [fold for members in groups.values() for fold in _folds(members)]


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
        sums = summed([one.figures for one in members]), summed([one.backward for one in members])
        return [Fold(after, before, tuple(members), *sums)]
    columns = [*zip(*(_parts(module.path) for module in members), strict=True)]
    column = next(column for column in columns if len({*column}) > 1)
    return [fold for part in grouped(zip(column, members, strict=True)).values() for fold in _folds(part)]


def _joined(paths: Sequence[str | None]) -> tuple[str | None, bool]:
    """The paths as one text, `blocks.0-11.{q,k}`, and whether that text matches exactly these paths."""
    if paths[0] is None or len(paths) == 1:
        return paths[0], True
    columns = [[*dict.fromkeys(column)] for column in zip(*map(_parts, paths), strict=True)]
    texts = []
    for names in columns:
        if len(names) > 1 and all(map(is_index, names)):
            texts.append(",".join(runs_of(sorted(map(int, names)))))
        else:
            texts.append(names[0] if len(names) == 1 else f"{{{','.join(names)}}}")
    return ".".join(texts), prod(map(len, columns)) == len(paths)


_MODULES = 20  # modules named for one change
_FARTHEST = 2**32  # the upper bound of sizes without one


def growth(
    totals: Mapping[str, Figure], sizes: Iterable[JointSize], folds: Sequence[Fold]
) -> Iterator[GrowthChange]:
    """Totals whose degree in a size open in both programs changed, with the modules whose degree changed likewise."""
    open_sizes = [size.name for size in sizes if isinstance(size.before, str) and isinstance(size.after, str)]
    for quantity, figure in totals.items():
        for size in open_sizes:
            before, after = degree(figure.before, size), degree(figure.after, size)
            if before == after:
                continue
            where = []
            for fold in folds:
                own = fold.figures.get(quantity)
                change = 0 if own is None else degree(own.after, size) - degree(own.before, size)
                if change * (after - before) > 0:
                    where.append((fold.path if fold.path is not None else fold.before_path) or "")
            yield GrowthChange(quantity, size, before, after, tuple(where[:_MODULES]))


def crossings(
    totals: Mapping[str, Figure], sizes: Iterable[JointSize], values: Mapping[str, int]
) -> Iterator[Crossing]:
    """Totals whose delta has one sign at the lowest value of a size and the other at the highest, of both programs."""
    open_sizes = [size for size in sizes if isinstance(size.before, str) and isinstance(size.after, str)]
    for quantity, figure in totals.items():
        formula = figure.formula
        for size in open_sizes if isinstance(formula, Expr) else ():
            if isinstance(formula, Expr) and size.name in formula.symbols:
                yield from _crossing(quantity, formula, size, values)


def _crossing(quantity: str, formula: Expr, size: JointSize, values: Mapping[str, int]) -> Iterator[Crossing]:
    """The smallest value at which the formula has its final sign, and whether that is positive."""

    def sign(value: int) -> int:
        found = evaluate(formula, {**values, size.name: value}) or 0
        return (found > 0) - (found < 0)

    low, high = max(1, size.minimum or 1), min(_FARTHEST, size.maximum or _FARTHEST)
    last = sign(high)
    if sign(low) * last < 0:
        at = first_from(low + 1, high, lambda value: sign(value) == last)
        yield Crossing(quantity, size.name, at, last > 0)


def degree(quantity: Dim, size: str) -> int:
    """The degree of the quantity in the size: 0 constant, 1 linear, 2 quadratic."""
    return max(quantity.degree(size), 0) if isinstance(quantity, Expr) else 0
