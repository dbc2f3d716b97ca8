"""Blocks of the score matrix that are computed: lists for the kernels, and the predicted tiles.

A partial block calls the mask function, a full block need not. Each list is held twice: by row of blocks for the forward
and the query's gradient, and by column for the gradients of key and value.

Tile sizes and launch settings of the kernels are data by machine, reduced to the limits of a problem and a device.
"""

import contextlib
import contextvars
import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, Literal

import torch
from torch import Tensor

from graphflops.errors import ModelError

Kernel = Literal["forward", "query_gradient", "key_gradient"]


@dataclass(frozen=True)
class Tiles:
    """Launch settings of a kernel."""

    rows: int  # queries of a tile, a power of two
    columns: int  # keys of a tile, a power of two
    warps: int = 4  # Triton's `num_warps`; `stages` likewise
    stages: int = 2
    descriptors: bool = False  # tiles are loaded by tensor descriptors (TMA) where strides allow


_chosen: contextvars.ContextVar[Mapping[Kernel, Tiles]] = contextvars.ContextVar("chosen", default={})  # noqa: B039


@contextlib.contextmanager
def override(**tiles: Tiles) -> Iterator[None]:
    """Within this context, use these settings by kernel. Sizes are still reduced to the mask's blocks."""
    token = _chosen.set({**_chosen.get(), **tiles})  # type: ignore[dict-item]
    try:
        yield
    finally:
        _chosen.reset(token)


def tiles_for(kernel: Kernel, q: Tensor, v: Tensor, blocks: tuple[int, int]) -> Tiles:
    """The settings of a kernel. blocks: sizes of the mask's blocks; ModelError if not even a tile of 16 divides them."""
    width = max(q.shape[-1], v.shape[-1])
    tiles = _chosen.get().get(kernel) or _recorded(kernel, q.device, q.element_size(), width)
    return replace(tiles, rows=_dividing(tiles.rows, blocks[0]), columns=_dividing(tiles.columns, blocks[1]))


@functools.cache
def _dividing(tile: int, block: int) -> int:
    if block % 16:
        what = f"a block of {block} is not a multiple of 16"
        raise ModelError(f"block_mask: {what}; make it with BLOCK_SIZE=128")
    while block % tile:
        tile //= 2
    return tile


@functools.cache
def _recorded(kernel: Kernel, device: torch.device, itemsize: int, width: int) -> Tiles:
    text = resources.files("graphflops.runtime.flex").joinpath("configs.json").read_text("utf-8")
    machines: dict[str, list[dict[str, Any]]] = json.loads(text)
    known = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    name = next((name for name in machines if known.startswith(name)), "default")
    entries = [entry for entry in machines[name] if entry["kernel"] == kernel]
    fits = [entry for entry in entries if entry["itemsize"] >= itemsize and entry["width"] >= width]
    if not fits:
        raise ModelError(f"head width {width} with {8 * itemsize}-bit elements is more than the kernel takes")
    entry = min(fits, key=lambda entry: (entry["itemsize"], entry["width"]))
    return Tiles(**{key: value for key, value in entry.items() if key not in ("kernel", "itemsize", "width")})


@dataclass(frozen=True)
class BlockLists:
    """Number and indices of the listed blocks in each line (row or column) of blocks."""

    counts: Tensor  # int32 [batch, heads, lines]
    places: Tensor  # int32 [batch, heads, lines, most], ascending up to the count
    contiguous: bool  # whether each line's places are consecutive, so that the first determines all
    empty: bool  # no line has any


