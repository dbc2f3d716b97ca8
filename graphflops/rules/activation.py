"""Activation functions, with the work of each one's gradient, whether an operator of its own or not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.cost import Estimate, Value
from graphflops.dims import differ, floor_div, mod
from graphflops.rules.axes import axis
from graphflops.rules.elementwise import (
    Gradient,
    differentiate,
    elementwise,
    gradients_of,
    pointwise,
    result_of,
)
from graphflops.rules.registry import ForwardCall, backward, require, rule

if TYPE_CHECKING:
    from graphflops.tensor import TensorType


def activation(names: str, flops: int, transcendentals: int, gradient: Gradient) -> None:
    """Register activations by work per element, and the `_backward(grad, self)` operators ATen has."""
    pointwise(names, flops, transcendentals, gradients=(gradient,))
    spelled_out = " ".join(f"{name}_backward" for name in names.split() if name in BACKWARD_OPERATORS.split())
    if spelled_out:
        pointwise(spelled_out, gradient.flops, gradient.transcendentals, arity=2)


BACKWARD_OPERATORS = """hardtanh hardsigmoid hardswish leaky_relu threshold hardshrink softshrink softplus
mish silu"""

# Pieces of straight lines.
activation("relu", 1, 0, Gradient(1, reads="out"))
activation("threshold", 1, 0, Gradient(1, reads="a"))
activation("leaky_relu rrelu", 2, 0, Gradient(2, reads="a"))
activation("relu6 hardtanh", 2, 0, Gradient(2, reads="a"))
activation("hardshrink", 2, 0, Gradient(2, reads="a"))
activation("softshrink", 4, 0, Gradient(2, reads="a"))
activation("hardsigmoid", 4, 0, Gradient(3, reads="a"))  # (x + 3) / 6 between two bounds
activation("hardswish", 5, 0, Gradient(5, reads="a"))  # x times that
# x * sigmoid(x); grad * s * (1 + x * (1 - s))
activation("silu", 1, 1, Gradient(5, 1, reads="a"))
# x * tanh(log(1 + exp(x))); grad * (t + x * s * (1 - t * t))
activation("mish", 1, 3, Gradient(6, 4, reads="a"))
# log(1 + exp(beta * x)) / beta below the threshold; grad * z / (1 + z)
activation("softplus", 3, 2, Gradient(5, 1, reads="a"))
# alpha * (exp(x) - 1) below zero, and the scales that selu and celu have
activation("selu celu", 3, 1, Gradient(4, 1, reads="a"))
# min(x, 0) - log(1 + exp(-|x|))
activation("log_sigmoid", 4, 2, Gradient(7, 1, reads="a"))

# grad * y * (1 - y) and grad * (1 - y * y), from the results
pointwise("sigmoid_backward tanh_backward", 3, arity=2)
pointwise("logit_backward", 3, arity=2)


def gelu_work(approximate: str) -> tuple[int, int]:
    """X / 2 * (1 + erf(x / sqrt 2)), or x / 2 * (1 + tanh(k * (x + c * x ** 3)))."""
    return (4, 1) if approximate == "none" else (9, 1)


def gelu_gradient(approximate: str) -> Gradient:
    """Grad * (cdf(x) + x * pdf(x)), or the tanh form's product rule with x * x and 1 + tanh reused."""
    return Gradient(9, 2, reads="a") if approximate == "none" else Gradient(17, 1, reads="a")


@rule("aten.gelu")
def gelu(a: TensorType, *, approximate: str = "none") -> Estimate:
    """One erf or tanh per element and the arithmetic around it."""
    flops, transcendentals = gelu_work(approximate)
    return elementwise(a, flops=flops, transcendentals=transcendentals)


@backward("aten.gelu")
def gelu_backward_of(call: ForwardCall) -> Estimate:
    """Recomputed from the operand, as ATen does."""
    return gradients_of(call, {"a": gelu_gradient(call.arguments.get("approximate", "none"))})


@rule("aten.gelu_backward", "aten.infinitely_differentiable_gelu_backward")
def gelu_backward(grad: TensorType, a: TensorType, *, approximate: str = "none") -> Estimate:
    """The gradient's arithmetic per element."""
    work = gelu_gradient(approximate)
    return elementwise(grad, a, flops=work.flops, transcendentals=work.transcendentals)


@rule("aten.elu")
def elu(a: TensorType, alpha: Value = 1, scale: Value = 1, input_scale: Value = 1) -> Estimate:
    """One expm1, one product and one choice per element, one product more for each scale that is not one."""
    return elementwise(a, flops=2 + (scale != 1) + (input_scale != 1), transcendentals=1)


