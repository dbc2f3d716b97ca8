"""Time of fused attention kernels: tiles of keys for each block of queries, and traffic."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphflops.devices import Device
    from graphflops.time.kernel import Attention

_BLOCK = 128  # queries of a thread block, and keys that it multiplies at a time
_SPLITS = (1, 2, 4, 8, 16, 32, 64)
_FEW = 16  # queries; fewer are decoding, which splits the keys


def seconds(
    sizes: Attention, moved: int, peak: float, rates: Mapping[str, float], device: Device
) -> tuple[float, float, float]:
    """Seconds of a kernel, and of these its arithmetic at the peak and its traffic at full bandwidth."""
    cores = device.multiprocessors or 1
    width = -(-sizes.width // 32) * 32
    pairs = _tiled(sizes.queries) * _tiled(sizes.keys) * sizes.computed
    products = (
        10 if sizes.phase == "backward" else 4
    )  # FLOPs per pair and element of the width: 5 products, or 2
    ideal = products * sizes.batch * sizes.heads * pairs * width / peak
    rate = rates["matrix"] * (width / (width + rates["width"]))
    traffic = moved / (device.bandwidth * rates["memory"])
    if sizes.queries <= _FEW:
        arithmetic = _decoding(sizes, width, rates, cores)
    else:
        arithmetic = _prefill(sizes, ideal / rate, width, rates, cores)
    mix = rates["mix"]
    longest = (arithmetic**mix + traffic**mix) ** (1 / mix)
    return rates["floor"] * 1e-6 + longest, ideal, moved / device.bandwidth


def _prefill(sizes: Attention, work: float, width: int, rates: Mapping[str, float], cores: int) -> float:
    """All blocks of queries; no faster than the block with the most keys."""
    blocks = sizes.batch * sizes.heads * ceil(sizes.queries / _BLOCK)
    each = rates["block"] * 1e-6 * width / _BLOCK
    longest = work * cores / blocks * (2 - sizes.computed if sizes.queries > _BLOCK else 1)
    wait = ceil(sizes.keys / _BLOCK) * sizes.computed * rates["latency"] * 1e-9
    return max(work, longest) + ceil(blocks / cores) * each + wait


def _decoding(sizes: Attention, width: int, rates: Mapping[str, float], cores: int) -> float:
    """Heads that share keys run together; few of them split the keys, and a second kernel joins the parts."""
    group = max(sizes.heads // max(sizes.kv_heads, 1), 1)
    blocks = sizes.batch * sizes.kv_heads * ceil(group * sizes.queries / _BLOCK)
    tiles = ceil(sizes.keys * sizes.computed / _BLOCK)
    found = float("inf")
    for split in _SPLITS:
        parts = min(split, tiles)
        each = rates["decoding_block"] * 1e-6 * width / _BLOCK
        serial = ceil(tiles / parts) * rates["decoding_tile"] * 1e-9 * width / _BLOCK
        joined = rates["join"] * 1e-6 if parts > 1 else 0.0
        found = min(found, ceil(blocks * parts / cores) * (each + serial) + joined)
    return found


def _tiled(size: int) -> int:
    """A size rounded up to whole tiles, as far as a tile is not masked off cheaply."""
    return -(-size // 16) * 16
