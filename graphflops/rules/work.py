"""Work of elementwise functions: FLOPs and function evaluations per element, and those of the gradient.

Every dialect counts an elementwise function from its row here: ATen, prims, ONNX, recurrent cells, experts, activations
fused into other operators, quantization and optimizers. A function is keyed by its canonical name; what an attribute
adds (a scale that is not one, a bound that is given) is added where the operator's rule reads the attribute.

Work is that of the function's defining formula; guards against special values (nan, infinity, a zero argument) are not
counted, and a choice between two values by one comparison is one operation. Rows are named tuples because every
analysis imports them: a class of two costs 0.1 ms, a frozen dataclass five times as much.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from graphflops.errors import RuleError
from graphflops.rules.formula import is_part_of_choice, launches

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphflops.rules.formula import Launch, Numbers

    Pair = tuple[int, int] | None


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
    is_fused: one kernel computes all of it.
    """

    text: str
    launched: str = ""
    is_fused: bool = False

    def gradient(self, numbers: Numbers = ()) -> Gradient:
        """Its work and reads. numbers: the operands that are no tensors, by their letters."""
        return _counted(self, numbers)


def _fused(text: str) -> Formula:
    return Formula(text, is_fused=True)


@lru_cache(maxsize=1024)
def _counted(formula: Formula, numbers: Numbers) -> Gradient:
    flops = transcendentals = 0
    found = launches(formula.text, numbers)
    for launch in found:
        if not is_part_of_choice(launch, found):
            work = work_of_launch(launch)
            flops, transcendentals = flops + work.flops, transcendentals + work.transcendentals
    read = found if not formula.launched else launches(formula.launched, numbers)
    names = {name for launch in read for name in launch.operands if isinstance(name, str)} - {"g"}
    return Gradient(flops, transcendentals, " ".join(sorted(names)))


def work_of_launch(launch: Launch) -> Work:
    """Work per element of one kernel of a formula."""
    if launch.function == "fill":
        return Work("fill")
    return power(launch.numbers[0]) if launch.function == "pow" and launch.numbers else WORK[launch.function]


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

    @property
    def gradient(self) -> Work:
        """Work of the first operand's gradient."""
        first = self.formulas[0].gradient() if self.formulas and self.formulas[0] else ZERO
        return Work(self.name, first.flops, first.transcendentals)


Row = str | Formula | None  # a gradient in the table: a formula, or PASS


def _unary(name: str, flops: int, transcendentals: int, *gradient: Row, complex_work: Pair = None) -> Work:
    return Work(name, flops, transcendentals, complex_work, _formulas(gradient))


def _binary(name: str, flops: int, transcendentals: int, *gradients: Row, complex_work: Pair = None) -> Work:
    return Work(name, flops, transcendentals, complex_work, _formulas(gradients), operands=2)


def _ternary(name: str, flops: int, *gradients: Row) -> Work:
    return Work(name, flops, 0, None, _formulas(gradients), operands=3)


def _formulas(gradients: tuple[Row, ...]) -> tuple[Formula | None, ...]:
    return tuple(Formula(row) if isinstance(row, str) else row for row in gradients)


def _extremes(names: str, chosen: str, other: str) -> list[Work]:
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


def _each(names: str, flops: int, transcendentals: int, operands: int = 1) -> list[Work]:
    """Functions of the same work that have no gradient rule of their own."""
    return [Work(name, flops, transcendentals, operands=operands) for name in names.split()]


# The columns: name, FLOPs, function evaluations, gradient of each operand.

