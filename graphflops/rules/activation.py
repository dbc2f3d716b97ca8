"""Activation functions, softmax and dropout, and the operators that spell out their gradients.

Work per element: softmax takes the maximum 1, subtracts it 1, sums 1 and divides 1, and evaluates one
exponential; log_softmax sums 1 and subtracts twice 2 after the maximum 1, with a logarithm per row. A conversion
of the element type is one more. Dropout compares the draw with the rate 1, selects 1 and scales 1; drawing itself is not
counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from graphflops.cost import Estimate, Value, free
from graphflops.dims import Dim, differ, floor_div, mod
from graphflops.rules.elementwise import differentiate, elementwise, pointwise
from graphflops.rules.registry import ForwardCall, backward, require, rule
from graphflops.rules.shapes import axis, reduced, shown
from graphflops.rules.work import WORK, first_gradient
from graphflops.rules.work import gelu as gelu_work
from graphflops.tensor import BOOL, FLOAT32, UINT8, DType, TensorType

KIND = "elementwise"


# ATen's `softplus` has scales.
pointwise("relu, threshold, leaky_relu, rrelu, hardshrink, softshrink, hardsigmoid, hardswish, mish, silu")
pointwise("hardtanh relu6, selu, celu, log_sigmoid")
pointwise("softplus", "scaled_softplus")


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


@backward("aten.gelu")
def gelu_backward_of(call: ForwardCall) -> Estimate:
    """Recomputed from the operand, as ATen does."""
    return differentiate(gelu_work(call.arguments.get("approximate", "none")))(call)


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


@rule("aten.log_sigmoid_forward")
def log_sigmoid_forward(a: TensorType) -> Estimate:
    """As log_sigmoid, keeping exp(-|x|) for the gradient."""
    return replace(elementwise(WORK["log_sigmoid"], a), out=(a.like(), a.like()))


@rule("aten.log_sigmoid_backward")
def log_sigmoid_backward(grad: TensorType, a: TensorType, kept: TensorType) -> Estimate:
    """Two choices and five operations per element; exp(-|x|) is the kept one."""
    work = first_gradient(WORK["log_sigmoid"]).more(-2, -1)
    return replace(elementwise(work, grad, a), reads=(grad, a, kept))


def _halved(a: TensorType, dim: int) -> TensorType:
    place = axis(dim, a.rank)
    require(not differ(mod(a.shape[place], 2), 0), f"axis {dim} of {a} does not split into two equal halves")
    return a.like((*a.shape[:place], floor_div(a.shape[place], 2), *a.shape[place + 1 :]))


@rule("aten.glu")
def glu(a: TensorType, dim: int = -1) -> Estimate:
    """One half times the sigmoid of the other."""
    out = _halved(a, dim)
    return replace(elementwise(WORK["glu"], out), reads=(a,))


@rule("aten.glu_backward")
def glu_backward(grad: TensorType, a: TensorType) -> Estimate:
    """Grad * s for one half, grad * a * s * (1 - s) for the other."""
    work = elementwise(first_gradient(WORK["glu"]), grad)
    return replace(work, out=(a.like(),), reads=(grad, a))


@backward("aten.glu")
def glu_backward_of(call: ForwardCall) -> Estimate:
    """As the operator `glu_backward`."""
    return glu_backward(call.out, call.arguments["a"])


@rule("aten.prelu")
def prelu(a: TensorType, weight: TensorType) -> Estimate:
    """One product and one choice per element."""
    channels = a.shape[1] if a.rank > 1 else 1
    fits = not (differ(weight.numel, 1) and differ(weight.numel, channels)) and weight.rank < 2
    require(fits, f"a weight of {shown(weight.shape)} does not fit {channels} channels")
    return replace(elementwise(WORK["prelu"], a), reads=(a, weight))


# The gradient of a weight is summed over the elements that share it.
backward("aten.prelu")(differentiate(WORK["prelu"], "a", "weight"))
pointwise("_prelu_kernel", "prelu")


@rule("aten._prelu_kernel_backward")
def prelu_backward(grad: TensorType, a: TensorType, weight: TensorType) -> Estimate:
    """A product and a choice per element, for both; a shared weight's sum is left to the caller."""
    both = elementwise(first_gradient(WORK["prelu"]).times(2), grad, a, weight)
    return replace(both, out=both.out * 2)


@rule("aten.rrelu_with_noise")
def rrelu_with_noise(a: TensorType, noise: TensorType, *, training: bool = False) -> Estimate:
    """One product and one choice per element; training also writes down the slopes that it drew."""
    return replace(elementwise(WORK["rrelu"], a), writes=(a.like(), noise) if training else None)


