"""Kernels of normalisations and their gradients, worked out by hand from what the CUDA kernels of PyTorch do."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.kernels.kernel import Rows, Strided
from tests.one_call import g
from tests.support import t
from tests.time.one_call import Made, backward, copied, forward, made, pointwise


def moved(kernels: list[Any]) -> list[Made]:
    """The same without the work, which is that of the operator's rule."""
    return [(family, variant, *rest) for family, variant, _, *rest in made(kernels)]


def norm(read: int, written: int, rows: Rows, variant: str = "") -> Made:
    return ("normalization", variant, read, written, rows)


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_norms_of_rows(name: str) -> None:
    rows, columns = 6 * 4, 64
    size, weight = 4 * rows * columns, 4 * columns
    given = (g(6, 4, columns), (columns,), g(columns), g(columns))[: 4 if name == "layer_norm" else 3]
    variant = "" if name == "layer_norm" else name
    read = size + weight * (len(given) - 2)
    assert moved(forward(f"aten.{name}.default", *given)) == [
        norm(read, size + 4 * 0, Rows(rows, columns), variant)
    ]
    assert moved(backward(f"aten.{name}.default", *given)) == [
        norm(2 * size, size, Rows(rows, columns), "layer_norm_backward"),
        ("reduction", f"{name}_weight", 2 * size, 0, Rows(columns, rows, False)),
    ]
    _, of_weight = backward(f"aten.{name}.default", *given)
    assert of_weight.vector_flops == 4 * rows * columns
    frozen = (given[0], (columns,), t(columns))
    assert len(backward(f"aten.{name}.default", *frozen)) == 1
    assert len(backward(f"aten.{name}.default", t(6, 4, columns), (columns,), g(columns))) == 1


def test_rows_that_do_not_align_take_their_moments_first() -> None:
    rows, columns = 6 * 4, 63
    size = 4 * rows * columns
    kernels = moved(forward("aten.layer_norm.default", t(6, 4, columns), (columns,), t(columns), t(columns)))
    read = size + 2 * 4 * columns
    assert kernels == [
        norm(read, 0, Rows(rows, columns), "moments"),
        norm(read, size, Rows(rows, columns), "applied"),
    ]
    turned = forward("aten.layer_norm.default", t(6, 64), (64,), t(64), t(64), strides={0: (1, 6)})
    assert [kernel.family for kernel in turned] == ["copy", "normalization"]


@pytest.mark.parametrize(
    ("rows", "columns", "parts"), [(65536, 4, 0), (65537, 4, 2048), (65568, 2111, 2049), (65568, 2112, 0)]
)
def test_very_many_rows_of_few_columns_are_added_up_in_parts_of_32(
    rows: int, columns: int, parts: int
) -> None:
    kernels = backward("aten.layer_norm.default", g(rows, columns), (columns,), g(columns), g(columns))
    expected: list[Made] = [
        ("reduction", "layer_norm_weight", 8 * rows * columns, 0, Rows(columns, rows, False))
    ]
    if parts:
        size = 4 * columns * parts
        rows_of_parts = Rows(columns, parts, False)
        first = ("elementwise", "", 8 * rows * columns, size, None)
        expected = [first, ("reduction", "outer", size, 0, rows_of_parts)]
        assert kernels[-1].vector_flops == size // 4
    assert moved(kernels[1:]) == expected


def test_group_norms() -> None:
    """Two images of eight channels in four groups: moments of 2 * 4 groups, factors of channels, their use."""
    elements = 2 * 8 * 4 * 4
    given = (g(2, 8, 4, 4), 4, g(8), g(8))
    assert moved(forward("aten.group_norm.default", *given)) == [
        norm(4 * elements, 0, Rows(2 * 4, 2 * 4 * 4), "moments_of_few"),  # of 32 elements each
        ("elementwise", "", 0, 0, None),
        ("elementwise", "strided", 4 * elements, 4 * elements, Strided(elements, 2, 4)),
    ]
    assert forward("aten.group_norm.default", *given)[-1].vector_flops == 2 * elements
    assert moved(backward("aten.group_norm.default", *given)) == [
        norm(8 * elements, 0, Rows(2 * 8, 4 * 4), "channel_sums"),
        ("elementwise", "", 0, 0, None),
        ("elementwise", "strided", 8 * elements, 4 * elements, Strided(elements, 2, 5)),
        ("elementwise", "", 0, 0, None),
    ]
    assert backward("aten.group_norm.default", *given)[2].vector_flops == 4 * elements
    assert len(backward("aten.group_norm.default", t(2, 8, 4, 4), 4, g(8), g(8))) == 2
    assert len(backward("aten.group_norm.default", g(2, 8, 4, 4), 4, t(8), t(8))) == 3
    turned = forward("aten.group_norm.default", *given, strides={0: (128, 1, 32, 8)})
    assert [kernel.family for kernel in turned] == [
        "copy",
        "normalization",
        "elementwise",
        "elementwise",
    ]


LAST = (128, 1, 32, 8)  # strides of four images of eight channels of 4 x 4 with the channels innermost
ELEMENTS = 4 * 8 * 4 * 4


def batch_norm(
    dtype: str, training: bool, steps: Any = None, shape: tuple[int, ...] = (4, 8, 4, 4)
) -> list[Any]:
    vectors = [g(8, dtype=dtype), g(8, dtype=dtype), t(8, dtype=dtype), t(8, dtype=dtype)]
    strides = {} if steps is None else {0: steps}
    x = g(*shape, dtype=dtype)
    return forward("aten.batch_norm.default", x, *vectors, training, 0.1, 1e-5, True, strides=strides)


