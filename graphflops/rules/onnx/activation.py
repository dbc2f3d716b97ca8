"""Activation functions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from graphflops.cost import Estimate, Value
from graphflops.dims import differ
from graphflops.rules.axes import axis as axis_of
from graphflops.rules.onnx import values
from graphflops.rules.onnx.arithmetic import pointwise, unary
from graphflops.rules.registry import require, rule
from graphflops.rules.softmax import log_softmax, softmax
from graphflops.rules.work import WORK
from graphflops.rules.work import gelu as gelu_work

if TYPE_CHECKING:
    from graphflops.tensor import TensorType

unary("Relu", fold=partial(values.largest, 0))
for _name in ("LeakyRelu", "ThresholdedRelu", "HardSigmoid", "HardSwish", "Sigmoid"):
    unary(_name)
for _name in ("Elu", "Selu", "Celu", "Softplus", "Softsign", "Mish"):
    unary(_name)
# Experimental operators in files of ONNX's first years.
unary("Affine", "affine")
unary("ScaledTanh", "scaled_tanh")
unary("ParametricSoftplus", "scaled_softplus")


@rule("onnx.Shrink")
def shrink(x: TensorType, *, bias: float = 0.0, lambd: float = 0.5) -> Estimate:
    """Two comparisons per element; with a bias also its addition and a selection."""
    return pointwise(WORK["hardshrink" if bias == 0 else "softshrink"], x)


@rule("onnx.Gelu")
def gelu(x: TensorType, *, approximate: str = "none") -> Estimate:
    """One erf or tanh per element and the arithmetic around it."""
    return pointwise(gelu_work(approximate), x)


@rule("onnx.Swish")
def swish(x: TensorType, *, alpha: float = 1.0) -> Estimate:
    """A product with the sigmoid, whose operand is scaled where alpha is not one."""
    return pointwise(WORK["silu"].more(alpha != 1), x)


@rule("onnx.SwiGLU")
def swiglu(a: TensorType, b: TensorType, *, alpha: float = 1.0) -> Estimate:
    """As `Swish` of the gate, times the other operand."""
    require(a.rank == b.rank and not any(map(differ, a.shape, b.shape)), f"a gate of {a} does not fit {b}")
    return pointwise(WORK["swiglu"].more(alpha != 1), a, b)


@rule("onnx.PRelu")
def prelu(x: TensorType, slope: TensorType, *, consumed_inputs: Value = None) -> Estimate:
    """One product and one choice per element; several elements may share a slope, in any version's way."""
    return replace(pointwise(WORK["prelu"], x), reads=(x, slope))


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
    return pointwise(WORK["maximum"], x)


@rule("onnx.Hardmax.1", "onnx.Hardmax.11")
def hardmax_of_rows(x: TensorType, *, axis: int = 1) -> Estimate:
    """As `Hardmax`, over all axes from the one named on."""
    rows_of(x, axis)
    return pointwise(WORK["maximum"], x)
