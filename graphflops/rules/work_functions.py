"""Rows of the table in `work.py`: their types, and the work of arithmetic, comparisons and mathematical functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Gradient(NamedTuple):
    """Work per element of one operand's gradient, and what it reads besides the gradient of the result.

    reads: operands by place ("a", "b", "c") and "out" for the result, which the forward pass keeps for it.
    Without any work the gradient is zero, and is only written.
    """

    flops: int = 0
    transcendentals: int = 0
    reads: str = ""


class Formula(NamedTuple):
    """The gradient of one operand as a formula (`formula.py` says how to write it), of which its work is counted.

    launched: what PyTorch computes instead, with what guards against special values (tools/autograd/derivatives.yaml).
    is_fused: one kernel computes all of it. is_like_operand: of a fused one, it lies in memory as the operand, not as `g`.
    """

    text: str
    launched: str = ""
    is_fused: bool = False
    is_like_operand: bool = False


ZERO = Gradient()
PASS = None  # the gradient of the result is also the operand's: no work, the same memory


class Work(NamedTuple):
    """Work of one function per element of its result.

    complex_work: both counts for a complex element; twice those of a real one where it is None.
    formulas: one for each operand's gradient; () where the function has no gradient rule of its own.
    operands: number of operands.
    """

    name: str
    flops: int = 0
    transcendentals: int = 0
    complex_work: tuple[int, int] | None = None
    formulas: tuple[Formula | None, ...] = ()
    operands: int = 1

    def more(self, flops: int = 0, transcendentals: int = 0) -> Work:
        """The same function with more real operations on each element, or on both parts of a complex one."""
        both = self.complex_work and (
            self.complex_work[0] + 2 * flops,
            self.complex_work[1] + 2 * transcendentals,
        )
        return Work(
            *(self.name, self.flops + flops, self.transcendentals + transcendentals, both),
            *(self.formulas, self.operands),
        )

    def times(self, count: int) -> Work:
        """The function applied `count` times to each element."""
        return self._replace(flops=count * self.flops, transcendentals=count * self.transcendentals)


Pair = tuple[int, int] | None
Row = str | Formula | None  # a gradient in the table: a formula, or PASS


def unary(name: str, flops: int, transcendentals: int, *gradient: Row, complex_work: Pair = None) -> Work:
    """A function of one operand, with its gradient."""
    return Work(name, flops, transcendentals, complex_work, _formulas(gradient))


def binary(name: str, flops: int, transcendentals: int, *gradients: Row, complex_work: Pair = None) -> Work:
    """A function of two operands, with the gradient of each."""
    return Work(name, flops, transcendentals, complex_work, _formulas(gradients), operands=2)


def ternary(name: str, flops: int, *gradients: Row) -> Work:
    """A function of three operands, with the gradient of each."""
    return Work(name, flops, 0, None, _formulas(gradients), operands=3)


def _formulas(gradients: tuple[Row, ...]) -> tuple[Formula | None, ...]:
    return tuple(Formula(row) if isinstance(row, str) else row for row in gradients)


def extremes(names: str, chosen: str, other: str) -> list[Work]:
    """The larger or the smaller of two, and the one that passes over what is no number."""
    name, name_of_numbers = names.split()
    gradients = tuple(
        Formula(f"where(a {sign} b, g, 0)", f"masked_fill_(where(a == b, g / 2, g), a {against} b, 0)")
        for sign, against in ((chosen, other), (other, chosen))
    )
    is_first = f"logical_or_(a {chosen}= b, isnan(b))"
    of_numbers = (
        gradients[0]._replace(launched=f"masked_fill(g, logical_not_({is_first}), 0)"),
        gradients[1]._replace(launched=f"masked_fill(g, {is_first}, 0)"),
    )
    return [Work(name, 1, 0, None, gradients, 2), Work(name_of_numbers, 1, 0, None, of_numbers, 2)]


def each(names: str, flops: int, transcendentals: int, operands: int = 1) -> list[Work]:
    """Functions of the same work that have no gradient rule of their own."""
    return [Work(name, flops, transcendentals, operands=operands) for name in names.split()]


def fused(text: str, *, is_like_operand: bool = False) -> Formula:
    """A gradient that one kernel computes."""
    return Formula(text, is_fused=True, is_like_operand=is_like_operand)


# The columns: name, FLOPs, function evaluations, gradient of each operand.

ARITHMETIC = [
    # One operand.
    unary("neg", 1, 0, "-g"),
    unary("abs", 1, 0, "g * sign(a)", complex_work=(3, 1)),  # root of the sum of two squares
    unary("floor", 1, 0, "0"),
    unary("ceil", 1, 0, "0"),
    unary("trunc", 1, 0, "0"),
    unary("round", 1, 0, "0"),
    unary("sign", 1, 0, "0"),
    unary("sgn", 1, 0, "0", complex_work=(5, 1)),  # the magnitude, and both parts divided by it
    unary("frac", 2, 0, PASS),
    unary("reciprocal", 1, 0, "-g * (out * out)", complex_work=(6, 0)),  # conjugate / squared length
    unary("nan_to_num", 3, 0, "where(isfinite(a), g, 0)"),
    unary("deg2rad", 1, 0, "g * degree"),
    unary("rad2deg", 1, 0, "g * radian"),
    unary("frexp", 1, 0, "g / exp2(out)"),
    unary("angle", 1, 0, complex_work=(0, 1)),  # of a real number: 0 or pi, by its sign
    unary("conj", 0, 0, complex_work=(1, 0)),
    # Two operands.
    binary("add", 1, 0, PASS, "where(alpha != 1, g * alpha, g)"),
    binary("sub", 1, 0, PASS, "where(alpha != 1, -g * alpha, -g)"),
    binary("rsub", 1, 0, "where(alpha != 1, -g * alpha, -g)", PASS),
    # complex: four multiplications and two additions
    binary("mul", 1, 0, "g * b", "g * a", complex_work=(6, 0)),
    # complex: the product with the conjugate, the divisor's squared length, two divisions
    binary("div", 1, 0, "g / b", Formula("-g * out / b", "-g * (a / b / b)"), complex_work=(11, 0)),
    binary("floor_divide", 2, 0, "0", "0"),  # divide, round
    binary("remainder", 4, 0, PASS, "-g * floor_divide(a, b)"),  # divide, round, multiply, subtract
    binary("fmod", 4, 0, PASS, "-g * floor_divide(a, b)"),
    # the gradient goes to the operand that was chosen; torch gives half of it to each of two that are equal
    *extremes("maximum fmax", ">", "<"),
    *extremes("minimum fmin", "<", ">"),
    binary("copysign", 1, 0, "g * (out / a)", "0"),
    binary("heaviside", 2, 0, "0", "where(a == 0, g, 0)"),
    binary("hypot", 3, 1, "g * a / out", "g * b / out"),
    binary("atan2", 0, 1, "g * b / (a * a + b * b)", "-g * a / (a * a + b * b)"),
    *each("nextafter", 1, 0, operands=2),
    *each("gcd", 0, 1, operands=2),
    *each("lcm", 3, 1, operands=2),
    binary("ldexp", 1, 1, Formula("g * exp2(b)", "g * pow(2, b)"), "g * out * ln2"),  # a * 2 ** b
    *each("polar", 2, 2, operands=2),  # the sine and the cosine, each times the length
    # Three operands; for `lerp` a + c * (b - a), for `clamp` one comparison for each bound that is given.
    ternary("lerp", 3, "g * (1 - c)", "g * c", "g * (b - a)"),
    ternary("addcmul", 2, PASS, Formula("g * c", "g * (c * value)"), Formula("g * b", "g * (b * value)")),
    ternary(
        "addcdiv",
        2,
        PASS,
        Formula("g / c", "g * (value / c)"),
        Formula("-g * b / (c * c)", "-g * (b * value / (c * c))"),
    ),
    ternary("where", 1, "0", "where(a, g, 0)", "where(a, 0, g)"),
    ternary("masked_fill", 1, Formula("where(b, 0, g)", "masked_fill(g, b, 0)"), "0", "where(b, g, 0)"),
    # bounds that are not given take no part
    ternary(
        "clamp",
        1,
        "where(logical_and_(a >= b, a <= c), g, 0)",
        "where(logical_and(a < b, b < c), g, 0)",
        "where(logical_or(a > c, c < b), g, 0)",
    ),
    binary("clamp_min", 1, 0, "where(a >= b, g, 0)", "where(a < b, g, 0)"),
    binary("clamp_max", 1, 0, "where(a <= b, g, 0)", "where(a > b, g, 0)"),
    unary("square", 1, 0, "g * (2 * pow(a, 1))"),
]

COMPARISONS_AND_BITS = [
    *each("eq ne lt le gt ge", 1, 0, operands=2),
    *each("isclose", 6, 0, operands=2),  # |a - b| <= atol + rtol * |b|
    *each("isnan isinf isfinite isposinf isneginf isreal signbit", 1, 0),
    *each("logical_not bitwise_not", 1, 0),
    *each("logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor", 1, 0, operands=2),
    *each("bitwise_left_shift bitwise_right_shift", 1, 0, operands=2),
]

FUNCTIONS = [
    # Exponentials and roots.
    unary("exp", 0, 1, "g * out"),
    unary("exp2", 0, 1, "g * out * ln2"),
    unary("expm1", 0, 1, "g * (out + 1)"),
    unary("log", 0, 1, "g / a"),
    unary("log2", 0, 1, "g / (a * ln2)"),
    unary("log10", 0, 1, "g / (a * ln10)"),
    unary("log1p", 0, 1, "g / (a + 1)"),
    unary("sqrt", 0, 1, "g / (2 * out)"),
    unary("rsqrt", 0, 1, "-0.5 * g * pow(out, 3)"),
    *each("cbrt", 0, 1),
    # Trigonometric and hyperbolic functions.
    unary("sin", 0, 1, "g * cos(a)"),
    unary("cos", 0, 1, "g * -sin(a)"),
    unary("tan", 0, 1, "g * (1 + pow(out, 2))"),  # grad * (1 + y * y)
    unary("asin", 0, 1, Formula("g / sqrt(1 - a * a)", "g * rsqrt(-a * a + 1)")),
    unary("asinh", 0, 1, "g * rsqrt(pow(a, 2) + 1)"),
    unary("acosh", 0, 1, "g * rsqrt(a * a - 1)"),
    unary("acos", 0, 1, Formula("-g / sqrt(1 - a * a)", "g * -rsqrt(-a * a + 1)")),
    unary("atan", 0, 1, "g / (a * a + 1)"),
    unary("atanh", 0, 1, Formula("g / (1 - a * a)", "g * 1 / (1 - pow(a, 2))")),
    unary("sinh", 0, 1, "g * cosh(a)"),
    unary("cosh", 0, 1, "g * sinh(a)"),
    unary("sinc", 2, 1, "t = a * pi; g * ((t * cos(t) - sin(t)) / (t * a))"),
    # Logistic and error functions.
    unary("logit", 2, 1, fused("g / (a * (1 - a))")),
    unary("erf", 0, 1, "two_by_root_pi * exp(-pow(a, 2)) * g"),
    unary("erfc", 0, 1, "-two_by_root_pi * exp(-pow(a, 2)) * g"),
    unary(
        "erfinv",
        0,
        1,
        Formula("half_root_pi * exp(out * out) * g", "half_root_pi * exp(pow(erfinv(a), 2)) * g"),
    ),
    unary("erfcx", 0, 1, "(2 * a * out - two_by_root_pi) * g"),
    unary("ndtr", 2, 1, "g * exp(-0.5 * pow(a, 2)) * by_root_two_pi"),
    unary("ndtri", 0, 1, "g * (root_two_pi * exp(pow(out, 2) / 2))"),
    unary(
        "log_ndtr",
        2,
        2,
        Formula(
            "g / exp(out + pow(a, 2) / 2) / root_two_pi", "exp(-(out + pow(a, 2) / 2)) / root_two_pi * g"
        ),
    ),
    unary("entr", 2, 1, "g * -(log(a) + 1)"),  # -a * log(a)
    # Gamma and Bessel functions, each one evaluation.
    unary("lgamma", 0, 1, "g * digamma(a)"),
    unary("digamma", 0, 1, "g * polygamma(a)"),
    unary("polygamma", 0, 1, "g * polygamma(a)"),
    unary("i0", 0, 1, "g * i1(a)"),
    unary("i0e", 0, 1, Formula("g * (i1e(a) - copysign(out, a))", "g * (i1e(a) - sign(a) * out)")),
    unary(
        "i1",
        0,
        1,
        Formula(
            "g * (i0(a) - out / a)",
            "m = abs(a) > epsilon; t = where(m, a, epsilon); g * where(m, i0(t) - out * reciprocal(t), 0.5)",
        ),
    ),
    unary(
        "i1e",
        0,
        1,
        Formula(
            "g * (i0e(a) - abs(out) - out / a)",
            "m = abs(a) > epsilon; t = where(m, a, epsilon); g * where(m, i0e(t) - out * (sign(t) + reciprocal(t)), 0.5)",
        ),
    ),
    *each("standard_gamma_grad", 0, 1, operands=2),
    unary("standard_gamma", 0, 1, "g * standard_gamma_grad(a, out)"),
    *each("sample", 0, 0),  # of a distribution: no gradient
    *each("mvlgamma", 2, 1),  # for each of p shifted arguments: shift, add, log-gamma
    *each("bessel_j0 bessel_j1 bessel_y0 bessel_y1 spherical_bessel_j0 airy_ai", 0, 1),
    *each("modified_bessel_i0 modified_bessel_i1 modified_bessel_k0 modified_bessel_k1", 0, 1),
    *each("scaled_modified_bessel_k0 scaled_modified_bessel_k1", 0, 1),
    # Two operands; `polynomial` is any orthogonal one (Chebyshev, Hermite, Laguerre, Legendre).
    binary(
        "pow",
        0,
        1,
        Formula("g * (b * pow(a, b - 1))", "where(b == 0, 0, g * (b * pow(a, b - 1)))"),
        Formula("g * (out * log(a))", "g * where(logical_and(a == 0, b >= 0), 0, out * log(a))"),
    ),
    *each("zeta igamma igammac polynomial", 0, 1, operands=2),
    binary(
        "xlogy",
        1,
        1,
        Formula("g * log(b)", "masked_fill(xlogy(g, b), logical_and(a == 0, b <= 0), 0)"),
        "g * a / b",
    ),  # a * log(b)
    binary(
        "xlog1py",
        1,
        1,
        Formula("g * log1p(b)", "masked_fill(xlog1py(g, b), logical_and(a == 0, b <= -1), 0)"),
        "g * a / (b + 1)",
    ),  # a * log(1 + b)
    # max(a, b) + log(1 + exp(-|a - b|)); the gradients are shares: grad * exp(a - out)
    binary(
        "logaddexp",
        5,
        2,
        Formula("g * exp(a - out)", "g / (exp(b - a) + 1)"),
        Formula("g * exp(b - out)", "g / (exp(a - b) + 1)"),
    ),
    binary(
        "logaddexp2",
        5,
        2,
        Formula("g * exp2(a - out)", "g / (pow(2, b - a) + 1)"),
        Formula("g * exp2(b - out)", "g / (pow(2, a - b) + 1)"),
    ),
]

# Gradients of reductions and scans as PyTorch computes them (torch/csrc/autograd/FunctionsManual.cpp): `g` and `out` have
# one element for each result, as a `sum` and a `mean` in the formula do; `scale` is 2 / (n - 1).
_SPREAD = "scale * {} * (a - mean(a))"
_OF_ROOT = "masked_fill_(g / (out * 2), out == 0, 0)"
_EXTREME = "m = logical_or_(a == out, logical_and_(isnan(a), isnan(out))); m * (g / sum(m))"
REDUCTIONS: Mapping[str, Formula] = {
    name: Formula(text)
    for names, text in (
        ("logsumexp", "g * exp(a - out)"),
        ("amax amin", "m = out == a; g * m / sum(m)"),
        ("max min", _EXTREME),
        ("prod", "m = a == 0; g * (out / a)"),  # the zeros are counted first
        ("var", _SPREAD.format("g")),
        ("var_mean", f"{_SPREAD.format('g')} + g / count"),
        ("std", _SPREAD.format(_OF_ROOT)),
        ("std_mean", f"{_SPREAD.format(_OF_ROOT)} + g / count"),
        ("nansum", "g * logical_not(isnan(a))"),
        ("vector_norm", "g * masked_fill_(a / out, out == 0, 0)"),
        ("vector_norm:1", "g * sign(a)"),
        ("vector_norm:inf", "m = logical_or(abs(a) == out, isnan(a)); sign(a) * (g / sum(m) * m)"),
        ("vector_norm:p", "a * pow_(abs(a), p - 2) * masked_fill_(g / pow(out, p - 1), out == 0, 0)"),
        ("cumsum", "flip(cumsum(flip(g)))"),
        ("cumprod", "w = out * g; z = any(a == 0); flip(cumsum(flip(w))) / a"),  # without zeros
    )
    for name in names.split()
}
