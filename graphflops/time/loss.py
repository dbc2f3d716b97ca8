"""The kernels of a loss that is the sum or the mean of all results, which no call of the program computes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.tensor import TensorType
from graphflops.time.concrete import OpenSizeError, Tensor
from graphflops.time.lowering.moved import elementwise, fill, pointwise, reduction

if TYPE_CHECKING:
    from collections.abc import Iterator

    from graphflops.passes.program import PricedProgram
    from graphflops.time.concrete import Sizes
    from graphflops.time.kernel import Kernel


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
