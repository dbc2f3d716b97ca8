"""Lists of tensors at once, and optimizers that update all parameters in one call."""

from __future__ import annotations

import pytest

from graphflops.errors import ShapeError
from tests.support import price, t

PAIR = (t(8), t(2, 3))  # 14 elements


@pytest.mark.parametrize(
    ("op", "operands", "keywords", "flops", "evaluations"),
    [
        ("aten._foreach_add.List", (PAIR, PAIR), {"alpha": 1}, 14, 0),
        ("aten._foreach_add.List", (PAIR, PAIR), {"alpha": 2}, 2 * 14, 0),
        ("aten._foreach_add.Scalar", (PAIR, 1.0), {}, 14, 0),
        ("aten._foreach_add_.Scalar", (PAIR, 1.0), {}, 14, 0),
        ("aten._foreach_mul.ScalarList", (PAIR, (1.0, 2.0)), {}, 14, 0),
        ("aten._foreach_mul.Tensor", (PAIR, t()), {}, 14, 0),
        ("aten._foreach_addcdiv.Scalar", (PAIR, PAIR, PAIR, -0.1), {}, 3 * 14, 0),
        ("aten._foreach_addcmul.ScalarList", (PAIR, PAIR, PAIR, (1, 0.5)), {}, 2 * 8 + 3 * 6, 0),
        ("aten._foreach_lerp.Scalar", (PAIR, PAIR, 0.1), {}, 3 * 14, 0),
        ("aten._foreach_pow.ScalarAndTensor", (2.0, PAIR), {}, 0, 14),
        ("aten._foreach_sqrt.default", (PAIR,), {}, 0, 14),
        ("aten._foreach_maximum.Scalar", (PAIR, 0.0), {}, 14, 0),
        ("aten._foreach_copy.default", (PAIR, PAIR), {}, 0, 0),
        ("aten._foreach_copy.default", (PAIR, (t(8, dtype="float16"), t(2, 3))), {}, 8, 0),
        ("aten._foreach_zero.default", (PAIR,), {}, 0, 0),
        # as files of torch before 2.7 have them
        ("aten._foreach_sub.List", (), {"self": PAIR, "other": PAIR, "alpha": 2}, 2 * 14, 0),
        ("aten._foreach_addcmul.Scalar", (), {"self": PAIR, "tensor1": PAIR, "tensor2": PAIR}, 2 * 14, 0),
    ],
)
def test_each_item_is_priced_by_itself(op, operands, keywords, flops, evaluations) -> None:
    estimate = price(op, *operands, **keywords)
    assert tuple((x.shape, x.dtype) for x in estimate.out) == tuple((x.shape, x.dtype) for x in PAIR)
    assert (estimate.vector_flops, estimate.transcendentals) == (flops, evaluations)
    assert estimate.cost.written_bytes == 4 * 14


ONE_FLOP = "abs ceil floor neg reciprocal round sign trunc"
ONE_EVALUATION = """acos asin atan cos cosh erf erfc exp expm1 lgamma log log10 log1p log2 rsqrt sigmoid sin sinh tan tanh"""


@pytest.mark.parametrize(
    ("name", "flops", "evaluations"),
    [
        *((name, 1, 0) for name in ONE_FLOP.split()),
        *((name, 0, 1) for name in ONE_EVALUATION.split()),
        ("frac", 2, 0),  # truncate, subtract
        ("clone", 0, 0),
    ],
)
def test_functions_of_each_item(name, flops, evaluations) -> None:
    estimate = price(f"aten._foreach_{name}.default", PAIR)
    assert estimate.out == PAIR
    assert (estimate.vector_flops, estimate.transcendentals) == (flops * 14, evaluations * 14)


@pytest.mark.parametrize("name", ["sub", "div", "minimum", "clamp_max", "clamp_min"])
def test_functions_of_two_lists(name) -> None:
    estimate = price(f"aten._foreach_{name}.List", PAIR, PAIR)
    assert (estimate.out, estimate.vector_flops) == (PAIR, 14)


def test_a_sum_of_powers_of_each_item_is_a_square_and_a_sum_per_element() -> None:
    estimate = price("aten._foreach_powsum.Scalar", PAIR, 2)
    assert (estimate.out, estimate.vector_flops) == ((t(), t()), 2 * 14)


