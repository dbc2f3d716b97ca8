"""Kernels of interpolations: what each thread works on, by hand from UpSample*.cu of ATen."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.devices import device
from graphflops.kernels.kernel import Kernel, Rows, Windows
from graphflops.time.predict import predict
from tests.one_call import g
from tests.support import t
from tests.time.one_call import backward, copied, forward, made

BILINEAR, CUBIC = "aten.upsample_bilinear2d.vec", "aten.upsample_bicubic2d.vec"
NEAREST = "aten.upsample_nearest2d.vec"
H200 = device("h200")


def last(batch: int, channels: int, height: int, width: int) -> dict[str, Any]:
    """The strides of an image whose channels are innermost."""
    return {"strides": {0: (height * width * channels, 1, width * channels, channels)}}


@pytest.mark.parametrize(
    ("shape", "scale"),
    [((4, 256, 16, 16), 2.0), ((4, 256, 8, 8), 2.0), ((4, 256, 64, 64), 2.0), ((4, 256, 16, 16), 4.0)],
)
def test_a_bilinear_one_loads_for_all_images_of_a_position(shape: tuple[int, ...], scale: float) -> None:
    (kernel,) = forward(BILINEAR, t(*shape), None, False, (scale, scale))
    positions = int(shape[2] * scale) * int(shape[3] * scale)
    assert kernel.sizes == Rows(positions, 1024, is_inner=False)  # images, one after the other
    x, y = 4 * 256 * 4 * shape[2] * shape[3], 4 * 256 * 4 * positions
    assert (kernel.read_bytes, kernel.written_bytes) == (x, y)
    zeros, added = backward(BILINEAR, g(*shape), None, False, (scale, scale))
    assert (zeros.written_bytes, added.read_bytes, added.written_bytes) == (x, y, 4 * y)
    assert added.sizes == Windows(y // 4, int(scale * scale) - 4)  # further ones wait for these


def test_channels_innermost_have_a_thread_for_each_result() -> None:
    for name in (BILINEAR, NEAREST):
        rest = (None, False, (2.0, 2.0)) if name == BILINEAR else (None, (2.0, 2.0))
        (kernel,) = forward(name, t(4, 256, 16, 16), *rest, **last(4, 256, 16, 16))
        assert kernel.sizes == Windows(4 * 256 * 32 * 32, 0)
        assert kernel.variant.endswith("_last")
        (few,) = forward(name, t(4, 3, 16, 16), *rest, **last(4, 3, 16, 16))  # from 4 channels on
        assert not few.variant.endswith("_last")


@pytest.mark.parametrize(
    ("side", "scale", "lanes"),
    [
        (32, 4.0, 128 * 128),  # blocks of 128 x 4 threads
        (20, 2.0, 64 * 48),  # of 32 x 16: two across, three down
        (25, 4.0, 128 * 104),  # of 64 x 8: two across, 13 down
        (300, 2.0, 1024 * 600),  # at most 512 across
    ],
)
def test_blocks_of_powers_of_two_cover_a_plane_of_the_nearest(side: int, scale: float, lanes: int) -> None:
    (kernel,) = forward(NEAREST, t(2, 3, side, side), None, (scale, scale))
    assert kernel.sizes == Windows(2 * 3 * lanes, 0)


@pytest.mark.parametrize("name", [NEAREST, BILINEAR])
def test_the_same_size_is_copied(name: str) -> None:
    rest = ((16, 16), False, None) if name == BILINEAR else ((16, 16), None)
    size = 4 * 2 * 8 * 16 * 16
    assert made(forward(name, t(2, 8, 16, 16), *rest)) == [copied(size, size)]
    assert made(forward(name, t(2, 8, 16, 16), *rest, **last(2, 8, 16, 16))) == [copied(size, size)]
    if name == BILINEAR:  # one against aliasing computes what it would copy
        assert forward("aten._upsample_bilinear2d_aa.default", t(2, 8, 16, 16), *rest)[-1].family == "pool"
    *zeros, back = backward(name, g(2, 8, 16, 16), *rest)
    assert made([back]) == [copied(size, size)]
    assert len(zeros) == (name == BILINEAR)


@pytest.mark.parametrize(
    ("shape", "scale", "strides", "turns"),
    [
        ((2, 64, 32, 32), 2.0, {}, 2 * 64),  # rows of neighbours: one turn an image
        ((2, 64, 32, 32), 1.0, {}, 2 * 64 * 0.65),
        ((2, 64, 32, 32), 1.0, last(2, 64, 32, 32), 2 * 64 * 0.65 * 0.128 * 32),  # a line for each of a warp
        # 64 channels of 4 bytes lie between neighbours; 32 results need 16 columns and 3 beside them, of 4 rows
        ((2, 64, 32, 32), 2.0, last(2, 64, 32, 32), 2 * 64 * 0.128 * 4 * (16 + 3)),
        ((2, 32, 32, 32), 2.0, last(2, 32, 32, 32), 2 * 32 * 0.128 * 4 * (16 + 3) / 2),  # two in 256 bytes
        (
            (2, 64, 8, 8),
            2.0,
            last(2, 64, 8, 8),
            2 * 64 * 0.128 * 4 * 8 * 256 / 1024,
        ),  # a quarter of a block's threads
    ],
)
def test_a_cubic_one_takes_turns_for_all_images(
    shape: tuple[int, ...], scale: float, strides: dict[str, Any], turns: float
) -> None:
    zeros, kernel = forward(CUBIC, t(*shape), None, False, (scale, scale), **strides)
    positions = int(shape[2] * scale) * int(shape[3] * scale)
    assert kernel.sizes == Rows(positions, int(max(turns, 0.65 * shape[0] * shape[1])), is_inner=False)
    assert zeros.written_bytes == kernel.written_bytes == 4 * shape[0] * shape[1] * positions


def test_gradients_of_a_cubic_one_wait_for_additions_to_the_same_place() -> None:
    zeros, added = backward(CUBIC, g(2, 8, 16, 16), None, False, (2.0, 2.0))
    assert zeros.written_bytes == 4 * 2 * 8 * 16 * 16
    assert added.sizes == Rows(2 * 8 * (4 + 8), 1, is_inner=False)
    assert added.written_bytes == 16 * 4 * 2 * 8 * 32 * 32
    _, same = backward(CUBIC, g(2, 8, 16, 16), (16, 16), False, None)
    size = 4 * 2 * 8 * 16 * 16  # the same size: its gradient is copied, without arithmetic
    sizes = Rows(16 * 16, int(16 * 0.65), is_inner=False)
    assert same == Kernel("pool", "float32", 0, 0, size, size, sizes, variant="cubic")


def test_gradients_of_the_nearest_are_added_up_by_a_thread_each() -> None:
    (kernel,) = backward(NEAREST, g(8, 64, 64, 64), None, (2.0, 2.0))
    assert kernel.sizes == Windows(8 * 64 * 64 * 64, 4)
    (few,) = backward(
        NEAREST, g(8, 16, 8, 8), None, (2.0, 2.0)
    )  # 1,024 threads take as long as 1,024 of each SM
    assert few.sizes == Windows(8 * 132 * 1024, 4)
    rest = (None, (2.0, 2.0))
    (apart,) = backward(NEAREST, g(8, 16, 8, 8), *rest, **last(8, 16, 8, 8))  # a thread for one image
    assert apart.sizes == Windows(132 * 1024, 4)


def as_resized(variant: str, sizes: Rows | Windows, moved: int) -> Kernel:
    return Kernel("pool", "bfloat16", 0, 0, moved // 4, moved, sizes, variant=variant)


@pytest.mark.parametrize(
    ("kernel", "microseconds"),
    [
        # as the profiler timed them on an H100, which has the clock of an H200
        (as_resized("nearest", Windows(16 * 192 * 128 * 128, 0), 100_663_296), 114.3),
        (as_resized("nearest_last", Windows(8 * 384 * 40 * 40, 0), 9_830_400), 32.5),
        (as_resized("linear_last", Windows(8 * 256 * 56 * 56, 0), 12_845_056), 60.9),
        (as_resized("cubic", Rows(56 * 56, 1024, is_inner=False), 6_422_528), 497.4),
    ],
)
def test_interpolations_take_about_as_long_as_measured(kernel: Kernel, microseconds: float) -> None:
    assert predict(kernel, H200).seconds * 1e6 == pytest.approx(microseconds, rel=0.25)


def test_nothing_is_launched_where_nothing_is_written() -> None:
    assert forward("aten.fill_.Tensor", t(0, 4), t()) == []
    assert forward("aten.relu.default", t(0, 4)) == []
    assert forward("aten.lift_fresh_copy.default", t()) == []


@pytest.mark.parametrize(("mode", "turns"), [(0, 1), (1, 1), (2, 8)])
def test_a_position_of_a_grid_takes_its_channels_in_turn(mode: int, turns: int) -> None:
    grid = t(4, 512, 512, 2)
    (kernel,) = forward("aten.grid_sampler_2d.default", t(4, 3, 8, 8), grid, mode, 0, True)
    assert kernel.sizes == Windows(4 * 512 * 512 * 3 * turns, 0)
