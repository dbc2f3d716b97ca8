"""Runs the attention nodes of a program with our own kernel, which counts the executed tiles."""

from __future__ import annotations

import importlib.util
import math
import operator
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from msgspec import Struct

from graphflops.base.record import Record
from graphflops.errors import ModelError

if TYPE_CHECKING:
    from graphflops.runtime.flex import FlexCounts, PreparedAttention
    from graphflops.runtime.flex.blocks import Kernel

_LN2 = math.log(2)  # the log-sum-exp of torch's flex_attention has the base 2
_LARGEST_BLOCK = 2**20  # without a block mask, torch passes one block of 2**30 rows


class KernelRun(Record, frozen=True):
    """One launch of our kernel."""

    executed: FlexCounts
    predicted: FlexCounts  # from the mask's block lists
    tile_flops: int  # FLOPs of one tile's products
    pair_flops: int  # FLOPs of one score's products in the whole operator
    source: str  # the generated functions

    @property
    def flops(self) -> int:
        return (self.executed.full_tiles + self.executed.partial_tiles) * self.tile_flops


class Kernels(Struct):
    """Our attention kernels in the runs of one program."""

    counts: bool = True  # whether the kernels count; reading the counts waits for the device
    runs: list[KernelRun] = []  # with their counts, in the order of the launches
    _known: dict[Any, tuple[tuple[Any, ...], tuple[int, ...], PreparedAttention]] = {}

    def prepared(
        self, key: Any, tensors: tuple[Any, ...], make: Callable[[], PreparedAttention]
    ) -> PreparedAttention:
        """The attention prepared for a key. It is prepared again if its tensors were replaced or written to."""
        versions = tuple([x._version for x in tensors if isinstance(x, torch.Tensor)])
        if key in self._known:
            old, then, attention = self._known[key]
            if len(old) == len(tensors) and all(map(operator.is_, old, tensors)) and then == versions:
                return attention
        attention = make()
        self._known[key] = (tensors, versions, attention)
        return attention

    def forward(
        self, attention: PreparedAttention, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
        scale: float | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        """Output and log-sum-exp of a prepared attention."""
        out, lse, counts = attention.forward(query, key, value, scale, 2 if self.counts else 0)
        self.ran(attention, "forward", counts, query, value)
        return out, lse

    def ran(
        self, attention: PreparedAttention, kernel: Kernel, counts: torch.Tensor, query: torch.Tensor,
        value: torch.Tensor,
    ) -> None:  # fmt: skip
        if not self.counts:
            return
        from graphflops.runtime.flex import counted

        width, value_width = int(query.shape[-1]), int(value.shape[-1])
        # The backward computes the scores again, and the gradients of query, key, value and probabilities.
        pair = width + value_width if kernel == "forward" else 3 * width + 2 * value_width
        of_tiles = attention.predicted(kernel, query, value), attention.tile_flops(kernel, query, value)
        self.runs.append(KernelRun(counted(counts), *of_tiles, 2 * pair, attention.source))


def takes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """True if our kernel can run on these operands on this machine."""
    is_here = q.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"
    if not is_here or 0 in (*q.shape, *k.shape, *v.shape) or importlib.util.find_spec("triton") is None:
        return False
    from graphflops.runtime.flex.launch import check

    try:
        check(q, k, v)
    except ModelError:
        return False
    return True


def flex_attention(
    kernels: Kernels, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, score_mod: Any,
    block_mask: Sequence[Any], scale: float, kernel_options: Any = None,
    score_mod_other_buffers: Sequence[Any] = (), mask_mod_other_buffers: Sequence[Any] = (),
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """`higher_order.flex_attention`: output, log-sum-exp to the base 2, and row maxima."""
    if not takes(query, key, value):
        from torch._higher_order_ops.flex_attention import math_attention

        mask = (*block_mask[:-1], block_mask[-1].alone())
        buffers = (tuple(score_mod_other_buffers), tuple(mask_mod_other_buffers))
        score = score_mod.alone()
        return tuple(math_attention(query, key, value, score, mask, scale, {}, *buffers))
    captured = score_mod_other_buffers, mask_mod_other_buffers
    attention = _prepared(kernels, query, key, score_mod, block_mask, *captured)
    out, lse = kernels.forward(attention, query, key, value, scale)
    maxima = torch.full_like(lse, math.nan)  # the kernel does not compute them
    return out, lse / _LN2, maxima


def flex_attention_backward(
    kernels: Kernels, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor,
    logsumexp: torch.Tensor, grad_out: torch.Tensor | None, grad_logsumexp: torch.Tensor | None,
    fw_graph: Any, joint_graph: Any, block_mask: Sequence[Any], scale: float, kernel_options: Any = None,
    score_mod_other_buffers: Sequence[Any] = (), mask_mod_other_buffers: Sequence[Any] = (),
) -> tuple[Any, ...]:  # fmt: skip
    """`higher_order.flex_attention_backward`: gradients of query, key, value and captured tensors."""
    captured = tuple(score_mod_other_buffers), tuple(mask_mod_other_buffers)
    learned = any(isinstance(x, torch.Tensor) and x.requires_grad for x in captured[0])
    if learned or not takes(query, key, value):
        from torch._higher_order_ops.flex_attention import sdpa_dense_backward

        mask = (*block_mask[:-1], block_mask[-1].alone())
        graphs = fw_graph.alone(), joint_graph.alone()
        tensors = query, key, value, out, logsumexp, grad_out, grad_logsumexp
        return tuple(sdpa_dense_backward(*tensors, *graphs, mask, scale, {}, *captured))
    attention = _prepared(kernels, query, key, fw_graph, block_mask, *captured)
    grad = torch.zeros_like(out) if grad_out is None else grad_out
    *gradients, counts, key_counts = attention.backward(
        *(query, key, value, out, logsumexp * _LN2, grad),
        None if grad_logsumexp is None else grad_logsumexp / _LN2,
        scale,
        2 if kernels.counts else 0,
    )
    kernels.ran(attention, "query_gradient", counts, query, value)
    kernels.ran(attention, "key_gradient", key_counts, query, value)
    return (*gradients, *[None] * len(score_mod_other_buffers))


def _prepared(
    kernels: Kernels, query: torch.Tensor, key: torch.Tensor, score_mod: Any, block_mask: Sequence[Any],
    score_tensors: Sequence[Any], mask_tensors: Sequence[Any],
) -> PreparedAttention:  # fmt: skip
    from graphflops.runtime.flex import prepare
    from graphflops.runtime.flex.blocks import from_lists

    queries, keys, partial, places, full, full_places, *_, rows, columns, mask = block_mask

    def make() -> PreparedAttention:
        given = None
        if max(rows, columns) <= _LARGEST_BLOCK:
            lists = from_lists(queries, keys, (partial, places), (full, full_places), rows, columns)
            given = (mask.alone(), lists)
        return prepare(query, key, score_mod.alone(), given, tuple(score_tensors), tuple(mask_tensors))

    sizes = (query.shape, key.shape, query.dtype, query.device, queries, keys, rows, columns)
    tensors = (partial, places, full, full_places, *score_tensors, *mask_tensors)
    return kernels.prepared((score_mod.graph, mask.graph, sizes), tensors, make)
