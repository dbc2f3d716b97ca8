"""Creation of tensors: every element is written, nothing is read.

A fill and a progression of whole numbers are no arithmetic; a progression of real numbers is a multiplication
and an addition per element.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from graphflops.cost import Estimate, Value, data_dependent
from graphflops.dims import Dim, Expr, at_least, ceil_div, dim_max, floor_div
from graphflops.rules.elementwise import DEFAULT_FLOAT, float_result, result_type
from graphflops.rules.registry import require, rule
from graphflops.rules.shapes import Shape, axis, few, tensors_of
from graphflops.rules.views import at_least_1d
from graphflops.tensor import INT64, Contents, DType, TensorType

KIND = "creation"

SMALL = 64  # elements up to which the contents of an integer tensor are followed


def filled(shape: Shape, dtype: DType, fill: object) -> TensorType:
    """A tensor filled with one value; the contents are known if it is small and holds integers."""
    out = TensorType(tuple(shape), dtype)
    if not isinstance(fill, (int, Expr)) or dtype.is_floating or few(out.shape, SMALL) is None:
        return out
    contents: Contents = fill if isinstance(fill, Expr) else int(fill)
    for size in reversed(out.shape):
        contents = (contents,) * size  # type: ignore[operator]
    return replace(out, value=contents)


def written(size: Shape, *, dtype: DType | None = None, fill: int) -> Estimate:
    """One number written everywhere."""
    return Estimate((filled(size, dtype or DEFAULT_FLOAT, fill),))


rule("aten.zeros", "aten._efficientzerotensor").derived(written, says="Zeros written.", fill=0)
rule("aten.ones").derived(written, says="Ones written.", fill=1)


@rule("aten.full")
def full(size: Shape, fill_value: Value, *, dtype: DType | None = None) -> Estimate:
    """Every element written; without a dtype the value's type decides."""
    return Estimate((filled(size, dtype or result_type(fill_value), fill_value),))


@rule("aten.scalar_tensor")
def scalar_tensor(s: Value, *, dtype: DType | None = None) -> Estimate:
    """One element written, in the default type if none is given."""
    return Estimate((filled((), dtype or DEFAULT_FLOAT, s),))


@rule("prims.scalar_tensor")
def scalar_of_its_type(s: Value, *, dtype: DType | None = None) -> Estimate:
    """One element written."""
    return Estimate((TensorType((), dtype or result_type(s)),))


@rule("aten.full_like")
def full_like(x: TensorType, fill_value: Value, *, dtype: DType | None = None) -> Estimate:
    """One value written everywhere; the tensor itself is not read."""
    return Estimate((filled(x.shape, dtype or x.dtype, fill_value),))


_SAYS = "{} written; the tensor itself is not read."
rule("aten.zeros_like", "aten.zero").derived(full_like, says=_SAYS.format("Zeros"), order="x", fill_value=0)
rule("aten.ones_like").derived(full_like, says=_SAYS.format("Ones"), order="x", fill_value=1)


@rule("aten.new_full")
def new_full(x: TensorType, size: Shape, fill_value: Value, *, dtype: DType | None = None) -> Estimate:
    """One value written everywhere, of the tensor's type."""
    return Estimate((filled(size, dtype or x.dtype, fill_value),))


_SAYS = "{} written, of the tensor's type."
rule("aten.new_zeros").derived(new_full, says=_SAYS.format("Zeros"), order="x size", fill_value=0)
rule("aten.new_ones").derived(new_full, says=_SAYS.format("Ones"), order="x size", fill_value=1)


@rule("aten._new_zeros_with_same_feature_meta")
def new_zeros_like(x: TensorType, other: TensorType, *, self_num_batch_dims: int = 0) -> Estimate:
    """Zeros written, of the other tensor's shape behind the leading batch axes of the first."""
    return Estimate((filled((*x.shape[:self_num_batch_dims], *other.shape), x.dtype, 0),))


@rule("aten.fill", "prims.fill")
def fill(x: TensorType, value: Value) -> Estimate:
    """One value written everywhere; what was there is not read."""
    if not isinstance(value, TensorType):
        return Estimate((filled(x.shape, x.dtype, value),))
    require(value.rank == 0, f"a fill value has no axes, but this one is {value}")
    return Estimate((filled(x.shape, x.dtype, value.value),), reads=(value,))


@rule("aten.eye")
def eye(n: Dim, m: Dim | None = None, *, dtype: DType | None = None) -> Estimate:
    """Ones on the diagonal, zeros elsewhere."""
    return Estimate((TensorType((n, n if m is None else m), dtype or DEFAULT_FLOAT),))


@rule("aten.from_file")
def from_file(*, size: Dim = 0, dtype: DType | None = None) -> Estimate:
    """Reads or maps a file."""
    return Estimate((TensorType((size,), dtype or DEFAULT_FLOAT),))


def progression(n: Dim, dtype: DType, flops: int = 2, transcendentals: int = 0) -> Estimate:
    """An arithmetic progression; one of integers counts as no arithmetic."""
    work = flops if dtype.is_floating else 0
    return Estimate((TensorType((n,), dtype),), vector_flops=work * n, transcendentals=transcendentals * n)


