"""Work of elementwise functions: FLOPs and function evaluations per element, and those of the gradient.

Every dialect counts an elementwise function from its row here: ATen, prims, ONNX, recurrent cells, experts, activations
fused into other operators, quantization and optimizers. A function is keyed by its canonical name; what an attribute
adds (a scale that is not one, a bound that is given) is added where the operator's rule reads the attribute.

Work is that of the function's defining formula; guards against special values (nan, infinity, a zero argument) are not
counted, and a choice between two values by one comparison is one operation. Rows are named tuples because every
analysis imports them: a class of two costs 0.1 ms, a frozen dataclass five times as much.

A row has names, how many operands, FLOPs and function evaluations, and both for a complex element where they are not twice
those of a real one; then the gradient of each operand as a formula, where the function has a gradient rule of its own: `g`
passes the result's on, `fused` is computed by one kernel, of which `like` says that its result lies in memory as the
operand, not as `g`; behind `=>` stands what PyTorch computes instead, with what guards against special values
(tools/autograd/derivatives.yaml).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from graphflops.errors import RuleError

if TYPE_CHECKING:
    from graphflops.rules.formula import Launch, Numbers


class Gradient(NamedTuple):
    """Work per element of one operand's gradient; without any, the gradient is zero, and is only written."""

    flops: int = 0
    transcendentals: int = 0
    # Read beside the result's gradient: operands by place ("a", "b", "c"), "out": the result, which the forward keeps.
    reads: str = ""


class Formula(NamedTuple):
    """The gradient of one operand as a formula (`formula.py` says how to write it), of which its work is counted."""

    text: str
    launched: str = ""  # what PyTorch computes instead
    is_fused: bool = False  # `fused` of the table
    is_like_operand: bool = False  # `like` of the table


ZERO = Gradient()
PASS = None  # the gradient of the result is also the operand's: no work, the same memory


class Work(NamedTuple):
    """Work of one function per element of its result."""

    name: str
    flops: int = 0
    transcendentals: int = 0
    complex_work: tuple[int, int] | None = None  # both for a complex element; None: twice those of a real one
    formulas: tuple[Formula | None, ...] = ()  # of each operand's gradient; () without a gradient rule
    operands: int = 1  # number of operands

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


