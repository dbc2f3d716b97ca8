"""Bytes that kernels need while they run, beside operands and results: each kind of call, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.devices import HOPPER
from graphflops.kernels import buffers
from graphflops.kernels.beside import reduction_buffers
from tests.memory.one_call import eager
from tests.one_call import g
from tests.support import t

LARGE = 512 * 16 * 100  # of so many elements a hundred blocks add up parts
PARTS = 4 * 100 + 4  # bytes of these in float32, and of a semaphore
IMAGES = (4, 8, 256, 256)  # of each channel 4 * 65536 positions


def forward_bytes(op: str, *given: Any, **more: Any) -> Any:
    execution, call = eager(f"aten.{op}", *given, **more)
    return buffers.forward_bytes(call, execution.layouts)


def backward_bytes(op: str, *given: Any, **more: Any) -> Any:
    execution, call = eager(f"aten.{op}", *given, **more)
    return buffers.backward_bytes(call, execution.layouts)


@pytest.mark.parametrize(
    ("op", "given", "outputs", "expected"),
    [
        # Positions of maxima are numbers of 8 bytes, which only the operator that returns them allocates as a result.
        ("max_pool2d.default", (t(2, 3, 8, 8), (2, 2)), 1, 8 * 2 * 3 * 4 * 4),
        ("max_pool2d.default", (t(2, 3, 8, 8, dtype="bfloat16"), (2, 2)), 1, 8 * 2 * 3 * 4 * 4),
        ("max_pool2d_with_indices.default", (t(2, 3, 8, 8), (2, 2)), 2, 0),
        ("avg_pool2d.default", (t(2, 3, 8, 8), (2, 2)), 1, 0),
        # Of two axes the first result of a roll is there while the second is made.
        ("roll.default", (t(4, 8), (1, 2), (0, 1)), 1, 4 * 4 * 8),
        ("roll.default", (t(4, 8, 2), (1, 2, 1), (0, 1, 2)), 1, 2 * 4 * 4 * 8 * 2),  # and both, while the third is
        ("roll.default", (t(4, 8), (1,), (0,)), 1, 0),
        ("roll.default", (t(4, 8), 1), 1, 0),
        ("mse_loss.default", (t(10, 8), t(10, 8)), 1, 0),
        ("cross_entropy_loss.default", (t(10, 8), t(10, 8)), 1, 4 * 10 * 8),
        ("cross_entropy_loss.default", (t(10, 8), t(10, dtype="int64")), 1, 0),
        # Sums of many elements, and averages that are sums.
        ("sum.default", (t(LARGE),), 1, PARTS),
        ("mean.default", (t(LARGE),), 1, PARTS),
        ("sum.dim_IntList", (t(LARGE), (0,)), 1, PARTS),
        ("sum.dim_IntList", (t(1, LARGE), (1,)), 1, PARTS),
        ("sum.dim_IntList", (t(1, LARGE), (-1,)), 1, PARTS),
        ("sum.dim_IntList", (t(LARGE, 1), (0,)), 1, PARTS),
        ("sum.dim_IntList", (t(LARGE, 1), (1,)), 1, 0),
        ("sum.dim_IntList", (t(1, LARGE), (0,)), 1, 0),
        ("prod.default", (t(LARGE),), 1, PARTS),
        ("prod.dim_int", (t(1, LARGE), 1), 1, PARTS),
        ("linalg_vector_norm.default", (t(LARGE),), 1, PARTS),
        # Of a variance 16 bytes for each part: mean, sum of squares and two counts.
        ("var.correction", (t(LARGE),), 1, 16 * 100 + 4),
        ("std.correction", (t(LARGE),), 1, 16 * 100 + 4),
        ("var_mean.correction", (t(LARGE),), 2, 16 * 100 + 4),
        ("adaptive_avg_pool2d.default", (t(1, 1, 1024, 800), (1, 1)), 1, PARTS),
        ("adaptive_avg_pool2d.default", (t(1, 1, 1024, 800), (2, 2)), 1, 0),
        ("adaptive_avg_pool1d.default", (t(1, 1, LARGE), (1,)), 1, PARTS),
        ("adaptive_avg_pool3d.default", (t(1, 1, 1024, 8, 100), (1, 1, 1)), 1, PARTS),
        ("amax.default", (t(LARGE),), 1, 0),
        ("relu.default", (t(LARGE),), 1, 0),
        ("softmax.int", (t(LARGE), -1), 1, 0),
        ("mm.default", (t(4, 8), t(8, 6)), 1, 0),
        # Without tensor cores nothing is converted.
        ("conv2d.default", (t(2, 64, 8, 8, dtype="float64"), t(64, 64, 3, 3, dtype="float64")), 1, 0),
    ],
)  # fmt: skip
def test_bytes_of_forwards(op: str, given: tuple[Any, ...], outputs: int, expected: int) -> None:
    assert forward_bytes(op, *given, outputs=outputs) == expected


@pytest.mark.parametrize(
    ("op", "given", "expected"),
    [
        # A bias is summed over all rows, here in a hundred parts of one column.
        ("linear.default", (g(LARGE, 8), g(1, 8), g(1)), PARTS),
        ("linear.default", (g(2, LARGE // 2, 8), g(1, 8), g(1)), PARTS),
        ("linear.default", (g(LARGE, 8), g(1, 8), t(1)), 0),
        ("linear.default", (g(LARGE, 8), g(1, 8)), 0),
        ("matmul.default", (g(3, 4, 8), g(3, 8, 6)), 0),
        ("matmul.default", (g(3, 4, 8), g(8, 6)), 0),
        ("mm.default", (g(4, 8), g(8, 6)), 0),
        ("roll.default", (g(4, 8), (1, 2), (0, 1)), 4 * 4 * 8),
        ("roll.default", (g(4, 8), (1,), (0,)), 0),
        # The product of result and gradient, and of another type the gradient that is converted.
        ("softmax.int", (g(4, 8), -1), 4 * 4 * 8),
        ("log_softmax.int", (g(4, 8), -1), 0),
        ("relu.default", (g(4, 8),), 0),
        # Of a factor that is repeated: its gradient for each repeat.
        ("mul.Tensor", (t(4, 8), g(8)), 4 * 4 * 8),
        ("mul.Tensor", (g(4, 8), t(8)), 0),
        # Six lists of two indices of 8 bytes; none of no indices.
        ("index.Tensor", (g(10, 8), (t(2, dtype="int64"),)), 6 * 8 * 2),
        ("index.Tensor", (g(10, 8), (t(0, dtype="int64"),)), 0),
        # Along an axis of one nothing is repeated.
        ("mul.Tensor", (g(1, 8), g(8)), 0),
        ("mul.Tensor", (g(1, 8), g(1, 1)), 4 * 8),
        ("mul.Tensor", (g(1, LARGE), g(LARGE)), 0),
        ("add.Tensor", (g(LARGE, 1), g(1)), PARTS),
        ("max_pool2d.default", (g(2, 3, 8, 8), (2, 2)), 0),
        ("conv2d.default", (g(2, 64, 8, 8, dtype="float64"), g(64, 64, 3, 3, dtype="float64")), 0),
    ],
)  # fmt: skip
def test_bytes_of_backwards(op: str, given: tuple[Any, ...], expected: int) -> None:
    assert backward_bytes(op, *given) == expected


def test_sums_of_repeated_operands_have_parts() -> None:
    """The gradient of one number, in the shape of all elements, is added up in a hundred parts."""
    assert backward_bytes("mul.Tensor", t(LARGE), g(1)) == 4 * LARGE + PARTS
    assert backward_bytes("add.Tensor", t(LARGE), g(1)) == PARTS
    execution, call = eager("aten.mul.Tensor", t(LARGE), g(1))
    assert buffers.gradient_buffers(call, execution.layouts) == ((4 * LARGE,), ([PARTS - 4, 4],))


@pytest.mark.parametrize(
    ("op", "given", "expected"),
    [
        ("linear.default", (g(LARGE, 8), g(1, 8), g(1)), PARTS - 4),
        ("linear.default", (g(4, 8), g(1, 8), g(1)), 0),
        ("relu.default", (g(LARGE),), 0),
        ("relu.default", (g(),), 0),
        ("dot.default", (g(8), g(8)), 0),  # products of one number
        ("linear.default", (g(8), g(8)), 0),
        ("linear.default", (g(LARGE, 8), g(8)), 0),
        # 32 blocks of 64 threads for each column.
        ("linear.default", (g(4096, 8), g(64, 8), g(64)), 4 * 64 * 32 * 64),
        ("linear.default", (g(4096, 8), g(64, 8)), 0),
    ],
)
def test_bytes_of_partial_sums(op: str, given: tuple[Any, ...], expected: int) -> None:
    """Without the semaphores."""
    execution, call = eager(f"aten.{op}", *given)
    _, (found,) = buffers.gradient_buffers(call, execution.layouts)
    assert next(iter(found), 0) == expected


def test_gradients_of_two_operands_are_computed_from_the_last() -> None:
    """Each in the result's shape, until all are there; then the one that is repeated is summed."""

    def found(op: str, *given: Any) -> Any:
        execution, call = eager(f"aten.{op}", *given)
        first, parts = buffers.gradient_buffers(call, execution.layouts)
        return [*first], [[*each] for each in parts]

    size = 4 * 4 * 8
    assert found("mul.Tensor", g(4, 8), g(8)) == ([], [[size], [size, 0]])
    assert found("mul.Tensor", g(4, 8), t(8)) == ([], [[]])
    assert found("mul.Tensor", t(4, 8), t(8)) == ([], [[]])
    assert found("mm.default", g(4, 8), g(8, 6)) == ([], [[]])
    assert found("mul.Tensor", g(LARGE), g(LARGE)) == ([], [[], [0]])
    assert found("mul.Tensor", g(LARGE), g(1)) == ([], [[4 * LARGE], [4 * LARGE, PARTS]])


