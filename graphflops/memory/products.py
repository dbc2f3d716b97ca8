"""Copies that matrix products make of operands whose axes cannot be merged without one.

`matmul` computes on three axes: it merges the batch axes of each operand, and copies the operand where these do not lie
together, as after `transpose(1, 2)`, or where it is repeated for the other's batch. `linear` merges all axes but the last.
`einsum` merges those that play one part in the product. The gradients read these copies, not the operands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.dims import Dim, prod
from graphflops.memory.strides import regrouped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphflops.memory.layouts import Layouts
    from graphflops.passes.program import PricedCall
    from graphflops.tensor import TensorType


def operand_copies(call: PricedCall, layouts: Layouts) -> Mapping[str, Dim]:
    """Bytes of the copy that a product makes of an operand, by the operand's name; none of operands that lie in order."""
    operator = call.node.operator
    if operator.name == "einsum":
        names = call.tensors(layouts.values)
        return {
            names[place]: layouts.typed(names[place]).like().nbytes for place in layouts.einsum(call).copied
        }
    if operator.kind != "product" or operator.name not in ("linear", "matmul"):
        return {}
    operands = [layouts.operand(call.node.arguments(), name) for name in ("a", "b")]
    if operator.name == "linear":
        operands = [operands[0], ""]
    a, b = operands
    copies: dict[str, Dim] = {}
    for name, other in ((a, b), (b, a)):
        if name and layouts.typed(name).rank > 2:
            size = _copied(name, other, layouts)
            if size != 0:
                copies[name] = size
    return copies


def pair_results(call: PricedCall, layouts: Layouts) -> Dim:
    """Bytes of the results of pairs of an einsum that a later pair reads, and its gradients."""
    if call.node.operator.name != "einsum":
        return 0
    return layouts.einsum(call).made * layouts.typed(call.node.outputs[0] or "").dtype.bits // 8


def _copied(name: str, other: str, layouts: Layouts) -> Dim:
    """Bytes of the copy of one operand; 0 where its axes merge without one."""
    own, strides = layouts.typed(name), layouts.of(name)
    rank = layouts.typed(other).rank if other else 2
    if rank <= 2:  # one matrix for all rows: everything but the last axis is merged
        merged: tuple[Dim, ...] = (prod(own.shape[:-1]), own.shape[-1])
        return 0 if regrouped(own.shape, strides, merged) is not None else _bytes(own.shape, own)
    batch = _broadcast(own.shape[:-2], layouts.typed(other).shape[:-2])
    shape = (*batch, *own.shape[-2:])
    wide = (0,) * (len(shape) - own.rank) + tuple(
        0 if size == 1 and whole != 1 else step
        for size, whole, step in zip(own.shape, shape[len(shape) - own.rank :], strides, strict=True)
    )
    is_view = regrouped(shape, wide, (prod(batch), *own.shape[-2:])) is not None
    return 0 if is_view else _bytes(shape, own)


def _broadcast(own: Sequence[Dim], other: Sequence[Dim]) -> tuple[Dim, ...]:
    length = max(len(own), len(other))
    padded = [(1,) * (length - len(axes)) + tuple(axes) for axes in (own, other)]
    return tuple(b if a == 1 else a for a, b in zip(*padded, strict=True))


def _bytes(shape: Sequence[Dim], like: TensorType) -> Dim:
    return prod(shape) * like.dtype.bits // 8
