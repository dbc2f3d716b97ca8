"""Time of fused attention: blocks of queries that go through tiles of keys, in waves, or one query through all keys."""

from __future__ import annotations

from math import ceil

from graphflops.devices import Device
from graphflops.kernels.convolution import up
from graphflops.kernels.kernel import Attention
from graphflops.time import bandwidth
from graphflops.time.bandwidth import Rates, Times

_QUERIES = 128  # queries of a thread block, and keys that it multiplies at a time
_KEY_SPLITS = (1, 2, 4, 8, 16, 32, 64)
_STREAMED = 1.4  # times as fast as from the memory keys and values come from the cache
_MANY_HEADS, _FEW_KEYS = 256, 2  # heads from which a gradient in so few tiles of keys has one block for each


def attention_seconds(
    sizes: Attention, element: float, moved: int, peak: float, rates: Rates, device: Device
) -> Times:
    """Seconds of a kernel, and of these its arithmetic at the peak and its traffic at full bandwidth. element: its bytes."""
    cores = device.multiprocessors or 1
    width = up(sizes.width, int(rates.get("step", 32)))
    # FLOPs per pair and element of the width: 5 products, or 2.
    products = 10 if sizes.phase == "backward" else 4
    pairs = sizes.batch * sizes.heads * sizes.queries * sizes.keys * sizes.computed
    ideal = products * pairs * width / peak
    recent = 0 if sizes.queries == 1 else moved  # keys and values of tokens before are in the memory
    traffic = bandwidth.seconds(moved, recent, rates["memory"], device)
    if sizes.queries == 1:
        # Heads that strides repeat come from the memory once, and from the cache for each of them.
        streamed = 2 * sizes.batch * sizes.kv_heads * sizes.keys * sizes.computed * sizes.width * element
        traffic = max(traffic, streamed / (_STREAMED * rates["memory"] * bandwidth.through(device)))
        arithmetic = _decoding(sizes, width, rates, cores)
    else:
        arithmetic = _prefill(sizes, products * width / peak, width, rates, cores)
    mix = rates["mix"]
    longest = (arithmetic**mix + traffic**mix) ** (1 / mix)
    # Kernels around a gradient: sums of rows of the result times its gradient, the query's gradient out of float32.
    around = sizes.batch * sizes.heads * sizes.queries * sizes.width * rates.get("around", 0.0)
    beside = bandwidth.seconds(around, around, rates["memory"], device)
    return rates["floor"] * 1e-6 + longest + beside, ideal, moved / device.bandwidth


def _prefill(sizes: Attention, each: float, width: int, rates: Rates, cores: int) -> float:
    """Blocks of queries that go through tiles of keys, in waves; those of a gradient are of keys and go through queries.

    each: seconds of one pair at the peak of the whole device.
    """
    tall, wide = int(rates.get("queries", _QUERIES)), int(rates.get("keys", _QUERIES))
    blocks, tiles = ceil(sizes.queries / tall), ceil(sizes.keys / wide)
    if sizes.phase == "backward":
        blocks, tiles = tiles, blocks
    heads = sizes.batch * sizes.heads
    if "packed" in rates:  # queries of heads with the same keys share blocks
        together = sizes.batch * sizes.kv_heads
        packed = ceil(sizes.heads * sizes.queries / max(sizes.kv_heads, 1) / tall)
        if together * packed < heads * blocks:
            heads, blocks = together, packed
    tile = tall * wide * cores * each / (rates["matrix"] * (width / (width + rates["width"])))
    start = (rates["start"] + rates["block"] * width / _QUERIES) * 1e-6
    beside = rates.get("resident", 1.0)
    if "lock" in rates and heads >= _MANY_HEADS and blocks <= _FEW_KEYS:
        tiles, blocks = tiles * blocks, 1
    # Blocks beside one another share a multiprocessor; one that has it alone is faster than these.
    is_alone = heads * blocks <= cores
    slower = rates.get("alone", 1.0) if is_alone else beside
    mean = (tiles * sizes.computed * tile + start) * slower
    # Under a causal mask the block of the last queries, or of the first keys, takes twice the mean.
    longest = mean if blocks == 1 else (tiles * min(1.0, 2 * sizes.computed) * tile + start) * slower
    if "lock" in rates and blocks > 1:  # blocks add to the gradients of the same queries one after the other
        turns = blocks * rates["lock"] * 1e-6
        mean, longest = max(mean, turns), max(longest, turns)
    rounds = 1 if is_alone else heads * blocks / (cores * beside)
    if is_alone or mean == longest:
        return ceil(rounds) * longest
    # The last round waits for its longest block.
    return min(ceil(rounds) * longest, max(longest, rounds * mean + longest / 2))


def _decoding(sizes: Attention, width: int, rates: Rates, cores: int) -> float:
    """Heads that share keys run together; few of them split the keys, and a second kernel joins the parts.

    A kernel that does not split keys has a join that never pays. Two blocks of a multiprocessor may run beside one another.
    """
    group = max(sizes.heads // max(sizes.kv_heads, 1), 1)
    width = max(width, int(rates.get("narrowest", 0)))  # narrower heads take as long
    blocks = sizes.batch * sizes.kv_heads * ceil(group * sizes.queries / _QUERIES)
    tiles = ceil(sizes.keys * sizes.computed / _QUERIES)
    found = float("inf")
    for split in _KEY_SPLITS:
        parts = min(split, tiles)
        each = rates["decoding_block"] * 1e-6 * width / _QUERIES
        serial = ceil(tiles / parts) * rates["decoding_tile"] * 1e-9 * width / _QUERIES
        joined = rates["join"] * 1e-6 if parts > 1 else 0.0
        pairs, alone = divmod(ceil(blocks * parts / cores), 2)
        found = min(found, (pairs * (1 + rates.get("beside", 1.0)) + alone) * (each + serial) + joined)
    return found
