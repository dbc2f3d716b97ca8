"""Contents of the weights and constants in a `.pt2`, read when asked for.

Since torch 2.9 each is a member of raw bytes, and a JSON member states its type and layout. Before, all are in one
checkpoint of `torch.save`, whose directory is a pickle, which is not opened here.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from graphflops.errors import FileError, shown
from graphflops.exporters import pt2_schema as schema
from graphflops.exporters.archive import Archive, mapped
from graphflops.exporters.pt2_schema import decode
from graphflops.exporters.pt2_values import LAYOUTS, dtype_of, named
from graphflops.graph import Stored

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_OLD = {"weights": "serialized_state_dict.pt", "constants": "serialized_constants.pt"}
_CHECKPOINT_BYTES = 2**34  # of a checkpoint, which is read as a whole


class Members:
    """Contents of a program's inputs, by name of the value.

    path: the archive. member: that of the program. targets: by value, its qualified name in the model.
    """

    def __init__(self, path: Path, member: str, targets: Mapping[str, str]) -> None:
        self.path = path
        self.targets = targets
        self._root, _, model = member.partition("models/")
        self._model = model.removesuffix(".json")
        self._memory: dict[str, memoryview] = {}

    def __call__(self, name: str) -> Stored | None:
        """What an input holds; None if the file does not hold it as raw bytes.

        Raises FileError where the file contradicts itself.
        """
        target = self.targets.get(name, "")
        entry = self.entries.get(target)
        if entry is None or entry.payload.use_pickle or entry.payload.tensor_meta is None:
            return None
        meta = entry.payload.tensor_meta
        if named(LAYOUTS, meta.layout) != "strided":
            return None
        sizes, strides = _numbers(meta.sizes), _numbers(meta.strides)
        offset = 0 if meta.storage_offset is None else _numbers([meta.storage_offset])[0]
        dtype = dtype_of(meta.dtype, name)
        needed = extent(sizes, strides, offset) * dtype.bits // 8
        if needed and entry.size == 0:
            return None  # exported on fake tensors: one empty member stands for all
        if needed > entry.size or len(sizes) != len(strides):
            raise FileError(
                f"{shown(str(self.path))}: {shown(target)} reaches over {needed:,} bytes, and {shown(entry.member)} has "
                f"{entry.size:,}: export the model again"
            )
        if entry.member not in self._memory:
            self._memory[entry.member] = self._read(entry) if needed else memoryview(b"")
        return Stored(dtype, sizes, strides, offset, self._memory[entry.member])

    @cached_property
    def entries(self) -> dict[str, Entry]:
        """Everything stored, by qualified name in the model."""
        found: dict[str, Entry] = {}
        with Archive(self.path) as archive:
            if sys.byteorder != "little" or _is_big_endian(archive, self._root):
                return found
            for kind in _OLD:
                config = f"{self._root}data/{kind}/{self._model}_{kind}_config.json"
                if config in archive.names:
                    where = f"{archive}: {shown(config)}"
                    payloads = decode(archive.read(config), schema.PayloadConfig, where).config
                    for name, payload in payloads.items():
                        member = f"{self._root}data/{kind}/{payload.path_name}"
                        if member in archive.names:
                            found[name] = Entry(payload, member, archive.size(member), archive.place(member))
        return found

    def _read(self, entry: Entry) -> memoryview:
        if entry.start is not None:
            return mapped(self.path, entry.start, entry.size)
        with Archive(self.path) as archive:
            return memoryview(bytearray(archive.read(entry.member)))

    def checkpoints(self) -> list[bytes]:
        """The checkpoints of `torch.save` in which releases before 2.9 keep weights and constants."""
        with Archive(self.path) as archive:
            new = [f"{self._root}data/{kind}/{self._model}.pt" for kind in _OLD]
            found = [name for name in (*new, *_OLD.values()) if name in archive.names]
            return [archive.read(name, most=_CHECKPOINT_BYTES) for name in found]


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored weight or constant: its member, the member's size in bytes, and its offset in the file if not compressed."""

    payload: schema.Payload
    member: str
    size: int
    start: int | None


def _is_big_endian(archive: Archive, root: str) -> bool:
    order = f"{root}byteorder"
    return order in archive.names and archive.read(order) == b"big"


def extent(sizes: Iterable[int], strides: Iterable[int], offset: int) -> int:
    """Elements from the start of a tensor's memory to the last one that it uses; 0 for an empty tensor."""
    last = offset
    for size, stride in zip(sizes, strides, strict=False):
        if size == 0:
            return 0
        last += (size - 1) * stride
    return last + 1


def _numbers(sizes: Iterable[schema.SymInt]) -> tuple[int, ...]:
    """Sizes, strides or an offset; raises FileError for one that is not a number."""
    found = []
    for size in sizes:
        if size.as_int is None or size.as_int < 0:
            raise FileError("the size of something stored is no number: export the model again")
        found.append(size.as_int)
    return tuple(found)
