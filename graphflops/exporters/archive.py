"""Opens files of unknown origin: identifies their format, and reads members of zip archives within limits.

A file is judged by its bytes, never by its name. Nothing is trusted: sizes are checked before and while
reading, and only members that a reader asks for by name are ever opened.
"""

from __future__ import annotations

import mmap
import zipfile
import zlib
from typing import TYPE_CHECKING, overload

from graphflops.errors import FileError, shown
from graphflops.exporters import reason, regular_file
from graphflops.limits import spend

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import BinaryIO

MAX_MEMBER_BYTES = (
    512 * 2**20
)  # of one member, unpacked; the program of a 70-billion-parameter model takes 7 to 11 MB
MAX_MEMBERS = 1_000_000
MAX_DIRECTORY_BYTES = 128 * 2**20
# A member larger than this and packed tighter than this ratio is taken for a zip bomb.
_BOMB_BYTES = 4 * 2**20
_BOMB_RATIO = 200

_TAIL = 65_557  # longest possible end-of-directory record, comment included
_HEADER = 30  # bytes before a member's name
_PAGE = 16 * 2**10
_END, _END64 = b"PK\x05\x06", b"PK\x06\x06"

# What other files start with: (offset, bytes, what it is, what to do about it).
_MAGIC: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"version https://git-lfs", "a git-lfs pointer", "fetch the file itself with `git lfs pull`"),
    (0, b"\x80\x02", "a pickle", "it is not opened; save the program with torch.export.save"),
    (0, b"\x80\x03", "a pickle", "it is not opened; save the program with torch.export.save"),
    (0, b"\x80\x04", "a pickle", "it is not opened; save the program with torch.export.save"),
    (0, b"\x80\x05", "a pickle", "it is not opened; save the program with torch.export.save"),
    (0, b"GGUF", "a GGUF file: weights without a program", "export the model with torch.export"),
    (0, b"\x89HDF", "an HDF5 file", "export the model with torch.export"),
    (0, b"\x7fELF", "a compiled library", "give the .pt2 that torch.export.save wrote"),
    (0, b"\x1f\x8b", "a gzip file", "unpack it first"),
    (4, b"ET12", "an ExecuTorch program", "give the .pt2 that it was made from"),
    (4, b"TFL3", "a TensorFlow Lite model", "export the model with torch.export"),
    (8, b'{"', "a safetensors file: weights without a program", "export the model with torch.export"),
    (257, b"ustar", "a tar archive", "unpack it first"),
)
_ONNX_FIELDS = frozenset(
    b"\x12\x1a\x22\x2a\x32\x3a\x42\x72"
)  # keys that may follow ir_version in a ModelProto


def kind_of(head: bytes) -> str:
    """The kind of a file by its first bytes: "zip", "onnx", "json", or "" for anything else."""
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return "zip"
    if len(head) > 2 and head[0] == 0x08 and 0 < head[1] < 0x40 and head[2] in _ONNX_FIELDS:
        return "onnx"
    return "json" if head.lstrip(b" \t\r\n\xef\xbb\xbf").startswith((b"{", b"[")) else ""


def refusal(head: bytes) -> str:
    """Why a file that begins so is not a model, and what to do, in one line."""
    kind = kind_of(head)
    if kind == "onnx":
        return "is an ONNX model, which this reader does not read: give a .pt2 that torch.export.save wrote"
    if kind == "json":
        return "is JSON, a report perhaps, not a model: give the .pt2 that torch.export.save wrote"
    for offset, magic, what, advice in _MAGIC:
        if head[offset:].startswith(magic):
            return f"is {what}: {advice}"
    if head.lstrip()[:15].lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        return "is a web page or XML, perhaps a download that failed: download it again"
    return "is not a .pt2 (no zip archive): give the file that torch.export.save wrote"


