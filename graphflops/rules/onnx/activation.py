"""Elementwise arithmetic, comparisons, logic and activation functions.

Before version 7, operands were broadcast by two attributes.
"""

from collections.abc import Callable
from functools import partial

from graphflops.base.record import replace
from graphflops.cost import Estimate, Value
from graphflops.dims import broadcast, call, differ, floor_div
from graphflops.ops import operator
from graphflops.rules.elementwise import WORK, Promotion, Work, elementwise, gelu_work, power_work, to_bool
from graphflops.rules.onnx import values
from graphflops.rules.operands import Operands, Taking
from graphflops.rules.reduce import log_softmax, softmax_along
from graphflops.rules.registry import require, rule
from graphflops.rules.shapes import axis_of, have_shape, only_result, same_elements
from graphflops.tensor import DType, TensorType, flat

Fold = Callable[..., values.Number]

KIND = "elementwise"


def own_type(*operands: Value) -> DType:
    """The first operand's element type: ONNX promotes nothing."""
    first = operands[0]
    assert isinstance(first, TensorType)
    return first.dtype


def pointwise(
    work: Work, *tensors: TensorType, result: Promotion = own_type, fold: Fold | None = None
) -> Estimate:
    """The work per element of the broadcast operands, and the contents where they are known."""
    estimate = elementwise(work, *tensors, result=result)
    if fold is None:
        return estimate
    return replace(estimate, out=(values.folded(fold, only_result(estimate), *tensors),))


def placed(a: TensorType, b: TensorType, axis: int | None) -> TensorType:
    """The second operand aligned with the axes of the first from `axis` on, as before version 7."""
    if axis is None:
        return b
    behind = a.rank - (axis % a.rank if a.rank else 0) - b.rank
    require(behind >= 0, f"{b} has too many axes to be put at axis {axis} of {a}")
    return same_elements(b, (*b.shape, *(1,) * behind))


