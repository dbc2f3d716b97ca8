"""Lowers normalisations and softmax, and their gradients: sums of rows or channels, and what is computed from these."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.dims import Dim, prod
from graphflops.inductor.layout_choice import aligned_bytes
from graphflops.inductor.lowering import FLOAT_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.inductor.lowering import GradientLowering, Lowered, Lowering
    from graphflops.passes.program import PricedCall

_OF_GROUPS = 26  # instructions for an element of the gradient of a group norm, about


def _statistics(low: Lowering, of: Lowered, rows: Dim, *, is_inner: bool) -> str:
    """Append the reduction that a normalisation or softmax starts with: its tensor of statistics, two of each row."""
    operator = of.call.node.operator
    name = low.save(of, "statistics", f"{of.call.node.name} statistics")
    space, size = max(map(low.elements, of.names)), 2 * FLOAT_BYTES * rows
    order = {"is_inner": is_inner, "in_order": operator.name != "batch_norm"}
    order["of_moments"] = operator.kind == "normalisation"
    low.add(of, "reduction", {name: size}, of.operands[:1], space, kept=low.joint.number(rows), **order)
    return name


def normalisation(low: Lowering, of: Lowered) -> None:
    """Moments, and then the result; with stored moments the result alone."""
    operator, arguments = of.call.node.operator, of.call.node.arguments()
    out, *moments = of.made
    normed = {out: _normed_bytes(low, out)}
    if operator.name == "batch_norm" and arguments.get("training") is not True:
        low.add(of, "pointwise", normed, of.operands)
        return
    shape, given, groups = low.typed(of.names[0]).shape, arguments.get("shape"), arguments.get("groups")
    if operator.name == "batch_norm":
        rows: Dim = shape[1]
    elif isinstance(groups, int):
        rows = shape[0] * groups
    else:
        rows = prod(shape[: -len(given)] if isinstance(given, tuple) and given else shape[:-1])
    is_inner = low.is_inner(of_images=operator.is_of_images or "group" in operator.name)
    statistics = _statistics(low, of, rows, is_inner=is_inner)
    low.add(of, "pointwise", normed, (*of.operands, statistics))
    for name in moments:  # that the call itself returns
        low.add(of, "pointwise", (name,), (statistics,))


def _normed_bytes(low: Lowering, name: str) -> Dim:
    """Bytes of a normalised result: in float32 if all its readers compute in float32 and read it more than once."""
    value, readers = low.typed(name), low.readers.get(name, [])
    is_activated = bool(readers) and all(reader.node.operator.is_gate for reader in readers)
    return value.numel * FLOAT_BYTES if is_activated else value.nbytes


def softmax(low: Lowering, of: Lowered) -> None:
    """The maximum and the sum of each row, and then the result; of a loss a sum over the rows."""
    x = low.typed(of.names[0])
    axis, space = axis_of(of.call, x.rank), low.joint.number(prod(x.shape))
    width = 1 if axis is None else x.shape[axis]
    rows = x.numel // width if width != 0 else 0
    statistics = _statistics(low, of, rows, is_inner=axis == x.rank - 1)
    if of.call.node.operator.kind == "loss":
        low.add(of, "reduction", of.made, (*of.operands, statistics), space, kept=1)
    else:
        out = low.typed(of.made[0])
        size = aligned_bytes(out.shape, out.dtype.bits) or out.nbytes
        low.add(of, "pointwise", {of.made[0]: size}, (*of.operands[:1], statistics), space)


def axis_of(call: PricedCall, rank: int) -> int | None:
    """The axis of the rows of a softmax, scan or loss."""
    axis = call.node.arguments().get("axis", 1 if call.node.operator.kind == "loss" else -1)
    return axis % rank if isinstance(axis, int) and -rank <= axis < rank else None


def normalisation_gradient(back: GradientLowering, of: Lowered) -> None:
    """Two sums of each group, the gradient of the operand, and sums over all groups for weight and bias."""
    operator, statistics = of.call.node.operator, of.beside.get("statistics")
    if statistics is not None and "group" in operator.name:
        _of_groups(back, of, statistics)
        return
    wide = back.forward.elements(of.names[0])
    normed = (*of.incoming[:1], *of.operands[:1], *([statistics] if statistics else []))
    is_batch = operator.name == "batch_norm"
    order = {"is_inner": is_batch and back.forward.is_inner(of_images=True), "in_order": False}
    added = {place: tensor for place, tensor in of.fresh.items() if place > 0}
    for place, tensor in added.items():
        reads = normed if place == min(1, len(of.names) - 1) else of.incoming[:1]
        back.add(
            of, "reduction", (tensor,), reads, wide, kept=back.forward.elements(of.names[place]), **order
        )
    if 0 not in of.fresh:
        return
    if statistics is None:
        reads = (*of.incoming[:1], *of.operands[1:])
    else:
        reads = (*normed, *of.operands[1:2])
        is_shared = is_batch and len(added) > 1
        order = {"is_inner": back.forward.is_inner(of_images=operator.is_of_images), "in_order": not is_batch}
        reads += tuple(added.values()) if is_shared else (_sums(back, of, of.names[0], reads, wide, **order),)
    back.add(of, "pointwise", (of.fresh[0],), reads, wide)


def _sums(
    back: GradientLowering, of: Lowered, name: str, reads: Sequence[str], space: int, **order: bool
) -> str:
    """Append the two sums of each row that there are statistics of. name: of the value whose gradient they are part of."""
    size = back.joint.sizes[of.beside["statistics"]]
    sums, kept = back.new(name, size), back.joint.number(size) // (2 * FLOAT_BYTES)
    back.add(of, "reduction", (sums,), reads, space, kept=kept, **order)
    return sums


def _of_groups(back: GradientLowering, of: Lowered, statistics: str) -> None:
    """Two sums of each channel, and from these those of groups, of weight and bias; the operand's gradient in two parts."""
    x = back.forward.typed(of.names[0])
    wide, channels = back.forward.elements(of.names[0]), back.joint.number(prod(x.shape[:2]))
    normed, weight = (*of.incoming[:1], *of.operands[:1]), of.operands[1:2]
    sums = [back.new(of.names[0], prod(x.shape[:2]) * FLOAT_BYTES) for _ in range(2)]
    is_inner = back.forward.is_inner(of_images=True)
    for tensor, reads in zip(sums, (normed, of.incoming[:1]), strict=True):
        back.add(of, "reduction", (tensor,), reads, wide, kept=channels, is_inner=is_inner)
    for place, tensor in of.fresh.items():
        if place > 0:
            kept = back.forward.elements(of.names[place])
            back.add(of, "reduction", (tensor,), (*sums, statistics), channels, kept=kept, is_inner=False)
    if 0 not in of.fresh:
        return
    whole = _sums(back, of, of.names[0], (*sums, *weight), channels)
    part = back.new(of.names[0], x.numel * FLOAT_BYTES)
    read = (*normed, statistics, *weight, whole)
    back.add(of, "pointwise", (part,), read, wide, instructions=_OF_GROUPS)
    back.add(of, "pointwise", (of.fresh[0],), (part, statistics, whole), wide)


def softmax_gradient(back: GradientLowering, of: Lowered) -> None:
    """The sum of each row of gradient times result, and the gradient."""
    rank, wide = back.forward.typed(of.names[0]).rank, back.forward.elements(of.names[0])
    reads, is_inner = (*of.incoming[:1], *back.read(of)), axis_of(of.call, rank) == rank - 1
    for tensor in of.fresh.values():
        sums = _sums(back, of, of.call.node.name, reads, wide, is_inner=is_inner)
        back.add(of, "pointwise", (tensor,), (*reads, sums), wide)
