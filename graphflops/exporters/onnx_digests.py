"""Digests of the weights in an ONNX file, to find equal ones. Only this module reads weights inside a file."""

from __future__ import annotations

import hashlib
import mmap
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from graphflops.exporters.onnx_proto import fields

if TYPE_CHECKING:
    from collections.abc import Iterator

_GRAPH, _INITIALIZER = 7, 5
_NAME, _DATA = 8, (4, 5, 7, 9, 10, 11)


def digests(path: Path | str, smallest: int) -> dict[str, str]:
    """Digests of initializers' data by name; {} for a file that is not a binary ModelProto.

    Only data of at least `smallest` bytes, and of a length that occurs more than once, is read.
    """
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        data = memoryview(mapped)
        try:
            found = [(name, at, end) for name, at, end in _tensors(data) if end - at >= smallest]
        except (IndexError, ValueError):
            return {}
        else:
            lengths = Counter(end - at for _, at, end in found)
            return {
                name: hashlib.blake2b(data[at:end], digest_size=16).hexdigest()
                for name, at, end in found
                if lengths[end - at] > 1
            }
        finally:
            data.release()


def _tensors(data: memoryview) -> Iterator[tuple[str, int, int]]:
    """Name, and begin and end of the data, of each initializer of the program's own graph."""
    for number, at, end in fields(data, 0, len(data)):
        if number != _GRAPH:
            continue
        for inner, start, stop in fields(data, at, end):
            if inner != _INITIALIZER:
                continue
            parts = {field: (a, b) for field, a, b in fields(data, start, stop) if field in (_NAME, *_DATA)}
            name = parts.pop(_NAME, None)
            if name is not None and len(parts) == 1:
                ((a, b),) = parts.values()
                yield bytes(data[slice(*name)]).decode(errors="replace"), a, b
