"""Operators that are one call to autograd, but whose kernels or gradients ATen computes by calling other operators.

`t.g` is the gradient of the result, `t.out` the result. `t.inside` runs an expression whose temporaries die before the
function returns (sources: FunctionsManual.cpp and derivatives.yaml of autograd; Distance.cpp and Linear.cpp of ATen).
"""

from collections.abc import Callable
from math import inf, pi
from typing import Any

from graphflops.dims import Dim, ceil_div, prod
from graphflops.errors import RuleError
from graphflops.execution import composed_losses
from graphflops.execution.composites import (
    GRADIENTS,
    Calls,
    Given,
    Operand,
    gradient,
    gradient_calls,
    kernel,
    kernel_calls,
)
from graphflops.execution.strides import size_hint
from graphflops.tensor import DTYPES

__all__ = ["GRADIENTS", "composed_losses", "gradient_calls", "kernel_calls"]  # with all of them registered


def _scaled(t: Calls, x: Operand, factor: float) -> Operand:
    return x if factor == 1 else t.mul(x, factor)


# Products


@gradient("addr")
def addr(t: Calls, x: Operand, vec1: Operand, vec2: Operand, beta: float = 1, alpha: float = 1) -> None:
    if x.is_wanted:
        t.inside(_scaled, t.g, beta)
    if vec1.is_wanted:
        t.inside(lambda t: _scaled(t, t.mv(t.g, vec2), alpha))
    if vec2.is_wanted:
        t.inside(lambda t: _scaled(t, t.mv(t.t(t.g), vec1), alpha))


@gradient("trace")
def trace(t: Calls, x: Operand) -> Operand:
    zeros = t.new_zeros(t.g, (x.type.numel,))
    places = t.arange(end=ceil_div(x.type.numel, x.shape[1] + 1))
    return t.call("aten.index_fill_.int_Tensor", zeros, 0, places, t.g)


def _rows(t: Calls, x: Operand) -> Operand:
    return t.view(x, (prod(x.shape[:-1]), x.shape[-1]))


def _for_features(t: Calls, weight: Operand, compute: Callable[[Calls], Operand]) -> None:
    """Repeats the calls of `compute` for each output feature (the unrolled axis of `_trilinear`)."""
    features, first = weight.shape[0], len(t.calls)
    if not isinstance(features, int):
        raise RuleError("features without a number")
    t.inside(compute)
    t.calls += t.calls[first:] * (features - 1)


@kernel("bilinear")
def bilinear(t: Calls, x1: Operand, x2: Operand, weight: Operand, bias: Given = None) -> Operand:
    a, b, of = _rows(t, x1), t.unsqueeze(_rows(t, x2), 2), t.narrow(weight, 0, 0, 1)
    out = t.new_zeros(a, (a.shape[0], weight.shape[0]))

    def column(t: Calls) -> Operand:
        product = t.transpose(t.bmm(t.unsqueeze(a, 0), of), 0, 1)
        return t.add_(t.narrow(out, 1, 0, 1), t.squeeze(t.bmm(product, b), 2))

    _for_features(t, weight, column)
    return out if bias is None else t.add(out, bias)


@gradient("bilinear")
def bilinear_backward(t: Calls, x1: Operand, x2: Operand, weight: Operand, bias: Given = None) -> None:
    a, b, of = _rows(t, x1), _rows(t, x2), t.narrow(weight, 0, 0, 1)
    column = t.narrow(_rows(t, t.g), 1, 0, 1)

    def of_first(t: Calls) -> Operand:
        product = t.bmm(t.mul(t.unsqueeze(column, 2), of), t.unsqueeze(b, 2))
        return t.add_(made, t.squeeze(product, 2))

    def of_weight(t: Calls) -> Operand:
        product = t.t(t.mul(a, column))
        return t.add_(t.narrow(made, 0, 0, 1), t.bmm(t.unsqueeze(product, 0), t.unsqueeze(b, 0)))

    def of_second(t: Calls) -> Operand:
        return t.add_(made, t.mul(t.squeeze(t.bmm(t.unsqueeze(a, 0), of), 0), column))

    for x, like, compute in ((x1, a, of_first), (weight, weight, of_weight), (x2, b, of_second)):
        if x.is_wanted:
            made = t.new_zeros(like, like.shape)
            _for_features(t, weight, compute)
    if bias is not None and bias.is_wanted:
        t.sum(_rows(t, t.g), (0,))


# Norms and distances


def _of_norm(t: Calls, g: Operand, x: Operand, p: float, norm: Operand) -> Operand:
    """`norm_backward`."""
    if p == 1:
        return t.mul(t.sgn(x), g)
    if p != 2:
        raise RuleError(str(p))
    return t.mul(g, t.inside(_ratio, x, norm))


