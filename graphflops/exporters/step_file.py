"""The file of recorded steps, a zip archive of JSON (docs/recorded.md): its types, and how it is written."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any, Optional

import msgspec

from graphflops.graph import InputRole, Phase, StorageKind
from graphflops.tensor import DTYPES

FORMAT = 1
MEMBER = "graphflops_step/step.json"  # by which the archive is recognised
FURTHER = "graphflops_step/step_{}.json"  # the step on further meshes, which leave sizes of axes open
# What memory holds that is there before the step, by the role of what was first found in it.
KINDS: dict[InputRole, StorageKind] = {
    "parameter": "weight",
    "buffer": "buffer",
    "state": "optimizer",
    "user": "input",
    "constant": "buffer",
}


class RecordedValue(msgspec.Struct, array_like=True):
    """A tensor. storage: index of the memory it lies in; strides, offset: in elements."""

    storage: int
    offset: int
    shape: list[int]
    strides: list[int]
    dtype: str

    @property
    def begin(self) -> int:
        """Bytes from the start of the memory to that of the tensor."""
        return self.offset * DTYPES[self.dtype].bits // 8

    @property
    def end(self) -> int:
        """Bytes from the start of the memory to the end of the tensor."""
        if not prod(self.shape):
            return 0
        elements = 1 + sum((size - 1) * step for size, step in zip(self.shape, self.strides, strict=True))
        return (self.offset + elements) * DTYPES[self.dtype].bits // 8

    @property
    def bytes(self) -> int:
        """What its elements take."""
        return prod(self.shape) * DTYPES[self.dtype].bits // 8


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
    have, `o` anything else as text. A process group is given by its name, a reduction by its own. Of what Python did since
    the call before, wrapped: calls on tensors of subclasses, such as DTensor; hooked: calls that modes of the program saw,
    as selective checkpoints have, and tensors that hooks packed for the backward or unpacked, as checkpoints do.
    """

    operator: int
    args: list[Any]
    kwargs: dict[str, Any]
    results: list[Optional[int]]  # noqa: UP045 - evaluated by msgspec on Python 3.9
    module: int
    source: int
    phase: Phase
    stream: int
    wrapped: int = 0
    hooked: int = 0


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


def write(steps: Sequence[RecordedStep], path: Path | str) -> None:
    """Write the archive of a step, and of the same step on further meshes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for place, step in enumerate(steps):
            name = FURTHER.format(place) if place else MEMBER
            file.writestr(zipfile.ZipInfo(name), msgspec.json.encode(step), zipfile.ZIP_DEFLATED, 6)