_FUNCTIONS = """
# Arithmetic on one operand.
neg: 1 1 0 | -g
abs: 1 1 0 3 1 | g * sign(a)  # root of the sum of two squares
floor ceil trunc round sign: 1 1 0 | 0
sgn: 1 1 0 5 1 | 0  # the magnitude, and both parts divided by it
frac: 1 2 0 | g
reciprocal: 1 1 0 6 0 | -g * (out * out)  # conjugate / squared length
nan_to_num: 1 3 0 | where(isfinite(a), g, 0)
deg2rad: 1 1 0 | g * degree
rad2deg: 1 1 0 | g * radian
frexp: 1 1 0 | g / exp2(out)
angle: 1 1 0 0 1  # of a real number: 0 or pi, by its sign
conj: 1 0 0 1 0
# On two operands.
add: 2 1 0 | g | where(alpha != 1, g * alpha, g)
sub: 2 1 0 | g | where(alpha != 1, -g * alpha, -g)
rsub: 2 1 0 | where(alpha != 1, -g * alpha, -g) | g
mul: 2 1 0 6 0 | g * b | g * a  # complex: four multiplications and two additions
# complex: the product with the conjugate, the divisor's squared length, two divisions
div: 2 1 0 11 0 | g / b | -g * out / b => -g * (a / b / b)
floor_divide: 2 2 0 | 0 | 0  # divide, round
remainder fmod: 2 4 0 | g | -g * floor_divide(a, b)  # divide, round, multiply, subtract
# the gradient goes to the operand that was chosen; torch gives half of it to each of two that are equal
maximum: 2 1 0
    | where(a > b, g, 0) => masked_fill_(where(a == b, g / 2, g), a < b, 0)
    | where(a < b, g, 0) => masked_fill_(where(a == b, g / 2, g), a > b, 0)
minimum: 2 1 0
    | where(a < b, g, 0) => masked_fill_(where(a == b, g / 2, g), a > b, 0)
    | where(a > b, g, 0) => masked_fill_(where(a == b, g / 2, g), a < b, 0)
# what is no number is passed over
fmax: 2 1 0
    | where(a > b, g, 0) => masked_fill(g, logical_not_(logical_or_(a >= b, isnan(b))), 0)
    | where(a < b, g, 0) => masked_fill(g, logical_or_(a >= b, isnan(b)), 0)
fmin: 2 1 0
    | where(a < b, g, 0) => masked_fill(g, logical_not_(logical_or_(a <= b, isnan(b))), 0)
    | where(a > b, g, 0) => masked_fill(g, logical_or_(a <= b, isnan(b)), 0)
copysign: 2 1 0 | g * (out / a) | 0
heaviside: 2 2 0 | 0 | where(a == 0, g, 0)
hypot: 2 3 1 | g * a / out | g * b / out
atan2: 2 0 1 | g * b / (a * a + b * b) | -g * a / (a * a + b * b)
nextafter: 2 1 0
gcd: 2 0 1
lcm: 2 3 1
ldexp: 2 1 1 | g * exp2(b) => g * pow(2, b) | g * out * ln2  # a * 2 ** b
polar: 2 2 2  # the sine and the cosine, each times the length
# On three operands; `lerp` is a + c * (b - a), `clamp` one comparison for each bound that is given.
lerp: 3 3 0 | g * (1 - c) | g * c | g * (b - a)
addcmul: 3 2 0 | g | g * c => g * (c * value) | g * b => g * (b * value)
addcdiv: 3 2 0 | g | g / c => g * (value / c) | -g * b / (c * c) => -g * (b * value / (c * c))
where: 3 1 0 | 0 | where(a, g, 0) | where(a, 0, g)
masked_fill: 3 1 0 | where(b, 0, g) => masked_fill(g, b, 0) | 0 | where(b, g, 0)
clamp: 3 1 0  # bounds that are not given take no part
    | where(logical_and_(a >= b, a <= c), g, 0)
    | where(logical_and(a < b, b < c), g, 0)
    | where(logical_or(a > c, c < b), g, 0)
clamp_min: 2 1 0 | where(a >= b, g, 0) | where(a < b, g, 0)
clamp_max: 2 1 0 | where(a <= b, g, 0) | where(a > b, g, 0)
square: 1 1 0 | g * (2 * pow(a, 1))
# Comparisons and bits.
eq ne lt le gt ge: 2 1 0
isclose: 2 6 0  # |a - b| <= atol + rtol * |b|
isnan isinf isfinite isposinf isneginf isreal signbit: 1 1 0
logical_not bitwise_not: 1 1 0
logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor: 2 1 0
bitwise_left_shift bitwise_right_shift: 2 1 0
# Exponentials and roots.
exp: 1 0 1 | g * out
exp2: 1 0 1 | g * out * ln2
expm1: 1 0 1 | g * (out + 1)
log: 1 0 1 | g / a
log2: 1 0 1 | g / (a * ln2)
log10: 1 0 1 | g / (a * ln10)
log1p: 1 0 1 | g / (a + 1)
sqrt: 1 0 1 | g / (2 * out)
rsqrt: 1 0 1 | -0.5 * g * pow(out, 3)
cbrt: 1 0 1
# Trigonometric and hyperbolic functions.
sin: 1 0 1 | g * cos(a)
cos: 1 0 1 | g * -sin(a)
tan: 1 0 1 | g * (1 + pow(out, 2))  # grad * (1 + y * y)
asin: 1 0 1 | g / sqrt(1 - a * a) => g * rsqrt(-a * a + 1)
asinh: 1 0 1 | g * rsqrt(pow(a, 2) + 1)
acosh: 1 0 1 | g * rsqrt(a * a - 1)
acos: 1 0 1 | -g / sqrt(1 - a * a) => g * -rsqrt(-a * a + 1)
atan: 1 0 1 | g / (a * a + 1)
atanh: 1 0 1 | g / (1 - a * a) => g * 1 / (1 - pow(a, 2))
sinh: 1 0 1 | g * cosh(a)
cosh: 1 0 1 | g * sinh(a)
sinc: 1 2 1 | t = a * pi; g * ((t * cos(t) - sin(t)) / (t * a))
# Logistic and error functions.
logit: 1 2 1 | fused g / (a * (1 - a))
erf: 1 0 1 | two_by_root_pi * exp(-pow(a, 2)) * g
erfc: 1 0 1 | -two_by_root_pi * exp(-pow(a, 2)) * g
erfinv: 1 0 1 | half_root_pi * exp(out * out) * g => half_root_pi * exp(pow(erfinv(a), 2)) * g
erfcx: 1 0 1 | (2 * a * out - two_by_root_pi) * g
ndtr: 1 2 1 | g * exp(-0.5 * pow(a, 2)) * by_root_two_pi
ndtri: 1 0 1 | g * (root_two_pi * exp(pow(out, 2) / 2))
log_ndtr: 1 2 2 | g / exp(out + pow(a, 2) / 2) / root_two_pi => exp(-(out + pow(a, 2) / 2)) / root_two_pi * g
entr: 1 2 1 | g * -(log(a) + 1)  # -a * log(a)
# Gamma and Bessel functions, each one evaluation.
lgamma: 1 0 1 | g * digamma(a)
digamma polygamma: 1 0 1 | g * polygamma(a)
i0: 1 0 1 | g * i1(a)
i0e: 1 0 1 | g * (i1e(a) - copysign(out, a)) => g * (i1e(a) - sign(a) * out)
i1: 1 0 1 | g * (i0(a) - out / a)
    => m = abs(a) > epsilon; t = where(m, a, epsilon); g * where(m, i0(t) - out * reciprocal(t), 0.5)
i1e: 1 0 1 | g * (i0e(a) - abs(out) - out / a)
    => m = abs(a) > epsilon; t = where(m, a, epsilon); g * where(m, i0e(t) - out * (sign(t) + reciprocal(t)), 0.5)
standard_gamma_grad: 2 0 1
standard_gamma: 1 0 1 | g * standard_gamma_grad(a, out)
sample: 1 0 0  # of a distribution: no gradient
mvlgamma: 1 2 1  # for each of p shifted arguments: shift, add, log-gamma
bessel_j0 bessel_j1 bessel_y0 bessel_y1 spherical_bessel_j0 airy_ai: 1 0 1
modified_bessel_i0 modified_bessel_i1 modified_bessel_k0 modified_bessel_k1: 1 0 1
scaled_modified_bessel_k0 scaled_modified_bessel_k1: 1 0 1
# Of two operands; `polynomial` is any orthogonal one (Chebyshev, Hermite, Laguerre, Legendre).
pow: 2 0 1
    | g * (b * pow(a, b - 1)) => where(b == 0, 0, g * (b * pow(a, b - 1)))
    | g * (out * log(a)) => g * where(logical_and(a == 0, b >= 0), 0, out * log(a))
zeta igamma igammac polynomial: 2 0 1
xlogy: 2 1 1  # a * log(b)
    | g * log(b) => masked_fill(xlogy(g, b), logical_and(a == 0, b <= 0), 0) | g * a / b
xlog1py: 2 1 1  # a * log(1 + b)
    | g * log1p(b) => masked_fill(xlog1py(g, b), logical_and(a == 0, b <= -1), 0) | g * a / (b + 1)
# max(a, b) + log(1 + exp(-|a - b|)); the gradients are shares: grad * exp(a - out)
logaddexp: 2 5 2 | g * exp(a - out) => g / (exp(b - a) + 1) | g * exp(b - out) => g / (exp(a - b) + 1)
logaddexp2: 2 5 2 | g * exp2(a - out) => g / (pow(2, b - a) + 1) | g * exp2(b - out) => g / (pow(2, a - b) + 1)
# Quantization.
quantize: 1 6 0  # multiply by the inverse scale, round, add the zero point, clamp 2, convert
dequantize: 1 3 0  # convert, subtract the zero point, multiply by the scale
quantize_float: 1 4 0  # to a float of few bits: multiply by the inverse scale, clamp 2, convert
# quantize and dequantize without the conversions; grad where the element lay between the bounds
fake_quantize: 1 7 0 | fused where(low <= a * by_scale + zero <= high, g, 0)
# Optimizers, per parameter: one update of p by its gradient g, as torch's loop over single tensors writes it. Evaluations
# are square roots. Moments: m = m + (1 - beta) * (g - m), 3; v = beta * v + (1 - beta) * g * g, 4.
sgd: 1 2 0  # p -= rate * g
momentum: 1 2 0  # m = momentum * m + g, which dampening scales once more
adam: 1 12 1  # moments 7; sqrt(v) / correction + eps, 2; p -= rate * m / denominator, 3
adamw: 1 13 1  # p *= 1 - rate * decay, 1, and so on
adam_uncorrected: 1 11 1
adagrad: 1 6 1  # v += g * g, 2; p -= rate * g / (sqrt(v) + eps), 1 + 3
l2_penalty: 1 2 0  # g += decay * p
adafactor: 1 13 1  # norms of p, of g by rows and by columns, and of u, 8; u = moments, divided, clamped, times g, 3; p 2
muon: 1 12 0  # m and u = g + beta * (m - g), 6; the norm and the quotient, 3; p *= 1 - rate * decay, 1; p -= rate * u, 2
"""

