"""ONNX's protobuf messages, and serialized models without their weights.

Importing the package `onnx` takes 0.3 s, most of it for numpy. The module of message classes takes a fifth of that and is
the only one imported here. Both ways give the same classes.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from graphflops.base.protobuf import field, varint
from graphflops.exporters.archive import Pages

Buffer = bytes | memoryview

KEPT_BYTES = 1024  # of a tensor's data; no tensor whose contents matter to sizes is larger
DROPPED = "graphflops.dropped_bytes"  # key under which a tensor says how much data it had, beside its `external_data`
EXTERNAL = 1  # TensorProto.DataLocation.EXTERNAL
FIELDS = {
    "float32": "float_data",
    "float64": "double_data",
    "complex64": "float_data",
    "complex128": "double_data",
    "int64": "int64_data",
    "uint32": "uint64_data",
    "uint64": "uint64_data",
    "string": "string_data",
}  # all other element types are held in `int32_data`

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
# Which fields of a message hold messages that may hold tensor data, by field number.
_INSIDE: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
_DATA_FIELDS = {4: "float", 5: "int32", 7: "int64", 9: "raw", 10: "double", 11: "uint64"}
_MOST_NESTED = 100  # protobuf's own limit


@lru_cache(maxsize=1)
def messages() -> Any:
    """The module of ONNX's message classes."""
    loaded = sys.modules.get("onnx.onnx_ml_pb2")
    if loaded is not None:
        return loaded
    package = importlib.util.find_spec("onnx")
    for folder in (package and package.submodule_search_locations) or ():
        path = Path(folder) / "onnx_ml_pb2.py"
        spec = importlib.util.spec_from_file_location("graphflops._onnx_messages", path)
        if path.exists() and spec is not None and spec.loader is not None:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    import onnx

    return onnx


def decode_error() -> type[Exception]:
    """The exception that parsing raises for bytes that are not a message."""
    error: type[Exception] = importlib.import_module("google.protobuf.message").DecodeError
    return error


def without_weights(data: bytes | Pages) -> bytes:
    """A serialized ModelProto without the large data of its tensors; an entry of each tensor says how large they were.

    Bytes that are not a well-formed message are returned as they are: parsing them will say what is wrong.
    """
    view = data if isinstance(data, Pages) else memoryview(data)
    try:
        pieces = list(_slimmed(view, 0, len(view), "model", 0))
    except (IndexError, ValueError):
        return bytes(view[:])
    if len(pieces) == 1 and isinstance(data, bytes):
        return data  # nothing was dropped
    return b"".join(pieces)


def _slimmed(data: memoryview | Pages, at: int, end: int, kind: str, depth: int) -> Iterator[Buffer]:
    """The parts of the message in data[at:end] that are kept, joined where they are neighbours."""
    kept_from = at
    dropped = []
    while at < end:
        start = at
        tag, at = data[at], at + 1  # numbers of one byte without a call: nearly all
        if tag > 0x7F:
            tag, at = _varint(data, start, end)
        number, wire = tag >> 3, tag & 7
        if wire == _LENGTH:
            length, body = data[at], at + 1
            if length > 0x7F:
                length, body = _varint(data, at, end)
            at = body + length
            if at > end:
                raise ValueError("a field is longer than its message")
            if length <= KEPT_BYTES:
                continue
            if kind == "tensor" and number in _DATA_FIELDS:
                yield data[kept_from:start]
                kept_from = at
                dropped.append(f"{_DATA_FIELDS[number]}:{length}")
            elif number in _INSIDE[kind] and depth < _MOST_NESTED:
                pieces = list(_slimmed(data, body, at, _INSIDE[kind][number], depth + 1))
                if sum(map(len, pieces)) != length:
                    yield data[kept_from:start]
                    yield from [bytes(varint(tag) + varint(sum(map(len, pieces)))), *pieces]  # as one field
                    kept_from = at
        elif wire == _VARINT:
            _, at = _varint(data, at, end)
        elif wire in (_FIXED64, _FIXED32):
            if kind == "tensor" and number in _DATA_FIELDS:  # one field per element: not worth the walk
                break
            at += 8 if wire == _FIXED64 else 4
        else:
            raise ValueError("groups are not used")
    yield data[kept_from:end]
    for text in dropped:
        yield field(13, field(1, DROPPED.encode()) + field(2, text.encode()))  # TensorProto.external_data


def fields(data: memoryview, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, begin and end of each field with a length, in the message in data[at:end]; other fields are skipped.

    Raises ValueError or IndexError for bytes that are not a message.
    """
    while at < end:
        tag, at = _varint(data, at, end)
        number, wire = tag >> 3, tag & 7
        if wire == _LENGTH:
            length, at = _varint(data, at, end)
            if at + length > end:
                raise ValueError("a field is longer than its message")
            yield number, at, at + length
            at += length
        elif wire == _VARINT:
            _, at = _varint(data, at, end)
        elif wire in (_FIXED64, _FIXED32):
            at += 8 if wire == _FIXED64 else 4
        else:
            raise ValueError("groups are not used")


def _varint(data: memoryview | Pages, at: int, end: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while True:
        at += 1
        if at >= end or shift > 63:
            raise ValueError("a number does not end")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
