"""Joins the sizes of two programs: by input axis, then by name."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from graphflops.comparison.result import JointSize, Remark
from graphflops.cost import QUANTITIES, Cost
from graphflops.dims import Dim, Expr, evaluate, symbol
from graphflops.size_names import AXIS, called

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from graphflops.report import Named, Report
    from graphflops.tensor import TensorType

_NUMBERED = re.compile(r"[su]\d+")  # as torch names sizes: a name of the user's own reads better

_Place = tuple[int, str]  # 0 for the old program or 1 for the new one, and the size's name there
Axis = tuple[str, int]


class Renamed:
    """Substitutes joint sizes into the quantities of one program; each distinct quantity once.

    called: what people read for the sizes of that program.
    """

    def __init__(self, names: Mapping[str, Dim], called: Mapping[str, str]) -> None:
        self.called = called
        self._names = {name: size for name, size in names.items() if size is not symbol(name)}
        self._known: dict[Dim, Dim] = {}

    def __call__(self, dim: Dim) -> Dim:
        if isinstance(dim, int) or not self._names:
            return dim
        known = self._known.get(dim)
        if known is None:
            try:
                known = dim.substitute(self._names)
            except ZeroDivisionError:  # a formula without a value at a size that the other program fixes
                known = dim
            self._known[dim] = known
        return known

    def text(self, what: Dim | TensorType | str) -> str:
        """A quantity, a type or a shape of that program with the names that people read."""
        return called(str(what), self.called)

    def cost(self, cost: Cost) -> Cost:
        """All quantities of a cost."""
        if not self._names:
            return cost
        return Cost(*(self(getattr(cost, name)) for name in QUANTITIES))


@dataclass(frozen=True, slots=True)
class JointSizes:
    """The joint sizes of two programs.

    old, new: quantities of either in joint sizes. values: what they are compared at.
    """

    sizes: tuple[JointSize, ...]
    remarks: tuple[Remark, ...]
    old: Renamed
    new: Renamed
    values: Mapping[str, int]

    def value(self, quantity: Dim) -> int | None:
        """A quantity at the sizes compared at; None where one has no value."""
        return evaluate(quantity, self.values)


def join(old: Report, new: Report) -> JointSizes:
    """Find the sizes that are the same, and the values to compare at.

    A value that the user gave counts first, then a number that one of the programs fixes, then the old program's example,
    then the new one's, then what is assumed of the old, then of the new.
    """
    reports = (old, new)
    renamed_inputs = {theirs: ours for ours, theirs in _same_inputs(old.inputs, new.inputs).items()}
    axes = (_Axes(old, {}), _Axes(new, renamed_inputs))
    classes = _classes(old, new, axes)
    names = _joint_names(classes, (old.names, new.names))
    renamed: tuple[dict[str, Dim], dict[str, Dim]] = ({}, {})
    values: dict[str, int] = {}
    sizes: list[JointSize] = []
    remarks: list[Remark] = []
    for own, name in zip(classes, names, strict=True):
        sides = tuple(_Known.of(reports[side], own[side], own[1 - side], axes, side) for side in (0, 1))
        settled = [side.settled for side in sides]
        value = None
        if None in settled or settled[0] == settled[1]:
            rest = [*(side.hint for side in sides), *(side.assumed for side in sides)]
            value = next((v for v in (*settled, *rest) if v is not None), None)
        if value is not None:
            values[name] = value
        for side, other in ((0, settled[1]), (1, settled[0])):
            number = other if sides[side].bound is None else None
            renamed[side].update(dict.fromkeys(own[side], symbol(name) if number is None else number))
        ours, theirs = (own[side][0] if own[side] else sides[side].fixed for side in (0, 1))
        assumed = settled == [None, None] and all(side.hint is None for side in sides) and value is not None
        before, after = (side.value for side in sides)
        sizes.append(JointSize(name, _where(reports, own), ours, theirs, value, before, after, assumed))
        remarks += _remarks(sizes[-1], settled, [side.hint for side in sides])
    sizes.sort(key=lambda size: size.before_value == size.after_value and not (size.opened or size.fixed))
    both = [Renamed(own, report.names) for own, report in zip(renamed, reports, strict=True)]
    return JointSizes(tuple(sizes), tuple(remarks), both[0], both[1], values)


class _Known(NamedTuple):
    """What one program knows about a size: value given by the user, fixed number, example of the export, assumed value."""

    bound: int | None
    fixed: int | None
    hint: int | None
    assumed: int | None

    @property
    def settled(self) -> int | None:
        """The given value, else the fixed number."""
        return self.fixed if self.bound is None else self.bound

    @property
    def value(self) -> int | None:
        """The given value, else the fixed number, else the example, else the assumed value."""
        found = (self.settled, self.hint, self.assumed)
        return next((value for value in found if value is not None), None)

    @staticmethod
    def of(
        report: Report, own: Sequence[str], others: Sequence[str], axes: tuple[_Axes, _Axes], side: int
    ) -> _Known:
        infos = [report.symbols[name] for name in own]

        def first(given_by: str) -> int | None:
            return next((info.value for info in infos if info.given_by == given_by), None)

        fixed = None if own else _fixed(others, axes[1 - side], axes[side])
        return _Known(first("user"), fixed, first("hint"), first("assumption"))


def _same_inputs(old: Sequence[Named], new: Sequence[Named]) -> dict[str, str]:
    """Pairs the inputs of both programs: by name, or by position if no name is common."""
    theirs = {entry.name for entry in new}
    common = {entry.name: entry.name for entry in old if entry.name in theirs}
    if common or len(old) != len(new):
        return common
    if any(a.type.rank != b.type.rank for a, b in zip(old, new, strict=True)):
        return {}
    return {a.name: b.name for a, b in zip(old, new, strict=True)}


class _Axes:
    """The size of each axis of each input, and the axes whose size is one symbol, by its name."""

    def __init__(self, report: Report, others: Mapping[str, str]) -> None:
        """others: the name that the other program has for an input."""
        self.sizes: dict[Axis, Dim] = {}
        for (
            name,
            info,
        ) in report.symbols.items():  # a size that the user bound is a number in the inputs' types
            for place in info.where:
                if (axis := AXIS.fullmatch(place)) is not None:
                    self.sizes[others.get(axis[1], axis[1]), int(axis[2])] = symbol(name)
        for entry in report.inputs:
            for index, size in enumerate(entry.type.shape):
                place_ = (others.get(entry.name, entry.name), index)
                if not (isinstance(size, int) and place_ in self.sizes):
                    self.sizes[place_] = size
        self.of: dict[str, list[Axis]] = {}
        for axis_, size in self.sizes.items():
            if (alone := _alone(size)) is not None:
                self.of.setdefault(alone, []).append(axis_)


def _alone(size: Dim | None) -> str | None:
    """The name of the symbol that the size consists of; None for any other size."""
    atom = size.as_atom() if isinstance(size, Expr) else None
    return atom.name if atom is not None and atom.kind == "symbol" else None


def _classes(old: Report, new: Report, axes: tuple[_Axes, _Axes]) -> list[tuple[list[str], list[str]]]:
    """Classes of equal symbols, as names in the old and in the new program, in order of appearance."""
    group: dict[_Place, list[_Place]] = {}
    for side, report in enumerate((old, new)):
        group.update({(side, name): [(side, name)] for name in report.symbols})

    def unite(first: _Place, second: _Place) -> None:
        one, other = group.get(first), group.get(second)
        if one is None or other is None or one is other:
            return
        one += other
        for place in other:
            group[place] = one

    for axis, size in axes[0].sizes.items():
        ours, theirs = _alone(size), _alone(axes[1].sizes.get(axis))
        if ours is not None and theirs is not None:
            unite((0, ours), (1, theirs))
    for name in old.symbols:
        alone = (1, name) in group and len(group[0, name]) == len(group[1, name]) == 1
        if alone and not all(
            name in side.of for side in axes
        ):  # one of the name at another axis is another size
            unite((0, name), (1, name))
    distinct = {id(members): members for members in group.values()}.values()
    return [
        ([name for side, name in m if side == 0], [name for side, name in m if side == 1]) for m in distinct
    ]


def _fixed(names: Iterable[str], theirs: _Axes, ours: _Axes) -> int | None:
    """The one number that a program has at the axes of these symbols of the other program; None if there are several."""
    numbers = {ours.sizes.get(axis) for name in names for axis in theirs.of.get(name, ())}
    numbers.discard(None)
    (only,) = numbers if len(numbers) == 1 else (None,)
    return only if isinstance(only, int) else None


def _joint_names(
    classes: Sequence[tuple[list[str], list[str]]], called: tuple[Mapping[str, str], Mapping[str, str]]
) -> list[str]:
    """One name for each class: the old program's, unless that is an axis and the new program has a name of the user's.

    called: what people read for the sizes of either program.
    """
    chosen: dict[str, None] = {}
    tries: Counter[str] = Counter()
    old = {called[0][name] for ours, _ in classes for name in ours}
    for ours, theirs in classes:
        own = [called[0][name] for name in ours]
        both = [*own, *(called[1][name] for name in theirs)]
        words = (name for name in both if not _NUMBERED.fullmatch(name) and not AXIS.fullmatch(name))
        name = word = next(words, both[0])
        while name in chosen or (name in old and name not in own):
            tries[word] += 1
            name = f"{word}_new{tries[word] if tries[word] > 1 else ''}"
        chosen[name] = None
    return [*chosen]


def _where(reports: tuple[Report, Report], own: Sequence[Sequence[str]]) -> tuple[str, ...]:
    places = {
        place: None
        for report, names in zip(reports, own, strict=True)
        for name in names
        for place in report.symbols[name].where
    }
    return tuple(places)


def _remarks(size: JointSize, settled: Sequence[int | None], hints: Sequence[int | None]) -> Iterator[Remark]:
    place = size.where[0] if size.where else size.name
    if settled[0] is not None and settled[1] is not None:
        if settled[0] != settled[1]:
            both = f"{place} is {settled[0]:,} in the old and {settled[1]:,} in the new"
            text = f"{both}: give both one size with --dim or --input"
            yield Remark("sizes-differ", text)
    elif settled[0] is None and settled[1] is None and None not in hints and hints[0] != hints[1]:
        text = f"{place} was exported at {hints[0]:,} and is at {hints[1]:,} in the new: both are compared at {hints[0]:,}"
        yield Remark("examples-differ", text)


def different_inputs(
    old: Report, new: Report, joined: JointSizes
) -> Iterator[tuple[str, str | None, str | None]]:
    """Inputs whose type in joint sizes changed: name, type before, type after."""
    pairs = _same_inputs(old.inputs, new.inputs)
    theirs = {entry.name: entry.type for entry in new.inputs}
    for name, type_ in old.inputs:
        other = theirs.pop(pairs[name], None) if name in pairs else None
        if other is None:
            yield name, joined.old.text(type_), None
        elif type_.dtype != other.dtype or [*map(joined.old, type_.shape)] != [*map(joined.new, other.shape)]:
            yield name, joined.old.text(type_), joined.new.text(other)
    for name, other in theirs.items():
        yield name, None, joined.new.text(other)
