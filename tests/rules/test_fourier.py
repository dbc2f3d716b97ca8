"""Fourier transforms: sizes, types and 5*n*log2(n)."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.dims import evaluate, symbol
from graphflops.errors import ShapeError
from graphflops.tensor import TensorType
from tests.support import price, shapes, t

n, b = symbol("n"), symbol("b")


def test_fft_counts_5_n_log_n() -> None:
    priced = price("aten.fft_fft.default", t(1024, dtype="complex64"))
    assert priced.vector_flops == 5 * 1024 * 10 == 51_200
    assert priced.matrix_flops == 0


@pytest.mark.parametrize(
    ("op", "arguments", "shape", "dtype", "flops"),
    [
        ("aten.fft_fft.default", (t(3, 8),), (3, 8), "complex64", 3 * 5 * 8 * 3),
        ("aten.fft_ifft.default", (t(3, 8, dtype="complex128"),), (3, 8), "complex128", 3 * 5 * 8 * 3),
        ("aten.fft_fft.default", (t(3, 8, dtype="int64"), 16), (3, 16), "complex64", 3 * 5 * 16 * 4),
        ("aten.fft_fft.default", (t(4, 8), None, 0), (4, 8), "complex64", 8 * 5 * 4 * 2),
        ("aten.fft_fft.default", (t(400),), (400,), "complex64", 17287),  # 5 * 400 * 8.64386
        ("aten.fft_rfft.default", (t(3, 8),), (3, 5), "complex64", 3 * 60),
        ("aten.fft_rfft.default", (t(3, 7),), (3, 4), "complex64", 3 * 49),  # 5 * 7 * 2.80735 = 98.26
        ("aten.fft_ihfft.default", (t(3, 8, dtype="float64"),), (3, 5), "complex128", 3 * 60),
        ("aten.fft_irfft.default", (t(3, 5, dtype="complex64"),), (3, 8), "float32", 3 * 60),
        ("aten.fft_hfft.default", (t(3, 5), 16), (3, 16), "float32", 3 * 160),
        ("aten.fft_fft2.default", (t(3, 4, 8),), (3, 4, 8), "complex64", 24 * 5 * 4 * 2 + 12 * 5 * 8 * 3),
        ("aten.fft_fftn.default", (t(4, 8),), (4, 8), "complex64", 8 * 40 + 4 * 120),
        ("aten.fft_fftn.default", (t(4, 8), (16,)), (4, 16), "complex64", 4 * 5 * 16 * 4),
        ("aten.fft_fftn.default", (t(4, 8), (-1, 16), (0, 1)), (4, 16), "complex64", 16 * 40 + 4 * 320),
        ("aten.fft_rfft2.default", (t(4, 8),), (4, 5), "complex64", 4 * 60 + 5 * 40),
        ("aten.fft_irfftn.default", (t(4, 5, dtype="complex64"),), (4, 8), "float32", 5 * 40 + 4 * 60),
        (
            "aten._fft_c2c.default",
            (t(4, 8, dtype="complex64"), (0, 1), 0, True),
            (4, 8),
            "complex64",
            320 + 480,
        ),
        ("aten._fft_r2c.default", (t(4, 8), (1,), 0, True), (4, 5), "complex64", 4 * 60),
        ("aten._fft_r2c.default", (t(4, 8), (1,), 0, False), (4, 8), "complex64", 4 * 60),
        ("aten._fft_c2r.default", (t(4, 5, dtype="complex64"), (1,), 0, 8), (4, 8), "float32", 4 * 60),
        ("aten.fft_fftshift.default", (t(4, 8), (0,)), (4, 8), "float32", 0),
        ("aten.fft_fftfreq.default", (8,), (8,), "float32", 8),
        ("aten.fft_rfftfreq.default", (8,), (5,), "float32", 5),
    ],
)
def test_transforms(op: str, arguments: Any, shape: Any, dtype: str, flops: int) -> None:
    priced = price(op, *arguments)
    (out,) = priced.out
    assert isinstance(out, TensorType)
    assert (out.shape, out.dtype.name, priced.vector_flops) == (shape, dtype, flops)


def test_prims_name_their_arguments() -> None:
    assert shapes(price("prims.fft_r2c.default", t(4, 8), dim=(1,), onesided=True)) == [(4, 5)]
    assert shapes(price("prims.fft_c2c.default", t(4, 8, dtype="complex64"), dim=(1,), forward=True)) == [
        (4, 8)
    ]
    assert shapes(price("prims.fft_c2r.default", t(4, 5, dtype="complex64"), dim=(1,), last_dim_size=9)) == [
        (4, 9)
    ]


def test_a_symbolic_batch_is_a_factor() -> None:
    assert price("aten.fft_fft.default", t("b", 1024)).vector_flops == 51_200 * b


@pytest.mark.parametrize("size", [8, 1000, 1024])
def test_a_symbolic_length_is_the_same_number_at_a_value(size: int) -> None:
    for op in ("aten.fft_fft.default", "aten.fft_rfft.default"):
        symbolic = price(op, t(3, "n"))
        assert evaluate(symbolic.vector_flops, {"n": size}) == price(op, t(3, size)).vector_flops
    assert shapes(price("aten.fft_rfft.default", t(3, "n"))) == [(3, n // 2 + 1)]
    assert shapes(price("aten.fft_irfft.default", t(3, "n", dtype="complex64"))) == [(3, 2 * n - 2)]


def test_an_operand_cut_short_is_read_once() -> None:
    cost = price("aten.fft_fft.default", t(3, 8), 4).cost
    assert (cost.read_bytes, cost.written_bytes) == (4 * 24, 8 * 12)


def test_axes_and_sizes_must_match() -> None:
    with pytest.raises(ShapeError, match="2 sizes for 1 axes"):
        price("aten.fft_fftn.default", t(4, 8), (4, 4), (1,))
    with pytest.raises(ShapeError, match="no axis to transform"):
        price("aten._fft_r2c.default", t(4), (), 0, True)
