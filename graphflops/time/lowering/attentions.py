"""Attention: the kernel that PyTorch chooses, or the products and the softmax that it falls back to."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from graphflops.time.kernel import Attention, Kernel, Product, Rows
from graphflops.time.lowering.moved import elementwise

if TYPE_CHECKING:
    from graphflops.time.concrete import ConcreteCall, Tensor
    from graphflops.time.kernel import AttentionKernel, Pass

_TILE = 128  # queries and keys of one tile of a fused kernel
_WIDEST_FUSED = 256


def attention(call: ConcreteCall) -> list[Kernel]:
    """One fused kernel, or the unfused products."""
    found = _operands(call)
    if found is None:
        return []
    query, key, value = found
    kernel = kernel_of(call, query, value)
    if kernel == "math":
        return _unfused(call, query, key, value)
    return [_fused(call, kernel, "forward", call.cost.matrix_flops)]


def attention_backward(call: ConcreteCall) -> list[Kernel]:
    """The fused backward, after the sums of each row that it starts from; or the products and the softmax's gradient."""
    found = _operands(call)
    if found is None or call.gradient is None:
        return []
    query, key, value = found
    kernel = kernel_of(call, query, value)
    if kernel == "math":
        return [part for part in _unfused(call, query, key, value) for _ in range(2)]
    out = call.out or query
    rows = elementwise(out, 2 * out.full_bytes, out.numel // max(out.shape[-1], 1) * 4)
    return [rows, _fused(call, kernel, "backward", call.backward_cost.matrix_flops)]


def kernel_of(call: ConcreteCall, query: Tensor, value: Tensor) -> AttentionKernel:
    """The kernel that PyTorch chooses."""
    if (
        query.bits == 16
        and max(query.shape[-1], value.shape[-1]) <= _WIDEST_FUSED
        and query.shape[-1] % 8 == 0
    ):
        return "cudnn"
    return "efficient" if query.dtype == "float32" else "math"


def _operands(call: ConcreteCall) -> tuple[Tensor, Tensor, Tensor] | None:
    query, key, value = (call.operand(name) for name in ("query", "key", "value"))
    if query is None or key is None or value is None or min(query.rank, key.rank, value.rank) < 2:
        return None
    return query, key, value


def _fused(call: ConcreteCall, kernel: AttentionKernel, phase: Pass, flops: int) -> Kernel:
    found = _operands(call)
    assert found is not None
    query, key, value = found
    cost = call.cost if phase == "forward" else call.backward_cost
    return Kernel(
        "attention",
        query.dtype,
        flops,
        read_bytes=cost.read_bytes,
        written_bytes=cost.written_bytes,
        sizes=Attention(
            batch=prod(query.shape[:-3]),
            heads=query.shape[-3] if query.rank > 2 else 1,
            kv_heads=key.shape[-3] if key.rank > 2 else 1,
            queries=query.shape[-2],
            keys=key.shape[-2],
            width=max(query.shape[-1], value.shape[-1]),
            computed=computed_fraction(call, query.shape[-2], key.shape[-2]),
            kernel=kernel,
            phase=phase,
        ),
    )


def computed_fraction(call: ConcreteCall, queries: int, keys: int) -> float:
    """The fraction of all pairs in tiles that the kernel multiplies: those that the operator's own mask does not hide whole.

    A mask that is passed as a tensor hides nothing from the kernel, which adds it to the scores.
    """
    if call.arguments.get("is_causal") is True and queries and keys:
        return _causal_fraction(queries, keys)
    cost = call.cost
    return 1 - cost.masked_flops / cost.matrix_flops if cost.matrix_flops else 1.0


def _causal_fraction(queries: int, keys: int) -> float:
    """Of a causal mask, whose first query sees the first key: tiles that hold a visible pair."""
    rows, columns = -(-queries // _TILE), -(-keys // _TILE)
    computed = sum(min(row + 1, columns) for row in range(rows))
    return computed / (rows * columns)


def _unfused(call: ConcreteCall, query: Tensor, key: Tensor, value: Tensor) -> list[Kernel]:
    """Scaled query and key, their product, the mask, the softmax, the product with the values."""
    batch, rows, keys = prod(query.shape[:-2]), query.shape[-2], key.shape[-2]
    scores, bits = batch * rows * keys, query.bits
    score_bytes = scores * bits // 8
    mask = call.operand("mask")
    scaled = [elementwise(tensor, tensor.full_bytes, tensor.full_bytes) for tensor in (query, key)]
    added = [] if mask is None else [elementwise(query, score_bytes + mask.nbytes, score_bytes, scores)]
    softmax = Kernel(
        *("softmax", query.dtype),
        vector_flops=5 * scores,
        read_bytes=score_bytes,
        written_bytes=score_bytes,
        sizes=Rows(batch * rows, keys),
    )
    first = _product(query, batch, rows, keys, query.shape[-1], "tn")
    second = _product(query, batch, rows, value.shape[-1], keys, "nn")
    return [*scaled, first, *added, softmax, second]


def _product(like: Tensor, batch: int, m: int, n: int, k: int, layout: str) -> Kernel:
    from graphflops.time.lowering.products import Problem

    return Problem(Product(m, n, k, batch, layout), like.dtype, like.bits).kernel()  # type: ignore[arg-type]
