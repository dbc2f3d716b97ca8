"""Calls of which an operand or a result has no known type: what cannot be told is no kernel, and nothing fails."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from graphflops.kernels.call import ConcreteCall
from graphflops.kernels.gradients import backward_kernels
from graphflops.kernels.lower import forward_kernels
from tests.one_call import g
from tests.support import t
from tests.time.one_call import one_call

LONG, TRUTH, HALF = (
    t(4, dtype="int64"),
    t(4, 8, dtype="bool"),
    t(1, dtype="bfloat16").dtype,
)
X, IMAGE, HEADS = g(4, 8), g(2, 3, 8, 8), g(2, 4, 16, 8)
SQUARE: Any = (IMAGE, (2, 2))
NORM: Any = (X, (8,), g(8), g(8))
BATCH_NORM: Any = (g(2, 4, 8), g(4), g(4), t(4), t(4), True, 0.1, 1e-5, True)
CELL: Any = (g(4, 10), g(4, 8), g(24, 10), g(24, 8), g(24), g(24))
LSTM: Any = (g(4, 10), (g(4, 8), g(4, 8)), g(32, 10), g(32, 8), g(32), g(32))
RESAMPLED: Any = (IMAGE, None, False, (2.0, 2.0))


def families(call: ConcreteCall) -> tuple[list[str], list[str]]:
    """Those of the kernels of a call, and of its gradients."""
    return (
        [kernel.family for kernel in forward_kernels(call)],
        [kernel.family for kernel in backward_kernels(call)],
    )


def without(op: str, given: tuple[Any, ...], *names: str) -> ConcreteCall:
    """A call of which these operands have no type, as after an operator without a rule; all of them where none is named."""
    call = one_call(f"aten.{op}", *given, outputs=2 if given is LSTM else 1)
    gone = names or call.call.uses
    return ConcreteCall(call.call, {k: v for k, v in call.values.items() if k not in gone}, {}, call.sizes)


@pytest.mark.parametrize(
    ("op", "given"),
    [
        ("linear.default", (g(2, 4, 8), g(6, 8), g(6))),
        ("matmul.default", (g(2, 4, 8), g(2, 8, 6))),
        ("addmm.default", (g(4, 6), X, g(8, 6))),
        ("einsum.default", ("ij,jk->ik", (X, g(8, 6)))),
        ("rms_norm.default", NORM[:3]),
        ("layer_norm.default", NORM),
        ("group_norm.default", (g(2, 4, 8), 2, g(4), g(4))),
        ("batch_norm.default", BATCH_NORM),
        ("max_pool2d.default", SQUARE),
        ("adaptive_avg_pool2d.default", SQUARE),
        ("cross_entropy_loss.default", (X, LONG)),
        ("nll_loss.default", (X, LONG)),
        ("mse_loss.default", (X, X)),
        ("embedding.default", (X, LONG)),
        ("index_select.default", (X, 0, LONG)),
        ("index.Tensor", (X, (LONG,))),
        ("gather.default", (X, 0, t(2, 8, dtype="int64"))),
        ("sum.dim_IntList", (X, (1,))),
        ("mean.dim", (X, (1,))),
        ("amax.default", (X, (1,))),
        ("to.dtype", (X, HALF)),
        ("cat.default", ((X, X), 0)),
        ("expand.default", (g(1, 8), (4, 8))),
        ("slice.Tensor", (X, 0, 0, 2)),
        ("roll.default", (X, (1,), (0,))),
        ("repeat.default", (X, (2, 1))),
        ("gru_cell.default", CELL),
        ("lstm_cell.default", LSTM),
    ],
)
def test_without_types_of_operands_there_is_no_kernel(op: str, given: tuple[Any, ...]) -> None:
    assert families(without(op, given)) == ([], [])


@pytest.mark.parametrize(
    ("op", "given", "names", "forward", "backward"),
    [
        # the bias, or the weight, of a product alone: its sizes follow from operand, result and work
        ("linear.default", (g(2, 4, 8), g(6, 8), g(6)), ("x2",), ["matmul"], ["matmul"] * 2),
        ("linear.default", (g(2, 4, 8), g(6, 8), g(6)), ("x1",), ["matmul"], ["matmul", "reduction"]),
        # one kernel with the work of the operator
        ("conv2d.default", (g(2, 4, 8, 8), g(6, 4, 3, 3), g(6)), ("x0",), ["convolution"], []),
        ("conv2d.default", (g(2, 4, 8, 8), g(6, 4, 3, 3), g(6)), ("x1",), ["convolution"], []),
        ("scaled_dot_product_attention.default", (HEADS,) * 3, ("x0",), ["attention"], []),
        ("scaled_dot_product_attention.default", (HEADS,) * 3, ("x1",), ["attention"], []),
        ("scaled_dot_product_attention.default", (HEADS,) * 3, ("x2",), ["attention"], []),
        ("scaled_dot_product_attention.default", (HEADS,) * 3, (), ["attention"], []),
        ("upsample_bilinear2d.vec", RESAMPLED, (), ["pool"], []),
        ("cumsum.default", (X, 1), (), ["scan"], []),
        ("embedding.default", (X, LONG), ("x0",), ["gather"], []),
        ("gather.default", (X, 0, t(2, 8, dtype="int64")), ("x0",), ["gather"], []),
        ("relu.default", (X,), (), ["elementwise"], []),
        ("mul.Tensor", (X, g(8)), ("x1",), ["elementwise"], ["elementwise"]),
        ("mul.Tensor", (X, g(8)), (), ["elementwise"], []),
        ("where.self", (TRUTH, X, X), (), ["elementwise"], []),
        ("layer_norm.default", NORM, ("x0",), [], []),
        ("scatter_add.default", (X, 1, t(4, 8, dtype="int64"), X), (), ["scatter"], ["other"]),
    ],
)  # fmt: skip
def test_without_the_type_of_one_operand_the_rest_is_told(
    op: str, given: tuple[Any, ...], names: tuple[str, ...], forward: list[str], backward: list[str]
) -> None:
    assert families(without(op, given, *names)) == (forward, backward)


@pytest.mark.parametrize(
    ("op", "given", "forward", "backward"),
    [
        ("linear.default", (g(2, 4, 8), g(6, 8), g(6)), [], []),
        ("matmul.default", (X, g(8, 6)), [], []),
        ("conv2d.default", (g(2, 4, 8, 8), g(6, 4, 3, 3), g(6)), [], []),
        ("softmax.int", (X, -1), [], []),
        ("max_pool2d.default", SQUARE, [], []),
        ("upsample_bilinear2d.vec", RESAMPLED, ["pool"], []),
        ("embedding.default", (X, LONG), [], []),
        ("index_select.default", (X, 0, LONG), [], []),
        ("index.Tensor", (X, (LONG,)), [], []),
        ("cross_entropy_loss.default", (X, LONG), [], ["elementwise", "scatter", "softmax"]),
        ("mse_loss.default", (X, X), [], ["elementwise"] * 4),
        ("sum.dim_IntList", (X, (1,)), [], []),
        ("mean.dim", (X, (1,)), [], []),
        ("cumsum.default", (X, 1), ["scan"], []),
        ("relu.default", (X,), [], []),
        ("mul.Tensor", (X, g(8)), [], []),
        ("where.self", (TRUTH, X, X), [], []),
        ("masked_fill.Scalar", (X, TRUTH, 0.0), [], []),
        ("to.dtype", (X, HALF), [], []),
        ("cat.default", ((X, X), 0), [], []),
        ("split.Tensor", (X, 2), [], []),
        ("expand.default", (g(1, 8), (4, 8)), [], []),
        ("slice.Tensor", (X, 0, 0, 2), [], []),
        ("constant_pad_nd.default", (X, (1, 1), 0.0), [], ["elementwise", "copy"]),
        ("dropout.default", (X, 0.5, True), [], ["elementwise"]),
        ("zeros_like.default", (t(4, 8),), [], []),
        ("gru_cell.default", CELL, [], []),
        ("lstm_cell.default", LSTM, [], []),
    ],
)
def test_a_call_without_results_launches_what_its_operands_tell(
    op: str, given: tuple[Any, ...], forward: list[str], backward: list[str]
) -> None:
    call = one_call(f"aten.{op}", *given, outputs=2 if given is LSTM else 1)
    bare = replace(call.call, estimate=replace(call.call.estimate, out=()))
    assert families(ConcreteCall(bare, call.values, {}, call.sizes)) == (forward, backward)


@pytest.mark.parametrize(
    ("op", "given"),
    [
        ("linear.default", (t(2, 4, 8), t(6, 8), t(6))),
        ("scaled_dot_product_attention.default", (t(2, 4, 16, 8),) * 3),
        ("conv2d.default", (t(2, 4, 8, 8), t(6, 4, 3, 3), t(6))),
        ("layer_norm.default", (t(4, 8), (8,), t(8), t(8))),
        ("softmax.int", (t(4, 8), -1)),
        ("max_pool2d.default", (t(2, 3, 8, 8), (2, 2))),
        ("embedding.default", (t(4, 8), LONG)),
        ("index.Tensor", (t(4, 8), (LONG,))),
        ("sum.dim_IntList", (t(4, 8), (1,))),
        ("relu.default", (t(4, 8),)),
        ("mul.Tensor", (t(4, 8), t(8))),
        ("mse_loss.default", (t(4, 8), t(4, 8))),
        ("expand.default", (t(1, 8), (4, 8))),
        ("slice.Tensor", (t(4, 8), 0, 0, 2)),
        ("cat.default", ((t(4, 8), t(4, 8)), 0)),
        ("gru_cell.default", tuple(replace(x, requires_grad=False) for x in CELL)),
        ("upsample_bilinear2d.vec", (t(2, 3, 8, 8), None, False, (2.0, 2.0))),
    ],
)
def test_a_call_without_gradients_launches_none(op: str, given: tuple[Any, ...]) -> None:
    assert families(one_call(f"aten.{op}", *given))[1] == []
