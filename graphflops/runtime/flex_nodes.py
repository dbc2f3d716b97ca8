"""Attention nodes of a program through our own kernel, which counts what it multiplies."""

from __future__ import annotations

import importlib.util
import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.runtime.flex import Attention

_LN2 = math.log(2)  # flexible attention's own log-sum-exp is to the base 2
_LARGEST_BLOCK = 2**20  # a block mask that nobody gave is one block of 2**30 rows


@dataclass(frozen=True, slots=True)
class KernelRun:
    """One launch of a kernel of ours.

    kernel: forward, query_gradient or key_gradient. tiles, partial_tiles: multiplied, of full and of partial blocks.
    predicted: both, from the mask's lists alone. tile_flops: FLOPs of one tile's products.
    visible: scores that are not masked. pair_flops: FLOPs of one score's products in the whole operator.
    source: the functions generated for it.
    """

    kernel: str
    tiles: int
    partial_tiles: int
    predicted: tuple[int, int]
    tile_flops: int
    visible: int
    pair_flops: int
    source: str

    @property
    def flops(self) -> int:
        """FLOPs that it executed."""
        return (self.tiles + self.partial_tiles) * self.tile_flops


def takes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether our kernel can run here on such operands."""
    here = q.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"
    known = q.dtype == k.dtype == v.dtype and q.dtype in (torch.float16, torch.bfloat16, torch.float32)
    return (
        here
        and known
        and q.dim() == k.dim() == v.dim() == 4
        and max(q.shape[-1], v.shape[-1]) <= 256
        and 0 not in (*q.shape, *k.shape, *v.shape)
        and importlib.util.find_spec("triton") is not None
    )


def flex_attention(
    runs: list[KernelRun],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Any,
    block_mask: Sequence[Any],
    scale: float,
    kernel_options: Any = None,
    score_mod_other_buffers: Sequence[Any] = (),
    mask_mod_other_buffers: Sequence[Any] = (),
) -> tuple[torch.Tensor, ...]:
    """`higher_order.flex_attention`: output, log-sum-exp to the base 2, and row maxima."""
    from graphflops.runtime.flex.trace import function_of

    if not takes(query, key, value):
        from torch._higher_order_ops.flex_attention import math_attention

        mask = (*block_mask[:-1], function_of(block_mask[-1].graph))
        buffers = (tuple(score_mod_other_buffers), tuple(mask_mod_other_buffers))
        return tuple(
            math_attention(query, key, value, function_of(score_mod.graph), mask, scale, {}, *buffers)
        )
    attention = _prepared(query, key, score_mod, block_mask, score_mod_other_buffers, mask_mod_other_buffers)
    out, lse = forward(runs, attention, query, key, value, scale)
    maxima = torch.full_like(lse, math.nan)  # the kernel keeps none
    return out, lse / _LN2, maxima


def flex_attention_backward(
    runs: list[KernelRun],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    grad_out: torch.Tensor | None,
    grad_logsumexp: torch.Tensor | None,
    fw_graph: Any,
    joint_graph: Any,
    block_mask: Sequence[Any],
    scale: float,
    kernel_options: Any = None,
    score_mod_other_buffers: Sequence[Any] = (),
    mask_mod_other_buffers: Sequence[Any] = (),
) -> tuple[Any, ...]:
    """`higher_order.flex_attention_backward`: gradients of query, key and value, and of what the score function captures."""
    from graphflops.runtime.flex.trace import function_of

    learned = any(isinstance(x, torch.Tensor) and x.requires_grad for x in score_mod_other_buffers)
    if learned or not takes(query, key, value):
        from torch._higher_order_ops.flex_attention import sdpa_dense_backward

        mask = (*block_mask[:-1], function_of(block_mask[-1].graph))
        found = sdpa_dense_backward(
            *(query, key, value, out, logsumexp, grad_out, grad_logsumexp),
            *(function_of(fw_graph.graph), function_of(joint_graph.graph), mask, scale, {}),
            *(tuple(score_mod_other_buffers), tuple(mask_mod_other_buffers)),
        )
        return tuple(found)
    attention = _prepared(query, key, fw_graph, block_mask, score_mod_other_buffers, mask_mod_other_buffers)
    grad = torch.zeros_like(out) if grad_out is None else grad_out
    *gradients, counts, key_counts = attention.backward(
        *(query, key, value, out, logsumexp * _LN2, grad),
        None if grad_logsumexp is None else grad_logsumexp / _LN2,
        scale,
        2,
    )
    for kernel, counted in (("query_gradient", counts), ("key_gradient", key_counts)):
        runs.append(_run(attention, kernel, counted, query, value))
    return (*gradients, *[None] * len(score_mod_other_buffers))


def forward(
    runs: list[KernelRun],
    attention: Attention,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp of a prepared attention; what its kernel counted is added to `runs`."""
    out, lse, counts = attention.forward(query, key, value, scale, 2)
    runs.append(_run(attention, "forward", counts, query, value))
    return out, lse


def _run(
    attention: Attention, kernel: Any, counts: torch.Tensor, query: torch.Tensor, value: torch.Tensor
) -> KernelRun:
    tiles, partial, visible = counts.sum(0).tolist()
    predicted = attention.predicted(kernel, query, value)
    tile_flops = attention.tile_flops(kernel, query, value)
    width, value_width = int(query.shape[-1]), int(value.shape[-1])
    # Backward: scores again, gradients of query, key and value, and of the probabilities.
    pair = width + value_width if kernel == "forward" else 3 * width + 2 * value_width
    return KernelRun(
        kernel=kernel,
        tiles=tiles,
        partial_tiles=partial,
        predicted=(predicted.full_tiles, predicted.partial_tiles),
        tile_flops=tile_flops,
        visible=visible,
        pair_flops=2 * pair,
        source=attention.source,
    )


def _prepared(
    query: torch.Tensor,
    key: torch.Tensor,
    score_mod: Any,
    block_mask: Sequence[Any],
    score_tensors: Sequence[Any],
    mask_tensors: Sequence[Any],
) -> Attention:
    from graphflops.runtime.flex import prepare
    from graphflops.runtime.flex.blocks import from_lists

    queries, keys, partial, places, full, full_places, *_, rows, columns, mask = block_mask
    given = None
    if max(rows, columns) <= _LARGEST_BLOCK:
        given = (mask.graph, from_lists(queries, keys, (partial, places), (full, full_places), rows, columns))
    return prepare(query, key, score_mod.graph, given, tuple(score_tensors), tuple(mask_tensors))
