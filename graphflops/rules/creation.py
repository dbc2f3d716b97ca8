"""Creation of tensors, random numbers, and dropout: every element is written, nothing is read.

A fill and a progression of whole numbers are no arithmetic; a progression of real numbers is a multiplication
and an addition per element. Drawing bits is not counted; turning them into a distribution is (`work.txt`).
"""

import math
from itertools import repeat
from typing import Any

from graphflops.base.record import replace
from graphflops.cost import Estimate, Value, data_dependent, free
from graphflops.dims import Dim, Expr, at_least, ceil_div, floor_div
from graphflops.rules.elementwise import DEFAULT_FLOAT, float_result, pointwise, result_type
from graphflops.rules.registry import ForwardCall, backward, require, rule
from graphflops.rules.shapes import Shape, axis_of, doubled_pairs, few, nested, only_result, tensors_of
from graphflops.rules.views import at_least_1d
from graphflops.tensor import BOOL, INT64, UINT8, DType, TensorType

KIND = "creation"

SMALL = 64  # elements up to which the contents of an integer tensor are followed


def filled(shape: Shape, dtype: DType, fill: object) -> TensorType:
    """A tensor filled with one value; the contents are known if it is small and holds integers."""
    out = TensorType(tuple(shape), dtype)
    if not isinstance(fill, (int, Expr)) or dtype.is_floating or few(out.shape, SMALL) is None:
        return out
    return replace(out, value=nested(repeat(fill if isinstance(fill, Expr) else int(fill)), out.shape))


def written(size: Shape, *, dtype: DType | None = None, fill: Value) -> Estimate:
    """One number written everywhere."""
    return Estimate((filled(size, dtype or DEFAULT_FLOAT, fill),))


rule("aten.zeros", "aten._efficientzerotensor").derived(written, fill=0)
rule("aten.ones").derived(written, fill=1)


@rule("aten.full")
def full(size: Shape, fill_value: Value, *, dtype: DType | None = None) -> Estimate:
    """Every element written; without a dtype the value's type decides."""
    return Estimate((filled(size, dtype or result_type(fill_value), fill_value),))


rule("aten.scalar_tensor").derived(written, order="fill", size=())
rule("prims.scalar_tensor").derived(full, order="fill_value", size=())


@rule("aten.new_full")
def new_full(x: TensorType, size: Shape | None, fill_value: Value, *, dtype: DType | None = None) -> Estimate:
    """One value written everywhere, of the tensor's type, and by default its size; the tensor itself is not read."""
    return Estimate((filled(x.shape if size is None else size, dtype or x.dtype, fill_value),))


rule("aten.full_like").derived(new_full, order="x fill_value", size=None)
rule("aten.zeros_like", "aten.zero").derived(new_full, order="x", size=None, fill_value=0)
rule("aten.ones_like").derived(new_full, order="x", size=None, fill_value=1)
rule("aten.new_zeros").derived(new_full, order="x size", fill_value=0)
rule("aten.new_ones").derived(new_full, order="x size", fill_value=1)


@rule("aten._new_zeros_with_same_feature_meta")
def new_zeros_like(x: TensorType, other: TensorType, *, self_num_batch_dims: int = 0) -> Estimate:
    """Zeros written, with the other tensor's shape after the leading batch axes of the first."""
    return new_full(x, (*x.shape[:self_num_batch_dims], *other.shape), 0)


@rule("aten.fill", "prims.fill")
def fill(x: TensorType, value: Value) -> Estimate:
    """One value written to all elements; earlier contents are not read."""
    if not isinstance(value, TensorType):
        return Estimate((filled(x.shape, x.dtype, value),))
    return Estimate((filled(x.shape, x.dtype, value.value),), reads=(value,))


@rule("aten.eye")
def eye(n: Dim, m: Dim | None = None, *, dtype: DType | None = None) -> Estimate:
    """Ones on the diagonal, zeros elsewhere."""
    return Estimate((TensorType((n, n if m is None else m), dtype or DEFAULT_FLOAT),))


def progression(n: Dim, dtype: DType) -> Estimate:
    """An arithmetic progression; one of integers counts as no arithmetic."""
    return Estimate((TensorType((n,), dtype),), vector_flops=2 * n if dtype.is_floating else 0)


def _whole(number: Value) -> Dim | float:
    if isinstance(number, TensorType):
        return number.value if isinstance(number.value, (int, Expr)) else data_dependent("steps")
    assert isinstance(number, (int, float, Expr))
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _steps(start: Value, end: Value, step: Value, *, closed: bool) -> Dim:
    """How many numbers there are from one to another, the last one included if closed; whole floats count as integers."""
    first, last, by = map(_whole, (start, end, step))
    require(by != 0, "a progression needs a step that is not zero")
    if not any(isinstance(number, float) for number in (first, last, by)):
        length: Any = last - first  # type: ignore[operator]
        return floor_div(length, by) + 1 if closed else ceil_div(length, by)  # type: ignore[arg-type]
    if any(isinstance(number, Expr) for number in (first, last, by)):
        return data_dependent("steps")
    span = (last - first) / by  # type: ignore[operator]
    return math.floor(span) + 1 if closed else math.ceil(span)


@rule("aten.arange")
def arange(*, end: Value, start: Value = 0, step: Value = 1, dtype: DType | None = None) -> Estimate:
    """The numbers from `start`, or 0, to below `end`."""
    steps = _steps(start, end, step, closed=False)
    steps = max(steps, 0) if isinstance(steps, int) else steps
    estimate = progression(steps, dtype or result_type(start, end, step))
    (out,) = tensors_of(estimate.out)
    numbers = [x for x in (start, end, step) if isinstance(x, int)]
    if len(numbers) < 3 or out.dtype.is_floating or few(out.shape, SMALL) is None:
        return estimate
    return replace(estimate, out=(replace(out, value=tuple(range(*numbers))),))


