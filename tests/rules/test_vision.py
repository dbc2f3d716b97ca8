"""Boxes and offsets: sizes, samples, and what only data can tell."""

from __future__ import annotations

from graphflops.dims import symbol
from tests.one_call import program_of
from tests.support import price, shapes, t

boxes = symbol("boxes")


def test_roi_align_averages_bilinear_samples() -> None:
    priced = price("torchvision.roi_align.default", t(2, 16, 32, 32), t("boxes", 5), 0.25, 7, 7, 2, True)
    assert shapes(priced) == [(boxes, 16, 7, 7)]
    assert priced.vector_flops == (4 * 8 + 1) * 16 * 49 * boxes


def test_adaptive_sampling_is_not_known() -> None:
    priced = price("torchvision.roi_align.default", t(2, 16, 32, 32), t(10, 5), 0.25, 7, 7, 0, True)
    assert priced.vector_flops == (8 * symbol("samples?") + 1) * 10 * 16 * 49
    assert price(
        "torchvision.roi_pool.default", t(1, 3, 8, 8), t(4, 5), 1.0, 2, 2
    ).vector_flops == 48 * symbol("pixels?")


def test_position_sensitive_pooling_divides_the_channels() -> None:
    assert (
        shapes(price("torchvision.ps_roi_align.default", t(1, 98, 8, 8), t(4, 5), 1.0, 7, 7, 1))
        == [(4, 2, 7, 7)] * 2
    )
    assert (
        shapes(price("torchvision.ps_roi_pool.default", t(1, 98, 8, 8), t(4, 5), 1.0, 7, 7))
        == [(4, 2, 7, 7)] * 2
    )


def test_suppression_compares_every_pair() -> None:
    priced = price("torchvision.nms.default", t(64, 4), t(64), 0.5)
    assert shapes(priced) == [(symbol("nms?"),)]
    assert priced.vector_flops == 64 * 6 + 13 * (64 * 63 // 2)


def test_deformable_convolution_samples_every_tap() -> None:
    priced = price(
        "torchvision.deform_conv2d.default",
        *(t(2, 8, 10, 10), t(16, 4, 3, 3), t(2, 18, 8, 8), t(2, 9, 8, 8), t(16)),
        *(1, 1, 0, 0, 1, 1, 2, 1, True),
    )
    assert shapes(priced) == [(2, 16, 8, 8)]
    assert priced.matrix_flops == 2 * (2 * 16 * 8 * 8) * (4 * 3 * 3)
    assert priced.vector_flops == (8 + 1) * (2 * 8 * 9 * 64) + 2 * 16 * 64


def test_gradients_of_a_deformable_convolution_are_computed_together() -> None:
    """Its one backward operator multiplies for the inputs and for the weight, even if only the weight wants a gradient."""
    weight = t(16, 4, 3, 3, requires_grad=True)
    operands = (t(2, 4, 10, 10), weight, t(2, 18, 8, 8), t(2, 0, 8, 8), t(16))
    op, window = "torchvision.deform_conv2d.default", (1, 1, 0, 0, 1, 1, 1, 1, False)
    (call,) = program_of(op, *operands, *window).main.calls
    assert call.gradient is not None
    assert shapes(call.gradient.estimate) == [(16, 4, 3, 3)]
    assert call.gradient.estimate.matrix_flops == 2 * (2 * (2 * 16 * 8 * 8) * (4 * 3 * 3))