@pytest.mark.parametrize(
    ("op", "given", "expected"),
    [
        ("mm.default", (g(4, 8), g(8, 6)), True),
        ("linear.default", (g(4, 8), g(6, 8)), True),
        ("linear.default", (g(4, 8), g(6, 8), g(6)), False),
        ("addmm.default", (g(6), g(4, 8), g(8, 6)), False),
        ("mul.Tensor", (g(4, 8), g(8)), True),
        ("addcmul.default", (g(4, 8), g(4, 8), g(4, 8)), False),
        ("addcdiv.default", (g(4, 8), g(4, 8), g(4, 8)), False),
        ("sum.default", (g(4, 8),), False),
        ("softmax.int", (g(4, 8), -1), False),
    ],
)
def test_which_gradient_is_computed_first(op: str, given: tuple[Any, ...], expected: bool) -> None:
    _, call = eager(f"aten.{op}", *given)
    assert buffers.is_last_operand_first(call) is expected


INDEX = t(4, dtype="int64")


@pytest.mark.parametrize(
    ("op", "given", "kept"),
    [
        ("conv2d.default", (g(2, 4, 8, 8), t(6, 4, 3, 3), t(6)), ["x0", "x1"]),
        ("conv2d.default", (t(2, 4, 8, 8), t(6, 4, 3, 3), t(6)), []),
        ("max_pool2d.default", (g(2, 3, 8, 8), (2, 2)), ["x0"]),
        ("adaptive_avg_pool2d.default", (g(2, 3, 8, 8), (2, 2)), ["x0"]),
        ("adaptive_avg_pool2d.default", (g(2, 3, 8, 8), (1, 1)), []),  # a mean
        ("avg_pool2d.default", (g(2, 3, 8, 8), (2, 2)), []),
        ("constant_pad_nd.default", (g(4, 8), (1, 1), 0.0), []),
        ("pad.default", (g(1, 4, 8), (1, 1), "reflect"), ["x0"]),
        ("gather.default", (g(10, 8), 0, t(4, 8, dtype="int64")), ["x0"]),
        ("pow.Tensor_Scalar", (g(4, 8), 2), ["x0"]),
        ("index_add.default", (g(10, 8), 0, INDEX, g(4, 8)), ["x3"]),
        ("index_copy.default", (g(10, 8), 0, INDEX, g(4, 8)), ["x3"]),
        ("grid_sampler.default", (g(2, 3, 8, 8), t(2, 4, 4, 2), 0, 0, False), ["x0", "x1"]),
        ("relu.default", (g(4, 8),), []),
        ("mm.default", (g(4, 8), g(8, 6)), []),
    ],
)  # fmt: skip
def test_operands_that_autograd_keeps_for_their_shape(
    op: str, given: tuple[Any, ...], kept: list[str]
) -> None:
    execution, call = eager(f"aten.{op}", *given)
    assert [*buffers.kept_operands(call, execution.layouts.values)] == kept


