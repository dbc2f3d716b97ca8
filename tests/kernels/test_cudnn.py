"""Workspaces of cuDNN's convolutions: predicted, against bytes that an H200 measured (PyTorch 2.11, cuDNN 9)."""

from __future__ import annotations

import pytest

from graphflops.devices import HOPPER
from graphflops.dims import Dim, symbol
from graphflops.kernels import cudnn
from graphflops.kernels.convolution import Convolution, Layout
from graphflops.tensor import BFLOAT16, FLOAT16, FLOAT32, DType, TensorType

HEADER = 700  # bytes of cuDNN's own at most, which are not predicted
Shape = tuple[int, ...]


def convolution(
    dtype: DType,
    x: Shape,
    weight: Shape,
    out: Shape,
    groups: int = 1,
    stride: int = 1,
    padding: int | None = None,
) -> Convolution:
    axes = len(x) - 2
    padding = weight[-1] // 2 if padding is None else padding
    is_transposed = weight[0] == x[1] != out[1]
    types = (TensorType(shape, dtype) for shape in (x, weight, out))
    return Convolution(*types, (stride,) * axes, (padding,) * axes, groups, is_transposed)


def workspace(conv: Convolution, phase: str, is_last: bool = False) -> Dim:
    return cudnn.workspace(conv, phase, Layout(is_last, weight=is_last), HOPPER)


FORWARD = [
    # Twelve groups of 24 channels in one kernel, each filled up to 32.
    (BFLOAT16, (8, 288, 28, 28), (288, 24, 3, 3), (8, 288, 28, 28), 12, 1, 9_855_123),
    (FLOAT32, (2, 576, 28, 28), (576, 24, 3, 3), (2, 576, 28, 28), 24, 1, 10_518_675),
    # Sixteen groups of two channels in one kernel, each filled up to four, the fewest that it takes.
    (FLOAT32, (8, 32, 28, 28), (32, 2, 3, 3), (8, 32, 28, 28), 16, 1, 3_220_496),
    # Sixteen groups of 168 channels one by one, eight at a time: half of operand, weight and result.
    (BFLOAT16, (8, 2688, 14, 14), (2688, 168, 3, 3), (8, 2688, 14, 14), 16, 1, 12_493_952),
    # Two groups of 232 channels and 464 results, which do not share a kernel.
    (BFLOAT16, (8, 464, 11, 11), (928, 232, 3, 3), (8, 928, 11, 11), 2, 1, 6_570_272),
    # Six groups of 12 channels, filled up to 16.
    (BFLOAT16, (8, 72, 19, 19), (72, 12, 3, 3), (8, 72, 19, 19), 6, 1, 1_136_656),
    # A kernel that writes float32 results in row-major order, and one that does not.
    (FLOAT32, (8, 56, 12, 12), (288, 56, 3, 3), (8, 288, 12, 12), 1, 1, 838_672),
    (FLOAT32, (8, 128, 28, 28), (128, 128, 3, 3), (8, 128, 28, 28), 1, 1, 3_211_264 * 2 + 589_824),
    # Copies of operand, weight and result: half as many bytes would be a sum in parts of the result in float32.
    (BFLOAT16, (1, 512, 7, 7), (512, 512, 3, 3), (1, 512, 7, 7), 1, 1, 4_818_960),
    # Products of one image: sums over 512 and 2048 channels in eight and sixteen parts, over 256 in one.
    (BFLOAT16, (1, 512, 14, 14), (1024, 512, 1, 1), (1, 1024, 14, 14), 1, 1, 6_422_784),
    (BFLOAT16, (1, 2048, 7, 7), (512, 2048, 1, 1), (1, 512, 7, 7), 1, 1, 1_605_888),
    (BFLOAT16, (1, 256, 7, 7), (1024, 256, 1, 1), (1, 1024, 7, 7), 1, 1, 0),
    # First layers: three channels padded to eight where the kernel is large, none where it is small.
    (BFLOAT16, (32, 3, 112, 112), (64, 3, 7, 7), (32, 64, 56, 56), 1, 2, 19_317_776),
    (BFLOAT16, (8, 3, 224, 224), (32, 3, 3, 3), (8, 32, 112, 112), 1, 2, 0),
]


@pytest.mark.parametrize(("dtype", "x", "weight", "out", "groups", "stride", "measured"), FORWARD)
def test_forward(
    dtype: DType, x: Shape, weight: Shape, out: Shape, groups: int, stride: int, measured: int
) -> None:
    predicted = workspace(convolution(dtype, x, weight, out, groups, stride), "forward")
    assert isinstance(predicted, int)
    assert measured - HEADER <= predicted <= measured


PATCHES = [
    # Three channels padded to eight where a patch has 32 x 32 positions, even of one image, or there are many results.
    ((1, 3, 224, 224), (384, 3, 32, 32), (1, 384, 7, 7), 7_131_904),
    ((32, 3, 384, 384), (64, 3, 32, 32), (32, 64, 12, 12), 77_136_288),
    ((8, 3, 224, 224), (1024, 3, 8, 8), (8, 1024, 28, 28), 20_316_176),
    ((2, 3, 384, 384), (96, 3, 16, 16), (2, 96, 24, 24), 0),
    # Four channels, of any patch that is not small.
    ((16, 4, 56, 56), (64, 4, 16, 16), (16, 64, 3, 3), 1_083_408),
    ((1, 4, 112, 112), (64, 4, 8, 8), (1, 64, 14, 14), 291_344),
    ((8, 4, 224, 224), (384, 4, 4, 4), (8, 384, 56, 56), 0),
]