@rule("aten.rrelu_with_noise_functional")
def rrelu_with_noise_functional(
    a: TensorType, noise: TensorType, *settings: Value, **named: Value
) -> Estimate:
    """As `rrelu_with_noise`; the slopes are a second result."""
    return replace(elementwise(WORK["rrelu"], a), out=(a.like(), noise.like()))


# Training keeps the slopes for the gradient.
backward("aten.rrelu_with_noise", "aten.rrelu_with_noise_functional")(
    differentiate(WORK["rrelu_with_noise"], "a", "noise")
)
pointwise("rrelu_with_noise_backward")


# The softmax family.

KIND = "softmax"

SOFTMAX = 4  # maximum 1, subtract 1, sum 1, divide 1; and an exponential
LOG_SOFTMAX = 4  # maximum 1, subtract 1, sum 1, subtract 1; and an exponential
SAFE = 3  # compare 1, any 1, select 1: fully masked rows become zero
SOFTMAX_GRADIENT = 4  # multiply 1, sum 1, subtract 1, multiply 1
LOG_SOFTMAX_GRADIENT = 3  # sum 1, multiply 1, subtract 1; and an exponential


def softmax_along(
    x: TensorType,
    dim: int | None = None,
    dtype: DType | None = None,
    mask: TensorType | None = None,
    *,
    per_element: int = SOFTMAX,
) -> Estimate:
    """Maximum, difference, exponential, sum and division; the axis need only exist."""
    axis(-1 if dim is None else dim, x.rank)
    out = x.like(dtype=dtype)
    work = (per_element + (out.dtype != x.dtype)) * x.numel
    return Estimate((out,), vector_flops=work, transcendentals=x.numel, reads=(x, mask))


def rows(x: TensorType, dim: int) -> Dim:
    """The number of rows along that axis."""
    return x.like(reduced(x.shape, dim)).numel


rule("aten.softmax", "aten.special_softmax")(softmax_along)
rule("aten._safe_softmax").derived(
    softmax_along,
    says="Softmax, with rows that have no finite element set to zero.",
    per_element=SOFTMAX + SAFE,
)
rule("aten._masked_softmax").derived(
    softmax_along, says="Softmax after a selection by the mask.", order="x mask dim", per_element=SOFTMAX + 1
)


@rule("aten._softmax")
def core_softmax(x: TensorType, dim: int, half_to_float: bool) -> Estimate:
    """Maximum, difference, exponential, sum and division."""
    return softmax_along(x, dim, FLOAT32 if half_to_float else None)


@rule("aten.log_softmax", "aten.special_log_softmax")
def log_softmax(x: TensorType, dim: int, dtype: DType | None = None) -> Estimate:
    """Maximum, difference, exponential, sum and difference per element, a logarithm per row."""
    estimate = softmax_along(x, dim, dtype, per_element=LOG_SOFTMAX)
    return estimate.plus(transcendentals=rows(x, dim))


@rule("aten._log_softmax")
def core_log_softmax(x: TensorType, dim: int, half_to_float: bool) -> Estimate:
    """Maximum, difference, exponential, sum and difference per element, a logarithm per row."""
    return log_softmax(x, dim, FLOAT32 if half_to_float else None)


def gradient(
    grad_output: TensorType,
    output: TensorType,
    mask: TensorType | None = None,
    *,
    input_dtype: DType | None = None,
    per_element: int = SOFTMAX_GRADIENT,
    exponentials: int = 0,
) -> Estimate:
    """The product with the result, minus its row sum: four operations per element."""
    ranks = f"the gradient has {grad_output.rank} axes, the result {output.rank}"
    require(grad_output.rank == output.rank, ranks)
    out = grad_output.like(dtype=input_dtype)
    work, functions = (per_element + (out.dtype != grad_output.dtype)) * out.numel, exponentials * out.numel
    return Estimate((out,), vector_flops=work, transcendentals=functions, reads=(grad_output, output, mask))


_LOG: dict[str, Any] = {"per_element": LOG_SOFTMAX_GRADIENT, "exponentials": 1}
rule("aten._softmax_backward_data").derived(gradient, order="grad_output output")
rule("aten._log_softmax_backward_data").derived(
    gradient,
    says="The gradient minus its row sum times the probability: three operations and an exponential.",
    order="grad_output output",
    **_LOG,
)
rule("aten._masked_softmax_backward").derived(
    gradient, says="As softmax's, with a selection by the mask.", per_element=SOFTMAX_GRADIENT + 1
)


def _of_forward(**given: Any) -> Callable[[ForwardCall], Estimate]:
    """The backward rule of a softmax, from its result."""

    def priced(call: ForwardCall) -> Estimate:
        out = call.out
        return gradient(out.like(), out, input_dtype=call.arguments["x"].dtype, **given)

    return priced