@pytest.mark.parametrize(
    ("op", "given", "expected"),
    [
        ("silu_.default", (g(4, 8),), 4 * 4 * 8),  # its gradient reads what it overwrites
        ("silu.default", (g(4, 8),), 0),
        ("silu_.default", (t(4, 8),), 0),
        ("relu_.default", (g(4, 8),), 0),  # that of the result tells
    ],
)
def test_overwritten_operands_that_a_gradient_reads(op: str, given: tuple[Any, ...], expected: int) -> None:
    execution, call = eager(f"aten.{op}", *given)
    assert buffers.saved_input_bytes(call, execution.layouts.values) == expected


def test_the_buffer_of_a_bias_of_a_convolution() -> None:
    """Sums over images and positions, in the order in which the result's gradient lies: as the result."""
    given = g(4, 8, 256, 256, dtype="bfloat16"), t(8, 8, 1, 1, dtype="bfloat16"), g(8, dtype="bfloat16")
    execution, call = eager("aten.conv2d.default", *given)
    pixels = 256 * 256
    in_order = reduction_buffers(IMAGES, (8 * pixels, pixels, 256, 1), {0, 2, 3}, 4, HOPPER)
    last = reduction_buffers(IMAGES, (8 * pixels, 1, 256 * 8, 8), {0, 2, 3}, 4, HOPPER)
    assert sum(in_order) != sum(last)  # type: ignore[arg-type]
    for strides, expected in ((None, in_order), ((8 * pixels, 1, 256 * 8, 8), last)):
        if strides is not None:
            execution.layouts.known[call.node.outputs[0]] = strides  # type: ignore[index]
        _, (*_, (bias,)) = buffers.gradient_buffers(call, execution.layouts)
        assert bias == sum(expected)  # type: ignore[arg-type]
