"""Work of elementwise functions: FLOPs and function evaluations per element, and those of the gradient.

Every dialect counts an elementwise function from its row here: ATen, prims, ONNX, recurrent cells, experts, activations
fused into other operators, quantization and optimizers. A function is keyed by its canonical name; what an attribute
adds (a scale that is not one, a bound that is given) is added where the operator's rule reads the attribute.

Work is that of the function's defining formula; guards against special values (nan, infinity, a zero argument) are not
counted, and a choice between two values by one comparison is one operation. Rows are named tuples because every
analysis imports them: a class of two costs 0.1 ms, a frozen dataclass five times as much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from graphflops.errors import RuleError

if TYPE_CHECKING:
    from collections.abc import Mapping


class Gradient(NamedTuple):
    """Work per element of one operand's gradient, and what it reads besides the gradient of the result.

    reads: operands by place ("a", "b", "c") and "out" for the result, which the forward pass keeps for it.
    Without any work the gradient is zero, and is only written.
    """

    flops: int = 0
    transcendentals: int = 0
    reads: str = ""


ZERO = Gradient()
PASS = None  # the gradient of the result is also the operand's: no work, the same memory


class Work(NamedTuple):
    """Work of one function per element of its result.

    complex_work: both counts for a complex element; twice those of a real one where it is None.
    gradients: one for each operand; () where the function has no gradient rule of its own.
    operands: number of operands.
    """

    name: str
    flops: int = 0
    transcendentals: int = 0
    complex_work: tuple[int, int] | None = None
    gradients: tuple[Gradient | None, ...] = ()
    operands: int = 1

    def more(self, flops: int = 0, transcendentals: int = 0) -> Work:
        """The same function with more real operations on each element, or on both parts of a complex one."""
        both = self.complex_work and (
            self.complex_work[0] + 2 * flops,
            self.complex_work[1] + 2 * transcendentals,
        )
        return Work(
            *(self.name, self.flops + flops, self.transcendentals + transcendentals, both),
            *(self.gradients, self.operands),
        )

    def times(self, count: int) -> Work:
        """The function applied `count` times to each element."""
        return self._replace(flops=count * self.flops, transcendentals=count * self.transcendentals)

    @property
    def gradient(self) -> Work:
        """Work of the first operand's gradient."""
        first = self.gradients[0] or ZERO
        return Work(self.name, first.flops, first.transcendentals)


def _unary(
    name: str,
    flops: int,
    transcendentals: int,
    *gradient: Gradient | None,
    complex_work: tuple[int, int] | None = None,
) -> Work:
    return Work(name, flops, transcendentals, complex_work, gradient)


def _binary(
    name: str,
    flops: int,
    transcendentals: int,
    *gradients: Gradient | None,
    complex_work: tuple[int, int] | None = None,
) -> Work:
    return Work(name, flops, transcendentals, complex_work, gradients, operands=2)


def _each(names: str, flops: int, transcendentals: int, operands: int = 1) -> list[Work]:
    """Functions of the same work that have no gradient rule of their own."""
    return [Work(name, flops, transcendentals, operands=operands) for name in names.split()]


# The columns: name, FLOPs, function evaluations, gradient of each operand.

