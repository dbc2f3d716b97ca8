"""Writes protobuf's wire format without message classes: https://protobuf.dev/programming-guides/encoding."""

import struct
from collections.abc import Iterable

_VARINT, _FIXED64, _LENGTH = 0, 1, 2


def varint(number: int) -> bytearray:
    """A number from 0 on, seven bits a byte, the lowest first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return out


def field(number: int, value: int | float | str | bytes) -> bytes:
    """A field of a message: a bool, enumeration or number from 0 on as varint, a float as double, else with its length."""
    if isinstance(value, int):
        return bytes(varint(number << 3 | _VARINT) + varint(value))
    if isinstance(value, float):
        return bytes(varint(number << 3 | _FIXED64)) + struct.pack("<d", value)
    body = value.encode("utf-8", "backslashreplace") if isinstance(value, str) else value
    return bytes(varint(number << 3 | _LENGTH) + varint(len(body))) + body


def packed(number: int, values: Iterable[int]) -> bytes:
    """A repeated field of non-negative numbers, packed as in proto3; b"" if there are none."""
    body = b"".join(map(bytes, map(varint, values)))
    return field(number, body) if body else b""