def _whole(number: Value) -> Dim | float:
    if isinstance(number, TensorType):
        return number.value if isinstance(number.value, (int, Expr)) else data_dependent("steps")
    assert isinstance(number, (int, float, Expr))
    return int(number) if isinstance(number, float) and number.is_integer() else number


@rule("aten.arange")
def arange(*, end: Value, start: Value = 0, step: Value = 1, dtype: DType | None = None) -> Estimate:
    """The numbers from `start`, or 0, to below `end`."""
    first, last, by = map(_whole, (start, end, step))
    require(by != 0, "a progression needs a step that is not zero")
    if isinstance(first, float) or isinstance(last, float) or isinstance(by, float):
        steps = data_dependent("steps")
        if not (isinstance(first, Expr) or isinstance(last, Expr) or isinstance(by, Expr)):
            steps = max(math.ceil((last - first) / by), 0)
    else:
        steps = ceil_div(last - first, by)
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
    first, last, by = map(_whole, (start, end, step))
    if isinstance(first, float) or isinstance(last, float) or isinstance(by, float):
        if isinstance(first, Expr) or isinstance(last, Expr) or isinstance(by, Expr):
            return progression(data_dependent("steps"), dtype or DEFAULT_FLOAT)
        return progression(math.floor((last - first) / by) + 1, dtype or DEFAULT_FLOAT)
    return progression(floor_div(last - first, by) + 1, dtype or DEFAULT_FLOAT)


@rule("aten._dim_arange")
def dim_arange(like: TensorType, dim: int) -> Estimate:
    """The positions along an axis."""
    return progression(like.shape[axis(dim, like.rank)], INT64)


@rule("aten.linspace")
def linspace(start: Value, end: Value, steps: Dim, *, dtype: DType | None = None) -> Estimate:
    """Evenly spaced numbers: a multiplication and an addition each."""
    estimate = progression(steps, dtype or float_result(start, end))
    return replace(estimate, reads=tensors_of((start, end)))


@rule("aten.logspace")
def logspace(start: Value, end: Value, steps: Dim, *, dtype: DType | None = None) -> Estimate:
    """Powers of evenly spaced exponents: a power each besides the exponent."""
    return replace(linspace(start, end, steps, dtype=dtype), transcendentals=steps)


@rule("aten.vander")
def vander(x: TensorType, N: Dim | None = None) -> Estimate:
    """Powers of each number side by side: one multiplication for each after the first two."""
    columns = x.shape[-1] if N is None else N
    dtype = x.dtype if x.dtype.is_floating else INT64
    work = columns - 2 if at_least(columns, 2) or isinstance(columns, Expr) else 0
    return Estimate((x.like((*x.shape, columns), dtype),), vector_flops=work * x.numel, reads=(x,))


@rule("aten.linalg_vander")
def linalg_vander(x: TensorType, *, N: Dim | None = None) -> Estimate:
    """As `vander`, of each row of a batch."""
    return vander(at_least_1d(x), N)


@rule("aten._shape_as_tensor", kind="query")
def shape_as_tensor(x: TensorType) -> Estimate:
    """Writes the sizes of a tensor as numbers."""
    return Estimate((TensorType((x.rank,), INT64, value=x.shape),))


def triangle(rows: Dim, columns: Dim, offset: Dim) -> Dim:
    """Elements of a matrix on and below a diagonal."""

    def up_to(n: Dim) -> Dim:  # 1 + 2 + ... + n
        last = dim_max(n, 0)
        return floor_div(last * (last + 1), 2)

    return up_to(rows + offset) - up_to(offset) - up_to(rows + offset - columns) + up_to(offset - columns)


@rule("aten.tril_indices")
def tril_indices(row: Dim, col: Dim, offset: Dim = 0, *, dtype: DType | None = None) -> Estimate:
    """Row and column of every element on and below a diagonal."""
    return Estimate((TensorType((2, triangle(row, col, offset)), dtype or INT64),))


@rule("aten.triu_indices")
def triu_indices(row: Dim, col: Dim, offset: Dim = 0, *, dtype: DType | None = None) -> Estimate:
    """Row and column of every element on and above a diagonal."""
    return Estimate((TensorType((2, row * col - triangle(row, col, offset - 1)), dtype or INT64),))


# Windows: their argument, formula and functions per element.


def window(
    window_length: Dim, *, dtype: DType | None = None, flops: int = 2, transcendentals: int = 0
) -> Estimate:
    """A triangle: a multiplication and a subtraction per element."""
    return progression(window_length, dtype or DEFAULT_FLOAT, flops, transcendentals)


rule("aten.bartlett_window")(window)
rule("aten.hann_window", "aten.hamming_window").derived(
    window,
    says="The value alpha - beta * cos(2 pi i / n) per element: three operations and a cosine.",
    flops=3,
    transcendentals=1,
)
rule("aten.blackman_window", "aten.kaiser_window").derived(
    window,
    says="Two cosines with arguments and factors; or I0(beta * sqrt(1 - ((i - h) / h)^2)) / I0(beta), which is as much.",
    flops=6,
    transcendentals=2,
)
