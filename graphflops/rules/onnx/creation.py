"""Creation of tensors: constants, ranges, fills, one-hot vectors, random numbers."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from graphflops.cost import Estimate, Value, data_dependent, free
from graphflops.dims import Dim, Expr, ceil_div
from graphflops.errors import DimError
from graphflops.rules import rearrange
from graphflops.rules.creation import multinomial as draws, progression
from graphflops.rules.elementwise import WORK, Work
from graphflops.rules.onnx import entries
from graphflops.rules.onnx.values import (
    Number,
    Place,
    add,
    ceil,
    converted,
    divide,
    filled,
    known_contents,
    multiply,
    subtract,
)
from graphflops.rules.registry import require, rule
from graphflops.rules.shapes import axis_of, larger, only_result, shown, tensors_of
from graphflops.tensor import FLOAT32, INT64, STRING, TensorType, UnknownType


def _like(x: TensorType, dtype: int | None) -> TensorType:
    return x.like(dtype=None if dtype is None else entries.onnx_dtype(dtype))


def drawn(out: TensorType, work: Work, *reads: TensorType) -> Estimate:
    """A tensor of that type with every element drawn independently."""
    return Estimate((out,), reads=reads).plus(work.on(out.numel))


def of_shape(*, shape: Sequence[Dim], dtype: int = 1, work: Work) -> Estimate:
    """Random numbers in a new tensor."""
    return drawn(TensorType(tuple(shape), entries.onnx_dtype(dtype)), work)


def of_shape_of(x: TensorType, *, dtype: int | None = None, work: Work) -> Estimate:
    """Random numbers in a tensor of another one's shape, which is not read."""
    return drawn(_like(x, dtype), work)


for _name, _work, _says in (
    ("Uniform", Work("uniform"), "Uniform numbers; scaling to bounds is not counted."),
    ("Normal", WORK["moved_normal_number"], "Normal numbers, scaled and shifted."),
):
    rule(f"onnx.Random{_name}").derived(of_shape, says=_says, work=_work)
    rule(f"onnx.Random{_name}Like").derived(
        of_shape_of, says=f"{_says} Of the operand only the shape matters.", work=_work
    )


@rule("onnx.Bernoulli")
def bernoulli(x: TensorType, *, dtype: int | None = None) -> Estimate:
    """One comparison with its own probability per element."""
    return drawn(_like(x, dtype), Work("compared", 1), x)


@rule("onnx.Multinomial")
def multinomial(x: TensorType, *, dtype: int = 6, sample_size: int = 1) -> Estimate:
    """Samples with replacement from log-probabilities: one exponential per weight first."""
    draw = draws(x, sample_size, replacement=True)
    out = only_result(draw)
    return replace(draw, out=(out.like(dtype=entries.onnx_dtype(dtype)),), transcendentals=x.numel)


@rule("onnx.Constant")
def constant(*, value: Value = None, sparse_value: Value = None, **literals: Any) -> Estimate:
    """Free: the data is in the file."""
    given = [x for x in (value, sparse_value) if x is not None]
    count = len(given) + len(literals)
    require(count == 1, f"a constant has one value, not {count}")
    if given:
        return free(*given, alias=False)
    ((name, held),) = literals.items()  # a number or a string, or a list: `value_float`, `value_ints`, ...
    kinds = {"float": FLOAT32, "int": INT64, "string": STRING}
    shape = (len(held),) if name.endswith("s") else ()
    out = TensorType(shape, kinds[name.removeprefix("value_").removesuffix("s")])
    known = out if out.dtype == STRING else filled(out, lambda at: held[at[0]] if at else held)
    return free(known, alias=False)


@rule("onnx.ConstantOfShape")
def constant_of_shape(shape: entries.Numbers, *, value: TensorType | None = None) -> Estimate:
    """One value written everywhere."""
    dtype = FLOAT32 if value is None else value.dtype
    if entries.sizes(shape) is None and entries.many(shape) is None:
        return Estimate((UnknownType(dtype),), unknown=entries.rank_depends_on_data("ConstantOfShape"))
    lengths = entries.asked(shape, "fill", "ConstantOfShape")
    held = (0.0,) if value is None else entries.numbers(value) or (None,)
    out = filled(TensorType(lengths, dtype), lambda _: held[0])
    if out.value is None and not isinstance(held[0], Expr):
        out = replace(out, uniform=held[0])
    return Estimate((out,))


@rule("onnx.Range")
def range_(start: TensorType, limit: TensorType, delta: TensorType) -> Estimate:
    """Evenly spaced numbers; whole ones count up without arithmetic."""
    found = [entries.numbers(x) for x in (start, limit, delta)]
    ends = [x[0] for x in found if x]
    if len(ends) < len(found):
        return progression(data_dependent("range"), start.dtype)
    first, last, step = ends
    require(step != 0, "a range needs a step that is not zero")
    try:
        span = subtract(last, first)
        is_whole = not isinstance(span, float) and not isinstance(step, float)
        fitting: Number = ceil_div(span, step) if is_whole else ceil(divide(span, step))  # type: ignore[arg-type]
        count = larger(int(fitting) if isinstance(fitting, float) else fitting, 0)
    except (ArithmeticError, DimError, ValueError):  # an unknown fraction of symbolic sizes
        are_open = any(isinstance(number, Expr) for number in ends)
        require(are_open, f"a range from {first} to {last} by {step} has no end")
        count = data_dependent("range")
    estimate = progression(count, start.dtype)
    (out,) = tensors_of(estimate.out)
    known = filled(out, lambda at: converted(add(first, multiply(at[0], step)), out.dtype))
    return Estimate((known,), vector_flops=estimate.vector_flops)


@rule("onnx.OneHot")
def one_hot(indices: TensorType, depth: entries.Numbers, values: TensorType, *, axis: int = -1) -> Estimate:
    """One of two values written per index and class."""
    place, classes = axis_of(axis, indices.rank + 1), entries.size(depth)
    known, pair = known_contents(indices), entries.numbers(values)
    estimate = rearrange.one_hot_along(indices, place, classes, values.dtype)
    (out,) = tensors_of(estimate.out)

    def entry(at: Place) -> Number | None:
        index = None if known is None else known[at[:place] + at[place + 1 :]]
        if not isinstance(index, int) or not isinstance(classes, int) or pair is None:
            return None
        return pair[at[place] - index in (0, classes)]

    return replace(estimate, out=(filled(out, entry),))


@rule("onnx.EyeLike")
def eye_like(x: TensorType, *, dtype: int | None = None, k: int = 0) -> Estimate:
    """Ones on a diagonal, zeros elsewhere; of the operand only the shape matters."""
    require(x.rank == 2, f"{shown(x.shape)} is not a matrix")
    out = _like(x, dtype)
    return Estimate((out if out.dtype.is_floating else filled(out, lambda at: int(at[1] - at[0] == k)),))
