"""Joins the sizes of two programs: by input axis, then by name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from graphflops.base.record import Record
from graphflops.comparison.result import DtypeChange, InputChange, JointSize, Remark
from graphflops.cost import QUANTITIES, Cost
from graphflops.dims import Dim, Expr, evaluate, symbol
from graphflops.dims.solving import affine, common
from graphflops.open_sizes import is_computed
from graphflops.report import Named, Report, SymbolInfo
from graphflops.report.size_names import AXIS, called
from graphflops.tensor import TensorType

_NUMBERED = re.compile(r"[su]\d+(_new\d*)?")  # as torch names sizes; a name of the user's own reads better
_OF_BOTH = "s0"  # a size that both programs have multiples of
_FARTHEST = 2**62

_Place = tuple[int, str]  # 0 for the old program or 1 for the new one, and the size's name there
Axis = tuple[str, int]


class Renamed:
    """Substitutes joint sizes into the quantities of one program; each distinct quantity once."""

    def __init__(self, names: Mapping[str, Dim], called: Mapping[str, str]) -> None:
        self.called = called  # the name that people read for each size of that program
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
        if not self._names:
            return cost
        return Cost(*(self(getattr(cost, name)) for name in QUANTITIES))


class JointSizes(Record, frozen=True):
    """The joint sizes of two programs."""

    sizes: tuple[JointSize, ...]
    remarks: tuple[Remark, ...]
    old: Renamed  # puts quantities into joint sizes; so does `new`
    new: Renamed
    values: Mapping[str, int]  # the sizes at which programs are compared

    def texts(self, before: Dim | TensorType | str, after: Dim | TensorType | str) -> tuple[str, str]:
        """Quantities, types or shapes of the two programs with the names that people read."""
        return called(str(before), self.old.called), called(str(after), self.new.called)

    def value(self, quantity: Dim) -> int | None:
        """A quantity at the compared sizes; None if one of them has no value."""
        return evaluate(quantity, self.values)


def join(old: Report, new: Report) -> JointSizes:
    """Find the sizes that are the same, and the values to compare at.

    A value that the user gave counts first; then a number that one of the programs fixes; then the old program's example,
    then the new one's; then the old program's assumed value, then the new one's.
    """
    renamed_inputs = {theirs: ours for ours, theirs in _same_inputs(old.inputs, new.inputs).items()}
    axes = (_Axes(old, {}), _Axes(new, renamed_inputs))
    classes = _classes(axes)
    names = _joint_names(classes, (old.names, new.names))
    renamed: tuple[dict[str, Dim], dict[str, Dim]] = ({}, {})
    values: dict[str, int] = {}
    sizes: list[JointSize] = []
    remarks: list[Remark] = []
    for one, name in zip(classes, names, strict=True):
        sides = [_known(one, axes, side) for side in (0, 1)]
        settled, hints = [_first((side.bound, side.fixed)) for side in sides], [side.hint for side in sides]
        value = None
        if None in settled or settled[0] == settled[1]:
            value = _first([*settled, *hints, *(side.assumed for side in sides)])
        if value is not None:
            values[name] = value
        for side, other in ((0, settled[1]), (1, settled[0])):
            number = other if sides[side].bound is None else None
            size = one.scales[side].of(symbol(name) if number is None else number)
            renamed[side].update(dict.fromkeys(one.own[side], size))
        assumed = settled == hints == [None, None] and value is not None
        sizes.append(_joint(name, one, axes, sides, value, assumed))
        remarks += _remarks(sizes[-1], settled, hints)
    sizes.sort(key=lambda size: size.before_value == size.after_value and not (size.opened or size.fixed))
    both = Renamed(renamed[0], old.names), Renamed(renamed[1], new.names)
    return JointSizes(tuple(sizes), tuple(remarks), *both, values)


class _Scale(NamedTuple):
    """A size of a program as `slope * size + offset` of the joint size."""

    slope: int = 1
    offset: int = 0

    def of(self, joint: Dim) -> Dim:
        return joint * self.slope + self.offset

    def joint(self, own: int | None) -> int | None:
        found, rest = divmod(0 if own is None else own - self.offset, self.slope)
        return None if own is None or rest else found


class _Class(NamedTuple):
    """Symbols of the old and of the new program that are one size, and how each program's symbols depend on it."""

    own: tuple[list[str], list[str]]
    scales: tuple[_Scale, _Scale] = (_Scale(), _Scale())


