"""Short-time Fourier transforms."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.dims import symbol
from graphflops.errors import ShapeError
from graphflops.tensor import TensorType
from tests.support import price, shapes, t

s = symbol("s")
REAL = 5 * 16 * 4 // 2  # one transform of 16 real samples


@pytest.mark.parametrize(
    ("op", "arguments", "named", "shape", "dtype", "flops"),
    [
        (
            "aten.stft.default",
            (t(2, 64), 16),
            {"return_complex": True},
            (2, 9, 13),
            "complex64",
            2 * 13 * REAL,
        ),
        ("aten.stft.default", (t(64), 16, 8), {"return_complex": False}, (9, 7, 2), "float32", 7 * REAL),
        (
            "aten.stft.default",
            (t(2, 64), 16, 4, 16, t(16)),
            {"return_complex": True},
            (2, 9, 13),
            "complex64",
            2 * 13 * (REAL + 16),
        ),
        ("aten.stft.default", (t(64), 16), {"onesided": False}, (16, 13, 2), "float32", 13 * REAL),
        ("aten.stft.default", (t(64, dtype="complex64"), 16), {}, (16, 13), "complex64", 13 * 320),
        # frames start where a window of 8 fits, not one of 16
        (
            "aten.stft.default",
            (t(64), 16, 4, 8, t(8)),
            {"align_to_window": True},
            (9, 15, 2),
            "float32",
            15 * (REAL + 16),
        ),
        (
            "aten.stft.center",
            (t(2, 64), 16),
            {"return_complex": True},
            (2, 9, 17),
            "complex64",
            2 * 17 * REAL,
        ),
        ("aten.stft.center", (t(64), 15), {}, (8, 22, 2), "float32", 22 * 146),  # hop 3; 5*15*3.9069 = 293.02
        ("aten.stft.center", (t(64), 16), {"center": False}, (9, 13, 2), "float32", 13 * REAL),
        # per frame a transform, windowed and added up (32); the envelope (12 * 32) once; then divided
        (
            "aten.istft.default",
            (t(2, 9, 12, dtype="complex64"), 16),
            {},
            (2, 44),
            "float32",
            2 * (12 * (REAL + 32) + 44) + 384,
        ),
        (
            "aten.istft.default",
            (t(9, 12, dtype="complex64"), 16),
            {"center": False},
            (60,),
            "float32",
            12 * (REAL + 32) + 60 + 384,
        ),
        (
            "aten.istft.default",
            (t(9, 12, dtype="complex64"), 16),
            {"length": 40},
            (40,),
            "float32",
            12 * (REAL + 32) + 40 + 384,
        ),
        ("aten.istft.default", (t(9, 12, 2), 16, 4), {}, (44,), "float32", 12 * (REAL + 32) + 44 + 384),
        (
            "aten.istft.default",
            (t(16, 12, dtype="complex64"), 16),
            {"onesided": False, "return_complex": True},
            (44,),
            "complex64",
            12 * (320 + 32) + 44 + 384,
        ),
    ],
)
def test_frames(op: str, arguments: Any, named: Any, shape: Any, dtype: str, flops: int) -> None:
    priced = price(op, *arguments, **named)
    (out,) = priced.out
    assert isinstance(out, TensorType)
    assert (out.shape, out.dtype.name, priced.vector_flops) == (shape, dtype, flops)


def test_a_symbolic_signal() -> None:
    priced = price("aten.stft.default", t(2, "s"), 16, 4, return_complex=True)
    assert shapes(priced) == [(2, 9, (s - 16) // 4 + 1)]
    assert priced.vector_flops == 2 * REAL * ((s - 16) // 4 + 1)


def test_a_signal_shorter_than_a_frame() -> None:
    with pytest.raises(ShapeError, match="a frame takes 16 samples of a signal of 10"):
        price("aten.stft.default", t(10), 16)


def test_a_frame_is_no_longer_than_the_signal() -> None:
    assert shapes(price("aten.stft.default", t(64), 64)) == [(33, 1, 2)]
    with pytest.raises(ShapeError, match="65 samples of a signal of 64"):
        price("aten.stft.default", t(64), 65)
