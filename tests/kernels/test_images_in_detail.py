"""Kernels that go over images: poolings, interpolations, patches, and their gradients, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.kernels.kernel import Rows, Strided, Windows
from tests.one_call import g
from tests.support import t
from tests.time.one_call import Made, backward, copied, forward, made, pointwise

X, N = g(2, 8, 9, 9), 2 * 8 * 81  # an image, and its elements
LAST = {0: (648, 1, 72, 8)}
Y, E = g(2, 8, 8, 8), 2 * 8 * 64  # one that is enlarged, and its elements
Y_LAST = {0: (512, 1, 64, 8)}
TWICE = (2.0, 2.0)
ZEROS, ZEROS_Y = pointwise(0, 0, 4 * N), pointwise(0, 0, 4 * E)
RESIDENT = 132 * 1024  # threads, fewer of which take as long


def pool(variant: str, read: int, written: int, sizes: Any, work: int = 0) -> Made:
    return ("pool", variant, work, read, written, sizes)


@pytest.mark.parametrize(
    ("op", "given", "strides", "expected"),
    [
        # Of a maximum its position is written too, in 8 bytes.
        ("max_pool2d", (X, (3, 3), (3, 3)), {}, [pool("max_pool", 4 * N, 12 * 144, Windows(144, 9))]),
        ("max_pool2d", (X, (3, 3), (3, 3)), LAST, [pool("max_pool_last", 4 * N, 12 * 144, Windows(144, 9))]),
        (
            "max_pool3d",
            (g(2, 8, 4, 4, 4), (2, 2, 2), (2, 2, 2)),
            {},
            [pool("max_pool_volume", 4 * 1024, 12 * 128, Windows(128, 8))],
        ),
        (
            "adaptive_avg_pool2d",
            (X, (3, 3)),
            {},
            [pool("adaptive_avg_pool", 4 * N, 4 * 144, Windows(144, 9))],
        ),
        # To one position it is a mean of each channel.
        ("adaptive_avg_pool2d", (X, (1, 1)), {}, [("reduction", "", N, 4 * N, 4 * 16, Rows(16, 81))]),
        (
            "adaptive_avg_pool2d",
            (X, (1, 1)),
            LAST,
            [("reduction", "outer", N, 4 * N, 4 * 16, Rows(16, 81, is_inner=False))],
        ),
        # A thread for each channel of an image, if a plane is one block: else it takes its turns, across and down.
        (
            "adaptive_max_pool2d",
            (X, (3, 3)),
            {},
            [pool("adaptive_max_pool", 4 * N, 12 * 144, Windows(16, 9))],
        ),
        (
            "adaptive_max_pool2d",  # 3 blocks of 32 across, and 2 of 8 times 8 down; windows of 2 x 2
            (g(2, 2, 140, 140), (70, 70)),
            {},
            [pool("adaptive_max_pool", 4 * 78_400, 12 * 19_600, Windows(4, 4 * 3 * 2))],
        ),
        (
            "adaptive_max_pool2d",  # of 20 channels a plane is one block down
            (g(1, 20, 64, 32), (32, 16)),
            {},
            [pool("adaptive_max_pool", 4 * 40_960, 12 * 10_240, Windows(20, 4 * 4))],
        ),
        ("max_pool2d", (g(2, 8, 0, 9), (1, 1), (1, 1)), {}, []),
    ],
)
def test_poolings(op: str, given: Any, strides: Any, expected: list[Made]) -> None:
    outputs = 2 if op == "adaptive_max_pool2d" else 1
    assert made(forward(f"aten.{op}.default", *given, strides=strides, outputs=outputs)) == expected


@pytest.mark.parametrize(
    ("op", "given", "expected"),
    [
        (
            "max_pool2d",
            (X, (3, 3), (3, 3)),
            [ZEROS, pool("max_pool_backward", 12 * 144, 4 * N, Windows(N, 1))],
        ),
        (
            "max_pool2d",  # windows that overlap: 16 of 9 positions each for 81
            (X, (3, 3), (2, 2)),
            [ZEROS, pool("max_pool_backward", 12 * 256, 4 * N, Windows(N, 9 * 16 / 81))],
        ),
        (
            "adaptive_avg_pool2d",
            (X, (3, 3)),
            [ZEROS, pool("adaptive_avg_pool_backward", 4 * 144, 4 * N, Windows(N, 1))],
        ),
        ("adaptive_avg_pool2d", (X, (1, 1)), [pointwise(N, 4 * 16, 4 * N, Strided(N, 2, 2))]),
    ],
)
def test_gradients_of_poolings(op: str, given: Any, expected: list[Made]) -> None:
    assert made(backward(f"aten.{op}.default", *given)) == expected


def test_an_average_is_given_back_without_zeros() -> None:
    (kernel,) = backward("aten.avg_pool2d.default", X, (3, 3), (3, 3))
    assert (kernel.variant, kernel.read_bytes, kernel.written_bytes) == ("avg_pool_backward", 4 * 144, 4 * N)


@pytest.mark.parametrize(
    ("op", "given", "strides", "expected"),
    [
        # Blocks of threads cover the planes: of 16 x 16 results 512 threads are 16 across and 16 down.
        ("nearest2d", (Y, None, TWICE), {}, [pool("nearest", 4 * E, 16 * E, Windows(16 * 16 * 16, 0))]),
        ("nearest2d", (Y, None, TWICE), Y_LAST, [pool("nearest_last", 4 * E, 16 * E, Windows(4 * E, 0))]),
        (
            "nearest2d",  # of three channels there is no such kernel
            (g(2, 3, 8, 8), None, TWICE),
            {0: (192, 1, 24, 3)},
            [pool("nearest", 4 * 384, 16 * 384, Windows(6 * 256, 0))],
        ),
        (
            "nearest2d",  # 200 across are two times 128, 80 down are 20 times 4
            (g(2, 8, 40, 100), None, TWICE),
            {},
            [pool("nearest", 4 * 64_000, 16 * 64_000, Windows(16 * 256 * 80, 0))],
        ),
        (
            "nearest1d",
            (g(2, 8, 100), None, (2.0,)),
            {},
            [pool("nearest", 4 * 1600, 8 * 1600, Windows(16 * 256, 0))],
        ),
        ("nearest2d", (Y, (8, 8), None), {}, [copied(4 * E, 4 * E)]),  # at the same size
        ("bilinear2d", (Y, (8, 8), False, None), {}, [copied(4 * E, 4 * E)]),
        (
            "bilinear2d",
            (Y, None, False, TWICE),
            Y_LAST,
            [pool("linear_last", 4 * E, 16 * E, Windows(4 * E, 0), work=8 * 4 * E)],
        ),
    ],
)
def test_interpolations(op: str, given: Any, strides: Any, expected: list[Made]) -> None:
    assert made(forward(f"aten.upsample_{op}.vec", *given, strides=strides)) == expected


@pytest.mark.parametrize(
    ("op", "given", "strides", "expected"),
    [
        # A thread for each result of one image, which takes those of all.
        (
            "nearest2d",
            (Y, None, TWICE),
            {},
            [pool("nearest_backward", 16 * E, 4 * E, Windows(2 * RESIDENT, 4))],
        ),
        (
            "nearest2d",
            (g(2, 8, 128, 256), None, TWICE),
            {},
            [pool("nearest_backward", 16 * 524_288, 4 * 524_288, Windows(524_288, 4))],
        ),
        (
            "nearest2d",
            (Y, None, TWICE),
            Y_LAST,
            [pool("nearest_last_backward", 16 * E, 4 * E, Windows(RESIDENT, 4))],
        ),
        ("nearest2d", (Y, (8, 8), None), {}, [copied(4 * E, 4 * E)]),
        ("bilinear2d", (Y, (8, 8), False, None), {}, [ZEROS_Y, copied(4 * E, 4 * E)]),
        # Each gradient is added to the four corners of its position.
        (
            "bilinear2d",
            (Y, None, False, TWICE),
            {},
            [ZEROS_Y, ("scatter", "linear", 0, 16 * E, 4 * 16 * E, Windows(4 * E, 4 - 4))],
        ),
    ],
)
def test_gradients_of_interpolations(op: str, given: Any, strides: Any, expected: list[Made]) -> None:
    assert made(backward(f"aten.upsample_{op}.vec", *given, strides=strides)) == expected


def test_a_cubic_interpolation_writes_zeros_first() -> None:
    zeros, kernel = forward("aten.upsample_bicubic2d.vec", Y, None, False, TWICE)
    assert (zeros.written_bytes, kernel.variant, kernel.vector_flops) == (16 * E, "cubic", 32 * 4 * E)
    assert isinstance(kernel.sizes, Rows)
    assert (kernel.sizes.rows, kernel.sizes.is_inner) == (16 * 16, False)
    zeros, kernel = backward("aten.upsample_bicubic2d.vec", Y, None, False, TWICE)
    assert (zeros.written_bytes, kernel.read_bytes, kernel.written_bytes) == (4 * E, 16 * E, 16 * 16 * E)


@pytest.mark.parametrize(("mode", "turns"), [(0, 1), (1, 1), (2, 8)])
@pytest.mark.parametrize(("size", "positions"), [(300, 2 * 300 * 300), (10, 48_000)])
def test_samples_at_a_grid(mode: int, turns: int, size: int, positions: int) -> None:
    """A thread for each position takes the channels one after the other; a cubic one waits eight times as often."""
    (kernel,) = forward("aten.grid_sampler_2d.default", Y, t(2, size, size, 2), mode, 0, False)
    assert (kernel.family, kernel.variant, kernel.sizes) == (
        "pool",
        "grid_sample",
        Windows(positions * 8 * turns, 0),
    )


def test_patches_as_columns_and_back() -> None:
    """A kernel for each image; and one that adds up what the patches of all have for each position."""
    kernels = forward("aten.im2col.default", X, (3, 3), (1, 1), (0, 0), (3, 3))
    assert [(k.variant, k.read_bytes, k.written_bytes) for k in kernels] == [("im2col", 2 * N, 2 * N)] * 2
    found = made(forward("aten.col2im.default", g(2, 72, 9), (9, 9), (3, 3), (1, 1), (0, 0), (3, 3)))
    assert found == [("scatter", "col2im", 0, 4 * N, 4 * N, Windows(N, 1))]
    found = made(forward("aten.col2im.default", g(2, 72, 49), (9, 9), (3, 3), (1, 1), (0, 0), (1, 1)))
    assert found == [("scatter", "col2im", 0, 4 * 7056, 4 * N, Windows(N, 7056 / N))]  # windows that overlap
