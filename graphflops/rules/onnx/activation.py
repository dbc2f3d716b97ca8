"""Activation functions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from graphflops.cost import Estimate, Value
from graphflops.dims import differ
from graphflops.rules.activation import gelu_work
from graphflops.rules.axes import axis as axis_of
from graphflops.rules.onnx import values
from graphflops.rules.onnx.arithmetic import pointwise, unary
from graphflops.rules.registry import require, rule
from graphflops.rules.softmax import log_softmax, softmax

if TYPE_CHECKING:
    from graphflops.tensor import TensorType

unary("Relu", 1, fold=partial(values.largest, 0))
unary("ThresholdedRelu", 1)
unary("LeakyRelu", 2)
unary("HardSigmoid", 4)
unary("HardSwish", 5)
unary("Sigmoid", 0, 1)
unary("Elu", 2, 1)
unary("Selu Celu", 3, 1)
unary("Softplus", 1, 2)  # log(1 + exp(x))
unary("Softsign", 3)  # x / (1 + |x|)
unary("Mish", 1, 3)


@rule("onnx.Shrink")
def shrink(x: TensorType, *, bias: float = 0.0, lambd: float = 0.5) -> Estimate:
    """Two comparisons per element, and where there is a bias its addition and a selection."""
    return pointwise(x, flops=2 if bias == 0 else 4)


@rule("onnx.Gelu")
def gelu(x: TensorType, *, approximate: str = "none") -> Estimate:
    """One erf or tanh per element and the arithmetic around it."""
    flops, transcendentals = gelu_work(approximate)
    return pointwise(x, flops=flops, transcendentals=transcendentals)


@rule("onnx.Swish")
def swish(x: TensorType, *, alpha: float = 1.0) -> Estimate:
    """A product with the sigmoid, whose operand is scaled where alpha is not one."""
    return pointwise(x, flops=1 if alpha == 1 else 2, transcendentals=1)


@rule("onnx.SwiGLU")
def swiglu(a: TensorType, b: TensorType, *, alpha: float = 1.0) -> Estimate:
    """As `Swish` of the gate, times the other operand."""
    require(a.rank == b.rank and not any(map(differ, a.shape, b.shape)), f"a gate of {a} does not fit {b}")
    return pointwise(a, b, flops=2 if alpha == 1 else 3, transcendentals=1)


@rule("onnx.PRelu")
def prelu(x: TensorType, slope: TensorType, *, consumed_inputs: Value = None) -> Estimate:
    """One product and one choice per element; slopes of several elements share one, in any version's way."""
    return Estimate((x.like(),), vector_flops=2 * x.numel, reads=(x, slope))


def rows_of(x: TensorType, axis: int) -> TensorType:
    """The tensor as a matrix of the axes before and from `axis` on, as before version 13."""
    place = axis if axis == x.rank else axis_of(axis, x.rank)
    return x.view((x.like(x.shape[:place]).numel, x.like(x.shape[place:]).numel))


@rule("onnx.Softmax")
def softmax_along(x: TensorType, *, axis: int = -1) -> Estimate:
    """Maximum, difference, exponential, sum and division."""
    return softmax(x, axis)


@rule("onnx.Softmax.1", "onnx.Softmax.11")
def softmax_of_rows(x: TensorType, *, axis: int = 1) -> Estimate:
    """As `Softmax`, over all axes from the one named on."""
    return _like(x, softmax(rows_of(x, axis), 1))


@rule("onnx.LogSoftmax")
def log_softmax_along(x: TensorType, *, axis: int = -1) -> Estimate:
    """Maximum, difference, exponential, sum and difference per element, a logarithm per row."""
    return log_softmax(x, axis)


@rule("onnx.LogSoftmax.1", "onnx.LogSoftmax.11")
def log_softmax_of_rows(x: TensorType, *, axis: int = 1) -> Estimate:
    """As `LogSoftmax`, over all axes from the one named on."""
    return _like(x, log_softmax(rows_of(x, axis), 1))


def _like(x: TensorType, estimate: Estimate) -> Estimate:
    return Estimate(
        (x.like(),),
        vector_flops=estimate.vector_flops,
        transcendentals=estimate.transcendentals,
        reads=(x,),
    )


@rule("onnx.Hardmax")
def hardmax(x: TensorType, *, axis: int = -1) -> Estimate:
    """A comparison per element finds each row's maximum; zeros and ones are written without arithmetic."""
    axis_of(axis, x.rank)
    return pointwise(x, flops=1)


@rule("onnx.Hardmax.1", "onnx.Hardmax.11")
def hardmax_of_rows(x: TensorType, *, axis: int = 1) -> Estimate:
    """As `Hardmax`, over all axes from the one named on."""
    rows_of(x, axis)
    return pointwise(x, flops=1)
