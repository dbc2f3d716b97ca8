"""Norms and losses at the borders between their kernels, and the loss of a training step, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops import Training
from graphflops.graph import Graph, Input, Node, Output, Ref
from graphflops.kernels.call import Sizes
from graphflops.kernels.kernel import Kernel, Rows, Strided
from graphflops.kernels.rowwise import loss_bytes, loss_kernels
from graphflops.passes.bind import bind
from graphflops.passes.price import price
from graphflops.tensor import TensorType
from tests.memory.one_call import eager
from tests.one_call import g
from tests.support import t
from tests.time.one_call import backward, forward, made, one_call, pointwise


@pytest.mark.parametrize(
    ("op", "given", "rows"),
    [
        ("layer_norm", (g(6, 4, 64), (64,), g(64), g(64)), Rows(24, 64)),
        ("layer_norm", (g(6, 4, 64), (4, 64), g(4, 64), g(4, 64)), Rows(6, 256)),
        ("layer_norm", (g(6, 4, 64), (64,)), Rows(24, 64)),  # without a weight: the last axis
        ("layer_norm", (g(4, 8), (8,), g(8)), Rows(4, 8)),
        ("rms_norm", (g(6, 4, 64), (64,), g(64)), Rows(24, 64)),
        ("rms_norm", (g(6, 4, 64), (64,)), Rows(24, 64)),
        ("group_norm", (g(2, 8, 6), 4, g(8), g(8)), Rows(2 * 4, 2 * 6)),
        ("group_norm", (g(2, 8), 8), Rows(16, 1)),
    ],
)
def test_rows_of_norms(op: str, given: tuple[Any, ...], rows: Rows) -> None:
    (first, *_) = forward(f"aten.{op}.default", *given)
    assert (first.family, first.sizes) == ("normalization", rows)


def test_the_work_of_a_norm_is_its_operators() -> None:
    """Seven operations of each element, sums, differences and both of weight and bias, and a root of each row."""
    given = g(6, 4, 64), (64,), g(64), g(64)
    elements, roots = 6 * 4 * 64, 6 * 4
    (there,) = forward("aten.layer_norm.default", *given)
    assert there.vector_flops == 7 * elements + roots
    (back, of_weight) = backward("aten.layer_norm.default", *given)
    assert (back.vector_flops, of_weight.vector_flops) == (7 * elements + roots, 4 * elements)
    assert (back.read_bytes, back.written_bytes) == (2 * 4 * elements, 4 * elements)


@pytest.mark.parametrize(("columns", "families"), [(64, 1), (63, 2), (62, 2), (60, 1), (4, 1), (1, 2)])
def test_rows_of_a_multiple_of_four_are_read_once(columns: int, families: int) -> None:
    kernels = forward("aten.layer_norm.default", t(6, columns), (columns,), t(columns), t(columns))
    assert len(kernels) == families
    assert [kernel.written_bytes for kernel in kernels] == [0] * (families - 1) + [4 * 6 * columns]


@pytest.mark.parametrize(
    ("shape", "axis", "rows", "variant"),
    [
        ((8, 1, 1), 0, Rows(8, 4 * 6), "weight_norm"),
        ((1, 1, 6), 2, Rows(6, 8 * 4, False), "weight_norm_last"),
        ((), -1, Rows(1, 8 * 4 * 6, False), "weight_norm_last"),  # one norm of the whole
        ((1, 1, 1), 0, Rows(1, 8 * 4 * 6), "weight_norm"),
    ],
)
def test_weight_norms(shape: tuple[int, ...], axis: int, rows: Rows, variant: str) -> None:
    size, elements = 4 * 8 * 4 * 6, 8 * 4 * 6
    (found,) = forward("aten._weight_norm.default", g(8, 4, 6), g(*shape), axis)
    assert found == Kernel("normalization", "float32", 0, 2 * elements, size, size, rows, variant)


def test_sums_of_a_group_norm_are_of_channels() -> None:
    """Two images of eight channels of six positions."""
    first, *rest = backward("aten.group_norm.default", g(2, 8, 6), 4, g(8), g(8))
    assert (first.sizes, first.written_bytes, first.variant) == (Rows(16, 6), 0, "channel_sums")
    assert [kernel.vector_flops for kernel in rest] == [0, 4 * 2 * 8 * 6, 0]


def test_a_group_norm_of_vectors_has_no_sums_of_channels() -> None:
    """Two vectors of eight channels in groups of two; few blocks go through the vectors for the weight."""
    assert len(forward("aten.group_norm.default", g(2, 8), 4, g(8), g(8))) == 2
    factors, applied, summed = backward("aten.group_norm.default", g(2, 8), 4, g(8), g(8))
    assert (factors.sizes, factors.variant) == (Rows(2 * 4, 2), "moments_of_few")
    assert made([applied]) == [pointwise(4 * 16, 2 * 4 * 16, 4 * 16, Strided(16, 2, 2 + 3))]
    of_weight = "reduction", "layer_norm_weight", 4 * 16, 2 * 4 * 16, 0, Rows(8, 6 * 2, False)
    assert made([summed]) == [of_weight]
    assert len(backward("aten.group_norm.default", t(2, 8), 4, g(8), g(8))) == 1


SMALL = pointwise(0, 0, 0)
CLASSES = t(10, dtype="int64")


def test_losses_with_a_share_of_each_class() -> None:
    """Products of scores and shares, their sums over classes, and two kernels for the mean; the gradient has no zeros."""
    n = 10 * 8
    softmax = ("softmax", "log_softmax", 5 * n, 4 * n, 4 * n, Rows(10, 8))
    back = ("softmax", "log_softmax_backward", 5 * n, 8 * n, 4 * n, Rows(10, 8))
    each, sums = pointwise(2 * n, 8 * n, 4 * n), ("reduction", "", n, 4 * n, 4 * 10, Rows(10, 8))
    given = "aten.cross_entropy_loss.default", g(10, 8), t(10, 8)
    assert made(forward(*given)) == [softmax, each, sums, SMALL, SMALL]
    assert made(backward(*given)) == [SMALL, SMALL, each, back]


def test_shares_of_each_class_of_an_image_are_added_up_along_the_classes() -> None:
    """Of two images of eight classes and fifteen positions."""
    given = "aten.cross_entropy_loss.default", g(2, 8, 3, 5), t(2, 8, 3, 5)
    (sums,) = [kernel for kernel in forward(*given) if kernel.family == "reduction"]
    assert (sums.sizes, sums.written_bytes) == (Rows(2 * 15, 8), 4 * 2 * 15)


def test_losses_that_are_smoothed() -> None:
    """The sum of all scores of a row, its mean, and eight kernels of a few numbers."""
    n = 10 * 8
    given = "aten.cross_entropy_loss.default", g(10, 8), CLASSES, None, 1, -100, 0.1
    softmax, picked, sums, *small, first, second = made(forward(*given))
    assert (softmax[0], picked[0]) == ("softmax", "gather")
    assert sums == ("reduction", "", n, 4 * n, 4 * 10, Rows(10, 8))
    assert small == [SMALL] * 8
    assert first == second == ("reduction", "", 1, 4, 4, Rows(1, 1))
    *before, each, zeros, scatter, back = made(backward(*given))
    assert before == [SMALL] * 6
    assert each == pointwise(2 * n, 8 * n, 4 * n)
    assert zeros == pointwise(0, 0, 4 * n)
    assert (scatter[0], back[0]) == ("scatter", "softmax")


@pytest.mark.parametrize(
    ("shape", "labels", "softmax", "turns"),
    [  # a block of 32 to 1,024 threads, by 16 labels each and the nearest power of two
        ((10, 8), (10,), Rows(10, 8), 1),
        ((512, 8), (512,), Rows(512, 8), 512 // 32),
        ((700, 8), (700,), Rows(700, 8), 22),  # 44 threads are rounded to 32: 21 turns, and a part of one
        ((4096, 8), (4096,), Rows(4096, 8), 4096 // 256),
        ((65536, 2), (65536,), Rows(65536, 2), 65536 // 1024),
        # 1,024 threads for an image, more from 256 * 1,024 pixels on
        ((2, 8, 3), (2, 3), Rows(1, 8, False), 1),
        ((2, 8, 32, 64), (2, 32, 64), Rows(2 * 2048 // 1024, 8, False), 2),
        ((2, 2, 512, 512), (2, 512, 512), Rows(2 * 2**18 // 1024, 2, False), 2**18 // (2 * 1024)),
        ((8,), (), Rows(1, 8), 1),  # scores of one sample
        ((10, 1), (10,), Rows(10, 1), 1),
    ],
)
def test_rows_of_classes(shape: tuple[int, ...], labels: tuple[int, ...], softmax: Rows, turns: int) -> None:
    given = "aten.cross_entropy_loss.default", g(*shape), t(*labels, dtype="int64")
    first, picked = forward(*given)
    assert first.sizes == softmax
    assert picked.sizes == Rows(1, turns)
    *_, scatter, back = backward(*given)
    assert (scatter.sizes, back.sizes) == (picked.sizes, softmax)


def test_a_loss_of_no_elements_is_no_kernel() -> None:
    for op, given in (
        ("mse_loss", (g(0, 8), t(0, 8))),
        ("cross_entropy_loss", (g(0, 8), t(0, dtype="int64"))),
    ):
        assert forward(f"aten.{op}.default", *given) == []
        assert backward(f"aten.{op}.default", *given) == []
    assert len(forward("aten.mse_loss.default", g(), t())) == 1  # one element is its own mean
    assert len(backward("aten.mse_loss.default", g(), t())) == 2


@pytest.mark.parametrize(
    ("x", "labels", "reduction", "expected"),
    [
        (g(10, 8), t(10, 8), 1, 4 * 10 * 8),
        (g(10, 8), CLASSES, 1, 0),
        (g(10, 8), t(10, 8, dtype="bfloat16"), 2, 4 * 10 * 8),
        (g(10, 8, dtype="bfloat16"), t(10, 8), 2, 2 * 10 * 8),
    ],
)
def test_bytes_of_losses_of_each_class(
    x: TensorType, labels: TensorType, reduction: int, expected: int
) -> None:
    execution, call = eager("aten.cross_entropy_loss.default", x, labels, None, reduction)
    assert loss_bytes(call, execution.layouts) == expected


def step(*shapes: tuple[int, ...], loss: str = "sum", dtype: str = "float32") -> Any:
    """A training step of a program with a result of each shape; `given` has no loss of its own."""
    wanted = {f"x{place}": g(*shape, dtype=dtype) for place, shape in enumerate(shapes)}
    values = {**wanted, "mask": t(4)}
    nodes = [
        Node(f"y{n}", "aten.relu.default", (Ref(name),), outputs=(f"y{n}",)) for n, name in enumerate(values)
    ]
    outputs = tuple(Output(Ref(node.name)) for node in nodes)
    graph = Graph(tuple(nodes), values, tuple(Input(name, "user") for name in values), outputs)
    training = None if loss == "none" else Training(grad_inputs=tuple(wanted), optimizer="none", loss=loss)  # type: ignore[arg-type]
    return price(graph, bind(graph, {}, {}), training=training)


def kernels(program: Any, *, stores_gradients: bool = False) -> list[Any]:
    return made(loss_kernels(program, Sizes({}), stores_gradients=stores_gradients))


@pytest.mark.parametrize("loss", ["sum", "mean"])
@pytest.mark.parametrize(("dtype", "width"), [("float32", 4), ("bfloat16", 2)])
def test_results_are_summed_and_their_sums_added(loss: str, dtype: str, width: int) -> None:
    """Of two results with a gradient; the gradient of the sum is one number."""
    program = step((6, 5), (7,), loss=loss, dtype=dtype)
    sums = [("reduction", "", n, width * n, width, Rows(1, n)) for n in (30, 7)]
    added, one = pointwise(0, 2 * width, width), pointwise(0, 0, width)
    stored = [("elementwise", "strided.repeated", 0, width, width * n, Strided(n, 1, 2)) for n in (30, 7)]
    written = stored if loss == "mean" else []  # a mean divides its gradient
    assert kernels(program) == [*sums, added, one, *written]
    assert kernels(program, stores_gradients=True) == [*sums, added, one, *stored]
    assert kernels(step((6, 5), loss=loss, dtype=dtype)) == [sums[0], one, *written[:1]]
    assert len(kernels(step((6, 5), (7,), (8,), loss=loss))) == 3 + 2 + 1 + (3 if loss == "mean" else 0)


@pytest.mark.parametrize("loss", ["given", "none"])
def test_other_steps_have_no_such_loss(loss: str) -> None:
    assert kernels(step((6, 5), loss=loss), stores_gradients=True) == []


def test_a_frozen_operand_of_a_loss_has_no_gradient() -> None:
    assert one_call("aten.mse_loss.default", t(10, 8), t(10, 8)).gradient is None
    assert backward("aten.mse_loss.default", t(10, 8), t(10, 8)) == []


@pytest.mark.parametrize(
    ("weight", "bias", "count"), [(True, True, 1), (True, False, 1), (False, True, 1), (False, False, 0)]
)
@pytest.mark.parametrize("name", ["layer_norm", "group_norm"])
def test_gradients_of_weight_and_bias_are_one_kernel(name: str, weight: bool, bias: bool, count: int) -> None:
    """Whichever of them is wanted."""
    vectors = [g(8) if wanted else t(8) for wanted in (weight, bias)]
    given = (g(4, 8), (8,), *vectors) if name == "layer_norm" else (g(2, 8, 6), 4, *vectors)
    frozen = (g(4, 8), (8,), t(8), t(8)) if name == "layer_norm" else (g(2, 8, 6), 4, t(8), t(8))
    op = f"aten.{name}.default"
    assert len(backward(op, *given)) == len(backward(op, *frozen)) + count