def test_reductions_of_each_item() -> None:
    assert price("aten._foreach_norm.Scalar", PAIR, 2).out == (t(), t())
    assert price("aten._foreach_norm.Scalar", PAIR, 2).transcendentals == 2
    assert price("aten._foreach_max.default", PAIR).out == (t(), t())


def test_matrix_products_of_each_item() -> None:
    estimate = price("aten._foreach_mm.default", (t(2, 3), t(4, 5)), (t(3, 7), t(5, 7)))
    assert estimate.matrix_flops == 2 * 2 * 3 * 7 + 2 * 4 * 5 * 7


def test_lists_of_different_lengths_are_rejected() -> None:
    with pytest.raises(ShapeError, match=r"\[1, 2\]"):
        price("aten._foreach_add.List", PAIR, (t(8),))


def test_traffic_is_that_of_all_items() -> None:
    cost = price("aten._foreach_add.List", PAIR, PAIR).cost
    assert (cost.read_bytes, cost.written_bytes) == (2 * 4 * 14, 4 * 14)


ADAM = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "amsgrad": False, "maximize": False}
STEPS = (t(), t())


@pytest.mark.parametrize(
    ("op", "decay", "flops"),
    [
        ("aten._fused_adam.default", 0.0, 12),
        ("aten._fused_adam_.default", 0.1, 14),
        ("aten._fused_adamw_.default", 0.1, 13),
    ],
)
def test_fused_adam(op, decay, flops) -> None:
    estimate = price(op, PAIR, PAIR, PAIR, PAIR, (), STEPS, weight_decay=decay, **ADAM)
    assert (estimate.vector_flops, estimate.transcendentals) == (flops * 14, 14)
    # parameters, gradients and two states are read, with a step count each; all but the gradients are written
    assert (estimate.cost.read_bytes, estimate.cost.written_bytes) == (4 * 4 * 14 + 2 * 4, 3 * 4 * 14)
    assert len(estimate.out) == 4 * 2


def test_scaled_gradients_are_divided_and_written_back() -> None:
    estimate = price(
        "aten._fused_adam_.default",
        PAIR,
        PAIR,
        PAIR,
        PAIR,
        (),
        STEPS,
        weight_decay=0.0,
        grad_scale=t(),
        **ADAM,
    )
    assert estimate.vector_flops == 13 * 14
    assert estimate.cost.written_bytes == 4 * 4 * 14


@pytest.mark.parametrize(
    ("options", "flops"),
    [
        ({}, 2),  # p - lr * g
        ({"weight_decay": 0.1}, 4),  # g + decay * p
        ({"momentum": 0.9}, 4),  # momentum * m + g
        ({"momentum": 0.9, "dampening": 0.1}, 5),
        ({"momentum": 0.9, "nesterov": True}, 6),
        ({"momentum": 0.9, "is_first_step": True}, 2),
    ],
)
def test_fused_sgd(options, flops) -> None:
    settings = {
        "weight_decay": 0.0,
        "momentum": 0.0,
        "lr": 0.1,
        "dampening": 0.0,
        "nesterov": False,
        "maximize": False,
        "is_first_step": False,
    }
    buffers = PAIR if "momentum" in options else ()
    assert (
        price("aten._fused_sgd_.default", PAIR, PAIR, buffers, **(settings | options)).vector_flops
        == flops * 14
    )


def test_fused_adagrad() -> None:
    options = {"lr": 0.1, "lr_decay": 0.0, "weight_decay": 0.0, "eps": 1e-8, "maximize": False}
    estimate = price("aten._fused_adagrad_.default", PAIR, PAIR, PAIR, STEPS, **options)
    assert (estimate.vector_flops, estimate.transcendentals) == (6 * 14, 14)
    assert len(price("aten._fused_adagrad.default", PAIR, PAIR, PAIR, STEPS, **options).out) == 4 * 2


def test_gradient_scaling() -> None:
    estimate = price("aten._amp_foreach_non_finite_check_and_unscale_.default", PAIR, t(1), t(1))
    assert estimate.vector_flops == 2 * 14
    assert (
        len(price("aten._amp_update_scale.default", t(1), t(1, dtype="int32"), t(1), 2.0, 0.5, 100).out) == 2
    )
