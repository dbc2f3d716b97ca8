"""What gradients of eager calls on a GPU need beside what they make, in programs of a few calls, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.devices import HOPPER
from graphflops.execution.runs import Runs
from graphflops.memory.on_gpu import Eager, GraphOnGpu, OnGpu
from tests.inductor.several_calls import program_of_calls
from tests.one_call import g
from tests.support import t


def eager(given: Any, *calls: Any, kind: type[OnGpu] = Eager, **more: Any) -> Any:
    program = program_of_calls(given, *calls, **more)
    return kind(program.main, program.training is not None, Runs((), HOPPER, is_eager=True))


CONV = ("y", "conv1d.default", "x", "w")
SEQUENCE = {"x": g(2, 8, 50), "w": g(4, 8, 3)}


A = ("a", "sin.default", "x")
PART = ("v", "slice.Tensor", "a", 0, 0, 2)
WHOLE_AND_PART = 4 * 4 * 64 + 4 * 2 * 64


@pytest.mark.parametrize(
    ("calls", "views", "copied"),
    [
        ([A, ("w", "mul_.Tensor", "a", 2.0)], set(), [0, 0]),
        ([A, PART, ("w", "mul_.Tensor", "v", 2.0)], {"v", "w"}, [0, 0, WHOLE_AND_PART]),
        (
            [A, PART, ("w", "mul_.Tensor", "v", 2.0), ("u", "relu_.default", "w")],
            {"v", "w", "u"},
            [0, 0, WHOLE_AND_PART, WHOLE_AND_PART],
        ),
        (
            # A dropout in evaluation returns its operand, which is a view.
            [A, PART, ("d", "dropout.default", "v", 0.5, False), ("w", "mul_.Tensor", "d", 2.0)],
            {"v", "d", "w"},
            [0, 0, 0, WHOLE_AND_PART],
        ),
        ([A, PART, ("w", "mul.Tensor", "v", 2.0)], {"v"}, [0, 0, 0]),
        ([A, ("d", "dropout.default", "a", 0.5, False), ("w", "mul_.Tensor", "d", 2.0)], set(), [0, 0, 0]),
    ],
)
def test_copies_of_gradients_where_a_view_is_overwritten(
    calls: Any, views: set[str], copied: list[int]
) -> None:
    execution = eager({"x": g(4, 64)}, *calls)
    assert execution.views == views
    assert [execution.copied_slices(call) for call in execution.calls] == copied
    for call, size in zip(execution.calls, copied, strict=True):
        if call.node.operator.mutates:
            assert execution.backward_bytes(call) + execution.copied_slices(call) == size


def test_a_view_that_wants_no_gradient_is_overwritten_without_copies() -> None:
    execution = eager({"x": t(4, 64)}, A, PART, ("w", "mul_.Tensor", "v", 2.0))
    assert [execution.copied_slices(call) for call in execution.calls] == [0, 0, 0]


Y = 4 * 8 * 16


@pytest.mark.parametrize(
    ("op", "given", "repeated", "buffers", "is_afterwards", "is_transposed"),
    [
        ("linear.default", {"x": g(8, 64), "w": g(16, 64), "b": g(16)}, Y, 2, True, True),
        ("linear.default", {"x": g(8, 64), "w": g(16, 64)}, Y, 2, False, True),
        ("linear.default", {"x": t(8, 64), "w": g(16, 64)}, Y, 1, False, True),
        ("linear.default", {"x": t(8, 64), "w": t(16, 64), "b": g(16)}, Y, 1, True, True),
        ("mm.default", {"x": g(8, 64), "w": g(64, 16)}, Y, 2, False, False),
        ("relu.default", {"x": g(8, 16)}, 0, 1, False, False),
        ("view.default", {"x": g(8, 16), "size": (16, 8)}, 0, 1, False, False),
    ],
)
def test_a_gradient_that_is_one_number_is_copied_for_products(
    op: str, given: Any, repeated: int, buffers: int, is_afterwards: bool, is_transposed: bool
) -> None:
    """That of a sum; a copy for each of the two factors that wants a gradient."""
    tensors = {name: value for name, value in given.items() if name != "size"}
    operands = [value if name == "size" else name for name, value in given.items()]
    execution = eager(tensors, ("y", op, *operands))
    (call,) = execution.calls
    assert execution.repeated_bytes(call) == repeated
    assert execution.gradient_kernels(call, True)[:2] == ((), ((repeated,),) * buffers)
    assert execution.gradient_kernels(call, False).sums_afterwards is is_afterwards
    assert execution.gradient_kernels(call, False).is_transposed is is_transposed


@pytest.mark.parametrize(
    ("op", "operands", "result"),
    [
        ("max_pool2d.default", (g(2, 3, 8, 8), (2, 2), (2, 2)), 4 * 96),
        ("batch_norm.default", (g(4, 8, 4, 4), None, None, None, None, True, 0.1, 1e-5, True), 4 * 512),
        ("layer_norm.default", (g(40, 64), (64,)), 4 * 2560),
    ],
)
def test_kernels_that_read_a_gradient_in_order_copy_one_that_is_repeated(
    op: str, operands: Any, result: int
) -> None:
    execution = eager({"x": operands[0]}, ("y", op, "x", *operands[1:]))
    (call,) = execution.calls
    assert execution.repeated_bytes(call) - execution.backward_bytes(call) == result


def test_an_operand_that_a_product_cannot_read_is_copied_and_kept() -> None:
    turn, product = ("p", "transpose.int", "x", 1, 2), ("y", "linear.default", "p", "w")
    execution, copy = eager({"x": g(2, 64, 8), "w": g(16, 64)}, turn, product), 4 * 2 * 8 * 64
    call = execution.calls[-1]
    assert execution.saved_copies(call) == {"p": copy}
    assert (execution.saved_bytes(call), execution.saved_values(call)) == (copy, ["w"])
    assert (execution.brief_copies(call, True), execution.brief_copies(call, False)) == ([], [copy])
    assert execution.made_first(call) == ([copy], [])
    assert execution.forward_bytes(call, copy) == 0
    execution = eager({"x": t(2, 64, 8), "w": t(16, 64)}, turn, product)
    call = execution.calls[-1]
    assert execution.made_first(call) == ([], [copy])
    assert execution.forward_bytes(call, 0) == copy


def test_a_mask_that_is_converted_is_not_kept_itself() -> None:
    """Of truth values a copy in float32 is made, beside the sums of rows."""
    given = {name: g(2, 4, 16, 64) for name in "qkv"}
    attention = ("y", "scaled_dot_product_attention.default", "q", "k", "v", "m")
    execution = eager(given | {"m": t(16, 16, dtype="bool")}, attention)
    (call,) = execution.calls
    assert execution.saved_values(call) == ["q", "k", "v", "y"]
    assert execution.saved_bytes(call) == 4 * 16 * 16 + 4 * 2 * 4 * 16
    assert execution.made_first(call) == ([4 * 16 * 16], [])
    execution = eager(given | {"m": t(16, 16)}, attention)
    assert execution.saved_values(execution.calls[0]) == ["q", "k", "v", "m", "y"]
    assert execution.saved_bytes(execution.calls[0]) == 4 * 2 * 4 * 16


def test_positions_of_maxima_are_what_is_saved() -> None:
    pool = ("y", "max_pool2d.default", "x", (2, 2), (2, 2))
    execution = eager({"x": g(2, 3, 8, 8)}, pool)
    (call,) = execution.calls
    assert execution.saved_bytes(call) == 8 * 96
    assert execution.forward_bytes(call, 8 * 96) == 0
    execution = eager({"x": t(2, 3, 8, 8)}, pool)
    assert execution.forward_bytes(execution.calls[0], 0) == 8 * 96  # they are computed in any case


def test_what_runs_a_graph_holds_a_value_until_its_last_use() -> None:
    calls = A, ("b", "relu.default", "a"), ("c", "exp.default", "b")
    execution = eager({"x": t(4, 64)}, *calls, kind=GraphOnGpu)
    assert execution.has_fast_paths is False
    assert execution.held_until() == {}
    assert Eager.has_fast_paths


def test_buffers_of_the_gradients_of_a_sequence() -> None:
    """One that repeats one number is copied whole for both kernels of the convolution."""
    execution = eager(SEQUENCE, CONV)
    call = execution.calls[0]
    assert execution.gradient_kernels(call, False)[:2] == ([], [(0,), (0,)])
    assert (execution.backward_bytes(call), execution.repeated_bytes(call)) == (0, 4 * 2 * 4 * 48)


def test_buffers_of_gradients_that_are_formulas() -> None:
    """The product of gradient and result of a softmax, and a cosine, are tensors of their own."""
    for call, count in ((("y", "softmax.int", "x", -1), 1200), (("y", "sin.default", "x"), 1200)):
        execution = eager({"x": g(40, 30)}, call)
        one = execution.calls[0]
        is_softmax = call[1] == "softmax.int"
        assert execution.gradient_kernels(one, False)[:2] == ((4 * count,), ([],))
        assert execution.backward_bytes(one) == 4 * count
        assert execution.repeated_bytes(one) == 4 * count * (2 if is_softmax else 1)
        assert execution.gradient_kernels(one, True)[:2] == ((), ((4 * count * (2 if is_softmax else 1),),))


def test_calls_without_a_gradient_need_no_buffers() -> None:
    execution = eager({"x": t(40, 30)}, ("y", "softmax.int", "x", -1))
    (call,) = execution.calls
    assert execution.gradient_kernels(call, False)[:2] == ((), ((0,),))
    execution = eager({"x": t(8, 64), "w": t(64, 16)}, ("y", "mm.default", "x", "w"))
    (call,) = execution.calls
    assert execution.gradient_kernels(call, False)[:2] == ((), ((0,),))
    assert not execution.gradient_kernels(call, False).sums_afterwards


def test_a_convolution_adds_its_bias_with_the_rest() -> None:
    given = {"x": g(2, 8, 50), "w": g(4, 8, 3), "b": g(4)}
    execution = eager(given, (*CONV, "b"))
    (call,) = execution.calls
    assert not execution.gradient_kernels(call, False).sums_afterwards
    assert not execution.gradient_kernels(call, False).is_transposed
    assert len(execution.gradient_kernels(call, False).buffers) == 3


def test_views_that_are_overwritten_are_copied_before_the_buffers_of_the_call() -> None:
    calls = A, PART, ("w", "mul_.Tensor", "v", 2.0)
    execution = eager({"x": g(4, 64)}, *calls)
    assert execution.gradient_kernels(execution.calls[-1], False)[:2] == ((), ([WHOLE_AND_PART],))