# Functions of one operand whose attributes change neither type nor work, and how each folds known contents.
_UNARY: dict[str, Fold | None] = {
    **dict.fromkeys(("Exp", "Log", "Erf", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "BitwiseNot", "Sinh", "Cosh")),
    **dict.fromkeys(("Tanh", "Asinh", "Acosh", "Atanh", "IsInf", "IsNaN", "LeakyRelu", "ThresholdedRelu", "HardSigmoid")),
    **dict.fromkeys(("HardSwish", "Sigmoid", "Elu", "Selu", "Celu", "Softplus", "Softsign", "Mish")),
    "Abs": values.magnitude, "Neg": values.negate, "Sign": values.sign, "Floor": values.floor,
    "Ceil": values.ceil, "Round": values.nearest, "Reciprocal": partial(values.divide, 1),
    "Sqrt": values.square_root, "Not": partial(values.subtract, 1), "Relu": partial(values.largest, 0),
}  # fmt: skip
_BINARY: dict[str, Fold] = {
    "Add": values.add, "Sub": values.subtract, "Mul": values.multiply, "And": values.multiply, "Or": values.largest,
    **{
        name: partial(values.compared, relation)
        for name, relation in
        {"Equal": "==", "Less": "<", "LessOrEqual": "<=", "Greater": ">", "GreaterOrEqual": ">=", "Xor": "!="}.items()
    },
    **{f"Bitwise{word}": partial(call, f"bitwise_{word.lower()}") for word in ("And", "Or", "Xor")},
}  # fmt: skip
_TO_BOOL = ("IsInf", "IsNaN", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
# Rows of the table of work for experimental operators of ONNX's first years, which have no canonical names.
_EXPERIMENTAL = {
    "Affine": "affine", "ScaledTanh": "scaled_tanh", "ParametricSoftplus": "scaled_softplus", "Scale": "mul",
    "ImageScaler": "affine",
}  # fmt: skip


def function(
    of: Operands, *, axis: int | None = None, work: Work, result: Promotion, fold: Fold | None
) -> Estimate:
    """The function's work per element."""
    a, *others = of
    return pointwise(work, a, *(placed(a, b, axis) for b in others), result=result, fold=fold)


for _name, _fold in {**_UNARY, **_BINARY, **dict.fromkeys(_EXPERIMENTAL)}.items():
    _key = f"onnx.{_name}"
    rule(_key).derived(
        Taking("a b" if _name in _BINARY else "a", function),
        work=WORK[_EXPERIMENTAL.get(_name) or operator(_key).name],
        result=to_bool if _name in _TO_BOOL else own_type,
        fold=_fold,
    )


@rule("onnx.BitShift")
def bit_shift(a: TensorType, b: TensorType, *, direction: str) -> Estimate:
    """One shift per element."""
    left = direction == "LEFT"
    work = WORK["bitwise_left_shift" if left else "bitwise_right_shift"]
    return pointwise(work, a, b, fold=partial(call, "lshift" if left else "rshift"))


@rule("onnx.Div")
def divide(a: TensorType, b: TensorType, *, axis: int | None = None) -> Estimate:
    """One division per element; integers are rounded towards zero."""
    fold = values.divide if a.dtype.is_floating else values.divide_whole
    return pointwise(WORK["div"], a, placed(a, b, axis), fold=fold)


@rule("onnx.Mod")
def modulo(a: TensorType, b: TensorType, *, fmod: int = 0) -> Estimate:
    """A division, its rounding, a product and a difference per element."""
    fold = values.remainder_of_dividend if fmod else values.remainder
    return pointwise(WORK["fmod" if fmod else "remainder"], a, b, fold=fold)


@rule("onnx.Pow")
def power(a: TensorType, exponent: TensorType, *, axis: int | None = None) -> Estimate:
    """A function evaluation per element, or the products that a small constant exponent stands for."""
    return pointwise(power_work(only_value(exponent)), a, placed(a, exponent, axis), fold=values.power)


def only_value(x: TensorType | None) -> values.Number | None:
    """The one element of a tensor whose contents are known."""
    contents = () if x is None else tuple(flat((x.value,)))
    return contents[0] if len(contents) == 1 else None


def _variadic(*tensors: TensorType, name: str, row: str, final: int, fold: Fold | None) -> Estimate:
    # combined pair by pair, and `final` operations per result
    require(len(tensors) > 0, f"{name} needs at least one operand")
    return pointwise(WORK[row].times(len(tensors) - 1).more(final), *tensors, fold=fold)


for _name, _row, _final, _fold in (
    ("Sum", "add", 0, lambda *numbers: values.total(numbers)),
    ("Mean", "add", WORK["div"].flops, None),
    ("Max", "maximum", 0, values.largest),
    ("Min", "minimum", 0, values.smallest),
):
    rule(f"onnx.{_name}").derived(_variadic, name=_name, row=_row, final=_final, fold=_fold)


@rule("onnx.Where")
def select(condition: TensorType, a: TensorType, b: TensorType) -> Estimate:
    """One selection per element."""
    return pointwise(
        WORK["where"], condition, a, b, result=lambda _, chosen, *__: own_type(chosen), fold=values.chosen
    )


@rule("onnx.Clip")
def clip(
    a: TensorType, min: TensorType | float | None = None, max: TensorType | float | None = None
) -> Estimate:
    """One comparison per element and bound; bounds were attributes before version 11."""
    out, reads = replace(a.like(), value=a.value), [a]
    given = [pair for pair in ((values.largest, min), (values.smallest, max)) if pair[1] is not None]
    for fold, bound in given:
        limit = bound if isinstance(bound, TensorType) else TensorType((), a.dtype, value=bound)
        out = values.folded(fold, a.like(), out, limit)
        reads += [bound] if isinstance(bound, TensorType) else []
    return Estimate((out,), vector_flops=WORK["clamp"].times(len(given)).flops * a.numel, reads=tuple(reads))


@rule("onnx.Shrink")
def shrink(x: TensorType, *, bias: float = 0.0) -> Estimate:
    """Two comparisons per element; with a bias also its addition and a selection."""
    return pointwise(WORK["hardshrink" if bias == 0 else "softshrink"], x)


@rule("onnx.Gelu", "com.microsoft.Gelu")
def gelu(x: TensorType, *, approximate: str = "none") -> Estimate:
    """One erf or tanh per element and the arithmetic around it."""
    return pointwise(gelu_work(approximate), x)


@rule("onnx.Swish")
def swish(x: TensorType, *, alpha: float = 1.0) -> Estimate:
    """A product with the sigmoid, whose operand is scaled if alpha is not one."""
    return pointwise(WORK["silu"].more(alpha != 1), x)


@rule("onnx.SwiGLU")
def swiglu(a: TensorType, b: TensorType, *, alpha: float = 1.0) -> Estimate:
    """As `Swish` of the gate, times the other operand."""
    require(have_shape(a.shape, b), f"a gate of {a} does not fit {b}")
    return pointwise(WORK["swiglu"].more(alpha != 1), a, b)


@rule("com.microsoft.SwiGLU").takes("gate up?; activation_alpha=1.0 activation_beta=0.0 limit=0.0")
def swiglu_of_halves(of: Operands) -> Estimate:
    """As `SwiGLU`, of the halves of one operand where it stands alone; with a limit three comparisons more."""
    gate, up = of
    half = gate if up is not None else gate.like((*gate.shape[:-1], floor_div(gate.shape[-1], 2)))
    estimate = swiglu(half, half if up is None else up, alpha=of.activation_alpha)
    more = (of.activation_beta != 0) + 3 * (of.limit > 0)
    return replace(estimate.plus(vector_flops=more * half.numel), reads=(gate, up))


@rule("onnx.PRelu")
def prelu(x: TensorType, slope: TensorType) -> Estimate:
    """One product and one choice per element; several elements may share a slope, in any version's way."""
    require(slope.rank <= x.rank, f"a slope of {slope} has more axes than {x}")
    lanes = slope.rank == 1 and x.rank > 1 and not differ(slope.shape[0], x.shape[1])  # before version 7
    wide = x if lanes else x.like(broadcast(slope.shape, x.shape))
    return replace(pointwise(WORK["prelu"], wide), reads=(x, slope))


def rows_of(x: TensorType, axis: int) -> TensorType:
    """The tensor as a matrix of the axes before and from `axis` on, as before version 13."""
    place = axis if axis == x.rank else axis_of(axis, x.rank)
    return x.view((x.like(x.shape[:place]).numel, x.like(x.shape[place:]).numel))


def softmax(
    x: TensorType, *, axis: int = -1, along: Callable[[TensorType, int], Estimate], of_rows: bool = False
) -> Estimate:
    """As of ATen, along one axis; in old versions over all axes from it on."""
    return replace(along(rows_of(x, axis), 1), out=(x.like(),), reads=(x,)) if of_rows else along(x, axis)


def hardmax(x: TensorType, axis: int) -> Estimate:
    """A comparison per element finds each row's maximum."""
    axis_of(axis, x.rank)
    return pointwise(WORK["maximum"], x)


for _name, _says, _along in (
    ("Softmax", "Maximum, difference, exponential, sum and division.", softmax_along),
    ("LogSoftmax", "Maximum, difference, exponential, sum and difference, a logarithm per row.", log_softmax),
    ("Hardmax", "A comparison per element; zeros and ones are written without arithmetic.", hardmax),
):
    rule(f"onnx.{_name}").derived(softmax, says=_says, along=_along)
    rule(f"onnx.{_name}.1", f"onnx.{_name}.11").derived(
        softmax, says=_says, usually={"axis": 1}, along=_along, of_rows=True
    )
