"""An operator that finds gradients launches what the backward of its forward launches: one fact by two ways."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.kernels.gradients import call_kernels, forward_of
from graphflops.kernels.kernel import Windows
from graphflops.ops import operator
from graphflops.tensor import FLOAT32, INT64, TensorType
from tests.one_call import g, t
from tests.time.one_call import backward, made, one_call

IMAGE, ROWS, HEADS = (8, 32, 16, 16), (64, 512), (2, 4, 128, 64)
CHANNELS, WIDTH = 32, 512
LABELS = TensorType((64,), INT64)


def statistics(*shape: int) -> TensorType:
    return TensorType(shape, FLOAT32)


PAIRS: list[tuple[str, tuple[Any, ...], int, str, tuple[Any, ...], int]] = [
    (
        *("native_layer_norm", (g(*ROWS), (WIDTH,), g(WIDTH), g(WIDTH), 1e-5), 3),
        *("native_layer_norm_backward",),
        (t(*ROWS), t(*ROWS), (WIDTH,), statistics(64, 1), statistics(64, 1), t(WIDTH), t(WIDTH), (True,) * 3),
        3,
    ),
    (
        *("_fused_rms_norm", (g(*ROWS), (WIDTH,), g(WIDTH), 1e-5), 2),
        *("_fused_rms_norm_backward",),
        (t(*ROWS), t(*ROWS), (WIDTH,), statistics(64, 1), t(WIDTH), (True, True)),
        2,
    ),
    (
        *("native_group_norm", (g(*IMAGE), g(CHANNELS), g(CHANNELS), 8, CHANNELS, 256, 4, 1e-5), 3),
        *("native_group_norm_backward",),
        (
            *(t(*IMAGE), t(*IMAGE), statistics(8, 4), statistics(8, 4), t(CHANNELS)),
            *(8, CHANNELS, 256, 4, (True,) * 3),
        ),
        3,
    ),
    (
        *("max_pool2d_with_indices", (g(*IMAGE), (2, 2), (2, 2)), 2),
        *("max_pool2d_with_indices_backward",),
        (
            *(t(8, 32, 8, 8), t(*IMAGE), (2, 2), (2, 2), (0, 0), (1, 1), False),
            TensorType((8, 32, 8, 8), INT64),
        ),
        1,
    ),
    (
        *("_softmax", (g(*ROWS), -1, False), 1),
        *("_softmax_backward_data", (t(*ROWS), t(*ROWS), -1, FLOAT32), 1),
    ),
    (
        *("embedding", (g(1000, WIDTH), LABELS), 1),
        *("embedding_dense_backward", (t(64, WIDTH), LABELS, 1000, -1, False), 1),
    ),
    (
        *("upsample_bilinear2d", (g(*IMAGE), (32, 32), False), 1),
        *("upsample_bilinear2d_backward", (t(8, 32, 32, 32), (32, 32), IMAGE, False), 1),
    ),
]


@pytest.mark.parametrize(
    ("name", "operands", "outputs", "gradient", "given", "found"), PAIRS, ids=[pair[0] for pair in PAIRS]
)
def test_a_gradient_operator_launches_what_the_backward_of_its_forward_does(
    name: str, operands: Any, outputs: int, gradient: str, given: Any, found: int
) -> None:
    implied = made(backward(f"aten.{name}.default", *operands, outputs=outputs))
    own = made(call_kernels(one_call(f"aten.{gradient}.default", *given, outputs=found)))
    assert [(family, variant, sizes) for family, variant, *_, sizes in own] == [
        (family, variant, sizes) for family, variant, *_, sizes in implied
    ]
    assert [moved for *_, moved, _ in own] == [moved for *_, moved, _ in implied]


def test_a_gradient_operator_copies_a_transposed_operand_as_the_backward_of_its_forward_does() -> None:
    norm, gradient, *_ = PAIRS[0][1], PAIRS[0][4]
    implied = made(backward("aten.native_layer_norm.default", *norm, outputs=3, strides={0: (1, 64)}))
    call = one_call("aten.native_layer_norm_backward.default", *gradient, outputs=3, strides={1: (1, 64)})
    (copy, *_) = found = made(call_kernels(call))
    assert (copy[:2], len(found)) == (("copy", "strided"), len(implied))
    assert copy == implied[0]


def test_the_backward_of_an_attention_is_one_fused_kernel() -> None:
    head = t(*HEADS)
    given = (head, head, head, head, head, statistics(*HEADS[:-1]), None, None, 128, 128, 0.0, True)
    drawn = t(2, dtype="uint64"), t(dtype="uint64")  # the state of the random numbers
    call = one_call("aten._scaled_dot_product_flash_attention_backward.default", *given, *drawn, outputs=3)
    (kernel,) = call_kernels(call)
    assert (kernel.family, kernel.sizes.phase) == ("attention", "backward")  # type: ignore[union-attr]
    assert kernel.flops == 5 * 2 * 2 * 4 * 128 * 128 * 64  # five products, of one tile


POOLED = t(2, 3, 4, 4)


@pytest.mark.parametrize(
    ("op", "given", "windows"),
    [
        # An element is in one window of positions that do not overlap; one number stands for all axes.
        ("avg_pool2d_backward", (POOLED, t(2, 3, 8, 8), (2,), (2,), (0, 0), False, True, None), 1),
        ("avg_pool2d_backward", (POOLED, t(2, 3, 8, 8), (2, 2), (2, 2), (0, 0), False, True, None), 1),
        ("avg_pool2d_backward", (POOLED, t(2, 3, 8, 16), (2, 4), (2, 4), (0, 0), False, True, None), 1),
        ("avg_pool2d_backward", (POOLED, t(2, 3, 6, 6), (3,), (1,), (0, 0), False, True, None), 9 * 16 / 36),
        ("avg_pool3d_backward", (t(2, 3, 4, 4, 4), t(2, 3, 8, 8, 8), (2,), (2,), (0,) * 3, False, True, None), 1),
        ("avg_pool3d_backward", (t(2, 3, 4, 4, 4), t(2, 3, 8, 8, 4), (2, 2, 1), (2, 2, 1), (0,) * 3, False, True, None), 1),
    ],
)  # fmt: skip
def test_windows_that_an_element_is_in(op: str, given: tuple[Any, ...], windows: float) -> None:
    (kernel,) = call_kernels(one_call(f"aten.{op}.default", *given))
    x, pooled = given[1], given[0]
    assert kernel.sizes == Windows(x.numel, windows)
    assert (kernel.read_bytes, kernel.written_bytes) == (4 * pooled.numel, 4 * x.numel)


NORM = (t(*ROWS), t(*ROWS), (WIDTH,), statistics(64, 1), statistics(64, 1), t(WIDTH), t(WIDTH))


@pytest.mark.parametrize(
    ("mask", "families"),
    [
        ((True, True, True), ["normalization", "reduction"]),
        ((True, False, False), ["normalization"]),
        ((False, True, False), ["reduction"]),
        ((False, False, True), ["reduction"]),
        ((False, False, False), []),
    ],
)
def test_gradients_that_are_not_wanted_are_not_found(mask: tuple[bool, ...], families: list[str]) -> None:
    call = one_call("aten.native_layer_norm_backward.default", *NORM, mask, outputs=3)
    assert [kernel.family for kernel in call_kernels(call)] == families


@pytest.mark.parametrize(
    ("op", "forward"),
    [
        ("native_layer_norm_backward", "native_layer_norm"),
        ("_softmax_backward_data", "_softmax"),
        ("embedding_dense_backward", "embedding"),
        ("max_pool2d_with_indices_backward", "max_pool2d_with_indices"),
        ("relu", None),
        ("sigmoid_backward", None),  # elementwise: a kernel of its own
        ("_softmax_backward_other", None),
    ],
)
def test_the_forward_of_a_gradient_operator(op: str, forward: str | None) -> None:
    found = forward_of(operator(f"aten.{op}.default"))
    assert (None if found is None else found.word) == forward
    assert forward_of(operator(f"onnx.{op}")) is None


IMAGES = t(2, 3, 8, 8)


@pytest.mark.parametrize(
    ("norm", "given"),
    [
        ("group_norm", (IMAGES, IMAGES, t(2, 3), t(2, 3), t(3), 2, 3, 64, 3)),
        ("batch_norm", (IMAGES, IMAGES, t(3), t(3), t(3), t(3), t(3), True, 1e-5)),
    ],
)
@pytest.mark.parametrize("is_wanted", [True, False])
def test_norms_of_channels_find_nothing_that_is_not_wanted(norm: str, given: Any, is_wanted: bool) -> None:
    call = one_call(f"aten.native_{norm}_backward.default", *given, (is_wanted,) * 3, outputs=3)
    assert bool(call_kernels(call)) is is_wanted
