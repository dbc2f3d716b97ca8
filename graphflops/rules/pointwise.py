"""Elementwise arithmetic and functions: comparisons, selections, powers, rounding, bits, exponentials, Bessel, series."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial

from graphflops.cost import Estimate, Value, data_dependent, free
from graphflops.dims import Dim, broadcast, compare, dim_max, dim_min, floor_div, mod, prod, where
from graphflops.ops.table import ROWS, Row
from graphflops.rules.elementwise import (
    Promotion,
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
from graphflops.tensor import COMPLEX128, FLOAT64, INT64, DType, TensorType

KIND = "elementwise"


# Functions with a row of work that do just what it says, under all names that the table of operators has for them. A result
# is a floating number, unless it says something of its operands, or is computed in their type.
_OF_THEIR_OWN = """add sub rsub pow square round clamp clamp_min clamp_max addcmul addcdiv polar frexp angle polygamma
mvlgamma where masked_fill lerp prelu elu gelu glu rrelu_with_noise softplus"""
_IN_TYPE_OF_OPERANDS = """neg floor ceil trunc sign sgn frac nan_to_num mul floor_divide remainder fmod fmax fmin nextafter
heaviside gcd lcm hypot maximum minimum relu threshold leaky_relu rrelu rrelu_with_noise_backward hardshrink softshrink
hardsigmoid hardswish mish silu hardtanh selu celu log_sigmoid"""
_FOLDS: dict[str, Callable[..., Dim]] = {
    "neg": operator.neg,
    "mul": operator.mul,
    "floor_divide": floor_div,
    "remainder": mod,
    "maximum": dim_max,
    "minimum": dim_min,
    "logical_not": lambda a: compare("==", a, 0),
    **{
        name: partial(compare, sign)
        for name, sign in {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}.items()
    },
}


def _result_of(row: Row, in_type: bool) -> Promotion:
    """The element type of an operator's result. in_type: of functions of numbers, that of the operands."""
    if row.kind == "comparison" or row.name.startswith("logical"):
        return to_bool
    if row.name == "abs":
        return to_real
    return result_type if in_type or row.kind == "logic" else float_result


_own, _typed = frozenset(_OF_THEIR_OWN.split()), frozenset(_IN_TYPE_OF_OPERANDS.split())
for _row in ROWS:
    _work = "polynomial" if "polynomial" in _row.name else _row.name
    if _row.kind in ("elementwise", "comparison", "logic") and _work in WORK:
        if _row.aten and _work not in _own:
            _result = _result_of(_row, _work in _typed)
            pointwise(_row.aten, _work, result=_result, fold=_FOLDS.get(_work))
        if _row.prims and _work not in ("where", "frexp"):
            pointwise(_row.prims, _work, result=_result_of(_row, True), dialect="prims")
for _name in ("and", "or", "xor"):
    pointwise(f"__i{_name}__", f"bitwise_{_name}")
pointwise("__ilshift__", "bitwise_left_shift")
pointwise("__irshift__", "bitwise_right_shift")
pointwise("_conj_copy", "conj")
pointwise("lerp", result=lambda a, b, weight: result_type(a, b))
# ATen's `softplus` has scales.
pointwise("softplus", "scaled_softplus")
pointwise("relu6", "hardtanh")
pointwise("_prelu_kernel", "prelu")


@rule("aten.polygamma", "aten.special_polygamma")
def polygamma(n: Value, a: TensorType) -> Estimate:
    """One evaluation per element, whatever the order."""
    return elementwise(WORK["polygamma"], a, result=float_result)


@rule("aten.mvlgamma", "aten.special_multigammaln")
def mvlgamma(a: TensorType, p: int) -> Estimate:
    """The sum of p log-gammas of shifted arguments, and a constant."""
    return elementwise(WORK["mvlgamma"].times(p), a, result=float_result)


backward("aten.polygamma", "aten.special_polygamma")(differentiate(WORK["polygamma"]))


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


@rule("aten.equal")
def equal(a: TensorType, b: TensorType) -> Estimate:
    """One comparison per element, reduced to one answer."""
    return Estimate((data_dependent("equal"),), vector_flops=WORK["eq"].flops * a.numel, reads=(a, b))


@rule("aten.allclose")
def allclose(a: TensorType, b: TensorType) -> Estimate:
    """|a - b| <= atol + rtol * |b| per element, reduced to one answer."""
    n = prod(broadcast(a.shape, b.shape))
    return Estimate((data_dependent("allclose"),), vector_flops=WORK["isclose"].flops * n, reads=(a, b))
