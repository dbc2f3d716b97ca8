"""Convolutions, transposed convolutions and their gradients."""

from __future__ import annotations

import pytest

from graphflops.cost import Estimate
from graphflops.dims import floor_div, symbol
from graphflops.errors import ShapeError
from graphflops.passes.gradients import gradient
from graphflops.rules import find
from graphflops.tensor import TensorType
from tests.support import price, shapes, t

Sizes = tuple[int, ...]
CONV1D, CONV2D, CONV3D = (f"aten.conv{n}d.default" for n in (1, 2, 3))
TRANSPOSED = "aten.conv_transpose2d.input"


def backward(
    grad: TensorType,
    x: TensorType,
    weight: TensorType,
    *,
    stride: int = 1,
    padding: int = 1,
    groups: int = 1,
    transposed: bool = False,
) -> Estimate:
    """Both gradients."""
    geometry = ((stride,) * 2, (padding,) * 2, (1, 1), transposed, (0, 0), groups)
    return price("aten.convolution_backward.default", grad, x, weight, None, *geometry, (True, True, False))


@pytest.mark.parametrize(
    "op, x, weight, rest, out, flops",
    [
        (CONV1D, (2, 3, 9), (4, 3, 3), (), (2, 4, 7), 2 * (2 * 4 * 7) * (3 * 3)),
        (CONV1D, (3, 9), (4, 3, 3), (), (4, 7), 2 * (4 * 7) * (3 * 3)),  # without a batch
        (CONV2D, (1, 3, 9, 9), (4, 3, 3, 3), (None, (2, 1), (1, 0)), (1, 4, 5, 7), 2 * (4 * 35) * 27),
        (CONV2D, (1, 3, 9, 9), (4, 3, 3, 3), (None, 1, 0, (2, 3)), (1, 4, 5, 3), 2 * (4 * 15) * 27),
        (CONV2D, (1, 6, 9, 9), (4, 3, 3, 3), (None, 1, 0, 1, 2), (1, 4, 7, 7), 2 * (4 * 49) * 27),
        (CONV3D, (2, 3, 5, 5, 5), (4, 3, 3, 1, 2), (None, (1,), (1,)), (2, 4, 5, 7, 6), 2 * 1680 * 18),
        ("aten.conv2d.padding", (1, 3, 9, 9), (4, 3, 4, 4), (None, 1, "same"), (1, 4, 9, 9), 2 * 324 * 48),
        ("aten.conv2d.padding", (1, 3, 9, 9), (4, 3, 3, 3), (None, 2, "valid"), (1, 4, 4, 4), 2 * 64 * 27),
        ("aten.conv_transpose1d.default", (2, 3, 5), (3, 4, 3), (None, 2, 1, 1), (2, 4, 10), 2 * 30 * 12),
        (TRANSPOSED, (3, 5, 5), (3, 4, 2, 2), (None, 2), (4, 10, 10), 2 * 75 * 16),
        (TRANSPOSED, (1, 3, 5, 5), (3, 4, 3, 3), (None, 1, 0, 0, 1, 2), (1, 4, 9, 9), 2 * 75 * 36),
        ("aten.conv_transpose3d.input", (2, 3, 3, 3), (2, 4, 2, 2, 2), (None, 2), (4, 6, 6, 6), 2 * 54 * 32),
        ("aten.mkldnn_convolution.default", (3, 9, 9), (4, 3, 3, 3), (None, 1, 2, 1, 1), (4, 5, 5), 200 * 27),
        ("aten.thnn_conv2d.default", (1, 3, 9, 9), (4, 3, 3, 3), ((3, 3),), (1, 4, 7, 7), 2 * 196 * 27),
        ("aten._slow_conv2d_forward.default", (1, 3, 9, 9), (4, 27), ((3, 3),), (1, 4, 7, 7), 2 * 196 * 27),
        ("aten.slow_conv_transpose2d.default", (3, 5, 5), (3, 4, 2, 2), ((2, 2), None, 2), (4, 10, 10), 2400),
        (
            "aten._conv_depthwise2d.default",
            (6, 9, 9),
            (6, 1, 3, 3),
            ((3, 3), None, 1, 1, 1),
            (6, 9, 9),
            972 * 9,
        ),
    ],
)
def test_work_and_shape(
    op: str,
    x: Sizes,
    weight: Sizes,
    rest: tuple[object, ...],
    out: Sizes,
    flops: int,
) -> None:
    estimate = price(op, t(*x), t(*weight), *rest)
    assert (shapes(estimate), estimate.matrix_flops, estimate.vector_flops) == ([out], flops, 0)


def test_strided_convolution_counts_output_positions() -> None:
    estimate = price(CONV2D, t(1, 3, 32, 32), t(16, 3, 3, 3), t(16), (2, 2), (1, 1))
    assert estimate.matrix_flops == 2 * (16 * 16) * (3 * 3 * 3) * 16 == 221_184
    assert estimate.vector_flops == 16 * 16 * 16 == 4_096