_ARITHMETIC = [
    # One operand.
    _unary("neg", 1, 0, "-g"),
    _unary("abs", 1, 0, "g * sign(a)", complex_work=(3, 1)),  # root of the sum of two squares
    _unary("floor", 1, 0, "0"),
    _unary("ceil", 1, 0, "0"),
    _unary("trunc", 1, 0, "0"),
    _unary("round", 1, 0, "0"),
    _unary("sign", 1, 0, "0"),
    _unary("sgn", 1, 0, "0", complex_work=(5, 1)),  # the magnitude, and both parts divided by it
    _unary("frac", 2, 0, PASS),
    _unary("reciprocal", 1, 0, "-g * (out * out)", complex_work=(6, 0)),  # conjugate / squared length
    _unary("nan_to_num", 3, 0, Formula("where(isfinite(a), g, 0)", "g * ((a == a) * (abs(a) != infinity))")),
    _unary("deg2rad", 1, 0, "g * degree"),
    _unary("rad2deg", 1, 0, "g * radian"),
    _unary("frexp", 1, 0, "g / exp2(out)"),
    _unary("angle", 1, 0, complex_work=(0, 1)),  # of a real number: 0 or pi, by its sign
    _unary("conj", 0, 0, complex_work=(1, 0)),
    # Two operands.
    _binary("add", 1, 0, PASS, PASS),
    _binary("sub", 1, 0, PASS, "-g"),
    _binary("rsub", 1, 0, "-g", PASS),
    # complex: four multiplications and two additions
    _binary("mul", 1, 0, "g * b", "g * a", complex_work=(6, 0)),
    # complex: the product with the conjugate, the divisor's squared length, two divisions
    _binary("div", 1, 0, "g / b", Formula("-g * out / b", "-g * (a / b / b)"), complex_work=(11, 0)),
    _binary("floor_divide", 2, 0, "0", "0"),  # divide, round
    _binary("remainder", 4, 0, PASS, "-g * floor_divide(a, b)"),  # divide, round, multiply, subtract
    _binary("fmod", 4, 0, PASS, "-g * floor_divide(a, b)"),
    # the gradient goes to the operand that was chosen; torch gives half of it to each of two that are equal
    *_extremes("maximum fmax", ">", "<"),
    *_extremes("minimum fmin", "<", ">"),
    _binary("copysign", 1, 0, Formula("g * (out / a)", "g * masked_fill_(out / a, a == 0, 0)"), "0"),
    _binary("heaviside", 2, 0, "0", "where(a == 0, g, 0)"),
    _binary("hypot", 3, 1, "g * a / out", "g * b / out"),
    _binary(
        "atan2",
        0,
        1,
        Formula(
            "g * b / (a * a + b * b)", "s = a * a + b * b; g * b * masked_fill(reciprocal(s), s == 0, 0)"
        ),
        Formula(
            "-g * a / (a * a + b * b)", "s = a * a + b * b; g * (-a * masked_fill(reciprocal(s), s == 0, 0))"
        ),
    ),
    *_each("nextafter", 1, 0, operands=2),
    *_each("gcd", 0, 1, operands=2),
    *_each("lcm", 3, 1, operands=2),
    *_each("ldexp", 1, 1, operands=2),  # a * 2 ** b
    *_each("polar", 2, 2, operands=2),  # the sine and the cosine, each times the length
    # Three operands; for `lerp` a + c * (b - a), for `clamp` one comparison for each bound that is given.
    _ternary("lerp", 3, "g * (1 - c)", "g * c", "g * (b - a)"),
    _ternary("addcmul", 2, PASS, Formula("g * c", "g * (c * value)"), Formula("g * b", "g * (b * value)")),
    _ternary(
        "addcdiv",
        2,
        PASS,
        Formula("g / c", "g * (value / c)"),
        Formula("-g * b / (c * c)", "-g * (b * value / (c * c))"),
    ),
    _ternary("where", 1, "0", "where(a, g, 0)", "where(a, 0, g)"),
    _ternary("masked_fill", 1, Formula("where(b, 0, g)", "masked_fill(g, b, 0)"), "0", "where(b, g, 0)"),
    # bounds that are not given take no part
    _ternary(
        "clamp",
        1,
        "where(logical_and(a >= b, a <= c), g, 0)",
        "where(logical_and(a < b, b < c), g, 0)",
        "where(logical_or(a > c, c < b), g, 0)",
    ),
    _binary("clamp_min", 1, 0, "where(a >= b, g, 0)", "where(a < b, g, 0)"),
    _binary("clamp_max", 1, 0, "where(a <= b, g, 0)", "where(a > b, g, 0)"),
    _unary("square", 1, 0, "g * (2 * pow(a, 1))"),
]

