"""Elementwise arithmetic, comparisons and logic; before version 7 operands were broadcast by two attributes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from graphflops.cost import Estimate, Value
from graphflops.dims import call
from graphflops.rules.elementwise import elementwise, to_bool
from graphflops.rules.onnx import values
from graphflops.rules.pointwise import power_work
from graphflops.rules.registry import require, rule
from graphflops.rules.shapes import same_elements
from graphflops.tensor import DType, TensorType

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphflops.rules.elementwise import Promotion

    Fold = Callable[..., values.Number]


def own_type(*operands: Value) -> DType:
    """The first operand's element type: ONNX promotes nothing."""
    first = operands[0]
    assert isinstance(first, TensorType)
    return first.dtype


def pointwise(
    *tensors: TensorType,
    flops: int = 0,
    transcendentals: int = 0,
    result: Promotion = own_type,
    fold: Fold | None = None,
) -> Estimate:
    """So much work per element of the broadcast operands, and the contents where they are known."""
    estimate = elementwise(*tensors, flops=flops, transcendentals=transcendentals, result=result)
    (out,) = estimate.out
    if fold is None or not isinstance(out, TensorType):
        return estimate
    return replace(estimate, out=(values.folded(fold, out, *tensors),))


def unary(
    names: str, flops: int, transcendentals: int = 0, result: Promotion = own_type, fold: Fold | None = None
) -> None:
    """Register operators of one operand, whose attributes change neither type nor work."""

    def estimate(a: TensorType, **attributes: Value) -> Estimate:
        return pointwise(a, flops=flops, transcendentals=transcendentals, result=result, fold=fold)

    rule(*(f"onnx.{name}" for name in names.split()))(estimate)


def binary(names: str, flops: int, result: Promotion = own_type, fold: Fold | None = None) -> None:
    """Register operators of two operands."""

    def estimate(
        a: TensorType, b: TensorType, *, broadcast: int = 0, axis: int | None = None, **attributes: Value
    ) -> Estimate:
        return pointwise(a, placed(a, b, axis), flops=flops, result=result, fold=fold)

    rule(*(f"onnx.{name}" for name in names.split()))(estimate)


def placed(a: TensorType, b: TensorType, axis: int | None) -> TensorType:
    """The second operand with its axes against those of the first from `axis` on, as before version 7."""
    if axis is None:
        return b
    behind = a.rank - (axis % a.rank if a.rank else 0) - b.rank
    require(behind >= 0, f"{b} has too many axes to be put at axis {axis} of {a}")
    return same_elements(b, (*b.shape, *(1,) * behind))


unary("Abs", 1, fold=values.magnitude)
unary("Neg", 1, fold=values.negate)
unary("Sign", 1, fold=values.sign)
unary("Floor", 1, fold=values.floor)
unary("Ceil", 1, fold=values.ceil)
unary("Round", 1, fold=values.nearest)
unary("Reciprocal", 1, fold=partial(values.divide, 1))
unary("Sqrt", 0, 1, fold=values.square_root)
unary("Exp Log Erf Sin Cos Tan Asin Acos Atan Sinh Cosh Tanh Asinh Acosh Atanh", 0, 1)
unary("Not", 1, fold=partial(values.subtract, 1))
unary("IsInf IsNaN", 1, result=to_bool)
unary("BitwiseNot", 1)

binary("Add", 1, fold=values.add)
binary("Sub", 1, fold=values.subtract)
binary("Mul", 1, fold=values.multiply)
for _relation, _name in {
    "==": "Equal",
    "<": "Less",
    "<=": "LessOrEqual",
    ">": "Greater",
    ">=": "GreaterOrEqual",
}.items():
    binary(_name, 1, to_bool, partial(values.compared, _relation))
binary("And", 1, fold=values.multiply)
binary("Or", 1, fold=values.largest)
binary("Xor", 1, fold=partial(values.compared, "!="))


def _bits(name: str) -> Fold:
    return lambda a, b: call(name, a, b)


binary("BitwiseAnd", 1, fold=_bits("bitwise_and"))
binary("BitwiseOr", 1, fold=_bits("bitwise_or"))
binary("BitwiseXor", 1, fold=_bits("bitwise_xor"))


@rule("onnx.BitShift")
def bit_shift(a: TensorType, b: TensorType, *, direction: str) -> Estimate:
    """One shift per element."""
    return pointwise(a, b, flops=1, fold=_bits("lshift" if direction == "LEFT" else "rshift"))


@rule("onnx.Div")
def divide(
    a: TensorType, b: TensorType, *, broadcast: int = 0, axis: int | None = None, **attributes: Value
) -> Estimate:
    """One division per element; integers are rounded towards zero."""
    fold = values.divide if a.dtype.is_floating else values.divide_whole
    return pointwise(a, placed(a, b, axis), flops=1, fold=fold)


@rule("onnx.Mod")
def modulo(a: TensorType, b: TensorType, *, fmod: int = 0) -> Estimate:
    """A division, its rounding, a product and a difference per element."""
    return pointwise(a, b, flops=4, fold=values.remainder_of_dividend if fmod else values.remainder)


@rule("onnx.Pow")
def power(
    a: TensorType, exponent: TensorType, *, broadcast: int = 0, axis: int | None = None, **attributes: Value
) -> Estimate:
    """A function evaluation per element, or the products that a small constant exponent stands for."""
    flops, evaluations = power_work(only_value(exponent))
    exponent = placed(a, exponent, axis)
    return pointwise(a, exponent, flops=flops, transcendentals=evaluations, fold=values.power)


def only_value(x: TensorType | None) -> values.Number | None:
    """The one element of a tensor whose contents are known."""
    contents = None if x is None else x.value
    while isinstance(contents, tuple):
        contents = contents[0] if len(contents) == 1 else None
    return contents


def variadic(name: str, final: int, fold: Fold | None) -> None:
    """Register an operator of any number of operands, combined pair by pair, and `final` operations per result."""

    def estimate(*tensors: TensorType, **attributes: Value) -> Estimate:
        require(len(tensors) > 0, f"{name} of no operands")
        return pointwise(*tensors, flops=len(tensors) - 1 + final, fold=fold)

    rule(f"onnx.{name}")(estimate)


variadic("Sum", 0, lambda *numbers: values.total(numbers))
variadic("Mean", 1, None)
variadic("Max", 0, values.largest)
variadic("Min", 0, values.smallest)


@rule("onnx.Where")
def select(condition: TensorType, a: TensorType, b: TensorType) -> Estimate:
    """One selection per element."""
    return pointwise(
        condition, a, b, flops=1, result=lambda _, chosen, *__: own_type(chosen), fold=values.chosen
    )


@rule("onnx.Clip")
def clip(
    a: TensorType,
    min: TensorType | float | None = None,
    max: TensorType | float | None = None,
    *,
    consumed_inputs: Value = None,
) -> Estimate:
    """One comparison per element and bound; bounds were attributes before version 11."""
    out = replace(a.like(), value=a.value)
    given = [
        (fold, bound) for fold, bound in ((values.largest, min), (values.smallest, max)) if bound is not None
    ]
    for fold, bound in given:
        limit = bound if isinstance(bound, TensorType) else TensorType((), a.dtype, value=bound)
        out = values.folded(fold, a.like(), out, limit)
    reads = (a, *(bound for _, bound in given if isinstance(bound, TensorType)))
    return Estimate((out,), vector_flops=len(given) * a.numel, reads=reads)