def test_depthwise_convolution_counts_channels_of_a_group() -> None:
    estimate = price(CONV2D, t(1, 32, 16, 16), t(32, 1, 3, 3), None, 1, 1, 1, 32)
    assert estimate.matrix_flops == 2 * (16 * 16) * (3 * 3) * 32 == 147_456


def test_convolution_counts_taps_on_padding() -> None:
    estimate = price(CONV2D, t(2, 3, 6, 6), t(6, 3, 4, 4), None, 1, 1)
    assert estimate.matrix_flops == 2 * (2 * 6 * 5 * 5) * (3 * 4 * 4) == 28_800


def test_same_padding_counts_taps_on_padding() -> None:
    estimate = price("aten.conv2d.padding", t(1, 1, 4, 4), t(2, 1, 2, 2), None, (1, 1), "same")
    assert (shapes(estimate), estimate.matrix_flops) == ([(1, 2, 4, 4)], 2 * (2 * 16) * 4)


def test_transposed_conv_counts_input_positions() -> None:
    estimate = price(TRANSPOSED, t(1, 3, 2, 2), t(3, 1, 2, 2), None, (2, 2))
    assert (shapes(estimate), estimate.matrix_flops) == ([(1, 1, 4, 4)], 2 * (2 * 2) * 3 * (2 * 2))


def test_grouped_transposed_conv_reads_its_weight_as_input_by_output_channels() -> None:
    estimate = price(TRANSPOSED, t(2, 6, 8, 8), t(6, 2, 2, 2), None, 2, 0, 0, 3)
    assert (shapes(estimate), estimate.matrix_flops) == ([(2, 6, 16, 16)], 2 * (2 * 6 * 64) * (2 * 4))
    assert estimate.matrix_flops == 12_288


def test_transposed_conv_with_padding_counts_input_positions() -> None:
    estimate = price(TRANSPOSED, t(2, 4, 8, 8), t(4, 6, 4, 4), None, 2, 1)
    assert (shapes(estimate), estimate.matrix_flops) == ([(2, 6, 16, 16)], 2 * (2 * 4 * 64) * (6 * 16))
    assert estimate.matrix_flops == 98_304


def test_convolution_backward_is_the_product_twice() -> None:
    x, weight = t(1, 32, 16, 16), t(32, 32, 3, 3)
    assert backward(x, x, weight).matrix_flops == 2 * 4_718_592 == 9_437_184


def test_depthwise_convolution_backward_counts_channels_of_a_group() -> None:
    x = t(1, 32, 16, 16)
    assert backward(x, x, t(32, 1, 3, 3), groups=32).matrix_flops == 2 * 147_456


def test_grouped_convolution_backward_counts_channels_of_a_group() -> None:
    x, grad = t(1, 32, 16, 16), t(1, 64, 16, 16)
    assert backward(grad, x, t(64, 8, 3, 3), groups=4).matrix_flops == 2 * 2_359_296


def test_transposed_depthwise_convolution_backward_counts_channels_of_a_group() -> None:
    x, grad, weight = t(1, 32, 16, 16), t(1, 32, 32, 32), t(32, 1, 4, 4)
    assert price(TRANSPOSED, x, weight, None, 2, 1, 0, 32).matrix_flops == 262_144
    assert backward(grad, x, weight, stride=2, groups=32, transposed=True).matrix_flops == 524_288


def test_transposed_convolution_backward_is_the_product_twice() -> None:
    x, weight = t(6, 192, 30, 96), t(192, 384, 2, 2)
    forward = price(TRANSPOSED, x, weight, None, (2, 2))
    assert forward.matrix_flops == 2 * (6 * 192 * 30 * 96) * (384 * 4) == 10_192_158_720
    (grad,) = forward.out
    assert isinstance(grad, TensorType)
    assert backward(grad, x, weight, stride=2, padding=0, transposed=True).matrix_flops == 20_384_317_440


def test_the_first_layer_needs_no_input_gradient() -> None:
    rule = find(CONV2D)
    assert rule is not None
    arguments = {"x": t(1, 3, 10, 10), "weight": t(8, 3, 3, 3, requires_grad=True)}
    forward = rule.function(**arguments)
    back = gradient(rule, arguments, forward)
    assert back is not None
    assert forward.matrix_flops == 2 * (8 * 8) * 27 * 8 == 27_648
    assert forward.matrix_flops + back.matrix_flops == 55_296


def test_sizes_stay_symbolic() -> None:
    height = symbol("h")
    estimate = price(CONV2D, t("b", 3, "h", 32), t(16, 3, 3, 3), None, 2, 1)
    half = floor_div(height - 1, 2) + 1
    assert shapes(estimate) == [(symbol("b"), 16, half, 16)]
    assert estimate.matrix_flops == 2 * symbol("b") * 16 * half * 16 * 27
    up = price(TRANSPOSED, t(1, 3, "h", 8), t(3, 4, 2, 2), None, 2)
    assert shapes(up) == [(1, 4, 2 * height, 16)]


