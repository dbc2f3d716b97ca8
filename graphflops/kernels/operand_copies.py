"""Copies of operands that do not lie as the kernel of an operator reads them.

`matmul` computes on three axes: it merges the batch axes of each operand, and copies the operand where these do not lie
together, as after `transpose(1, 2)`, or where it is repeated for the other's batch. `linear` merges all axes but the last.
`einsum` merges those that play one part in the product. The gradients read these copies, not the operands. cuBLAS reads
matrices whose rows or columns lie together; others are copied for each product, in the forward and for gradients.

Operands of an einsum are contracted in pairs by batched matrix products. The axes of each are put in the order of the
equation's result, those that are summed last, and then merged to three: those of both operands, those of one, those that are
summed. The result lies as the last product made it (`sumproduct_pair` in aten/src/ATen/native/Linear.cpp).

Norms, softmax and pooling read their operand in row-major order, pooling also with channels last. Which of these copies
the gradients read, or make again, is what an H200 ran with PyTorch 2.11.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from graphflops.dims import Dim, dim_max, prod
from graphflops.errors import RuleError
from graphflops.execution.strides import has_channels_last, is_contiguous, regrouped, row_major, size_hint
from graphflops.graph import Ref, tensor_type
from graphflops.rules.contraction import read_equation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphflops.execution.strides import HasStrides, Strides
    from graphflops.passes.program import PricedCall
    from graphflops.tensor import DType, TensorType

_OF_ROWS = ("normalisation", "softmax", "pooling")  # kinds
_MERGING = ("linear", "matmul")
_OF_BLAS = frozenset({*_MERGING, "mm", "bmm", "addmm", "baddbmm"})
_KEEPING = frozenset({"group_norm", "native_group_norm", "instance_norm"})
_COPYING_AGAIN = frozenset({"layer_norm", "rms_norm", "max_pool", "avg_pool", "adaptive_max_pool"})
_COPYING_ONCE = frozenset({"adaptive_avg_pool"})


class Copy(NamedTuple):
    """A copy in row-major order. shape, strides: of what is read, as far as it is repeated; dtype: of what is written.

    is_kept: the gradient reads the copy. is_again: the gradient copies the operand once more.
    """

    shape: Sequence[Dim]
    strides: Strides
    dtype: DType
    is_kept: bool = False
    is_again: bool = False

    @property
    def nbytes(self) -> Dim:
        """Bytes of the copy."""
        return prod(self.shape) * self.dtype.bits // 8


def operand_copies(call: PricedCall, lie: HasStrides) -> Mapping[str, Copy]:
    """The copies that a call makes of operands, by the operand's name; none of operands that lie in order."""
    operator, names = call.node.operator, call.tensors(lie.values)
    read = {names[place] for place in call.gradient.operands} if call.gradient is not None else set[str]()
    if operator.name == "einsum":
        found = _of_einsum(call, lie, names)
    elif operator.name in _OF_BLAS:
        found = _of_product(call, lie)
    elif operator.kind in _OF_ROWS and names:
        return _of_rows(call, lie, names[0])
    else:
        return {}
    return {
        name: each._replace(is_kept=each.is_kept and name in read, is_again=each.is_again and name in read)
        for name, each in found.items()
    }


def is_converted_before(dtype: str, wanted: str) -> bool:
    """Whether a softmax to another element type converts its operand first: of float16 the kernel does it (SoftMax.cpp)."""
    return dtype not in (wanted, "float16")


def pair_results(call: PricedCall, lie: HasStrides) -> Dim:
    """Bytes of the results of pairs of an einsum that a later pair reads, and its gradients."""
    if call.node.operator.name != "einsum":
        return 0
    return einsum_of(call, lie).made * lie.typed(call.node.outputs[0] or "").dtype.bits // 8


def _of_rows(call: PricedCall, lie: HasStrides, name: str) -> Mapping[str, Copy]:
    """The copy of what is normalised or pooled."""
    operator, x, strides = call.node.operator, lie.typed(name), lie.of(name)
    if operator.kind != "softmax" and operator.name not in _KEEPING | _COPYING_AGAIN | _COPYING_ONCE:
        return {}
    out = tensor_type(call.node.outputs[0], lie.values) or x
    is_converted = operator.kind == "softmax" and is_converted_before(x.dtype.name, out.dtype.name)
    is_ordered = is_contiguous(x.shape, strides)
    if operator.kind == "pooling":  # to one position an average is a mean, which reads any strides
        is_mean = operator.name == "adaptive_avg_pool" and prod(out.shape[2:]) == 1
        is_ordered = is_ordered or is_mean or has_channels_last(x.shape, strides)
    if is_ordered and not is_converted:
        return {}
    has_gradient, dtype = call.gradient is not None, out.dtype if is_converted else x.dtype
    is_kept, is_again = operator.name in _KEEPING, operator.name in _COPYING_AGAIN
    return {name: Copy(x.shape, strides, dtype, has_gradient and is_kept, has_gradient and is_again)}


