"""Attention: the fused kernel that PyTorch chooses, and its memory. If no kernel accepts the operands, other calls run.

A fused kernel keeps the scores on chip; its backward accumulates the gradient of the queries in float32. Sizes were measured
on an H200 with PyTorch 2.11.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

from graphflops.attention.attention_use import causal_fraction
from graphflops.attention.kernel import Choice, Problem
from graphflops.base.record import Record, replace
from graphflops.dims import Dim, ceil_div, dim_max, dim_min, floor_div, prod, total
from graphflops.execution.layouts import Layouts, chosen_kernel
from graphflops.execution.strides import row_major, size_hint
from graphflops.graph import tensor_type
from graphflops.kernels.call import ConcreteCall, Tensor
from graphflops.kernels.choices import limits
from graphflops.kernels.kernel import FLOAT_BYTES, HALF, Attention, Kernel, Masking, Pass, Strided
from graphflops.kernels.moved import copy, copy_to, elementwise, fill, sum_to
from graphflops.passes.program import PricedCall

_Operands = tuple[Tensor, Tensor, Tensor]  # query, key and value
_LOADED_KEYS, _LOADED_KEYS_OF_PROMPT = 4, 2  # keys; a mask whose rows are no multiple is loaded by element


def attention(call: ConcreteCall) -> list[Kernel]:
    """One fused kernel with what it needs first; if the operands have no names, one kernel with the call's work."""
    operands, cost = _operands(call), call.cost
    if operands is None:
        like = next(iter((*call.results, *call.operands)), None)
        return [] if like is None else [Kernel("attention", like.dtype, cost.matrix_flops, 0, *cost.moved)]
    kernel, filled = call.attention_kernel or "flash", list[Kernel]()
    for x in operands if kernel == "flash" else ():  # heads are padded with zeros (`pad_last_dim` of ATen)
        if (width := rounded(x.shape[-1], _FLASH_ALIGNMENT)) != x.shape[-1]:
            filled += [fill(replace(x, shape=(*x.shape[:-1], width))), copy(x)]
    mask = call.operand("mask")
    numbers = mask_numbers(mask, operands[0])
    if kernel == "efficient" and mask is not None and is_uneven(mask):
        filled += padded(mask, operands[0])
    return [*numbers, *filled, _fused(call, operands, "forward")]


