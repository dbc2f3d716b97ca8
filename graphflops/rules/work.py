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
from typing import TYPE_CHECKING

from graphflops.errors import RuleError
from graphflops.rules.work_functions import (
    ARITHMETIC,
    COMPARISONS_AND_BITS,
    FUNCTIONS,
    PASS,
    ZERO,
    Formula,
    Gradient,
    Work,
    binary,
    fused,
    unary,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphflops.rules.formula import Launch, Numbers


_ACTIVATIONS = [
    # Piecewise linear.
    Work("identity"),
    unary("relu", 1, 0, fused("where(out > 0, g, 0)", is_like_operand=True)),
    unary("threshold", 1, 0, fused("where(a > low, g, 0)", is_like_operand=True)),
    unary("leaky_relu", 2, 0, fused("where(a > 0, g, g * slope)", is_like_operand=True)),
    unary("rrelu", 2, 0, fused("where(a > 0, g, g * slope)")),
    binary("rrelu_with_noise", 2, 0, fused("g * b"), "0"),
    Work("rrelu_with_noise_backward", 2, operands=3),  # or the choice of the slope between its bounds
    binary(
        "prelu", 2, 0, fused("where(a > 0, g, g * b)", is_like_operand=True), fused("where(a > 0, 0, g * a)")
    ),
    unary("hardtanh", 2, 0, fused("where(low < a < high, g, 0)")),
    unary("hardshrink", 2, 0, fused("where(low <= a <= high, 0, g)")),
    unary("softshrink", 4, 0, fused("where(low <= a <= high, 0, g)")),
    unary("hardsigmoid", 4, 0, fused("where(-3 < a < 3, g / 6, 0)")),  # (x + 3) / 6 between two bounds
    unary("hardswish", 5, 0, fused("where(a < -3, 0, where(a <= 3, g * (a / 3 + 0.5), g))")),  # x times that
    unary("affine", 2, 0),  # alpha * x + beta
    # Smooth.
    unary("tanh", 0, 1, fused("g * (1 - out * out)")),
    unary("scaled_tanh", 2, 1),  # alpha * tanh(beta * x)
    unary("sigmoid", 0, 1, fused("g * (1 - out) * out")),
    unary("softsign", 3, 0),  # x / (1 + |x|)
    unary("silu", 1, 1, fused("s = sigmoid(a); g * s * (1 + a * (1 - s))")),  # x * sigmoid(x)
    unary("mish", 1, 3, fused("t = tanh(log1p(exp(a))); g * (t + a * sigmoid(a) * (1 - t * t))")),
    unary("softplus", 1, 2),  # log(1 + exp(x))
    unary(
        "scaled_softplus", 3, 2, fused("t = a * beta; z = exp(t); where(t > threshold, g, g * z / (z + 1))")
    ),
    unary("elu", 2, 1, fused("where(a > 0, g, g * alpha * exp(a))")),  # alpha * (exp(x) - 1) below zero
    unary("selu", 3, 1, fused("where(a > 0, g * scale, g * alpha * exp(a))")),  # and scaled
    unary("celu", 3, 1, fused("where(a > 0, g, g * alpha * exp(a * by_alpha))")),  # of x / alpha
    unary(
        "log_sigmoid",
        4,
        2,
        fused("z = exp(-abs(a)); g * (where(a < 0, 1, 0) - where(a < 0, 1, -1) * (z / (1 + z)))"),
    ),  # min(x, 0) - log(1 + exp(-|x|))
    # x / 2 * (1 + erf(x / sqrt 2)); grad * (cdf(x) + x * pdf(x))
    unary(
        "gelu", 4, 1, fused("g * (0.5 * (1 + erf(a * root_half)) + a * (by_root_two_pi * exp(a * a * -0.5)))")
    ),
    # x / 2 * (1 + tanh(k * (x + c * x ** 3))); the product rule, with x * x and 1 + tanh used twice
    unary(
        "gelu_tanh",
        9,
        1,
        fused(
            "s = a * a; t = tanh(root_two_by_pi * (a + cubic * (s * a))); "
            "g * (0.5 * (1 + t) + 0.5 * a * (1 - t * t) * (root_two_by_pi * (1 + three_cubic * s)))"
        ),
    ),
    # Gates, of a value and a gate: value * sigmoid(gate), value * gate * sigmoid(gate).
    unary("glu", 1, 1, fused("s = sigmoid(b); (g * s, g * a * s * (1 - s))")),
    binary("swiglu", 2, 1),
]

_QUANTIZATION = [
    Work("quantize", 6),  # multiply by the inverse scale, round, add the zero point, clamp 2, convert
    Work("dequantize", 3),  # convert, subtract the zero point, multiply by the scale
    Work("quantize_float", 4),  # to a float of few bits: multiply by the inverse scale, clamp 2, convert
    # quantize and dequantize without the conversions; grad where the element lay between the bounds
    unary("fake_quantize", 7, 0, fused("where(low <= a * by_scale + zero <= high, g, 0)")),
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
    for row in (*ARITHMETIC, *COMPARISONS_AND_BITS, *FUNCTIONS, *_ACTIVATIONS, *_QUANTIZATION, *_OPTIMIZERS)
}


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
