import pytest

from graphflops.dims import call, symbol
from graphflops.errors import RuleError, ShapeError
from tests.support import price, shapes, t

B, H, W = map(symbol, "bhw")


def floats(*value):
    """A vector of known factors."""
    return t(len(value), value=value)


def ints(*value):
    """A vector of known sizes."""
    return t(len(value), dtype="int64", value=value)


@pytest.mark.parametrize(
    "size, factor, expected",
    [
        (10, 2.0, 20),
        (5, 0.5, 2),
        (7, 1.5, 10),
        (5, 1.7999999523162842, 9),  # 1.8 in single precision, as is the product
        ("h", 2.0, 2 * H),
        ("h", 1.0, H),
        ("h", 0.5, H // 2),
        ("h", 1.5, (3 * H) // 2),
        ("h", 0.25, H // 4),
        ("h", 1.7999999523162842, (9 * H) // 5),
        ("h", call("truediv", W, H), W),
    ],
)
def test_factors_are_rounded_down(size, factor, expected):
    assert shapes(price("onnx.Resize.13", t(size), None, floats(factor))) == [(expected,)]


def test_sizes():
    x = t("b", 3, "h", "w")
    assert shapes(price("onnx.Resize.19", x, None, None, ints(B, 3, 2 * H, 7))) == [(B, 3, 2 * H, 7)]
    assert shapes(price("onnx.Resize.19", x, t(0), t(0), ints(9, 8), axes=(2, 3))) == [(B, 3, 9, 8)]
    assert shapes(price("onnx.Resize.19", x, None, None, ints(8, 9), axes=(-1, -2))) == [(B, 3, 9, 8)]


@pytest.mark.parametrize(
    "policy, sizes, expected",
    [
        ("not_larger", (9, 7), (4, 7)),  # 2 x 4 times 7/4 is 3.5 x 7, and a half is rounded up
        ("not_smaller", (7, 8), (7, 14)),
        ("stretch", (7, 8), (7, 8)),
    ],
)
def test_aspect_ratio(policy, sizes, expected):
    out = price("onnx.Resize.19", t(2, 4), None, None, ints(*sizes), keep_aspect_ratio_policy=policy)
    assert shapes(out) == [expected]


def test_aspect_ratio_of_sizes_that_are_not_known():
    x, policy = t("h", "h"), {"keep_aspect_ratio_policy": "not_larger"}
    assert shapes(price("onnx.Resize.19", x, None, None, ints(9, 9), **policy)) == [(9, 9)]
    (out,) = price("onnx.Resize.19", t("h", "w"), None, None, ints(9, 9), **policy).out
    assert out.shape[0] != out.shape[1]


@pytest.mark.parametrize("rows, taps", [(6, 2), (3, 2 * 2)])
def test_an_axis_that_may_stay_as_it_is_has_taps_only_where_it_changes(rows, taps):
    """Bilinear to 6 rows and 8 columns: of 4 columns always, of open rows unless they are 6 already."""
    of_open = price("onnx.Resize.19", t("h", 4), None, None, ints(6, 8), mode="linear").vector_flops
    assert of_open.substitute({"h": rows}) == 2 * taps * (6 * 8)
    antialiased = {"mode": "linear", "antialias": 1}
    of_open = price("onnx.Resize.19", t("h", 4), None, None, ints(6, 8), **antialiased).vector_flops
    columns = 2 * 2 * rows * 8  # resized first
    assert of_open.substitute({"h": rows}) == columns + (2 * 2 * 6 * 8 if rows != 6 else 0)


def test_crop_and_resize():
    roi = floats(0.0, 0.25, 1.0, 0.75)
    attributes = {"coordinate_transformation_mode": "tf_crop_and_resize", "mode": "linear"}
    # What onnxruntime, ONNX's reference and its shape inference return, whatever the region.
    assert shapes(price("onnx.Resize.13", t(4, 8), roi, floats(1.0, 2.0), **attributes)) == [(4, 16)]
    assert shapes(price("onnx.Resize.13", t(4, 8), t(4), floats(1.0, 2.0), **attributes)) == [(4, 16)]


def test_unknown_factors_leave_sizes_to_data():
    (out,) = price("onnx.Resize.18", t(1, 3, "h", "w"), None, t(2), axes=(2, 3)).out
    assert out.shape[:2] == (1, 3)
    assert len(set(out.shape)) == 4
    with pytest.raises(ShapeError):
        price("onnx.Resize.18", t(1, 3), None, floats(1.0))


def test_spellings_of_old():
    x = t(1, 3, "h", "w")
    expected = [(1, 3, 2 * H, 3 * W)]
    assert shapes(price("onnx.Resize.10", x, floats(1.0, 1.0, 2.0, 3.0))) == expected
    assert shapes(price("onnx.Upsample.9", x, floats(1.0, 1.0, 2.0, 3.0))) == expected
    assert shapes(price("onnx.Upsample.7", x, scales=(1.0, 1.0, 2.0, 3.0), mode="linear")) == expected
    assert shapes(price("onnx.Upsample.1", x, width_scale=3.0, height_scale=2.0)) == expected


@pytest.mark.parametrize(
    "mode, antialias, flops",
    [
        ("nearest", 0, 0),
        ("linear", 0, 2 * 4 * 3 * 8 * 8),
        ("cubic", 0, 2 * 16 * 3 * 8 * 8),
        # 16 rows and columns to 8: columns first, each output twice as wide a filter, then rows.
        ("linear", 1, 3 * (2 * 2 * 16 * 16 + 2 * 2 * 8 * 16)),
        ("cubic", 1, 3 * (2 * 4 * 16 * 16 + 2 * 4 * 8 * 16)),
    ],
)
def test_work_is_that_of_the_axes_that_change(mode, antialias, flops):
    estimate = price(
        "onnx.Resize.18", t(1, 3, 16, 16), None, None, ints(1, 3, 8, 8), mode=mode, antialias=antialias
    )
    assert estimate.vector_flops == flops


def test_nearest_reads_no_more_than_it_returns():
    down = price("onnx.Resize.13", t(16, 16), None, floats(0.5, 0.5)).cost
    up = price("onnx.Resize.13", t(16, 16), None, floats(2.0, 2.0)).cost
    assert (down.read_bytes, up.read_bytes) == (8 * 8 * 4, 16 * 16 * 4)


def test_unchanged_sizes_are_no_work():
    assert price("onnx.Resize.13", t(1, "h"), None, floats(1.0, 1.0), mode="linear").vector_flops == 0
    with pytest.raises(RuleError):
        price("onnx.Resize.13", t(2), None, floats(2.0), mode="sinc")