@dataclass(frozen=True)
class MaskBlocks:
    """The blocks of one mask."""

    rows: int  # size of a block in queries
    columns: int  # size of a block in keys
    queries: int  # length that the mask was made for; so is `keys`
    keys: int
    by_row: tuple[BlockLists, BlockLists]  # partial and full blocks
    by_column: tuple[BlockLists, BlockLists]  # the same

    def repeats(self, batch: int, heads: int) -> int:
        """How often so many batch entries and query heads repeat the mask. Raises ModelError if it is for others."""
        entries, own = self.by_row[0].counts.shape[:2]
        if batch % entries or heads % own:
            raise ModelError(
                f"the mask is for {entries} batch entries and {own} heads, not {batch} and {heads}"
            )
        return int(batch // entries * (heads // own))


@dataclass(frozen=True)
class FlexCounts:
    """What a kernel is predicted to compute, or counted during its run."""

    full_tiles: int  # multiplied tiles of blocks without a mask
    partial_tiles: int  # multiplied tiles of blocks with a mask
    visible: int | None = None  # scores that are not masked; None if only tiles are counted


def from_sets(partial: Tensor, full: Tensor, rows: int, columns: int, queries: int, keys: int) -> MaskBlocks:
    """Blocks from two boolean tensors [batch, heads, rows of blocks, columns of blocks]: partial blocks and full blocks."""
    by_column = lists(partial.transpose(-2, -1)), lists(full.transpose(-2, -1))
    return MaskBlocks(rows, columns, queries, keys, (lists(partial), lists(full)), by_column)


def lists(chosen: Tensor) -> BlockLists:
    """For each line, the list of its true entries."""
    counts = chosen.sum(-1, dtype=torch.int32).contiguous()
    places = torch.argsort(chosen.to(torch.int8), dim=-1, descending=True, stable=True).to(torch.int32)
    # This read, and that of `follows`, wait for the device.
    most = int(counts.max()) if counts.numel() else 0
    places = places[..., : max(most, 1)].contiguous()
    steps = torch.arange(places.shape[-1], device=places.device, dtype=torch.int32)
    follows = (places == places[..., :1] + steps) | (steps >= counts[..., None])
    return BlockLists(counts, places, bool(follows.all()), most == 0)


def dense(queries: int, keys: int, rows: int, columns: int, device: torch.device) -> MaskBlocks:
    """The blocks without a mask: all of them. Those that exceed the lengths are partial."""
    last = torch.zeros(1, 1, -(-queries // rows), -(-keys // columns), dtype=torch.bool, device=device)
    if keys % columns:
        last[..., -1] = True
    return from_sets(last, ~last, rows, columns, queries, keys)


def causal(queries: int, keys: int, rows: int, columns: int, device: torch.device) -> MaskBlocks:
    """The blocks of the causal mask `query >= key`, from the top left."""
    first_row = torch.arange(-(-queries // rows), device=device)[:, None] * rows
    first_key = torch.arange(-(-keys // columns), device=device)[None, :] * columns
    seen = first_key <= torch.clamp(first_row + rows, max=queries) - 1
    full = (first_key + columns - 1 <= first_row) & (first_key + columns <= keys)
    return from_sets((seen & ~full)[None, None], full[None, None], rows, columns, queries, keys)


def from_mask(mask: Tensor, rows: int, columns: int) -> MaskBlocks:
    """The blocks of a boolean mask [batch, heads, queries, keys]."""
    queries, keys = mask.shape[-2:]
    padded = torch.nn.functional.pad(mask.to(torch.int32), (0, -keys % columns, 0, -queries % rows))
    batch, heads, height, width = padded.shape
    seen = padded.view(batch, heads, height // rows, rows, width // columns, columns).sum((3, 5))
    full = seen == rows * columns
    return from_sets((seen > 0) & ~full, full, rows, columns, queries, keys)


def from_block_mask(mask: Any) -> MaskBlocks:
    """The blocks of torch's `BlockMask`."""
    queries, keys = mask.seq_lengths
    rows, columns = mask.BLOCK_SIZE
    partial, full = (mask.kv_num_blocks, mask.kv_indices), (mask.full_kv_num_blocks, mask.full_kv_indices)
    return from_lists(queries, keys, partial, full, rows, columns)


def from_lists(
    queries: int, keys: int, partial: tuple[Tensor | None, Tensor | None],
    full: tuple[Tensor | None, Tensor | None], rows: int, columns: int,
) -> MaskBlocks:  # fmt: skip
    """The blocks of a mask in the form of torch: counts and indices of partial and of full blocks, by row of blocks."""
    lines, across = -(-queries // rows), -(-keys // columns)
    some, whole = _given(*partial, lines, across), _given(*full, lines, across)
    if some is None:
        raise ModelError("block_mask: it lists no blocks; make it with create_block_mask")
    return from_sets(some, torch.zeros_like(some) if whole is None else whole, rows, columns, queries, keys)


def _given(counts: Tensor | None, places: Tensor | None, lines: int, across: int) -> Tensor | None:
    """True for each listed block, without lines and blocks past the lengths."""
    if counts is None or places is None:
        return None
    counts, places = counts[..., :lines], places[..., :lines, :]
    listed = torch.arange(places.shape[-1], device=places.device) < counts[..., None]
    size = (*counts.shape, max(across, places.shape[-1]) + 1)
    chosen = torch.zeros(size, dtype=torch.int8, device=places.device)
    chosen.scatter_(-1, torch.where(listed, places, chosen.shape[-1] - 1).long(), 1)
    return chosen[..., :across].bool()


def predicted_tiles(
    blocks: MaskBlocks | Any, tiles: Tiles, batch: int, heads: int, by_column: bool = False
) -> FlexCounts:
    """The tiles that a kernel computes for an input with these numbers of batch entries and query heads.

    blocks: ours or torch's `BlockMask`. tiles: sizes of the kernel's tiles. by_column: for the gradient of keys and values.
    Each block is split in tiles; tiles of rows (or, by column, of keys) that lie past the end are never started.
    """
    blocks = blocks if isinstance(blocks, MaskBlocks) else from_block_mask(blocks)
    partial, full = blocks.by_column if by_column else blocks.by_row
    length, size, tile = blocks.queries, blocks.rows, tiles.rows
    if by_column:
        length, size, tile = blocks.keys, blocks.columns, tiles.columns
    across = blocks.rows // tiles.rows if by_column else blocks.columns // tiles.columns
    starts = torch.arange(0, length, tile) // size  # the line of blocks that each line of tiles lies in
    listed = [int(each.counts.cpu().long()[..., starts].sum()) for each in (full, partial)]
    return FlexCounts(*(number * across * blocks.repeats(batch, heads) for number in listed))
