"""Attention: the kernel that PyTorch chooses, or the products and the softmax that it falls back to."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from graphflops.attention.attention_use import causal_fraction
from graphflops.kernels.call import ConcreteCall, Tensor
from graphflops.kernels.kernel import Attention, AttentionKernel, Kernel, Pass, Product, Rows, Strided
from graphflops.kernels.moved import copy, elementwise
from graphflops.kernels.products import Problem

_LEAST_RANK = 2
_FLOAT = 32
_MASK_ALIGNMENT = 4  # keys: rows of a mask that do not align load element by element


def attention(call: ConcreteCall) -> list[Kernel]:
    """One fused kernel, or the unfused products; without operands by name, one kernel with the call's work."""
    found = _operands(call)
    if found is None:
        return _without_sizes(call)
    kernel = call.attention_kernel or "flash"
    if kernel == "math":
        return _unfused(call, *found)
    mask = call.operand("mask")
    numbers = [copy(mask, found[0].bits)] if mask is not None and mask.dtype == "bool" else []
    return [*numbers, _fused(call, found, kernel, "forward")]


def attention_backward(call: ConcreteCall) -> list[Kernel]:
    """The fused backward, or the gradients of the unfused products and of what is between them."""
    found = _operands(call)
    if found is None or call.gradient is None:
        return []
    kernel = call.attention_kernel or "flash"
    if kernel == "math":
        return _unfused_backward(call, *found)
    return [_fused(call, found, kernel, "backward")]


def _operands(call: ConcreteCall) -> tuple[Tensor, Tensor, Tensor] | None:
    query, key, value = (call.operand(name) for name in ("query", "key", "value"))
    if query is None or key is None or value is None or min(query.rank, key.rank, value.rank) < _LEAST_RANK:
        return None
    return query, key, value


def _fused(
    call: ConcreteCall, operands: tuple[Tensor, Tensor, Tensor], kernel: AttentionKernel, phase: Pass
) -> Kernel:
    query, key, value = operands
    is_forward = phase == "forward"
    cost = call.cost if is_forward else call.backward_cost
    computed = computed_fraction(call, query.shape[-2], key.shape[-2])
    sizes = Attention(
        batch=prod(query.shape[:-3]),
        heads=query.shape[-3] if query.rank > _LEAST_RANK else 1,
        kv_heads=key.shape[-3] if key.rank > _LEAST_RANK else 1,
        queries=query.shape[-2],
        keys=key.shape[-2],
        width=max(query.shape[-1], value.shape[-1]),
        computed=computed,
        kernel=kernel,
        phase=phase,
    )
    flops = int(cost.matrix_flops * computed)
    copied = sum(x.full_bytes - x.nbytes for x in operands if not x.is_repeated)  # heads repeated by a copy
    moved = (cost.read_bytes + copied, cost.written_bytes)
    variant = "masked" if call.operand("mask") is not None else ""
    if variant and is_forward and kernel == "cudnn" and sizes.keys % _MASK_ALIGNMENT:
        variant = "uneven"
    return Kernel("attention", query.dtype, flops, 0, *moved, sizes, variant=variant)


def computed_fraction(call: ConcreteCall, queries: int, keys: int) -> float:
    """The fraction of all pairs in tiles that the kernel multiplies: those that the operator's own mask does not hide whole.

    A mask that is passed as a tensor hides nothing from the kernel, which adds it to the scores.
    """
    if call.arguments.get("is_causal") is True and queries and keys:
        return causal_fraction(queries, keys)
    cost = call.cost
    return 1 - cost.masked_flops / cost.matrix_flops if cost.matrix_flops else 1.0


