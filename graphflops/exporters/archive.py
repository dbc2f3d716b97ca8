"""Opens files of unknown origin: identifies their format, and reads members of zip archives within limits.

A file is judged by its bytes, never by its name. Nothing is trusted: sizes are checked before and while reading, and only
members that a reader asks for by name are ever opened. An archive in which another conforming reader could find other
members is refused. torch reads archives with miniz, Python with zipfile; they differ if an archive has two end records, two
names that differ in case alone, bytes between its members, or headers that contradict its directory.
"""

import mmap
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from graphflops.base.limits import spend
from graphflops.base.record import Record, replace
from graphflops.errors import FileError, shown
from graphflops.exporters import ZIP, in_one_line, reason, regular_file

# Gives as many bytes from an offset on as it is asked for, or fewer if the file ends before.
Read = Callable[[int, int], bytes]
# Unpacked bytes of one member; the program of a 70-billion-parameter model takes 7 to 11 MB.
MAX_MEMBER_BYTES = 512 * 2**20
# A member that is larger than this and packed tighter than this ratio is assumed to be a zip bomb.
_BOMB_BYTES = 4 * 2**20
_BOMB_RATIO = 200

_PAGE = 16 * 2**10

_PICKLES = (b"\x80\2", b"\x80\3", b"\x80\4", b"\x80\5")
# What other files begin with: (offset, bytes, what it is, what to do about it).
_MAGIC: tuple[tuple[int, bytes | tuple[bytes, ...], str, str], ...] = (
    (0, b"version https://git-lfs", "a git-lfs pointer", "fetch the file itself with `git lfs pull`"),
    (0, _PICKLES, "a pickle", "it is not opened; save the program with torch.export.save"),
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
    """A zip archive. Raises FileError, in one line, for one that is damaged, built to harm, or can be read in two ways."""

    def __init__(self, path: Path | str) -> None:
        self.path = regular_file(path)
        with in_one_line(str(self)):
            self._file = self.path.open("rb", buffering=0)
            try:
                head = self._file.read(512)
                if not head.startswith(ZIP):
                    advice = "give the file that torch.export.save wrote"
                    wanted, json = "a .pt2 (no zip archive)", "a report perhaps, not a model"
                    raise FileError(other_format(head, f"{wanted}: {advice}", f"{json}: {advice}"))
                self._open(partial(_read_at, self._file), self.path.stat().st_size)
            except BaseException:
                self._file.close()
                raise

    def _open(self, read: Read, length: int) -> None:
        self._read, self._members = read, members(read, length)
        self.names = frozenset(self._members)

    def __str__(self) -> str:
        return shown(str(self.path))

    def __enter__(self) -> "Archive":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def within(self, name: str) -> "Archive":
        """A member that is an archive itself, opened; it is read as a whole only if it is compressed."""
        found, inner = self._members[name], copy(self)
        whole = self.read(name) if found.method == DEFLATED else None

        def read(place: int, length: int) -> bytes:
            if whole is not None:
                return whole[place : place + length]
            return self._read(found.start + place, max(0, min(length, found.size - place)))

        inner._open(read, found.size)
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
            data = self._read(found.start, found.packed)
            if found.method == DEFLATED:
                data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, found.size + 1)
        except (zlib.error, OSError) as error:
            raise FileError(f"{member} is damaged ({reason(error)}): export or copy the file again") from None
        if len(data) != found.size or zlib.crc32(data) != found.checksum:
            raise FileError(f"{member} is damaged: export or copy the file again")
        return data


