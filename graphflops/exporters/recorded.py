"""Reads a recorded step: a zip archive with one member of JSON, of `graphflops capture --step` (docs/recorded.md)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, Optional

import msgspec

from graphflops.errors import FileError, shown
from graphflops.exporters.archive import Archive
from graphflops.exporters.types import Types, memory_order, storage
from graphflops.graph import (
    Argument,
    Graph,
    Group,
    Input,
    InputRole,
    Mesh,
    Node,
    Note,
    Opaque,
    Origin,
    Phase,
    Ref,
    Step,
    Storage,
    StorageKind,
)
from graphflops.tensor import DTYPES, TensorType

FORMAT = 1
MEMBER = "graphflops_step/step.json"  # by which the archive is recognised
_GUESSES = "the step reads numbers from its data, which a recording does not have: they are taken to be 1"
_LARGEST = 2**48  # of sizes, strides and bytes
_LARGEST_MESH = 2**20  # devices


class RecordedValue(msgspec.Struct, array_like=True):
    """A tensor. storage: index of the memory it lies in; strides, offset: in elements."""

    storage: int
    offset: int
    shape: list[int]
    strides: list[int]
    dtype: str


class RecordedStorage(msgspec.Struct, array_like=True):
    """Memory, from the call that allocates it (-1: before the step) to the last one that finds it held, both included."""

    name: str
    kind: StorageKind
    first: int
    last: int
    bytes: int


class RecordedInput(msgspec.Struct, array_like=True):
    """A value that is there before the step. target: the name of the parameter, buffer or input."""

    value: int
    role: InputRole
    target: str


class RecordedCall(msgspec.Struct, array_like=True):
    """One call. operator, module, source: indices. results: values, None for what is no tensor or not wanted.

    args, kwargs: literals, lists, and objects of one field: `v` a value, `d` an element type, `f` a float that JSON does not
    have, `o` anything else as text. A process group is given by its name, a reduction by its own.
    """

    operator: int
    args: list[Any]
    kwargs: dict[str, Any]
    results: list[Optional[int]]  # noqa: UP045 - evaluated by msgspec on Python 3.9
    module: int
    source: int
    phase: Phase
    stream: int


class RecordedGroup(msgspec.Struct, array_like=True):
    """A process group that the rank is in. axis: of the mesh, `dp+tp` for several, "" for none."""

    name: str
    axis: str
    ranks: list[int]


class RecordedStep(msgspec.Struct):
    """One rank's step. axes: of the mesh with their sizes, the outermost first; none on one device.

    modules: path and type. guesses: whether a number that the step reads from its data was taken to be 1.
    """

    format: int
    producer: str
    rank: int
    axes: list[tuple[str, int]]
    groups: list[RecordedGroup]
    operators: list[str]
    modules: list[tuple[str, str]]
    sources: list[str]
    storages: list[RecordedStorage]
    values: list[RecordedValue]
    inputs: list[RecordedInput]
    calls: list[RecordedCall]
    guesses: bool = False


class _Version(msgspec.Struct):
    format: int


def write(step: RecordedStep, path: Path | str) -> None:
    """Write the archive."""
    import zipfile

    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(zipfile.ZipInfo(MEMBER), msgspec.json.encode(step), zipfile.ZIP_DEFLATED, 6)


def read(path: Path | str, model: str | None = None) -> Graph:
    """The step of an archive. Raises FileError, in one line, for anything that is not such a file."""
    with Archive(path) as archive:
        if model is not None:
            raise FileError(f"{archive}: holds one step: leave --model out")
        if archive.names != {MEMBER}:
            raise FileError(f"{archive}: holds other members than a step: record it again")
        data = archive.read(MEMBER)
        where = f"{archive}: {MEMBER}"
        try:
            found = msgspec.json.decode(data, type=_Version).format
            if found != FORMAT:
                raise FileError(
                    f"{where} has format {found}, this graphflops reads {FORMAT}: record it again"
                )
            step = msgspec.json.decode(data, type=RecordedStep)
            return graph_of(
                step, Origin(str(path), "recorded", step.producer, hashlib.sha256(data).hexdigest())
            )
        except _Contradiction as error:
            raise FileError(f"{where}: {shown(str(error), 200)}: record it again") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, MemoryError) as error:
            said = shown(str(error), 100)
            raise FileError(f"{where} is not of the documented form ({said}): record it again") from None


class _Contradiction(FileError):
    """What is wrong with a step."""


def graph_of(step: RecordedStep, origin: Origin) -> Graph:
    """The step as a program. Raises FileError where it contradicts itself."""
    _check(step)
    values = {f"v{entry.value}": step.values[entry.value] for entry in step.inputs}
    orders = {name: memory_order(value.shape, value.strides) for name, value in values.items()}
    groups = {group.name: Group(group.axis, tuple(group.ranks)) for group in step.groups}
    return Graph(
        nodes=tuple(_nodes(step)),
        types=_types(step),
        inputs=tuple(_inputs(step)),
        outputs=(),
        modules={path: kind for path, kind in step.modules if path},
        origin=origin,
        orders={name: order for name, order in orders.items() if order is not None},
        notes=(Note("GF132", "", _GUESSES),) if step.guesses else (),
        step=Step(
            tuple([call.phase for call in step.calls]),
            tuple([call.stream for call in step.calls]),
            tuple([Storage(s.name, s.kind, s.first, s.last, s.bytes) for s in step.storages]),
            Mesh(dict(step.axes), groups, step.rank) if step.axes else None,
        ),
    )


def _nodes(step: RecordedStep) -> Iterator[Node]:
    for place, call in enumerate(step.calls):
        path, kind = step.modules[call.module]
        yield Node(
            f"call_{place}",
            step.operators[call.operator],
            tuple(_argument(given) for given in call.args),
            tuple((name, _argument(given)) for name, given in call.kwargs.items()),
            tuple(None if result is None else f"v{result}" for result in call.results),
            path,
            kind,
            step.sources[call.source],
        )


def _inputs(step: RecordedStep) -> Iterator[Input]:
    first: dict[int, str] = {}
    for entry in step.inputs:
        owner = first.setdefault(step.values[entry.value].storage, entry.target)
        yield Input(f"v{entry.value}", entry.role, entry.target, "" if owner == entry.target else owner)


def _types(step: RecordedStep) -> dict[str, TensorType]:
    """The type of each value by name."""
    known = Types()
    types = {}
    for index, value in enumerate(step.values):
        shape = tuple(value.shape)
        plain = known.tensor(shape, DTYPES[value.dtype])
        stored = storage(shape, value.strides)
        types[f"v{index}"] = plain if stored is None else known.variant(plain, False, stored)
    return types


def _argument(given: Any) -> Argument:
    """An argument as a program has it."""
    if isinstance(given, list):
        return tuple(_argument(item) for item in given)
    if not isinstance(given, dict):
        literal: Argument = given
        return literal
    ((kind, what),) = given.items()
    if kind == "v":
        return Ref(f"v{what}")
    return DTYPES[what] if kind == "d" else float(what) if kind == "f" else Opaque(what)


def _check(step: RecordedStep) -> None:
    """Refuse what no recorder writes."""
    _check_mesh(step)
    calls, storages = len(step.calls), len(step.storages)
    _require(calls > 0, "the step has no call")
    for memory in step.storages:
        _require(
            -1 <= memory.first <= memory.last < calls, f"memory {memory.name} is let go before it is there"
        )
        _require(0 <= memory.bytes <= _LARGEST, f"memory {memory.name} has {memory.bytes} bytes")
    for index, value in enumerate(step.values):
        _require(0 <= value.storage < storages, f"value {index} lies in no memory")
        _require(value.dtype in DTYPES, f"value {index} has elements of {value.dtype}")
        _require(len(value.shape) == len(value.strides), f"value {index} has not a stride for each axis")
        sizes = (*value.shape, *value.strides, value.offset)
        _require(all(0 <= size <= _LARGEST for size in sizes), f"value {index} has a size out of range")
    _require(len(dict(step.modules)) == len(step.modules), "a module is listed twice")
    defined: set[int] = set()
    for entry in step.inputs:
        _define(entry.value, defined, step, "an input")
    for place, call in enumerate(step.calls):
        _require(0 <= call.operator < len(step.operators), f"call {place} has no operator")
        _require(0 <= call.module < len(step.modules), f"call {place} has no module")
        _require(0 <= call.source < len(step.sources), f"call {place} has no source line")
        for given in (*call.args, *call.kwargs.values()):
            _check_argument(given, defined, place)
        for result in call.results:
            if result is not None:
                _define(result, defined, step, f"call {place}")


def _define(value: int, defined: set[int], step: RecordedStep, where: str) -> None:
    _require(
        0 <= value < len(step.values) and value not in defined,
        f"{where} makes value {value}, which is none or made twice",
    )
    defined.add(value)


def _check_argument(given: Any, defined: set[int], place: int) -> None:
    if isinstance(given, list):
        for item in given:
            _check_argument(item, defined, place)
    elif isinstance(given, dict):
        kind, what = next(iter(given.items())) if len(given) == 1 else ("", None)
        texts: dict[str, bool] = {
            "v": isinstance(what, int) and what in defined,
            "d": isinstance(what, str) and what in DTYPES,
            "f": what in ("inf", "-inf", "nan"),
            "o": isinstance(what, str),
        }
        _require(
            texts.get(kind, False),
            f"call {place} has an argument that is none, or a value that is not made yet",
        )


def _check_mesh(step: RecordedStep) -> None:
    sizes = [size for _, size in step.axes]
    _require(
        all(0 < size <= _LARGEST_MESH for size in sizes) and len(sizes) <= 16,
        "the mesh has an axis of no size",
    )
    devices = prod(sizes)
    _require(
        devices <= _LARGEST_MESH and len(dict(step.axes)) == len(sizes),
        "the mesh is too large, or has an axis twice",
    )
    _require(0 <= step.rank < devices, f"there is no rank {step.rank}")
    for group in step.groups:
        ranks = set(group.ranks)
        _require(
            len(ranks) == len(group.ranks) > 0 and all(0 <= rank < devices for rank in ranks),
            f"group {group.name} has ranks that are none",
        )


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise _Contradiction(problem)
