"""Kernels of patches as columns, and of convolutions whose groups run one by one, by hand."""

from __future__ import annotations

import pytest

from graphflops.kernels.kernel import DIRECT, Convolution, Kernel, Rows, Windows
from graphflops.time.schedule import forward_seconds
from tests.one_call import g
from tests.support import t
from tests.time.one_call import backward, forward, one_call

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


def looped(dtype: str, taps: int, *, last: bool = False, variant: str = "") -> Kernel:
    sizes = Convolution(
        *(2, 64, 64, (8, 8), (8, 8), (taps, taps)), groups=4, is_looped=True, channels_last=last
    )
    return Kernel("convolution", dtype, 1, 0, 1, 1, sizes, variant=variant)


@pytest.mark.parametrize(
    ("kernel", "launches"),
    [
        (looped("bfloat16", 3), 4 * 4),  # operand, weight, product and result of each group
        (looped("bfloat16", 3, last=True), 4 * 3),  # the weight lies in order
        (looped("bfloat16", 1), 4 * 3),  # and so does one of single positions
        (looped("float32", 3), 4 * 4),
        (looped("float32", 1), 4),
        (looped("bfloat16", 1, variant=DIRECT), 4),
        (
            Kernel("convolution", "bfloat16", sizes=Convolution(2, 64, 64, (8, 8), (8, 8), (3, 3), groups=4)),
            1,
        ),
        (Kernel("elementwise", "bfloat16"), 1),
    ],
)
def test_the_cpu_starts_the_kernels_of_each_group(kernel: Kernel, launches: int) -> None:
    assert kernel.launches == launches
    costs = {"forward.convolution": 20.0, "forward.further_kernel": 7.0, "forward.recording": 0.0}
    operator = one_call("aten.conv2d.default", t(2, 64, 8, 8), t(64, 16, 3, 3), None, 1, 1, 1, 4).operator
    seconds = forward_seconds(costs, operator, [kernel, kernel], records=False)
    assert seconds == 20.0 + 7.0 * (2 * launches - 1)
