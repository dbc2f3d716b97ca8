"""The softmax family, and its gradients.

Work per element: softmax takes the maximum 1, subtracts it 1, sums 1 and divides 1, and evaluates one
exponential; log_softmax sums 1 and subtracts twice 2 after the maximum 1, with a logarithm per row. A conversion
of the element type is one more.
"""

from __future__ import annotations

from graphflops.cost import Estimate
from graphflops.dims import Dim
from graphflops.rules.elementwise import result_of
from graphflops.rules.registry import ForwardCall, backward, require, rule
from graphflops.rules.shapes import axis, reduced
from graphflops.tensor import FLOAT32, DType, TensorType

KIND = "softmax"

SOFTMAX = 4  # maximum 1, subtract 1, sum 1, divide 1; and an exponential
LOG_SOFTMAX = 4  # maximum 1, subtract 1, sum 1, subtract 1; and an exponential
SAFE = 3  # compare 1, any 1, select 1: fully masked rows become zero
SOFTMAX_GRADIENT = 4  # multiply 1, sum 1, subtract 1, multiply 1
LOG_SOFTMAX_GRADIENT = 3  # sum 1, multiply 1, subtract 1; and an exponential


def softmax_along(
    x: TensorType, dim: int, dtype: DType | None, per_element: int, reads: tuple[TensorType, ...] = ()
) -> Estimate:
    """`per_element` operations and an exponential each; the axis need only exist."""
    axis(dim, x.rank)
    out = x.like(dtype=dtype)
    converting = int(out.dtype != x.dtype)
    work = (per_element + converting) * x.numel
    return Estimate((out,), vector_flops=work, transcendentals=x.numel, reads=(x, *reads))


def rows(x: TensorType, dim: int) -> Dim:
    """The number of rows along that axis."""
    return x.like(reduced(x.shape, dim)).numel


@rule("aten.softmax", "aten.special_softmax")
def softmax(x: TensorType, dim: int, dtype: DType | None = None) -> Estimate:
    """Maximum, difference, exponential, sum and division."""
    return softmax_along(x, dim, dtype, SOFTMAX)


@rule("aten._safe_softmax")
def safe_softmax(x: TensorType, dim: int, dtype: DType | None = None) -> Estimate:
    """Softmax, with rows that have no finite element set to zero."""
    return softmax_along(x, dim, dtype, SOFTMAX + SAFE)


@rule("aten._softmax")
def core_softmax(x: TensorType, dim: int, half_to_float: bool) -> Estimate:
    """Maximum, difference, exponential, sum and division."""
    return softmax_along(x, dim, FLOAT32 if half_to_float else None, SOFTMAX)


@rule("aten._masked_softmax")
def masked_softmax(x: TensorType, mask: TensorType, dim: int | None = None) -> Estimate:
    """Softmax after a selection by the mask."""
    return softmax_along(x, -1 if dim is None else dim, None, SOFTMAX + 1, reads=(mask,))


@rule("aten.log_softmax", "aten.special_log_softmax")
def log_softmax(x: TensorType, dim: int, dtype: DType | None = None) -> Estimate:
    """Maximum, difference, exponential, sum and difference per element, a logarithm per row."""
    estimate = softmax_along(x, dim, dtype, LOG_SOFTMAX)
    return Estimate(
        estimate.out,
        vector_flops=estimate.vector_flops,
        transcendentals=estimate.transcendentals + rows(x, dim),
        reads=estimate.reads,
    )


@rule("aten._log_softmax")
def core_log_softmax(x: TensorType, dim: int, half_to_float: bool) -> Estimate:
    """Maximum, difference, exponential, sum and difference per element, a logarithm per row."""
    return log_softmax(x, dim, FLOAT32 if half_to_float else None)


@rule("aten._softmax_backward_data")
def softmax_backward_data(grad_output: TensorType, output: TensorType, *, input_dtype: DType) -> Estimate:
    """The product with the result, minus its row sum: four operations per element."""
    return _gradient(grad_output, output, input_dtype, SOFTMAX_GRADIENT)


@rule("aten._log_softmax_backward_data")
def log_softmax_backward_data(grad_output: TensorType, output: TensorType, *, input_dtype: DType) -> Estimate:
    """The gradient minus its row sum times the probability: three operations and an exponential."""
    return _gradient(grad_output, output, input_dtype, LOG_SOFTMAX_GRADIENT, exponentials=1)


@rule("aten._masked_softmax_backward")
def masked_softmax_backward(grad_output: TensorType, output: TensorType, mask: TensorType) -> Estimate:
    """As softmax's, with a selection by the mask."""
    estimate = _gradient(grad_output, output, grad_output.dtype, SOFTMAX_GRADIENT + 1)
    return Estimate(estimate.out, vector_flops=estimate.vector_flops, reads=(*estimate.reads, mask))


def _gradient(
    grad: TensorType, output: TensorType, dtype: DType, per_element: int, exponentials: int = 0
) -> Estimate:
    require(grad.rank == output.rank, f"the gradient has {grad.rank} axes, the result {output.rank}")
    converting = int(dtype != grad.dtype)
    return Estimate(
        (grad.like(dtype=dtype),),
        vector_flops=(per_element + converting) * grad.numel,
        transcendentals=exponentials * grad.numel,
        reads=(grad, output),
    )


@backward(
    "aten.softmax", "aten.special_softmax", "aten._softmax", "aten._safe_softmax", "aten._masked_softmax"
)
def softmax_gradient(call: ForwardCall) -> Estimate:
    """The product with the result, minus its row sum: four operations per element."""
    out = result_of(call)
    return _gradient(out.like(), out, call.arguments["x"].dtype, SOFTMAX_GRADIENT)


@backward("aten.log_softmax", "aten.special_log_softmax", "aten._log_softmax")
def log_softmax_gradient(call: ForwardCall) -> Estimate:
    """The gradient minus its row sum times the probability: three operations and an exponential."""
    out = result_of(call)
    return _gradient(out.like(), out, call.arguments["x"].dtype, LOG_SOFTMAX_GRADIENT, exponentials=1)
