"""Elementwise arithmetic and functions: comparisons, selections, powers, rounding, bits, exponentials, Bessel, series.

Activation functions are here too, with the operators of their gradients.
"""

import operator
from collections.abc import Callable
from functools import partial

from graphflops import dims
from graphflops.base.record import replace
from graphflops.cost import Estimate, Value, data_dependent, free
from graphflops.dims import Dim
from graphflops.ops.table import ROWS, Row
from graphflops.rules.elementwise import (
    WORK,
    Promotion,
    Work,
    complex_of,
    differentiate,
    elementwise,
    first_gradient,
    float_result,
    gelu_work,
    pointwise,
    power_work,
    real_of,
    result_type,
    to_bool,
)
from graphflops.rules.registry import backward, require, rule
from graphflops.rules.shapes import axis_of, shown
from graphflops.tensor import COMPLEX128, FLOAT64, DType, TensorType

KIND = "elementwise"


# The table of operators registers functions under all of their names; those in the first list have rules of their own below.
# Results are floating numbers, unless a function compares, is logical, or computes in its operands' type (second list).
_OF_THEIR_OWN = """add sub rsub pow square round clamp clamp_min clamp_max addcmul addcdiv polar frexp angle polygamma
mvlgamma where masked_fill lerp prelu elu gelu glu rrelu_with_noise softplus"""
_IN_TYPE_OF_OPERANDS = """neg floor ceil trunc sign sgn frac nan_to_num mul floor_divide remainder fmod fmax fmin nextafter
heaviside gcd lcm hypot maximum minimum relu threshold leaky_relu rrelu rrelu_with_noise_backward hardshrink softshrink
hardsigmoid hardswish mish silu hardtanh selu celu log_sigmoid add_relu"""
_FOLDS: dict[str, Callable[..., Dim]] = {
    "neg": operator.neg,
    "mul": operator.mul,
    "floor_divide": dims.floor_div,
    "remainder": dims.mod,
    "maximum": dims.dim_max,
    "minimum": dims.dim_min,
    "logical_not": lambda a: dims.compare("==", a, 0),
    **{
        name: partial(dims.compare, sign)
        for name, sign in {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}.items()
    },
}


def _result_of(row: Row, in_type: bool) -> Promotion:
    """The element type of an operator's result. in_type: whether a function of numbers is computed in its operands' type."""
    if row.kind == "comparison" or row.name.startswith("logical"):
        return to_bool
    if row.name == "abs":
        return lambda *operands: real_of(result_type(*operands))
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
pointwise("conj_physical", "conj", dialect="prims")
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


def _combined(a: Value, b: Value, alpha: Value = 1, *, name: str, fold: Callable[..., Dim]) -> Estimate:
    """A sum or a difference, and the product with alpha if it is not one."""
    work = WORK[name].more(0 if alpha == 1 else WORK["mul"].flops)
    return elementwise(work, a, b, fold=lambda x, y: fold(x, y, alpha))


for _names, _says, _fold in (
    ("add", "A + alpha * b.", lambda x, y, alpha: x + alpha * y),
    ("sub subtract", "A - alpha * b.", lambda x, y, alpha: x - alpha * y),
    ("rsub", "B - alpha * a.", lambda x, y, alpha: y - alpha * x),
):
    rule(f"aten.{_names}").derived(_combined, says=_says, name=_names.split()[0], fold=_fold)


ROUNDING = [f"aten.{name}.{overload}_mode" for name in ("div", "divide") for overload in ("Tensor", "Scalar")]


@rule(*ROUNDING)
def divide_rounding(a: TensorType, b: Value, *, rounding_mode: str | None = None) -> Estimate:
    """A division, and a rounding if a mode is given."""
    if rounding_mode is None:
        return elementwise(WORK["div"], a, b, result=float_result)
    return elementwise(WORK["floor_divide"], a, b, fold=dims.floor_div)


backward(*ROUNDING)(
    lambda call: differentiate(WORK["div" if call.get("rounding_mode") is None else "floor_divide"])(call)
)


@rule("aten.round", "aten.special_round")
def round_(a: TensorType, *, decimals: Value = 0) -> Estimate:
    """One rounding per element, and a scaling before and after it for a given number of decimals."""
    return elementwise(WORK["round"].more(0 if decimals == 0 else 2), a)


