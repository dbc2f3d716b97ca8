"""Zip archives byte by byte, so that a test can write what no packer would."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Sequence
from typing import NamedTuple


class Part(NamedTuple):
    """A member. told: its name in its own header. gap: bytes before the header. hidden: not in the directory."""

    name: str
    data: bytes
    told: str | None = None
    told_size: int | None = None
    gap: bytes = b""
    extra: bytes = b""
    flags: int = 0
    after: bytes = b""
    is_hidden: bool = False


def parts_of(data: bytes) -> list[Part]:
    """The members of an archive."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return [Part(name, archive.read(name)) for name in archive.namelist()]


def packed(
    parts: Sequence[Part], *, other: Sequence[Part] | None = None, comment: bytes = b"", last: bytes = b""
) -> bytes:
    """An archive of these members.

    other: members of a second directory, whose end record of 8-byte numbers is not the one that the locator points to.
    comment: at the end. last: bytes after the end.
    """
    body, first = _body(parts, 0)
    begin = len(body)
    if other is None:
        return body + first + _end(len(first), begin, _count(parts), comment) + last
    more, second = _body(other, begin + len(first) + _WIDE_BYTES)
    place = begin + len(first) + _WIDE_BYTES + len(more)
    body += first + _wide_end(len(first), begin, _count(parts)) + more + second
    body += _wide_end(len(second), place, _count(other))
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, begin + len(first), 1)
    return body + locator + _end(2**32 - 1, 2**32 - 1, 0xFFFF, comment) + last


_WIDE_BYTES = 56


def _count(parts: Sequence[Part]) -> int:
    return sum(not part.is_hidden for part in parts)


def _body(parts: Sequence[Part], begin: int) -> tuple[bytes, bytes]:
    """Headers with contents, and the directory."""
    body, directory = b"", b""
    for part in parts:
        body += part.gap
        name, told, size = part.name.encode(), (part.told or part.name).encode(), len(part.data)
        checksum = zlib.crc32(part.data)
        told_size = size if part.told_size is None else part.told_size
        head = (part.flags, 0, 0, 33, checksum)
        if not part.is_hidden:
            lengths = (len(name), len(part.extra), 0, 0, 0, 0, begin + len(body))
            directory += struct.pack("<4s6H3L5H2L", b"PK\x01\x02", 20, 20, *head, size, size, *lengths)
            directory += name + part.extra
        body += struct.pack("<4s5H3L2H", b"PK\x03\x04", 20, *head, told_size, told_size, len(told), 0)
        body += told + part.data + part.after
    return body, directory


def _end(size: int, begin: int, count: int, comment: bytes) -> bytes:
    return struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, count, count, size, begin, len(comment)) + comment


def _wide_end(size: int, begin: int, count: int) -> bytes:
    return struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, size, begin)
