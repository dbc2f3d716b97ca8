"""Tile sizes, read from the names of library kernels."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """The tile that one step of a kernel multiplies; in attention rows are queries and columns are keys.

    depth: multiply-adds of each result in a step, None if the name does not state it; in attention the padded head width.
    cluster: number of tiles launched together, along rows and columns.
    """

    rows: int
    columns: int
    depth: int | None = None
    cluster: tuple[int, int] = (1, 1)

    def __str__(self) -> str:
        return "x".join(str(size) for size in (self.rows, self.columns, self.depth) if size is not None)


_SIZE = r"(?:\(int\))?(\d+)"
_TRAITS = re.compile(rf"flash_\w*kernel<\w+_kernel_traits<{_SIZE}, {_SIZE}, {_SIZE}")
_NVJET = re.compile(r"nvjet_\w+?_(\d+)x(\d+)_(\d+)x\d+_(\d+)x(\d+)_")
_PATTERNS = (
    re.compile(r"tilesize(\d+)x(\d+)x(\d+)"),
    re.compile(r"sdpa_\w*?_(\d+)x(\d+)x(\d+)_"),  # cuDNN
    re.compile(rf"GemmShape<{_SIZE}, {_SIZE}, {_SIZE}>"),
    re.compile(r"cutlass\w*_(\d+)x(\d+)_(\d+)x\d+_"),
    re.compile(r"(?:cutlass|sgemm|dgemm|gemm)\w*_(\d+)x(\d+)_()"),
)
_GROUPED = re.compile(r"_g([2-9]\d*|1\d+)_")
_ROLE = re.compile(r"(fprop|dgrad|wgrad)")
# What CUTLASS calls a kernel, inside of its template.
_TEMPLATED = re.compile(r"(cutlass_(?:\d|tensorop|simt)\w+)")
_INSTRUCTION = re.compile(r"tensor(\d+)x(\d+)x(\d+)")


def tile_of(name: str) -> Tile | None:
    """The tile of a kernel of cuBLAS, cuDNN, CUTLASS or flash attention; None if its name does not state it."""
    if match := _TRAITS.search(name):
        width, rows, columns = map(int, match.groups())
        return Tile(rows, columns, width)
    if match := _NVJET.search(name):
        rows, columns, depth, up, along = map(int, match.groups())
        return Tile(rows, columns, depth, (up, along))
    for pattern in _PATTERNS:
        if match := pattern.search(name):
            return Tile(int(match[1]), int(match[2]), int(match[3]) if match[3] else None)
    return None


def instruction_of(name: str) -> Tile | None:
    """The tile of one instruction, to which a convolution kernel for several groups pads each group."""
    if not _GROUPED.search(name):
        return None
    match = _INSTRUCTION.search(name)
    # Of a warp group, in half precision.
    rows, columns, depth = map(int, match.groups()) if match else (64, 8, 16)
    return Tile(rows, columns, depth)


def role_of(name: str) -> str:
    """The product of a convolution that a kernel computes: fprop, dgrad or wgrad; "" if its name does not state it."""
    match = _ROLE.search(name.lower())
    return match[1] if match else ""


def short_name(name: str, limit: int = 60) -> str:
    """A kernel's name without return type, namespaces, template arguments and parameters."""
    plain = name.removeprefix("void ").replace("<unnamed>::", "")
    inner = _TEMPLATED.search(plain)
    text = inner[1] if inner else re.split(r"[<(]", plain)[0].rpartition("::")[2]
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
