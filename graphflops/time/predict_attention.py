"""Time of fused attention kernels: tiles of keys for each block of queries, and traffic."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphflops.devices import Device
    from graphflops.kernels.kernel import Attention

_BLOCK = 128  # queries of a thread block, and keys that it multiplies at a time
_SPLITS = (1, 2, 4, 8, 16, 32, 64)


def seconds(
    sizes: Attention, moved: int, peak: float, rates: Mapping[str, float], device: Device
) -> tuple[float, float, float]:
    """Seconds of a kernel, and of these its arithmetic at the peak and its traffic at full bandwidth."""
    cores = device.multiprocessors or 1
    width = -(-sizes.width // 32) * 32
    # FLOPs per pair and element of the width: 5 products, or 2.
    products = 10 if sizes.phase == "backward" else 4
    pairs = sizes.batch * sizes.heads * sizes.queries * sizes.keys * sizes.computed
    ideal = products * pairs * width / peak
    traffic = moved / (device.bandwidth * rates["memory"])
    if sizes.queries == 1:
        arithmetic = _decoding(sizes, width, rates, cores)
    else:
        arithmetic = _prefill(sizes, products * width / peak, width, rates, cores)
    mix = rates["mix"]
    longest = (arithmetic**mix + traffic**mix) ** (1 / mix)
    return rates["floor"] * 1e-6 + longest, ideal, moved / device.bandwidth


def _prefill(sizes: Attention, each: float, width: int, rates: Mapping[str, float], cores: int) -> float:
    """All blocks of queries, those of heads with the same keys together where that makes fewer; no faster than the longest.

    each: seconds of one pair at the peak of the whole device.
    """
    group = max(sizes.heads // max(sizes.kv_heads, 1), 1)
    apart = sizes.heads * ceil(sizes.queries / _BLOCK)
    together = sizes.kv_heads * ceil(group * sizes.queries / _BLOCK)
    blocks = sizes.batch * min(apart, together)
    tiles = ceil(sizes.keys / _BLOCK)
    pair = each / (rates["matrix"] * (width / (width + rates["width"])))
    tile = _BLOCK * _BLOCK * pair
    work = blocks * tiles * sizes.computed * tile
    most = tiles * min(1.0, 2 * sizes.computed)  # tiles of the longest block, as under a causal mask
    longest = most * (tile * cores + rates["latency"] * 1e-9)
    start = ceil(blocks / cores) * rates["block"] * 1e-6 * width / _BLOCK
    return max(work, longest) + start


def _decoding(sizes: Attention, width: int, rates: Mapping[str, float], cores: int) -> float:
    """Heads that share keys run together; few of them split the keys, and a second kernel joins the parts.

    A kernel that does not split keys has a join that never pays. Two blocks of a multiprocessor may run beside one another.
    """
    group = max(sizes.heads // max(sizes.kv_heads, 1), 1)
    width = max(width, int(rates.get("narrowest", 0)))  # narrower heads take as long
    blocks = sizes.batch * sizes.kv_heads * ceil(group * sizes.queries / _BLOCK)
    tiles = ceil(sizes.keys * sizes.computed / _BLOCK)
    found = float("inf")
    for split in _SPLITS:
        parts = min(split, tiles)
        each = rates["decoding_block"] * 1e-6 * width / _BLOCK
        serial = ceil(tiles / parts) * rates["decoding_tile"] * 1e-9 * width / _BLOCK
        joined = rates["join"] * 1e-6 if parts > 1 else 0.0
        pairs, alone = divmod(ceil(blocks * parts / cores), 2)
        found = min(found, (pairs * (1 + rates.get("beside", 1.0)) + alone) * (each + serial) + joined)
    return found
