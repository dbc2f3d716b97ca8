"""Losses: a pointwise kernel and a reduction, or of classes a softmax and one block that reads the class of each row."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.graph import Ref
from graphflops.kernels.call import OpenSizeError
from graphflops.kernels.kernel import Kernel, Rows
from graphflops.kernels.moved import elementwise, fill, pointwise, reduction
from graphflops.tensor import DTYPES, TensorType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from graphflops.dims import Dim
    from graphflops.execution.strides import HasStrides
    from graphflops.kernels.call import ConcreteCall, Sizes, Tensor
    from graphflops.passes.program import PricedCall, PricedProgram

_OF_CLASSES = frozenset({"nll_loss", "cross_entropy_loss"})
_SMOOTHING = "#5"  # the argument of that place


def loss(call: ConcreteCall) -> list[Kernel]:
    """The loss of each element or row, and their mean."""
    x, out = call.operand("x"), call.out
    if x is None or out is None or not x.numel:
        return []
    if call.operator.name in _OF_CLASSES and x.shape:
        softmax = [_softmax(x, "log_softmax", 1)] if call.operator.name == "cross_entropy_loss" else []
        small, sums = elementwise(out, 0, 0), reduction(x, x.numel // max(x.shape[-1], 1))
        if _is_of_shares(call):
            return [*softmax, _each(x), sums, small, small]
        smoothed = [sums, *[small] * 8, *[reduction(out, 1)] * 2] if call.arguments.get(_SMOOTHING) else []
        return [*softmax, _picked(x, "gather"), *smoothed]
    return [_each(x), *([reduction(x, out.numel)] if out.numel < x.numel else [])]


def _each(x: Tensor) -> Kernel:
    return elementwise(x, 2 * x.full_bytes, x.full_bytes, 2 * x.numel)


def _is_of_shares(call: ConcreteCall) -> bool:
    """Whether the labels are a share of each class."""
    labels = call.operand("labels")
    return labels is not None and DTYPES[labels.dtype].is_floating


def loss_backward(call: ConcreteCall) -> list[Kernel]:
    """Of the operand's elements zeros before the kernel, or a division after it; of a target the same."""
    x = call.operand("x")
    if x is None or not x.numel or call.gradient is None:
        return []
    if call.operator.name in _OF_CLASSES and x.shape:
        softmax = (
            [_softmax(x, "log_softmax_backward", 2)] if call.operator.name == "cross_entropy_loss" else []
        )
        small = [elementwise(x, 0, 0)]
        if _is_of_shares(call):
            return [*small * 2, _each(x), *softmax]
        # A share of each class is added.
        smoothed = [*small * 6, _each(x)] if call.arguments.get(_SMOOTHING) else []
        return [*smoothed, fill(x), _picked(x, "scatter"), *softmax]
    return [_each(x)] * (2 * len(call.gradient.gradients))


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


def loss_bytes(call: PricedCall, lie: HasStrides) -> Dim:
    """Bytes of the losses of each element, where labels are a share of each class."""
    labels = call.node.arguments().get("labels")
    if not isinstance(labels, Ref) or not lie.typed(labels.name).dtype.is_floating:
        return 0
    x, out = (lie.typed(name).like() for name in (call.uses[0], call.node.outputs[0] or ""))
    return 0 if out.rank == x.rank else x.nbytes


def loss_kernels(program: PricedProgram, sizes: Sizes, *, stores_gradients: bool) -> tuple[Kernel, ...]:
    """Sums of the results, added up, and the gradient of the loss: one number, which all elements repeat.

    stores_gradients: whether each element of a result's gradient is written, as for a compiled backward, which reads it
    in row-major order.
    """
    training = program.training
    if training is None or training.loss not in ("sum", "mean"):
        return ()
    results = list(_results(program, sizes))
    sums = [reduction(result, 1) for result in results]
    one = [replace(result, shape=(), strides=(), nbytes=result.bits // 8) for result in results[:1]]
    added = [elementwise(each, 2 * each.nbytes, each.nbytes) for each in one] * (len(results) - 1)
    stored = [_repeated(result) for result in results] if stores_gradients else []
    return (*sums, *added, *map(fill, one), *stored)


def _results(program: PricedProgram, sizes: Sizes) -> Iterator[Tensor]:
    """The results of the program that have gradients."""
    for name in dict.fromkeys(program.main.graph.seeds):
        value = program.main.values.get(name)
        if isinstance(value, TensorType) and value.requires_grad:
            try:
                yield sizes.tensor(value)
            except OpenSizeError:
                continue


def _repeated(result: Tensor) -> Kernel:
    """Writes one element everywhere."""
    one = replace(result, strides=(0,) * result.rank, nbytes=result.bits // 8)
    return pointwise(result, [one], one.nbytes, result.full_bytes)