def _of_einsum(call: PricedCall, lie: HasStrides, names: Sequence[str]) -> Mapping[str, Copy]:
    found = {names[place]: lie.typed(names[place]) for place in einsum_of(call, lie).copied}
    return {name: Copy(x.shape, lie.of(name), x.dtype, is_kept=True) for name, x in found.items()}


def _of_product(call: PricedCall, lie: HasStrides) -> Mapping[str, Copy]:
    arguments, operator = call.node.arguments(), call.node.operator
    names = [ref.name if isinstance(ref := arguments.get(name), Ref) else "" for name in ("a", "b")]
    copies = {
        name: _copied(name, other, lie, is_merged=operator.name in _MERGING)
        for name, other in zip(names, reversed(names), strict=True)
        if name
    }
    return {name: found for name, found in copies.items() if found is not None}


def _copied(name: str, other: str, lie: HasStrides, *, is_merged: bool) -> Copy | None:
    """The copy of one operand; None where its axes merge without one, and rows or columns of its matrices lie together."""
    own, strides = lie.typed(name), lie.of(name)
    shape, merged = own.shape, own.shape
    if own.rank < 2:
        return None
    if is_merged and own.rank > 2:
        if (
            lie.typed(other).rank if other else 2
        ) <= 2:  # one matrix for all rows: everything but the last axis is merged
            merged = (prod(own.shape[:-1]), own.shape[-1])
        else:
            batch = _broadcast(own.shape[:-2], lie.typed(other).shape[:-2])
            shape = (*batch, *own.shape[-2:])
            merged = (prod(batch), *own.shape[-2:])
            strides = (0,) * (len(shape) - own.rank) + tuple(
                0 if size == 1 and whole != 1 else step
                for size, whole, step in zip(own.shape, shape[len(shape) - own.rank :], strides, strict=True)
            )
    as_merged = regrouped(shape, strides, merged) if merged is not shape else strides
    if as_merged is None:
        return Copy(shape, strides, own.dtype, is_kept=True)
    if not _is_read_by_blas(merged[-2:], as_merged[-2:]):
        return Copy(shape, strides, own.dtype, is_again=True)
    return None


def _is_read_by_blas(shape: Sequence[Dim], strides: Strides) -> bool:
    """Whether rows or columns of a matrix lie together, and do not overlap (`prepare_matrix_for_cublas` of ATen)."""
    (rows, columns), (row, column) = shape, strides
    across = (column == 1 or columns == 1) and (rows == 1 or size_hint(row) >= size_hint(columns))
    down = (row == 1 or rows == 1) and (columns == 1 or size_hint(column) >= size_hint(rows))
    return across or down


def _broadcast(own: Sequence[Dim], other: Sequence[Dim]) -> tuple[Dim, ...]:
    length = max(len(own), len(other))
    padded = [(1,) * (length - len(axes)) + tuple(axes) for axes in (own, other)]
    return tuple(b if a == 1 else a for a, b in zip(*padded, strict=True))


@dataclass(frozen=True, slots=True)
class Factor:
    """An operand or the result of a pair: sizes and strides by label. place: of an operand, -1 of a result."""

    sizes: Mapping[str, Dim]
    strides: Mapping[str, Dim]
    place: int

    @property
    def numel(self) -> Dim:
        return prod(self.sizes.values())

    def merges(self, groups: Sequence[Sequence[str]]) -> bool:
        """Whether the axes of each group are one axis in memory."""
        order = [label for group in groups for label in group]
        shape = [self.sizes[label] for label in order]
        merged = [prod(self.sizes[label] for label in group) for group in groups]
        return regrouped(shape, tuple(self.strides[label] for label in order), merged) is not None


@dataclass(frozen=True, slots=True)
class Pair:
    """Two factors and labels of axes: of both, of one only, of the sum. Nothing summed: one elementwise kernel multiplies.

    made: the result. copied: whether each factor is copied first. is_reduced: a factor is summed alone before.
    """

    a: Factor
    b: Factor
    both: Sequence[str]
    left: Sequence[str]
    right: Sequence[str]
    summed: Sequence[str]
    made: Factor
    copied: tuple[bool, bool]
    is_reduced: bool


