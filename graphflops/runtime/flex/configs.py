"""Tile sizes and launch settings of the kernels: data by machine, reduced to the limits of a problem and a device."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, Literal

from graphflops.errors import ModelError

Kernel = Literal["forward", "query_gradient", "key_gradient"]


@dataclass(frozen=True)
class Tiles:
    """Launch settings of a kernel.

    rows, columns: queries and keys of a tile, powers of two. warps, stages: Triton's.
    descriptors: tiles are brought by the tensor copy engine where strides allow.
    """

    rows: int
    columns: int
    warps: int = 4
    stages: int = 2
    descriptors: bool = False


_chosen: contextvars.ContextVar[Mapping[Kernel, Tiles]] = contextvars.ContextVar("chosen", default={})  # noqa: B039


@contextlib.contextmanager
def override(**tiles: Tiles) -> Iterator[None]:
    """Use these settings, by kernel, within the context; sizes are still reduced to the mask's blocks."""
    token = _chosen.set({**_chosen.get(), **tiles})  # type: ignore[dict-item]
    try:
        yield
    finally:
        _chosen.reset(token)


def choose(kernel: Kernel, device: str, itemsize: int, width: int, blocks: tuple[int, int] | None) -> Tiles:
    """The settings of a kernel on a device, for operands of this element size and the larger head width.

    blocks: sizes of the mask's blocks, which tiles must divide; None where the blocks are made to suit.
    Raises ModelError for blocks that no tile of 16 divides.
    """
    tiles = _chosen.get().get(kernel) or _recorded(kernel, device, itemsize, width)
    return tiles if blocks is None else _cut(tiles, blocks)


@functools.cache
def _cut(tiles: Tiles, blocks: tuple[int, int]) -> Tiles:
    return replace(tiles, rows=_dividing(tiles.rows, blocks[0]), columns=_dividing(tiles.columns, blocks[1]))


def _dividing(tile: int, block: int) -> int:
    if block % 16:
        what = f"a block of {block} is not a multiple of 16"
        raise ModelError(f"block_mask: {what}; make it with BLOCK_SIZE=128")
    while block % tile:
        tile //= 2
    return tile


@functools.cache
def _recorded(kernel: Kernel, device: str, itemsize: int, width: int) -> Tiles:
    machines = _data()
    name = next((name for name in machines if device.startswith(name)), "default")
    entries = [
        entry for entry in machines[name] if entry["kernel"] == kernel and entry["itemsize"] >= itemsize
    ]
    fits = [entry for entry in entries if entry["width"] >= width]
    if not fits:
        raise ModelError(f"head width {width} with {8 * itemsize}-bit elements is more than the kernel takes")
    entry = min(fits, key=lambda entry: (entry["itemsize"], entry["width"]))
    return Tiles(**{key: value for key, value in entry.items() if key not in ("kernel", "itemsize", "width")})


@functools.cache
def _data() -> dict[str, list[dict[str, Any]]]:
    text = resources.files("graphflops.runtime.flex").joinpath("configs.json").read_text("utf-8")
    data: dict[str, list[dict[str, Any]]] = json.loads(text)
    return data
