"""Which convolutions run as kernels of their own, by the facts that decide it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from graphflops.kernels.call import ConcreteCall
from graphflops.kernels.convolution import power_of_two, up
from graphflops.kernels.cudnn import Problem
from graphflops.kernels.kernel import Rows, Strided
from graphflops.kernels.lower import forward_kernels
from tests.one_call import g
from tests.support import t
from tests.time.one_call import backward, forward, made, one_call, pointwise


def channels_last(*shape: int) -> tuple[int, ...]:
    _, channels, height, width = shape
    return (channels * height * width, 1, width * channels, channels)


def problem(
    x: tuple[int, ...], weight: tuple[int, ...], *rest: Any, last: bool = False, dtype: str = "bfloat16"
) -> Problem:
    strides = {0: channels_last(*x), 1: channels_last(*weight)} if last else {}
    word = f"conv{len(x) - 2}d"
    operands = (t(*x, dtype=dtype), t(*weight, dtype=dtype))
    found = Problem.of(one_call(f"aten.{word}.default", *operands, None, *rest, strides=strides))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("filters", "last", "algorithm"),
    [(16, True, "grouped_direct"), (16, False, ""), (8, True, ""), (8, False, "")],
)
def test_channels_with_several_filters_have_a_kernel_of_their_own_if_they_are_last(
    filters: int, last: bool, algorithm: str
) -> None:
    found = problem((2, 8, 8, 8), (filters, 1, 3, 3), (1, 1), (1, 1), (1, 1), 8, last=last)
    assert found.is_channels_last is last
    assert found.algorithm == algorithm


@pytest.mark.parametrize(("dilation", "expected"), [((1, 1), False), ((1, 2), True)])
def test_windows_whose_positions_lie_apart(dilation: tuple[int, int], expected: bool) -> None:
    found = problem((2, 8, 16, 17), (8, 1, 3, 3), (1, 1), (2, 2), dilation, 8)
    assert found.sizes.is_dilated is expected


def test_what_each_pass_reads_and_writes() -> None:
    found = problem((2, 8, 6, 6), (16, 8, 3, 3))
    x, weight, out = 2 * 2 * 8 * 36, 2 * 16 * 8 * 9, 2 * 2 * 16 * 16
    phases = {
        "forward": (x + weight, out),
        "input_gradient": (out + weight, x),
        "weight_gradient": (out + x, weight),
    }
    for phase, moved in phases.items():
        kernels = replace(found, phase=phase).kernels(1)
        assert [(k.read_bytes, k.written_bytes) for k in kernels if k.family == "convolution"] == [moved]


def test_a_bias_is_added_to_each_channel_by_a_kernel_of_its_own() -> None:
    for axes in (1, 2, 3):
        x, weight = (2, 8, *[6] * axes), (16, 8, *[1] * axes)
        *_, added = forward(f"aten.conv{axes}d.default", t(*x), t(*weight), t(16))
        out = 2 * 16 * 6**axes
        assert made([added]) == [pointwise(0, 4 * (out + 16), 4 * out, Strided(out, 3, 3))]


@pytest.mark.parametrize(
    ("side", "stride", "expected"), [(4, 4, True), (4, 2, False), (3, 1, False), (1, 1, False), (1, 2, False)]
)
def test_windows_that_do_not_overlap_are_patches(side: int, stride: int, expected: bool) -> None:
    found = problem((2, 8, 16, 16), (16, 8, side, side), (stride, stride))
    assert found.sizes.is_patches is expected


def test_numbers_by_which_kernels_are_chosen() -> None:
    assert [up(size, 8) for size in (1, 8, 9)] == [8, 8, 16]
    assert [power_of_two(size) for size in (1, 2, 3, 4, 5)] == [1, 2, 4, 4, 8]
    for channels, aligned in ((1, 1), (2, 2), (6, 2), (12, 4), (8, 8), (16, 8)):
        assert problem((2, channels, 6, 6), (16, channels, 3, 3)).conv.channels_align == aligned
    for dtype, aligned in (("bfloat16", 8), ("float32", 4), ("float64", 2)):
        assert problem((2, 8, 6, 6), (16, 8, 3, 3), dtype=dtype).conv.alignment == aligned


def test_conversions_of_images() -> None:
    """196 positions are seven tiles of 32; one channel is filled up to eight."""
    one = problem((2, 32, 14, 14), (16, 32, 3, 3))
    (kernel,) = one.conversion("x")
    assert (kernel.sizes, kernel.flops) == (Rows(2 * 1 * 7, 1), 0)
    gray = problem((2, 1, 14, 14), (16, 1, 3, 3))
    zeros, kernel = gray.conversion("x")
    size = 2 * 2 * 14 * 14
    assert (zeros.written_bytes, kernel.read_bytes, kernel.written_bytes) == (8 * size, size, 8 * size)
    assert kernel.sizes == Rows(2 * 1 * 7, 1)


def test_a_bias_of_integers_begins_their_sums() -> None:
    given = t(2, 8, 6, 6, dtype="int8"), t(8, 16, 3, 3, dtype="int8")
    with_bias = forward("aten.conv_transpose2d.input", *given, t(16, dtype="int32"))
    assert [kernel.family for kernel in with_bias] == [
        kernel.family for kernel in forward("aten.conv_transpose2d.input", *given)
    ]
    assert "elementwise" not in [kernel.family for kernel in with_bias]


def test_a_convolution_of_unknown_operands_has_the_work_of_its_operator() -> None:
    call = one_call("aten.conv2d.default", t(2, 8, 6, 6), t(16, 8, 3, 3))
    known = {name: value for name, value in call.values.items() if name != "x1"}
    (kernel,) = forward_kernels(ConcreteCall(call.call, known, {}, call.sizes))
    assert (kernel.flops, kernel.vector_flops) == (2 * 2 * 16 * 16 * 8 * 9, 0)


@pytest.mark.parametrize(("side", "algorithm"), [(1, ""), (5, "tiled")])
def test_few_channels_in_order_are_tiled_unless_there_is_one_position(side: int, algorithm: str) -> None:
    found = problem((2, 3, side, side), (16, 3, 3, 3), (1, 1), (1, 1))
    assert found.way == "as_it_lies"
    assert found.algorithm == algorithm


@pytest.mark.parametrize(
    ("dtype", "algorithm"), [("float16", "few"), ("bfloat16", "few_scalar"), ("float32", "")]
)
def test_few_channels_that_are_innermost_have_kernels_of_their_own(dtype: str, algorithm: str) -> None:
    """Only tensor cores of float16 load them as they lie."""
    given = (2, 3, 8, 8), (16, 3, 3, 3)
    lies = {0: (192, 1, 24, 3), 1: (27, 1, 9, 3)}
    found = Problem.of(
        one_call("aten.conv2d.default", *(t(*shape, dtype=dtype) for shape in given), strides=lies)
    )
    assert found is not None
    assert found.is_channels_last
    assert found.way == "as_it_lies" or dtype == "float32"
    assert found.algorithm == algorithm


def test_an_image_without_a_batch_has_no_problem_of_its_own() -> None:
    """Its axes are not those of the weight; the convolution is one kernel of unknown sizes."""
    operands = t(3, 8, 8), t(16, 3, 3, 3)
    assert Problem.of(one_call("aten.conv2d.default", *operands)) is None
    (kernel,) = forward("aten.conv2d.default", *operands)
    assert (kernel.family, kernel.sizes) == ("convolution", None)
    assert kernel.flops == 2 * 16 * 6 * 6 * 3 * 3 * 3


@pytest.mark.parametrize(
    ("dtype", "channels", "image", "window", "more", "algorithm"),
    [  # PyTorch leaves small square windows in float16 to cuDNN, from 32 channels and lines of 7 pixels on
        ("float16", 32, (7, 7), 3, (), "shared"),
        ("float16", 32, (7, 7), 5, (), "shared"),
        ("bfloat16", 32, (7, 7), 3, (), ""),
        ("float32", 32, (7, 7), 3, (), ""),
        ("float16", 31, (7, 7), 3, (), ""),
        ("float16", 32, (7, 6), 3, (), ""),
        ("float16", 32, (6, 7), 3, (), "shared"),
        ("float16", 32, (9, 9), 7, (), ""),
        ("float16", 32, (7, 7), 3, (2,), ""),
    ],
)
def test_depthwise_convolutions_of_cudnn(
    dtype: str, channels: int, image: tuple[int, int], window: int, more: tuple[int, ...], algorithm: str
) -> None:
    x, weight = t(2, channels, *image, dtype=dtype), t(channels, 1, window, window, dtype=dtype)
    stride, padding = more or (1,), (window // 2,) * 2
    (kernel,) = forward("aten.conv2d.default", x, weight, None, (*stride, *stride), padding, (1, 1), channels)
    assert kernel.sizes.algorithm == algorithm


@pytest.mark.parametrize(
    ("dtype", "channels", "window", "stride", "algorithms"),
    [  # in float16 any window of a sequence, from 32 channels on; its weight's gradient is computed otherwise
        ("float16", 32, 33, 1, ["line", "line", ""]),
        ("float16", 32, 4, 1, ["line", "line", ""]),
        ("float16", 31, 33, 1, ["", "", ""]),
        ("float16", 32, 33, 2, ["", "", ""]),
        ("bfloat16", 32, 33, 1, ["", "", ""]),
        ("float32", 32, 33, 1, ["", "", ""]),
    ],
)
def test_depthwise_sequences_of_cudnn(
    dtype: str, channels: int, window: int, stride: int, algorithms: list[str]
) -> None:
    x, weight = g(2, channels, 100, dtype=dtype), g(channels, 1, window, dtype=dtype)
    given = "aten.conv1d.default", x, weight, None, (stride,), (window // 2,), (1,), channels
    found = (*forward(*given), *backward(*given))
    assert [kernel.sizes.algorithm for kernel in found if kernel.family == "convolution"] == algorithms
