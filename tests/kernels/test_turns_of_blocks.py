"""Kernels whose blocks take what there is by turns: the sizes that decide how long, by grids that an H200 showed."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.kernels.kernel import Product, Rows, Windows
from tests.one_call import g
from tests.support import t
from tests.time.one_call import backward, forward


def last(batch: int, channels: int, side: int) -> dict[int, tuple[int, ...]]:
    return {0: (channels * side * side, 1, channels * side, channels)}


@pytest.mark.parametrize(
    ("batch", "channels", "side", "blocks", "turns"),
    [(1, 128, 160, 25, 256), (1, 128, 64, 8, 128), (2, 96, 112, 2 * 10, 256), (8, 64, 28, 8 * 7, 16)],
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_batch_norm_of_known_moments_takes_pieces_of_images(
    batch: int, channels: int, side: int, blocks: int, turns: int, dtype: str
) -> None:
    x, vectors = t(batch, channels, side, side, dtype=dtype), [t(channels)] * 4
    given: Any = (x, *vectors, False, 0.1, 1e-5, True)
    (kernel,) = forward("aten.batch_norm.default", *given, strides=last(batch, channels, side))
    assert (kernel.variant, kernel.sizes) == ("batch_norm_pieces", Rows(blocks, turns))


@pytest.mark.parametrize(
    ("channels", "taken"),
    [(16, 1), (128, 4), (192, 6), (384, 6)],  # channels of a thread: 32 threads across, eight each at most
)
def test_an_uneven_average_of_last_channels_is_taken_place_by_place(channels: int, taken: int) -> None:
    # Of seven results four threads take two along each side.
    given: Any = (t(2, channels, 28, 28), (7, 7))
    (kernel,) = forward("aten.adaptive_avg_pool2d.default", *given, strides=last(2, channels, 28))
    assert isinstance(kernel.sizes, Windows)
    assert kernel.sizes.positions == pytest.approx(2 * 2 * (28 / 7) ** 2 * (taken + 2.6))


def test_a_reflection_has_a_thread_for_each_element_of_whole_blocks() -> None:
    given: Any = ("aten.pad.default", g(2, 3, 16, 16), (1, 1, 1, 1), "reflect")
    sizes = Windows(2 * 3 * 512, 0)  # 18 x 18 elements in two blocks of 256
    (kernel,) = forward(*given)
    assert (kernel.family, kernel.sizes) == ("pool", sizes)
    zeros, added = backward(*given)
    assert (zeros.read_bytes, added.family, added.sizes) == (0, "scatter", sizes)


def test_rows_that_one_index_gathers_are_taken_whole() -> None:
    given: Any = ("aten.gather.default", t(50, 64), 0, t(30, 64, dtype="int64"))
    (kernel,) = forward(*given, strides={2: (1, 0)})
    assert (kernel.variant, kernel.sizes) == ("index", Rows(30, 64))
    assert forward(*given)[0].variant != "index"


def test_weights_of_places_are_checked_before_one_is_drawn() -> None:
    kernels = forward("aten.multinomial.default", t(8, 100), 1)
    families = [kernel.family for kernel in kernels]
    assert families.count("reduction") == 4  # two extremes, sums of rows, and the greatest quotients
    assert len(kernels) == 14
    assert kernels[-1].variant == "pairs"
    assert len(forward("aten.multinomial.default", t(8, 100), 1, True)) == 1


def test_products_with_a_scale_a_row_have_kernels_of_their_own() -> None:
    operands = t(32, 64, dtype="float8_e4m3fn"), t(64, 16, dtype="float8_e4m3fn")
    for scales, algorithm in (((t(), t()), ""), ((t(32, 1), t(1, 16)), "scaled_rows")):
        (kernel,) = forward("aten._scaled_mm.default", *operands, *scales, strides={1: (1, 64)})
        assert kernel.sizes == Product(32, 16, 64, layout="tn", algorithm=algorithm)
