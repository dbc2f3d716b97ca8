"""Losses: a pointwise kernel and a reduction, or of classes a softmax and one block that reads the class of each row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.time.kernel import Kernel, Rows
from graphflops.time.lowering.moved import elementwise, fill, reduction

if TYPE_CHECKING:
    from graphflops.time.concrete import ConcreteCall, Tensor

_OF_CLASSES = frozenset({"nll_loss", "cross_entropy_loss"})
_POINTWISE = {"binary_cross_entropy_with_logits": 5}  # kernels


def loss(call: ConcreteCall) -> list[Kernel]:
    """The loss of each element or row, and their mean."""
    x, out = call.operand("x"), call.out
    if x is None or out is None or not x.numel:
        return []
    if call.operator.name in _OF_CLASSES:
        softmax = [_softmax(x, "log_softmax", 1)] if call.operator.name == "cross_entropy_loss" else []
        return [*softmax, _picked(x, "gather")]
    count = _POINTWISE.get(call.operator.name, 1)
    mean = [reduction(x, out.numel)] if out.numel < x.numel else []
    return [elementwise(x, 2 * x.full_bytes, x.full_bytes, 2 * x.numel)] * count + mean


def loss_backward(call: ConcreteCall) -> list[Kernel]:
    """The gradient of the mean, repeated, times the derivative."""
    x = call.operand("x")
    if x is None or not x.numel or call.gradient is None:
        return []
    if call.operator.name in _OF_CLASSES:
        softmax = (
            [_softmax(x, "log_softmax_backward", 2)] if call.operator.name == "cross_entropy_loss" else []
        )
        return [fill(x), _picked(x, "scatter"), *softmax]
    count = _POINTWISE.get(call.operator.name, 2) * len(call.gradient.gradients)
    return [elementwise(x, 2 * x.full_bytes, x.full_bytes, 2 * x.numel)] * count


def _softmax(x: Tensor, variant: str, reads: int) -> Kernel:
    columns = x.shape[1] if x.rank > 1 else x.numel
    rows = Rows(x.numel // max(columns, 1), columns)
    return Kernel(
        "softmax", x.dtype, 0, 5 * x.numel, reads * x.full_bytes, x.full_bytes, rows, variant=variant
    )


def _picked(x: Tensor, family: str) -> Kernel:
    """One block goes through all rows."""
    rows = x.numel // max(x.shape[1] if x.rank > 1 else 1, 1)
    return Kernel(family, x.dtype, sizes=Rows(1, rows), variant="nll_loss")  # type: ignore[arg-type]
