"""Attention: the kernel that PyTorch chooses, or the products and the softmax that it falls back to; and their memory.

A fused kernel keeps the scores on chip; its gradient sums those of the queries in float32. The unfused one ("math") has in
memory, in float32, copies of the operands, the scores twice, and the probabilities, which the gradient reads.
The sizes are those measured on an H200 with PyTorch 2.11.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

from msgspec.structs import replace

from graphflops.attention.attention_use import causal_fraction
from graphflops.attention.kernel import Choice, Problem, attention_kernel
from graphflops.base.record import Record
from graphflops.dims import Dim, ceil_div, dim_max, dim_min, floor_div, prod, total
from graphflops.execution.layouts import Layouts, attention_problem, is_chosen
from graphflops.execution.strides import is_contiguous, size_hint
from graphflops.kernels.call import ConcreteCall, Tensor
from graphflops.kernels.choices import limits
from graphflops.kernels.kernel import (
    FLOAT_BYTES,
    HALF,
    SINGLE,
    Attention,
    AttentionKernel,
    Kernel,
    Pass,
    Product,
    Rows,
    Strided,
)
from graphflops.kernels.moved import copy, elementwise, fill, gradient_of_mask, is_uneven, padded
from graphflops.kernels.products import Problem as Factors
from graphflops.passes.program import PricedCall
from graphflops.tensor import TensorType

_Operands = tuple[Tensor, Tensor, Tensor]  # query, key and value
_LEAST_RANK = 2
_LOADED_KEYS, _LOADED_KEYS_OF_PROMPT = 4, 2  # keys: rows of a mask that do not align load element by element


def attention(call: ConcreteCall) -> list[Kernel]:
    """One fused kernel, or the unfused products; without operands by name, one kernel with the call's work."""
    operands, cost = _operands(call), call.cost
    if operands is None:
        like = call.out or next(iter(call.operands), None)
        return [] if like is None else [Kernel("attention", like.dtype, cost.matrix_flops, 0, *cost.moved)]
    kernel, filled = call.attention_kernel or "flash", list[Kernel]()
    if kernel == "math":
        return unfused(call, *operands)
    for x in operands if kernel == "flash" else ():  # heads are copied among zeros (`pad_last_dim` of ATen)
        if (width := rounded(x.shape[-1], _FLASH_ALIGNMENT)) != x.shape[-1]:
            filled += [fill(replace(x, shape=(*x.shape[:-1], width))), copy(x)]
    mask = call.operand("mask")
    numbers = mask_numbers(mask, operands[0])
    if kernel == "efficient" and mask is not None and is_uneven(mask):
        filled += padded(mask, operands[0])
    return [*numbers, *filled, _fused(call, operands, kernel, "forward")]


