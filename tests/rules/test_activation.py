"""Activations and their gradients: work per element, and the operators that spell a gradient out."""

from __future__ import annotations

import pytest

from graphflops.errors import ShapeError
from graphflops.rules.registry import ForwardCall, find_backward
from tests.support import price, t


@pytest.mark.parametrize(
    ("op", "attributes", "flops", "evaluations"),
    [
        ("aten.relu.default", (), 1, 0),
        ("aten.relu6.default", (), 2, 0),
        ("aten.hardtanh.default", (-1, 1), 2, 0),
        ("aten.leaky_relu.default", (0.1,), 2, 0),
        ("aten.threshold.default", (0, 0), 1, 0),
        ("aten.hardswish.default", (), 5, 0),
        ("aten.silu.default", (), 1, 1),
        ("aten.mish.default", (), 1, 3),
        ("aten.softplus.default", (1, 20), 3, 2),
        ("aten.elu.default", (), 2, 1),
        ("aten.celu.default", (1.5,), 3, 1),  # of x / alpha
        ("aten.elu.default", (1.67, 1.05), 3, 1),
        ("aten.elu.default", (1.0, 1.05, 2.0), 4, 1),
        ("aten.log_sigmoid.default", (), 4, 2),
        ("aten.gelu.default", (), 4, 1),
        ("aten.rrelu.default", (0.1, 0.3, True), 2, 0),
    ],
)
def test_activations(op, attributes, flops, evaluations) -> None:
    x = t("n", 8, dtype="bfloat16")
    estimate = price(op, x, *attributes)
    assert estimate.out == (x,)
    assert estimate.reads == (x,)
    assert estimate.vector_flops == flops * 8 * x.shape[0]
    assert estimate.transcendentals == evaluations * 8 * x.shape[0]


def test_gelu_by_tanh_needs_more_arithmetic() -> None:
    assert price("aten.gelu.default", t(8), approximate="tanh").vector_flops == 9 * 8


@pytest.mark.parametrize(
    ("op", "attributes", "flops", "evaluations"),
    [
        ("aten.threshold_backward.default", (0,), 1, 0),
        ("aten.sigmoid_backward.default", (), 3, 0),
        ("aten.tanh_backward.default", (), 3, 0),
        ("aten.hardtanh_backward.default", (-1, 1), 2, 0),
        ("aten.leaky_relu_backward.default", (0.1, False), 2, 0),
        ("aten.gelu_backward.default", (), 9, 2),
        ("aten.silu_backward.default", (), 5, 1),
        ("aten.softplus_backward.default", (1, 20), 5, 1),
        ("aten.logit_backward.default", (1e-6,), 3, 0),
    ],
)
def test_gradients_spelled_out(op, attributes, flops, evaluations) -> None:
    grad, x = t(4, 8), t(4, 8)
    estimate = price(op, grad, x, *attributes)
    assert estimate.out == (x,)
    assert (estimate.vector_flops, estimate.transcendentals) == (flops * 32, evaluations * 32)
    assert (estimate.cost.read_bytes, estimate.cost.written_bytes) == (2 * 128, 128)


@pytest.mark.parametrize(
    "name",
    ["gelu", "silu", "mish", "softplus", "hardswish", "hardsigmoid", "leaky_relu", "hardtanh", "glu"],
)
def test_gradient_costs_the_same_spelled_out_or_not(name) -> None:
    x = t(4, 8)
    spelled_out = price(f"aten.{name}_backward", *((t(4, 4), x, -1) if name == "glu" else (x, x)))
    arguments = {"a": x}
    rule = find_backward(f"aten.{name}")
    assert rule is not None
    of_forward = rule(ForwardCall(price(f"aten.{name}", **arguments), arguments, frozenset("a")))
    assert of_forward.cost == spelled_out.cost
    assert of_forward.out == spelled_out.out


def test_relu_keeps_its_result_for_the_gradient() -> None:
    x = t(8)
    rule = find_backward("aten.relu.default")
    assert rule is not None
    estimate = rule(ForwardCall(price("aten.relu.default", x), {"a": x}, frozenset("a")))
    assert (estimate.vector_flops, estimate.cost.read_bytes) == (8, 2 * 32)


def test_elu_backward_from_its_result_needs_no_exponential() -> None:
    for is_result, evaluations in ((False, 8), (True, 0)):
        estimate = price("aten.elu_backward.default", t(8), 1, 1, 1, is_result, t(8))
        assert (estimate.vector_flops, estimate.transcendentals) == (3 * 8, evaluations)


def test_glu_halves_an_axis() -> None:
    estimate = price("aten.glu.default", t(4, "n"), -1)
    (out,) = estimate.out
    n = t("n").shape[0]
    assert out.shape == (4, n // 2)
    assert (estimate.vector_flops, estimate.transcendentals) == (4 * (n // 2), 4 * (n // 2))
    with pytest.raises(ShapeError, match="two equal halves"):
        price("aten.glu.default", t(4, 5))


def test_prelu_sums_the_gradient_of_a_shared_weight() -> None:
    x, weight = t(2, 3, 4), t(3)
    forward = price("aten.prelu.default", x, weight)
    assert (forward.vector_flops, forward.cost.read_bytes) == (2 * 24, 4 * 24 + 4 * 3)
    rule = find_backward("aten.prelu.default")
    assert rule is not None
    call = ForwardCall(forward, {"a": x, "weight": weight}, frozenset({"weight"}))
    assert rule(call).vector_flops == 2 * 24 + 24
    assert rule(call).out == (weight,)


def test_log_sigmoid_forward_keeps_the_exponential() -> None:
    forward = price("aten.log_sigmoid_forward.default", t(8))
    assert forward.out == (t(8), t(8))
    backward = price("aten.log_sigmoid_backward.default", t(8), t(8), t(8))
    assert (backward.vector_flops, backward.transcendentals) == (7 * 8, 0)


def test_rrelu_in_training_writes_its_slopes() -> None:
    for training, written in ((False, 32), (True, 64)):
        estimate = price("aten.rrelu_with_noise.default", t(8), t(8), 0.1, 0.3, training)
        assert (estimate.cost.read_bytes, estimate.cost.written_bytes) == (32, written)
    assert len(price("aten.rrelu_with_noise_functional.default", t(8), t(8)).out) == 2