def test_both_kinds_through_one_operator() -> None:
    flags_of = {"aten.convolution.default": (), "aten._convolution.default": (False, False, True, True)}
    for op, flags in flags_of.items():
        plain = price(op, t(1, 3, 9, 9), t(4, 3, 3, 3), t(4), (1,), (0,), (1,), False, (0,), 1, *flags)
        assert (shapes(plain), plain.vector_flops) == ([(1, 4, 7, 7)], 4 * 49)
        transposed = price(op, t(1, 3, 9, 9), t(3, 4, 2, 2), None, (2,), (0,), (1,), True, (1,), 1, *flags)
        assert (shapes(transposed), transposed.matrix_flops) == ([(1, 4, 19, 19)], 2 * (3 * 81) * 16)


def test_what_follows_a_convolution_is_vector_work() -> None:
    operands = (t(1, 3, 9, 9), t(4, 3, 3, 3))
    relu = price("aten.cudnn_convolution_relu.default", *operands, t(4), (1, 1), (0, 0), (1, 1), 1)
    assert relu.vector_flops == 4 * 49 * 2
    rest = (t(1, 4, 7, 7), 2.0, t(4), (1, 1), (0, 0), (1, 1), 1)
    added = price("aten.cudnn_convolution_add_relu.default", *operands, *rest)
    assert added.vector_flops == 4 * 49 * 4


def test_other_layouts() -> None:
    x, weight = t(7, 2, 3), t(3, 3, 5)
    tbc = price("aten.conv_tbc.default", x, weight, t(5), 1)
    assert (shapes(tbc), tbc.matrix_flops) == ([(7, 2, 5)], 2 * (7 * 2 * 5) * (3 * 3))
    back = price("aten.conv_tbc_backward.default", t(7, 2, 5), x, weight, t(5), 1)
    assert (shapes(back), back.matrix_flops) == ([(7, 2, 3), (3, 3, 5), (5,)], 2 * tbc.matrix_flops)


def test_a_mask_says_which_gradients_are_made() -> None:
    grad, x, weight = t(2, 4, 5), t(2, 3, 7), t(4, 3, 3)
    product = 2 * (2 * 4 * 5) * (3 * 3)
    geometry = ((1,), (0,), (1,), False, (0,), 1)
    for mask in ((True, False, False), (False, True, True)):
        estimate = price("aten.convolution_backward.default", grad, x, weight, (4,), *geometry, mask)
        assert [value is not None for value in estimate.out] == list(mask)
        assert (estimate.matrix_flops, estimate.vector_flops) == (product, 40 * mask[2])
    op, operands = "aten._convolution_double_backward.default", (x, weight, None, grad, weight, x)
    twice = price(op, *operands, *geometry, (True, True, True))
    assert (shapes(twice), twice.matrix_flops) == ([(2, 4, 5), (2, 3, 7), (4, 3, 3)], 4 * product)


def test_complex_convolutions() -> None:
    x, weight, bias = (t(*shape, dtype="complex64") for shape in ((1, 3, 9), (4, 3, 3), (4,)))
    estimate = price(CONV1D, x, weight, bias)
    assert (estimate.matrix_flops, estimate.vector_flops) == (8 * (4 * 7) * 9, 2 * 4 * 7)


@pytest.mark.parametrize(
    "op, x, weight, message",
    [
        (CONV2D, (1, 3, 9, 9), (4, 2, 3, 3), "the input has 3 channels, the weight takes 2"),
        (TRANSPOSED, (1, 3, 9, 9), (4, 2, 3, 3), "the input has 3 channels, the weight takes 4"),
        (CONV2D, (1, 3, 2, 9), (4, 3, 3, 3), "a window of 3 is larger than its input of 2"),
        (CONV2D, (3, 9), (4, 3, 3, 3), "over 2 axes"),
    ],
)
def test_convolutions_that_cannot_be(op: str, x: Sizes, weight: Sizes, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        price(op, t(*x), t(*weight))


@pytest.mark.parametrize(
    ("grad", "transposed", "message"),
    [
        ((1, 8, 5, 9), False, "of a result"),
        ((1, 8, 9, 9), True, "the input has 3 channels, the weight takes 8"),
    ],
)
def test_gradients_of_other_results(grad: Sizes, transposed: bool, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        backward(t(*grad), t(1, 3, 9, 9), t(8, 3, 3, 3), transposed=transposed)


def test_gradient_shapes_against_torch() -> None:
    torch = pytest.importorskip("torch")

    sizes = ((2, 6, 17, 9), (2, 4, 8, 8), (4, 3, 4, 3))
    grad, x, weight = (torch.empty(shape, device="meta") for shape in sizes)
    rest = ([2, 1], [1, 1], [1, 1], True, [1, 1], 2, [True, True, True])
    theirs = torch.ops.aten.convolution_backward.default(grad, x, weight, [6], *rest)
    geometry = [tuple(value) if isinstance(value, list) else value for value in rest]
    ours = price("aten.convolution_backward.default", *(t(*shape) for shape in sizes), (6,), *geometry)
    assert shapes(ours) == [tuple(value.shape) for value in theirs]
