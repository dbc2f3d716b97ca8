"""Reads a recorded step: a zip archive of JSON that `graphflops capture --step` wrote (docs/recorded.md)."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import msgspec

from graphflops.base.units import memory as memory_of
from graphflops.errors import FileError, shown
from graphflops.exporters import step_file
from graphflops.exporters.archive import Archive
from graphflops.exporters.meshes import LARGEST, at_mesh, ranks_along
from graphflops.exporters.step_file import Contradiction, RecordedCall, RecordedStep, require
from graphflops.exporters.types import Types, memory_order, storage
from graphflops.graph import Argument, Graph, Group, Input, Mesh, Node, Note, Opaque, Origin, Ref, Step
from graphflops.ops.operator import operator, orders
from graphflops.tensor import DTYPES, TensorType, flat

_GUESSES = "the step reads numbers from its data, which a recording lacks: they are taken to be 1, masks to choose all"
_COMPILED = "parts are meant for torch.compile: they are recorded as they run without it, call by call"
_LARGEST = 2**48  # of sizes, strides and bytes


class _Version(msgspec.Struct):
    format: int


def read(path: Path | str, model: str | None = None, mesh: Mapping[str, int] | None = None) -> Graph:
    """The step of an archive as a program, on a mesh of other sizes if `mesh` gives them. Raises as `read_step` does."""
    step, digest = read_step(path, model, mesh)
    return graph_of(step, Origin(str(path), "recorded", step.producer, digest))


def read_step(
    path: Path | str, model: str | None = None, mesh: Mapping[str, int] | None = None
) -> tuple[RecordedStep, str]:
    """The step of an archive and the digest of what was read. Raises FileError for other files, ModelError for a mesh."""
    with Archive(path) as archive:
        if model is not None:
            raise FileError(f"{archive}: holds one step: leave --model out")
        members = [step_file.member(place) for place in range(len(archive.names) or 1)]
        if archive.names != {*members}:
            raise FileError(f"{archive}: holds other members than a step: record it again")
        digest, steps = hashlib.sha256(repr(mesh).encode() if mesh else b""), list[RecordedStep]()
        for member in members if mesh else members[:1]:
            data = archive.read(member)
            digest.update(data)
            where = f"{archive}: {member}"
            try:
                found = msgspec.json.decode(data, type=_Version).format
                if found != step_file.FORMAT:
                    reads = f"this graphflops reads {step_file.FORMAT}: record it again"
                    raise FileError(f"{where} has format {found}, {reads}")
                steps.append(msgspec.json.decode(data, type=RecordedStep))
                _check(steps[-1])
            except Contradiction as error:
                raise FileError(f"{where}: {shown(str(error), 200)}: record it again") from None
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, MemoryError) as error:
                said = f"is not of the documented form ({shown(str(error), 100)}): record it again"
                raise FileError(f"{where} {said}") from None
        step = steps[0]
        if mesh:
            step = at_mesh(steps, mesh)
            _check(step)
        return step, digest.hexdigest()


def graph_of(step: RecordedStep, origin: Origin) -> Graph:
    """A step that does not contradict itself, as a program."""
    values = {f"v{index}": value for index, value in enumerate(step.values)}
    known, types = Types(), {}
    for name, value in values.items():
        stored = storage(value.shape, value.strides)
        types[name] = known.once(TensorType(tuple(value.shape), DTYPES[value.dtype], stored))
    first = [f"v{entry.value}" for entry in step.inputs]
    orders = {name: memory_order(values[name].shape, values[name].strides) for name in first}
    groups = {group.name: Group(group.axis, tuple(group.ranks)) for group in step.groups}
    given = ((call, step_file.operands(step, call)) for call in step.calls)
    results = ((x, there) for call, there in given for x in call.results if x is not None)
    # In the memory of an operand.
    views = [f"v{x}" for x, there in results if step.values[x].storage in there]
    nodes = tuple(_nodes(step))
    made = Step(
        tuple([call.phase for call in step.calls]),
        tuple(step.storages),
        Mesh(dict(step.axes), groups, step.rank) if step.axes else None,
        {name: tuple(value.strides) for name, value in values.items()},
        frozenset(views),
        tuple([call.wrapped for call in step.calls]),
        tuple([call.hooked for call in step.calls]),
        frozenset([name for name, value in values.items() if step_file.is_counter(step, value)]),
        {name: (value.storage, value.begin, value.end) for name, value in values.items()},
        frozenset([f"v{result}" for call in step.calls if call.stream for result in call.results]),
    )
    return Graph(
        nodes=nodes,
        types=types,
        inputs=tuple(_inputs(step)),
        outputs=(),
        modules={path: kind for path, kind in step.modules if path},
        origin=origin,
        orders={name: order for name, order in orders.items() if order is not None},
        notes=tuple(_notes(step, made, nodes)),
        step=made,
    )


def _notes(step: RecordedStep, made: Step, nodes: Sequence[Node]) -> Iterator[Note]:
    if step.guesses:
        yield Note("GF132", "", _GUESSES)
    if step.is_compiled:
        yield Note("GF136", "", _COMPILED)
    if away := made.hosted():
        there = [
            node
            for node in nodes
            if node.is_in(away)
            and not node.operator.shares_memory
            and not step_file.copies_between(node.operator, dict(node.kwargs))
        ]
        computed = {
            made.places[name][0] for node in there for name in node.outputs if name and name not in made.views
        }
        kept = [step.storages[number] for number in {made.places[name][0] for name in away} - computed]
        size = f"{len(kept):,} tensors, {memory_of(sum(one.bytes for one in kept))} in all"
        said = f"{size}, are kept on the host: they are copied there and back over the bus"
        if computed:
            said += f"; the CPU computes with them in {len(there):,} calls, whose time is not known"
        yield Note("GF133", "", said)
    own = [call.stream for call in step.calls if call.stream]
    if own:
        where = f"{len(own):,} calls are in {len({*own}):,} streams that the step makes"
        beside = "copies that nobody waits for run beside kernels until they are read"
        yield Note("GF135", "", f"{where}: {beside}, kernels one after another")


def _nodes(step: RecordedStep) -> Iterator[Node]:
    for place, call in enumerate(step.calls):
        path, kind = step.modules[call.module]
        args = tuple(_argument(given) for given in call.args)
        kwargs = tuple((name, _argument(given)) for name, given in call.kwargs.items())
        outputs = tuple(None if result is None else f"v{result}" for result in call.results)
        op, source = step.operators[call.operator], step.sources[call.source]
        yield Node(f"call_{place}", op, args, kwargs, outputs, path, kind, source)


def _inputs(step: RecordedStep) -> Iterator[Input]:
    first: dict[int, str] = {}
    for entry in step.inputs:
        owner = first.setdefault(step.values[entry.value].storage, entry.target)
        yield Input(f"v{entry.value}", entry.role, entry.target, "" if owner == entry.target else owner)


def _argument(given: Any) -> Argument:
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
    _check_mesh(step)
    calls, storages = len(step.calls), len(step.storages)
    require(calls > 0, "the step has no call")
    for memory in step.storages:
        is_there = -1 <= memory.first <= memory.last < calls
        require(is_there, f"memory {memory.name} is freed before it is allocated")
        require(0 <= memory.bytes <= _LARGEST, f"memory {memory.name} has {memory.bytes} bytes")
    for index, value in enumerate(step.values):
        require(0 <= value.storage < storages, f"value {index} lies in no memory")
        require(value.dtype in DTYPES, f"value {index} has elements of {value.dtype}")
        require(len(value.shape) == len(value.strides), f"value {index} has not a stride for each axis")
        sizes = (*value.shape, *value.strides, value.offset)
        require(all(0 <= size <= _LARGEST for size in sizes), f"value {index} has a size out of range")
    require(len(dict(step.modules)) == len(step.modules), "a module is listed twice")
    for op in map(operator, step.operators):
        require(not (op.is_onnx or op.is_python), f"{op} is no operator that torch dispatches")
    defined: set[int] = set()
    for entry in step.inputs:
        _define(entry.value, defined, step, "an input")
    for place, call in enumerate(step.calls):
        require(0 <= call.operator < len(step.operators), f"call {place} has no operator")
        require(0 <= call.module < len(step.modules), f"call {place} has no module")
        require(0 <= call.source < len(step.sources), f"call {place} has no source line")
        require(0 <= call.wrapped <= _LARGEST, f"call {place} has {call.wrapped} calls around it")
        require(0 <= call.hooked <= _LARGEST, f"call {place} has {call.hooked} hooks before it")
        _check_operands(call, orders(step.operators[call.operator]), defined, f"call {place}")
        for result in call.results:
            if result is not None:
                _define(result, defined, step, f"call {place}")
    for what, used, entries, first in (  # every entry of a list from `first` on must be used
        ("value", defined, step.values, 0),
        ("operator", {call.operator for call in step.calls}, step.operators, 0),
        ("module", {call.module for call in step.calls}, step.modules, 1),
        ("source line", {call.source for call in step.calls}, step.sources, 1),
    ):
        lost = {*range(first, len(entries))} - used
        require(not lost, f"{what} {min(lost, default=0)} is of no call")
    step_file.check_memory(step)


def _check_operands(
    call: RecordedCall, named: Sequence[Sequence[str]], defined: set[int], where: str
) -> None:
    """Refuse operands that no overload of the operator has, and values that are not made yet. named: names by overload."""
    most = max(map(len, named), default=len(call.args))
    require(len(call.args) <= most, f"{where} has {len(call.args)} operands of {most}")
    others = {*call.kwargs}.difference(*named) if named else ()
    require(not others, f"{where} has an operand {min(others, default='')}, and its operator none")
    are_right = all(_is_right(x, defined) for x in flat((*call.args, *call.kwargs.values())))
    require(are_right, f"{where} has an argument that is none, or a value that is not made yet")


def _define(value: int, defined: set[int], step: RecordedStep, where: str) -> None:
    is_new = 0 <= value < len(step.values) and value not in defined
    require(is_new, f"{where} makes value {value}, which is none or made twice")
    defined.add(value)


def _is_right(given: Any, defined: set[int]) -> bool:
    """Whether an argument has a documented form and refers only to values that are already made."""
    if not isinstance(given, dict):
        return True
    kind, what = next(iter(given.items())) if len(given) == 1 else ("", None)
    if kind == "v":
        return isinstance(what, int) and what in defined
    if kind == "f":
        return what in ("inf", "-inf", "nan")
    return isinstance(what, str) and (kind == "o" or (kind == "d" and what in DTYPES))


def _check_mesh(step: RecordedStep) -> None:
    sizes = [size for _, size in step.axes]
    has_sizes = all(0 < size <= LARGEST for size in sizes) and len(sizes) <= 16
    require(has_sizes, "the mesh has an axis of no size")
    devices, axes = prod(sizes), dict(step.axes)
    require(devices <= LARGEST and len(axes) == len(sizes), "the mesh is too large, or has an axis twice")
    require(0 <= step.rank < devices, f"there is no rank {step.rank}")
    require(len({group.name for group in step.groups}) == len(step.groups), "a process group is listed twice")
    for group in step.groups:
        ranks = set(group.ranks)
        are_there = len(ranks) == len(group.ranks) > 0 and all(0 <= rank < devices for rank in ranks)
        require(are_there, f"group {group.name} does not list ranks of the mesh, each once")
        along = group.axis.split("+") if group.axis else []
        is_of_axes = not along or (
            axes.keys() >= {*along}
            and prod(axes[name] for name in along) == len(ranks)
            and ranks == {*ranks_along(axes, group.axis, step.rank)}
        )
        require(step.rank in ranks and is_of_axes, f"group {group.name} is not along {group.axis}")
