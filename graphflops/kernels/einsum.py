"""What torch.einsum makes on its way: copies of operands, results of pairs, and how the result lies.

Operands are contracted in pairs by batched matrix products. The axes of each are put in the order of the equation's result,
those that are summed last, and then merged to three: those of both operands, those of one, those that are summed. An operand
whose axes do not merge is copied, and the gradients read the copy. The result lies as the last product made it
(`sumproduct_pair` in aten/src/ATen/native/Linear.cpp).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from graphflops.dims import Dim, dim_max, prod
from graphflops.errors import RuleError
from graphflops.execution.strides import regrouped, row_major
from graphflops.rules.contraction import read_equation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphflops.execution.strides import HasStrides
    from graphflops.passes.program import PricedCall
    from graphflops.tensor import TensorType


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
