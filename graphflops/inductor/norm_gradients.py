"""Lowers the gradients of normalisations and softmax: sums of rows or channels, and what is computed from these."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.dims import prod
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphflops.inductor.forward import Lowered
    from graphflops.inductor.gradient_lowering import GradientLowering

_FLOAT_BYTES = 4
_OF_GROUPS = 26  # instructions for an element of the gradient of a group norm, about


def normalisation(
    back: GradientLowering, lowered: Lowered, incoming: Sequence[str], fresh: Mapping[int, str]
) -> None:
    """Two sums of each group, the gradient of the operand, and sums over all groups for weight and bias."""
    call = lowered.call
    names = call.tensors(back.values)
    statistics = lowered.beside.get("statistics")
    if statistics is not None and "group" in call.node.operator.name:
        _of_groups(back, lowered, incoming, fresh, statistics)
        return
    wide = back.forward.elements(names[0])
    normed = (*incoming[:1], *lowered.operands[:1], *([statistics] if statistics else []))
    is_batch = call.node.operator.name == "batch_norm"
    order = {"is_inner": is_batch and back.forward.is_inner(of_images=True), "in_order": False}
    added = {place: tensor for place, tensor in fresh.items() if place > 0}
    for place, tensor in added.items():
        reads = normed if place == min(1, len(names) - 1) else incoming[:1]
        back.add(lowered, "reduction", (tensor,), reads, wide, kept=back.elements(names[place]), **order)
    if 0 not in fresh:
        return
    if statistics is None:
        reads = (*incoming[:1], *lowered.operands[1:])
    else:
        reads = (*normed, *lowered.operands[1:2])
        own = is_batch and len(added) > 1
        reads = (*reads, *(added.values() if own else (_sums(back, lowered, statistics, reads, wide),)))
    back.add(lowered, "pointwise", (fresh[0],), reads, elements=wide)


def _sums(back: GradientLowering, lowered: Lowered, statistics: str, reads: Sequence[str], wide: int) -> str:
    """Append the two sums of each group that a normalisation has statistics of."""
    operator, names = lowered.call.node.operator, lowered.call.tensors(back.values)
    size = back.joint.sizes[statistics]
    sums = back.new(names[0], size)
    kept = back.joint.number(size) // (2 * _FLOAT_BYTES)
    order = {
        "is_inner": back.forward.is_inner(of_images=operator.is_of_images),
        "in_order": operator.name != "batch_norm",
    }
    back.add(lowered, "reduction", (sums,), reads, wide, kept=kept, **order)
    return sums


def _of_groups(
    back: GradientLowering,
    lowered: Lowered,
    incoming: Sequence[str],
    fresh: Mapping[int, str],
    statistics: str,
) -> None:
    """Two sums of each channel, and from these those of groups, of weight and bias; the operand's gradient in two parts."""
    names = lowered.call.tensors(back.values)
    x = back.values[names[0]]
    assert isinstance(x, TensorType)
    wide, channels = back.forward.elements(names[0]), back.joint.number(prod(x.shape[:2]))
    normed = (*incoming[:1], *lowered.operands[:1])
    sums = [back.new(names[0], prod(x.shape[:2]) * _FLOAT_BYTES) for _ in range(2)]
    is_inner = back.forward.is_inner(of_images=True)
    for tensor, reads in zip(sums, (normed, incoming[:1]), strict=True):
        back.add(lowered, "reduction", (tensor,), reads, wide, kept=channels, is_inner=is_inner)
    for place, tensor in fresh.items():
        if place > 0:
            kept = back.elements(names[place])
            read = (*sums, statistics)
            back.add(lowered, "reduction", (tensor,), read, channels, kept=kept, is_inner=False)
    if 0 not in fresh:
        return
    size = back.joint.sizes[statistics]
    whole = back.new(names[0], size)
    kept = back.joint.number(size) // (2 * _FLOAT_BYTES)
    weight = lowered.operands[1:2]
    back.add(lowered, "reduction", (whole,), (*sums, *weight), channels, kept=kept)
    part = back.new(names[0], x.numel * _FLOAT_BYTES)
    read = (*normed, statistics, *weight, whole)
    back.add(lowered, "pointwise", (part,), read, wide, instructions=_OF_GROUPS)
    back.add(lowered, "pointwise", (fresh[0],), (part, statistics, whole), wide)


def softmax(
    back: GradientLowering, lowered: Lowered, incoming: Sequence[str], fresh: Mapping[int, str]
) -> None:
    """The sum of each row of gradient times result, and the gradient."""
    statistics = lowered.beside["statistics"]
    size = back.joint.sizes[statistics]
    wide = back.forward.elements(lowered.call.tensors(back.values)[0])
    is_inner = back.forward.is_last_axis(lowered.call)
    reads = (*incoming[:1], *back.read(lowered))
    for tensor in fresh.values():
        sums = back.new(lowered.call.node.name, size)
        kept = back.joint.number(size) // (2 * _FLOAT_BYTES)
        back.add(lowered, "reduction", (sums,), reads, wide, kept=kept, is_inner=is_inner)
        back.add(lowered, "pointwise", (tensor,), (*reads, sums), elements=wide)