def _joint(
    name: str, one: _Class, axes: tuple[_Axes, _Axes], sides: Sequence[_Known], value: int | None,
    assumed: bool,
) -> JointSize:  # fmt: skip
    ours, theirs = (one.own[side][0] if one.own[side] else sides[side].fixed for side in (0, 1))
    infos = [side.symbols[own] for side, names in zip(axes, one.own, strict=True) for own in names]
    places = tuple(dict.fromkeys(place for info in infos for place in info.where))
    computed: dict[str, Dim] = {}
    for side in (1, 0):
        for own in one.own[side]:
            put_in = {own: one.scales[side].of(symbol(name))}
            info = axes[side].symbols[own]
            within = [(place, axes[side].at.get(place, 0)) for place in info.where]
            sizes = [(place, size.substitute(put_in)) for place, size in within if isinstance(size, Expr)]
            computed.update((place, size) for place, size in sizes if is_computed(size))
            if info.label_axis in computed:  # what the user calls the axis
                computed = {info.label: computed[info.label_axis], **computed}
    told = [place for place, size in computed.items() if (affine(size) or ("",))[0] == name]
    lows, highs = [], []  # of both programs' symbols, in the joint size
    for of, names, (slope, offset) in zip(axes, one.own, one.scales, strict=True):
        for info in map(of.symbols.__getitem__, names):
            lows += [-((offset - info.minimum) // slope)] if info.minimum is not None else []
            highs += [(info.maximum - offset) // slope] if info.maximum is not None else []
    return JointSize(
        name,
        places,
        ours,
        theirs,
        value,
        _first(sides[0]),
        _first(sides[1]),
        assumed,
        max(lows, default=None),
        min(highs, default=None),
        computed,
        told[0] if told and (_NUMBERED.fullmatch(name) or told[0] not in places) else "",
        *(None if scale == _Scale() else scale.of(symbol(name)) for scale in one.scales),
    )


class _Known(NamedTuple):
    """What one program states about a size."""

    bound: int | None  # the user's value
    fixed: int | None  # the number that it has in place of the size
    hint: int | None  # the export's example
    assumed: int | None


def _known(one: _Class, axes: tuple[_Axes, _Axes], side: int) -> _Known:
    infos, scale = [axes[side].symbols[name] for name in one.own[side]], one.scales[side]
    bound, hint, assumed = (
        next((scale.joint(info.value) for info in infos if info.given_by == giver), None)
        for giver in ("user", "hint", "assumption")
    )
    fixed = None if infos else _fixed(one.own[1 - side], axes[1 - side], axes[side])
    return _Known(bound, fixed, hint, assumed)


def _first(values: Iterable[int | None]) -> int | None:
    return next((value for value in values if value is not None), None)


def _same_inputs(old: Sequence[Named], new: Sequence[Named]) -> dict[str, str]:
    """Pairs the inputs of both programs: by name, or by position if no name is common."""
    theirs = {entry.name for entry in new}
    common = {entry.name: entry.name for entry in old if entry.name in theirs}
    if common or [one.type.rank for one in old] != [one.type.rank for one in new]:
        return common
    return {a.name: b.name for a, b in zip(old, new, strict=True)}


class _Axes:
    """The sizes of a program: of each axis of each input; and by symbol, the axes whose size determines it."""

    def __init__(self, report: Report, others: Mapping[str, str]) -> None:
        """others: the name that the other program has for an input."""
        self.symbols = report.symbols
        # The axis by the program's name; a size that the user bound is a symbol here.
        self.at: dict[str, Dim] = {}
        for name, info in report.symbols.items():
            self.at.update({place: info.computed.get(place, symbol(name)) for place in info.where})
        for entry in report.inputs:
            for index, size in enumerate(entry.type.shape):
                place = f"{entry.name}[{index}]"
                self.at[place] = self.at.get(place, size) if isinstance(size, int) else size
        self.sizes: dict[Axis, Dim] = {}
        self.of: dict[str, list[Axis]] = {}
        for place, size in self.at.items():
            if (found := AXIS.fullmatch(place)) is not None:
                axis = others.get(found[1], found[1]), int(found[2])
                self.sizes[axis] = size
                if (line := affine(size)) is not None:
                    self.of.setdefault(line[0], []).append(axis)


def _classes(axes: tuple[_Axes, _Axes]) -> list[_Class]:
    """Classes of equal symbols, as names in the old and in the new program, in order of appearance."""
    group: dict[_Place, list[_Place]] = {}
    for side, of in enumerate(axes):
        group.update({(side, name): [(side, name)] for name in of.symbols})
    scales: dict[_Place, _Scale] = {}

    def unite(first: _Place, second: _Place) -> None:
        one, other = group.get(first), group.get(second)
        if one is not None and other is not None and one is not other:
            one += other
            group.update(dict.fromkeys(other, one))

    met = ((affine(size), affine(axes[1].sizes.get(axis, 0))) for axis, size in axes[0].sizes.items())
    pairs = [(ours, theirs) for ours, theirs in met if ours is not None and theirs is not None]
    for ours, theirs in pairs:
        if ours[1:] == theirs[1:] == (1, 0):
            unite((0, ours[0]), (1, theirs[0]))
    for ours, theirs in pairs:  # by axes that are computed from sizes: symbols without an axis so far
        infos = axes[0].symbols.get(ours[0]), axes[1].symbols.get(theirs[0])
        found = _common_scales(ours[1:], theirs[1:], infos)
        places: list[_Place] = [(0, ours[0]), (1, theirs[0])]
        if found is not None and all(len(group.get(place, ())) == 1 for place in places):
            scales.update(zip(places, found, strict=True))
            unite(*places)
    for name in axes[0].symbols:
        alone = (1, name) in group and len(group[0, name]) == len(group[1, name]) == 1
        # If both have an axis, and these differ, equal names are two sizes.
        if alone and not all(name in side.of for side in axes):
            unite((0, name), (1, name))
    classes = []
    for members in {id(members): members for members in group.values()}.values():
        own, others = ([name for side, name in members if side == which] for which in (0, 1))
        first, second = (0, own[0] if own else ""), (1, others[0] if others else "")
        both = (scales.get(first, _Scale()), scales.get(second, _Scale()))
        classes.append(_Class((own, others), both))
    return classes


def _common_scales(
    ours: tuple[int, int], theirs: tuple[int, int], infos: Sequence[SymbolInfo | None]
) -> tuple[_Scale, _Scale] | None:
    """Both sizes as multiples of one; None if they are never equal, or if a value of the user's would be impossible."""
    if min(ours[0], theirs[0]) < 1:
        return None
    both = common(range(ours[1], _FARTHEST, ours[0]), range(theirs[1], _FARTHEST, theirs[0]))
    start = next((offset for slope, offset in (ours, theirs) if slope == both.step), both.start)
    scales = [_Scale(both.step // slope, (start - offset) // slope) for slope, offset in (ours, theirs)]
    given = [info.value if info is not None and info.given_by == "user" else None for info in infos]
    pairs = zip(given, scales, strict=True)
    lost = [value is not None and scale.joint(value) is None for value, scale in pairs]
    return (scales[0], scales[1]) if both and not any(lost) else None


def _fixed(names: Iterable[str], theirs: _Axes, ours: _Axes) -> int | None:
    """The one number that a program has for these symbols of the other program, by their axes; None if there are several."""
    numbers: set[int | None] = set()
    for name in names:
        for axis in theirs.of.get(name, ()):
            size, line = ours.sizes.get(axis), affine(theirs.sizes[axis])
            if size is not None and line is not None:
                numbers.add(_Scale(*line[1:]).joint(size) if isinstance(size, int) else None)
    (only,) = numbers if len(numbers) == 1 else (None,)
    return only


def _joint_names(classes: Sequence[_Class], called: tuple[Mapping[str, str], Mapping[str, str]]) -> list[str]:
    """For each class the old program's name, unless only the new one's is the user's own. called: names for people."""
    chosen: dict[str, None] = {}
    tries: Counter[str] = Counter()
    old = {called[0][name] for one in classes for name in one.own[0]}
    for one in classes:
        same = [names if scale == _Scale() else [] for names, scale in zip(one.own, one.scales, strict=True)]
        own = [called[0][name] for name in same[0]]
        both = [*own, *(called[1][name] for name in same[1])] or [_OF_BOTH]
        words = (name for name in both if not _NUMBERED.fullmatch(name) and not AXIS.fullmatch(name))
        name = word = next(words, both[0])
        while name in chosen or (name in old and name not in own):
            tries[word] += 1
            name = f"{word}_new{tries[word] if tries[word] > 1 else ''}"
        chosen[name] = None
    return [*chosen]


def _remarks(size: JointSize, settled: Sequence[int | None], hints: Sequence[int | None]) -> Iterator[Remark]:
    is_settled = None not in settled
    pair = settled if is_settled else hints if settled == [None, None] else ()
    values = [f"{size.at(value):,}" for value in pair if value is not None]
    if len({*values}) < 2:
        return
    old, new = values
    if is_settled:
        both = f"{size.place} is {old} in the old and {new} in the new"
        yield Remark("sizes-differ", f"{both}: give both one size with --dim or --input")
    else:
        both = f"{size.place} was exported at {old} and is at {new} in the new"
        yield Remark("examples-differ", f"{both}: both are compared at {old}")


def different_dtypes(old: Report, new: Report) -> Iterator[DtypeChange]:
    """The bytes of parameters of each element type, where the types differ."""
    before, after = old.parameter_dtypes, new.parameter_dtypes
    if {*before} != {*after}:
        for dtype in {**before, **after}:
            yield DtypeChange(dtype, before.get(dtype, 0), after.get(dtype, 0))


def different_inputs(old: Report, new: Report, joined: JointSizes) -> Iterator[InputChange]:
    """Inputs whose type in joint sizes changed."""
    pairs = _same_inputs(old.inputs, new.inputs)
    theirs = {entry.name: entry.type for entry in new.inputs}
    for name, type_ in old.inputs:
        other = theirs.pop(pairs[name], None) if name in pairs else None
        if other is None:
            yield InputChange(name, joined.old.text(type_), None)
        elif type_.dtype != other.dtype or [*map(joined.old, type_.shape)] != [*map(joined.new, other.shape)]:
            yield InputChange(name, joined.old.text(type_), joined.new.text(other))
    for name, other in theirs.items():
        yield InputChange(name, None, joined.new.text(other))