_ACTIVATIONS = """
# Piecewise linear.
identity: 1 0 0
relu: 1 1 0 | fused like where(out > 0, g, 0)
threshold: 1 1 0 | fused like where(a > low, g, 0)
leaky_relu: 1 2 0 | fused like where(a > 0, g, g * slope)
rrelu: 1 2 0 | fused where(a > 0, g, g * slope)
rrelu_with_noise: 2 2 0 | fused g * b | 0
rrelu_with_noise_backward: 3 2 0  # or the choice of the slope between its bounds
prelu: 2 2 0 | fused like where(a > 0, g, g * b) | fused where(a > 0, 0, g * a)
hardtanh: 1 2 0 | fused where(low < a < high, g, 0)
hardshrink: 1 2 0 | fused where(low <= a <= high, 0, g)
softshrink: 1 4 0 | fused where(low <= a <= high, 0, g)
hardsigmoid: 1 4 0 | fused where(-3 < a < 3, g / 6, 0)  # (x + 3) / 6 between two bounds
hardswish: 1 5 0 | fused where(a < -3, 0, where(a <= 3, g * (a / 3 + 0.5), g))  # x times that
affine: 1 2 0  # alpha * x + beta
# Smooth.
tanh: 1 0 1 | fused g * (1 - out * out)
scaled_tanh: 1 2 1  # alpha * tanh(beta * x)
sigmoid: 1 0 1 | fused g * (1 - out) * out
softsign: 1 3 0  # x / (1 + |x|)
silu: 1 1 1 | fused s = sigmoid(a); g * s * (1 + a * (1 - s))  # x * sigmoid(x)
mish: 1 1 3 | fused t = tanh(log1p(exp(a))); g * (t + a * sigmoid(a) * (1 - t * t))
softplus: 1 1 2  # log(1 + exp(x))
scaled_softplus: 1 3 2 | fused t = a * beta; z = exp(t); where(t > threshold, g, g * z / (z + 1))
elu: 1 2 1 | fused where(a > 0, g, g * alpha * exp(a))  # alpha * (exp(x) - 1) below zero
selu: 1 3 1 | fused where(a > 0, g * scale, g * alpha * exp(a))  # and scaled
celu: 1 3 1 | fused where(a > 0, g, g * alpha * exp(a * by_alpha))  # of x / alpha
log_sigmoid: 1 4 2  # min(x, 0) - log(1 + exp(-|x|))
    | fused z = exp(-abs(a)); g * (where(a < 0, 1, 0) - where(a < 0, 1, -1) * (z / (1 + z)))
gelu: 1 4 1  # x / 2 * (1 + erf(x / sqrt 2)); grad * (cdf(x) + x * pdf(x))
    | fused g * (0.5 * (1 + erf(a * root_half)) + a * (by_root_two_pi * exp(a * a * -0.5)))
gelu_tanh: 1 9 1  # x / 2 * (1 + tanh(k * (x + c * x ** 3))); the product rule, with x * x and 1 + tanh used twice
    | fused s = a * a; t = tanh(root_two_by_pi * (a + cubic * (s * a)));
    g * (0.5 * (1 + t) + 0.5 * a * (1 - t * t) * (root_two_by_pi * (1 + three_cubic * s)))
# Gates, of a value and a gate: value * sigmoid(gate), value * gate * sigmoid(gate).
glu: 1 1 1 | fused s = sigmoid(b); (g * s, g * a * s * (1 - s))
swiglu: 2 2 1
"""


