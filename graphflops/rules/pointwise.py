"""Elementwise arithmetic and functions: comparisons, selections, powers, rounding, bits, exponentials, Bessel, series."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial

from graphflops.cost import Estimate, Value, data_dependent, free
from graphflops.dims import Dim, broadcast, compare, dim_max, dim_min, floor_div, mod, prod, where
from graphflops.ops.table import ROWS
from graphflops.rules.elementwise import (
    complex_of,
    differentiate,
    elementwise,
    float_result,
    pointwise,
    result_type,
    to_bool,
    to_real,
    to_real_float,
)
from graphflops.rules.registry import ForwardCall, backward, rule
from graphflops.rules.work import WORK, Work, power
from graphflops.tensor import COMPLEX128, FLOAT64, INT32, INT64, DType, TensorType

KIND = "elementwise"


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
for _name in (row.name for row in ROWS if row.aten == f"special_{row.name}"):
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


# One operand; the type stays unless `result` is given.
pointwise("neg negative _neg_view_copy", fold=operator.neg)
pointwise("abs absolute", result=to_real)
pointwise("floor, ceil, trunc fix, sign, sgn, frac, nan_to_num, bitwise_not")
pointwise("reciprocal, deg2rad, rad2deg", result=float_result)
pointwise("logical_not", result=to_bool, fold=lambda a: compare("==", a, 0))
pointwise("isnan, isinf, isfinite, isposinf, isneginf, isreal, signbit", result=to_bool)
pointwise("_conj_copy", "conj")

# Two operands.
pointwise("mul multiply", fold=operator.mul)
pointwise("div divide true_divide", result=float_result)
pointwise("floor_divide", fold=floor_div)
pointwise("remainder", fold=mod)
pointwise("fmod, fmax, fmin, nextafter, heaviside, gcd, lcm, hypot")
pointwise("maximum max.other", fold=dim_max)
pointwise("minimum min.other", fold=dim_min)
for symbol, names in {
    "==": "eq",
    "!=": "ne not_equal",
    "<": "lt less",
    "<=": "le less_equal",
    ">": "gt greater",
    ">=": "ge greater_equal",
}.items():
    pointwise(names, result=to_bool, fold=partial(compare, symbol))
pointwise("logical_and, logical_or, logical_xor, isclose", result=to_bool)
pointwise("bitwise_and __and__ __iand__, bitwise_or __or__ __ior__, bitwise_xor __xor__ __ixor__")
pointwise("bitwise_left_shift __lshift__ __ilshift__, bitwise_right_shift __rshift__ __irshift__")
pointwise("copysign, atan2 arctan2, ldexp", result=float_result)

# Three operands.
pointwise("lerp", result=lambda a, b, weight: result_type(a, b))


@rule("aten._add_relu")
def add_relu(a: Value, b: Value) -> Estimate:
    """A sum and its relu."""
    return elementwise(WORK["add"].more(WORK["relu"].flops), a, b)


def _combined(a: Value, b: Value, alpha: Value = 1, *, name: str, fold: Callable[..., Dim]) -> Estimate:
    """A sum or a difference, and the product with alpha if it is not one."""
    work = WORK[name].more(0 if alpha == 1 else WORK["mul"].flops)
    return elementwise(work, a, b, fold=lambda x, y: fold(x, y, alpha))


for _names, _says, _fold in (
    ("add", "A + alpha * b.", lambda x, y, alpha: x + alpha * y),
    ("sub subtract", "A - alpha * b.", lambda x, y, alpha: x - alpha * y),
    ("rsub", "B - alpha * a.", lambda x, y, alpha: y - alpha * x),
):
    _keys = [f"aten.{name}" for name in _names.split()]
    rule(*_keys).derived(_combined, says=_says, name=_names.split()[0], fold=_fold)
    backward(*_keys)(differentiate(WORK[_names.split()[0]]))


ROUNDING = [f"aten.{name}.{overload}_mode" for name in ("div", "divide") for overload in ("Tensor", "Scalar")]


@rule(*ROUNDING)
def divide_rounding(a: TensorType, b: Value, *, rounding_mode: str | None = None) -> Estimate:
    """A division, and a rounding if a mode is given."""
    if rounding_mode is None:
        return elementwise(WORK["div"], a, b, result=float_result)
    return elementwise(WORK["floor_divide"], a, b, fold=floor_div)


@backward(*ROUNDING)
def divide_rounding_backward(call: ForwardCall) -> Estimate:
    """Zero for a rounded division, else the gradient of a division."""
    rounded = call.arguments.get("rounding_mode") is not None
    return differentiate(WORK["floor_divide" if rounded else "div"])(call)


@rule("aten.round", "aten.special_round")
def round_(a: TensorType, *, decimals: Value = 0) -> Estimate:
    """One rounding per element, and a scaling before and after it for a given number of decimals."""
    return elementwise(WORK["round"].more(0 if decimals == 0 else 2), a)


backward("aten.round", "aten.special_round")(differentiate(WORK["round"]))


def addcmul(a: TensorType, b: TensorType, c: TensorType, *, value: Value = 1, work: Work) -> Estimate:
    """The product or the quotient, the sum, and the scaling where value is not one."""
    return elementwise(work.more(0 if value == 1 else 1), a, b, c)


for _name in ("addcmul", "addcdiv"):
    rule(f"aten.{_name}").derived(addcmul, work=WORK[_name])
    backward(f"aten.{_name}")(differentiate(WORK[_name]))


@rule("aten.clamp", "aten.clip")
def clamp(a: TensorType, min: Value = None, max: Value = None) -> Estimate:
    """One comparison per element and bound."""
    bounds = [bound for bound in (min, max) if bound is not None]
    return elementwise(WORK["clamp"].times(len(bounds)), a, *bounds)


@rule("aten.clamp_min")
def clamp_min(a: TensorType, min: Value) -> Estimate:
    """One comparison per element."""
    return elementwise(WORK["clamp"], a, min, fold=dim_max)


@rule("aten.clamp_max")
def clamp_max(a: TensorType, max: Value) -> Estimate:
    """One comparison per element."""
    return elementwise(WORK["clamp"], a, max, fold=dim_min)


backward("aten.clamp", "aten.clip")(differentiate(WORK["clamp"], "a", "min", "max"))
backward("aten.clamp_min")(differentiate(WORK["clamp_min"], "a", "min"))
backward("aten.clamp_max")(differentiate(WORK["clamp_max"], "a", "max"))


@rule("aten.where")
def select(condition: TensorType, a: Value, b: Value) -> Estimate:
    """One selection per element; the type is promoted from the two that are chosen between."""
    return elementwise(
        WORK["where"], condition, a, b, result=lambda _, *chosen: result_type(*chosen), fold=where
    )


backward("aten.where")(differentiate(WORK["where"], "condition", "a", "b"))


@rule("aten.where.default")
def where_indices(condition: TensorType) -> Estimate:
    """The positions of true elements, one vector per axis: a comparison per element."""
    positions = data_dependent("nonzero")
    axes = tuple(condition.like((positions,), INT64) for _ in range(max(condition.rank, 1)))
    return Estimate(axes, vector_flops=condition.numel, reads=(condition,))


@rule("aten.masked_fill")
def masked_fill(a: TensorType, mask: TensorType, value: Value) -> Estimate:
    """One selection per element, in the type of what is filled."""
    return elementwise(WORK["masked_fill"], a, mask, value, result=lambda x, *_: x.dtype)


backward("aten.masked_fill")(differentiate(WORK["masked_fill"], "a", "mask", "value"))


@rule("aten.pow")
def pow_(a: Value, exponent: Value) -> Estimate:
    """A function evaluation per element, or the products that a small constant exponent stands for."""
    return elementwise(power(exponent), a, exponent)


@rule("aten.float_power")
def float_power(a: Value, exponent: Value) -> Estimate:
    """As `pow`, in double precision."""
    return elementwise(power(exponent), a, exponent, result=_double)


def _double(*operands: Value) -> DType:
    return COMPLEX128 if result_type(*operands).kind == "complex" else FLOAT64


rule("aten.square").derived(pow_, says="One multiplication per element.", order="a", exponent=2)
backward("aten.square")(differentiate(WORK["square"]))
# A base's gradient has the work of a power that is lower by one.
backward("aten.pow", "aten.float_power")(differentiate(WORK["pow"], "a", "exponent"))


@rule("aten.frexp", "prims.frexp")
def frexp(a: TensorType) -> Estimate:
    """One split per element, into mantissa and exponent."""
    return Estimate((a.like(), a.like(dtype=INT32)), vector_flops=WORK["frexp"].flops * a.numel, reads=(a,))


backward("aten.frexp")(differentiate(WORK["frexp"]))


@rule("aten.complex")
def make_complex(real: TensorType, imag: TensorType) -> Estimate:
    """Interleaves real and imaginary parts; no arithmetic."""
    return elementwise(Work("complex"), real, imag, result=_complex)


@rule("aten.polar")
def polar(abs: TensorType, angle: TensorType) -> Estimate:
    """Sine, cosine and two products per element."""
    return elementwise(WORK["polar"], abs, angle, result=_complex)


def _complex(*parts: Value) -> DType:
    return complex_of(result_type(*parts))


@rule("aten.angle")
def angle(a: TensorType) -> Estimate:
    """An arc tangent per complex element; one operation per real element, whose sign gives the angle."""
    return elementwise(WORK["angle"], a, result=to_real_float)


@rule("aten.conj_physical", "aten._conj_physical")
def conj_physical(a: TensorType) -> Estimate:
    """One negation per complex element; a real tensor is its own conjugate."""
    return elementwise(WORK["conj"], a) if a.dtype.kind == "complex" else free(a)


@rule("aten.conj _conj _neg_view resolve_conj resolve_neg positive", "prims.conj view_of")
def same_memory(a: TensorType) -> Estimate:
    """Free: the result is a view with a flag set."""
    return free(a)


@rule("aten.equal")
def equal(a: TensorType, b: TensorType) -> Estimate:
    """One comparison per element, reduced to one answer."""
    return Estimate((data_dependent("equal"),), vector_flops=WORK["eq"].flops * a.numel, reads=(a, b))


@rule("aten.allclose")
def allclose(a: TensorType, b: TensorType) -> Estimate:
    """|a - b| <= atol + rtol * |b| per element, reduced to one answer."""
    n = prod(broadcast(a.shape, b.shape))
    return Estimate((data_dependent("allclose"),), vector_flops=WORK["isclose"].flops * n, reads=(a, b))
