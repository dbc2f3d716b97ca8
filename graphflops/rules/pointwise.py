"""Elementwise arithmetic: sums, products, comparisons, selections, powers, rounding, bits, complex parts."""

from __future__ import annotations

import operator
from functools import partial

from graphflops.cost import Estimate, Value, data_dependent, free
from graphflops.dims import broadcast, compare, dim_max, dim_min, floor_div, mod, prod, where
from graphflops.rules.elementwise import (
    PASS,
    ZERO,
    Gradient,
    Promotion,
    differentiate,
    elementwise,
    gradients_of,
    pointwise,
    to_bool,
    to_real,
    to_real_float,
)
from graphflops.rules.promotion import complex_of, float_result, result_type
from graphflops.rules.registry import ForwardCall, backward, rule
from graphflops.tensor import COMPLEX128, FLOAT64, INT32, INT64, DType, TensorType

COMPLEX_PRODUCT = (6, 0)  # four multiplications and two additions
COMPLEX_QUOTIENT = (11, 0)  # that by the conjugate, the divisor's squared length, two divisions

# One operand. The type stays.
pointwise("neg negative", 1, fold=operator.neg, gradients=(Gradient(1),))
pointwise("abs absolute", 1, result=to_real, complex_work=(3, 1), gradients=(Gradient(2, reads="a"),))
pointwise("floor ceil trunc fix sign", 1, gradients=(ZERO,))
pointwise("sgn", 1, complex_work=(5, 1), gradients=(ZERO,))
pointwise("frac", 2, gradients=(PASS,))
pointwise("reciprocal", 1, result=float_result, complex_work=(6, 0), gradients=(Gradient(3, reads="out"),))
pointwise("nan_to_num", 3, gradients=(Gradient(1, reads="a"),))
pointwise("deg2rad rad2deg", 1, result=float_result, gradients=(Gradient(1),))
pointwise("bitwise_not", 1)
pointwise("logical_not", 1, result=to_bool, fold=lambda a: compare("==", a, 0))
pointwise("isnan isinf isfinite isposinf isneginf isreal signbit", 1, result=to_bool)
pointwise("_conj_copy _neg_view_copy", 1)

# Two operands.
pointwise(
    "mul multiply",
    flops=1,
    arity=2,
    complex_work=COMPLEX_PRODUCT,
    fold=operator.mul,
    gradients=(Gradient(1, reads="b"), Gradient(1, reads="a")),
)
pointwise(
    "div divide true_divide",
    flops=1,
    arity=2,
    result=float_result,
    complex_work=COMPLEX_QUOTIENT,
    gradients=(Gradient(1, reads="b"), Gradient(3, reads="b out")),
)
pointwise("floor_divide", 2, arity=2, fold=floor_div, gradients=(ZERO, ZERO))
TO_DIVISOR = Gradient(4, reads="a b")
pointwise("remainder", 4, arity=2, fold=mod, gradients=(PASS, TO_DIVISOR))
pointwise("fmod", 4, arity=2, gradients=(PASS, TO_DIVISOR))
# The gradient goes to the operand that was chosen.
EITHER = (Gradient(1, reads="a b"), Gradient(1, reads="a b"))
pointwise("maximum max.other", 1, arity=2, fold=dim_max, gradients=EITHER)
pointwise("minimum min.other", 1, arity=2, fold=dim_min, gradients=EITHER)
pointwise("fmax fmin", 1, arity=2, gradients=EITHER)
for symbol, names in {
    "==": "eq",
    "!=": "ne not_equal",
    "<": "lt less",
    "<=": "le less_equal",
    ">": "gt greater",
    ">=": "ge greater_equal",
}.items():
    pointwise(names, 1, arity=2, result=to_bool, fold=partial(compare, symbol))
pointwise("logical_and logical_or logical_xor", 1, arity=2, result=to_bool)
pointwise("bitwise_and bitwise_or bitwise_xor", 1, arity=2)
pointwise("__and__ __or__ __xor__ __iand__ __ior__ __ixor__", 1, arity=2)
pointwise("bitwise_left_shift bitwise_right_shift", 1, arity=2)
pointwise("__lshift__ __rshift__ __ilshift__ __irshift__", 1, arity=2)
pointwise("copysign", 1, arity=2, result=float_result, gradients=(Gradient(2, reads="a out"), ZERO))
pointwise("nextafter", 1, arity=2)
pointwise("heaviside", 2, arity=2, gradients=(ZERO, Gradient(1, reads="a")))
pointwise("gcd", 0, 1, arity=2)
pointwise("lcm", 3, 1, arity=2)
pointwise("hypot", 3, 1, arity=2, gradients=(Gradient(2, reads="a out"), Gradient(2, reads="b out")))
pointwise(
    "atan2 arctan2",
    transcendentals=1,
    arity=2,
    result=float_result,
    gradients=(Gradient(5, reads="a b"), Gradient(6, reads="a b")),
)
# |a - b| <= atol + rtol * |b|
pointwise("isclose", 6, arity=2, result=to_bool)
pointwise("_add_relu", 2, arity=2)