def addcmul(a: TensorType, b: TensorType, c: TensorType, value: Value = 1, *, work: Work) -> Estimate:
    """The product or the quotient, the sum, and the scaling where value is not one."""
    return elementwise(work.more(0 if value == 1 else 1), a, b, c)


rule("aten.addcmul").derived(addcmul, work=WORK["addcmul"])
rule("aten.addcdiv").derived(addcmul, work=WORK["addcdiv"])


@rule("aten.clamp", "aten.clip")
def clamp(a: TensorType, min: Value = None, max: Value = None) -> Estimate:
    """One comparison per element and bound."""
    bounds = [bound for bound in (min, max) if bound is not None]
    return elementwise(WORK["clamp"].times(len(bounds)), a, *bounds)


pointwise("clamp_min", fold=dims.dim_max)
pointwise("clamp_max", fold=dims.dim_min)


for _dialect in ("aten", "prims"):  # the result's type is promoted from the two choices alone
    _result = lambda _, *chosen: result_type(*chosen)  # noqa: E731
    pointwise("where", operands="condition a b", result=_result, fold=dims.where, dialect=_dialect)
pointwise("masked_fill", operands="a mask value", result=lambda x, *_: x.dtype)


@rule("aten.pow")
def pow_(a: Value, exponent: Value) -> Estimate:
    """A function evaluation per element, or the products that a small constant exponent stands for."""
    return elementwise(power_work(exponent), a, exponent)


@rule("aten.float_power")
def float_power(a: Value, exponent: Value) -> Estimate:
    """As `pow`, in double precision."""
    dtype = COMPLEX128 if result_type(a, exponent).kind == "complex" else FLOAT64
    return elementwise(power_work(exponent), a, exponent, result=lambda *_: dtype)


rule("aten.square").derived(pow_, says="One multiplication per element.", order="a", exponent=2)


def _complex(*parts: Value) -> DType:
    return complex_of(result_type(*parts))


pointwise("complex", "complex", operands="real imag", result=_complex)
pointwise("polar", operands="abs angle", result=_complex)
pointwise("angle", result=lambda x: real_of(float_result(x)))


@rule("aten.conj_physical", "aten._conj_physical")
def conj_physical(a: TensorType) -> Estimate:
    """One negation per complex element; a real tensor is its own conjugate."""
    return elementwise(WORK["conj"], a) if a.dtype.kind == "complex" else free(a)


@rule("aten.allclose")
def allclose(a: TensorType, b: TensorType) -> Estimate:
    """|a - b| <= atol + rtol * |b| per element, reduced to one answer."""
    n = dims.prod(dims.broadcast(a.shape, b.shape))
    return Estimate((data_dependent("allclose"),), vector_flops=WORK["isclose"].flops * n, reads=(a, b))


def activation_backward(grad: Value, a: Value, *attributes: Value, row: str, **named: Value) -> Estimate:
    """The gradient's arithmetic per element."""
    return elementwise(first_gradient(WORK[row]), grad, a)


for _name in (
    *("hardtanh", "hardsigmoid", "hardswish", "leaky_relu", "threshold", "hardshrink", "softshrink"),
    *("mish", "silu", "sigmoid", "tanh", "logit"),
):
    rule(f"aten.{_name}_backward").derived(activation_backward, row=_name)
rule("aten.softplus_backward").derived(activation_backward, row="scaled_softplus")


@rule("aten.gelu")
def gelu(a: TensorType, *, approximate: str = "none") -> Estimate:
    """One erf or tanh per element and the arithmetic around it."""
    return elementwise(gelu_work(approximate), a)


# The gradient is recomputed from the operand, as in ATen.
backward("aten.gelu")(lambda call: differentiate(gelu_work(call.get("approximate", "none")))(call))


@rule("aten.gelu_backward", "aten.infinitely_differentiable_gelu_backward")
def gelu_backward(grad: TensorType, a: TensorType, *, approximate: str = "none") -> Estimate:
    """The gradient's arithmetic per element."""
    return elementwise(first_gradient(gelu_work(approximate)), grad, a)


