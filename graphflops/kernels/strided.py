"""How a pointwise kernel of PyTorch walks through its tensors: axes in which all lie alike are merged (TensorIterator)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.kernels.kernel import Strided

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.kernels.call import Tensor

_SECTOR = 32  # bytes that a load brings at least
_BLOCK = 256  # neighbouring elements that share the sectors in the first-level cache
_BITS = 8


def strided(out: Tensor, operands: Sequence[Tensor]) -> Strided | None:
    """The walk of a kernel that computes an address for each element; None where all tensors lie alike without gaps."""
    tensors = [out, *[tensor for tensor in operands if tensor.rank]]
    axes = _merged(out, [_steps(tensor, out) for tensor in tensors])
    has_casts = len({tensor.dtype for tensor in tensors[1:] if tensor.dtype != "bool"}) > 1
    is_alike = not axes or (len(axes) == 1 and set(axes[0][1]) == {1})
    if is_alike and not has_casts:
        return None
    waste = sum(_waste(axes, place, tensor.bits / _BITS) for place, tensor in enumerate(tensors) if axes)
    return Strided(out.numel, max(len(axes), 1), len(tensors), waste, has_casts)


def _steps(tensor: Tensor, out: Tensor) -> list[int]:
    """The stride of a tensor along each axis of the result; 0 where it is broadcast."""
    missing = out.rank - tensor.rank
    steps = [0] * max(missing, 0)
    for size, step in zip(tensor.shape, tensor.strides, strict=True):
        steps.append(0 if size == 1 else step)
    return steps[-out.rank :] if out.rank else []


def _merged(out: Tensor, steps: Sequence[Sequence[int]]) -> list[tuple[int, list[int]]]:
    """The axes from the innermost of the result on, with the stride of each tensor; neighbours become one where they can."""
    order = sorted((step, -axis) for axis, step in enumerate(steps[0]) if out.shape[axis] > 1)
    axes: list[tuple[int, list[int]]] = []
    for _, axis in order:
        size, own = out.shape[-axis], [each[-axis] for each in steps]
        if axes and all(step == axes[-1][0] * before for step, before in zip(own, axes[-1][1], strict=True)):
            axes[-1] = (axes[-1][0] * size, axes[-1][1])
        else:
            axes.append((size, own))
    return axes


def _waste(axes: Sequence[tuple[int, Sequence[int]]], place: int, width: float) -> float:
    """Bytes that a tensor loads for each element beyond the element: a sector, unless neighbours use it as well."""
    size, steps = axes[0]
    if steps[place] <= 1:
        return 0.0
    users = 1
    if len(axes) > 1 and axes[1][1][place] == 1:
        users = max(1, min(_BLOCK // size, axes[1][0]))
    return float(max(min(_SECTOR / users, steps[place] * width) - width, 0.0))
