"""Functions evaluated per element: exponentials, trigonometry, gamma, Bessel, error functions, series."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.ops.elementwise import ELEMENTWISE
from graphflops.rules.elementwise import differentiate, elementwise, float_result, pointwise
from graphflops.rules.registry import backward, rule
from graphflops.rules.work import WORK

if TYPE_CHECKING:
    from graphflops.cost import Estimate, Value
    from graphflops.tensor import TensorType


# Exponentials and roots.
pointwise("exp, exp2 special_exp2, expm1 special_expm1, sqrt, rsqrt", result=float_result)
pointwise("log, log2, log10, log1p special_log1p", result=float_result)

# Trigonometric and hyperbolic functions.
pointwise("sin, cos, tan, asin arcsin, acos arccos, atan arctan, sinc special_sinc", result=float_result)
pointwise("sinh, cosh, tanh, asinh arcsinh, acosh arccosh, atanh arctanh", result=float_result)

# Functions of torch.special that ATen also has under another name, and those that it has there alone.
pointwise(
    "sigmoid special_expit, logit special_logit, erf special_erf, erfc special_erfc", result=float_result
)
pointwise(
    "erfinv special_erfinv, lgamma special_gammaln, digamma special_psi special_digamma", result=float_result
)
pointwise("i0 special_i0, igamma special_gammainc, igammac special_gammaincc", result=float_result)
pointwise("xlogy special_xlogy, logaddexp, logaddexp2", result=float_result)
for _name in (row.name for row in ELEMENTWISE if row.aten == f"special_{row.name}"):
    pointwise(f"special_{_name}", "polynomial" if "polynomial" in _name else "", result=float_result)


@rule("aten.polygamma", "aten.special_polygamma")
def polygamma(n: Value, a: TensorType) -> Estimate:
    """One evaluation per element, whatever the order."""
    return elementwise(WORK["polygamma"], a, result=float_result)


@rule("aten.mvlgamma", "aten.special_multigammaln")
def mvlgamma(a: TensorType, p: int) -> Estimate:
    """The sum of p log-gammas of shifted arguments, and a constant."""
    return elementwise(WORK["mvlgamma"].times(p), a, result=float_result)


backward("aten.polygamma", "aten.special_polygamma")(differentiate(WORK["polygamma"]))
