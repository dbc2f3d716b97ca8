"""Matrix products at the borders between tiles, splits and kinds: each expected time is worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from graphflops.kernels.kernel import Convolution, Kernel, Product
from graphflops.time.predict_products import (
    Problem,
    convolution_kind,
    is_whole,
    of_convolution,
    of_product,
    product_kind,
    seconds,
)
from tests.time.toy_device import FAST, MATMUL, device

PEAK = 4e9
EDGE = 1e4  # what loading a row or column of a tile takes, in elements of the product


def problem(m: int, n: int, k: int, batch: int = 1, width: float = 2, alignment: int = 16) -> Problem:
    """A product that moves nothing."""
    return Problem(m, n, k, batch, width, alignment, 0, PEAK)


IN_STEPS = {"latency": 1e6, "split": 1e-9, "matrix": FAST}  # only steps along k take time: a millisecond each


def took(one: Problem, cores: int | None, **rates: float) -> float:
    return seconds(one, {**MATMUL, **rates}, device(multiprocessors=cores, bandwidth=1e20))[0]


@pytest.mark.parametrize("way", [(0, 1), (1, 0)])
@pytest.mark.parametrize(
    "tile",
    [
        *((64, 16), (64, 32), (64, 64), (128, 32), (128, 64)),
        *((128, 128), (128, 192), (128, 256), (64, 256), (192, 192)),
    ],
)
def test_each_tile_is_the_fastest_of_what_fits_it(tile: tuple[int, int], way: tuple[int, int]) -> None:
    """Where only edges take time, smaller tiles have more of them, and larger ones longer ones."""
    rows, columns = tile[way[0]], tile[way[1]]
    expected = 2 * (rows * columns + EDGE * (rows + columns)) * 64 / PEAK
    assert took(problem(rows, columns, 64), 1, half=EDGE) == pytest.approx(expected)


@pytest.mark.parametrize("parts", [1, 2, 4, 8, 16, 32])
def test_k_is_split_among_so_many(parts: int) -> None:
    """Of 64 elements of k for each part, no more parts have any; each takes a millisecond for its 64."""
    found = took(problem(1, 1, 64 * parts), 32, **IN_STEPS)
    assert found == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize(
    ("batch", "cores", "parts"),
    [
        # Tiles, of a matrix each, times parts are at most four for each multiprocessor.
        (1, 1, 4),
        (2, 1, 2),
        (3, 1, 1),
        (4, 1, 1),
        (8, 4, 2),
        (9, 4, 1),
        (8, 16, 8),
        (9, 16, 4),
    ],
)
def test_splits_make_at_most_four_tiles_for_each_multiprocessor(batch: int, cores: int, parts: int) -> None:
    """64 steps along k of a millisecond each: all tiles of a multiprocessor take their steps together."""
    found = took(problem(1, 1, 64 * 64, batch), cores, **IN_STEPS)
    assert found == pytest.approx(64 // parts * 1e-3, rel=1e-3)


@pytest.mark.parametrize(("k", "steps"), [(192, 2), (256, 1), (320, 3), (448, 2), (449, 1), (576, 5)])
def test_no_part_of_k_is_empty(k: int, steps: int) -> None:
    """Of 192 elements in parts of 64 a fourth had nothing, of 576 in parts of 192; 449 are eight parts, the last of one."""
    found = took(problem(1, 1, k), 32, **IN_STEPS)
    assert found == pytest.approx(steps * 1e-3, rel=1e-3)


def test_what_a_split_writes() -> None:
    """Two parts of a result in float32, of three matrices of 64 x 16, written and read once more, at twice the bandwidth."""
    one = replace(problem(64, 16, 128, 3), moved=0)
    rates = {**MATMUL, "latency": 3e9, "split": 1e6}
    found, _, _ = seconds(one, rates, device(multiprocessors=6, bandwidth=1e6))
    arithmetic = 2 * 64 * 16 * 64 / (PEAK / 6)
    assert found == pytest.approx(3 + arithmetic + 1 + 8 * 2 * 3 * 64 * 16 / 2e6)


@pytest.mark.parametrize("cores", [None, 0])
def test_a_cpu_computes_the_product_as_one_tile(cores: int | None) -> None:
    assert took(problem(10, 20, 64), cores) == pytest.approx(2 * 10 * 20 * 64 / PEAK)
    assert took(problem(10, 20, 64), cores, half=7.0) == pytest.approx(2 * (200 + 7 * 30) * 64 / PEAK)
    assert took(problem(0, 20, 64), cores, half=7.0) == pytest.approx(2 * (20 + 7 * 21) * 64 / PEAK)
    assert took(problem(10, 0, 64), cores, half=7.0) == pytest.approx(2 * (10 + 7 * 11) * 64 / PEAK)
    halved = Problem(10, 20, 64, 1, 2, 16, 1000, PEAK)  # reaches all of the bandwidth
    found, _, _ = seconds(halved, {**MATMUL, "memory": 0.5}, device(multiprocessors=cores))
    assert found == pytest.approx(2 * 10 * 20 * 64 / PEAK + 1000 / 0.5e9)
    slow = took(problem(1, 1, 64 * 64), cores, **IN_STEPS)  # four parts for one core
    assert slow == pytest.approx(16e-3, rel=1e-3)


def test_a_product_of_no_rows_takes_a_tile() -> None:
    tile = 2 * 64 * 16 * 64 / (PEAK / 4)
    assert took(problem(0, 16, 64), 4) == pytest.approx(tile)
    assert took(problem(64, 16, 64, 0), 4) == pytest.approx(tile)


@pytest.mark.parametrize(("alignment", "slowdown"), [(16, 1), (8, 2), (4, 3), (2, 5), (1, 5)])
def test_rows_that_do_not_align_slow_latencies_by_the_square_root(alignment: int, slowdown: int) -> None:
    found = took(problem(1, 1, 64, alignment=alignment), 4, **IN_STEPS)
    assert found == pytest.approx(slowdown**0.5 * 1e-3, rel=1e-3)


def test_the_ceilings_of_a_product() -> None:
    one = Problem(6, 5, 7, 3, 2, 16, 1000, PEAK)
    _, arithmetic, traffic = seconds(one, MATMUL, device(bandwidth=1e6))
    assert (arithmetic, traffic) == (pytest.approx(2 * 3 * 6 * 5 * 7 / PEAK), pytest.approx(1e-3))
    assert (one.turns, one.recent) == (1, 0)
    first = seconds(one, MATMUL, device())[0]
    assert seconds(replace(one, turns=3), MATMUL, device())[0] == pytest.approx(3 * first)


@pytest.mark.parametrize(
    ("sizes", "width", "kind"),
    [
        (Product(1, 64, 64), 4, "gemv"),
        (Product(1, 64, 64), 8, "gemv"),
        (Product(1, 64, 64), 1, "gemv"),
        (Product(1, 64, 64), 2, "skinny"),
        (Product(1, 64, 62), 2, "by_4"),  # rows of 124 bytes
        (Product(1, 64, 63), 2, "gemv"),
        (Product(1, 63, 64), 2, "gemv"),
        (Product(1, 64, 64, 2), 4, "batched.vector"),
        (Product(1, 64, 64, 2), 2, "batched.skinny"),
        (Product(1, 64, 63, 2), 2, "batched.vector"),
        # Rows of 100, 98 and 66 elements of 2 bytes are multiples of 8, 4 and 4 bytes, of 65 of 2.
        (Product(64, 64, 100, 2), 2, "batched.by_8"),
        (Product(64, 98, 64, 2), 2, "batched.by_4"),
        (Product(8, 64, 66, 2), 2, "batched.by_4"),
        (Product(8, 65, 64, 2), 2, "batched.by_2"),
        (Product(64, 65, 64, 2), 4, "batched"),
        (Product(2, 64, 64), 4, "few"),
        (Product(8, 64, 64), 4, "few"),
        (Product(8, 64, 64, layout="nn"), 4, "few"),
        (Product(9, 64, 64), 4, "skinny"),
        (Product(8, 64, 64), 2, "skinny"),
        (Product(8, 64, 64), 3, "few"),
        (Product(8, 64, 64, 2), 4, "batched.skinny"),
        (Product(128, 64, 64), 4, "skinny"),
        (Product(129, 64, 64), 4, "tn"),
        (Product(129, 64, 64, layout="nn"), 4, "nn"),
        (Product(16, 64, 64, 2), 2, "batched.skinny"),
        (Product(17, 64, 64, 2), 2, "batched"),
        (Product(1, 64, 64, layout="nt"), 4, "nt"),
        (Product(8, 64, 64, 2, "nt"), 4, "batched"),
        (Product(8, 64, 64, layout="tt"), 4, "tt"),
    ],
)
def test_kinds_of_products(sizes: Product, width: float, kind: str) -> None:
    assert product_kind(sizes, width) == kind


@pytest.mark.parametrize(
    ("sizes", "width", "weight"),
    [
        # The other matrix of few rows is read from the memory, as many as there are of a batch.
        (Product(2, 128, 64, 3), 2, 2 * 3 * 64 * 128),
        (Product(2, 128, 64, 3), 4, 4 * 3 * 64 * 128),
        (Product(2, 128, 64), 4, 4 * 64 * 128),
        (Product(1, 128, 64), 4, 4 * 64 * 128),
        (Product(256, 128, 64), 4, 4 * 64 * 128),
        (Product(256, 128, 64, layout="nn"), 4, 4 * 64 * 128),
        (Product(256, 128, 64, layout="nt"), 4, 0),
        (Product(256, 128, 64, layout="tt"), 4, 0),
        (Product(256, 128, 64, 2), 4, 0),
        (Product(256, 128, 64, 2, "nt"), 4, 0),
    ],
)
def test_bytes_that_no_kernel_before_has_touched(sizes: Product, width: float, weight: int) -> None:
    found = of_product(sizes, width, PEAK, 10**6)
    assert (found.moved, found.recent) == (10**6, 10**6 - weight)


@pytest.mark.parametrize(
    ("columns", "width", "alignment"),
    [
        (64, 1, 16),
        (8, 1, 8),
        (4, 1, 4),
        (2, 1, 2),
        (3, 1, 1),
        (1, 0.5, 1),
        (3, 0.5, 1),
        (4, 0.5, 2),
        (8, 4, 16),
    ],
)
def test_alignment_is_the_power_of_two_that_divides_the_bytes_of_all_rows(
    columns: int, width: float, alignment: int
) -> None:
    """Elements may be narrower than a byte: rows of three of four bits take a byte and a half."""
    assert of_product(Product(256, 64, columns), width, PEAK, 0).alignment == alignment


def conv(phase: Any = "forward", side: int = 6, **changed: Any) -> Convolution:
    sizes = Convolution(4, 64, 32, (side, side), (side, side), (1, 1), phase=phase)
    return replace(sizes, **changed)


MOVED = 10**6
ONE_TAP, NINE_TAPS = 2 * 32 * 64, 2 * 32 * 64 * 9  # bytes of the filters


@pytest.mark.parametrize(
    ("sizes", "moved", "weight"),
    [
        (conv(), MOVED, ONE_TAP),
        (conv(channels_last=True), MOVED, ONE_TAP),
        (conv(filter=(3, 3)), MOVED, NINE_TAPS),
        (conv(filter=(3, 3), groups=4), MOVED, NINE_TAPS // 4),
        (conv(groups=2), MOVED, ONE_TAP // 2),
        # A stride of two leaves 36 - 9 positions of each of four images unread, but an input gradient writes them.
        (conv(result=(3, 3)), MOVED - 2 * 64 * 4 * (36 - 9), ONE_TAP),
        (conv("weight_gradient", result=(3, 3)), MOVED - 2 * 64 * 4 * (36 - 9), ONE_TAP),
        (conv("input_gradient", result=(3, 3)), MOVED, ONE_TAP),
        (conv(result=(3, 3), filter=(3, 3)), MOVED, NINE_TAPS),
        (conv(result=(3, 3), groups=2), MOVED, ONE_TAP // 2),
        (conv(result=(8, 8)), MOVED, ONE_TAP),  # padding is not read either
        # Of each image a gradient in float32, written and read.
        (conv("weight_gradient", batch=2, side=4), MOVED + 2 * 4 * 2 * 32 * 64, ONE_TAP),
        (conv("weight_gradient", batch=1, side=4), MOVED, ONE_TAP),
        (conv("weight_gradient", batch=2, side=5), MOVED, ONE_TAP),
        (conv("input_gradient", batch=2, side=4), MOVED, ONE_TAP),
    ],
)
def test_bytes_of_a_convolution_and_of_its_filters(sizes: Convolution, moved: int, weight: int) -> None:
    found = of_convolution(sizes, 2, PEAK, MOVED)
    assert (found.moved, found.recent) == (moved, moved - weight)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [  # rows, columns, what is summed, products
        (conv(channels=0, filters=32), (36, 32, 1, 4)),
        (conv(channels=0, filters=32, filter=(3, 3)), (4 * 36, 32, 1, 1)),
        (conv("input_gradient", channels=0, filter=(3, 3)), (4 * 36, 1, 32 * 9, 1)),
        (conv(filters=0), (36, 1, 64, 4)),
        (conv("input_gradient", filters=0, filter=(3, 3)), (4 * 36, 64, 1, 1)),
        (conv("input_gradient", batch=0, filter=(3, 3)), (0, 64, 1, 1)),
        # A tile of a weight's gradient holds 64 channels of one of several taps.
        (conv("weight_gradient", channels=40, filter=(1, 1)), (32, 40, 36, 4)),
        (conv("weight_gradient", channels=40, filter=(1, 2)), (32, 64 * 2, 4 * 36, 1)),
        (conv("weight_gradient", channels=40, filter=(3, 3)), (32, 64 * 9, 4 * 36, 1)),
        # Groups of 128 channels are more than the 64 that are multiplied together; two of 32 are as many.
        (conv(channels=256, groups=2, filter=(3, 3)), (4 * 36, 16, 128 * 9, 2)),
        (conv(channels=64, groups=2, filter=(3, 3)), (4 * 36, 32, 64 * 9, 1)),
        (conv(channels=66, groups=2, filter=(3, 3)), (4 * 36, 16, 33 * 9, 2)),
        # Three of four groups make no whole product: two remain.
        (conv(channels=80, filters=20, groups=4, filter=(3, 3)), (4 * 36, 15, 60 * 9, 2)),
        (conv(channels=128, filters=64, groups=2, filter=(3, 3)), (4 * 36, 32, 64 * 9, 2)),
        # Up to 512 positions groups run in eight streams.
        (conv(batch=8, side=8, groups=4, algorithm="long"), (512, 8, 16, 4)),
        (conv(batch=8, side=8, groups=16, algorithm="long"), (512, 2, 4, 8)),
        (conv(batch=1, side=23, groups=4, algorithm="long"), (529, 8, 16, 1)),
    ],
)
def test_products_of_odd_convolutions(sizes: Convolution, expected: tuple[int, ...]) -> None:
    found = of_convolution(sizes, 2, PEAK, MOVED)
    assert (found.m, found.n, found.k, found.batch) == expected


@pytest.mark.parametrize(
    ("channels", "filters", "groups", "alignment"),
    [
        (64, 32, 1, 16),
        (66, 66, 2, 2),  # 33 channels of a group are 66 bytes: a multiple of two
        (62, 62, 2, 16),  # groups that are multiplied together are packed, with zeros
        (15, 15, 1, 2),
    ],
)
def test_alignment_of_groups(channels: int, filters: int, groups: int, alignment: int) -> None:
    found = of_convolution(
        conv(channels=channels, filters=filters, groups=groups, filter=(3, 3)), 2, PEAK, MOVED
    )
    assert found.alignment == alignment


def test_turns_of_looped_groups() -> None:
    looped = conv(batch=8, side=11, groups=16, algorithm="long")
    assert of_convolution(looped, 2, PEAK, 0).turns == 2
    assert of_convolution(replace(looped, batch=1, result=(12, 11)), 2, PEAK, 0).turns == 16  # 132 positions
    assert of_convolution(replace(looped, algorithm=""), 2, PEAK, 0).turns == 1


@pytest.mark.parametrize(
    ("sizes", "kind"),
    [
        (conv(groups=2), "grouped"),
        (conv(groups=2, algorithm="long"), "looped_long"),
        (conv(channels=2, groups=2), "depthwise"),
        (conv(channels=2, groups=2, channels_last=True, batch=8), "depthwise_last"),
        (conv(channels=2, groups=2, channels_last=True, filter=(7, 8)), "depthwise_direct"),
        (conv(channels=1, groups=1), "pointwise_unaligned"),
        (conv(channels=4), "pointwise_unaligned"),
        (conv(channels=8), "pointwise_uneven"),
        (conv(channels=9, filter=(3, 1)), "stem"),
        (conv(filter=(3,)), "dense"),
        (conv(filter=(1, 1, 1)), "pointwise"),
        (conv(filter=(1, 3, 3)), "volume"),
        (conv(side=1, channels=8), "pointwise_uneven"),
        (conv(side=3), "pointwise_odd"),
        (conv(side=2), "pointwise"),
        (conv(side=2, channels=32), "pointwise_uneven"),
        (conv(image=(4, 2), result=(4, 2), channels=32), "pointwise"),
    ],
)
def test_kinds_of_odd_convolutions(sizes: Convolution, kind: str) -> None:
    assert convolution_kind(sizes) == kind


@pytest.mark.parametrize(
    ("m", "changed", "whole"),
    [
        (129, {}, True),
        (128, {}, False),
        (129, {"dtype": "bfloat16"}, False),
        (129, {"vector_flops": 0}, False),  # without a bias
        (129, {"batch": 2}, True),
        (129, {"batch": 2, "algorithm": "grouped"}, False),
        (129, {"layout": "tn"}, False),
        (1, {"dtype": "bfloat16", "vector_flops": 0, "batch": 2, "algorithm": "tn"}, True),
    ],
)
def test_sums_that_stay_whole(m: int, changed: dict[str, Any], whole: bool) -> None:
    """Of a batch, of many rows in float32 with a bias, or of a kernel that says so."""
    given = {"dtype": "float32", "vector_flops": 1, "batch": 1, "layout": "nn", "algorithm": "", **changed}
    sizes = Product(m, 64, 64, given["batch"], given["layout"], given["algorithm"])
    kernel = Kernel("matmul", given["dtype"], 2, given["vector_flops"], 4, 4, sizes)
    assert is_whole(kernel, sizes) is whole