def _cells(table: str) -> Iterator[list[str]]:
    """The cells of each row of a table; a line that is indented goes on with the row above it."""
    lines = [line.partition("#")[0].rstrip() for line in table.splitlines()]
    return (row.split(" | ") for row in "\n".join(lines).replace("\n    ", " ").splitlines() if row)


def _rows(table: str) -> Iterator[Work]:
    for head, *gradients in _cells(table):
        names, _, counts = head.partition(":")
        operands, flops, transcendentals, *both = map(int, counts.split())
        formulas = tuple([PASS if text == "g" else _formula(text) for text in gradients])
        for name in names.split():
            yield Work(name, flops, transcendentals, (both[0], both[1]) if both else None, formulas, operands)


def _formula(text: str) -> Formula:
    text, _, launched = text.partition(" => ")
    plain = text.removeprefix("fused ")
    is_fused, formula = plain != text, plain.removeprefix("like ")
    return Formula(formula, launched, is_fused, is_like_operand=formula != plain)


_ACTIVATED = list(_rows(_ACTIVATIONS))
WORK: Mapping[str, Work] = {row.name: row for row in (*_rows(_FUNCTIONS), *_ACTIVATED)}


@lru_cache(maxsize=1024)
def gradient_of(formula: Formula, numbers: Numbers = ()) -> Gradient | None:
    """The work and the reads of a formula; PASS where it is `g`. numbers: what are no tensors, by letter or name."""
    from graphflops.rules.formula import is_part_of_choice, launches  # only training reads formulas

    flops = transcendentals = 0
    found = launches(formula.text, numbers)
    if not found:
        return PASS
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


