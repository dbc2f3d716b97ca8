"""The file of recorded steps, a zip archive of JSON (docs/recorded.md): its types, and how it is written.

It also checks where values are in memory and which devices collectives connect, and refuses what torch could not have
recorded. A result is in the memory of an operand if its operator writes or views that operand, else in new memory.
"""

import zipfile
from collections.abc import Collection, Sequence
from math import prod
from pathlib import Path
from typing import Any

import msgspec

from graphflops.errors import FileError
from graphflops.graph import HOST_KINDS, InputRole, Phase, Storage, StorageKind
from graphflops.ops.operator import Op, operator
from graphflops.tensor import DTYPES, extent, flat

FORMAT = 1
MEMBER = "graphflops_step/step.json"  # identifies the archive
_FURTHER = "graphflops_step/step_{}.json"  # the step on other meshes, if sizes of axes are open
# The kind of memory that exists before the step, by the role of the first value found in it.
KINDS: dict[InputRole, StorageKind] = {
    "parameter": "weight",
    "buffer": "buffer",
    "state": "optimizer",
    "user": "input",
    "constant": "buffer",
}


class RecordedValue(msgspec.Struct, array_like=True):
    """A tensor. storage: index of its memory. strides, offset: in elements."""

    storage: int
    offset: int
    shape: list[int]
    strides: list[int]
    dtype: str

    @property
    def begin(self) -> int:
        return self.offset * DTYPES[self.dtype].bits // 8

    @property
    def end(self) -> int:
        """Bytes from the start of the memory to the end of the tensor."""
        return extent(self.shape, self.strides, self.offset) * DTYPES[self.dtype].bits // 8

    @property
    def bytes(self) -> int:
        return prod(self.shape) * DTYPES[self.dtype].bits // 8


class RecordedInput(msgspec.Struct, array_like=True):
    """A value that exists before the step. target: the name of the parameter, buffer or input."""

    value: int
    role: InputRole
    target: str


class RecordedCall(msgspec.Struct, array_like=True):
    """One call."""

    operator: int  # an index, like `module` and `source`
    # Literals, lists, and objects of one field: `v` a value, `d` an element type, `f` a float that JSON does not have, `o`
    # anything else as text. Process groups and reductions are given by name.
    args: list[Any]
    kwargs: dict[str, Any]
    # Indices of values; None for results that are not tensors, or that are not wanted.
    results: list[int | None]
    module: int
    source: int
    phase: Phase
    stream: int
    wrapped: int = 0  # calls on tensor subclasses, such as DTensor, since the last call
    # Since the last call: calls that the program's dispatch modes handled (selective checkpoints have one), and saved
    # tensors that hooks packed or unpacked (checkpoints have such hooks).
    hooked: int = 0


class RecordedGroup(msgspec.Struct, array_like=True):
    """A process group of the rank. axis: the axis of the mesh that it spans, `dp+tp` for several, "" for none."""

    name: str
    axis: str
    ranks: list[int]


class RecordedStep(msgspec.Struct):
    """One rank's step."""

    format: int
    producer: str
    rank: int
    axes: list[tuple[str, int]]  # of the mesh, with their sizes, the outermost first; [] on one device
    groups: list[RecordedGroup]
    operators: list[str]
    modules: list[tuple[str, str]]  # path and type
    sources: list[str]
    storages: list[Storage]
    values: list[RecordedValue]
    inputs: list[RecordedInput]
    calls: list[RecordedCall]
    # guesses: a number that the step reads from data was assumed to be 1, or a mask to select everything. is_compiled: the
    # step uses torch.compile, but is recorded without it.
    guesses: bool = False
    is_compiled: bool = False


def member(place: int) -> str:
    """The name of a member of the archive."""
    return _FURTHER.format(place) if place else MEMBER


