"""Corrections by measured kernels: exact where points agree, near one far away from all points."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from graphflops.devices import Calibration, device
from graphflops.kernels.kernel import Convolution, Kernel, Product
from graphflops.time.correction import correction, interpolated
from graphflops.time.predict import predict

GRID = [(2.0**m, 2.0**n) for m in range(4, 12) for n in range(4, 12)]


def points(ratio) -> Calibration:
    found = tuple((m, n, ratio(m, n)) for m, n in GRID)
    return Calibration("matmul", "tn", "bfloat16", ("m", "n", "ratio"), found, "", "", "")


@pytest.mark.parametrize("factor", [0.8, 1.0, 1.3])
def test_equal_ratios_give_that_ratio(factor):
    found = interpolated(points(lambda m, n: factor), (300, 300))
    assert found.factor == pytest.approx(factor, rel=1e-6)


def test_a_ratio_that_grows_with_a_size_is_followed():
    steps = points(lambda m, n: 1.0 if m < 200 else 1.2)
    assert interpolated(steps, (20, 100)).factor == pytest.approx(1.0, abs=0.03)
    assert interpolated(steps, (2000, 100)).factor == pytest.approx(1.2, abs=0.03)


def test_far_from_all_points_the_interval_is_wider():
    flat = points(lambda m, n: 1.0)
    assert interpolated(flat, (2**20, 2**20)).deviation > 1.5 * interpolated(flat, (300, 300)).deviation


def test_a_wild_point_is_limited():
    wild = points(lambda m, n: 50.0)
    assert interpolated(wild, (100, 100)).factor <= 4.0 + 1e-9


def test_points_correct_kernels_of_their_own_kind_only():
    sizes = Product(256, 128, 64)
    kernel = Kernel("matmul", "bfloat16", 2 * 256 * 128 * 64, 0, 2 * 64 * 384, 2 * 256 * 128, sizes)
    slow = Calibration(
        "matmul", "tn", "bfloat16", ("m", "n", "k", "batch", "ratio"), ((256, 128, 64, 1, 1.5),), "", "", ""
    )
    plain = replace(device("h200"), calibration=())
    known = replace(plain, calibration=(slow,))
    assert predict(kernel, known).seconds == pytest.approx(1.5 * predict(kernel, plain).seconds)
    assert correction(replace(kernel, sizes=replace(sizes, layout="nn")), known) is None
    assert correction(replace(kernel, dtype="float32"), known) is None
    assert correction(replace(kernel, dtype="float16"), known) == correction(kernel, known)


def test_points_with_other_columns_correct_nothing():
    """A profile of an earlier version tells convolutions apart by other sizes."""
    sizes = Convolution(8, 64, 64, (56, 56), (56, 56), (1, 1))
    kernel = Kernel("convolution", "bfloat16", 2 * 8 * 56 * 56 * 64 * 64, 0, 4_000_000, 3_200_000, sizes)
    point = (25_088, 64, 64, 1, 20.0, 1.5)
    columns = ("pixels", "filters", "taps", "groups", "microseconds", "ratio")
    old = Calibration("convolution", "pointwise.forward", "bfloat16", columns, (point,), "", "", "")
    assert correction(kernel, replace(device("h200"), calibration=(old,))) is None