_COMPARISONS_AND_BITS = [
    *_each("eq ne lt le gt ge", 1, 0, operands=2),
    *_each("isclose", 6, 0, operands=2),  # |a - b| <= atol + rtol * |b|
    *_each("isnan isinf isfinite isposinf isneginf isreal signbit", 1, 0),
    *_each("logical_not bitwise_not", 1, 0),
    *_each("logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor", 1, 0, operands=2),
    *_each("bitwise_left_shift bitwise_right_shift", 1, 0, operands=2),
]

_FUNCTIONS = [
    # Exponentials and roots.
    _unary("exp", 0, 1, "g * out"),
    _unary("exp2", 0, 1, "g * out * ln2"),
    _unary("expm1", 0, 1, "g * (out + 1)"),
    _unary("log", 0, 1, "g / a"),
    _unary("log2", 0, 1, "g / (a * ln2)"),
    _unary("log10", 0, 1, "g / (a * ln10)"),
    _unary("log1p", 0, 1, "g / (a + 1)"),
    _unary("sqrt", 0, 1, "g / (2 * out)"),
    _unary("rsqrt", 0, 1, "-0.5 * g * pow(out, 3)"),
    *_each("cbrt", 0, 1),
    # Trigonometric and hyperbolic functions.
    _unary("sin", 0, 1, "g * cos(a)"),
    _unary("cos", 0, 1, "g * -sin(a)"),
    _unary("tan", 0, 1, "g * (1 + pow(out, 2))"),  # grad * (1 + y * y)
    _unary("asin", 0, 1, Formula("g / sqrt(1 - a * a)", "g * rsqrt(-a * a + 1)")),
    _unary("asinh", 0, 1, "g * rsqrt(pow(a, 2) + 1)"),
    _unary("acosh", 0, 1, "g * rsqrt(a * a - 1)"),
    _unary("acos", 0, 1, Formula("-g / sqrt(1 - a * a)", "g * -rsqrt(-a * a + 1)")),
    _unary("atan", 0, 1, "g / (a * a + 1)"),
    _unary("atanh", 0, 1, Formula("g / (1 - a * a)", "g * 1 / (1 - pow(a, 2))")),
    _unary("sinh", 0, 1, "g * cosh(a)"),
    _unary("cosh", 0, 1, "g * sinh(a)"),
    _unary(
        "sinc",
        2,
        1,
        Formula(
            "t = a * pi; g * ((t * cos(t) - sin(t)) / (t * a))",
            "s = a * a * pi; t = a * pi; where(s == 0, 0, g * ((t * cos(t) - sin(t)) / s))",
        ),
    ),
    # Logistic and error functions.
    _unary("logit", 2, 1, _fused("g / (a * (1 - a))")),
    _unary("erf", 0, 1, "two_by_root_pi * exp(-pow(a, 2)) * g"),
    _unary("erfc", 0, 1, "-two_by_root_pi * exp(-pow(a, 2)) * g"),
    _unary(
        "erfinv",
        0,
        1,
        Formula("half_root_pi * exp(out * out) * g", "half_root_pi * exp(pow(erfinv(a), 2)) * g"),
    ),
    _unary("erfcx", 0, 1, "(2 * a * out - two_by_root_pi) * g"),
    _unary(
        "ndtr",
        2,
        1,
        "g * exp(-0.5 * pow(a, 2)) * by_root_two_pi",
    ),
    _unary("ndtri", 0, 1, "g * (root_two_pi * exp(pow(out, 2) / 2))"),
    _unary(
        "log_ndtr",
        2,
        2,
        Formula(
            "g / exp(out + pow(a, 2) / 2) / root_two_pi", "exp(-(out + pow(a, 2) / 2)) / root_two_pi * g"
        ),
    ),
    _unary("entr", 2, 1, "g * -(log(a) + 1)"),  # -a * log(a)
    # Gamma and Bessel functions, each one evaluation.
    _unary("lgamma", 0, 1, "g * digamma(a)"),
    _unary("digamma", 0, 1, "g * polygamma(a)"),
    _unary("polygamma", 0, 1, "g * polygamma(a)"),
    _unary("i0", 0, 1, "g * i1(a)"),
    _unary("i0e", 0, 1, Formula("g * (i1e(a) - copysign(out, a))", "g * (i1e(a) - sign(a) * out)")),
    _unary(
        "i1",
        0,
        1,
        Formula(
            "g * (i0(a) - out / a)",
            "m = abs(a) > epsilon; t = where(m, a, epsilon); g * where(m, i0(t) - out * reciprocal(t), 0.5)",
        ),
    ),
    _unary(
        "i1e",
        0,
        1,
        Formula(
            "g * (i0e(a) - abs(out) - out / a)",
            "m = abs(a) > epsilon; t = where(m, a, epsilon); g * where(m, i0e(t) - out * (sign(t) + reciprocal(t)), 0.5)",
        ),
    ),
    *_each("standard_gamma_grad", 0, 1, operands=2),
    _unary("standard_gamma", 0, 1, "g * standard_gamma_grad(a, out)"),
    *_each("sample", 0, 0),  # of a distribution: no gradient
    *_each("mvlgamma", 2, 1),  # for each of p shifted arguments: shift, add, log-gamma
    *_each("bessel_j0 bessel_j1 bessel_y0 bessel_y1 spherical_bessel_j0 airy_ai", 0, 1),
    *_each("modified_bessel_i0 modified_bessel_i1 modified_bessel_k0 modified_bessel_k1", 0, 1),
    *_each("scaled_modified_bessel_k0 scaled_modified_bessel_k1", 0, 1),
    # Two operands; `polynomial` is any orthogonal one (Chebyshev, Hermite, Laguerre, Legendre).
    _binary(
        "pow",
        0,
        1,
        Formula("g * (b * pow(a, b - 1))", "where(b == 0, 0, g * (b * pow(a, b - 1)))"),
        Formula("g * (out * log(a))", "g * where(logical_and(b >= 0, a == 0), 0, out * log(a))"),
    ),
    *_each("zeta igamma igammac polynomial", 0, 1, operands=2),
    _binary(
        "xlogy",
        1,
        1,
        Formula("g * log(b)", "masked_fill(xlogy(g, b), logical_and(a == 0, b <= 0), 0)"),
        "g * a / b",
    ),  # a * log(b)
    _binary(
        "xlog1py",
        1,
        1,
        Formula("g * log1p(b)", "masked_fill(xlog1py(g, b), logical_and(a == 0, b <= -1), 0)"),
        "g * a / (b + 1)",
    ),  # a * log(1 + b)
    # max(a, b) + log(1 + exp(-|a - b|)); the gradients are shares: grad * exp(a - out)
    _binary(
        "logaddexp",
        5,
        2,
        Formula("g * exp(a - out)", "g / (exp(b - a) + 1)"),
        Formula("g * exp(b - out)", "g / (exp(a - b) + 1)"),
    ),
    _binary(
        "logaddexp2",
        5,
        2,
        Formula("g * exp2(a - out)", "g / (pow(2, b - a) + 1)"),
        Formula("g * exp2(b - out)", "g / (pow(2, a - b) + 1)"),
    ),
]