def attention_backward(call: ConcreteCall) -> list[Kernel]:
    """The fused backward, or the gradients of the unfused products and of what is between them."""
    operands = _operands(call)
    if operands is None or call.gradient is None:
        return []
    kernel = call.attention_kernel or "flash"
    if kernel == "math":
        return unfused_backward(call, *operands)
    fused, (query, key, value) = _fused(call, operands, kernel, "backward"), operands
    mask, kernels = call.operand("mask"), [fused]
    if mask is not None and mask.requires_grad and mask.rank:
        kernels += gradient_of_mask(mask, query)
    shared, heads = key.shape[-3:-2], query.shape[-3:-2]
    if shared == heads or not shared or not heads:
        return kernels
    # What each query head gives to keys and values that heads share is added up.
    written = key.full_bytes + value.full_bytes
    read, work = (each * heads[0] // max(shared[0], 1) for each in (written, key.numel + value.numel))
    return [*kernels, Kernel("reduction", query.dtype, 0, work, read, written, variant="heads")]


def _operands(call: ConcreteCall) -> _Operands | None:
    query, key, value = (call.operand(name) for name in ("query", "key", "value"))
    if query is None or key is None or value is None or min(query.rank, key.rank, value.rank) < _LEAST_RANK:
        return None
    return query, key, value


def _fused(call: ConcreteCall, operands: _Operands, kernel: AttentionKernel, phase: Pass) -> Kernel:
    (query, key, value), is_forward = operands, phase == "forward"
    cost = call.cost if is_forward else call.backward_cost
    computed = computed_fraction(call, query.shape[-2], key.shape[-2])
    heads, kv_heads = (x.shape[-3] if x.rank > _LEAST_RANK else 1 for x in (query, key))
    batch, width = math.prod(query.shape[:-3]), max(query.shape[-1], value.shape[-1])
    shape = (batch, heads, kv_heads, query.shape[-2], key.shape[-2], width)
    sizes = Attention(*shape, computed, kernel, phase)
    flops = int(cost.matrix_flops * computed)
    copied = sum(x.full_bytes - x.nbytes for x in operands if not x.is_repeated)  # heads repeated by a copy
    moved = (cost.read_bytes + copied, cost.written_bytes)
    mask = call.operand("mask")
    variant = "masked" if mask is not None else ""
    together = _LOADED_KEYS if sizes.queries == 1 else _LOADED_KEYS_OF_PROMPT
    if mask is not None and is_forward and kernel == "cudnn":
        if sizes.keys % together:
            variant = "uneven"
        elif sizes.queries > 1 and mask.shape[-2:-1] in ((), (1,)):
            variant = "row"  # one for all queries
    return Kernel("attention", query.dtype, flops, 0, *moved, sizes, variant=variant)


def computed_fraction(call: ConcreteCall, queries: int, keys: int) -> float:
    """The fraction of all pairs in tiles that the kernel multiplies: those that the operator's own mask does not hide whole.

    A mask that is passed as a tensor hides nothing from the kernel, which adds it to the scores.
    """
    if call.arguments.get("is_causal") is True and queries and keys:
        return causal_fraction(queries, keys)
    cost = call.cost
    return 1 - cost.masked_flops / cost.matrix_flops if cost.matrix_flops else 1.0


def unfused(call: ConcreteCall, query: Tensor, key: Tensor, value: Tensor) -> list[Kernel]:
    """What `_scaled_dot_product_attention_math` of ATen runs: all of it in float32, with the scores in memory."""
    batch, rows, keys = math.prod(query.shape[:-2]), query.shape[-2], key.shape[-2]
    operands = (query, key, value)
    copies = [copy(x, SINGLE) for x in operands] if query.bits < SINGLE else []
    wide = [_float(x, batch) for x in operands]
    scaled = [elementwise(x, x.full_bytes, x.full_bytes, x.numel) for x in wide[:2]]
    pairs = zip(wide, operands, strict=True)
    ordered = [kernel for x, own in pairs for kernel in _in_order(x, own, own is key)]
    scores = _float(replace(query, shape=(batch, rows, keys)), batch)
    mask, size = call.operand("mask"), scores.full_bytes
    before = mask_numbers(mask, query)
    if mask is not None or call.arguments.get("is_causal") is True:
        added = query.dtype if mask is None or mask.dtype == "bool" else mask.dtype
        before.append(_masked(scores, size + (mask.nbytes if mask else 0), has_casts=added != "float32"))
    first, second = (problem.kernel() for problem in _products(query, key, value))
    out = call.out
    back = [copy(_float(out, batch), out.bits)] if out is not None and out.bits < SINGLE else []
    # The probabilities are cast too, though nothing reads them.
    back += [copy(scores, query.bits)] * len(back)
    # Rows of -inf alone, of which the softmax is 0, are found and replaced.
    count = scores.numel
    over = Rows(count // max(keys, 1), keys)
    softmax = [
        Kernel("softmax", "float32", 0, 5 * count, size, size, over, variant="softmax"),
        elementwise(scores, size, count),
        Kernel("reduction", "bool", 0, 0, count, over.rows, over),
        _masked(scores, size),
    ]
    return [*copies, *scaled, *ordered, first, *before, *softmax, second, *back]


def _masked(scores: Tensor, read: int, *, has_casts: bool = False) -> Kernel:
    """A pointwise kernel on scores and on a mask or on rows that all heads share."""
    kernel = elementwise(scores, read, scores.full_bytes, scores.numel, variant="strided")
    return replace(kernel, sizes=Strided(scores.numel, 2, 3, has_casts=has_casts))


def mask_numbers(mask: Tensor | None, query: Tensor) -> list[Kernel]:
    """What makes a mask of truth values one of numbers, as the query has them: two scalars, and the choice between them."""
    if mask is None or mask.dtype != "bool":
        return []
    numbers = replace(mask, dtype=query.dtype, bits=query.bits)
    scalar = replace(numbers, shape=(), strides=(), nbytes=query.bits // 8)
    return [fill(scalar), fill(scalar), _masked(numbers, mask.nbytes)]


def _in_order(wide: Tensor, own: Tensor, is_key: bool) -> list[Kernel]:
    """The copy of an operand for the products: for every query head, or in order, keys with their axes turned."""
    if wide.numel > own.numel:
        return [replace(copy(wide), sizes=Strided(wide.numel, 3, 2), variant="strided")]
    if own.is_contiguous:
        return []
    laid = replace(own, dtype="float32", bits=SINGLE, nbytes=own.nbytes * SINGLE // max(own.bits, 1))
    if is_key:
        shape, strides = ((*sizes[:-2], sizes[-1], sizes[-2]) for sizes in (laid.shape, laid.strides))
        laid = replace(laid, shape=shape, strides=strides)
    return [copy(laid)]


def _products(query: Tensor, key: Tensor, value: Tensor) -> tuple[Factors, Factors]:
    """The scores, and what they weigh."""
    batch, rows, keys = math.prod(query.shape[:-2]), query.shape[-2], key.shape[-2]
    scores = Product(rows, keys, query.shape[-1], batch, "tn")
    weighed = Product(rows, value.shape[-1], keys, batch, "nn")
    return Factors(scores, "float32", SINGLE), Factors(weighed, "float32", SINGLE)


def unfused_backward(call: ConcreteCall, query: Tensor, key: Tensor, value: Tensor) -> list[Kernel]:
    """Two products for each of the forward, the gradient of the softmax between them, and scaling and casts again."""
    batch = math.prod(query.shape[:-2])
    scores, weighed = _products(query, key, value)
    rows, keys = scores.sizes.m, scores.sizes.n
    size = 4 * batch * rows * keys
    over = Rows(batch * rows, keys)
    softmax = Kernel("softmax", "float32", 0, size, 2 * size, size, over, variant="softmax_backward")
    wide = [_float(x, batch) for x in (query, key, value)]
    before = elementwise(wide[0], 2 * size, size, batch * rows * keys)
    scaled = [elementwise(x, x.full_bytes, x.full_bytes, x.numel) for x in wide[:2]]
    casts = [copy(x, query.bits) for x in (wide[0], *wide)] if query.bits < SINGLE else []
    products = [problem.kernel() for one in (weighed, scores) for problem in (one.for_a, one.for_b)]
    return [*casts[:1], *products[:2], before, softmax, *products[2:], *scaled, *casts[1:]]


def _float(tensor: Tensor, batch: int) -> Tensor:
    """A tensor in float32 and row-major order, repeated for every query head."""
    shape, (rows, columns) = (batch, *tensor.shape[-2:]), tensor.shape[-2:]
    own = {"shape": shape, "strides": (rows * columns, columns, 1), "nbytes": math.prod(shape) * 4}
    return replace(tensor, dtype="float32", bits=SINGLE, **own)


_FLASH_ALIGNMENT = 8  # elements
_BOOL_PART = 4  # a truth value takes a byte, a float32 score four
_MASK_ALIGNMENT, _MASK_GRADIENT_ALIGNMENT, _BLOCK, _ON_CHIP, _MOST_PARTS, _LOCKS = limits(
    *("aten_2", "attention.efficient", "mask_row", "mask_gradient_row", "block", "on_chip", "parts", "locks")
)


def rounded(size: Dim, step: int) -> Dim:
    """The next multiple of a step."""
    return ceil_div(size, step) * step


class AttentionMemory(Record, frozen=True):
    """Bytes that one attention needs. choice: the kernel that runs it; but for `math` the scores stay on chip."""

    problem: Problem
    choice: Choice
    forward: (
        Dim  # the most that is allocated at once, beside the result; what the gradient keeps is part of it
    )
    saved: Dim  # what the gradient reads beside operands and result, the row sums of fused kernels apart
    backward: Dim  # what the gradient needs beside operands, results and their gradients
    # What these consist of, in the order in which it is allocated.
    parts: Sequence[Dim]
    saved_parts: Sequence[Dim]
    gradient_parts: Sequence[Dim]
    # A boolean mask is turned into numbers; the efficient kernel wants rows of a multiple of 8.
    mask_copy: Dim
    scores: Dim = 0  # in memory, as the next two
    value_copy: Dim = 0  # the value as the second product reads it, where that is not the operand itself
    repeated: Sequence[Dim] = ()  # each operand in float32, for every query head that shares it

    @staticmethod
    def of(call: PricedCall, layouts: Layouts, training: bool) -> AttentionMemory | None:
        """Of a call of the operator that chooses its kernel; None for other calls."""
        if not is_chosen(call) or not call.node.outputs:
            return None
        problem = attention_problem(call, layouts, training)
        out = layouts.values.get(call.node.outputs[0] or "")
        if problem is None or not isinstance(out, TensorType):
            return None
        choice = attention_kernel(problem, layouts.platform)
        return (unfused_memory if choice.kernel == "math" else fused_memory)(problem, choice, out.nbytes)

    @property
    def is_fused(self) -> bool:
        """Whether the scores stay on chip."""
        return self.choice.kernel != "math"


def fused_memory(problem: Problem, choice: Choice, out_bytes: Dim) -> AttentionMemory:
    """What a fused kernel needs. out_bytes: of its result."""
    query, key, value = types = [operand.type for operand in problem.operands]
    masked = _mask_copy(problem, choice)
    filled: Dim = 0
    shared: Dim = 0
    batch, heads, rows, width = query.shape
    wide = rounded(width, _FLASH_ALIGNMENT)
    if choice.kernel == "flash" and wide != width:  # copies of operands, and what its result has more
        filled = (total(x.like().nbytes for x in types) + out_bytes) * wide // width - out_bytes
    if key.shape[1] != heads:  # gradients of keys and values for each query head, added up after
        shared = total(x.shape[0] * heads * prod(x.shape[2:]) * (x.dtype.bits // 8) for x in (key, value))
    backward = batch * heads * rows * (width + 1) * FLOAT_BYTES + shared
    if choice.kernel == "efficient":
        backward = batch * heads * (_blocks(problem) + rows) * FLOAT_BYTES
        if problem.mask is not None and problem.mask.type.requires_grad:  # for every batch entry and head
            keys = rounded(key.shape[2], _MASK_GRADIENT_ALIGNMENT)
            backward += batch * heads * rows * keys * (problem.mask.type.dtype.bits // 8)
    halves = (ceil_div(shared, 2),) * 2
    return AttentionMemory(problem, choice, masked + filled, masked, backward, (), [masked], halves, masked)


def _blocks(problem: Problem) -> Dim:
    """Numbers of float32 for each head in which the efficient kernel sums up gradients (kernel_backward.h of ATen).

    Those of the queries in blocks with locks beside each; those of keys and values too wide to stay on chip, in parts.
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


def unfused_memory(problem: Problem, choice: Choice, out_bytes: Dim) -> AttentionMemory:
    """What the products and the softmax need, all in float32. out_bytes: of the result."""
    query, key, value = types = [operand.type for operand in problem.operands]
    query_lies, key_lies, value_lies = (is_contiguous(x.type.shape, x.strides) for x in problem.operands)
    masked, scores = _mask_copy(problem, choice), prod(query.shape[:-1]) * key.shape[-2] * FLOAT_BYTES
    truths = ceil_div(scores, _BOOL_PART)  # which scores are -inf
    own = [x.numel * FLOAT_BYTES for x in types]
    wide = [prod((*query.shape[:-2], *x.shape[-2:])) * FLOAT_BYTES for x in types]
    copies = own if query.dtype.bits != SINGLE else []
    before = total(copies) + own[0]  # and the scaled query
    # Scaled query and key once more, in row-major order and repeated for every query head.
    ordered = (0 if query_lies else own[0]) + (0 if key_lies and wide[1] == own[1] else wide[1])
    is_operand = value.dtype.bits == SINGLE and value_lies and value.shape[1] == query.shape[1]
    value_copy = 0 if is_operand else wide[2]
    products, softmax = before + own[1] + ordered + scores, before + 2 * scores + truths
    dropped = scores + truths if problem.dropout != 0 else 0  # scores after it, and which of them it keeps
    saved = [own[0], wide[1], value_copy, scores, dropped]
    needed = 3 * scores + wide[2] - value_copy - out_bytes - gradient_bytes(problem)
    return AttentionMemory(
        *(problem, choice),
        forward=dim_max(0, dim_max(products, softmax) - out_bytes) + masked,
        saved=total(saved),
        backward=dim_max(0, needed),
        parts=[*copies, own[0], scores, scores, truths],
        saved_parts=[size for size in saved if size != 0],
        gradient_parts=(scores,) * 3,
        mask_copy=masked,
        scores=scores,
        value_copy=value_copy,
        repeated=wide,
    )


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
    """So many bytes as parts of these sizes, as far as they go, and a rest."""
    ends = [0, *(dim_min(end, size) for end in accumulate(parts)), size]
    return [end - start for start, end in pairwise(ends) if end != start]


def gradient_bytes(problem: Problem) -> Dim:
    """Bytes of the gradients of query, key, value and mask."""
    operands = [*problem.operands, *([] if problem.mask is None else [problem.mask])]
    return sum(operand.type.like().nbytes for operand in operands if operand.type.requires_grad)
