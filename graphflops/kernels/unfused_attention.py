"""Attention as separate kernels ("math"): products in float32, and between them masks and a softmax of scores in memory.

It is what `_scaled_dot_product_attention_math` of ATen runs.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from graphflops.kernels.call import ConcreteCall, Tensor
from graphflops.kernels.kernel import Kernel, Product, Rows, Strided
from graphflops.kernels.moved import copy, elementwise, fill
from graphflops.kernels.products import Problem as Factors

_FLOAT = 32


def unfused(call: ConcreteCall, query: Tensor, key: Tensor, value: Tensor) -> list[Kernel]:
    """What `_scaled_dot_product_attention_math` runs: all of it in float32, with the scores in memory."""
    batch, rows, keys = math.prod(query.shape[:-2]), query.shape[-2], key.shape[-2]
    operands = (query, key, value)
    copies = [copy(x, _FLOAT) for x in operands] if query.bits < _FLOAT else []
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
    back = [copy(_float(out, batch), out.bits)] if out is not None and out.bits < _FLOAT else []
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
    laid = replace(own, dtype="float32", bits=_FLOAT, nbytes=own.nbytes * _FLOAT // max(own.bits, 1))
    if is_key:
        shape, strides = ((*sizes[:-2], sizes[-1], sizes[-2]) for sizes in (laid.shape, laid.strides))
        laid = replace(laid, shape=shape, strides=strides)
    return [copy(laid)]


def _products(query: Tensor, key: Tensor, value: Tensor) -> tuple[Factors, Factors]:
    """The scores, and what they weigh."""
    batch, rows, keys = math.prod(query.shape[:-2]), query.shape[-2], key.shape[-2]
    scores = Product(rows, keys, query.shape[-1], batch, "tn")
    weighed = Product(rows, value.shape[-1], keys, batch, "nn")
    return Factors(scores, "float32", _FLOAT), Factors(weighed, "float32", _FLOAT)


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
    casts = [copy(x, query.bits) for x in (wide[0], *wide)] if query.bits < _FLOAT else []
    products = [problem.kernel() for one in (weighed, scores) for problem in (one.for_a, one.for_b)]
    return [*casts[:1], *products[:2], before, softmax, *products[2:], *scaled, *casts[1:]]


def _float(tensor: Tensor, batch: int) -> Tensor:
    """A tensor in float32 and row-major order, repeated for every query head."""
    shape, (rows, columns) = (batch, *tensor.shape[-2:]), tensor.shape[-2:]
    own = {"shape": shape, "strides": (rows * columns, columns, 1), "nbytes": math.prod(shape) * 4}
    return replace(tensor, dtype="float32", bits=_FLOAT, **own)
