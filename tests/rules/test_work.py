"""The table of elementwise work: numbers spelled out, and the same numbers in every dialect."""

from __future__ import annotations

import pytest

from graphflops.errors import RuleError
from graphflops.passes.optimizer import Parameter, update
from graphflops.rules.elementwise import WORK, activation_named, gradient_of, power_work
from graphflops.rules.registry import ForwardCall, find_backward
from graphflops.training import Training
from tests.support import price, t


def test_mish_and_its_gradient() -> None:
    """X * tanh(log(1 + exp(x))): one product, one sum counted with the logarithm (log1p), three functions."""
    x = t(5)
    forward = price("aten.mish.default", x)
    assert (forward.vector_flops, forward.transcendentals) == (1 * 5, 3 * 5)
    gradient = find_backward("aten.mish.default")
    assert gradient is not None
    estimate = gradient(ForwardCall(forward, {"a": x}, frozenset("a")))
    # grad * (t + x * s * (1 - t * t)) with t = tanh(log(1 + exp(x))) and s = sigmoid(x)
    products = 4  # x * s, t * t, their product, times the gradient
    sums = 2  # 1 - t * t, t + ...
    assert estimate.vector_flops == (products + sums) * 5
    functions = 4  # exp, log, tanh, sigmoid
    assert estimate.transcendentals == functions * 5


def test_the_activation_of_a_recurrent_layer_may_be_elu() -> None:
    steps, batch, features, hidden = 3, 2, 4, 5
    x, w, r = t(steps, batch, features), t(1, hidden, features), t(1, hidden, hidden)
    estimate = price("onnx.RNN.14", x, w, r, activations=("Elu",))
    # per unit: the sum of both products 1; alpha * (exp(x) - 1) where x is below zero: a product and a choice
    assert estimate.vector_flops == (1 + 2) * steps * batch * hidden
    assert estimate.transcendentals == 1 * steps * batch * hidden


def test_adamw_by_its_arithmetic() -> None:
    decay = 1  # p * (1 - rate * decay)
    mean = 3  # m + (1 - beta1) * (g - m)
    mean_square = 4  # beta2 * v + (1 - beta2) * g * g
    denominator = 2  # sqrt(v) / correction + eps
    step = 3  # p - rate * m / denominator
    cost = update(Training(), [Parameter("p", t(7))]).cost
    assert cost.vector_flops == (decay + mean + mean_square + denominator + step) * 7 == 13 * 7
    assert cost.transcendentals == 1 * 7  # the root


@pytest.mark.parametrize(
    ("row", "spellings"),
    [
        ("relu", ("aten.relu", "onnx.Relu")),
        ("leaky_relu", ("aten.leaky_relu", "onnx.LeakyRelu")),
        ("hardsigmoid", ("aten.hardsigmoid", "onnx.HardSigmoid")),
        ("hardswish", ("aten.hardswish", "onnx.HardSwish")),
        ("elu", ("aten.elu", "onnx.Elu")),
        ("selu", ("aten.selu", "onnx.Selu")),
        ("mish", ("aten.mish", "onnx.Mish")),
        ("gelu", ("aten.gelu", "onnx.Gelu", "com.microsoft.Gelu")),
        ("sigmoid", ("aten.sigmoid", "onnx.Sigmoid")),
        ("tanh", ("aten.tanh", "prims.tanh", "onnx.Tanh")),
        ("erf", ("aten.erf", "prims.erf", "onnx.Erf")),
        ("reciprocal", ("aten.reciprocal", "prims.reciprocal", "onnx.Reciprocal")),
        ("add", ("aten.add", "prims.add", "onnx.Add")),
        ("div", ("aten.div", "prims.div", "onnx.Div")),
        ("remainder", ("aten.remainder", "prims.remainder", "onnx.Mod")),
        ("prelu", ("aten.prelu", "aten._prelu_kernel", "onnx.PRelu")),
        ("where", ("aten.where", "prims.where", "onnx.Where")),
    ],
)
def test_every_dialect_counts_a_function_alike(row: str, spellings: tuple[str, ...]) -> None:
    work, x = WORK[row], t(3, 4)
    for spelling in spellings:
        estimate = price(spelling, x, *(t(4),) * (work.operands - 1))
        assert (estimate.vector_flops, estimate.transcendentals) == (
            work.flops * 12,
            work.transcendentals * 12,
        ), spelling


@pytest.mark.parametrize(
    ("named", "row"),
    [
        ("LeakyRelu", "leaky_relu"),
        ("TANH", "tanh"),
        ("hard_sigmoid", "hardsigmoid"),
        ("Clip", "hardtanh"),
        ("ThresholdedRelu", "threshold"),
        ("swish", "silu"),
        ("NONE", "identity"),
        ("", "identity"),
    ],
)
def test_an_attribute_names_an_activation_in_any_spelling(named: str, row: str) -> None:
    assert activation_named(named) == WORK[row]


def test_an_unknown_activation_is_an_error() -> None:
    with pytest.raises(RuleError, match="unknown activation 'Sinus'"):
        activation_named("Sinus")


def test_a_small_constant_exponent_stands_for_products_or_a_root() -> None:
    assert [power_work(n).flops for n in (0, 1, 2, 3, -1, -2)] == [0, 0, 1, 2, 1, 2]
    assert [power_work(n).transcendentals for n in (0.5, -0.5, 2.5, None)] == [1, 1, 1, 1]
    assert power_work(3).complex_work == (2 * 6, 0)  # two complex products


def test_a_row_has_a_gradient_for_each_operand_or_none() -> None:
    for row in WORK.values():
        assert len(row.formulas) in (0, row.operands), row.name
        found = [gradient_of(formula) for formula in row.formulas if formula]
        gradients = [gradient for gradient in found if gradient]  # those that pass do not read
        reads = {name for gradient in gradients for name in gradient.reads.split()}
        halves = 2 if row.name == "glu" else 1  # of its one operand, which its formula calls a and b
        assert reads <= {"out", *"abc"[: halves * row.operands]}, row.name