def _ratio(t: Calls, x: Operand, norm: Operand) -> Operand:
    """A quotient; zero where the divisor is zero."""
    return t.masked_fill_(t.div(x, norm), t.eq(norm, 0), 0)


@gradient("dist")
def dist(t: Calls, x: Operand, other: Operand, p: float = 2) -> None:
    if other.is_wanted:
        t.inside(lambda t: t.neg(t.inside(_of_norm, t.g, t.sub(x, other), p, t.out)))
    if x.is_wanted:
        t.inside(lambda t: t.inside(_of_norm, t.g, t.sub(x, other), p, t.out))


@gradient("renorm")
def renorm(t: Calls, x: Operand, p: float, dim: int, maxnorm: float) -> Operand:
    axes = tuple([axis for axis in range(x.rank) if axis != dim % x.rank])
    norm = t.linalg_vector_norm(x, p, axes, True)
    product = t.inside(lambda t: t.sum(t.mul(x, t.g), axes, True))
    of_norm = t.inside(_of_norm, product, x, p, norm)
    inverse = t.inside(lambda t: t.reciprocal(t.add(norm, 1e-7)))
    of_slices = t.inside(lambda t: t.mul(t.mul(inverse, maxnorm), t.sub(t.g, t.mul(inverse, of_norm))))
    return t.where(t.gt(norm, maxnorm), of_slices, t.g)


_DIRECT = 25  # up to this number of rows, distances are computed pair by pair (Distance.cpp)


def _by_product(x1: Operand, x2: Operand, p: float, compute_mode: int | None) -> bool:
    """Whether distances are computed by a matrix product."""
    rows = max(size_hint(x.shape[-2]) for x in (x1, x2))
    return p == 2 and (compute_mode == 1 or (not compute_mode and rows > _DIRECT))


@kernel("cdist")
def cdist(t: Calls, x1: Operand, x2: Operand, p: float = 2, compute_mode: int | None = None) -> Operand:
    if not _by_product(x1, x2, p, compute_mode):
        raise RuleError("one kernel")
    return euclidean_dist(t, x1, x2)


@kernel("_euclidean_dist")
def euclidean_dist(t: Calls, x1: Operand, x2: Operand) -> Operand:
    norms = [t.inside(lambda t, x: t.sum(t.pow(x, 2), (-1,), True), x) for x in (x1, x2)]
    ones = [t.ones_like(norm) for norm in norms]
    left = t.inside(lambda t: t.cat((t.mul(x1, -2), norms[0], ones[0]), -1))
    right = t.cat((x2, ones[1], norms[1]), -1)
    return t.sqrt_(t.clamp_min_(t.matmul(left, t.transpose(right, -2, -1)), 0))


@gradient("_euclidean_dist")
def euclidean_dist_backward(t: Calls, x1: Operand, x2: Operand) -> None:
    """Both gradients, even if only one is wanted: ATen computes them in one expression."""
    ratio = t.inside(_ratio, t.g, t.out)
    for x, other, each, axis in ((x1, x2, ratio, -1), (x2, x1, t.transpose(ratio, -2, -1), -2)):
        t.sub(t.mul(x, t.unsqueeze(t.sum(ratio, (axis,)), -1)), t.matmul(each, other))


@gradient("cdist", "_cdist_forward")
def cdist_backward(t: Calls, x1: Operand, x2: Operand, p: float = 2, compute_mode: int | None = None) -> None:
    """Each pair's share is written to a buffer and summed (DistanceKernel.cu); x2 gets it from transposed distances."""
    if _by_product(x1, x2, p, compute_mode) and t.of.node.operator.word == "cdist":
        euclidean_dist_backward(t, x1, x2)
        return
    for x, other in ((x1, x2), (x2, x1)):
        if x.is_wanted:
            if x is x2:
                t.g, t.out = (t.clone(t.transpose(each, -2, -1)) for each in (t.g, t.out))
            t.inside(
                lambda t, x, other: t.sum(t.sub(t.unsqueeze(x, -2), t.unsqueeze(other, -3)), (-2,)), x, other
            )


# Elementwise

gradient("nan_to_num")(
    lambda t, x, *numbers: t.mul(t.g, t.inside(lambda t: t.mul(t.ne(t.abs(x), inf), t.eq(x, x))))
)


@gradient("atan2")
def atan2(t: Calls, x: Operand, other: Operand) -> None:
    squares = t.inside(lambda t: t.add(t.mul(x, x), t.mul(other, other)))
    inverse = t.inside(lambda t: t.masked_fill(t.reciprocal(squares), t.eq(squares, 0), 0))
    if x.is_wanted:
        t.mul(t.mul(t.g, other), inverse)
    if other.is_wanted:
        t.mul(t.g, t.mul(t.neg(x), inverse))


