"""Kernels of patches as columns, by hand."""

from __future__ import annotations

from graphflops.kernels.kernel import Rows, Windows
from tests.one_call import g
from tests.support import t
from tests.time.one_call import backward, forward

IM2COL = "aten.im2col.default"
X, COLUMNS = 4 * 8 * 10 * 10, 4 * 8 * 9 * 64  # bytes of an image, and of its 64 patches of 3 x 3


def test_each_image_is_a_kernel_that_copies_its_patches() -> None:
    kernels = forward(IM2COL, t(2, 8, 10, 10), (3, 3), (1, 1), (0, 0), (1, 1))
    assert [(k.variant, k.read_bytes, k.written_bytes, k.sizes) for k in kernels] == [
        ("im2col", X, COLUMNS, Rows(1, 5, is_inner=False))  # 9 to the power of 0.75
    ] * 2
    (added,) = backward(IM2COL, g(2, 8, 10, 10), (3, 3), (1, 1), (0, 0), (1, 1))
    assert added.sizes == Windows(2 * 8 * 100, 2 * 8 * 9 * 64 / (2 * 8 * 100))
    assert (added.read_bytes, added.written_bytes) == (2 * COLUMNS, 2 * X)


def test_a_batch_of_any_size_has_a_list_of_kernels_that_ends() -> None:
    kernels = forward(IM2COL, t(2**31, 8, 10, 10), (3, 3), (1, 1), (0, 0), (1, 1))
    assert len(kernels) == 1024
    assert kernels[0].sizes == Rows(1, 5 * 2**21, is_inner=False)  # of 2^31 / 1,024 images
    assert kernels[0].written_bytes == COLUMNS * 2**21


def test_columns_are_added_up_by_one_kernel() -> None:
    arguments = ((10, 10), (3, 3), (1, 1), (0, 0), (1, 1))
    (kernel,) = forward("aten.col2im.default", t(2, 72, 64), *arguments)
    assert (kernel.variant, kernel.sizes) == ("col2im", Windows(2 * 8 * 100, 5.76))
    copies = backward("aten.col2im.default", g(2, 72, 64), *arguments)
    assert [(k.variant, k.written_bytes) for k in copies] == [("im2col", COLUMNS)] * 2