_ACTIVATIONS = [
    # Piecewise linear.
    Work("identity"),
    _unary("relu", 1, 0, _fused("where(out > 0, g, 0)")),
    _unary("threshold", 1, 0, _fused("where(a > low, g, 0)")),
    _unary("leaky_relu", 2, 0, _fused("where(a > 0, g, g * slope)")),
    _unary("rrelu", 2, 0, _fused("where(a > 0, g, g * slope)")),
    _binary("rrelu_with_noise", 2, 0, _fused("g * b"), "0"),  # grad * noise, the slope that was drawn
    Work("rrelu_with_noise_backward", 2, operands=3),  # or the choice of the slope between its bounds
    _binary("prelu", 2, 0, _fused("where(a > 0, g, g * b)"), _fused("where(a > 0, 0, g * a)")),
    _unary("hardtanh", 2, 0, _fused("where(low < a < high, g, 0)")),
    _unary("hardshrink", 2, 0, _fused("where(low <= a <= high, 0, g)")),
    _unary("softshrink", 4, 0, _fused("where(low <= a <= high, 0, g)")),
    _unary("hardsigmoid", 4, 0, _fused("where(-3 < a < 3, g / 6, 0)")),  # (x + 3) / 6 between two bounds
    _unary(
        "hardswish", 5, 0, _fused("where(a < -3, 0, where(a <= 3, g * (a / 3 + 0.5), g))")
    ),  # x times that
    _unary("affine", 2, 0),  # alpha * x + beta
    # Smooth.
    _unary("tanh", 0, 1, _fused("g * (1 - out * out)")),  # grad * (1 - y * y)
    _unary("scaled_tanh", 2, 1),  # alpha * tanh(beta * x)
    _unary("sigmoid", 0, 1, _fused("g * (1 - out) * out")),  # grad * y * (1 - y)
    _unary("softsign", 3, 0),  # x / (1 + |x|)
    _unary(
        "silu", 1, 1, _fused("s = sigmoid(a); g * s * (1 + a * (1 - s))")
    ),  # x * sigmoid(x); grad * s * (1 + x * (1 - s))
    # x * tanh(log(1 + exp(x))); grad * (t + x * s * (1 - t * t)), whose t and s are evaluated again
    _unary("mish", 1, 3, _fused("t = tanh(log1p(exp(a))); g * (t + a * sigmoid(a) * (1 - t * t))")),
    _unary("softplus", 1, 2),  # log(1 + exp(x))
    # log(1 + exp(beta * x)) / beta below the threshold; grad * z / (1 + z)
    _unary(
        "scaled_softplus", 3, 2, _fused("t = a * beta; z = exp(t); where(t > threshold, g, g * z / (z + 1))")
    ),
    _unary("elu", 2, 1, _fused("where(a > 0, g, g * alpha * exp(a))")),  # alpha * (exp(x) - 1) below zero
    _unary("selu", 3, 1, _fused("where(a > 0, g * scale, g * alpha * exp(a))")),  # and scaled
    _unary("celu", 3, 1, _fused("where(a > 0, g, g * alpha * exp(a * by_alpha))")),  # of x / alpha
    _unary(
        "log_sigmoid",
        4,
        2,
        _fused("z = exp(-abs(a)); g * (where(a < 0, 1, 0) - where(a < 0, 1, -1) * (z / (1 + z)))"),
    ),  # min(x, 0) - log(1 + exp(-|x|))
    # x / 2 * (1 + erf(x / sqrt 2)); grad * (cdf(x) + x * pdf(x))
    _unary(
        "gelu",
        4,
        1,
        _fused("g * (0.5 * (1 + erf(a * root_half)) + a * (by_root_two_pi * exp(a * a * -0.5)))"),
    ),
    # x / 2 * (1 + tanh(k * (x + c * x ** 3))); the product rule, with x * x and 1 + tanh used twice
    _unary(
        "gelu_tanh",
        9,
        1,
        _fused(
            "s = a * a; t = tanh(root_two_by_pi * (a + cubic * (s * a))); "
            "g * (0.5 * (1 + t) + 0.5 * a * (1 - t * t) * (root_two_by_pi * (1 + three_cubic * s)))"
        ),
    ),
    # Gates, of a value and a gate: value * sigmoid(gate), value * gate * sigmoid(gate).
    _unary("glu", 1, 1, _fused("s = sigmoid(b); (g * s, g * a * s * (1 - s))")),
    _binary("swiglu", 2, 1),
]

