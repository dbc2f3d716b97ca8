"""Masks of numbers for the efficient attention kernel: rows that are filled up, and gradients."""

from __future__ import annotations

from math import prod

from msgspec.structs import replace

from graphflops.execution.strides import row_major
from graphflops.kernels.call import Tensor
from graphflops.kernels.choices import limits
from graphflops.kernels.kernel import Kernel
from graphflops.kernels.moved import copy_to, fill, sum_to

(_ALIGNMENT,) = limits("aten_2", "attention.efficient", "mask_row")


def is_uneven(mask: Tensor) -> bool:
    """Whether its rows are no whole loads."""
    return bool(mask.rank) and mask.shape[-1] % _ALIGNMENT != 0


def padded(mask: Tensor, query: Tensor) -> list[Kernel]:
    """A mask of numbers whose rows are filled up to whole loads (`pad_bias` of ATen)."""
    rows = (*mask.shape[:-1], -(-mask.shape[-1] // _ALIGNMENT) * _ALIGNMENT)
    numbers = replace(mask, dtype=query.dtype, bits=query.bits, nbytes=mask.numel * query.bits // 8)
    return [fill(replace(numbers, shape=rows)), copy_to(replace(numbers, strides=row_major(rows)), numbers)]


def gradient_of_mask(mask: Tensor, query: Tensor) -> list[Kernel]:
    """The gradient of a mask: that of all scores added up where they share it, and once more in rows that were filled up."""
    shape = (*query.shape[:-1], mask.shape[-1])
    scores = replace(mask, shape=shape, strides=row_major(shape), nbytes=prod(shape) * mask.bits // 8)
    places = range(1, mask.rank + 1)
    kept = [len(shape) - place for place in places if mask.shape[-place] == shape[-place]]
    summed = [sum_to(scores, kept, mask.bits)] if scores.numel > mask.numel else []
    if not is_uneven(mask):
        return summed
    before, into = padded(mask, query)
    return [*summed, before, into, into]
