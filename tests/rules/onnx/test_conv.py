"""Convolutions and pools in ONNX's spellings: either end padded on its own, automatic padding, any rank."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.dims import Dim, ceil_div, floor_div, symbol
from graphflops.errors import ShapeError
from graphflops.tensor import INT32, INT64
from tests.support import price, shapes, t

CONV, TRANSPOSED = "onnx.Conv.11", "onnx.ConvTranspose.11"


def test_strided_convolution_counts_output_positions() -> None:
    estimate = price(CONV, t(1, 3, 32, 32), t(16, 3, 3, 3), t(16), strides=(2, 2), pads=(1, 1, 1, 1))
    assert estimate.matrix_flops == 2 * (16 * 16) * 27 * 16 == 221_184
    assert estimate.vector_flops == 16 * 16 * 16 == 4_096


def test_depthwise_convolution_counts_channels_of_a_group() -> None:
    estimate = price(CONV, t(1, 32, 16, 16), t(32, 1, 3, 3), pads=(1, 1, 1, 1), group=32)
    assert estimate.matrix_flops == 147_456


def test_convolution_counts_taps_on_padding() -> None:
    estimate = price(CONV, t(2, 3, 6, 6), t(6, 3, 4, 4), pads=(1, 1, 1, 1))
    assert estimate.matrix_flops == 2 * (2 * 6 * 5 * 5) * 48 == 28_800


def test_same_padding_counts_taps_on_padding() -> None:
    estimate = price(CONV, t(1, 1, 4, 4), t(2, 1, 2, 2), auto_pad="SAME_UPPER")
    assert (shapes(estimate), estimate.matrix_flops) == ([(1, 2, 4, 4)], 256)


def test_transposed_conv_counts_input_positions() -> None:
    estimate = price(TRANSPOSED, t(1, 3, 2, 2), t(3, 1, 2, 2), strides=(2, 2))
    assert (shapes(estimate), estimate.matrix_flops) == ([(1, 1, 4, 4)], 96)


def test_grouped_transposed_conv_reads_its_weight_as_input_by_output_channels() -> None:
    estimate = price(TRANSPOSED, t(2, 6, 8, 8), t(6, 2, 2, 2), strides=(2, 2), group=3)
    assert (shapes(estimate), estimate.matrix_flops) == ([(2, 6, 16, 16)], 12_288)


def test_transposed_conv_with_padding_counts_input_positions() -> None:
    estimate = price(TRANSPOSED, t(2, 4, 8, 8), t(4, 6, 4, 4), strides=(2, 2), pads=(1, 1, 1, 1))
    assert (shapes(estimate), estimate.matrix_flops) == ([(2, 6, 16, 16)], 98_304)


@pytest.mark.parametrize(
    "x, w, settings, out",
    [
        ((1, 1, 9), (1, 1, 3), {}, (1, 1, 7)),
        ((1, 1, 9), (1, 1, 3), {"pads": (2, 0)}, (1, 1, 9)),  # as a causal convolution pads
        ((1, 1, 9, 8), (1, 1, 3, 3), {"pads": (1, 0, 2, 1), "strides": (2, 3)}, (1, 1, 5, 3)),
        ((1, 1, 9, 9), (1, 1, 3, 3), {"dilations": (2, 3)}, (1, 1, 5, 3)),
        ((1, 1, 9, 9), (1, 1, 4, 4), {"auto_pad": "SAME_LOWER", "strides": (2, 4)}, (1, 1, 5, 3)),
        (
            (1, 1, 9, 9),
            (1, 1, 4, 4),
            {"auto_pad": "VALID", "strides": (2, 4)},
            (1, 1, 3, 2),
        ),
        ((1, 4, 5, 5, 5), (6, 2, 3, 3, 1), {"group": 2}, (1, 6, 3, 3, 5)),
        ((1, 1, 3, 3, 3, 3), (2, 1, 2, 2, 2, 2), {}, (1, 2, 2, 2, 2, 2)),
        ((0, 3, 9, 9), (4, 3, 3, 3), {}, (0, 4, 7, 7)),
    ],
)
def test_conv_sizes(x: Any, w: Any, settings: dict[str, Any], out: Any) -> None:
    assert shapes(price(CONV, t(*x), t(*w), **settings)) == [out]


@pytest.mark.parametrize(
    "x, w, settings, out",
    [
        ((1, 1, 3), (1, 2, 3), {}, (1, 2, 5)),
        ((1, 1, 3, 3), (1, 2, 3, 3), {"strides": (3, 2), "output_padding": (1, 1)}, (1, 2, 10, 8)),
        ((1, 1, 3, 3), (1, 2, 3, 3), {"strides": (3, 2), "pads": (1, 2, 1, 2)}, (1, 2, 7, 3)),
        ((1, 1, 3, 3), (1, 2, 3, 3), {"strides": (2, 2), "auto_pad": "SAME_UPPER"}, (1, 2, 6, 6)),
        # Windows of 1 at steps of 2 leave the position behind the last one out, as in onnxruntime.
        (
            (1, 1, 3, "h"),
            (1, 2, 1, 2),
            {"strides": (2, 2), "auto_pad": "SAME_LOWER"},
            (1, 2, 2 * 2 + 1, 2 * symbol("h")),
        ),
        ((1, 1, 3, 3), (1, 2, 3, 3), {"strides": (3, 2), "output_shape": (10, 8)}, (1, 2, 10, 8)),
        ((1, 1, 3, 3), (1, 1, 2, 2), {"dilations": (2, 2)}, (1, 1, 5, 5)),
    ],
)
def test_transposed_sizes(x: Any, w: Any, settings: dict[str, Any], out: Any) -> None:
    assert shapes(price(TRANSPOSED, t(*x), t(*w), **settings)) == [out]


def test_symbolic_height_and_width() -> None:
    b, h, w = symbol("b"), symbol("h"), symbol("w")
    x, settings = t("b", 3, "h", "w"), {"strides": (2, 2), "pads": (1, 1, 1, 1)}
    down = price(CONV, x, t(16, 3, 3, 3), **settings)
    assert shapes(down) == [(b, 16, ceil_div(h, 2), ceil_div(w, 2))]
    assert down.matrix_flops == 2 * 16 * 27 * b * ceil_div(h, 2) * ceil_div(w, 2)
    assert shapes(price(CONV, x, t(16, 3, 3, 3), auto_pad="SAME_UPPER", strides=(2, 2))) == shapes(down)
    up = price(TRANSPOSED, x, t(3, 8, 2, 2), strides=(2, 2))
    assert (shapes(up), up.matrix_flops) == ([(b, 8, 2 * h, 2 * w)], 2 * (3 * b * h * w) * (8 * 4))


@pytest.mark.parametrize(
    "settings, match",
    [
        ({"group": 0}, "0 groups"),
        ({"group": 2}, "3 channels"),
        ({"pads": (1, 1)}, "2 pads"),
        ({"strides": (0, 1)}, "positive"),
        ({"dilations": (8, 8)}, "larger than its input"),
    ],
)
def test_what_provably_does_not_fit_is_rejected(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ShapeError, match=match):
        price(CONV, t(1, 3, 9, 9), t(4, 3, 3, 3), **settings)
    with pytest.raises(ShapeError, match="does not fit"):
        price(CONV, t(1, 3, 9), t(4, 3, 3, 3))


def test_integers() -> None:
    x, zero = t(1, 3, 9, 9, dtype="uint8"), t(dtype="uint8")
    estimate = price("onnx.ConvInteger.10", x, t(4, 3, 3, 3, dtype="uint8"), zero, zero)
    assert estimate.out == (t(1, 4, 7, 7, dtype=INT32),)
    assert (estimate.matrix_flops, estimate.vector_flops) == (2 * 196 * 27, 243 + 108)


def test_a_convolution_that_keeps_state() -> None:
    estimate = price("onnx.CausalConvWithState.27", t(2, 8, "s"), t(8, 1, 4), t(8), activation="silu")
    assert shapes(estimate) == [(2, 8, symbol("s")), (2, 8, 3)]
    assert estimate.matrix_flops == 2 * 4 * 16 * symbol("s")
    assert (estimate.vector_flops, estimate.transcendentals) == (2 * 16 * symbol("s"), 16 * symbol("s"))


def test_learned_offsets() -> None:
    x, w, offset = t(1, 3, 5, 5), t(4, 3, 2, 2), t(1, 8, 4, 4)
    estimate = price("onnx.DeformConv.19", x, w, offset, t(4))
    assert (shapes(estimate), estimate.matrix_flops) == ([(1, 4, 4, 4)], 2 * 64 * 12)
    assert estimate.vector_flops == 8 * (3 * 4 * 16) + 64  # four taps a sample, and the bias
    grouped = price("onnx.DeformConv.19", t(1, 4, 5, 5), t(4, 2, 2, 2), offset, group=2)
    assert grouped.matrix_flops == 2 * 64 * 8


# Pools.


@pytest.mark.parametrize(
    "size, kernel, settings, out",
    [
        (9, 3, {"strides": (2,)}, 4),
        (10, 3, {"strides": (2,), "ceil_mode": 1}, 5),
        (10, 3, {"strides": (2,), "pads": (1, 0)}, 5),
        (5, 3, {"strides": (3,), "pads": (1, 1), "ceil_mode": 1}, 2),
        (
            1,
            1,
            {"strides": (2,), "pads": (0, 1), "ceil_mode": 1},
            1,
        ),  # a window in the padding alone is dropped
        (10, 3, {"dilations": (4,)}, 2),
        (10, 3, {"strides": (4,), "auto_pad": "SAME_LOWER"}, 3),
        (
            10,
            3,
            {"strides": (4,), "auto_pad": "VALID", "ceil_mode": 1},
            3,
        ),  # as runtimes do, unlike the formula printed
    ],
)
@pytest.mark.parametrize("op", ["onnx.MaxPool.12", "onnx.AveragePool.19", "onnx.LpPool.18"])
def test_pooled_sizes(op: str, size: int, kernel: int, settings: dict[str, Any], out: int) -> None:
    pooled = price(op, t(2, 3, size), kernel_shape=(kernel,), outputs=(True,), **settings)
    assert shapes(pooled) == [(2, 3, out)]


@pytest.mark.parametrize("ceil_mode, count", [(0, lambda n: floor_div(n, 2)), (1, lambda n: ceil_div(n, 2))])
def test_symbolic_pools(ceil_mode: int, count: Any) -> None:
    h, w = symbol("h"), symbol("w")
    window = {"kernel_shape": (2, 2), "strides": (2, 2), "ceil_mode": ceil_mode}
    estimate = price("onnx.MaxPool.12", t(1, 3, "h", "w"), outputs=(True,), **window)
    assert shapes(estimate) == [(1, 3, count(h), count(w))]
    assert estimate.vector_flops == 3 * 4 * count(h) * count(w)


@pytest.mark.parametrize(
    "op, settings, vector, functions",
    [
        ("onnx.MaxPool.12", {}, 4 * 12, 0),
        ("onnx.AveragePool.11", {}, 5 * 12, 0),
        ("onnx.LpPool.11", {"p": 1}, 8 * 12, 0),
        ("onnx.LpPool.11", {}, 8 * 12, 12),
        ("onnx.LpPool.11", {"p": 3}, 8 * 12, 4 * 12 + 12),
    ],
)
def test_work_of_pools(op: str, settings: dict[str, Any], vector: int, functions: int) -> None:
    estimate = price(op, t(1, 3, 4, 4), kernel_shape=(2, 2), strides=(2, 2), **settings)
    assert (estimate.vector_flops, estimate.transcendentals) == (vector, functions)


def test_maxima_with_their_places() -> None:
    both = price("onnx.MaxPool.12", t(1, 3, 4, 4), kernel_shape=(2, 2), outputs=(True, True))
    assert both.out == (t(1, 3, 3, 3), t(1, 3, 3, 3, dtype=INT64))
    alone = price("onnx.MaxPool.12", t(1, 3, 4, 4), kernel_shape=(2, 2), outputs=(True,))
    assert shapes(alone) == [(1, 3, 3, 3)]


@pytest.mark.parametrize(
    "op, vector, functions",
    [("onnx.GlobalMaxPool.1", 96, 0), ("onnx.GlobalAveragePool.1", 102, 0), ("onnx.GlobalLpPool.2", 192, 6)],
)
def test_over_everything(op: str, vector: int, functions: int) -> None:
    estimate = price(op, t(2, 3, 4, 4))
    assert shapes(estimate) == [(2, 3, 1, 1)]
    assert (estimate.vector_flops, estimate.transcendentals) == (vector, functions)


def test_maxima_put_back() -> None:
    x, places = t(1, 1, 2, 2), t(1, 1, 2, 2, dtype=INT64)
    back = price("onnx.MaxUnpool.11", x, places, kernel_shape=(2, 2), strides=(2, 2))
    assert (shapes(back), back.cost.vector_flops) == ([(1, 1, 4, 4)], 0)
    asked = t(4, dtype=INT64, value=(1, 1, 5, 5))
    assert shapes(price("onnx.MaxUnpool.11", x, places, asked, kernel_shape=(2, 2))) == [(1, 1, 5, 5)]
    (open_sizes,) = shapes(price("onnx.MaxUnpool.11", x, places, t(4, dtype=INT64), kernel_shape=(2, 2)))
    assert not any(isinstance(size, int) for size in open_sizes)


def test_published_resnet_50() -> None:
    """4.089 billion multiply-adds with the stride in the 3x3 convolutions, at one picture of 224 by 224."""
    macs: Dim = _macs(3, 64, 7, 112)
    width, size = 64, 56
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner = 64 * 2**stage
        for block in range(blocks):
            before = size
            size = size // 2 if stage and not block else size
            macs += (
                _macs(width, inner, 1, before)
                + _macs(inner, inner, 3, size)
                + _macs(inner, 4 * inner, 1, size)
            )
            macs += _macs(width, 4 * inner, 1, size) if not block else 0
            width = 4 * inner
    macs += price("onnx.Gemm.13", t(1, 2048), t(1000, 2048), t(1000), transB=1).cost.macs
    assert macs == 4_089_184_256


def _macs(channels: int, filters: int, kernel: int, size: int) -> Dim:
    """Multiply-adds of a convolution whose result has that size."""
    padded = size + kernel - 1
    return price(CONV, t(1, channels, padded, padded), t(filters, channels, kernel, kernel)).cost.macs
