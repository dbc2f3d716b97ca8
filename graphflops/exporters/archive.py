"""Opens files of unknown origin: identifies their format, and reads members of zip archives within limits.

A file is judged by its bytes, never by its name. Nothing is trusted: sizes are checked before and while
reading, and only members that a reader asks for by name are ever opened.
"""

from __future__ import annotations

import mmap
import zlib
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, overload

from graphflops.base.limits import spend
from graphflops.errors import FileError, shown
from graphflops.exporters import ZIP, in_one_line, reason, regular_file
from graphflops.exporters.zip_members import DEFLATED, Seekable, members, read_at

RECORD = "graphflops_eager_"  # what the name of a record of an eager run begins with
# Unpacked bytes of one member; the program of a 70-billion-parameter model takes 7 to 11 MB.
MAX_MEMBER_BYTES = 512 * 2**20
# A member that is larger than this and packed tighter than this ratio is assumed to be a zip bomb.
_BOMB_BYTES = 4 * 2**20
_BOMB_RATIO = 200

_PAGE = 16 * 2**10

# What other files begin with: (offset, bytes, what it is, what to do about it).
_MAGIC: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"version https://git-lfs", "a git-lfs pointer", "fetch the file itself with `git lfs pull`"),
    *(
        (0, b"\x80" + protocol, "a pickle", "it is not opened; save the program with torch.export.save")
        for protocol in (b"\2", b"\3", b"\4", b"\5")
    ),
    (0, b"GGUF", "a GGUF file: weights without a program", "export the model with torch.export"),
    (0, b"\x89HDF", "an HDF5 file", "export the model with torch.export"),
    (0, b"\x7fELF", "a compiled library", "give the .pt2 that torch.export.save wrote"),
    (0, b"\x1f\x8b", "a gzip file", "unpack it first"),
    (4, b"ET12", "an ExecuTorch program", "give the .pt2 that it was made from"),
    (4, b"TFL3", "a TensorFlow Lite model", "export the model with torch.export"),
    (8, b'{"', "a safetensors file: weights without a program", "export the model with torch.export"),
    (257, b"ustar", "a tar archive", "unpack it first"),
)


def other_format(head: bytes, wanted: str, json: str) -> str:
    """Says that a file with these first bytes is not what is wanted, and what to do. json: what to say of JSON."""
    if head.lstrip(b" \t\r\n\xef\xbb\xbf").startswith((b"{", b"[")):
        return f"is JSON, {json}"
    for offset, magic, what, advice in _MAGIC:
        if head[offset:].startswith(magic):
            return f"is {what}: {advice}"
    if head.lstrip()[:15].lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        return "is a web page or XML, perhaps a download that failed: download it again"
    return f"is not {wanted}"


class Archive:
    """A zip archive as a mapping of member names; a context manager.

    Raises FileError, in one line, for a file that is not a zip, is damaged, is built to harm, or can be read in two ways.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = regular_file(path)
        with in_one_line(str(self)):
            self._file: Seekable = self.path.open("rb", buffering=0)
            try:
                head = self._file.read(512)
                if not head.startswith(ZIP):
                    advice = "give the file that torch.export.save wrote"
                    wanted, json = "a .pt2 (no zip archive)", "a report perhaps, not a model"
                    raise FileError(other_format(head, f"{wanted}: {advice}", f"{json}: {advice}"))
                self._members = members(self._file, self.path.stat().st_size)
            except BaseException:
                self._file.close()
                raise
        self.names = frozenset(self._members)

    def __str__(self) -> str:
        return shown(str(self.path))

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def within(self, name: str) -> Archive:
        """A member that is an archive itself, opened; it is read as a whole only if it is compressed."""
        found = self._members[name]
        inner = object.__new__(Archive)
        inner.path = self.path
        is_packed = found.method == DEFLATED
        inner._file = BytesIO(self.read(name)) if is_packed else _Part(self._file, found.start, found.size)
        inner._members = members(inner._file, found.size)
        inner.names = frozenset(inner._members)
        return inner

    def size(self, name: str) -> int:
        """Unpacked size of a member as the archive declares it; 0 for a member that does not exist."""
        return self._members[name].size if name in self._members else 0

    def place(self, name: str) -> int | None:
        """Offset of a member's bytes in the file; None for a member that is compressed, or does not exist."""
        member = self._members.get(name)
        return None if member is None or member.method == DEFLATED else member.start

    def read(self, name: str, most: int = MAX_MEMBER_BYTES) -> bytes:
        """Contents of one member, checked against its size and checksum. most: bytes; a larger member is refused."""
        found = self._members[name]
        member = f"{self}: member {shown(name)}"
        if found.size > most:
            raise FileError(f"{member} claims {found.size:,} bytes, more than the {most:,} that are read")
        if found.size > _BOMB_BYTES and found.size > _BOMB_RATIO * max(found.packed, 1):
            raise FileError(f"{member} unpacks to more than {_BOMB_RATIO} times its size: a zip bomb")
        spend("bytes decoded", found.size)
        try:
            data = read_at(self._file, found.start, found.packed)
            if found.method == DEFLATED:
                data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, found.size + 1)
        except (zlib.error, OSError) as error:
            raise FileError(f"{member} is damaged ({reason(error)}): export or copy the file again") from None
        if len(data) != found.size or zlib.crc32(data) != found.checksum:
            raise FileError(f"{member} is damaged: export or copy the file again")
        return data


class _Part:
    """A range of bytes of a file, as a file."""

    def __init__(self, file: Seekable, start: int, size: int) -> None:
        self._file, self._start, self._size = file, start, size
        self._place = 0

    def seek(self, place: int, /) -> int:
        self._place = place
        return place

    def read(self, length: int, /) -> bytes:
        self._file.seek(self._start + self._place)
        found = self._file.read(max(0, min(length, self._size - self._place)))
        self._place += len(found)
        return found

    def close(self) -> None:
        """Does nothing: the outer file stays open."""


class Pages:
    """The bytes of an open file by offset, with one page in memory at a time.

    A memory mapping would do the same, but the system maps the neighbours of each page that is read, and all of them count
    as the process's memory: for a file of weights, much of the file.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size = file, size
        self._page, self._begin = b"", 0

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, place: int) -> int: ...

    @overload
    def __getitem__(self, place: slice) -> bytes: ...

    def __getitem__(self, place: int | slice) -> int | bytes:
        if isinstance(place, slice):
            begin, end, _ = place.indices(self._size)
            return self._read(begin, end - begin)
        if not 0 <= place - self._begin < len(self._page):
            self._page, self._begin = self._read(place, _PAGE), place
        return self._page[place - self._begin]

    def _read(self, place: int, length: int) -> bytes:
        self._file.seek(place)
        return self._file.read(length)


def mapped(path: Path, start: int, size: int) -> memoryview:
    """Bytes of a file, mapped into memory; writing to them changes a copy."""
    page = start // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    with path.open("rb") as file:
        whole = mmap.mmap(file.fileno(), start - page + size, access=mmap.ACCESS_COPY, offset=page)
    return memoryview(whole)[start - page :]