@gradient("copysign")
def copysign(t: Calls, x: Operand, other: Operand | float) -> None:
    if isinstance(other, Operand) and other.is_wanted:
        t.zeros_like(other)
    if x.is_wanted:
        t.mul(t.g, t.inside(_ratio, t.out, x))


@gradient("polar")
def polar(t: Calls, absolute: Operand, angle: Operand) -> None:
    """Real parts of products with the conjugated gradient, which each product computes again."""
    t.inside(lambda t: t.mul(t.sgn(t.out), t.clone(t.g)))
    t.mul(t.mul(t.out, 1.0), t.clone(t.g))


@gradient("sinc")
def sinc(t: Calls, x: Operand) -> Operand:
    angle = t.mul(x, pi)
    square = t.inside(lambda t: t.mul(t.mul(x, x), pi))
    slope = t.inside(lambda t: t.mul(t.g, t.div(t.sub(t.mul(angle, t.cos(angle)), t.sin(angle)), square)))
    return t.where(t.eq(square, 0), t.full((), 0.0), slope)


# Parts


_VIEWS = {
    "slice_scatter": "slice.Tensor",
    "select_scatter": "select.int",
    "diagonal_scatter": "diagonal.default",
}


@kernel(*_VIEWS)
def part_scatter(t: Calls, x: Operand, source: Operand, *where: Any) -> Operand:
    whole = t.clone(x)
    t.copy_(t.call(f"aten.{_VIEWS[t.of.node.operator.word]}", whole, *where), source)
    return whole


@gradient(*_VIEWS)
def part_scatter_backward(t: Calls, x: Operand, source: Operand, *where: Any) -> None:
    """The gradient of x has zeros in place of the part; the gradient of the part is a view."""
    if x.is_wanted:
        t.inside(part_scatter, t.g, t.new_zeros(t.g, source.shape), *where)


@kernel("roll")
def roll(t: Calls, x: Operand, shifts: tuple[Dim, ...], dims: tuple[int, ...] = ()) -> Operand:
    """Axes are rolled one after another, and all results are held until the last (`roll_common`)."""
    if len(dims) < 2:
        raise RuleError("one kernel")
    for where in zip(shifts, dims, strict=True):
        x = t.call("aten.roll.default", x, *[(each,) for each in where])
    return x


gradient("roll")(lambda t, x, *where: roll(t, t.g, *where))


# Reductions

kernel("count_nonzero")(lambda t, x, dim=None: t.sum(t.ne(x, 0), (dim,) if isinstance(dim, int) else dim))


@kernel("index_put", "index_put_", "_unsafe_index_put", "_index_put_impl_")
def filled(t: Calls, x: Operand, indices: tuple[Given, ...], number: Operand, *how: bool) -> Operand:
    """A boolean mask and one number: ATen fills instead of writing by index (`canDispatchToMaskedFill`)."""
    masks = [(place, index) for place, index in enumerate(indices) if index is not None]
    is_mask = len(masks) == 1 and masks[0][1].type.dtype.name == "bool"
    if not is_mask or number.rank or number.is_wanted or any(how):
        raise RuleError("elements are looked up")
    ((place, mask),) = masks
    after = (1,) * (x.rank - place - mask.rank)
    own = x if t.of.node.operator.mutates else t.clone(x)
    return t.masked_fill_(own, t.view(mask, (*(1,) * place, *mask.shape, *after)), 0)


@kernel("index")
def long_indices(t: Calls, x: Operand, indices: tuple[Given, ...]) -> Operand:
    """int32 indices are first converted to int64 (`make_info` in TensorAdvancedIndexing.cpp)."""
    if all(index is None or index.type.dtype.name != "int32" for index in indices):
        raise RuleError("indices are read as they are")
    longer = [index and t._to_copy(index, dtype=DTYPES["int64"]) for index in indices]
    return t.call("aten.index.Tensor", x, tuple(longer))


@gradient("index_put", "index_put_")
def filled_backward(t: Calls, x: Operand, *where: Any) -> None:
    filled(t, t.clone(t.g), *where)


@kernel("logsumexp")
def logsumexp(t: Calls, x: Operand, dim: int | tuple[int, ...], keepdim: bool = False) -> Operand:
    most = t.amax(x, dim, True)
    t.inside(lambda t: t.masked_fill_(most, t.eq(t.abs(most), inf), 0))
    summed = t.sum(t.inside(lambda t: t.exp_(t.sub(x, most))), dim, keepdim)
    return t.add_(t.log_(summed), most if keepdim else t.squeeze(most, dim))


@kernel("_safe_softmax")
def safe_softmax(t: Calls, x: Operand, dim: int, dtype: Any = None) -> Operand:
    """Rows that are all -inf, whose softmax is NaN, are found and set to 0."""
    return t.masked_fill_(t.softmax(x, dim), t.inside(lambda t: t.all(t.eq(x, -inf), dim, True)), 0)


