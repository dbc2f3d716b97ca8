"""Losses, transforms, windows, pictures."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.dims import Expr, floor_div, symbol
from graphflops.errors import RuleError, ShapeError
from graphflops.tensor import FLOAT64, INT64, TensorType
from tests.support import price, shapes, t


def size(value: int) -> TensorType:
    """A size as an operand."""
    return t(dtype=INT64, value=value)


@pytest.mark.parametrize("reduction, out, each", [("none", (3, 6), 2), ("sum", (), 4), ("mean", (), 4)])
def test_picked_scores(reduction: str, out: tuple[int, ...], each: int) -> None:
    # a sum adds up the losses, and the weights picked with them
    x, target = t(3, 5, 6), t(3, 6, dtype=INT64)
    estimate = price("onnx.NegativeLogLikelihoodLoss.13", x, target, reduction=reduction)
    assert (shapes(estimate), estimate.vector_flops) == ([out], each * 18 + (reduction == "mean"))
    whole = price(
        "onnx.SoftmaxCrossEntropyLoss.13", x, target, t(5), reduction=reduction, outputs=(True, True)
    )
    assert (shapes(whole), whole.transcendentals) == ([out, x.shape], 90 + 18)
    with pytest.raises(RuleError, match="unknown reduction"):
        price("onnx.NegativeLogLikelihoodLoss.13", x, target, reduction="most")


@pytest.mark.parametrize(
    "x, settings, out, work",
    [
        ((2, 1024, 2), {}, (2, 1024, 2), 2 * 51_200),
        ((2, 1024, 1), {}, (2, 1024, 2), 2 * 25_600),
        ((2, 1024, 1), {"onesided": 1}, (2, 513, 2), 2 * 25_600),
        ((2, 513, 2), {"onesided": 1, "inverse": 1}, (2, 1024, 1), 2 * 25_600),
    ],
)
def test_fourier_transform_counts_5_n_log_n(x: Any, settings: dict[str, int], out: Any, work: int) -> None:
    for estimate in (price("onnx.DFT.20", t(*x), **settings), price("onnx.DFT.17", t(*x), **settings)):
        assert (shapes(estimate), estimate.vector_flops, estimate.matrix_flops) == ([out], work, 0)


def test_which_axis_and_how_long() -> None:
    x = t(8, 3, 5, 2)
    assert shapes(price("onnx.DFT.20", x, size(16), size(0))) == [(16, 3, 5, 2)]
    assert shapes(price("onnx.DFT.20", x)) == [(8, 3, 5, 2)]
    assert shapes(price("onnx.DFT.17", x, size(4), axis=1)) == [(8, 4, 5, 2)]
    assert shapes(price("onnx.DFT.20", t("b", "n", 1), onesided=1)) == [
        (symbol("b"), floor_div(symbol("n"), 2) + 1, 2)
    ]
    with pytest.raises(RuleError, match="depends on data"):
        price("onnx.DFT.20", x, None, t(dtype=INT64))


@pytest.mark.parametrize("parts, work", [(1, 5 * 8 * 3 // 2), (2, 5 * 8 * 3)])
def test_whether_numbers_are_complex_may_be_open(parts: int, work: int) -> None:
    """A transform of 8 is 5 * 8 * log2(8), half of it for real numbers."""
    whole, frames = (
        price("onnx.DFT.20", t(8, "p")),
        price("onnx.STFT.17", t(1, 8, "p"), size(8), None, size(8)),
    )
    for estimate in (whole, frames):
        assert isinstance(estimate.vector_flops, Expr)
        assert estimate.vector_flops.substitute({"p": parts}) == work


def test_frames() -> None:
    window = t(16)
    estimate = price("onnx.STFT.17", t(1, 128, 1), size(8), window, size(16))
    assert (shapes(estimate), estimate.vector_flops) == ([(1, 15, 9, 2)], 15 * (16 + 5 * 16 * 4 // 2))
    assert shapes(price("onnx.STFT.17", t(1, 128, 2), size(8), window, onesided=0)) == [(1, 15, 16, 2)]
    # as ONNX's reference and onnxruntime compute, though half the spectrum does not tell the other half
    assert shapes(price("onnx.STFT.17", t(1, 128, 2), size(8), window)) == [(1, 15, 9, 2)]
    symbolic = price("onnx.STFT.17", t("b", "n", 1), size(8), window)
    assert shapes(symbolic) == [(symbol("b"), floor_div(symbol("n"), 8) - 1, 9, 2)]
    with pytest.raises(ShapeError, match="129 samples"):
        price("onnx.STFT.17", t(1, 128, 1), size(8), None, size(129))


@pytest.mark.parametrize("name, each, cosines", [("Hann", 3, 1), ("Hamming", 3, 1), ("Blackman", 6, 2)])
def test_windows(name: str, each: int, cosines: int) -> None:
    estimate = price(f"onnx.{name}Window.17", size(10), output_datatype=11)
    assert estimate.out == (t(10, dtype=FLOAT64),)
    assert (estimate.vector_flops, estimate.transcendentals) == (each * 10, cosines * 10)
    (unknown,) = shapes(price(f"onnx.{name}Window.17", t(dtype=INT64)))
    assert isinstance(unknown[0], Expr)


def test_a_batch_of_real_signals_may_leave_out_the_axis_of_parts() -> None:
    three, two = (price("onnx.STFT.17", t(*shape), size(8), t(16)) for shape in ((1, 128, 1), (1, 128)))
    assert (two.out, two.vector_flops) == (three.out, three.vector_flops)


def test_mel_scale() -> None:
    hertz = t()
    assert shapes(price("onnx.MelWeightMatrix.17", size(8), size(16), size(8192), hertz, hertz)) == [(9, 8)]


@pytest.mark.parametrize("mode, taps", [("bilinear", 4), ("linear", 4), ("nearest", 0), ("cubic", 16)])
def test_points_of_a_grid(mode: str, taps: int) -> None:
    estimate = price("onnx.GridSample.20", t(1, 3, 4, 4), t(1, 6, 6, 2), mode=mode)
    assert (shapes(estimate), estimate.vector_flops) == ([(1, 3, 6, 6)], 2 * taps * 108 + (8 + taps) * 36)


def test_an_affine_grid() -> None:
    asked = t(4, dtype=INT64, value=(2, 3, 5, 6))
    assert shapes(price("onnx.AffineGrid.20", t(2, 2, 3), asked)) == [(2, 5, 6, 2)]
    (unknown,) = shapes(price("onnx.AffineGrid.20", t(2, 3, 4), t(5, dtype=INT64)))
    assert (len(unknown), unknown[0], unknown[-1]) == (5, 2, 3)
    for theta, axes in ((t(2, 2, 3), 2), (t(2, 3, 4), 3)):  # the matrix tells how many axes
        (unknown,) = shapes(price("onnx.AffineGrid.20", theta, t("n", dtype=INT64)))
        assert (len(unknown), unknown[-1]) == (axes + 2, axes)
    with pytest.raises(RuleError, match="how many axes the grid has depends on data"):
        price("onnx.AffineGrid.20", t(2, "a", "b"), t("n", dtype=INT64))


def test_boxes() -> None:
    x, rois = t(1, 4, 32, 32), t("n", 5)
    n = symbol("n")
    aligned = price(
        *("onnx.RoiAlign.16", x, t("n", 4), t("n", dtype=INT64)),
        output_height=7,
        output_width=7,
        sampling_ratio=2,
    )
    assert (shapes(aligned), aligned.vector_flops) == ([(n, 4, 7, 7)], (8 * 4 + 1) * 196 * n)
    assert shapes(price("onnx.MaxRoiPool.1", x, rois, pooled_shape=(3, 2))) == [(n, 4, 3, 2)]