# Three operands.
pointwise(
    "lerp",
    flops=3,
    arity=3,
    result=lambda a, b, weight: result_type(a, b),
    gradients=(Gradient(2, reads="c"), Gradient(1, reads="c"), Gradient(2, reads="a b")),
)


def _scaled(alpha: Value) -> int:
    """An addition, and a multiplication where alpha is not one."""
    return 1 if alpha == 1 else 2


@rule("aten.add")
def add(a: Value, b: Value, alpha: Value = 1) -> Estimate:
    """A + alpha * b."""
    return elementwise(a, b, flops=_scaled(alpha), fold=lambda x, y: x + alpha * y)


@rule("aten.sub", "aten.subtract")
def sub(a: Value, b: Value, alpha: Value = 1) -> Estimate:
    """A - alpha * b."""
    return elementwise(a, b, flops=_scaled(alpha), fold=lambda x, y: x - alpha * y)


@rule("aten.rsub")
def rsub(a: Value, b: Value, alpha: Value = 1) -> Estimate:
    """B - alpha * a."""
    return elementwise(a, b, flops=_scaled(alpha), fold=lambda x, y: y - alpha * x)


backward("aten.add")(differentiate({"a": PASS, "b": PASS}))
backward("aten.sub", "aten.subtract")(differentiate({"a": PASS, "b": Gradient(1)}))
backward("aten.rsub")(differentiate({"a": Gradient(1), "b": PASS}))


ROUNDING = [f"aten.{name}.{overload}_mode" for name in ("div", "divide") for overload in ("Tensor", "Scalar")]


@rule(*ROUNDING)
def divide_rounding(a: TensorType, b: Value, *, rounding_mode: str | None = None) -> Estimate:
    """A division, and its rounding."""
    if rounding_mode is None:
        return elementwise(a, b, flops=1, result=float_result, complex_work=COMPLEX_QUOTIENT)
    return elementwise(a, b, flops=2, fold=floor_div)


@backward(*ROUNDING)
def divide_rounding_backward(call: ForwardCall) -> Estimate:
    """Zero behind a rounding, otherwise that of a division."""
    if call.arguments.get("rounding_mode") is not None:
        return gradients_of(call, {"a": ZERO, "b": ZERO})
    return gradients_of(call, {"a": Gradient(1, reads="b"), "b": Gradient(3, reads="b out")})


@rule("aten.round", "aten.special_round")
def round_(a: TensorType, *, decimals: Value = 0) -> Estimate:
    """One rounding per element, scaled there and back where decimals are asked for."""
    return elementwise(a, flops=1 if decimals == 0 else 3)


backward("aten.round", "aten.special_round")(differentiate({"a": ZERO}))


@rule("aten.addcmul", "aten.addcdiv")
def addcmul(a: TensorType, b: TensorType, c: TensorType, *, value: Value = 1) -> Estimate:
    """A product (or quotient) and a sum, and the scaling where value is not one."""
    return elementwise(a, b, c, flops=2 if value == 1 else 3)


backward("aten.addcmul")(differentiate({"a": PASS, "b": Gradient(1, reads="c"), "c": Gradient(1, reads="b")}))
backward("aten.addcdiv")(
    differentiate({"a": PASS, "b": Gradient(1, reads="c"), "c": Gradient(4, reads="b c")})
)


@rule("aten.clamp", "aten.clip")
def clamp(a: TensorType, min: Value = None, max: Value = None) -> Estimate:
    """One comparison per element and bound."""
    return elementwise(a, min, max, flops=(min is not None) + (max is not None))


@rule("aten.clamp_min")
def clamp_min(a: TensorType, min: Value) -> Estimate:
    """One comparison per element."""
    return elementwise(a, min, flops=1, fold=dim_max)


@rule("aten.clamp_max")
def clamp_max(a: TensorType, max: Value) -> Estimate:
    """One comparison per element."""
    return elementwise(a, max, flops=1, fold=dim_min)


@backward("aten.clamp", "aten.clip", "aten.clamp_min", "aten.clamp_max")
def clamp_backward(call: ForwardCall) -> Estimate:
    """For each operand: where it was chosen, told by the same comparisons, the gradient is selected."""
    bounds = [name for name in ("min", "max") if call.arguments.get(name) is not None]
    chosen = Gradient(len(bounds), reads=" ".join(("a", *bounds)))
    return gradients_of(call, dict.fromkeys(("a", "min", "max"), chosen))


@rule("aten.where")
def select(condition: TensorType, a: Value, b: Value) -> Estimate:
    """One selection per element; the type is promoted from the two that are chosen between."""
    return elementwise(condition, a, b, flops=1, result=lambda _, *chosen: result_type(*chosen), fold=where)


backward("aten.where")(differentiate(dict.fromkeys("ab", Gradient(1, reads="condition"))))


