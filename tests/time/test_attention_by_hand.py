"""Fused attention at the borders between blocks and splits of keys: each expected time is worked out by hand."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from graphflops.kernels.kernel import Attention
from graphflops.time import bandwidth
from graphflops.time.predict_sequences import attention_seconds
from tests.time.toy_device import FAST, device

PEAK = 4e9

FLASH = {
    **dict.fromkeys(("floor", "width", "start", "block", "decoding_block", "decoding_tile", "join"), 1e-9),
    "matrix": FAST,
    "memory": FAST,
    "mix": 1.0,
}


def flash(sizes: Attention, cores: int | None = 4, moved: int = 0, **rates: float) -> tuple[float, ...]:
    return attention_seconds(sizes, 2, moved, PEAK, {**FLASH, **rates}, device(multiprocessors=cores))


def test_the_ceilings_of_attention() -> None:
    """Each pair takes two products of the width, rounded up to 32; a gradient five."""
    sizes = Attention(2, 4, 4, 3, 5, 33, 0.5)
    pairs = 2 * 4 * 3 * 5 * 0.5
    assert flash(sizes, moved=1000)[1:] == pytest.approx((4 * pairs * 64 / PEAK, 1000 / 1e9))
    assert flash(replace(sizes, phase="backward"))[1] == pytest.approx(10 * pairs * 64 / PEAK)
    assert flash(replace(sizes, width=32))[1] == pytest.approx(4 * pairs * 32 / PEAK)
    assert flash(replace(sizes, width=64))[1] == pytest.approx(4 * pairs * 64 / PEAK)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "queries", "blocks"),
    [
        # Blocks of 128 queries, of all heads that have the same keys.
        (8, 2, 64, 2 * 2),
        (8, 2, 32, 2 * 1),
        (8, 2, 33, 2 * 2),
        (8, 1, 64, 4),
        (4, 4, 64, 4),
        (4, 4, 129, 4 * 2),
        (1, 1, 128, 1),
        (2, 1, 96, 2),
    ],
)
@pytest.mark.parametrize("cores", [1, None])
def test_blocks_of_queries(heads: int, kv_heads: int, queries: int, blocks: int, cores: int | None) -> None:
    """Each block of one image begins with a millisecond; those of one multiprocessor begin one after the other."""
    sizes = Attention(1, heads, kv_heads, queries, 128, 128)
    rates = {"block": 1000.0, "packed": 1.0}
    assert flash(sizes, cores, **rates)[0] == pytest.approx(blocks * 1e-3, rel=1e-3)
    assert flash(replace(sizes, width=64), cores, **rates)[0] == pytest.approx(blocks * 5e-4, rel=1e-3)
    assert flash(replace(sizes, batch=3), cores, **rates)[0] == pytest.approx(3 * blocks * 1e-3, rel=1e-3)


MILLISECOND = {"start": 1000.0}


@pytest.mark.parametrize(
    ("queries", "keys", "blocks"),
    [(64, 1024, 8), (64, 1025, 9), (1024, 64, 1), (2000, 128, 1)],
)
def test_blocks_of_a_gradient_are_of_keys(queries: int, keys: int, blocks: int) -> None:
    sizes = Attention(1, 1, 1, queries, keys, 128, phase="backward")
    assert flash(sizes, 1, **MILLISECOND)[0] == pytest.approx(blocks * 1e-3)


def test_the_last_wave_is_as_long_as_the_first() -> None:
    """Nine blocks of a millisecond on four multiprocessors are three waves; two beside one another take twice as long."""
    sizes = Attention(1, 9, 9, 128, 128, 128)
    assert flash(sizes, 4, **MILLISECOND)[0] == pytest.approx(3e-3)
    assert flash(sizes, 4, **MILLISECOND, resident=2.0)[0] == pytest.approx(2 * 2e-3)
    assert flash(sizes, 9, **MILLISECOND, resident=2.0, alone=1.5)[0] == pytest.approx(1.5e-3)
    tiles = {"queries": 64.0, "keys": 64.0}  # 18 blocks
    assert flash(sizes, 4, **MILLISECOND, **tiles)[0] == pytest.approx(5e-3)


def test_blocks_of_different_lengths_fill_the_last_wave() -> None:
    """Four heads of four blocks, of 1 to 4 tiles of a millisecond, on four multiprocessors: 10 and half of the longest."""
    sizes = Attention(1, 4, 4, 512, 512, 128, computed=10 / 16)
    tile = 1e-3 * 4e9 / (4 * 128 * 128 * 128 * 4)  # the peak of all four over the work of one tile on each
    found = flash(sizes, 4, matrix=1 / tile)[0]
    assert found == pytest.approx(10e-3 + 2e-3, rel=1e-3)


def test_blocks_add_to_the_gradient_of_the_query_in_turn() -> None:
    """Eight blocks of keys, a millisecond each for the same queries; of many heads with few keys there is one block each."""
    sizes = Attention(1, 1, 1, 128, 1024, 128, phase="backward")
    assert flash(sizes, 8, lock=1000.0)[0] == pytest.approx(8e-3, rel=1e-3)
    many = Attention(64, 4, 4, 128, 256, 128, phase="backward")
    assert flash(many, 256, lock=1000.0)[0] == pytest.approx(0, abs=1e-6)
    assert flash(many, 256, **MILLISECOND)[0] == pytest.approx(
        2e-3, rel=1e-3
    )  # of a kernel that does not wait, two
    assert flash(replace(many, heads=3, kv_heads=3), 400, lock=1000.0)[0] == pytest.approx(2e-3, rel=1e-3)


def test_kernels_around_a_gradient_read_what_is_as_large_as_the_query() -> None:
    """Ten bytes for each of 128 * 128 elements, at half of the bandwidth."""
    sizes = Attention(1, 1, 1, 128, 128, 128, phase="backward")
    rates = {"around": 10.0, "memory": 0.5}
    known = device(multiprocessors=4, l2_bytes=None)
    expected = bandwidth.seconds(128 * 128 * 10, 0, 0.5, known)
    assert attention_seconds(sizes, 2, 0, PEAK, {**FLASH, **rates}, known)[0] == pytest.approx(expected)


DECODING = {"decoding_block": 1000.0, "decoding_tile": 1e3}


@pytest.mark.parametrize("parts", [1, 2, 4, 8, 16, 32, 64])
def test_keys_of_one_query_are_split_among_so_many(parts: int) -> None:
    """As many parts as multiprocessors: a block of a millisecond each, and two tiles of a microsecond.

    Of fewer parts each had more tiles; more parts would wait for a second turn of blocks.
    """
    sizes = Attention(1, 1, 1, 1, 128 * 2 * parts, 128)
    assert flash(sizes, parts, **DECODING)[0] == pytest.approx(1e-3 + 2e-6)


@pytest.mark.parametrize(
    ("sizes", "blocks", "tiles"),
    [
        (Attention(1, 1, 1, 1, 128, 128), 1, 1),
        (Attention(1, 1, 1, 1, 129, 128), 1, 2),
        (Attention(1, 1, 1, 1, 512, 128, 0.5), 1, 2),  # half of the keys are visible
        (Attention(1, 128, 1, 1, 128, 128), 1, 1),
        (Attention(1, 129, 1, 1, 128, 128), 2, 1),  # 129 queries of heads with the same keys
        (Attention(1, 256, 2, 1, 128, 128), 2, 1),
        (Attention(1, 258, 2, 1, 128, 128), 4, 1),
        (Attention(3, 2, 2, 1, 128, 128), 6, 1),
    ],
)
@pytest.mark.parametrize("cores", [1, None])
def test_blocks_of_one_query(sizes: Attention, blocks: int, tiles: int, cores: int | None) -> None:
    """Of one multiprocessor, without a gain from splits: blocks one after the other, and the tiles of each."""
    found = flash(sizes, cores, **{**DECODING, "join": FAST})[0]
    assert found == pytest.approx(blocks * (1e-3 + tiles * 1e-6))


def test_only_parts_are_joined() -> None:
    """One tile cannot be split, so nothing is joined, whatever that takes; two are split where that is faster."""
    one, two = (Attention(1, 1, 1, 1, keys, 128) for keys in (128, 256))
    slow = {"decoding_block": 1e-9, "decoding_tile": 1e6, "join": 500.0}
    assert flash(one, 64, **slow)[0] == pytest.approx(1e-3)
    assert flash(two, 64, **slow)[0] == pytest.approx(1e-3 + 5e-4)
    assert flash(two, 64, **{**slow, "join": 2000.0})[0] == pytest.approx(2e-3)


def test_repeated_heads_come_from_the_cache_for_each_query_head() -> None:
    """Keys and values of 8 heads of 100 tokens and 64 elements of 2 bytes, 1.4 times as fast as from the memory."""
    sizes = Attention(1, 8, 8, 1, 100, 64)
    known = device(multiprocessors=4, l2_bytes=None)
    streamed = 2 * 8 * 100 * 64 * 2 / (1.4 * 0.5 * bandwidth.through(known))
    rates = {**FLASH, "memory": 0.5}
    assert attention_seconds(sizes, 2, 0, PEAK, rates, known)[0] == pytest.approx(streamed, rel=1e-3)
    as_memory = attention_seconds(sizes, 2, 0, PEAK, {**rates, "streamed": 1.0}, known)[0]
    assert as_memory == pytest.approx(1.4 * streamed, rel=1e-3)


def test_heads_share_blocks_only_where_these_are_fewer() -> None:
    """Two heads of 128 queries have a block each, of 1.5 tiles; of 64 queries they share one. A tile takes a millisecond."""
    rates = {"packed": 1.0, "matrix": 4 * 128**3 / PEAK / 1e-3}
    sizes = Attention(1, 2, 1, 128, 256, 128, computed=0.75)
    assert flash(sizes, 1, **rates)[0] == pytest.approx(3e-3, rel=1e-3)
    assert flash(replace(sizes, queries=64), 1, **rates)[0] == pytest.approx(1.5e-3, rel=1e-3)