class Archive:
    """A zip archive by the names of its members; a context manager.

    Raises FileError, in one line, for what is not a zip, is damaged, or is built to harm.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = regular_file(path)
        try:
            self._file: BinaryIO = self.path.open("rb")
        except OSError as error:
            raise FileError(f"{self}: {reason(error)}") from None
        try:
            self._zip = self._opened()
            self.names = self._checked_names()
        except BaseException:
            self._file.close()
            raise

    def __str__(self) -> str:
        return shown(str(self.path))

    def __enter__(self) -> Archive:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._zip.close()
        self._file.close()

    def size(self, name: str) -> int:
        """Unpacked size of a member as the archive declares it; 0 for a member that does not exist."""
        return self._zip.NameToInfo[name].file_size if name in self._zip.NameToInfo else 0

    def place(self, name: str) -> int | None:
        """Offset of a member's bytes in the file; None for a member that is compressed or cut off."""
        info = self._zip.NameToInfo[name]
        if (
            info.compress_type != zipfile.ZIP_STORED
            or info.flag_bits & 0x1
            or info.file_size != info.compress_size
        ):
            return None
        self._file.seek(info.header_offset)
        header = self._file.read(_HEADER)
        start = (
            info.header_offset
            + _HEADER
            + sum(int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
        )
        end = self._file.seek(0, 2)
        return start if header[:4] == b"PK\x03\x04" and start + info.file_size <= end else None

    def read(self, name: str, most: int = MAX_MEMBER_BYTES) -> bytes:
        """Contents of one member, checked against its size and checksum. most: the largest size that is read, in bytes."""
        info = self._zip.NameToInfo[name]
        member = f"{self}: member {shown(name)}"
        if info.flag_bits & 0x1:
            raise FileError(f"{member} is encrypted: save the program without a password")
        claimed = info.file_size
        if claimed > most:
            raise FileError(f"{member} claims {claimed:,} bytes, more than the {most:,} that are read")
        if claimed > _BOMB_BYTES and claimed > _BOMB_RATIO * max(info.compress_size, 1):
            raise FileError(f"{member} unpacks to more than {_BOMB_RATIO} times its size: a zip bomb")
        spend("bytes decoded", claimed)
        try:
            with self._zip.open(info) as stream:
                # zipfile stops at the claimed size, even if the packed data continue, and checks the checksum.
                data = stream.read(claimed)
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
            raise FileError(f"{member} is damaged ({reason(error)}): export or copy the file again") from None
        except (NotImplementedError, RuntimeError) as error:
            raise FileError(f"{member} cannot be unpacked ({reason(error)})") from None
        if len(data) != claimed:
            raise FileError(f"{member} is cut short: export or copy the file again")
        return data

    def _opened(self) -> zipfile.ZipFile:
        head = self._file.read(512)
        if kind_of(head) != "zip":
            raise FileError(f"{self}: {refusal(head)}")
        self._check_directory()
        try:
            return zipfile.ZipFile(self._file)
        except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, OverflowError) as error:
            raise FileError(
                f"{self}: is a truncated or damaged zip archive ({reason(error)}): export or copy it again"
            ) from None

    def _check_directory(self) -> None:
        """Refuse a huge directory before zipfile builds an object for each entry of it."""
        self._file.seek(0, 2)
        size = self._file.tell()
        self._file.seek(max(0, size - _TAIL))
        tail = self._file.read(_TAIL)
        at = tail.rfind(_END)
        declared = int.from_bytes(tail[at + 12 : at + 16], "little") if at >= 0 else 0
        if declared == 0xFFFFFFFF and (at := tail.rfind(_END64)) >= 0:
            declared = int.from_bytes(tail[at + 40 : at + 48], "little")
        if declared > MAX_DIRECTORY_BYTES:
            raise FileError(f"{self}: lists {declared:,} bytes of member names, too many to be a .pt2")
        self._file.seek(0)

    def _checked_names(self) -> frozenset[str]:
        entries = self._zip.infolist()
        if len(entries) > MAX_MEMBERS:
            raise FileError(f"{self}: has {len(entries):,} members, too many to be a .pt2")
        if entries and min(entry.header_offset for entry in entries) > 0:
            # The directory belongs to an archive stored inside this one; that of this one is cut off.
            raise FileError(f"{self}: is a truncated or damaged zip archive: export or copy it again")
        names: set[str] = set()
        for entry in entries:
            name = entry.filename
            if name in names:
                raise FileError(
                    f"{self}: has the member {shown(name)} more than once: it is damaged or was tampered with"
                )
            if ".." in name.replace("\\", "/").split("/") or name.startswith(("/", "\\")) or name[1:2] == ":":
                raise FileError(
                    f"{self}: has the member {shown(name)}, which points outside: it was tampered with"
                )
            names.add(name)
        return frozenset(names)


class Pages:
    """The bytes of an open file by offset, with one page in memory at a time.

    A mapping of the file would do the same, but counts as the process's memory what lies beside the bytes looked at: for a
    file of weights much of it.
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