@rule("aten.elu")
def elu(a: TensorType, *, scale: Value = 1, input_scale: Value = 1) -> Estimate:
    """One expm1, one product and one choice per element, one product more for each scale that is not one."""
    return elementwise(WORK["elu"].more((scale != 1) + (input_scale != 1)), a)


@rule("aten.elu_backward")
def elu_backward(grad: TensorType, *, is_result: bool, self_or_result: TensorType) -> Estimate:
    """Grad * alpha * exp(x) below zero; from the result, grad * (y + alpha) needs no exponential."""
    return elementwise(first_gradient(WORK["elu"]).more(0, -1 if is_result else 0), grad, self_or_result)


@rule("aten.log_sigmoid_backward")
def log_sigmoid_backward(grad: TensorType, a: TensorType, kept: TensorType) -> Estimate:
    """Two choices and five operations per element; exp(-|x|) is the kept one."""
    work = first_gradient(WORK["log_sigmoid"]).more(-2, -1)
    return replace(elementwise(work, grad, a), reads=(grad, a, kept))


@rule("aten.glu")
def glu(a: TensorType, dim: int = -1) -> Estimate:
    """One half times the sigmoid of the other."""
    place = axis_of(dim, a.rank)
    dims.meet(dims.mod(a.shape[place], 2), 0, f"axis {dim} of {a} does not split into two equal halves")
    out = a.like((*a.shape[:place], dims.floor_div(a.shape[place], 2), *a.shape[place + 1 :]))
    return replace(elementwise(WORK["glu"], out), reads=(a,))


@rule("aten.glu_backward")
def glu_backward(grad: TensorType, a: TensorType) -> Estimate:
    """Grad * s for one half, grad * a * s * (1 - s) for the other."""
    return replace(elementwise(first_gradient(WORK["glu"]), grad), out=(a.like(),), reads=(grad, a))


backward("aten.glu")(lambda call: glu_backward(call.out, call["a"]))


@rule("aten.prelu")
def prelu(a: TensorType, weight: TensorType) -> Estimate:
    """One product and one choice per element."""
    channels = a.shape[1] if a.rank > 1 else 1
    fits = not (dims.differ(weight.numel, 1) and dims.differ(weight.numel, channels)) and weight.rank < 2
    require(fits, f"a weight of {shown(weight.shape)} does not fit {channels} channels")
    return replace(elementwise(WORK["prelu"], a), reads=(a, weight))


@rule("aten._prelu_kernel_backward")
def prelu_backward(grad: TensorType, a: TensorType, weight: TensorType) -> Estimate:
    """A product and a choice per element, for both; a shared weight's sum is left to the caller."""
    both = elementwise(first_gradient(WORK["prelu"]).times(2), grad, a, weight)
    return replace(both, out=both.out * 2)


@rule("aten.rrelu_with_noise")
def rrelu_with_noise(a: TensorType, noise: TensorType, *, training: bool = False) -> Estimate:
    """One product and one choice per element; training also writes down the slopes that it drew."""
    return replace(elementwise(WORK["rrelu"], a), writes=(a.like(), noise) if training else None)


@rule("aten.normal", kind="random")
def normal(mean: Value, std: Value = 1.0) -> Estimate:
    """Normal numbers, scaled and shifted by tensors that are read."""
    return elementwise(WORK["moved_normal_number"], mean, std, result=float_result)


# Gradients by the formulas of `work.txt`, in the row of the first name; with the operands, where these have other names.
for _names, _operands in (
    *((name, "") for name in ("add", "rsub", "addcmul", "addcdiv", "square", "frexp", "elu")),
    ("sub subtract", ""),
    ("polygamma special_polygamma", ""),
    ("round special_round", ""),
    ("clamp clip", "a min max"),
    ("pow float_power", "a exponent"),
    ("prelu", "a weight"),
    ("rrelu_with_noise rrelu_with_noise_functional", "a noise"),
):
    backward(f"aten.{_names}")(differentiate(WORK[_names.split()[0]], *_operands.split()))
# Samples have no gradient; that of a gamma number goes through its sampler.
backward("aten.bernoulli normal poisson binomial")(differentiate(WORK["sample"]))
backward("aten._standard_gamma")(differentiate(WORK["standard_gamma"]))
