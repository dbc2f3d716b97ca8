"""Pooling and its gradients, by dimensions and layout, as the CUDA kernels of ATen compute them."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from graphflops.kernels.kernel import Kernel, Windows
from graphflops.kernels.moved import copied, fill, is_last, reduction

if TYPE_CHECKING:
    from graphflops.kernels.call import ConcreteCall, Tensor

_VOLUME_RANK = 5
_INDEX_BYTES = 8


def pooling(call: ConcreteCall) -> list[Kernel]:
    """One kernel; an average over all positions is a mean."""
    x, out = call.operand("x"), call.out
    if x is None or out is None or x.rank < 2 or not out.numel:
        return []
    if _is_mean(call, out):
        return [reduction(x, out.numel, is_inner=x.strides[1] != 1)]
    window = Windows(out.numel, _positions(call, x, out))
    indices = _INDEX_BYTES * out.numel if "max" in call.operator.name else 0
    moved = (x.full_bytes, out.full_bytes + indices)
    return [*copied(call), Kernel("pool", x.dtype, 0, 0, *moved, window, variant=_variant(call, x))]


def pooling_backward(call: ConcreteCall) -> list[Kernel]:
    """Each element gathers from the windows that it is in; where windows are uneven, they add to zeros."""
    x, out = call.operand("x"), call.out
    if x is None or out is None or x.rank < 2 or not out.numel:
        return []
    cover = _positions(call, x, out) * out.numel / max(x.numel, 1)
    indices = _INDEX_BYTES * out.numel if "max" in call.operator.name else 0
    moved = (out.full_bytes + indices, x.full_bytes)
    variant = f"{_variant(call, x)}_backward"
    kernel = Kernel("pool", x.dtype, 0, 0, *moved, Windows(x.numel, cover), variant=variant)
    zeros = [] if call.operator.name == "avg_pool" else [fill(x)]
    return [*copied(call, again=True), *zeros, kernel]


def _is_mean(call: ConcreteCall, out: Tensor) -> bool:
    is_adaptive = call.operator.name in ("adaptive_avg_pool", "global_avg_pool")
    return is_adaptive and prod(out.shape[2:]) == 1


def _positions(call: ConcreteCall, x: Tensor, out: Tensor) -> float:
    """Positions of a window."""
    if call.operator.name.startswith("adaptive"):
        return x.numel / out.numel
    kernel = call.arguments.get("kernel_size")  # of a gradient operator, whose work is not the window's
    if isinstance(kernel, tuple):
        return prod(kernel) if len(kernel) > 1 else kernel[0] ** (x.rank - 2)
    return call.cost.vector_flops / out.numel


def _variant(call: ConcreteCall, x: Tensor) -> str:
    layout = "_last" if is_last(x) else ""
    return f"{call.operator.name}{'_volume' if x.rank >= _VOLUME_RANK else layout}"