def test_trained_batch_norms() -> None:
    size, rows = 4 * ELEMENTS, Rows(8, 4 * 4 * 4, False)
    # cuDNN reads a channel of 64 numbers once, where it stays on the chip, or twice
    assert moved(batch_norm("float32", True)) == [norm(size, size, rows, "batch_norm_training_once")]
    assert moved(batch_norm("float32", True, LAST)) == [
        norm(2 * size, size, rows, "batch_norm_training_last")
    ]
    large, pixels = (2, 8, 128, 129), 2 * 128 * 129  # 132,096 bytes of a channel
    size, rows_of_large = 4 * 8 * pixels, Rows(8, pixels, False)
    expected = norm(2 * size, size, rows_of_large, "batch_norm_training")
    assert moved(batch_norm("float32", True, shape=large)) == [expected]
    size, small = 2 * ELEMENTS, ("elementwise", "", 4 * 8, 4 * 8, None)
    vectors = 4 * 2 * 8
    moments = norm(size, 0, rows, "batch_norm_moments")  # PyTorch: a block for each channel
    # pairs of images of at most 32 pixels share a block
    applied = norm(size + vectors, size + vectors // 2, Rows(4 // 2 * 8, 4 * 4), "batch_norm")
    assert moved(batch_norm("bfloat16", True)) == [moments, small, applied]
    moments = norm(size, 0, rows, "batch_norm_moments_last")
    last = norm(size, size, Rows(4 * 4 * 4, 8), "batch_norm_applied_last")
    assert moved(batch_norm("bfloat16", True, LAST)) == [small, moments, small, last]


def test_batch_norms_of_trained_networks() -> None:
    size, vectors = 4 * ELEMENTS, 4 * 4 * 8
    assert moved(batch_norm("float32", False)) == [norm(size + vectors, size, Rows(2 * 8, 4 * 4), "batch_norm")]  # fmt: skip
    last = norm(size + vectors, size, Rows(4, 1), "batch_norm_pieces")  # of an image of 128 elements
    assert moved(batch_norm("float32", False, LAST)) == [last]
    (large,) = batch_norm("float32", False, shape=(4, 8, 8, 8))
    assert large.sizes == Rows(4 * 8, 8 * 8)
    (exact,) = batch_norm("float32", False, shape=(4, 8, 4, 8))
    assert exact.sizes == Rows(2 * 8, 4 * 8)
    (odd,) = batch_norm("float32", False, shape=(5, 8, 4, 8))
    assert odd.sizes == Rows(3 * 8, 4 * 8)
    (single,) = batch_norm("float32", False, shape=(4, 8))
    assert (single.sizes, single.variant) == (Rows(4, 8), "batch_norm_last")
    (pixel,) = batch_norm("float32", False, shape=(4, 8, 1, 1))
    assert (pixel.sizes, pixel.variant) == (Rows(4, 8), "batch_norm_last")
    cast, root, _ = made(batch_norm("bfloat16", False))
    assert cast == copied(2 * 8, 4 * 8, Strided(8, 1, 2, has_casts=True))
    assert root == pointwise(0, 4 * 8, 4 * 8)


def test_gradients_of_batch_norms_are_one_kernel() -> None:
    for training in (True, False):
        given = (g(4, 8, 4, 4), g(8), g(8), t(8), t(8), training, 0.1, 1e-5, True)
        size, rows = 4 * ELEMENTS, Rows(8, 4 * 4 * 4, False)
        expected = norm(2 * size, size, rows, "batch_norm_training_backward_once")
        if not training:  # PyTorch's own
            expected = norm(2 * size, size, rows, "batch_norm_backward")
        assert moved(backward("aten.batch_norm.default", *given)) == [expected]


def test_rows_of_features_are_channels_that_are_innermost() -> None:
    rows, size = Rows(8, 64, False), 4 * 64 * 8
    given = (g(64, 8), g(8), g(8), t(8), t(8), True, 0.1, 1e-5, True)
    assert norm(size, 0, rows, "batch_norm_moments_last") in moved(forward("aten.batch_norm.default", *given))
    assert moved(backward("aten.batch_norm.default", *given)) == [
        norm(2 * size, 0, rows, "batch_norm_sums_last"),
        norm(2 * size, size, Rows(64, 8), "batch_norm_gradient_last"),
    ]


def test_gradients_with_channels_last_are_sums_and_their_use() -> None:
    vectors = [g(8, dtype="bfloat16"), g(8, dtype="bfloat16"), t(8, dtype="bfloat16"), t(8, dtype="bfloat16")]
    given = (g(4, 8, 4, 4, dtype="bfloat16"), *vectors, True, 0.1, 1e-5, True)
    size = 2 * ELEMENTS
    assert moved(backward("aten.batch_norm.default", *given, strides={0: LAST})) == [
        norm(2 * size, 0, Rows(8, 4 * 4 * 4, False), "batch_norm_sums_last"),
        norm(2 * size, size, Rows(4 * 4 * 4, 8), "batch_norm_gradient_last"),
    ]


@pytest.mark.parametrize(
    ("shape", "axis", "rows", "variant"),
    [((8, 1), 0, Rows(8, 6), "weight_norm"), ((1, 6), 1, Rows(6, 8, False), "weight_norm_last")],
)
def test_weight_norms_scale_slices(shape: tuple[int, int], axis: int, rows: Rows, variant: str) -> None:
    expected = ("normalization", variant, 2 * 8 * 6, 4 * 8 * 6, 4 * 8 * 6, rows)
    assert made(forward("aten._weight_norm.default", g(8, 6), g(*shape), axis)) == [expected]
    assert made(backward("aten._weight_norm.default", g(8, 6), g(*shape), axis)) == [expected]
