"""How gradients lie: beside those that autograd of PyTorch makes of a gradient that lies in some order."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from graphflops.kernels.beside import GradientLayouts
from tests.memory.one_call import eager
from tests.one_call import g
from tests.support import t


def laid(shape: tuple[int, ...], choose: random.Random) -> torch.Tensor:
    """A gradient whose axes lie in some order."""
    order = choose.sample(range(len(shape)), len(shape))
    x = torch.ones([shape[axis] for axis in order])
    return x.permute([order.index(axis) for axis in range(len(shape))])


OPERATORS: list[tuple[str, Any, tuple[Any, ...]]] = [
    ("transpose.int", lambda x: x.transpose(0, 2), (0, 2)),
    ("transpose.int", lambda x: x.transpose(-1, 1), (-1, 1)),
    ("permute.default", lambda x: x.permute(2, 0, 1), ((2, 0, 1),)),
    ("permute.default", lambda x: x.permute(1, -1, 0), ((1, -1, 0),)),
    ("unsqueeze.default", lambda x: x.unsqueeze(1), (1,)),
    ("silu.default", torch.nn.functional.silu, ()),
    ("relu.default", torch.relu, ()),
    ("leaky_relu.default", torch.nn.functional.leaky_relu, ()),
    ("hardtanh.default", torch.nn.functional.hardtanh, ()),
    ("erf.default", torch.erf, ()),
    ("clamp.default", lambda x: x.clamp(0.0, 1.0), (0.0, 1.0)),
    ("maximum.default", lambda x: torch.maximum(x, torch.zeros(2, 3, 4)), (t(2, 3, 4),)),
    (
        "masked_fill.Scalar",
        lambda x: x.masked_fill(torch.ones(2, 3, 4) > 0, 0.0),
        (t(2, 3, 4, dtype="bool"), 0.0),
    ),
    ("neg.default", lambda x: x.neg(), ()),
    ("mul.Tensor", lambda x: x * 3, (3,)),
    ("add.Tensor", lambda x: x + 1, (1,)),
    ("flatten.using_ints", lambda x: x.flatten(0, 1), (0, 1)),
    ("view.default", lambda x: x.view(6, 4), ((6, 4),)),
]


@pytest.mark.parametrize(("name", "function", "more"), OPERATORS, ids=[name for name, *_ in OPERATORS])
def test_the_gradient_of_an_operand_lies_as_that_of_autograd(name: str, function: Any, more: Any) -> None:
    choose = random.Random(25)
    for _ in range(12):
        x = torch.ones(2, 3, 4, requires_grad=True)
        y = function(x)
        gradient = laid(tuple(y.shape), choose)
        (of_x,) = torch.autograd.grad(y, x, gradient)
        execution, call = eager(f"aten.{name}", g(2, 3, 4), *more)
        found = GradientLayouts(execution.layouts, ())
        found.known["y0"] = gradient.stride()
        copies = found.copies(call)
        assert found.known.get("x0", (12, 4, 1)) == of_x.stride(), gradient.stride()
        is_copied = of_x.untyped_storage().data_ptr() != gradient.untyped_storage().data_ptr()
        if "flatten" in name or "view" in name:
            assert bool(copies) is is_copied


def known(name: str, *operands: Any, strides: tuple[int, ...] | None, seeds: tuple[str, ...] = ()) -> Any:
    execution, call = eager(f"aten.{name}", *operands)
    found = GradientLayouts(execution.layouts, seeds)
    if strides is not None:
        found.known["y0"] = strides
    return found, found.copies(call)


def test_a_sum_of_all_elements_repeats_one_number() -> None:
    """Which elementwise kernels write out, additions pass on, and products copy for each factor."""
    found, copies = known("relu.default", g(2, 3), strides=None, seeds=("y0",))
    assert (found.known["y0"], copies, "x0" in found.known) == ((0, 0), [], False)
    found, _ = known("add.Tensor", g(2, 3), g(2, 3), strides=(0, 0))
    assert (found.known["x0"], found.known["x1"]) == ((0, 0), (0, 0))
    found, _ = known("add.Tensor", g(2, 3), g(3), strides=(0, 0))
    assert "x1" not in found.known
    _, copies = known("mm.default", g(2, 3), g(3, 4), strides=(0, 0))
    assert copies == [(0, 0)] * 2
    found.known.pop("x0", None)
    assert "x0" not in found.known


@pytest.mark.parametrize(
    ("name", "operands", "strides", "copies"),
    [
        ("linear.default", (g(2, 3, 4), g(5, 4)), (5, 10, 1), 1),  # rows that are not evenly apart
        ("linear.default", (g(2, 3, 4), g(5, 4)), (15, 5, 1), 0),
        ("linear.default", (g(6, 4), g(5, 4)), (1, 6), 0),
        ("linear.default", (g(4), g(5, 4)), (2,), 0),
        ("linear.default", (g(4), g(4)), (), 0),
        ("matmul.default", (g(2, 3, 4), g(2, 4, 5)), (5, 10, 1), 0),
        # A repeated number is copied for each of two products, not for a bias.
        ("linear.default", (g(2, 3, 4), g(5, 4), g(5)), (0, 0, 0), 2),
        ("linear.default", (g(2, 3, 4), g(5, 4)), (5, 0, 1), 2),
        ("linear.default", (g(2, 3, 4), t(5, 4)), (0, 0, 0), 1),
        ("layer_norm.default", (g(2, 3), (3,)), (1, 2), 1),
        ("layer_norm.default", (g(2, 3), (3,)), (3, 1), 0),
        ("batch_norm.default", (g(2, 3, 4, 4), g(3), g(3), None, None, True, 0.1, 1e-5, True), (48, 1, 12, 3), 0),
    ],
)  # fmt: skip
def test_gradients_that_an_operator_cannot_read_are_copied(
    name: str, operands: Any, strides: Any, copies: int
) -> None:
    found, made = known(name, *operands, strides=strides)
    assert made == [strides] * copies
    if "norm" in name and "layer" in name:
        assert found.known["x0"] == (3, 1)


def test_without_a_layout_elementwise_gradients_lie_as_results() -> None:
    execution, call = eager("aten.relu.default", g(2, 3), lies={"x0": (1, 2), "y0": (1, 2)})
    found = GradientLayouts(execution.layouts, ())
    found.copies(call)
    assert found.known["x0"] == (1, 2)
    execution, call = eager("aten.transpose.int", g(2, 3), 0, 1)
    found = GradientLayouts(execution.layouts, ())
    assert (found.copies(call), found.known) == ([], {})


@pytest.mark.parametrize(("is_copy", "expected"), [(True, {"x0": (6, 1)}), (False, {})])
def test_a_copy_in_another_shape_has_its_gradient_in_order(is_copy: bool, expected: Any) -> None:
    """The operand lies by columns: a copy of it is in order, as its gradient is; a view says nothing."""
    execution, call = eager("aten.reshape.default", g(4, 6), (2, 2, 6), lies={"x0": (1, 4)})
    execution.layouts.copies = {"y0"} if is_copy else set()
    found = GradientLayouts(execution.layouts, ())
    assert (found.copies(call), found.known) == ([], expected)


@pytest.mark.parametrize(
    ("op", "args"), [("aten.zeros.default", ((2, 3),)), ("mine.unknown.default", (g(2, 3),))]
)
def test_calls_without_operands_or_of_unknown_results_copy_no_gradients(op: str, args: Any) -> None:
    execution, call = eager(op, *args)
    found = GradientLayouts(execution.layouts, ())
    assert (found.copies(call), found.known) == ((), {})