@dataclass(slots=True)
class Einsum:
    """What an einsum makes beside its result, in elements.

    copied: places of the operands that are copied. made: elements of results of pairs that a later pair reads. working: the
    most elements of copies and such results at once. order: the result's axes from outermost to innermost. pairs: what is
    multiplied, in turn.
    """

    copied: set[int] = field(default_factory=set)
    made: Dim = 0
    working: Dim = 0
    order: Sequence[int] = ()
    pairs: list[Pair] = field(default_factory=list)


def einsum_of(call: PricedCall, lie: HasStrides) -> Einsum:
    """What a call of einsum makes on its way, and how its result lies."""
    arguments, names = call.node.arguments(), call.tensors(lie.values)
    path = arguments.get("path")
    return einsum_memory(
        str(arguments.get("equation")),
        [lie.typed(name) for name in names],
        [lie.of(name) for name in names],
        [place for place in path if isinstance(place, int)] if isinstance(path, tuple) else (),
    )


def einsum_memory(
    equation: str,
    tensors: Sequence[TensorType],
    strides: Sequence[Sequence[Dim]],
    path: Sequence[int],
) -> Einsum:
    """The contraction of operands that lie so. Nothing is known of an equation that cannot be read."""
    try:
        read = read_equation(equation, tuple(tensors))
    except RuleError:
        return Einsum()
    factors = [
        Factor(
            {label: size for label, size in zip(labels, x.shape, strict=True) if size != 1},
            {label: step for label, size, step in zip(labels, x.shape, own, strict=True) if size != 1},
            place,
        )
        for place, (labels, x, own) in enumerate(zip(read.inputs, tensors, strides, strict=True))
    ]
    found, kept = Einsum(), set(read.output)
    uses = Counter(label for factor in factors for label in factor.sizes)
    summed = sorted(uses.keys() - kept)
    order = [*read.output, *summed]
    steps = iter(path)
    while len(factors) > 1:
        first, second = sorted((next(steps, 0), next(steps, 1)))
        b, a = factors.pop(second), factors.pop(first)
        labels = a.sizes.keys() | b.sizes.keys()
        gone = {x for x in labels if uses[x] == (x in a.sizes) + (x in b.sizes)} - kept
        uses.subtract(a.sizes.keys() & b.sizes.keys())
        made = _pair(a, b, gone, order, found)
        found.made += made.numel if factors else 0
        factors.insert(len(factors) if path else 0, made)
    strides_of = factors[0].strides
    ranks = {label: place for place, label in enumerate(strides_of)}
    axes = range(len(read.output))
    found.order = sorted(axes, key=lambda axis: ranks.get(read.output[axis], -1))
    return found


def _pair(a: Factor, b: Factor, gone: set[str], order: Sequence[str], found: Einsum) -> Factor:
    """The product of two factors, summed along the labels `gone`; strides of the result have the outermost axis first."""
    both = [x for x in order if x in a.sizes and x in b.sizes and x not in gone]
    left = [x for x in order if x in a.sizes and x not in b.sizes and x not in gone]
    right = [x for x in order if x in b.sizes and x not in a.sizes and x not in gone]
    summed = [x for x in order if x in a.sizes and x in b.sizes and x in gone]
    sizes = {**a.sizes, **b.sizes}
    is_alone = any(x in gone and x not in summed for x in sizes)
    groups = ((both, left, summed), (both, summed, right))
    copied = [
        bool(summed) and not any(x in gone and x not in summed for x in own.sizes) and not own.merges(axes)
        for own, axes in zip((a, b), groups, strict=True)
    ]
    copies = sum((own.numel for own, is_copied in zip((a, b), copied, strict=True) if is_copied), start=0)
    found.copied.update(
        own.place for own, is_copied in zip((a, b), copied, strict=True) if is_copied and own.place >= 0
    )
    if summed and left and right and order.index(right[-1]) < order.index(left[0]) and not is_alone:
        a, b, left, right = b, a, right, left  # the operands change places, so that the result lies in order
        copied.reverse()
    axes = [*both, *left, *right] if summed else [x for x in order if x in sizes and x not in gone]
    shape = [sizes[x] for x in axes]
    before = sum(factor.numel for factor in (a, b) if factor.place < 0)
    found.working = dim_max(found.working, before + copies)
    made = Factor(dict(zip(axes, shape, strict=True)), dict(zip(axes, row_major(shape), strict=True)), -1)
    found.pairs.append(Pair(a, b, both, left, right, summed, made, (copied[0], copied[1]), is_alone))
    return made