def attention_backward(call: ConcreteCall) -> list[Kernel]:
    """The fused backward, and the sums after it."""
    operands = _operands(call)
    if operands is None or call.gradient is None:
        return []
    query, key, value = operands
    mask, kernels = call.operand("mask"), [_fused(call, operands, "backward")]
    if mask is not None and mask.requires_grad and mask.rank:
        kernels += gradient_of_mask(mask, query)
    shared, heads = key.shape[-3:-2], query.shape[-3:-2]
    if shared == heads or not shared or not heads:
        return kernels
    # The gradients of keys and values that query heads share are summed over these heads.
    written = key.full_bytes + value.full_bytes
    read, work = (each * heads[0] // max(shared[0], 1) for each in (written, key.numel + value.numel))
    return [*kernels, Kernel("reduction", query.dtype, 0, work, read, written, variant="heads")]


def _operands(call: ConcreteCall) -> _Operands | None:
    query, key, value = (call.operand(name) for name in ("query", "key", "value"))
    if query is None or key is None or value is None or min(query.rank, key.rank, value.rank) < 2:
        return None
    return query, key, value


def _fused(call: ConcreteCall, operands: _Operands, phase: Pass) -> Kernel:
    query, key, value = operands
    cost = call.cost if phase == "forward" else call.backward_cost
    computed = computed_fraction(call, query.shape[-2], key.shape[-2])
    heads, kv_heads = (x.shape[-3] if x.rank > 2 else 1 for x in (query, key))
    batch, width = math.prod(query.shape[:-3]), max(query.shape[-1], value.shape[-1])
    shape = (batch, heads, kv_heads, query.shape[-2], key.shape[-2], width)
    sizes = Attention(*shape, computed, call.attention_kernel or "flash", phase)
    sizes = replace(sizes, masking=_masking(call, sizes))
    flops = int(cost.matrix_flops * computed)
    copied = sum(x.full_bytes - x.nbytes for x in operands if not x.is_repeated)  # copies of repeated heads
    return Kernel("attention", query.dtype, flops, 0, cost.read_bytes + copied, cost.written_bytes, sizes)


def _masking(call: ConcreteCall, sizes: Attention) -> Masking:
    """What a fused kernel adds to the scores, and whether it drops weights."""
    mask, is_forward, is_cudnn = call.operand("mask"), sizes.phase == "forward", sizes.kernel == "cudnn"
    if is_forward and call.arguments.get("dropout_p"):  # dropout does not slow down gradients
        return "masked_dropout" if mask is not None and is_cudnn else "dropout"
    if mask is None or not (is_forward and is_cudnn):
        return "" if mask is None else "masked"
    if sizes.keys % (_LOADED_KEYS if sizes.queries == 1 else _LOADED_KEYS_OF_PROMPT):
        return "uneven"
    return "row" if sizes.queries > 1 and mask.shape[-2:-1] in ((), (1,)) else "masked"


def computed_fraction(call: ConcreteCall, queries: int, keys: int) -> float:
    """The fraction of all pairs that the kernel computes: a causal mask skips tiles, a mask that is a tensor does not."""
    if call.arguments.get("is_causal") is True and queries and keys:
        return causal_fraction(queries, keys)
    cost = call.cost
    return 1 - cost.masked_flops / cost.matrix_flops if cost.matrix_flops else 1.0


def mask_numbers(mask: Tensor | None, query: Tensor) -> list[Kernel]:
    """The kernels that turn a boolean mask into numbers of the query's type: two scalars, and a choice between them."""
    if mask is None or mask.dtype != "bool":
        return []
    numbers = replace(mask, dtype=query.dtype, bits=query.bits)
    scalar = replace(numbers, shape=(), strides=(), nbytes=query.bits // 8)
    chosen = elementwise(numbers, mask.nbytes, numbers.full_bytes, mask.numel, Strided(mask.numel, 2, 3))
    return [fill(scalar), fill(scalar), chosen]


def is_uneven(mask: Tensor) -> bool:
    """Whether the mask's rows are not a multiple of what a load takes."""
    return bool(mask.rank) and mask.shape[-1] % _MASK_ALIGNMENT != 0


def padded(mask: Tensor, query: Tensor) -> list[Kernel]:
    """The kernels that pad the rows of a mask of numbers to a multiple of what a load takes (`pad_bias` of ATen)."""
    rows = (*mask.shape[:-1], rounded(mask.shape[-1], _MASK_ALIGNMENT))
    numbers = replace(mask, dtype=query.dtype, bits=query.bits, nbytes=mask.numel * query.bits // 8)
    return [fill(replace(numbers, shape=rows)), copy_to(replace(numbers, strides=row_major(rows)), numbers)]


def gradient_of_mask(mask: Tensor, query: Tensor) -> list[Kernel]:
    """The gradient of a mask: the scores' gradients, summed where scores share it; padded rows are summed once more."""
    shape = (*query.shape[:-1], mask.shape[-1])
    scores = replace(mask, shape=shape, strides=row_major(shape), nbytes=prod(shape) * mask.bits // 8)
    kept = [len(shape) - place for place in range(1, mask.rank + 1) if mask.shape[-place] == shape[-place]]
    summed = [sum_to(scores, kept, mask.bits)] if scores.numel > mask.numel else []
    if not is_uneven(mask):
        return summed
    before, into = padded(mask, query)
    return [*summed, before, into, into]


_FLASH_ALIGNMENT = 8  # elements
_MASK_ALIGNMENT, _MASK_GRADIENT_ALIGNMENT, _BLOCK, _ON_CHIP, _MOST_PARTS, _LOCKS = limits(
    "aten_2", "attention.efficient", "mask_row mask_gradient_row block on_chip parts locks"
)


def rounded(size: Dim, step: int) -> Dim:
    """The next multiple of a step."""
    return ceil_div(size, step) * step


class AttentionMemory(Record, frozen=True):
    """Bytes that one attention needs. choice: the kernel that runs it."""

    problem: Problem
    choice: Choice
    # Peak bytes beside the result. A copy of the mask is part of them, and is saved for backward.
    forward: Dim
    # A boolean mask is converted to numbers; the efficient kernel needs rows of a multiple of 8 elements.
    mask_copy: Dim
    backward: Dim  # what the gradient needs beside operands, results and their gradients
    gradient_parts: Sequence[Dim]  # the parts of that, in the order in which they are allocated

    @staticmethod
    def of(call: PricedCall, layouts: Layouts, training: bool) -> AttentionMemory | None:
        """The memory of a call of the operator that chooses its kernel; None for other calls."""
        chosen = chosen_kernel(call, layouts, training)
        out = None if chosen is None else tensor_type(call.node.outputs[0], layouts.values)
        return None if chosen is None or out is None else fused_memory(*chosen, out.nbytes)


def fused_memory(problem: Problem, choice: Choice, out_bytes: Dim) -> AttentionMemory:
    """What a fused kernel needs. out_bytes: bytes of its result."""
    query, key, value = types = [operand.type for operand in problem.operands]
    masked = _mask_copy(problem, choice)
    filled: Dim = 0
    shared: Dim = 0
    batch, heads, rows, width = query.shape
    wide = rounded(width, _FLASH_ALIGNMENT)
    if choice.kernel == "flash" and wide != width:  # padded operands, and the padding of the result
        filled = (total(x.like().nbytes for x in types) + out_bytes) * wide // width - out_bytes
    if key.shape[1] != heads:  # gradients of keys and values for each query head, before they are summed
        shared = total(x.shape[0] * heads * prod(x.shape[2:]) * (x.dtype.bits // 8) for x in (key, value))
    backward = batch * heads * rows * (width + 1) * FLOAT_BYTES + shared
    if choice.kernel == "efficient":
        backward = batch * heads * (_blocks(problem) + rows) * FLOAT_BYTES
        mask = None if problem.mask is None else problem.mask.type
        if mask is not None and mask.requires_grad:  # for every batch entry and head
            scores = batch * heads * rows
            backward += scores * rounded(key.shape[2], _MASK_GRADIENT_ALIGNMENT) * (mask.dtype.bits // 8)
            if mask.numel == scores * key.shape[2]:  # the mask's gradient is a part of that
                backward -= mask.like().nbytes
    halves = (ceil_div(shared, 2),) * 2
    return AttentionMemory(problem, choice, masked + filled, masked, backward, halves)


def _blocks(problem: Problem) -> Dim:
    """float32 elements for each head in which the efficient kernel accumulates gradients (kernel_backward.h of ATen).

    Gradients of queries are in blocks with locks; gradients of keys and values that are too wide for the chip are in parts.
    """
    query, key, value = (operand.type for operand in problem.operands)
    batch, heads, rows, width = query.shape
    wide, is_half = size_hint(dim_max(width, value.shape[-1]), _BLOCK), query.dtype.bits == HALF
    if wide <= _BLOCK:
        return ceil_div(rows, _BLOCK) * (_BLOCK * _BLOCK + _LOCKS)
    long, on_chip = 2 * _BLOCK, is_half and wide <= _ON_CHIP
    tile = long if on_chip else _BLOCK
    own = ceil_div(rows, long) * ceil_div(width, tile) * (long * tile + _LOCKS)
    if on_chip or not is_half:
        return own
    parts = dim_min(ceil_div(key.shape[-2], _BLOCK), dim_max(1, floor_div(_MOST_PARTS, batch * heads)))
    return own + parts * _BLOCK * (rounded(width, long) + rounded(value.shape[-1], long))


def _mask_copy(problem: Problem, choice: Choice) -> Dim:
    if problem.mask is None:
        return 0
    mask, element = problem.mask.type, problem.query.type.dtype.bits // 8
    keys = mask.shape[-1] if mask.rank else 1
    padded = rounded(keys, _MASK_ALIGNMENT)
    if choice.kernel == "efficient" and padded != keys:
        return prod(mask.shape[:-1]) * padded * element
    return mask.numel * element if mask.dtype.kind == "bool" else 0


def cut(size: Dim, parts: Iterable[Dim]) -> list[Dim]:
    """Splits `size` bytes into these parts, as far as they go, and the rest."""
    ends = [0, *(dim_min(end, size) for end in accumulate(parts)), size]
    return [end - start for start, end in pairwise(ends) if end != start]
