"""The sizes that a program leaves open, each under the names by which people read and give it.

An input axis is named by its own size, a symbol by its own name: where `x[2]` is `2*h`, the axis at 64 is `h` at 32.
All code that turns named sizes into values of symbols, or that names a size, uses this module.
"""

import re
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, NoReturn, Union

from graphflops.base.record import Record, field
from graphflops.dims import Dim, Expr, evaluate, symbol
from graphflops.dims.solving import LARGEST_SIZE, affine, common, sizes_taken, solution
from graphflops.errors import ModelError, shown
from graphflops.graph import Symbol
from graphflops.report import Named, Report, SymbolInfo
from graphflops.report.size_names import AXIS, collapsed, matching, named, shortened_axis

_MADE_UP = re.compile(r"[su]\d+")  # as torch names sizes
_MOST_NAMES = 12  # in a message
_ENDLESS = 2**40  # sizes past this have no upper limit


# What is known of a symbol: its inclusive range, and the input axes where it stands.
Range = Union[Symbol, SymbolInfo]


class Stated(NamedTuple):
    """A size as people read and give it: its name, and the expression of symbols that it names."""

    name: str
    size: Dim


class OpenSizes(Record, frozen=True, eq=False, dict=True):
    """The open sizes of a program."""

    symbols: Mapping[str, Range]  # by their own names
    axes: Mapping[str, Dim]  # the sizes of input axes (`ids[1]`) and of scalar inputs
    known: Mapping[str, int] = field(default_factory=dict)  # given as numbers, which stand in axes instead
    computed: Mapping[str, Dim] = field(default_factory=dict)  # axes of expressions, in all their symbols
    labels: Mapping[str, str] = field(default_factory=dict)  # names of the user's, by symbol or by axis
    examples: Mapping[str, int] = field(default_factory=dict)  # of symbols, to choose between solutions

    @cached_property
    def names(self) -> Mapping[str, str]:
        """What each symbol is called in formulas: the user's label, else the file's own name. One that the exporter made up
        (`s70`) gives way to the input axis of that size (`ids[1]`), unless each of its axes is an expression (`4*s70`).
        """
        names: dict[str, str] = {}
        taken: set[str] = set()
        for name in self.symbols:
            said = self.labels.get(name, name)
            if said == name and _MADE_UP.fullmatch(name):
                own = [axis for axis, size in self._sizes(name) if size is symbol(name)]
                said = min(map(shortened_axis, own), key=len, default=name)
                said = min(own, key=len) if own and said in taken else said
            names[name] = said
            taken.add(said)
        return names

    @cached_property
    def stated(self) -> Mapping[str, Stated]:
        """How a list of sizes states each symbol: by an input axis and its size if an exporter made up its name."""
        found = {}
        for name in self.symbols:
            labelled = [Stated(self.labels[axis], x) for axis, x in self._sizes(name) if axis in self.labels]
            own = self.at_axis(name) if _MADE_UP.fullmatch(name) else Stated(name, symbol(name))
            own = Stated(self.labels[name], symbol(name)) if name in self.labels else own
            found[name] = labelled[0] if labelled and name not in self.labels else own
        return found

    def at_axis(self, name: str) -> Stated:
        """An input axis that determines a symbol, preferably one of its size; the symbol itself if there is none."""
        lines = [(Stated(axis, size), affine(size)) for axis, size in self._sizes(name)]
        told = [one for one, line in lines if line is not None and line[0] == name and line[1] > 0]
        return min(told, key=lambda one: one.size is not symbol(name), default=Stated(name, symbol(name)))

    def _sizes(self, name: str) -> list[tuple[str, Dim]]:
        """The axes where a symbol stands and their sizes, in symbols even where these are known."""
        return [(axis, self.computed.get(axis, symbol(name))) for axis in self.symbols[name].where]

    def values(self, known: Mapping[str, int]) -> dict[str, int]:
        """The known sizes as they are stated. known: values by symbol."""
        found = {one.name: evaluate(one.size, known) for name, one in self.stated.items() if name in known}
        return {name: value for name, value in found.items() if value is not None}

    def _text(self, size: Dim) -> str:
        return shown(named(str(size), self.names))

    def places(self, name: str) -> list[str]:
        """The symbols and axes that a name stands for: its own, a label's, or those that a pattern `past_*[2]` matches."""
        place = next((place for place, label in self.labels.items() if label == name), name)
        is_own = place in self.symbols or place in self.axes
        return [place] if is_own else matching(name, (*self.axes, *self.symbols))

    def sizes_of(self, names: str) -> dict[str, Dim]:
        """By symbol or axis, the sizes of a name or of several joined by `=`. Raises ModelError for an unknown name."""
        parts = [names] if self.places(names) else [part.strip() for part in names.split("=")]
        places = [place for part in parts for place in self.places(part) or self._refuse(part)]
        return {place: symbol(place) if place in self.symbols else self.axes[place] for place in places}

    def solved(self, given: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
        """The values of symbols that given sizes imply, and the fixed sizes that are given as other numbers.

        given: by symbol, label, axis or pattern. Raises ModelError for a name that no size has, for sizes that contradict
        one another, and for a size that an axis cannot have.
        """
        values: dict[str, int] = {}
        fixed: dict[str, int] = {}
        wanted: dict[str, int] = {}
        sizes: dict[str, Dim] = {}
        for name, value in given.items():
            for place, size in self.sizes_of(name).items():
                _assign(wanted, place, value)
                sizes[place] = size
        for place in sorted(
            sizes, key=lambda place: (place not in self.symbols, len(str(sizes[place])), place)
        ):
            value, size = wanted[place], sizes[place]
            now = size.substitute({**self.known, **values}) if isinstance(size, Expr) else size
            if isinstance(now, Expr):
                _assign(values, *self._solution(place, now, value))
            elif now != value and isinstance(size, Expr) and place not in self.known:
                text = f"{shown(place)} is {self._text(size)} = {now} at the sizes given, not {value}"
                raise ModelError(text)
            elif now != value:
                fixed[place] = value
        return values, fixed

    def _solution(self, place: str, size: Expr, value: int) -> tuple[str, int]:
        """The one symbol left in a size, and its value."""
        (name, *others) = sorted(size.symbols)
        if size is symbol(name):
            return name, value
        told = f"{shown(place)} is {self._text(size)}"
        if others:
            raise ModelError(f"{told}: give {', '.join(map(self._called, (name, *others)))} instead")
        is_part = self.axes[place] is not size  # of a sum: the other part was given
        low, high = (None, None) if is_part else self._limits(name)
        found = solution(size, value, low, high, self.examples.get(name))
        if found is not None:
            return name, found
        taken = sizes_taken(size, low, high)
        raise ModelError(f"{told}: give {self._called(name) if taken is None else in_words(taken)}")

    def taken(self, names: str) -> range:
        """The values that the size of a name can take; for sizes joined by `=`, those that all of them can."""
        found = range(1, LARGEST_SIZE + 1)
        for place, size in self.sizes_of(names).items():
            if isinstance(size, int):
                raise ModelError(f"{shown(place)} is {size}: the file does not leave it open")
            taken = sizes_taken(size, *self._limits(min(size.symbols)))
            if taken is None:
                instead = ", ".join(map(self._called, sorted(size.symbols)))
                raise ModelError(f"{shown(place)} is {self._text(size)}: give {instead} instead")
            found = common(found, taken)
        return found

    def _limits(self, name: str) -> tuple[int | None, int | None]:
        info = self.symbols.get(name)
        return (None, None) if info is None else (info.minimum, info.maximum)

    def _called(self, name: str) -> str:
        return shown(self.names.get(name, name))

    def _refuse(self, name: str) -> NoReturn:
        found = AXIS.fullmatch(name)
        rank = sum(axis.startswith(f"{found[1]}[") for axis in self.axes) if found else 0
        if found and rank:
            raise ModelError(f"{shown(name)}: {shown(found[1])} has {rank} axes, counted from 0")
        said = [one.name for place, one in self.stated.items() if place not in self.known]
        known = [shown(each) for each in collapsed(dict.fromkeys((*said, *self.axes)))]
        listed = ", ".join(known[:_MOST_NAMES]) or "none"
        more = f" and {len(known) - _MOST_NAMES} more" if len(known) > _MOST_NAMES else ""
        raise ModelError(f"{shown(name)}: no such size; the program has {listed}{more}")


def _assign(values: dict[str, int], name: str, value: int) -> None:
    if not 0 <= value <= LARGEST_SIZE:
        raise ModelError(f"{shown(name)}: {value} is no size")
    if values.setdefault(name, value) != value:
        raise ModelError(f"{shown(name)} is given as {values[name]} and as {value}")


def in_words(sizes: range) -> str:
    """`an even size of 4 to 128`, `a size of at least 3`, `8, 11, 14 ... 194`."""
    is_open = sizes.stop > _ENDLESS
    if sizes.step > 2 and sizes.start % sizes.step:
        listed = ", ".join(map(str, sizes[:3]))
        return listed if len(sizes) < 4 else f"{listed} and so on" if is_open else f"{listed} ... {sizes[-1]}"
    parity = ("", "", "an even size" if sizes.start % 2 == 0 else "an odd size")
    what = f"a multiple of {sizes.step}" if sizes.step > 2 else parity[sizes.step] or "a size"
    if not sizes:
        return "no size"
    return f"{what} of at least {sizes[0]}" if is_open else f"{what} of {sizes[0]} to {sizes[-1]}"


def of_report(report: Report) -> OpenSizes:
    """The open sizes of a report."""
    return of_described(report.symbols, report.inputs)


# The latest that were made, each with the objects (compared by identity) that it was made from.
_RECENT: deque[tuple[object, object, OpenSizes]] = deque(maxlen=8)


def of_described(symbols: Mapping[str, SymbolInfo], inputs: Sequence[Named]) -> OpenSizes:
    """The open sizes of symbols and of the inputs where they stand; made once for the same two objects."""
    for infos, given, known_sizes in tuple(_RECENT):
        if infos is symbols and given is inputs:
            return known_sizes
    axes = axes_of({named.name: named.type for named in reversed(inputs)})
    labels = {info.label_axis or name: info.label for name, info in symbols.items() if info.label}
    computed = {axis: size for axis, size in axes.items() if is_computed(size)}
    for info in symbols.values():
        computed.update(info.computed)
    known = {name: info.value or 0 for name, info in symbols.items() if info.given_by == "user"}
    examples = {name: info.value for name, info in symbols.items() if info.value is not None}
    found = OpenSizes(symbols, axes, known, computed, labels, examples)
    _RECENT.append((symbols, inputs, found))
    return found


def is_computed(size: Dim) -> bool:
    """True for an expression that is no symbol by itself."""
    return isinstance(size, Expr) and not (len(size.symbols) == 1 and size is symbol(min(size.symbols)))


def axes_of(types: Mapping[str, Any]) -> dict[str, Dim]:
    """The sizes of the axes of input tensors, `ids[1]`, and scalar inputs that are sizes, by their names."""
    axes: dict[str, Dim] = {}
    for name, value in types.items():
        if isinstance(value, Expr):
            axes[name] = value
        for place, size in enumerate(getattr(value, "shape", ())):
            axes[f"{name}[{place}]"] = size
    return axes