backward("aten.softmax special_softmax _softmax _safe_softmax _masked_softmax")(_of_forward())
backward("aten.log_softmax", "aten.special_log_softmax", "aten._log_softmax")(_of_forward(**_LOG))


# Dropout: training zeroes elements at random and scales the others; inference does nothing.

KIND = "elementwise"

DROPOUT = 3  # compare 1, select 1, scale 1
UNDROP = 2  # select 1, scale 1
AFFINE_DRAW = 5  # alpha dropout, per draw: compare 1, and a scale and a shift that keep mean and variance 4
AFFINE = 2  # multiply 1, add 1


def drop(x: TensorType, p: float, train: bool, flops: Dim, aside: Dim) -> Estimate:
    """`x` with random decisions applied, which need `aside` bytes of workspace; `x` itself if nothing is dropped."""
    if not train or p == 0 or x.numel == 0:
        return free(x.view(x.shape))
    return Estimate((x.like(),), vector_flops=flops, reads=(x,), workspace=aside)


def channels(x: TensorType) -> TensorType:
    """One number for each feature map of a batch."""
    return x.like(x.shape[:2])


@rule("aten.dropout")
def dropout(x: TensorType, p: float, train: bool) -> Estimate:
    """Three operations per element; the mask takes a byte each."""
    return drop(x, p, train, DROPOUT * x.numel, x.like(dtype=BOOL).nbytes)


@rule("aten.feature_dropout")
def feature_dropout(x: TensorType, p: float, train: bool) -> Estimate:
    """One decision and one scale per channel, one product per element."""
    noise = channels(x)
    return drop(x, p, train, 2 * noise.numel + x.numel, noise.nbytes)


@rule("aten.alpha_dropout")
def alpha_dropout(x: TensorType, p: float, train: bool) -> Estimate:
    """A decision, its scale and shift and their application per element."""
    return drop(x, p, train, (AFFINE_DRAW + AFFINE) * x.numel, 2 * x.like().nbytes)


@rule("aten.feature_alpha_dropout")
def feature_alpha_dropout(x: TensorType, p: float, train: bool) -> Estimate:
    """A decision with its scale and shift per channel, their application per element."""
    noise = channels(x)
    return drop(x, p, train, AFFINE_DRAW * noise.numel + AFFINE * x.numel, 2 * noise.nbytes)


@rule("aten.native_dropout")
def native_dropout(x: TensorType, *, train: bool | None) -> Estimate:
    """Three operations per element and a stored mask; in inference only a mask of ones is written."""
    return masked(x, BOOL, train is not False)


def masked(x: TensorType, dtype: DType, train: bool) -> Estimate:
    """Three operations per element and a stored mask; in inference `x` itself and a mask of ones."""
    mask = x.like(dtype=dtype)
    if not train:
        return Estimate((x, mask), writes=(mask,), alias=True)
    return Estimate((x.like(), mask), vector_flops=DROPOUT * x.numel, reads=(x,))


rule("aten._fused_dropout", kind="dropout").derived(
    masked,
    says="Three operations per element and a stored mask; `p` is the probability of keeping.",
    order="x",
    dtype=UINT8,
    train=True,
)


@rule("aten.native_dropout_backward", "aten._masked_scale")
def native_dropout_backward(grad_output: TensorType, mask: TensorType) -> Estimate:
    """A selection by the mask and a scale per element."""
    return Estimate((grad_output.like(),), vector_flops=UNDROP * grad_output.numel, reads=(grad_output, mask))


@backward("aten.dropout", "aten.native_dropout", "aten._fused_dropout")
def dropout_backward(call: ForwardCall) -> Estimate:
    """The gradient selected by the stored mask and scaled; the gradient itself if nothing was dropped."""
    grad = call.out
    if call.estimate.alias:
        return free(grad)
    return native_dropout_backward(grad.like(), grad.like(dtype=BOOL))


def scaled_back(noise: Callable[[TensorType], TensorType]) -> Callable[[ForwardCall], Estimate]:
    """The backward rule of what multiplies by noise, which is stored; the gradient itself if nothing was drawn."""

    def priced(call: ForwardCall) -> Estimate:
        grad = call.out
        if call.estimate.alias:
            return free(grad)
        return Estimate((grad.like(),), vector_flops=grad.numel, reads=(grad.like(), noise(grad).nbytes))

    return priced


backward("aten.feature_dropout", "aten.feature_alpha_dropout")(scaled_back(channels))
backward("aten.alpha_dropout")(scaled_back(lambda grad: grad.like()))
