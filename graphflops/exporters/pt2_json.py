"""JSON members of a `.pt2` as typed values."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from graphflops.errors import FileError, shown

Decoded = TypeVar("Decoded")

_BARE_NUMBER = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|-?Infinity|NaN', re.DOTALL)


def decode(data: bytes, kind: type[Decoded], where: str) -> Decoded:
    """JSON as a typed value; raises FileError, with the path inside the JSON, where it does not fit."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise FileError(f"{where} does not follow the export schema: {shown(str(error), 300)}") from None
    except RecursionError:
        raise FileError(f"{where} nests too deep") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        quoted = _quoted_numbers(data)
        if quoted is None:
            raise FileError(f"{where} is not JSON: {shown(str(error), 200)}") from None
    return decode(quoted, kind, where)


def _quoted_numbers(data: bytes) -> bytes | None:
    """The JSON with bare NaN and Infinity, which older releases wrote, as strings; None without any."""
    if b"NaN" not in data and b"Infinity" not in data:
        return None
    quoted = _BARE_NUMBER.sub(
        lambda found: found[0] if found[0][:1] == b'"' else b'"' + found[0] + b'"', data
    )
    return quoted if quoted != data else None
