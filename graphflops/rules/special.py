"""Functions evaluated per element: exponentials, trigonometry, gamma, Bessel, error functions, series."""

from __future__ import annotations

from typing import TYPE_CHECKING

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

# Logistic and error functions.
pointwise("sigmoid special_expit, logit special_logit", result=float_result)
pointwise("erf special_erf, erfc special_erfc, erfinv special_erfinv, special_erfcx", result=float_result)
pointwise("special_ndtr, special_ndtri, special_log_ndtr, special_entr", result=float_result)

# Gamma, Bessel and Airy functions.
pointwise("lgamma special_gammaln, digamma special_psi special_digamma", result=float_result)
pointwise("i0 special_i0, special_i0e, special_i1, special_i1e", result=float_result)
for name in ("bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "spherical_bessel_j0", "airy_ai"):
    pointwise(f"special_{name}", result=float_result)
for name in ("i0", "i1", "k0", "k1"):
    pointwise(f"special_modified_bessel_{name}", result=float_result)
for name in ("k0", "k1"):
    pointwise(f"special_scaled_modified_bessel_{name}", result=float_result)

# Two operands.
for name in (
    *(f"{shift}chebyshev_polynomial_{kind}" for shift in ("", "shifted_") for kind in "tuvw"),
    *("hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"),
):
    pointwise(f"special_{name}", "polynomial", result=float_result)
pointwise("special_zeta, igamma special_gammainc, igammac special_gammaincc", result=float_result)
pointwise("xlogy special_xlogy, special_xlog1py, logaddexp, logaddexp2", result=float_result)


@rule("aten.polygamma", "aten.special_polygamma")
def polygamma(n: Value, a: TensorType) -> Estimate:
    """One evaluation per element, whatever the order."""
    return elementwise(WORK["polygamma"], a, result=float_result)


@rule("aten.mvlgamma", "aten.special_multigammaln")
def mvlgamma(a: TensorType, p: int) -> Estimate:
    """The sum of p log-gammas of shifted arguments, and a constant."""
    return elementwise(WORK["mvlgamma"].times(p), a, result=float_result)


backward("aten.polygamma", "aten.special_polygamma")(differentiate(WORK["polygamma"]))