@pytest.mark.parametrize(("x", "weight", "out", "measured"), PATCHES)
def test_patches(x: Shape, weight: Shape, out: Shape, measured: int) -> None:
    conv = convolution(BFLOAT16, x, weight, out, stride=weight[-1], padding=0)
    predicted = workspace(conv, "forward")
    assert isinstance(predicted, int)
    assert measured - HEADER <= predicted <= measured


def test_the_gradient_of_the_operand_of_one_image_is_summed_in_parts() -> None:
    conv = convolution(BFLOAT16, (1, 512, 14, 14), (1024, 512, 1, 1), (1, 1024, 14, 14))
    assert workspace(conv, "input_gradient") == 16 * 512 * 196 * 4  # measured: 6,422,784


def test_channels_last_are_padded() -> None:
    """21 channels of the result are 24, and so the weight's: 16 * 19 * 19 * 24 and 320 * 24 * 4 * 4 elements."""
    conv = convolution(BFLOAT16, (16, 320, 16, 16), (320, 21, 4, 4), (16, 21, 19, 19), padding=0)
    assert conv.transposed
    assert workspace(conv, "forward", is_last=True) == 523_008  # measured: 523,024


def test_channels_last_of_packed_groups_are_padded_where_they_are_fewer() -> None:
    """Groups of 8 channels with 16 results: operand and weight with 16 channels a group; the result stays as it is."""
    conv = convolution(FLOAT16, (16, 64, 96, 96), (128, 8, 3, 3), (16, 128, 96, 96), 8)
    operand, weight = 2 * 16 * 128 * 96 * 96, 2 * 128 * 16 * 9
    assert workspace(conv, "forward", is_last=True) == operand + weight  # 37,785,600; measured: 37,785,747


WEIGHTS = [
    # A product at 784 positions: a float32 gradient for each of 64 images.
    (BFLOAT16, (64, 1024, 28, 28), (22, 1024, 1, 1), (64, 22, 28, 28), 1, False, 5_767_440),
    # At 64 positions too: 64 * 52 * 116 * 4.
    (BFLOAT16, (64, 116, 8, 8), (52, 116, 1, 1), (64, 52, 8, 8), 1, False, 1_544_192),
    # Thirteen more parts of a small weight beside the copies.
    (BFLOAT16, (2, 64, 256, 170), (64, 64, 3, 3), (2, 64, 256, 170), 1, False, 24_273_575),
    # Products of one image: four parts of the gradient in float32, and one.
    (BFLOAT16, (1, 256, 14, 14), (224, 256, 1, 1), (1, 224, 14, 14), 1, False, 917_760),
    (BFLOAT16, (1, 448, 10, 10), (128, 448, 1, 1), (1, 128, 10, 10), 1, False, 229_376),
    # Groups of 16 and of 8 channels in one kernel, which copies operand, weight and the result's gradient.
    (BFLOAT16, (8, 384, 32, 32), (384, 16, 3, 3), (8, 384, 32, 32), 24, False, 12_693_520),
    (BFLOAT16, (1, 512, 36, 36), (512, 8, 3, 3), (1, 512, 36, 36), 64, False, 2_727_952),
    # With channels last, float32 is rounded to TF32: both once more.
    (FLOAT32, (1, 256, 20, 20), (256, 8, 3, 3), (1, 256, 20, 20), 32, True, 819_216),
    # A depthwise weight with channels last: eight parts for each image, 72 channels as 96.
    (BFLOAT16, (4, 72, 21, 16), (72, 1, 3, 3), (4, 72, 21, 16), 72, True, 110_592),
]


@pytest.mark.parametrize(("dtype", "x", "weight", "out", "groups", "is_last", "measured"), WEIGHTS)
def test_gradients_of_weights(
    dtype: DType, x: Shape, weight: Shape, out: Shape, groups: int, is_last: bool, measured: int
) -> None:
    predicted = workspace(convolution(dtype, x, weight, out, groups), "weight_gradient", is_last)
    assert isinstance(predicted, int)
    assert measured - HEADER <= predicted <= measured


def test_the_operands_gradient_is_computed_before_the_weights_has_memory() -> None:
    """Both need copies of all three tensors; the weight's gradient is there during the second only."""
    conv = convolution(BFLOAT16, (4, 128, 32, 32), (128, 128, 3, 3), (4, 128, 32, 32))
    image, weight = 2 * 4 * 128 * 32 * 32, 2 * 128 * 128 * 9
    strides = (128 * 32 * 32, 32 * 32, 32, 1)
    assert [*cudnn.gradient_bytes(conv, Layout(), strides, HOPPER)] == [2 * image + weight] * 2
    assert cudnn.backward_bytes(conv, Layout(), strides, HOPPER) == 2 * image + weight


def test_the_batch_may_be_open() -> None:
    batch = symbol("b")
    x = TensorType((batch, 64, 56, 56), BFLOAT16)
    weight = TensorType((64, 64, 3, 3), BFLOAT16)
    conv = Convolution(x, weight, x, (1, 1), (1, 1), 1, False)
    assert workspace(conv, "forward") == 2 * x.nbytes + weight.nbytes
