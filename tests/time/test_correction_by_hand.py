"""Corrections from few points, where they can be worked out: at a point, halfway, far away."""

from __future__ import annotations

from math import exp, log, sqrt
from typing import Any

import pytest

from graphflops.devices import Calibration
from graphflops.kernels.kernel import Attention, Convolution, Kernel, Product, Rows
from graphflops.time.correction import columns_of, correction, interpolated, names_of, variant_of
from tests.time.toy_device import device

NAMES = names_of("matmul", 6)


def points(*rows: tuple[float, ...], **more: Any) -> Calibration:
    fields: dict[str, Any] = {"family": "matmul", "variant": "tn", "dtype": "bfloat16", "columns": NAMES}
    return Calibration(**{**fields, "points": rows, "software": "", "data": "", "source": "", **more})


def test_names_of_columns() -> None:
    assert NAMES == ("m", "n", "k", "batch", "microseconds", "ratio")
    assert names_of("softmax", 5) == ("bytes", "rows", "columns", "microseconds", "ratio")


def test_points_of_older_profiles_have_the_first_sizes_only() -> None:
    *sizes, microseconds, ratio = names_of("convolution", 8)
    assert (len(sizes), microseconds, ratio) == (6, "microseconds", "ratio")
    assert names_of("convolution", 5) == (*sizes[:3], "microseconds", "ratio")


def test_one_point_is_the_mean_of_all() -> None:
    """Its ratio holds everywhere; the noise of products is 0.06 beside a signal of 0.1."""
    known = points((256, 256, 256, 1, 10.0, 1.5))
    at, far = (interpolated(known, (size, size, size, 1)) for size in (256, 2**20))
    assert (at.factor, far.factor) == pytest.approx((1.5, 1.5))
    noise = 0.36
    assert at.deviation == pytest.approx(0.1 * sqrt(1 - 1 / (1 + noise) + noise))
    assert far.deviation == pytest.approx(0.1 * sqrt(1 + noise), rel=1e-3)


def test_two_points_draw_the_ratio_to_the_nearer() -> None:
    """24 octaves apart the points know nothing of each other."""
    low, high = (1, 64, 64, 1, 1.0, 1.0), (2**24, 64, 64, 1, 1.0, 2.0)
    known = points(low, high)
    mean, half = log(2) / 2, log(2) / 2
    at = interpolated(known, (2**24, 64, 64, 1))
    assert log(at.factor) == pytest.approx(mean + half / 1.36, rel=1e-3)
    octaves = 3  # the length over which ratios are alike along m
    near = interpolated(known, (2 ** (24 - octaves), 64, 64, 1))
    like = (1 + sqrt(3)) * exp(-sqrt(3))
    assert log(near.factor) == pytest.approx(mean + half * like / 1.36, rel=1e-2)
    middle = interpolated(known, (2**12, 64, 64, 1))
    assert log(middle.factor) == pytest.approx(mean)


def test_ratios_are_corrected_by_four_at_most() -> None:
    assert interpolated(points((1, 1, 1, 1, 1.0, 9.0)), (1, 1, 1, 1)).factor == pytest.approx(4)
    assert interpolated(points((1, 1, 1, 1, 1.0, 0.1)), (1, 1, 1, 1)).factor == pytest.approx(1 / 4)


def test_the_deviation_is_no_smaller_than_the_error_on_kernels_held_out() -> None:
    known = points((1, 1, 1, 1, 1.0, 1.0), error=(0.1, 0.1, 0.5))
    assert interpolated(known, (1, 1, 1, 1)).deviation == pytest.approx(log(1.5) / 1.645)


def product(
    layout: Any = "tn", batch: int = 1, m: int = 256, dtype: str = "bfloat16", alone: bool = False
) -> Kernel:
    return Kernel("matmul", dtype, 2, 0, 8, 8, Product(m, 64, 64, batch, layout), is_alone=alone)


@pytest.mark.parametrize(
    ("kernel", "variant", "columns"),
    [
        (product(), "tn", (256, 64, 64, 1)),
        (product(batch=4), "batched", (256, 64, 64, 4)),
        (product(alone=True), "tn.alone", (256, 64, 64, 1)),
        (
            Kernel("convolution", "bfloat16", 0, 0, 1, 1, Convolution(2, 32, 64, (8, 8), (4, 4), (3, 3), 4)),
            "grouped.forward",
            (2, 16, 16, 8, 9, 4),
        ),
        (
            Kernel(
                *("attention", "bfloat16", 0, 0, 1, 1),
                Attention(2, 8, 2, 100, 200, 64, 0.5, masking="masked"),
            ),
            "flash.masked.forward",
            (2, 8, 100, 200, 64, 4, 100),
        ),
        (
            Kernel("attention", "bfloat16", 0, 0, 1, 1, Attention(2, 8, 2, 1, 200, 64)),
            "flash.decoding",
            (2, 8, 1, 200, 64, 4, 200),
        ),
        (Kernel("softmax", "float32", 0, 0, 30, 12, Rows(5, 6), variant="softmax"), "softmax", (42, 5, 6)),
        (Kernel("elementwise", "float32", 0, 0, 30, 12), "", (42,)),
    ],
)
def test_what_tells_kernels_apart(kernel: Kernel, variant: str, columns: tuple[float, ...]) -> None:
    assert variant_of(kernel) == variant
    assert columns_of(kernel) == columns


def test_which_points_correct_a_kernel() -> None:
    """Those of its layout and type, else of a type as fast, else of products alone, unless its layout has constants."""
    row = (1, 1, 1, 1, 1.0, 1.5)
    own, alike = device(calibration=(points(row),)), device(calibration=(points(row, dtype="float16"),))
    alone = device(calibration=(points(row, variant="tn.alone"),))
    assert correction(product(), own) is not None
    assert correction(product(), alike) is not None
    assert correction(product(dtype="float32"), own) is None
    assert correction(product("nn"), own) is None
    assert correction(product("nn"), alone) is not None
    constants = device(calibration=alone.calibration, rates={"matmul.nn.16": {}})
    assert correction(product("nn"), constants) is None
    assert correction(product("tn"), constants) is not None
    other = device(calibration=(points(row, columns=("n", "m", "k", "batch", "microseconds", "ratio")),))
    assert correction(product(), other) is None


def test_alignments_tell_convolutions_apart() -> None:
    """An odd number of channels is four octaves of alignment from a multiple of 16."""
    names = names_of("convolution", 8)
    row = (1, 16, 16, 16, 1, 1, 1.0, 1.0)
    far = (2**40, 16, 16, 16, 1, 1, 1.0, 2.0)
    known = points(row, far, family="convolution", columns=names)
    even, odd = (interpolated(known, (1, 16, 16, channels, 1, 1)) for channels in (32, 17))
    assert even.factor < odd.factor