_QUANTIZATION = [
    Work("quantize", 6),  # multiply by the inverse scale, round, add the zero point, clamp 2, convert
    Work("dequantize", 3),  # convert, subtract the zero point, multiply by the scale
    Work("quantize_float", 4),  # to a float of few bits: multiply by the inverse scale, clamp 2, convert
    # quantize and dequantize without the conversions; grad where the element lay between the bounds
    _unary("fake_quantize", 7, 0, _fused("where(low <= a * by_scale + zero <= high, g, 0)")),
]

# Optimizers, per parameter: one update of p by its gradient g. Evaluations are square roots.
_DECAY = 1  # p *= 1 - rate * decay
_MEAN = 3  # m = m + (1 - beta) * (g - m)
_MEAN_SQUARE = 4  # v = beta * v + (1 - beta) * g * g
_DENOMINATOR = 2  # sqrt(v) / correction + eps
_STEP = 3  # p -= rate * m / denominator
# As torch's loop over single tensors writes it (torch/optim/adamw.py).

_OPTIMIZERS = [
    Work("sgd", 2),  # p -= rate * g
    Work("momentum", 2),  # m = momentum * m + g, which dampening scales once more
    Work("adam", _MEAN + _MEAN_SQUARE + _DENOMINATOR + _STEP, 1),
    Work("adamw", _DECAY + _MEAN + _MEAN_SQUARE + _DENOMINATOR + _STEP, 1),
    Work("adam_uncorrected", _MEAN + _MEAN_SQUARE + (_DENOMINATOR - 1) + _STEP, 1),
    Work("adagrad", 2 + 1 + _STEP, 1),  # v += g * g; p -= rate * g / (sqrt(v) + eps)
    Work("l2_penalty", 2),  # g += decay * p
    # Norms of p, of g by rows and by columns, and of u, 2 each; u = moments, divided, clamped, times g; p -= rate * u
    Work("adafactor", 4 * 2 + 1 + 1 + 1 + 2, 1),
    # m and u = g + beta * (m - g); the norm and the quotient; p *= 1 - rate * decay; p -= rate * u
    Work("muon", 2 * _MEAN + 2 + 1 + _DECAY + 2),
]