class Pages:
    """The bytes of an open file by offset, with one page in memory at a time. (Of a mapping, the neighbours of each page
    would count as the process's memory: for a file of weights, much of the file.)
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size = file, size
        self._page, self._begin = b"", 0

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, place: int | slice) -> Any:
        """A byte, or the bytes of a slice."""
        if isinstance(place, slice):
            begin, end, _ = place.indices(self._size)
            return _read_at(self._file, begin, end - begin)
        if not 0 <= place - self._begin < len(self._page):
            self._page, self._begin = _read_at(self._file, place, _PAGE), place
        return self._page[place - self._begin]


def _read_at(file: BinaryIO, place: int, length: int) -> bytes:
    file.seek(place)
    found = file.read(length)
    while len(found) < length and (more := file.read(length - len(found))):  # one call gives at most 2 GiB
        found += more
    return found


def mapped(path: Path, start: int, size: int) -> memoryview:
    """Bytes of a file, mapped into memory; writing to them changes a copy."""
    page = start // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    with path.open("rb") as file:
        whole = mmap.mmap(file.fileno(), start - page + size, access=mmap.ACCESS_COPY, offset=page)
    return memoryview(whole)[start - page :]


# Members of a zip archive.

MAX_MEMBERS = 1_000_000
MAX_DIRECTORY_BYTES = 128 * 2**20
STORED, DEFLATED = 0, 8

# Signature, this disk, the directory's disk, entries here, entries in all, bytes, offset, bytes of the comment.
_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")  # signature, disk, offset of the wide end record, disks
_WIDE_END = struct.Struct("<4sQ2H2L4Q")  # signature, bytes that follow, two versions, then as above
# Signature, two versions, flags, method, time, date, checksum, packed and unpacked bytes, bytes of the name, of the extra
# fields and of the comment, disk, two attributes, offset of the header.
_ENTRY = struct.Struct("<4s6H3L5H2L")
_HEADER = struct.Struct("<4s5H3L2H")  # the same, from the second version to the bytes of the extra fields
# Inside an entry: checksum and sizes; bytes of the name and of the extra fields.
_SUMS, _LENGTHS = (struct.Struct("<3L"), struct.Struct("<2H"))
_TAIL = _END.size + 2**16 - 1
_OPEN = 2**32 - 1  # means that the number is in the extra field _WIDE, with 8 bytes
_WIDE, _OTHER_NAME = 0x1, 0x7075
_DEFERRED, _UTF8, _ENCRYPTED = 0x8, 0x800, 0x2041
_FLAGS = _DEFERRED | _UTF8 | 0x6  # flags that do not change what is read
_DESCRIPTOR = 24  # bytes of the longest data descriptor, which may follow a member's contents
_DAMAGED = "is a truncated or damaged zip archive: export or copy it again"


class Member(Record, frozen=True):
    """Where a member is and how it is packed, according to its entry in the directory."""

    name: bytes
    packing: bytes  # flags and method, as the bytes that the member's header should repeat
    sums: bytes  # checksum and sizes, in the same form
    flags: int
    method: int
    checksum: int  # CRC-32
    packed: int  # bytes of the packed contents
    size: int  # bytes of the unpacked contents
    start: int  # offset of the contents; as read from the directory, that of the header before them


def members(read: Read, length: int) -> dict[str, Member]:
    """Every member of an archive of `length` bytes, by name. Raises FileError if the archive can be read in two ways."""
    count, begin, end = _directory(read, length)
    entries = list(_entries(read(begin, end - begin)))
    if len(entries) != count:
        raise FileError(_DAMAGED)
    names = _checked_names(entries)
    found = {}
    edge, before = 0, None
    for entry, name in sorted(zip(entries, names, strict=True), key=lambda pair: pair[0].start):
        near = _following(read, edge, entry.start, _HEADER.size + len(entry.name), before)
        found[name] = replace(entry, start=entry.start + _header_size(read, entry, near, name))
        edge, before = found[name].start + entry.packed, entry
    _following(read, edge, begin, 0, before)
    return found


def _directory(read: Read, length: int) -> tuple[int, int, int]:
    """The number of entries in the directory, its begin, and its end, which is right before the only end record."""
    tail = read(max(0, length - _TAIL), _TAIL)
    at = tail.rfind(b"PK\x05\x06")
    end = length - len(tail) + at
    if at < 0 or len(tail) < at + _END.size:
        raise FileError(_DAMAGED)
    *fields, comment = _END.unpack_from(tail, at)[1:]
    if end + _END.size + comment != length:
        raise FileError(_DAMAGED)
    locator = read(max(0, end - _LOCATOR.size), _LOCATOR.size)
    if locator[:4] == b"PK\x06\x07":
        # The zip64 end record must be right before its locator.
        end -= _LOCATOR.size + _WIDE_END.size
        if _LOCATOR.unpack(locator)[2] != end:
            raise FileError(_two_ways("two end records"))
        signature, follow, _, _, *wide = _WIDE_END.unpack(read(end, _WIDE_END.size))
        pairs = zip(fields, wide, (0xFFFF,) * 4 + (_OPEN,) * 2, strict=True)
        is_told = signature == b"PK\x06\x06" and follow == _WIDE_END.size - 12
        if not is_told or any(narrow not in (number, most) for narrow, number, most in pairs):
            raise FileError(_two_ways("two end records"))
        fields = wide
    disk, disks, here, count, size, begin = fields
    if count > MAX_MEMBERS:
        raise FileError(f"has {count:,} members, too many to be a .pt2")
    if size > MAX_DIRECTORY_BYTES:
        raise FileError(f"lists {size:,} bytes of member names, too many to be a .pt2")
    if begin + size != end or disk or disks or here != count:
        raise FileError(_DAMAGED)
    return count, begin, end


def _entries(directory: bytes) -> Iterator[Member]:
    place = 0
    while place < len(directory):
        if len(directory) < place + _ENTRY.size or directory[place : place + 4] != b"PK\x01\x02":
            raise FileError(_DAMAGED)
        fields = _ENTRY.unpack_from(directory, place)
        flags, method, _, _, checksum, packed, size, named, extra, comment, disk, _, _, header = fields[3:]
        name, rest = directory[place + _ENTRY.size : place + _ENTRY.size + named], place + _ENTRY.size + named
        if extra:
            size, packed, header = _wide_numbers(directory[rest : rest + extra], [size, packed, header])
        packing, sums = directory[place + 8 : place + 12], directory[place + 16 : place + 28]
        place = rest + extra + comment
        if disk or len(directory) < place:
            raise FileError(_DAMAGED)
        yield Member(name, packing, sums, flags, method, checksum, packed, size, header)


def _wide_numbers(extra: bytes, numbers: list[int]) -> list[int]:
    """The numbers, where each _OPEN is replaced by the next 8-byte number of the extra field."""
    place, wide = 0, b""
    while place + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, place)
        if kind == _OTHER_NAME or (kind == _WIDE and wide):
            raise FileError(_two_ways("two names or sizes of a member"))
        wide = extra[place + 4 : place + 4 + length] if kind == _WIDE else wide
        place += 4 + length
    told = iter(struct.unpack(f"<{len(wide) // 8}Q", wide[: len(wide) // 8 * 8]))
    return [next(told, number) if number == _OPEN else number for number in numbers]


def _checked_names(entries: Sequence[Member]) -> list[str]:
    """The names of members. Raises FileError if two differ in case alone, or if one points outside of the archive."""
    names: list[str] = []
    folded: dict[str, str] = {}
    for entry in entries:
        try:
            name = entry.name.decode("utf-8" if entry.flags & _UTF8 else "cp437")
        except UnicodeDecodeError:
            raise FileError(_DAMAGED) from None
        plain = name.replace("\\", "/")
        if (".." in plain and ".." in plain.split("/")) or plain.startswith("/") or name[1:2] == ":":
            raise FileError(f"has the member {shown(name)}, which points outside: it was tampered with")
        first = folded.setdefault(plain.casefold(), name)
        names.append(name)
        if len(folded) < len(names) or "\0" in name:
            raise FileError(_two_ways(f"members {shown(first)} and {shown(name)}"))
        if entry.flags & _ENCRYPTED:
            raise FileError(f"member {shown(name)} is encrypted: save the program without a password")
        if entry.flags & ~_FLAGS or entry.method not in (STORED, DEFLATED):
            raise FileError(f"member {shown(name)} cannot be unpacked: it is packed by method {entry.method}")
        if entry.method == STORED and entry.packed != entry.size:
            raise FileError(_two_ways(f"two sizes of {shown(name)}"))
    return names


def _header_size(read: Read, entry: Member, near: bytes, name: str) -> int:
    """The length of a member's header in bytes; the header must agree with the directory. near: its bytes up to the name."""
    if len(near) < _HEADER.size or near[:4] != b"PK\x03\x04":
        raise FileError(_DAMAGED)
    named, extra = _LENGTHS.unpack_from(near, _HEADER.size - _LENGTHS.size)
    length: int = _HEADER.size + named + extra
    if near[6:10] != entry.packing or near[_HEADER.size : _HEADER.size + named] != entry.name:
        raise FileError(_two_ways(f"two names of {shown(name)}"))
    may_follow = bool(entry.flags & _DEFERRED)
    if near[14:26] == entry.sums or (may_follow and near[14:26] == bytes(12)):
        return length
    checksum, packed, size = _SUMS.unpack_from(near, 14)
    if _OPEN in (packed, size):
        size, packed = _wide_numbers(read(entry.start + length - extra, extra), [size, packed])
    pairs = (checksum, entry.checksum), (packed, entry.packed), (size, entry.size)
    if any(told != ours and (told or not may_follow) for told, ours in pairs):
        raise FileError(_two_ways(f"two sizes of {shown(name)}"))
    return length


def _following(read: Read, edge: int, place: int, length: int, before: Member | None) -> bytes:
    """`length` bytes at `place`. Raises FileError unless bytes between `edge` and `place` belong to the member before."""
    gap = place - edge
    if gap < 0:
        raise FileError(_two_ways("members overlap"))
    found = read(edge, min(gap, _DESCRIPTOR) + length)
    if gap and (before is None or gap > _DESCRIPTOR or not _is_descriptor(found[:gap], before)):
        raise FileError(_two_ways(f"{gap:,} bytes belong to no member"))
    return found[gap:]


def _is_descriptor(data: bytes, entry: Member) -> bool:
    """Whether bytes after a member's contents are its data descriptor, which repeats checksum and sizes."""
    if not entry.flags & _DEFERRED:
        return False
    data = data.removeprefix(b"PK\x07\x08") if len(data) in (16, 24) else data
    wide = struct.pack("<L2Q", entry.checksum, entry.packed, entry.size) if len(data) == 20 else b""
    return data in (entry.sums, wide)


def _two_ways(what: str) -> str:
    return f"can be read in two ways ({what}): torch may run another program; export or copy it again"
