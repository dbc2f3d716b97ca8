"""Computes a recorded step for other sizes of its mesh: recordings on several meshes give its numbers as formulas.

Along an axis of n devices, a number is a + b n or a + b / n; for several axes, it is a sum of products of these. It is a
size, a shard of one, the number of a value or of devices, or a root of such, as divisors of norms are. Recordings at two
sizes of each axis, in every combination, determine a and b. One more, at third sizes, selects the formula and confirms it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate, groupby, product
from math import prod
from typing import Any

from msgspec import convert, to_builtins
from msgspec.structs import asdict

from graphflops.base.limits import spend
from graphflops.errors import ModelError, shown
from graphflops.exporters.step_file import RecordedStep

LARGEST = 2**20  # devices of a mesh
_LEAST = 2  # devices of an axis: a single device exchanges nothing, so a step on it has other calls


def samples(axes: Mapping[str, int], chosen: Sequence[str]) -> list[dict[str, int]]:
    """The meshes on which a step must be recorded to leave the sizes of chosen axes open; the first is `axes` itself."""
    chosen = [name for name in axes if name in chosen]
    others = {name: _others(axes[name]) for name in chosen}
    corners = product(*((axes[name], others[name][0]) for name in chosen))
    last = [others[name][1] for name in chosen]
    return [{**axes, **dict(zip(chosen, sizes, strict=True))} for sizes in (*corners, last)]


def _others(size: int) -> tuple[int, int]:
    """Two more sizes of an axis, smaller if possible: a tensor that divides by a size also divides by its factors."""
    if size % 4 == 0 and size // 4 >= _LEAST:
        return size // 2, size // 4
    return (size // 2, 2 * size) if size % 2 == 0 and size // 2 >= _LEAST else (2 * size, 4 * size)


def at_mesh(steps: Sequence[RecordedStep], axes: Mapping[str, int]) -> RecordedStep:
    """The step as it would be recorded on a mesh of these sizes, or of its own where none is given. steps: those of
    `samples`. Raises ModelError if a size does not divide, or if calls depend on the mesh.
    """
    first = steps[0]
    recorded = dict(first.axes)
    for name, size in axes.items():
        if name not in recorded:
            raise ModelError(f"--mesh {name}={size}: the mesh has {shown(', '.join(recorded) or 'no axis')}")
        is_open = len({dict(step.axes)[name] for step in steps}) > 1
        if size != recorded[name] and not is_open:
            alone = f"recorded at {name}={recorded[name]} alone"
            raise ModelError(f"--mesh {name}={size}: {alone}: record it with --open-axis {name}")
        if is_open and size < _LEAST:
            raise ModelError(f"--mesh {name}={size}: other calls run there than were recorded: record it so")
    wanted = {**recorded, **axes}
    if wanted == recorded:
        return first  # even if the calls depend on the mesh
    for step in steps[1:]:
        if len(step.calls) != len(first.calls):
            raise ModelError(
                f"the step has {len(first.calls):,} calls at {_said(first.axes)} and {len(step.calls):,} at "
                f"{_said(step.axes)}: its calls depend on the mesh, so record it at each"
            )
        if _fixed(step) != _fixed(first):
            where = f"at {_said(first.axes)} and {_said(step.axes)}"
            raise ModelError(f"{where} the step has other calls or groups: record it at each")
    if not all(group.axis for group in first.groups):
        raise ModelError("a process group lies along no axis of the mesh: record the step at each mesh")
    names = [group.name for group in first.groups]
    numbers = _Numbers([dict(step.axes) for step in steps], wanted)
    return _step(numbers.parts([_parts(step, names) for step in steps], first), first, wanted)


def _said(axes: Sequence[tuple[str, int]]) -> str:
    return ",".join(f"{name}={size}" for name, size in axes)


def _fixed(step: RecordedStep) -> tuple[Any, ...]:
    mesh = step.rank, [*dict(step.axes)], [group.axis for group in step.groups]
    return (*mesh, step.operators, step.modules, step.sources, step.guesses, step.is_compiled)


def _parts(step: RecordedStep, groups: Sequence[str]) -> list[list[Any]]:
    """What may differ between meshes, as lists: values, in a list for each input or call that makes them, then memory,
    inputs and calls. A name that is made of a value's number is left out. groups: what the process groups are called.
    """
    held = to_builtins(step)
    maker = {entry.value: -1 - place for place, entry in enumerate(step.inputs)}
    maker |= {x: place for place, call in enumerate(step.calls) for x in call.results if x is not None}
    runs = groupby(enumerate(held["values"]), key=lambda numbered: maker.get(numbered[0]))
    values = [[value for _, value in run] for _, run in runs]
    own = _first_values(held["values"])
    storages = [
        ["" if name == own.get(x) else name, *more] for x, (name, *more) in enumerate(held["storages"])
    ]
    inputs = [[x, role, "" if name == f"v{x}" else name] for x, role, name in held["inputs"]]
    names = {group.name: name for group, name in zip(step.groups, groups, strict=True)}

    def renamed(given: Any) -> Any:
        if isinstance(given, list):
            return [renamed(item) for item in given]
        return names.get(given, given) if isinstance(given, str) else given

    calls = [
        [operator, renamed(args), {key: renamed(given) for key, given in kwargs.items()}, *others]
        for operator, args, kwargs, *others in held["calls"]
    ]
    return [values, storages, inputs, calls]


def _first_values(values: Sequence[list[Any]]) -> dict[int, str]:
    return {storage: f"v{number}" for number, (storage, *_) in reversed([*enumerate(values)])}


def _step(parts: Sequence[list[Any]], first: RecordedStep, axes: Mapping[str, int]) -> RecordedStep:
    runs, storages, inputs, calls = parts
    values = [value for run in runs for value in run]
    own = _first_values(values)
    held = {**asdict(first), "axes": [*axes.items()], "values": values, "calls": calls}
    held["groups"] = [[group.name, group.axis, ranks_along(axes, group.axis)] for group in first.groups]
    held["storages"] = [[name or own.get(x, ""), *more] for x, (name, *more) in enumerate(storages)]
    held["inputs"] = [[x, role, name or f"v{x}"] for x, role, name in inputs]
    return convert(held, RecordedStep)


def ranks_along(axes: Mapping[str, int], along: str, rank: int = 0) -> list[int]:
    """The ranks of a rank's group along axes of the mesh, such as `dp+tp`, in order; for "", the rank alone."""
    names = [*axes]
    strides = {name: prod(axes[inner] for inner in names[place + 1 :]) for place, name in enumerate(names)}
    chosen = [name for name in names if name in along.split("+")]
    spans = [range(0, axes[name] * strides[name], strides[name]) for name in chosen]
    start = rank - sum(rank // strides[name] % axes[name] * strides[name] for name in chosen)
    return [start + sum(place) for place in product(*spans)]


class _Numbers:
    """Computes the numbers of a step on the wanted mesh from its numbers on the recorded ones."""

    def __init__(self, meshes: Sequence[Mapping[str, int]], wanted: Mapping[str, int]) -> None:
        *corners, checked = meshes
        chosen = [name for name in checked if checked[name] != corners[0][name]]
        self.here, self.there = (_said([(x, mesh[x]) for x in chosen]) for mesh in (corners[0], wanted))
        sizes = {name: (corners[0][name], corners[-1][name]) for name in chosen}
        # For each formula: the weights of the corners at the mesh that checks it, and at the wanted mesh.
        self.formulas = [
            tuple(_weights(dict(zip(chosen, powers, strict=True)), sizes, at) for at in (checked, wanted))
            for powers in product((1, -1), repeat=len(chosen))
        ]
        self.known: dict[tuple[Any, ...], Any] = {}
        self.where = ""

    def parts(self, parts: Sequence[Sequence[list[Any]]], step: RecordedStep) -> list[list[Any]]:
        called = [f"{step.operators[call.operator]} ({step.modules[call.module][0]})" for call in step.calls]
        makers = {entry.value: entry.target for entry in step.inputs}
        for call, name in zip(step.calls, called, strict=True):
            makers |= {x: f"a result of {name}" for x in call.results if x is not None}
        starts = accumulate(map(len, parts[0][0]), initial=0)
        named = (
            [makers.get(start, "") for start, _ in zip(starts, parts[0][0], strict=False)],
            [f"memory {memory.name}" for memory in step.storages],
            [f"input {place}" for place in range(len(step.inputs))],
            called,
        )
        return [*map(self._listed, named, zip(*parts, strict=True))]

    def _listed(self, names: Sequence[str], parts: Sequence[list[Any]]) -> list[Any]:
        if len({len(part) for part in parts}) > 1:
            raise ModelError(f"how many tensors a step makes depends on {self.here}: record it at each mesh")
        found = []
        for self.where, *entries in zip(names, *parts, strict=True):
            found.append(self.merged(entries))
        return found

    def merged(self, parts: Sequence[Any]) -> Any:
        """The entry for the wanted mesh, from the entries in its place on the recorded ones."""
        first = parts[0]
        if all(part == first and type(part) is type(first) for part in parts):
            return first
        if all(type(part) in (int, float) for part in parts):
            return self._number(tuple(parts))
        if all(isinstance(part, list) for part in parts):
            if len({len(part) for part in parts}) > 1:
                return [*self._repeated(parts)]
            return [self.merged(entries) for entries in zip(*parts, strict=True)]
        if all(isinstance(part, dict) and part.keys() == first.keys() for part in parts):
            return {key: self.merged([part[key] for part in parts]) for key in first}
        raise self._refusal("is another on each mesh")

    def _repeated(self, parts: Sequence[list[Any]]) -> Iterator[Any]:
        """A list with one entry per device of an axis: entries are equal, or go from one to the next in equal steps."""
        number = self._number(tuple(map(len, parts)))
        if min(map(len, parts)) < _LEAST or number < 0:
            raise self._refusal("has a list of another length on each mesh")
        for part in parts:
            if any(entry != self._after(part[0], part[1], turn) for turn, entry in enumerate(part)):
                raise self._refusal("has lists whose entries are not alike")
        start, following = (self.merged([part[place] for part in parts]) for place in (0, 1))
        spend("calls", number)
        for turn in range(number):
            yield self._after(start, following, turn)

    def _after(self, start: Any, following: Any, turns: int) -> Any:
        """The entry that comes `turns` entries after the first, `start`."""
        if start == following:
            return start
        if type(start) is int and type(following) is int:
            return start + (following - start) * turns
        if isinstance(start, list) and isinstance(following, list) and len(start) == len(following):
            return [self._after(one, other, turns) for one, other in zip(start, following, strict=True)]
        if isinstance(start, dict) and isinstance(following, dict) and start.keys() == following.keys():
            return {key: self._after(start[key], following[key], turns) for key in start}
        raise self._refusal("has lists whose entries are not alike")

    def _number(self, values: tuple[Any, ...]) -> Any:
        if values not in self.known:
            found, power = self._wanted(map(Fraction, values)), 1.0
            if not found and all(isinstance(value, float) and value > 0 for value in values):
                squares = (Fraction(value * value).limit_denominator(LARGEST) for value in values)
                found, power = self._wanted(squares), 0.5
            if len(found) != 1:
                raise self._refusal(f"has {' , '.join(map(str, values))}, which no formula of the mesh gives")
            (number,) = found
            if isinstance(values[0], int) and number.denominator > 1:
                size = f"{values[0]:,} at {self.here} would be {float(number):,.6g} at {self.there}"
                raise self._refusal(f"does not divide: {size}")
            self.known[values] = int(number) if isinstance(values[0], int) else float(number) ** power
        return self.known[values]

    def _wanted(self, values: Iterable[Fraction]) -> set[Fraction]:
        """The values on the wanted mesh, by each formula that gives the right value on the last recorded mesh."""
        *corners, checked = values
        return {_total(corners, there) for here, there in self.formulas if _total(corners, here) == checked}

    def _refusal(self, problem: str) -> ModelError:
        return ModelError(f"--mesh {self.there}: {shown(self.where, 120)} {problem}")


def _weights(
    powers: Mapping[str, int], sizes: Mapping[str, tuple[int, int]], at: Mapping[str, int]
) -> list[Fraction]:
    """The weight of each corner's number in the number at the mesh `at`: linear interpolation in size ** power by axis."""
    pairs = []
    for name, power in powers.items():
        first, second, here = (Fraction(size) ** power for size in (*sizes[name], at[name]))
        part = (here - second) / (first - second)
        pairs.append((part, 1 - part))
    return [Fraction(prod(corner)) for corner in product(*pairs)]


def _total(values: Sequence[Fraction], weights: Sequence[Fraction]) -> Fraction:
    return sum((value * weight for value, weight in zip(values, weights, strict=True)), Fraction(0))
