"""Terms of models of time that few kernels have, each with round numbers."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.kernels.kernel import Convolution
from graphflops.time.predict_traffic import tiled_seconds
from tests.time.test_predict_by_hand import attention, flash
from tests.time.toy_device import device, seconds

TILED = {"start": 4.0, "step": 1e6, "latency": 1e-9, "floor": 1000.0}


@pytest.mark.parametrize(
    ("sizes", "tiles", "steps"),
    [
        # 2 x 196 positions are four tiles of 128, 40 filters two of 32; the taps of 4 channels 36 steps.
        (Convolution(2, 4, 40, (16, 16), (14, 14), (3, 3)), 4 * 2, 36),
        (Convolution(1, 4, 32, (10, 18), (8, 16), (3, 3)), 1, 36),
        (Convolution(1, 4, 33, (10, 18), (8, 16), (3, 3)), 2, 36),
        (
            Convolution(1, 512, 512, (10, 18), (8, 16), (3, 3), groups=2),
            2 * 8,
            256 * 9,
        ),  # tiles of each group
    ],
)
def test_convolutions_without_matrix_units_go_from_tile_to_tile(
    sizes: Convolution, tiles: int, steps: int
) -> None:
    """A millisecond for each step of each tile, on four multiprocessors, and four steps to start."""
    computed = (steps + 4) * 1e-3 * tiles / 4
    found = tiled_seconds(sizes, 2, 5 * 10**6, TILED, device(multiprocessors=4))
    assert found == pytest.approx((1e-3 + computed, computed, 5e-3))
    alone: Any = tiled_seconds(sizes, 2, 5 * 10**6, TILED, device(multiprocessors=None))
    assert alone[1] == pytest.approx(4 * computed)
    waiting = tiled_seconds(sizes, 2, 0, {**TILED, "step": 1e-9, "latency": 1e6}, device(multiprocessors=4))
    assert waiting == pytest.approx((1e-3 + (steps + 4) * 1e-3, (steps + 4) * 1e-3, 0))


def test_kernels_around_a_gradient_move_the_result() -> None:
    """Ten bytes for each of its elements, at half of the bandwidth."""
    kernel = attention(256, 256, phase="backward")
    without, around = (seconds(kernel, flash(memory=0.5, around=each)) for each in (0.0, 10.0))
    assert around - without == pytest.approx(2 * 4 * 256 * 128 * 10 / 0.5e9)


def test_queries_that_fill_blocks_share_none() -> None:
    """128 queries of each of four heads are four blocks either way, of which each has all queries of its head."""
    kernel = attention(128, 256, 4, 1, computed=0.25)
    pairs = 2 * 4 * 128 * 256 * 0.25
    assert seconds(kernel, flash(packed=1.0)) == pytest.approx(4 * pairs * 128 / 4e9)
    assert seconds(kernel, flash()) == pytest.approx(4 * pairs * 128 / 4e9)
