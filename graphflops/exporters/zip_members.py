"""Finds the members of a zip archive, and refuses an archive in which another conforming reader could find others.

torch reads archives with miniz, Python with zipfile. They differ if an archive has two end records, two names that differ in
case alone, bytes between its members, or headers that contradict its directory. The contents of members are not read.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Protocol

from msgspec.structs import replace

from graphflops.base.record import Record
from graphflops.errors import FileError, shown

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


class Seekable(Protocol):
    """A file that is read without a buffer; one read may give fewer bytes than it asks for."""

    def seek(self, place: int, /) -> int: ...

    def read(self, length: int, /) -> bytes: ...

    def close(self) -> None: ...


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


def members(file: Seekable, length: int) -> dict[str, Member]:
    """Every member of an archive of `length` bytes, by name. Raises FileError if the archive can be read in two ways."""
    count, begin, end = _directory(file, length)
    entries = list(_entries(read_at(file, begin, end - begin)))
    if len(entries) != count:
        raise FileError(_DAMAGED)
    names = _checked_names(entries)
    found = {}
    edge, before = 0, None
    for entry, name in sorted(zip(entries, names, strict=True), key=lambda pair: pair[0].start):
        near = _following(file, edge, entry.start, _HEADER.size + len(entry.name), before)
        found[name] = replace(entry, start=entry.start + _header_size(file, entry, near, name))
        edge, before = found[name].start + entry.packed, entry
    _following(file, edge, begin, 0, before)
    return found


def read_at(file: Seekable, place: int, length: int) -> bytes:
    """`length` bytes at an offset, or fewer if the file ends before."""
    file.seek(place)
    found = file.read(length)
    while len(found) < length and (more := file.read(length - len(found))):  # one call gives at most 2 GiB
        found += more
    return found


def _directory(file: Seekable, length: int) -> tuple[int, int, int]:
    """The number of entries in the directory, its begin, and its end, which is right before the only end record."""
    tail = read_at(file, max(0, length - _TAIL), _TAIL)
    at = tail.rfind(b"PK\x05\x06")
    end = length - len(tail) + at
    if at < 0 or len(tail) < at + _END.size:
        raise FileError(_DAMAGED)
    *fields, comment = _END.unpack_from(tail, at)[1:]
    if end + _END.size + comment != length:
        raise FileError(_DAMAGED)
    locator = read_at(file, max(0, end - _LOCATOR.size), _LOCATOR.size)
    if locator[:4] == b"PK\x06\x07":
        # The zip64 end record must be right before its locator.
        end -= _LOCATOR.size + _WIDE_END.size
        if _LOCATOR.unpack(locator)[2] != end:
            raise FileError(_two_ways("two end records"))
        signature, follow, _, _, *wide = _WIDE_END.unpack(read_at(file, end, _WIDE_END.size))
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


def _header_size(file: Seekable, entry: Member, near: bytes, name: str) -> int:
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
        size, packed = _wide_numbers(read_at(file, entry.start + length - extra, extra), [size, packed])
    pairs = (checksum, entry.checksum), (packed, entry.packed), (size, entry.size)
    if any(told != ours and (told or not may_follow) for told, ours in pairs):
        raise FileError(_two_ways(f"two sizes of {shown(name)}"))
    return length


def _following(file: Seekable, edge: int, place: int, length: int, before: Member | None) -> bytes:
    """`length` bytes at `place`. Raises FileError unless bytes between `edge` and `place` belong to the member before."""
    gap = place - edge
    if gap < 0:
        raise FileError(_two_ways("members overlap"))
    found = read_at(file, edge, min(gap, _DESCRIPTOR) + length)
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
