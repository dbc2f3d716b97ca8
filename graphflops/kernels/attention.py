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
from graphflops.attention.kernel import Choice, Operand, Problem, attention_kernel
from graphflops.base.record import Record
from graphflops.dims import Dim, ceil_div, dim_max, dim_min, prod, total
from graphflops.execution.layouts import Layouts, attention_problem, is_chosen
from graphflops.execution.strides import is_contiguous
from graphflops.kernels.call import ConcreteCall, Tensor
from graphflops.kernels.choices import limits
from graphflops.kernels.kernel import (
    FLOAT_BYTES,
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
_MASK_ALIGNMENT, _MASK_GRADIENT_ALIGNMENT, _ROWS_OF_BLOCK = limits(
    *("aten_2", "attention.efficient", "mask_row", "mask_gradient_row", "rows")
)


def rounded(size: Dim, step: int) -> Dim:
    """The next multiple of a step."""
    return ceil_div(size, step) * step


class AttentionMemory(Record, frozen=True):
    """Bytes that one attention needs. choice: the kernel that runs it. out_bytes: of its result."""

    problem: Problem
    choice: Choice
    out_bytes: Dim
    operands_in_order: tuple[bool, ...]

    @staticmethod
    def of(call: PricedCall, layouts: Layouts, training: bool) -> AttentionMemory | None:
        """Of a call of the operator that chooses its kernel; None for other calls."""
        if not is_chosen(call) or not call.node.outputs:
            return None
        problem = attention_problem(call, layouts, training)
        out = layouts.values.get(call.node.outputs[0] or "")
        if problem is None or not isinstance(out, TensorType):
            return None
        in_order = tuple([is_contiguous(each.type.shape, each.strides) for each in problem.operands])
        return AttentionMemory(problem, attention_kernel(problem, layouts.platform), out.nbytes, in_order)

    @property
    def is_fused(self) -> bool:
        """Whether the scores stay on chip."""
        return self.choice.kernel != "math"

    @property
    def forward(self) -> Dim:
        """The most that is allocated at once, beside the result; what the gradient keeps is part of it."""
        if self.is_fused:
            return self.mask_copy + self.filled
        key = self.problem.key.type.numel * FLOAT_BYTES
        wide = total(self.float_copies) + self.scaled
        products = wide + key + self.score_operands + self.scores
        softmax = wide + 2 * self.scores + ceil_div(self.scores, _BOOL_PART)
        return dim_max(0, dim_max(products, softmax) - self.out_bytes) + self.mask_copy

    @property
    def saved(self) -> Dim:
        """What the gradient reads beside operands and result, the row sums of fused kernels apart."""
        if self.is_fused:
            return self.mask_copy
        return self.scores + self.dropped + self.scaled + self.repeated(self.problem.key) + self.value_copy

    @property
    def backward(self) -> Dim:
        """What the gradient needs beside operands, results and their gradients."""
        if not self.is_fused:
            gradients = gradient_bytes(self.problem)
            own = 3 * self.scores + self.repeated(self.problem.value) - self.value_copy
            return dim_max(0, own - self.out_bytes - gradients)
        batch, heads, rows, width = self.problem.query.type.shape
        if self.choice.kernel == "efficient":
            padded = rounded(rows, _ROWS_OF_BLOCK)
            return batch * heads * (padded * width + rows) * FLOAT_BYTES + self.mask_gradient
        return batch * heads * rows * (width + 1) * FLOAT_BYTES + self.shared_gradients

    # What these consist of, in the order in which it is allocated

    @property
    def parts(self) -> Sequence[Dim]:
        """Of what is allocated at once: float32 copies, the scaled query, scores twice, which of them are -inf."""
        if self.is_fused:
            return ()
        return [*self.float_copies, self.scaled, self.scores, self.scores, ceil_div(self.scores, _BOOL_PART)]

    @property
    def saved_parts(self) -> list[Dim]:
        if self.is_fused:
            return [self.mask_copy]
        key = self.repeated(self.problem.key)
        return cut(self.saved, (self.scaled, key, self.value_copy, self.scores, self.dropped))

    @property
    def gradient_parts(self) -> Sequence[Dim]:
        return (ceil_div(self.shared_gradients, 2),) * 2 if self.is_fused else (self.scores,) * 3

    @property
    def shared_gradients(self) -> Dim:
        """Gradients of keys and values for each query head, where heads share them: added up after."""
        key, value = self.problem.key.type, self.problem.value.type
        heads = self.problem.query.type.shape[1]
        if key.shape[1] == heads:
            return 0
        return sum(x.shape[0] * heads * prod(x.shape[2:]) * (x.dtype.bits // 8) for x in (key, value))

    @property
    def filled(self) -> Dim:
        """Copies of operands whose heads FlashAttention wants as wide as a multiple of 8, and what its result has more."""
        width = self.problem.query.type.shape[-1]
        wide = rounded(width, _FLASH_ALIGNMENT)
        if self.choice.kernel != "flash" or wide == width:
            return 0
        own = [operand.type.like().nbytes for operand in self.problem.operands]
        return (total(own) + self.out_bytes) * wide // width - self.out_bytes

    @property
    def mask_copy(self) -> Dim:
        """A boolean mask is turned into numbers; the efficient kernel wants rows of a multiple of 8."""
        if self.problem.mask is None:
            return 0
        mask, element = self.problem.mask.type, self.problem.query.type.dtype.bits // 8
        keys = mask.shape[-1] if mask.rank else 1
        padded = rounded(keys, _MASK_ALIGNMENT)
        if self.choice.kernel == "efficient" and padded != keys:
            return prod(mask.shape[:-1]) * padded * element
        return mask.numel * element if mask.dtype.kind == "bool" else 0

    @property
    def mask_gradient(self) -> Dim:
        """The gradient of a mask, for every batch entry and head."""
        mask = self.problem.mask
        if mask is None or not mask.type.requires_grad:
            return 0
        rows, keys = self.problem.query.type.shape[:-1], self.problem.key.type.shape[2]
        return prod(rows) * rounded(keys, _MASK_GRADIENT_ALIGNMENT) * (mask.type.dtype.bits // 8)

    @property
    def scores(self) -> Dim:
        query, key = self.problem.query.type, self.problem.key.type
        return prod(query.shape[:-1]) * key.shape[-2] * FLOAT_BYTES

    @property
    def dropped(self) -> Dim:
        """The scores after dropout, and which of them it keeps."""
        return self.scores + ceil_div(self.scores, _BOOL_PART) if self.problem.dropout != 0 else 0

    @property
    def float_copies(self) -> list[Dim]:
        """Query, key and value in float32; none where they are."""
        is_float = self.problem.query.type.dtype.bits == 32
        return [operand.type.numel * FLOAT_BYTES for operand in self.problem.operands if not is_float]

    @property
    def scaled(self) -> Dim:
        return self.problem.query.type.numel * FLOAT_BYTES

    @property
    def score_operands(self) -> Dim:
        """Scaled query and key once more, in row-major order and repeated for every query head."""
        own, repeated = self.problem.key.type.numel * FLOAT_BYTES, self.repeated(self.problem.key)
        is_query, is_key, _ = self.operands_in_order
        return (0 if is_query else self.scaled) + (0 if is_key and repeated == own else repeated)

    @property
    def value_copy(self) -> Dim:
        """The value as the second product reads it, where that is not the operand itself."""
        value, heads = self.problem.value.type, self.problem.query.type.shape[1]
        is_operand = value.dtype.bits == 32 and self.operands_in_order[2] and value.shape[1] == heads
        return 0 if is_operand else self.repeated(self.problem.value)

    def repeated(self, operand: Operand) -> Dim:
        """An operand in float32, repeated for every query head that shares it."""
        shape = (*self.problem.query.type.shape[:-2], *operand.type.shape[-2:])
        return prod(shape) * FLOAT_BYTES


def cut(size: Dim, parts: Iterable[Dim]) -> list[Dim]:
    """So many bytes as parts of these sizes, as far as they go, and a rest."""
    ends = [0, *(dim_min(end, size) for end in accumulate(parts)), size]
    return [end - start for start, end in pairwise(ends) if end != start]


def gradient_bytes(problem: Problem) -> Dim:
    """Bytes of the gradients of query, key, value and mask."""
    operands = [*problem.operands, *([] if problem.mask is None else [problem.mask])]
    return sum(operand.type.like().nbytes for operand in operands if operand.type.requires_grad)