@gradient("logcumsumexp")
def logcumsumexp(t: Calls, x: Operand, dim: int) -> Operand:
    def backwards(t: Calls, x: Operand) -> Operand:
        return t.flip(t.logcumsumexp(t.flip(x, dims=(dim,)), dim), dims=(dim,))

    def of_sign(t: Calls, logarithm: Operand) -> Operand:
        return t.exp(t.add(t.inside(backwards, t.sub(logarithm, t.out)), x))

    lowest = t.full((), -inf)
    size = t.inside(lambda t: t.log(t.abs(t.g)))
    signs = [t.inside(lambda t, sign: t.where(sign(t.g, 0), size, lowest), each) for each in (t.gt, t.lt)]
    return t.sub(*[t.inside(of_sign, sign) for sign in signs])


@gradient("aminmax")
def aminmax(t: Calls, x: Operand, dim: int | None = None, keepdim: bool = False) -> Operand:
    axes = tuple(range(x.rank)) if dim is None else (dim % x.rank,)

    def of_extreme(t: Calls, g: Operand, extreme: Operand) -> Operand:
        mask = t.eq(x, extreme)
        return t.div(t.mul(g, mask), t.sum(mask, axes, True))

    shape = tuple([1 if axis in axes else size for axis, size in enumerate(x.shape)])
    pairs = zip(t.gradients, t.results, strict=True)
    return t.add(*[t.inside(of_extreme, t.view(g, shape), t.view(extreme, shape)) for g, extreme in pairs])


# Reductions by index: each element's share of the gradient, computed for both operands


class _Places:
    """Reads from, adds to and reduces at the places of an index along an axis; `again` is the operator itself."""

    def __init__(self, t: Calls, axis: int, places: Operand) -> None:
        self.is_index = t.of.node.operator.word == "index_reduce"  # else `scatter_reduce`
        take, add = ("index_select", "index_add") if self.is_index else ("gather", "scatter_add")

        def at(op: str) -> Callable[..., Operand]:
            return lambda x, *source: t.call(op, x, axis, places, *source)

        self.taken, self.added, self.again = at(f"aten.{take}"), at(f"aten.{add}"), at(t.of.node.op)


@gradient("index_reduce", "scatter_reduce.two")
def index_reduce(
    t: Calls, x: Operand, dim: int, index: Operand, source: Operand, reduce: str, include_self: bool = True
) -> None:
    if reduce == "sum" or not include_self:
        raise RuleError("one kernel for each operand")
    of_each = _of_mean if reduce == "mean" else _of_product if reduce == "prod" else _of_extreme
    of_each(t, _Places(t, dim, index), x, source)


def _of_mean(t: Calls, at: _Places, x: Operand, source: Operand) -> None:
    counts = t.inside(lambda t: at.added(t.ones_like(t.g), t.ones_like(source)))
    t.inside(lambda t: t.masked_fill_(counts, t.eq(counts, 0), 1))
    t.div(t.g, counts)
    of_source = at.taken(counts)
    t.div(at.taken(t.g), of_source)


def _of_extreme(t: Calls, at: _Places, x: Operand, source: Operand) -> None:
    pairs = ((x, t.out), (source, at.taken(t.out)))
    own, others = [
        t.inside(lambda t, a, b: t.call("aten.to.dtype", t.eq(a, b), a.type.dtype), *pair) for pair in pairs
    ]
    shares = t.div(t.g, at.added(own, others))
    for of, each, pair in ((own, shares, pairs[0]), (others, at.taken(shares), pairs[1])):
        # `scatter_reduce` compares again
        t.inside(lambda t, of, each, pair: t.mul(of if at.is_index else t.eq(*pair), each), of, each, pair)


def _of_product(t: Calls, at: _Places, x: Operand, source: Operand) -> None:
    of_ones = t.inside(lambda t: t.masked_fill(x, t.eq(x, 0), 1))
    whole = at.again(of_ones, source, "prod")
    t.inside(lambda t: t.div(t.mul(t.g, whole), of_ones))
    zeros = t.eq(source, 0)
    places = t.call("aten.to.dtype", zeros, x.type.dtype)
    count = t.inside(lambda t: at.taken(at.added(t.zeros_like(x), places)))
    single = t.inside(lambda t: t.bitwise_and(zeros, t.eq(count, 1)))
    of_single = t.inside(lambda t: at.again(x, t.masked_fill(source, single, 1), "prod"))
    others = t.masked_fill(source, zeros, 1)
    t.where(single, at.taken(t.mul(t.g, of_single)), t.div(at.taken(t.mul(t.g, t.out)), others))
