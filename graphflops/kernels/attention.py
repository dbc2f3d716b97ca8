"""Attention: the kernel that PyTorch chooses, or the products and the softmax that it falls back to."""

from __future__ import annotations

import math

from msgspec.structs import replace

from graphflops.attention.attention_use import causal_fraction
from graphflops.execution.strides import row_major
from graphflops.kernels.attention_memory import FLASH_ALIGNMENT, MASK_ALIGNMENT, rounded
from graphflops.kernels.call import ConcreteCall, Tensor
from graphflops.kernels.kernel import Attention, AttentionKernel, Kernel, Pass, Product, Rows, Strided
from graphflops.kernels.moved import copy, copy_to, elementwise, fill, sum_to
from graphflops.kernels.products import Problem as Factors

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
        if (width := rounded(x.shape[-1], FLASH_ALIGNMENT)) != x.shape[-1]:
            filled += [fill(replace(x, shape=(*x.shape[:-1], width))), copy(x)]
    mask = call.operand("mask")
    numbers = mask_numbers(mask, operands[0])
    if kernel == "efficient" and mask is not None and _is_uneven(mask):
        filled += _padded(mask, operands[0])
    return [*numbers, *filled, _fused(call, operands, kernel, "forward")]


def _is_uneven(mask: Tensor) -> bool:
    return bool(mask.rank) and mask.shape[-1] % MASK_ALIGNMENT != 0


def _padded(mask: Tensor, query: Tensor) -> list[Kernel]:
    """A mask of numbers whose rows are filled up to whole loads (`pad_bias` of ATen)."""
    rows = (*mask.shape[:-1], rounded(mask.shape[-1], MASK_ALIGNMENT))
    numbers = replace(mask, dtype=query.dtype, bits=query.bits, nbytes=mask.numel * query.bits // 8)
    return [fill(replace(numbers, shape=rows)), copy_to(replace(numbers, strides=row_major(rows)), numbers)]


def _of_mask(mask: Tensor, query: Tensor) -> list[Kernel]:
    """The gradient of a mask: that of all scores added up where they share it, and once more in rows that were filled up."""
    shape = (*query.shape[:-1], mask.shape[-1])
    scores = replace(mask, shape=shape, strides=row_major(shape), nbytes=math.prod(shape) * mask.bits // 8)
    places = range(1, mask.rank + 1)
    kept = [len(shape) - place for place in places if mask.shape[-place] == shape[-place]]
    summed = [sum_to(scores, kept, mask.bits)] if scores.numel > mask.numel else []
    if not _is_uneven(mask):
        return summed
    before, into = _padded(mask, query)
    return [*summed, before, into, into]


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
        kernels += _of_mask(mask, query)
    shared, heads = key.shape[-3:-2], query.shape[-3:-2]
    if shared == heads or not shared or not heads:
        return kernels
    # What each query head gives to keys and values that heads share is added up.
    written = key.full_bytes + value.full_bytes
    read, work = (each * heads[0] // max(shared[0], 1) for each in (written, key.numel + value.numel))
    return [*kernels, Kernel("reduction", query.dtype, 0, work, read, written, variant="heads")]


def _operands(call: ConcreteCall) -> tuple[Tensor, Tensor, Tensor] | None:
    query, key, value = (call.operand(name) for name in ("query", "key", "value"))
    if query is None or key is None or value is None or min(query.rank, key.rank, value.rank) < _LEAST_RANK:
        return None
    return query, key, value


def _fused(
    call: ConcreteCall, operands: tuple[Tensor, Tensor, Tensor], kernel: AttentionKernel, phase: Pass
) -> Kernel:
    (query, key, value), is_forward = operands, phase == "forward"
    cost = call.cost if is_forward else call.backward_cost
    computed = computed_fraction(call, query.shape[-2], key.shape[-2])
    sizes = Attention(
        batch=math.prod(query.shape[:-3]),
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


_FLOAT = 32  # bits


def unfused(call: ConcreteCall, query: Tensor, key: Tensor, value: Tensor) -> list[Kernel]:
    """What `_scaled_dot_product_attention_math` of ATen runs: all of it in float32, with the scores in memory."""
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