WORK: Mapping[str, Work] = {
    row.name: row
    for row in (
        *_ARITHMETIC,
        *_COMPARISONS_AND_BITS,
        *_FUNCTIONS,
        *_ACTIVATIONS,
        *_QUANTIZATION,
        *_OPTIMIZERS,
    )
}

# An exponent that is a small constant stands for products or a root.
_POWERS = {
    exponent: Work("pow", flops, roots, (6 * flops, 2 * roots))
    for exponent, flops, roots in (
        *((0, 0, 0), (1, 0, 0), (2, 1, 0), (3, 2, 0), (-1, 1, 0), (-2, 2, 0)),
        *((0.5, 0, 1), (-0.5, 0, 1)),
    )
}


def power(exponent: object) -> Work:
    """Work of x ** exponent: one evaluation, or the products or the root that a constant exponent stands for."""
    return _POWERS.get(exponent, WORK["pow"]) if isinstance(exponent, (int, float)) else WORK["pow"]


# Activations as attributes of other operators name them, in lower case and without underscores.
_NAMED = {row.name.replace("_", ""): row for row in _ACTIVATIONS}
_ALSO = {
    "": "identity",
    "none": "identity",
    "clip": "hardtanh",
    "swish": "silu",
    "thresholdedrelu": "threshold",
}


def activation(name: str) -> Work:
    """Work of the activation that an attribute names, in any spelling: `LeakyRelu`, `hard_sigmoid`, `NONE`."""
    key = name.lower().replace("_", "")
    found = _NAMED.get(_ALSO.get(key, key))
    if found is None:
        raise RuleError(f"unknown activation {name!r}")
    return found


def gelu(approximate: str) -> Work:
    """Work of gelu by erf, or by tanh."""
    return WORK["gelu" if approximate == "none" else "gelu_tanh"]
