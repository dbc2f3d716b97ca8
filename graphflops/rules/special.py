"""Functions evaluated per element: exponentials, trigonometry, gamma, Bessel, error functions, series."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.rules.elementwise import Gradient, differentiate, elementwise, pointwise
from graphflops.rules.promotion import float_result
from graphflops.rules.registry import backward, rule

if TYPE_CHECKING:
    from graphflops.cost import Estimate, Value
    from graphflops.tensor import TensorType


def function(names: str, gradient: Gradient | None = None, *, flops: int = 0, evaluations: int = 1) -> None:
    """Register functions of one operand: evaluations per element, arithmetic around them, the derivative."""
    gradients = () if gradient is None else (gradient,)
    pointwise(names, flops, evaluations, result=float_result, gradients=gradients)


# Exponentials and roots.
function("exp", Gradient(1, reads="out"))
function("exp2 special_exp2 expm1 special_expm1", Gradient(2, reads="out"))
function("log", Gradient(1, reads="a"))
function("log2 log10 log1p special_log1p", Gradient(2, reads="a"))
function("sqrt", Gradient(2, reads="out"))
function("rsqrt", Gradient(4, reads="out"))

# Trigonometric and hyperbolic functions.
function("sin", Gradient(1, 1, reads="a"))
function("cos", Gradient(2, 1, reads="a"))
function("tan tanh", Gradient(3, reads="out"))
function("asin arcsin asinh arcsinh acosh arccosh", Gradient(3, 1, reads="a"))
function("acos arccos", Gradient(4, 1, reads="a"))
function("atan arctan atanh arctanh", Gradient(3, reads="a"))
function("sinh cosh", Gradient(1, 1, reads="a"))
function("sinc special_sinc", Gradient(6, 2, reads="a"), flops=2)

# Logistic and error functions.
function("sigmoid special_expit", Gradient(3, reads="out"))
function("logit special_logit", Gradient(3, reads="a"), flops=2)
function("erf special_erf erfc special_erfc", Gradient(4, 1, reads="a"))
function("erfinv special_erfinv", Gradient(3, 1, reads="out"))
function("special_erfcx", Gradient(4, reads="a out"))
function("special_ndtr", Gradient(4, 1, reads="a"), flops=2)
function("special_ndtri", Gradient(4, 1, reads="out"))
function("special_log_ndtr", Gradient(5, 2, reads="a"), flops=2, evaluations=2)
function("special_entr", Gradient(3, 1, reads="a"), flops=2)

# Gamma functions.
function("lgamma special_gammaln digamma special_psi special_digamma", Gradient(1, 1, reads="a"))

# Bessel and Airy functions.
function("i0 special_i0", Gradient(1, 1, reads="a"))
function("special_i0e special_i1", Gradient(3, 1, reads="a out"))
function("special_i1e", Gradient(4, 1, reads="a out"))
function(
    "special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 special_spherical_bessel_j0"
)
function("special_modified_bessel_i0 special_modified_bessel_i1")
function("special_modified_bessel_k0 special_modified_bessel_k1")
function("special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 special_airy_ai")

# Two operands.
CHEBYSHEV = [f"{shift}chebyshev_polynomial_{kind}" for shift in ("", "shifted_") for kind in "tuvw"]
OTHER_POLYNOMIALS = (
    "hermite_polynomial_h",
    "hermite_polynomial_he",
    "laguerre_polynomial_l",
    "legendre_polynomial_p",
)
pointwise(
    " ".join(f"special_{name}" for name in (*CHEBYSHEV, *OTHER_POLYNOMIALS)),
    0,
    1,
    arity=2,
    result=float_result,
)
pointwise("special_zeta", 0, 1, arity=2, result=float_result)
pointwise("igamma igammac special_gammainc special_gammaincc", 0, 1, arity=2, result=float_result)
# a * log(b), a * log(1 + b)
pointwise(
    "xlogy special_xlogy special_xlog1py",
    flops=1,
    transcendentals=1,
    arity=2,
    result=float_result,
    gradients=(Gradient(1, 1, reads="b"), Gradient(2, reads="a b")),
)
# max(a, b) + log(1 + exp(-|a - b|)); the gradients are shares: grad * exp(a - out)
SHARES = (Gradient(2, 1, reads="a out"), Gradient(2, 1, reads="b out"))
pointwise("logaddexp logaddexp2", 5, 2, arity=2, result=float_result, gradients=SHARES)


@rule("aten.polygamma", "aten.special_polygamma")
def polygamma(n: Value, a: TensorType) -> Estimate:
    """One evaluation per element, whatever the order."""
    return elementwise(a, transcendentals=1, result=float_result)


@rule("aten.mvlgamma", "aten.special_multigammaln")
def mvlgamma(a: TensorType, p: int) -> Estimate:
    """The sum of p log-gammas of shifted arguments, and a constant."""
    return elementwise(a, flops=2 * p, transcendentals=p, result=float_result)


backward("aten.polygamma", "aten.special_polygamma")(differentiate({"a": Gradient(1, 1, reads="a")}))
