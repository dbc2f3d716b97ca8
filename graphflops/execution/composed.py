"""ATen's functions that call other ATen functions, by name: distances, products, norms, Fourier transforms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from functools import cached_property
from math import inf
from typing import Any, Union

from graphflops.base.record import Record
from graphflops.dims import Dim, broadcast, floor_div, prod, same
from graphflops.errors import RuleError
from graphflops.execution.composites import Calls, Given, Operand, composite, gradient, kernel
from graphflops.rules.elementwise import complex_of
from graphflops.rules.shapes import axes
from graphflops.tensor import BOOL, FLOAT16, FLOAT32, FLOAT64, DType

__all__ = ["pairwise_distance"]  # others are found by their names

Axes = tuple[int, ...]
Sizes = Union[Dim, tuple[Dim, ...], None]


# Distances (Distance.cpp)


@composite("cosine_similarity")
def cosine_similarity(t: Calls, x1: Operand, x2: Operand, dim: int = 1, eps: float = 1e-8) -> Operand:
    """Quotients by the norms, and the sum of their products; the norms are clamped in place, unseen by autograd."""
    wide = broadcast(x1.shape, x2.shape)
    x1, x2 = (x if x.shape == wide else t.expand(x, wide) for x in (x1, x2))
    norms = [t.clone(t.linalg_vector_norm(x, 2, (dim,), True)) for x in (x1, x2)]
    least = t.full((), eps)
    for norm in norms:
        t.clamp_min_(norm.without_gradient(), least)
    return t.sum(t.mul(t.div(x1, norms[0]), t.div(x2, norms[1])), (dim,))


@composite("pairwise_distance")
def pairwise_distance(
    t: Calls, x1: Operand, x2: Operand, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Operand:
    """The norm of a difference."""
    return t.linalg_vector_norm(t.add(t.sub(x1, x2), eps), p, (-1,), keepdim)


composite("norm.Scalar", "norm.ScalarOpt_dim")(
    lambda t, x, p=2, dim=None, keepdim=False: t.linalg_vector_norm(x, 2 if p is None else p, dim, keepdim)
)
composite("frobenius_norm.dim")(lambda t, x, dim=None, *options: t.linalg_vector_norm(x, 2, dim, *options))


@composite("linalg_norm.default")
def linalg_norm(
    t: Calls, x: Operand, p: float | None = None, dim: Any = None, keepdim: bool = False
) -> Operand:
    if p is not None and len(axes(dim, x.rank)) == 2:
        raise RuleError("the norm of a matrix is another function")
    return t.linalg_vector_norm(x, 2 if p is None else p, dim, keepdim)


# Cells (RNN.cpp); those with gates have a kernel of their own on a GPU


@composite("rnn_tanh_cell", "rnn_relu_cell")
def rnn_cell(t: Calls, x: Operand, hx: Operand, w_ih: Operand, w_hh: Operand, *biases: Operand) -> Operand:
    of_x, of_hidden = biases or (None, None)
    hidden = t.add_(t.linear(hx, w_hh, of_hidden), t.linear(x, w_ih, of_x))
    return t.tanh(hidden) if t.of.node.operator.word == "rnn_tanh_cell" else t.relu(hidden)


# Products (LinearAlgebra.cpp)


composite("outer", "ger")(lambda t, a, b: t.mul(t.view(a, (*a.shape, 1)), b))


@composite("kron")
def kron(t: Calls, a: Operand, b: Operand) -> Operand:
    rank = max(a.rank, b.rank)
    pairs = [*zip(*((1,) * (rank - x.rank) + x.shape for x in (a, b)), strict=True)]
    columns = tuple([size for own, _ in pairs for size in (own, 1)])
    rows = tuple([size for _, own in pairs for size in (1, own)])
    return t.view(t.mul(t.reshape(a, columns), t.reshape(b, rows)), tuple([m * n for m, n in pairs]))


@composite("einsum")
def einsum(t: Calls, equation: str, tensors: tuple[Operand, ...], path: Axes | None = None) -> Operand:
    """Products of pairs, left to right or along a path; a label is summed as soon as one factor alone has it."""
    from graphflops.rules.contraction import read_equation  # no other program needs it

    read = read_equation(equation, tuple([x.type for x in tensors]))
    if any(len(set(labels)) < len(labels) for labels in read.inputs):
        raise RuleError(equation)  # diagonals
    uses = Counter(label for labels in read.inputs for label in labels)
    order = [*read.output, *sorted(uses.keys() - set(read.output))]
    factors = [_Factor(x, labels).permuted(t, order) for x, labels in zip(tensors, read.inputs, strict=True)]
    steps = iter(path or ())
    while len(factors) > 1:
        first, second = sorted((next(steps, 0), next(steps, 1)))
        b, a = factors.pop(second), factors.pop(first)
        uses.subtract(set(a.labels) & set(b.labels))
        gone = {x for x in (*a.labels, *b.labels) if uses[x] == 1 and x not in read.output}
        factors.insert(len(factors) if path else 0, _pair(t, a, b, gone, order))
    return factors[0].summed(t, set(factors[0].labels) - set(read.output)).permuted(t, read.output).tensor


class _Factor(Record, frozen=True, dict=True):
    """A tensor with labels for its axes."""

    tensor: Operand
    labels: Sequence[str]

    @cached_property
    def sizes(self) -> dict[str, Dim]:
        """The size of each labelled axis, without axes of size 1."""
        return {x: size for x, size in zip(self.labels, self.tensor.shape, strict=True) if size != 1}

    def permuted(self, t: Calls, order: Sequence[str]) -> _Factor:
        """The factor with its axes in the order of these labels."""
        labels = [label for label in order if label in self.labels]
        return _Factor(t.permute(self.tensor, tuple([self.labels.index(label) for label in labels])), labels)

    def summed(self, t: Calls, labels: Collection[str]) -> _Factor:
        axes = tuple([axis for axis, label in enumerate(self.labels) if label in labels])
        left = [label for label in self.labels if label not in labels]
        return _Factor(t.sum(self.tensor, axes), left) if axes else self

    def dropped(self, t: Calls, labels: Collection[str]) -> _Factor:
        """The factor without those of these axes that have size 1."""
        left = [label for label in self.labels if label not in labels or label in self.sizes]
        if left == self.labels:
            return self
        return _Factor(t.view(self.tensor, tuple([self.sizes.get(label, 1) for label in left])), left)

    def ordered(self, t: Calls, groups: Sequence[Sequence[str]]) -> Operand:
        """The tensor with one axis for each group of labels, of size 1 where it has none of them; all others have size 1."""
        sizes = self.sizes
        named = [label for group in groups for label in group]
        ordered = self.permuted(t, [*named, *(label for label in self.labels if label not in named)]).tensor
        return t.reshape(ordered, tuple([prod(sizes.get(label, 1) for label in group) for group in groups]))


def _pair(t: Calls, a: _Factor, b: _Factor, gone: set[str], order: Sequence[str]) -> _Factor:
    """The product of two factors, summed along the labels `gone` (`sumproduct_pair`)."""
    both = [x for x in order if x in a.labels or x in b.labels]
    summed = [x for x in both if x in gone and x in a.sizes and x in b.sizes]
    a, b = (each.dropped(t, gone).summed(t, gone - set(summed)) for each in (a, b))
    kept = [x for x in both if x not in gone]
    if not summed:
        return _Factor(t.mul(a.ordered(t, [[x] for x in kept]), b.ordered(t, [[x] for x in kept])), kept)
    shared = [x for x in kept if x in a.sizes and x in b.sizes]
    left = [x for x in kept if x not in shared and x in a.sizes]
    right = [x for x in kept if x not in a.sizes]
    if left and right and order.index(right[-1]) < order.index(left[0]):
        a, b, left, right = b, a, right, left  # so that the axes of the result are in order
    product = t.bmm(a.ordered(t, (shared, left, summed)), b.ordered(t, (shared, summed, right)))
    sizes, labels = a.sizes | b.sizes, [*shared, *left, *right]
    return _Factor(t.view(product, tuple([sizes.get(x, 1) for x in labels])), labels)


@composite("matmul", "MatMul")
def matmul(t: Calls, a: Operand, b: Operand) -> Operand:
    """A matrix that wants a gradient, times a batch of matrices: one product of all rows, with transposes around it.

    Batches that differ are expanded to one, whose matrices are in three axes.
    """
    if min(a.rank, b.rank) > 2 and a.shape[:-2] != b.shape[:-2]:
        whole = broadcast(a.shape[:-2], b.shape[:-2])
        wide = [t.expand(x, (*whole, *x.shape[-2:])) for x in (a, b)]
        product = t.bmm(*[t.reshape(x, (prod(whole), *x.shape[-2:])) for x in wide])
        return t.view(product, (*whole, a.shape[-2], b.shape[-1]))
    if a.rank != 2 or b.rank <= 2 or not a.is_wanted:
        raise RuleError("this is one product")
    (*batch, _, columns), (rows, inner) = b.shape, a.shape
    folded = t.reshape(t.transpose(b, -1, -2), (prod((*batch, columns)), inner))
    product = t.view(t.mm(folded, t.t(a)), (*batch, columns, rows))
    return t.contiguous(t.transpose(product, -1, -2))


@composite("inner")
def inner(t: Calls, a: Operand, b: Operand) -> Operand:
    if not a.rank or not b.rank:
        return t.mul(a, b)
    if a.rank == b.rank == 1:
        return t.dot(a, b)
    one, other = [t.reshape(x, (prod(x.shape[:-1]), x.shape[-1])) for x in (a, b)]
    return t.view(t.mm(one, t.t(other)), (*a.shape[:-1], *b.shape[:-1]))


# Powers, sorts, means and dropout, as calls that autograd sees


@composite("float_power")
def float_power(t: Calls, base: Operand | float, exponent: Operand | float) -> Operand:
    """A power in float64."""
    pair = [t.call("aten.to.dtype", x, FLOAT64) if isinstance(x, Operand) else x for x in (base, exponent)]
    kinds = "_".join("Tensor" if isinstance(each, Operand) else "Scalar" for each in pair)
    return t.call("aten.pow.Scalar" if kinds == "Scalar_Tensor" else f"aten.pow.{kinds}", *pair)


@composite("softmax.int", "log_softmax.int")
def softmax(t: Calls, x: Operand, dim: int, dtype: Any = None) -> Operand:
    """One of another element type converts its operand first, but for float16, which its kernel converts (SoftMax.cpp)."""
    if x.type.dtype in (t.out.type.dtype, FLOAT16):
        raise RuleError("this is one kernel")
    return t.call(t.of.node.op, t.call("aten.to.dtype", x, t.out.type.dtype), dim)


composite("msort")(lambda t, x: t.sort(x, dim=0))


@composite("nanmean")
def nanmean(t: Calls, x: Operand, dim: Axes | None = None, keepdim: bool = False) -> Operand:
    count = t.inside(lambda t: t.sum(t.logical_not_(t.ne(x, x)), dim, keepdim))
    return t.div(t.nansum(x, dim, keepdim), count)


@composite("take_along_dim")
def take_along_dim(t: Calls, x: Operand, indices: Operand, dim: int | None = None) -> Operand:
    if dim is None:
        return t.gather(t.view(x, (x.type.numel,)), 0, t.view(indices, (indices.type.numel,)))
    axis = dim % x.rank

    def repeated(one: Operand, other: Operand) -> Operand:
        shape = (*other.shape[:axis], one.shape[axis], *other.shape[axis + 1 :])
        return t.expand(one, broadcast(one.shape, shape))

    return t.gather(repeated(x, indices), dim, t.remainder(repeated(indices, x), x.shape[axis]))


@composite("alpha_dropout", "feature_alpha_dropout")
def alpha_dropout(t: Calls, x: Operand, p: float, train: bool) -> Operand:
    """A random mask and the shift that it adds; for features, one random number per channel."""
    if not train:
        raise RuleError("nothing is dropped")
    is_of_features = t.of.node.operator.word == "feature_alpha_dropout"
    shape = (*x.shape[:2], *[1] * (x.rank - 2)) if is_of_features else x.shape
    noise = t.inside(lambda t: t.call("aten.bernoulli.p", t.new_empty(x, shape), 1 - p))
    shift = t.add_(t.mul_(t.add(noise, -1), 1.0), p)
    return t.add_(t.mul(x, t.mul_(noise, 1.0)), shift)


# Attention without a kernel of its own (`_scaled_dot_product_attention_math` of attention.cpp)


@composite("scaled_dot_product_attention")
def unfused_attention(t: Calls, query: Operand, key: Operand, value: Operand, *_: Any, **__: Any) -> Operand:
    """Two products with a softmax between them, in float32; the scores are written to memory."""
    dtype, given, mask = query.type.dtype, t.arguments, t.arguments.get("mask")
    if mask is not None and mask.type.dtype == BOOL:
        mask = t.inside(_numbers, mask, dtype)
    if is_half := dtype.bits < FLOAT32.bits:
        query, key, value = (t.call("aten.to.dtype", x, FLOAT32) for x in (query, key, value))
    query = t.mul(query, 1.0)
    if query.rank > 2 and query.shape[-3] != key.shape[-3]:  # for each head of the query
        repeats = floor_div(query.shape[-3], key.shape[-3])
        key, value = (t.inside(repeat_interleave, x, repeats, -3) for x in (key, value))
    if given.get("is_causal") is True:
        mask = t.inside(_numbers, None, query.type.dtype, (query.shape[-2], key.shape[-2]))

    def weights(t: Calls) -> Operand:
        scores = t.inside(lambda t: t.matmul(query, t.mul(t.transpose(key, -2, -1), 1.0)))
        return t._safe_softmax(scores if mask is None else t.add_(scores, mask), -1)

    dropped = given.get("dropout_p")
    found = t.inside(lambda t: t.dropout(t.inside(weights), dropped, True) if dropped else weights(t))
    if not is_half:
        return t.matmul(found, value)
    t.call("aten.to.dtype", found, dtype)  # its result is never read
    return t.call("aten.to.dtype", t.matmul(found, value), dtype)


def _numbers(t: Calls, mask: Given, dtype: DType, causal: tuple[Dim, ...] = ()) -> Operand:
    """A boolean mask as numbers to add. causal: the shape of the causal mask to build where `mask` is None."""
    mask = mask or t.tril(t.call("aten.ones.default", causal, dtype=BOOL))
    return t.where(mask, t.full((), 0.0, dtype=dtype), t.full((), -inf, dtype=dtype))


# Norms (Normalization.cpp)


@composite("instance_norm")
def instance_norm(
    t: Calls, x: Operand, weight: Given, bias: Given, running_mean: Given, running_var: Given, *options: Any
) -> Operand:
    """A batch norm of one image with the channels of all images; the parameters are repeated for each image."""
    images = x.shape[0]
    given = (weight, bias, running_mean, running_var)
    repeated = [None if each is None else t.repeat(each, (images,)) for each in given]
    joined = t.view(t.contiguous(x), (1, images * x.shape[1], *x.shape[2:]))
    out = t.call("aten.batch_norm.default", joined, *repeated, *options)
    for own, each in zip(given[2:], repeated[2:], strict=True):
        if own is not None and options[0]:
            t.copy_(own, t.mean(t.view(each, (images, *own.shape)), (0,)))
    return t.view(out, x.shape)


# Choices and repeats

composite("where.ScalarOther", "where.ScalarSelf", "where.Scalar")(
    lambda t, condition, *choices: t.where(
        condition, *[x if isinstance(x, Operand) else t.full((), x) for x in choices]
    )
)
composite("tile")(lambda t, x, dims: t.repeat(x, (1,) * (x.rank - len(dims)) + dims))
composite("hstack")(lambda t, tensors: t.cat(tensors, 0 if tensors[0].rank == 1 else 1))
composite("vstack")(
    lambda t, tensors: t.cat(tuple([t.unsqueeze(x, 0) if x.rank == 1 else x for x in tensors]), 0)
)


@composite("repeat_interleave.self_int")
def repeat_interleave(t: Calls, x: Operand, repeats: int, dim: int | None = None, **_: Any) -> Operand:
    """Repeats along a new axis, which is copied and merged."""
    if dim is None:
        x, dim = t.reshape(x, (x.type.numel,)), 0
    axis = dim % x.rank + 1
    wide = (*x.shape[:axis], repeats, *x.shape[axis:])
    copied = t.clone if repeats == 1 else t.contiguous  # one repeat is a copy too
    copy = copied(t.expand(t.unsqueeze(x, axis), wide))
    return t.flatten(copy, axis - 1, axis)


# Fourier transforms (SpectralOps.cpp): pad the operand, call cuFFT, scale the result

_TRANSFORMS = [
    f"fft_{inverse}{real}fft{rank}" for inverse in ("", "i") for real in ("", "r") for rank in ("", "2", "n")
]
# The axes by default, by the last letter of the operator.
_LAST_AXES = {"t": (-1,), "2": (-2, -1)}


@composite(*_TRANSFORMS)
def transformed(
    t: Calls, x: Operand, sizes: Sizes = None, dim: int | Axes | None = None, norm: str | None = None
) -> Operand:
    """One transform of the operand, which is cut or padded to the sizes along the axes."""
    word = t.of.node.operator.word
    is_inverse, is_real = word.startswith("fft_i"), "rfft" in word
    wanted = sizes if sizes is None or isinstance(sizes, tuple) else (sizes,)
    meant = _LAST_AXES.get(word[-1], tuple(range(-len(wanted), 0)) if wanted else None)
    places = axes(meant if dim is None else dim, x.rank)
    scaled = 1 if norm == "ortho" else 2 * ((norm in (None, "backward")) == is_inverse)  # by a root, or whole
    whole = wanted[-1] if wanted else 2 * (x.shape[places[-1]] - 1)
    if is_real and is_inverse and wanted:
        wanted = (*wanted[:-1], whole // 2 + 1)
    if not is_real and word[-1] != "t" and x.type.dtype.kind != "complex":
        x = t._to_copy(x, dtype=complex_of(x.type.dtype))
    for place, size in zip(places, wanted or (), strict=False):
        before = x.shape[place]
        if same(size, -1) or same(size, before):  # -1 leaves the axis
            continue
        if not isinstance(size, int) or not isinstance(before, int):
            raise RuleError(str(size))
        padding = (*(0, 0) * (x.rank - 1 - place), 0, size - before)
        x = t.slice(x, place, 0, size) if size < before else t.constant_pad_nd(x, padding)
    if is_real and is_inverse:
        return t.call("aten._fft_c2r.default", x, places, scaled, whole)
    if x.type.dtype.kind == "complex":
        return t.call("aten._fft_c2c.default", x, places, scaled, not is_inverse)
    return t.call("aten._fft_r2c.default", x, places, scaled, is_real)


@kernel("_fft_c2c", "_fft_r2c", "_fft_c2r")
def transform_kernels(t: Calls, x: Operand, dim: Axes, scaled: int, how: Any) -> None:
    """The transform of cuFFT. One with a real result may overwrite its operand, so it gets a copy.

    how: whether it goes forward; of real operands, whether it is one-sided; of real results, the size of the last axis.
    """
    word = t.of.node.operator.word
    if word == "_fft_c2r":
        made = t.call("prims.fft_c2r.default", t.clone(x), dim, last_dim_size=how)
    else:
        made = t.call(f"prims.{word.removeprefix('_')}.default", x, dim, how)
    if scaled:
        t.mul_(made, 1.0)


gradient("_fft_c2c")(  # the transform in the other direction
    lambda t, x, dim, scaled, forward: t.call("aten._fft_c2c.default", t.g, dim, scaled, not forward)
)


@gradient("_fft_r2c")
def real_gradient(t: Calls, x: Operand, dim: Axes, scaled: int, onesided: bool) -> None:
    """The inverse transform of all frequencies; those that a one-sided result leaves out are zeros."""
    g, last = t.g, axes(dim, x.rank)[-1]
    if onesided:
        g = t.new_zeros(t.g, x.shape)
        t.copy_(t.slice(g, last, 0, t.g.shape[last]), t.g)
    t.view_as_real(t.call("aten._fft_c2c.default", g, dim, scaled, False))


@gradient("_fft_c2r")
def inverse_gradient(t: Calls, x: Operand, dim: Axes, scaled: int, size: Dim) -> None:
    """The transform of the gradient; frequencies that stand for two are doubled."""
    made, last = t.call("aten._fft_r2c.default", t.g, dim, scaled, True), axes(dim, x.rank)[-1]
    t.mul_(t.slice(made, last, 1, size - made.shape[last] + 1), 2)