backward("aten.elu")(differentiate({"a": Gradient(3, 1, reads="a")}))


@rule("aten.elu_backward")
def elu_backward(
    grad: TensorType,
    alpha: Value,
    scale: Value,
    input_scale: Value,
    is_result: bool,
    self_or_result: TensorType,
) -> Estimate:
    """Grad * alpha * exp(x) below zero; from the result, grad * (y + alpha) needs no exponential."""
    return elementwise(grad, self_or_result, flops=3, transcendentals=0 if is_result else 1)


@rule("aten.log_sigmoid_forward")
def log_sigmoid_forward(a: TensorType) -> Estimate:
    """As log_sigmoid, keeping exp(-|x|) for the gradient."""
    return Estimate((a.like(), a.like()), vector_flops=4 * a.numel, transcendentals=2 * a.numel, reads=(a,))


@rule("aten.log_sigmoid_backward")
def log_sigmoid_backward(grad: TensorType, a: TensorType, kept: TensorType) -> Estimate:
    """Two choices and five operations per element; the exponential is the kept one."""
    return replace(elementwise(grad, a, flops=7), reads=(grad, a, kept))


def _halved(a: TensorType, dim: int) -> TensorType:
    place = axis(dim, a.rank)
    require(not differ(mod(a.shape[place], 2), 0), f"axis {dim} of {a} has no two equal halves")
    return a.like((*a.shape[:place], floor_div(a.shape[place], 2), *a.shape[place + 1 :]))


@rule("aten.glu")
def glu(a: TensorType, dim: int = -1) -> Estimate:
    """One half times the sigmoid of the other."""
    out = _halved(a, dim)
    return Estimate((out,), vector_flops=out.numel, transcendentals=out.numel, reads=(a,))


@rule("aten.glu_backward")
def glu_backward(grad: TensorType, a: TensorType, dim: int) -> Estimate:
    """Grad * s for one half, grad * a * s * (1 - s) for the other."""
    return Estimate((a.like(),), vector_flops=5 * grad.numel, transcendentals=grad.numel, reads=(grad, a))


@backward("aten.glu")
def glu_backward_of(call: ForwardCall) -> Estimate:
    """As the operator `glu_backward`."""
    return glu_backward(result_of(call), call.arguments["a"], call.arguments.get("dim", -1))


@rule("aten.prelu")
def prelu(a: TensorType, weight: TensorType) -> Estimate:
    """One product and one choice per element."""
    return Estimate((a.like(),), vector_flops=2 * a.numel, reads=(a, weight))


@backward("aten.prelu")
def prelu_backward_of(call: ForwardCall) -> Estimate:
    """A product and a choice for each operand, and the sum over the elements that share a weight."""
    chosen = Gradient(2, reads="a weight")
    return gradients_of(call, {"a": chosen, "weight": chosen})


pointwise("_prelu_kernel", 2, arity=2, gradients=(Gradient(2, reads="a b"), Gradient(2, reads="a b")))


@rule("aten._prelu_kernel_backward")
def prelu_backward(grad: TensorType, a: TensorType, weight: TensorType) -> Estimate:
    """A product and a choice per element, for both; a shared weight's sum is left to the caller."""
    each = elementwise(grad, a, weight, flops=4)
    return replace(each, out=each.out * 2)


@rule("aten.rrelu_with_noise")
def rrelu_with_noise(
    a: TensorType,
    noise: TensorType,
    lower: Value = 1 / 8,
    upper: Value = 1 / 3,
    training: bool = False,
    generator: Value = None,
) -> Estimate:
    """One product and one choice per element; training also writes down the slopes that it drew."""
    out = a.like()
    return Estimate((out,), vector_flops=2 * a.numel, reads=(a,), writes=(out, noise) if training else None)


@rule("aten.rrelu_with_noise_functional")
def rrelu_with_noise_functional(
    a: TensorType,
    noise: TensorType,
    lower: Value = 1 / 8,
    upper: Value = 1 / 3,
    training: bool = False,
    generator: Value = None,
) -> Estimate:
    """As above, with the slopes for a second result."""
    return Estimate((a.like(), noise.like()), vector_flops=2 * a.numel, reads=(a,))


backward("aten.rrelu_with_noise", "aten.rrelu_with_noise_functional")(
    differentiate({"a": Gradient(1, reads="noise")})
)
# grad * noise, or the slope's choice between bounds
pointwise("rrelu_with_noise_backward", 2, arity=3)
