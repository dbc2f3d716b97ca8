"""Activation functions and the operators that spell out their gradients."""

from __future__ import annotations

from msgspec.structs import replace

from graphflops.cost import Estimate, Value
from graphflops.dims import differ, floor_div, meet, mod
from graphflops.rules.elementwise import differentiate, elementwise
from graphflops.rules.registry import backward, require, rule
from graphflops.rules.shapes import axis, shown
from graphflops.rules.work import WORK, first_gradient
from graphflops.rules.work import gelu as gelu_work
from graphflops.tensor import TensorType

KIND = "elementwise"


def activation_backward(grad: Value, a: Value, *attributes: Value, row: str, **named: Value) -> Estimate:
    """The gradient's arithmetic per element."""
    return elementwise(first_gradient(WORK[row]), grad, a)


for _name in (
    *("hardtanh", "hardsigmoid", "hardswish", "leaky_relu", "threshold", "hardshrink", "softshrink"),
    *("mish", "silu", "sigmoid", "tanh", "logit"),
):
    rule(f"aten.{_name}_backward").derived(activation_backward, row=_name)
rule("aten.softplus_backward").derived(activation_backward, row="scaled_softplus")


@rule("aten.gelu")
def gelu(a: TensorType, *, approximate: str = "none") -> Estimate:
    """One erf or tanh per element and the arithmetic around it."""
    return elementwise(gelu_work(approximate), a)


# Recomputed from the operand, as ATen does.
backward("aten.gelu")(lambda call: differentiate(gelu_work(call.arguments.get("approximate", "none")))(call))


@rule("aten.gelu_backward", "aten.infinitely_differentiable_gelu_backward")
def gelu_backward(grad: TensorType, a: TensorType, *, approximate: str = "none") -> Estimate:
    """The gradient's arithmetic per element."""
    return elementwise(first_gradient(gelu_work(approximate)), grad, a)


@rule("aten.elu")
def elu(a: TensorType, *, scale: Value = 1, input_scale: Value = 1) -> Estimate:
    """One expm1, one product and one choice per element, one product more for each scale that is not one."""
    return elementwise(WORK["elu"].more((scale != 1) + (input_scale != 1)), a)


backward("aten.elu")(differentiate(WORK["elu"]))


@rule("aten.elu_backward")
def elu_backward(grad: TensorType, *, is_result: bool, self_or_result: TensorType) -> Estimate:
    """Grad * alpha * exp(x) below zero; from the result, grad * (y + alpha) needs no exponential."""
    return elementwise(first_gradient(WORK["elu"]).more(0, -1 if is_result else 0), grad, self_or_result)


@rule("aten.log_sigmoid_backward")
def log_sigmoid_backward(grad: TensorType, a: TensorType, kept: TensorType) -> Estimate:
    """Two choices and five operations per element; exp(-|x|) is the kept one."""
    work = first_gradient(WORK["log_sigmoid"]).more(-2, -1)
    return replace(elementwise(work, grad, a), reads=(grad, a, kept))


@rule("aten.glu")
def glu(a: TensorType, dim: int = -1) -> Estimate:
    """One half times the sigmoid of the other."""
    place = axis(dim, a.rank)
    meet(mod(a.shape[place], 2), 0, f"axis {dim} of {a} does not split into two equal halves")
    out = a.like((*a.shape[:place], floor_div(a.shape[place], 2), *a.shape[place + 1 :]))
    return replace(elementwise(WORK["glu"], out), reads=(a,))


@rule("aten.glu_backward")
def glu_backward(grad: TensorType, a: TensorType) -> Estimate:
    """Grad * s for one half, grad * a * s * (1 - s) for the other."""
    work = elementwise(first_gradient(WORK["glu"]), grad)
    return replace(work, out=(a.like(),), reads=(grad, a))


backward("aten.glu")(lambda call: glu_backward(call.out, call.arguments["a"]))


@rule("aten.prelu")
def prelu(a: TensorType, weight: TensorType) -> Estimate:
    """One product and one choice per element."""
    channels = a.shape[1] if a.rank > 1 else 1
    fits = not (differ(weight.numel, 1) and differ(weight.numel, channels)) and weight.rank < 2
    require(fits, f"a weight of {shown(weight.shape)} does not fit {channels} channels")
    return replace(elementwise(WORK["prelu"], a), reads=(a, weight))


# The gradient of a weight is summed over the elements that share it.
backward("aten.prelu")(differentiate(WORK["prelu"], "a", "weight"))


@rule("aten._prelu_kernel_backward")
def prelu_backward(grad: TensorType, a: TensorType, weight: TensorType) -> Estimate:
    """A product and a choice per element, for both; a shared weight's sum is left to the caller."""
    both = elementwise(first_gradient(WORK["prelu"]).times(2), grad, a, weight)
    return replace(both, out=both.out * 2)


@rule("aten.rrelu_with_noise")
def rrelu_with_noise(a: TensorType, noise: TensorType, *, training: bool = False) -> Estimate:
    """One product and one choice per element; training also writes down the slopes that it drew."""
    return replace(elementwise(WORK["rrelu"], a), writes=(a.like(), noise) if training else None)


# Training keeps the slopes for the gradient.
backward("aten.rrelu_with_noise", "aten.rrelu_with_noise_functional")(
    differentiate(WORK["rrelu_with_noise"], "a", "noise")
)