@rule("aten.range")
def closed_range(start: Value, end: Value, step: Value = 1, *, dtype: DType | None = None) -> Estimate:
    """The numbers from `start` to `end`, both included."""
    return progression(_steps(start, end, step, closed=True), dtype or DEFAULT_FLOAT)


@rule("aten._dim_arange")
def dim_arange(like: TensorType, dim: int) -> Estimate:
    """The positions along an axis."""
    return progression(like.shape[axis_of(dim, like.rank)], INT64)


@rule("aten.linspace")
def linspace(start: Value, end: Value, steps: Dim, *, dtype: DType | None = None) -> Estimate:
    """Evenly spaced numbers: a multiplication and an addition each."""
    return replace(progression(steps, dtype or float_result(start, end)), reads=tensors_of((start, end)))


rule("aten.logspace").derived(
    linspace,
    lambda exponents: replace(exponents, transcendentals=only_result(exponents).numel),
    says="Powers of evenly spaced exponents: a power each besides the exponent.",
)


@rule("aten.vander")
def vander(x: TensorType, N: Dim | None = None) -> Estimate:
    """Powers of each number side by side: one multiplication for each after the first two."""
    x = at_least_1d(x)
    columns = x.shape[-1] if N is None else N
    dtype = x.dtype if x.dtype.is_floating else INT64
    work = columns - 2 if at_least(columns, 2) or isinstance(columns, Expr) else 0
    return Estimate((x.like((*x.shape, columns), dtype),), vector_flops=work * x.numel, reads=(x,))


rule("aten.linalg_vander").derived(vander, order="x")


@rule("aten._shape_as_tensor", kind="query")
def shape_as_tensor(x: TensorType) -> Estimate:
    """Writes the sizes of a tensor as numbers."""
    return Estimate((TensorType((x.rank,), INT64, value=x.shape),))


def triangle_indices(
    row: Dim, col: Dim, offset: Dim = 0, *, dtype: DType | None = None, upper: bool
) -> Estimate:
    """Row and column of every element on and below a diagonal, or on and above it."""
    below = floor_div(doubled_pairs(row, col, right=offset - upper), 2)
    return Estimate((TensorType((2, row * col - below if upper else below), dtype or INT64),))


rule("aten.tril_indices").derived(triangle_indices, upper=False)
rule("aten.triu_indices").derived(triangle_indices, upper=True)


KIND = "random"

pointwise("binomial", "rejected_number", operands="count prob")


# Dropout: training zeroes elements at random and scales the others; inference does nothing.

KIND = "elementwise"

DROPOUT = 3  # compare 1, select 1, scale 1
UNDROP = 2  # select 1, scale 1
AFFINE_DRAW = 5  # alpha dropout, per draw: compare 1, and a scale and a shift that keep mean and variance 4
AFFINE = 2  # multiply 1, add 1


def channels(x: TensorType) -> TensorType:
    """One number for each feature map of a batch."""
    return x.like(x.shape[:2])


def drop(
    x: TensorType, p: float, train: bool, *, by_channel: bool = False, draw: int, apply: int, held: int = 1
) -> Estimate:
    """Three operations per element and a mask of bytes, or so many per decision and element; `x` itself in inference."""
    if not train or p == 0 or x.numel == 0:
        return free(x.view(x.shape))
    draws = channels(x) if by_channel else x.like()
    aside = held * draws.nbytes if held else draws.numel  # without `held`, a mask of one byte per draw
    return Estimate((x.like(),), 0, draw * draws.numel + apply * x.numel, reads=(x,), workspace=aside)


rule("aten.dropout").derived(drop, draw=DROPOUT, apply=0, held=0)
rule("aten.feature_dropout").derived(drop, by_channel=True, draw=2, apply=1)
_ALPHA = {"draw": AFFINE_DRAW, "apply": AFFINE, "held": 2}  # each decision keeps its scale and its shift
rule("aten.alpha_dropout").derived(drop, **_ALPHA)
rule("aten.feature_alpha_dropout").derived(drop, by_channel=True, **_ALPHA)


def masked(x: TensorType, dtype: DType, train: bool | None) -> Estimate:
    """Three operations per element and a stored mask; in inference `x` itself, and only a mask of ones is written."""
    mask = x.like(dtype=dtype)
    if train is False:
        return Estimate((x, mask), writes=(mask,), alias=True)
    return Estimate((x.like(), mask), vector_flops=DROPOUT * x.numel, reads=(x,))


rule("aten.native_dropout").derived(masked, order="x", dtype=BOOL)
rule("aten._fused_dropout", kind="dropout").derived(masked, order="x", dtype=UINT8, train=True)


def undropped(call: ForwardCall, kept: TensorType | Dim, flops: int = 1) -> Estimate:
    """A product with saved noise; the gradient passes unchanged if nothing was dropped."""
    grad = call.out
    if call.estimate.alias:
        return free(grad)
    return Estimate((grad.like(),), vector_flops=flops * grad.numel, reads=(grad.like(), kept))


# The gradient is selected by the stored mask and scaled.
backward("aten.dropout", "aten.native_dropout", "aten._fused_dropout")(
    lambda call: undropped(call, call.out.like(dtype=BOOL), UNDROP)
)
backward("aten.feature_dropout", "aten.feature_alpha_dropout")(
    lambda call: undropped(call, channels(call.out).nbytes)
)
backward("aten.alpha_dropout")(lambda call: undropped(call, call.out.like().nbytes))