def write(steps: Sequence[RecordedStep], path: Path | str) -> None:
    """Write an archive with a step, and with the same step on other meshes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for place, step in enumerate(steps):
            file.writestr(zipfile.ZipInfo(member(place)), msgspec.json.encode(step), zipfile.ZIP_DEFLATED, 6)


_WRITING = ("c10d", "fsdp")  # namespaces of operators that write to given tensors
# Namespaces of operators of which it is known whether they share memory; non-view operators that may return an operand.
_OF_TORCH = ("aten", "prims", "_c10d_functional", "_c10d_functional_autograd")
_PASSING_ON = frozenset({"dropout", "conj", "meshgrid", "wait_tensor", "receive", "send_and_receive"})
# Views that may copy, such as `reshape`; and operators that are given the strides of their results.
_MAY_COPY = frozenset(
    {"reshape", "reshape_as", "flatten", "ravel", "diag", "resize", "resize_as", "_resize_output"}
)
_LAID_OUT = frozenset({"empty_strided", "new_empty_strided"})
# Collectives with a list of tensors, one for each device.
_OF_LISTS = ("allgather_", "reduce_scatter_")
_TAKEN_AGAIN = "empty"  # what is recorded when freed memory is allocated again
# Operators that may have host and device memory: `_to_copy` if it names a device; `copy_` and those that only allocate.
_COPY, _ON_HOST = "_to_copy", frozenset({"copy_", "empty", "empty_like", "empty_strided", "new_empty"})


class Contradiction(FileError):
    """A step contradicts itself; the text says how."""


def require(holds: bool, problem: str) -> None:
    """Raises Contradiction, with the problem, if the condition does not hold."""
    if not holds:
        raise Contradiction(problem)


def values_in(given: Any) -> list[int]:
    """Indices of the values in an argument, in order."""
    return [item["v"] for item in flat((given,)) if isinstance(item, dict) and "v" in item]


def operands(step: RecordedStep, call: RecordedCall) -> set[int]:
    """Indices of the storages of a call's operands."""
    return {step.values[value].storage for value in values_in([*call.args, *call.kwargs.values()])}


def check_memory(step: RecordedStep) -> None:
    """Refuse calls with impossible results, operands or groups. All indices in the step must be checked already."""
    # Memory has the kind that its inputs' roles give, and all values fit in it, except optimizers' counters on the host.
    kinds: dict[int, set[str]] = {}
    for entry in step.inputs:
        kinds.setdefault(step.values[entry.value].storage, set()).add(KINDS.get(entry.role, ""))
    for place, memory in enumerate(step.storages):
        held = kinds.get(place)
        is_right = memory.kind not in KINDS.values() if held is None else memory.kind in {*held, *HOST_KINDS}
        require(
            is_right and (held is None or memory.first == -1),
            f"memory {memory.name} of kind {memory.kind} from call {memory.first} holds other inputs than that",
        )
    for index, value in enumerate(step.values):
        memory = step.storages[value.storage]
        is_right = is_counter(step, value) or value.end <= memory.bytes
        require(is_right, f"value {index} is longer than memory {memory.name}")
    known = {*kinds}  # memory that is there already
    groups = {group.name: len(group.ranks) for group in step.groups}
    for place, call in enumerate(step.calls):
        op, given = operator(step.operators[call.operator]), operands(step, call)
        made = [step.values[result] for result in call.results if result is not None]
        for number in given.union(value.storage for value in made):
            memory = step.storages[number]
            is_there = memory.first <= place <= memory.last
            require(is_there, f"call {place} uses memory {memory.name}, which is not there")
        is_right = copies_between(op, call.kwargs) or _is_on_one_side(step, call, made)
        require(is_right, f"call {place} computes on the host and on the device")
        if op.writes_operands or op.dialect in _WRITING:
            _check_written(step, call, place, op, made, given)
        else:
            _check_made(step, call, place, op, made, given, known)
        known.update(value.storage for value in made)
        if op.is_exchange and "group_name" in op.parameters:
            _check_exchange(step, call, place, op, groups)


def copies_between(op: Op, names: Collection[str]) -> bool:
    """Whether a call may read host memory and write device memory, or the reverse. names: those of keyword operands."""
    return (op.word == _COPY and "device" in names) or op.word in _ON_HOST


