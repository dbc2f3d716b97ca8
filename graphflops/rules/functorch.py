"""vmap as programs record it: between two marks, operators see tensors without the mapped batch axis.

Such a tensor carries the size of each hidden axis in `TensorType.mapped`. The loop asks a rule about what the operator sees
and hands the answer to `over_hidden_axes`: work is done once per hidden element, and memory is that of all of them, while
an operand without hidden axes (a weight) is one for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from graphflops.cost import Estimate, free
from graphflops.dims import Dim, prod
from graphflops.rules.registry import rule
from graphflops.rules.shapes import axis
from graphflops.tensor import TensorType

MARKS = "torch._functorch.predispatch."


@rule(f"{MARKS}_add_batch_dim")
def add_batch_dim(x: TensorType, batch_dim: int, level: int) -> Estimate:
    """Hides a batch axis from the operators that follow: a view."""
    at = axis(batch_dim, x.rank)
    seen = x.view((*x.shape[:at], *x.shape[at + 1 :]))
    return free(replace(seen, mapped=(*x.mapped, (level, x.shape[at]))))


@rule(f"{MARKS}_remove_batch_dim")
def remove_batch_dim(x: TensorType, level: int, batch_size: Dim, out_dim: int) -> Estimate:
    """Shows a hidden batch axis again: a view; a value without that axis is expanded without a copy."""
    at = axis(out_dim, x.rank + 1)
    shape = (*x.shape[:at], batch_size, *x.shape[at:])
    left = tuple(entry for entry in x.mapped if entry[0] != level)
    if left == x.mapped:
        return free(replace(x.view(shape), stored=x.numel if x.stored is None else x.stored, mapped=left))
    return free(replace(x.view(shape), stored=None, mapped=left))


def over_hidden_axes(
    estimate: Estimate, operands: Sequence[TensorType], gradients_of: Sequence[TensorType] = ()
) -> Estimate:
    """Scales a vmapped call's Estimate by the product of its hidden batch axes.

    gradients_of: of a backward, the operand behind each result: the gradient of a weight is summed over hidden axes.
    """
    entries = {entry for operand in operands for entry in operand.mapped}
    axes = tuple(sorted(entries, key=lambda entry: entry[0]))
    times = prod(size for _, size in axes)
    whole = {id(operand) for operand in operands}

    def spread(value: Any) -> Any:
        if isinstance(value, TensorType):
            return value if id(value) in whole else replace(value, mapped=axes)
        return None if value is None else value * times

    out = [spread(value) if isinstance(value, TensorType) else value for value in estimate.out]
    for place, operand in enumerate(gradients_of):
        if isinstance(gradient := out[place], TensorType):
            out[place] = replace(gradient, mapped=operand.mapped)
    return replace(
        estimate,
        out=tuple(out),
        **{name: amount * times for name, amount in estimate.work.items()},
        reads=tuple(map(spread, estimate.reads)),
        writes=None if estimate.writes is None else tuple(map(spread, estimate.writes)),
    )