def first_gradient(work: Work) -> Work:
    """Work of the first operand's gradient."""
    formula = work.formulas[0] if work.formulas else None
    flops, transcendentals, _ = (formula and gradient_of(formula)) or ZERO
    return Work(work.name, flops, transcendentals)


# An exponent that is a small constant stands for products or a root.
_POWERS = {
    exponent: Work("pow", flops, roots, (6 * flops, 2 * roots))
    for flops, roots, exponents in ((0, 0, (0, 1)), (1, 0, (2, -1)), (2, 0, (3, -2)), (0, 1, (0.5, -0.5)))
    for exponent in exponents
}


def power(exponent: object) -> Work:
    """Work of x ** exponent: one evaluation, or the products or the root that a constant exponent stands for."""
    return _POWERS.get(exponent, WORK["pow"]) if isinstance(exponent, (int, float)) else WORK["pow"]


# Activations as attributes of other operators name them, in lower case and without underscores.
_NAMED = {row.name.replace("_", ""): row for row in _ACTIVATED}
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


# Gradients of reductions and scans as PyTorch computes them (torch/csrc/autograd/FunctionsManual.cpp): `g` and `out` have
# one element for each result, as a `sum` and a `mean` in the formula do; `scale` is 2 / (n - 1).
_REDUCTIONS = """
logsumexp | g * exp(a - out)
amax amin | m = out == a; g * m / sum(m)
max min | m = logical_or_(a == out, logical_and_(isnan(a), isnan(out))); m * (g / sum(m))
prod | m = a == 0; g * (out / a)  # the zeros are counted first
var | scale * g * (a - mean(a))
var_mean | scale * g * (a - mean(a)) + g / count
std | scale * masked_fill_(g / (out * 2), out == 0, 0) * (a - mean(a))
std_mean | scale * masked_fill_(g / (out * 2), out == 0, 0) * (a - mean(a)) + g / count
nansum | g * logical_not(isnan(a))
vector_norm | g * masked_fill_(a / out, out == 0, 0)
vector_norm:1 | g * sign(a)
vector_norm:inf | m = logical_or(abs(a) == out, isnan(a)); sign(a) * (g / sum(m) * m)
vector_norm:p | a * pow_(abs(a), p - 2) * masked_fill_(g / pow(out, p - 1), out == 0, 0)
cumsum | flip(cumsum(flip(g)))
cumprod | w = out * g; z = any(a == 0); flip(cumsum(flip(w))) / a  # without zeros
"""
REDUCTIONS: Mapping[str, Formula] = {
    name: Formula(text) for names, text in _cells(_REDUCTIONS) for name in names.split()
}