def _is_on_one_side(step: RecordedStep, call: RecordedCall, made: Sequence[RecordedValue]) -> bool:
    """Whether all that a call reads and makes is in one memory: host or device. Operands without axes may be in either."""
    read = [step.values[value] for value in values_in([*call.args, *call.kwargs.values()])]
    read = [value for value in read if value.shape] or read
    is_away = [is_on_host(step, value) for value in read]
    wanted, are_numbers = bool(is_away) and all(is_away), not any(value.shape for value in read)
    is_one = wanted or are_numbers or not any(is_away)
    return is_one and all(is_on_host(step, value) == wanted for value in made)


def is_on_host(step: RecordedStep, value: RecordedValue) -> bool:
    """Whether a value is in the host's memory."""
    return step.storages[value.storage].kind in HOST_KINDS


def is_counter(step: RecordedStep, value: RecordedValue) -> bool:
    """Whether a value is the step count of an optimizer, which is in the host's memory."""
    memory = step.storages[value.storage]
    return memory.kind == "optimizer" and not memory.bytes and not value.shape


def _check_written(
    step: RecordedStep, call: RecordedCall, place: int, op: Op, made: Sequence[RecordedValue], given: set[int]
) -> None:
    """Checks that a call writes to memory of its operands: in-place to the first, and to no element twice."""
    first = [step.values[value] for value in values_in(call.args[:1])]
    is_in_place = op.dialect == "c10d" or (op.mutates and not op.shares_memory)
    is_first = not (is_in_place and made) or [*made][: len(first)] == first
    is_there = is_first and all(value.storage in given for value in made)
    require(is_there, f"call {place} writes to memory that it is not given")
    is_apart = op.shares_memory or not any(map(_overlaps, made))
    require(is_apart, f"call {place} writes elements that lie in one place")


def _check_made(
    step: RecordedStep, call: RecordedCall, place: int, op: Op, made: Sequence[RecordedValue],
    given: set[int], known: set[int],
) -> None:  # fmt: skip
    """Checks that views are in their operand's memory, and other results in new memory (or a named one), without overlap."""
    out = {step.values[value].storage for value in values_in([*call.kwargs.values()])}
    is_view = op.kind == "view" and op.dialect == "aten" and op.shares_memory and op.word not in _MAY_COPY
    may_share = op.shares_memory or op.name in _PASSING_ON or op.dialect not in _OF_TORCH
    taken: dict[int, int] = {}
    for value in made:
        number, memory = value.storage, step.storages[value.storage]
        if number in given:
            is_right = may_share or number in out
        else:
            is_new = number not in known and (memory.first == place or op.word == _TAKEN_AGAIN)
            is_told = op.word in _LAID_OUT and value.strides in call.args
            is_right = is_new and not is_view and (is_told or not _overlaps(value))
            taken[number] = taken.get(number, 0) + (value.end if is_told else value.bytes)
        require(is_right, f"call {place} puts its result in memory of another value")
    for number, size in taken.items():
        memory = step.storages[number]
        require(size <= memory.bytes, f"call {place} puts {size:,} bytes in memory {memory.name}")


def _overlaps(value: RecordedValue) -> bool:
    """Whether elements of a value may overlap: the stride of an axis is less than the extent of the axes inside it."""
    length = 1
    for stride, size in sorted(zip(value.strides, value.shape, strict=True)):
        if size > 1 and stride < length:
            return bool(prod(value.shape))
        length += (size - 1) * stride if size > 1 else 0
    return False


def _check_exchange(
    step: RecordedStep, call: RecordedCall, place: int, op: Op, groups: dict[str, int]
) -> None:
    """Refuse a collective whose group is not listed, or whose sizes contradict the group's number of devices."""
    arguments = op.arguments(call.args, [*call.kwargs.items()])
    devices = groups.get(str(arguments.get("group_name")))
    require(devices is not None, f"call {place} has no process group")
    # Tensors in a list may have different sizes on each device.
    sent, got = (
        sum(1 if op.word in _OF_LISTS else prod(step.values[value].shape) for value in values)
        for values in (values_in([arguments.get("x")]), [one for one in call.results if one is not None])
    )
    wanted = {"all_gather": (sent * (devices or 1), got), "reduce_scatter": (sent, got * (devices or 1))}
    is_whole = len({*wanted.get(op.name, ())}) < 2 and arguments.get("group_size") in (None, devices)
    require(is_whole, f"call {place} gives {got:,} of {sent:,} elements, by {devices} devices")
