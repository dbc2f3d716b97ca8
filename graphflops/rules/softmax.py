"""The softmax family, and its gradients.

Work per element: softmax takes the maximum 1, subtracts it 1, sums 1 and divides 1, and evaluates one
exponential; log_softmax sums 1 and subtracts twice 2 after the maximum 1, with a logarithm per row. A conversion
of the element type is one more.
"""

from __future__ import annotations

from typing import Any

from graphflops.cost import Estimate
from graphflops.dims import Dim
from graphflops.rules.operands import Operands, takes
from graphflops.rules.registry import Backward, ForwardCall, backward, require, rule
from graphflops.rules.shapes import axis, reduced
from graphflops.tensor import FLOAT32, DType, TensorType

KIND = "softmax"

SOFTMAX = 4  # maximum 1, subtract 1, sum 1, divide 1; and an exponential
LOG_SOFTMAX = 4  # maximum 1, subtract 1, sum 1, subtract 1; and an exponential
SAFE = 3  # compare 1, any 1, select 1: fully masked rows become zero
SOFTMAX_GRADIENT = 4  # multiply 1, sum 1, subtract 1, multiply 1
LOG_SOFTMAX_GRADIENT = 3  # sum 1, multiply 1, subtract 1; and an exponential


@takes("x dim? dtype? mask?")
def softmax_along(of: Operands, *, per_element: int = SOFTMAX) -> Estimate:
    """Maximum, difference, exponential, sum and division; the axis need only exist."""
    x, dim, dtype, mask = of
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
    return softmax_along(x, dim, dtype, per_element=LOG_SOFTMAX).plus(transcendentals=rows(x, dim))


@rule("aten._log_softmax")
def core_log_softmax(x: TensorType, dim: int, half_to_float: bool) -> Estimate:
    """Maximum, difference, exponential, sum and difference per element, a logarithm per row."""
    return log_softmax(x, dim, FLOAT32 if half_to_float else None)


@takes("grad_output output mask? * input_dtype?")
def gradient(of: Operands, *, per_element: int = SOFTMAX_GRADIENT, exponentials: int = 0) -> Estimate:
    """The product with the result, minus its row sum: four operations per element."""
    grad_output, output, mask, input_dtype = of
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


def _of_forward(**given: Any) -> Backward:
    """The backward rule of a softmax, from its result."""

    def priced(call: ForwardCall) -> Estimate:
        out = call.out
        return gradient(out.like(), out, input_dtype=call["x"].dtype, **given)

    return priced


backward("aten.softmax special_softmax _softmax _safe_softmax _masked_softmax")(_of_forward())
backward("aten.log_softmax", "aten.special_log_softmax", "aten._log_softmax")(_of_forward(**_LOG))