def _unfused(call: ConcreteCall, query: Tensor, key: Tensor, value: Tensor) -> list[Kernel]:
    """What `_scaled_dot_product_attention_math` runs: all of it in float32, with the scores in memory."""
    batch, rows, keys = prod(query.shape[:-2]), query.shape[-2], key.shape[-2]
    operands = (query, key, value)
    copies = [copy(x, _FLOAT) for x in operands] if query.bits < _FLOAT else []
    wide = [_float(x, batch) for x in operands]
    scaled = [elementwise(x, x.full_bytes, x.full_bytes, x.numel) for x in wide[:2]]
    ordered = [
        copy(x)
        if own.is_contiguous
        else copy(replace(own, dtype="float32", bits=_FLOAT, nbytes=2 * own.nbytes))
        for x, own in zip(wide, operands, strict=True)
        if not own.is_contiguous or x.numel > own.numel
    ]
    scores = replace(
        wide[0], shape=(batch, rows, keys), strides=(rows * keys, keys, 1), nbytes=batch * rows * keys * 4
    )
    mask, size = call.operand("mask"), scores.full_bytes
    is_masked = mask is not None or call.arguments.get("is_causal") is True
    before = [_masked(scores, size + (mask.nbytes if mask else 0))] if is_masked else []
    first, second = (problem.kernel() for problem in _products(query, key, value))
    out = call.out
    back = [copy(_float(out, batch), out.bits)] if out is not None and out.bits < _FLOAT else []
    # The probabilities are cast too, though nothing reads them.
    back += [copy(scores, query.bits)] * len(back)
    return [*copies, *scaled, *ordered, first, *before, *_safe_softmax(scores), second, *back]


def _safe_softmax(scores: Tensor) -> list[Kernel]:
    """A softmax, which rows of -inf alone it is 0 for: they are found, and replaced."""
    size, count = scores.full_bytes, scores.numel
    rows = Rows(count // max(scores.shape[-1], 1), scores.shape[-1])
    is_hidden = Kernel("reduction", "bool", 0, 0, count, rows.rows, rows)
    return [
        Kernel("softmax", "float32", 0, 5 * count, size, size, rows, variant="softmax"),
        elementwise(scores, size, count),
        is_hidden,
        _masked(scores, size),
    ]


def _masked(scores: Tensor, read: int) -> Kernel:
    """A pointwise kernel on scores and on a mask or on rows that all heads share."""
    kernel = elementwise(scores, read, scores.full_bytes, scores.numel, variant="strided")
    return replace(kernel, sizes=Strided(scores.numel, 2, 3))


def _products(query: Tensor, key: Tensor, value: Tensor) -> tuple[Problem, Problem]:
    """The scores, and what they weigh."""
    batch, rows, keys = prod(query.shape[:-2]), query.shape[-2], key.shape[-2]
    scores = Product(rows, keys, query.shape[-1], batch, "tn")
    weighed = Product(rows, value.shape[-1], keys, batch, "nn")
    return Problem(scores, "float32", _FLOAT), Problem(weighed, "float32", _FLOAT)


def _unfused_backward(call: ConcreteCall, query: Tensor, key: Tensor, value: Tensor) -> list[Kernel]:
    """Two products for each of the forward, the gradient of the softmax between them, and scaling and casts again."""
    batch = prod(query.shape[:-2])
    scores, weighed = _products(query, key, value)
    rows, keys = scores.sizes.m, scores.sizes.n
    size = 4 * batch * rows * keys
    softmax = Kernel(
        *("softmax", "float32", 0, size, 2 * size, size, Rows(batch * rows, keys)),
        variant="softmax_backward",
    )
    wide = [_float(x, batch) for x in (query, key, value)]
    before = elementwise(wide[0], 2 * size, size, batch * rows * keys)
    scaled = [elementwise(x, x.full_bytes, x.full_bytes, x.numel) for x in wide[:2]]
    casts = [copy(x, query.bits) for x in (wide[0], *wide)] if query.bits < _FLOAT else []
    products = [problem.kernel() for one in (weighed, scores) for problem in (one.for_a, one.for_b)]
    return [*casts[:1], *products[:2], before, softmax, *products[2:], *scaled, *casts[1:]]


def _float(tensor: Tensor, batch: int) -> Tensor:
    """A tensor in float32 and row-major order, repeated for every query head."""
    shape = (batch, *tensor.shape[-2:])
    steps = (shape[1] * shape[2], shape[2], 1)
    return replace(tensor, shape=shape, dtype="float32", bits=_FLOAT, strides=steps, nbytes=prod(shape) * 4)


def _without_sizes(call: ConcreteCall) -> list[Kernel]:
    like, cost = call.out or next(iter(call.operands), None), call.cost
    if like is None:
        return []
    return [Kernel("attention", like.dtype, cost.matrix_flops, 0, cost.read_bytes, cost.written_bytes)]
