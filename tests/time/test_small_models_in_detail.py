"""Terms of models of time that few kernels have, each with round numbers."""

from __future__ import annotations

import pytest

from tests.time.test_predict_by_hand import attention, flash
from tests.time.toy_device import seconds


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