_ARITHMETIC = [
    # One operand.
    _unary("neg", 1, 0, Gradient(1)),
    _unary("abs", 1, 0, Gradient(2, reads="a"), complex_work=(3, 1)),  # root of the sum of two squares
    _unary("floor", 1, 0, ZERO),
    _unary("ceil", 1, 0, ZERO),
    _unary("trunc", 1, 0, ZERO),
    _unary("round", 1, 0, ZERO),
    _unary("sign", 1, 0, ZERO),
    _unary("sgn", 1, 0, ZERO, complex_work=(5, 1)),  # the magnitude, and both parts divided by it
    _unary("frac", 2, 0, PASS),
    _unary("reciprocal", 1, 0, Gradient(3, reads="out"), complex_work=(6, 0)),  # conjugate / squared length
    _unary("nan_to_num", 3, 0, Gradient(1, reads="a")),
    _unary("deg2rad", 1, 0, Gradient(1)),
    _unary("rad2deg", 1, 0, Gradient(1)),
    _unary("frexp", 1, 0, Gradient(1, 1)),
    _unary("angle", 1, 0, complex_work=(0, 1)),  # of a real number: 0 or pi, by its sign
    _unary("conj", 0, 0, complex_work=(1, 0)),
    # Two operands.
    _binary("add", 1, 0, PASS, PASS),
    _binary("sub", 1, 0, PASS, Gradient(1)),
    _binary("rsub", 1, 0, Gradient(1), PASS),
    # complex: four multiplications and two additions
    _binary("mul", 1, 0, Gradient(1, reads="b"), Gradient(1, reads="a"), complex_work=(6, 0)),
    # complex: the product with the conjugate, the divisor's squared length, two divisions
    _binary("div", 1, 0, Gradient(1, reads="b"), Gradient(3, reads="a b"), complex_work=(11, 0)),
    _binary("floor_divide", 2, 0, ZERO, ZERO),  # divide, round
    _binary("remainder", 4, 0, PASS, Gradient(4, reads="a b")),  # divide, round, multiply, subtract
    _binary("fmod", 4, 0, PASS, Gradient(4, reads="a b")),
    # the gradient goes to the operand that was chosen
    *(
        _binary(name, 1, 0, Gradient(1, reads="a b"), Gradient(1, reads="a b"))
        for name in ("maximum", "minimum", "fmax", "fmin")
    ),
    _binary("copysign", 1, 0, Gradient(2, reads="a out"), ZERO),
    _binary("heaviside", 2, 0, ZERO, Gradient(1, reads="a")),
    _binary("hypot", 3, 1, Gradient(2, reads="a out"), Gradient(2, reads="b out")),
    _binary("atan2", 0, 1, Gradient(5, reads="a b"), Gradient(6, reads="a b")),
    *_each("nextafter", 1, 0, operands=2),
    *_each("gcd", 0, 1, operands=2),
    *_each("lcm", 3, 1, operands=2),
    *_each("ldexp", 1, 1, operands=2),  # a * 2 ** b
    *_each("polar", 2, 2, operands=2),  # the sine and the cosine, each times the length
    # Three operands; for `lerp` a + c * (b - a), for `clamp` one comparison for each bound that is given.
    Work(
        "lerp",
        3,
        gradients=(Gradient(2, reads="c"), Gradient(1, reads="c"), Gradient(2, reads="a b")),
        operands=3,
    ),
    Work("addcmul", 2, gradients=(PASS, Gradient(1, reads="c"), Gradient(1, reads="b")), operands=3),
    Work("addcdiv", 2, gradients=(PASS, Gradient(1, reads="c"), Gradient(4, reads="b c")), operands=3),
    Work("where", 1, gradients=(ZERO, Gradient(1, reads="a"), Gradient(1, reads="a")), operands=3),
    Work("masked_fill", 1, gradients=(Gradient(1, reads="b"), ZERO, Gradient(1, reads="b")), operands=3),
    Work("clamp", 1, operands=3),
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
    _unary("exp", 0, 1, Gradient(1, reads="out")),
    _unary("exp2", 0, 1, Gradient(2, reads="out")),
    _unary("expm1", 0, 1, Gradient(2, reads="out")),
    _unary("log", 0, 1, Gradient(1, reads="a")),
    _unary("log2", 0, 1, Gradient(2, reads="a")),
    _unary("log10", 0, 1, Gradient(2, reads="a")),
    _unary("log1p", 0, 1, Gradient(2, reads="a")),
    _unary("sqrt", 0, 1, Gradient(2, reads="out")),
    _unary("rsqrt", 0, 1, Gradient(4, reads="out")),
    *_each("cbrt", 0, 1),
    # Trigonometric and hyperbolic functions.
    _unary("sin", 0, 1, Gradient(1, 1, reads="a")),
    _unary("cos", 0, 1, Gradient(2, 1, reads="a")),
    _unary("tan", 0, 1, Gradient(3, reads="out")),  # grad * (1 + y * y)
    _unary("asin", 0, 1, Gradient(3, 1, reads="a")),
    _unary("asinh", 0, 1, Gradient(3, 1, reads="a")),
    _unary("acosh", 0, 1, Gradient(3, 1, reads="a")),
    _unary("acos", 0, 1, Gradient(4, 1, reads="a")),
    _unary("atan", 0, 1, Gradient(3, reads="a")),
    _unary("atanh", 0, 1, Gradient(3, reads="a")),
    _unary("sinh", 0, 1, Gradient(1, 1, reads="a")),
    _unary("cosh", 0, 1, Gradient(1, 1, reads="a")),
    _unary("sinc", 2, 1, Gradient(6, 2, reads="a")),
    # Logistic and error functions.
    _unary("logit", 2, 1, Gradient(3, reads="a")),
    _unary("erf", 0, 1, Gradient(4, 1, reads="a")),
    _unary("erfc", 0, 1, Gradient(4, 1, reads="a")),
    _unary("erfinv", 0, 1, Gradient(3, 1, reads="out")),
    _unary("erfcx", 0, 1, Gradient(4, reads="a out")),
    _unary("ndtr", 2, 1, Gradient(4, 1, reads="a")),
    _unary("ndtri", 0, 1, Gradient(4, 1, reads="out")),
    _unary("log_ndtr", 2, 2, Gradient(5, 2, reads="a")),
    _unary("entr", 2, 1, Gradient(3, 1, reads="a")),  # -a * log(a)
    # Gamma and Bessel functions, each one evaluation.
    _unary("lgamma", 0, 1, Gradient(1, 1, reads="a")),
    _unary("digamma", 0, 1, Gradient(1, 1, reads="a")),
    _unary("polygamma", 0, 1, Gradient(1, 1, reads="a")),
    _unary("i0", 0, 1, Gradient(1, 1, reads="a")),
    _unary("i0e", 0, 1, Gradient(3, 1, reads="a out")),
    _unary("i1", 0, 1, Gradient(3, 1, reads="a out")),
    _unary("i1e", 0, 1, Gradient(4, 1, reads="a out")),
    *_each("mvlgamma", 2, 1),  # for each of p shifted arguments: shift, add, log-gamma
    *_each("bessel_j0 bessel_j1 bessel_y0 bessel_y1 spherical_bessel_j0 airy_ai", 0, 1),
    *_each("modified_bessel_i0 modified_bessel_i1 modified_bessel_k0 modified_bessel_k1", 0, 1),
    *_each("scaled_modified_bessel_k0 scaled_modified_bessel_k1", 0, 1),
    # Two operands; `polynomial` is any orthogonal one (Chebyshev, Hermite, Laguerre, Legendre).
    _binary("pow", 0, 1, Gradient(3, 1, reads="a b"), Gradient(2, 1, reads="a out")),
    *_each("zeta igamma igammac polynomial", 0, 1, operands=2),
    _binary("xlogy", 1, 1, Gradient(1, 1, reads="b"), Gradient(2, reads="a b")),  # a * log(b)
    _binary("xlog1py", 1, 1, Gradient(1, 1, reads="b"), Gradient(2, reads="a b")),  # a * log(1 + b)
    # max(a, b) + log(1 + exp(-|a - b|)); the gradients are shares: grad * exp(a - out)
    _binary("logaddexp", 5, 2, Gradient(2, 1, reads="a out"), Gradient(2, 1, reads="b out")),
    _binary("logaddexp2", 5, 2, Gradient(2, 1, reads="a out"), Gradient(2, 1, reads="b out")),
]

