"""Times of sums over rows, outer axes and planes on four multiprocessors: how threads share the elements."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.kernels.kernel import Kernel, Rows
from graphflops.time.predict import predict
from graphflops.time.predict_traffic import _outer_seconds as seconds, _planes as planes, in_turn
from tests.time.toy_device import TRAFFIC, device

TOY = device()
# Nanoseconds of an element, and of a part that is joined; a fence of a millisecond.
RATES = {"floor": 1e-9, "step": 1.0, "join": 100.0, "fence": 1000.0, "vector": 0.0, "elements": 1e9}
NS = 1e-9


@pytest.mark.parametrize(
    ("rows", "columns", "each"),
    [
        # blocks of up to 16 rows; 32 threads a row, or more of the 512 where there are fewer rows
        (16, 32, 1),
        (16, 64, 2),
        (100, 320, 10),
        (8, 64, 1),  # 64 threads
        (1, 512, 1),
        (1, 1024, 2),
        (2, 8191, 8191 / 256),
        (2, 8192, 8192 / 256 / 2),  # from 16 elements for each row of a block on its warps share a row
        (16, 8191, 8191 / 32),
        (16, 8192, 8192 / 32 / 16),  # 256 of each: the block shares a row
        (1, 16 * 512, 16),
        (16, 32 * 100_000, 4096 / 32),  # and blocks a longer one
    ],
)
def test_elements_of_a_thread_of_a_warp(rows: int, columns: int, each: float) -> None:
    assert in_turn(Rows(rows, columns)) == 32 * each


@pytest.mark.parametrize(
    ("results", "elements", "serial"),
    [
        # threads have four results each: 32 across for 128 results, and 4 along the elements
        (128, 400, 100 * NS),
        (256, 400, 100 * NS),  # two blocks
        (64, 400, 50 * NS),  # 16 across, 8 down
        (4, 1280, 10 * NS),  # one across, 128 down
        (130, 400, 50 * NS),  # two results each: 256 threads, 8 of them down
        (127, 400, 25 * NS),  # one each: 512 threads, 16 down
        (127, 200, 200 * NS),  # fewer than 16 elements for each of them: a thread adds up all
        (128, 63, 63 * NS),
        (128, 64, 16 * NS),
        (128 * 64, 400, 100 * NS),  # 64 blocks of 128 threads, 16 on each multiprocessor
        (128 * 96, 400, 1.5 * 100 * NS),
    ],
)
def test_sums_over_an_outer_axis(results: int, elements: int, serial: float) -> None:
    found, alone = seconds(Rows(results, elements, False), 0.0, RATES, TOY)
    assert (found, alone) == (pytest.approx(serial, rel=1e-6), pytest.approx(serial, rel=1e-6))
    found, alone = seconds(Rows(results, elements, False), 5.0, RATES, TOY)
    assert (found, alone) == (pytest.approx(5), pytest.approx(serial, rel=1e-6))


def test_further_results_of_a_thread_take_a_share() -> None:
    found, _ = seconds(Rows(128, 400, False), 0.0, {**RATES, "vector": 0.1}, TOY)
    assert found == pytest.approx(100 * 1.3 * NS, rel=1e-6)  # of three beside the first
    found, _ = seconds(Rows(127, 400, False), 0.0, {**RATES, "vector": 0.1}, TOY)
    assert found == pytest.approx(25 * NS, rel=1e-6)


@pytest.mark.parametrize(
    ("results", "elements", "parts", "each"),
    [
        # from 256 elements of a thread on blocks share a result: 16 elements each, as many parts as blocks are resident
        (128, 1024, 16, 16),
        (128, 4 * 6400, 64, 100),
        (128 * 32, 4 * 256, 2, 128),
        (128 * 64, 1024, 1, 256),
        (128 * 128, 1024, 1, 2 * 256),
    ],
)
def test_blocks_share_long_sums(results: int, elements: int, parts: int, each: int) -> None:
    """Four threads of a block add up the parts of a result."""
    found, _ = seconds(Rows(results, elements, False), 0.0, RATES, TOY)
    expected = each * NS + (1e-3 + -(-parts // 4) * 100 * NS if parts > 1 else 0)
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("channels", "pixels", "expected"),
    [
        (4, 1000, 1000 * NS),
        (5, 1000, 2 * 1000 * NS),
        (4, 256 * 512 - 1, (256 * 512 - 1) * NS),
        (4, 256 * 512, 256 * 512 / 4 * 4 * NS + 1e-3),  # four blocks for each channel
        (16, 256 * 512, 4 * 256 * 512 * NS),
        (32, 256 * 512, 8 * 256 * 512 * NS),
    ],
)
def test_sums_of_planes(channels: int, pixels: int, expected: float) -> None:
    found, alone = planes(Rows(channels, pixels), 0.0, RATES, TOY)
    assert (found, alone) == (pytest.approx(expected, rel=1e-6), pytest.approx(expected, rel=1e-6))


def test_the_model_needs_all_of_its_constants() -> None:
    """Without one of them a sum has the model of other rows."""
    kernel = Kernel("reduction", "float32", 0, 0, 8, 8, Rows(128, 400, False), variant="outer")
    traffic: Any = {**TRAFFIC, "spread": 2.0}
    whole = device(rates={"reduction.outer": {**traffic, **RATES}}, bandwidth=1e15)
    assert predict(kernel, whole).seconds == pytest.approx(100 * NS, rel=1e-3)
    for name in ("step", "fence"):
        rates = {key: rate for key, rate in {**traffic, **RATES}.items() if key != name}
        less = device(rates={"reduction.outer": rates}, bandwidth=1e15)
        assert predict(kernel, less).seconds != pytest.approx(100 * NS, rel=1e-3)