@rule("aten.where.default")
def where_indices(condition: TensorType) -> Estimate:
    """The positions of what is true, one vector per axis: a comparison per element."""
    positions = data_dependent("nonzero")
    axes = tuple(condition.like((positions,), INT64) for _ in range(max(condition.rank, 1)))
    return Estimate(axes, vector_flops=condition.numel, reads=(condition,))


@rule("aten.masked_fill")
def masked_fill(a: TensorType, mask: TensorType, value: Value) -> Estimate:
    """One selection per element, in the type of what is filled."""
    return elementwise(a, mask, value, flops=1, result=lambda x, *_: x.dtype)


backward("aten.masked_fill")(differentiate(dict.fromkeys(("a", "value"), Gradient(1, reads="mask"))))


def power_work(exponent: Value) -> tuple[int, int]:
    """Vector FLOPs and function evaluations of x ** exponent; some exponents are products or roots."""
    known = {0: (0, 0), 1: (0, 0), 2: (1, 0), 3: (2, 0), -1: (1, 0), -2: (2, 0), 0.5: (0, 1), -0.5: (0, 1)}
    return known.get(exponent, (0, 1)) if isinstance(exponent, (int, float)) else (0, 1)


def raised(a: Value, exponent: Value, result: Promotion) -> Estimate:
    """A ** exponent; complex products are counted in real operations."""
    flops, evaluations = power_work(exponent)
    return elementwise(
        a,
        exponent,
        flops=flops,
        transcendentals=evaluations,
        result=result,
        complex_work=(COMPLEX_PRODUCT[0] * flops, 2 * evaluations),
    )


@rule("aten.pow")
def power(a: Value, exponent: Value) -> Estimate:
    """A function evaluation per element, or the products that a small constant exponent stands for."""
    return raised(a, exponent, result_type)


@rule("aten.square")
def square(a: TensorType) -> Estimate:
    """One multiplication per element."""
    return power(a, 2)


@rule("aten.float_power")
def float_power(a: Value, exponent: Value) -> Estimate:
    """As a power, in double precision."""
    return raised(a, exponent, _double)


def _double(*operands: Value) -> DType:
    return COMPLEX128 if result_type(*operands).kind == "complex" else FLOAT64


@backward("aten.pow", "aten.square", "aten.float_power")
def power_backward(call: ForwardCall) -> Estimate:
    """The base's is exponent * base ** (exponent - 1), the exponent's the result times log(base)."""
    exponent = call.arguments.get("exponent", 2)
    flops, transcendentals = power_work(exponent - 1) if isinstance(exponent, (int, float)) else (1, 1)
    to_base = Gradient(
        flops + 2, transcendentals, reads="a exponent" if "exponent" in call.arguments else "a"
    )
    return gradients_of(call, {"a": to_base, "exponent": Gradient(2, 1, reads="a out")})


pointwise("ldexp", 1, 1, arity=2, result=float_result)


@rule("aten.frexp", "prims.frexp")
def frexp(a: TensorType) -> Estimate:
    """One split per element, into mantissa and exponent."""
    return Estimate((a.like(), a.like(dtype=INT32)), vector_flops=a.numel, reads=(a,))


backward("aten.frexp")(differentiate({"a": Gradient(1, 1)}))


@rule("aten.complex")
def make_complex(real: TensorType, imag: TensorType) -> Estimate:
    """Both parts copied side by side."""
    return elementwise(real, imag, result=_complex)


@rule("aten.polar")
def polar(abs: TensorType, angle: TensorType) -> Estimate:
    """Sine, cosine and two products per element."""
    return elementwise(abs, angle, flops=2, transcendentals=2, result=_complex)


def _complex(*parts: Value) -> DType:
    return complex_of(result_type(*parts))


@rule("aten.angle")
def angle(a: TensorType) -> Estimate:
    """An arc tangent per complex element; a real one's angle is read off its sign."""
    return elementwise(a, flops=1, result=to_real_float, complex_work=(0, 1))


@rule("aten.conj_physical", "aten._conj_physical")
def conj_physical(a: TensorType) -> Estimate:
    """One negation per complex element; a real tensor is its own conjugate."""
    return elementwise(a, complex_work=(1, 0)) if a.dtype.kind == "complex" else free(a)


@rule(
    *("aten.conj", "aten._conj", "aten._neg_view", "aten.resolve_conj", "aten.resolve_neg", "aten.positive"),
    *("prims.conj", "prims.view_of"),
)
def same_memory(a: TensorType) -> Estimate:
    """Nothing: the result is a view with a mark on it."""
    return free(a)


@rule("aten.equal")
def equal(a: TensorType, b: TensorType) -> Estimate:
    """One comparison per element, of which one answer is left."""
    return Estimate((data_dependent("equal"),), vector_flops=a.numel, reads=(a, b))


@rule("aten.allclose")
def allclose(
    a: TensorType, b: TensorType, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Estimate:
    """|a - b| <= atol + rtol * |b| per element, of which one answer is left."""
    n = prod(broadcast(a.shape, b.shape))
    return Estimate((data_dependent("allclose"),), vector_flops=6 * n, reads=(a, b))