_ACTIVATIONS = [
    # Piecewise linear.
    Work("identity"),
    _unary("relu", 1, 0, Gradient(1, reads="out")),
    _unary("threshold", 1, 0, Gradient(1, reads="a")),
    _unary("leaky_relu", 2, 0, Gradient(2, reads="a")),
    _unary("rrelu", 2, 0, Gradient(2, reads="a")),
    _binary("rrelu_with_noise", 2, 0, Gradient(1, reads="b"), ZERO),  # grad * noise, the slope that was drawn
    Work("rrelu_with_noise_backward", 2, operands=3),  # or the choice of the slope between its bounds
    _binary("prelu", 2, 0, Gradient(2, reads="a b"), Gradient(2, reads="a b")),
    _unary("hardtanh", 2, 0, Gradient(2, reads="a")),
    _unary("hardshrink", 2, 0, Gradient(2, reads="a")),
    _unary("softshrink", 4, 0, Gradient(2, reads="a")),
    _unary("hardsigmoid", 4, 0, Gradient(3, reads="a")),  # (x + 3) / 6 between two bounds
    _unary("hardswish", 5, 0, Gradient(5, reads="a")),  # x times that
    _unary("affine", 2, 0),  # alpha * x + beta
    # Smooth.
    _unary("tanh", 0, 1, Gradient(3, reads="out")),  # grad * (1 - y * y)
    _unary("scaled_tanh", 2, 1),  # alpha * tanh(beta * x)
    _unary("sigmoid", 0, 1, Gradient(3, reads="out")),  # grad * y * (1 - y)
    _unary("softsign", 3, 0),  # x / (1 + |x|)
    _unary("silu", 1, 1, Gradient(5, 1, reads="a")),  # x * sigmoid(x); grad * s * (1 + x * (1 - s))
    # x * tanh(log(1 + exp(x))); grad * (t + x * s * (1 - t * t)), whose t and s are evaluated again
    _unary("mish", 1, 3, Gradient(6, 4, reads="a")),
    _unary("softplus", 1, 2),  # log(1 + exp(x))
    # log(1 + exp(beta * x)) / beta below the threshold; grad * z / (1 + z)
    _unary("scaled_softplus", 3, 2, Gradient(5, 1, reads="a")),
    _unary("elu", 2, 1, Gradient(3, 1, reads="a")),  # alpha * (exp(x) - 1) below zero
    _unary("selu", 3, 1, Gradient(4, 1, reads="a")),  # and scaled
    _unary("celu", 3, 1, Gradient(4, 1, reads="a")),  # of x / alpha
    _unary("log_sigmoid", 4, 2, Gradient(7, 1, reads="a")),  # min(x, 0) - log(1 + exp(-|x|))
    # x / 2 * (1 + erf(x / sqrt 2)); grad * (cdf(x) + x * pdf(x))
    _unary("gelu", 4, 1, Gradient(9, 2, reads="a")),
    # x / 2 * (1 + tanh(k * (x + c * x ** 3))); the product rule, with x * x and 1 + tanh used twice
    _unary("gelu_tanh", 9, 1, Gradient(17, 1, reads="a")),
    # Gates, of a value and a gate: value * sigmoid(gate), value * gate * sigmoid(gate).
    _unary("glu", 1, 1, Gradient(5, 1, reads="a")),
    _binary("swiglu", 2, 1),
]

_QUANTIZATION = [
    Work("quantize", 6),  # multiply by the inverse scale, round, add the zero point, clamp 2, convert
    Work("dequantize", 3),  # convert, subtract the zero point, multiply by the scale
    Work("quantize_float", 4),  # to a float of few bits: multiply by the inverse scale, clamp 2, convert
    # quantize and dequantize without the conversions; grad where the element lay between the bounds
    _unary("fake_quantize", 7, 0, Gradient(4, reads="a")),
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
    exponent: Work("pow", flops, roots, complex_work=(6 * flops, 2 * roots))
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
