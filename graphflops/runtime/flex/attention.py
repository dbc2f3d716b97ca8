"""Attention in Python: prepared once for a score function and a mask, then called with queries, keys and values."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from graphflops.errors import ModelError
from graphflops.runtime.flex import blocks as block_lists, launch
from graphflops.runtime.flex.blocks import FlexCounts, Kernel, MaskBlocks
from graphflops.runtime.flex.trace import functions, written

BLOCK = 128  # default rows and columns of a block


@dataclass(frozen=True)
class PreparedAttention:
    """One attention, ready to run on operands of the sizes of its blocks."""

    blocks: MaskBlocks
    settings: launch.LaunchSettings  # arguments of its kernels besides operands, scale and what to count

    @property
    def source(self) -> str:
        """The generated functions, as Python text."""
        return functions(self.settings.functions).source

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> tuple[Tensor, Tensor]:
        """Output, and log-sum-exp of each row (natural logarithm)."""
        out, lse, _ = self.forward(q, k, v, scale)
        return out, lse

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, count: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Output, log-sum-exp and each program's counts. count: 0 nothing, 1 tiles, 2 tiles and visible scores."""
        made = self.blocks
        if (q.shape[2], k.shape[2]) != (made.queries, made.keys):
            lengths = f"{made.queries} queries and {made.keys} keys"
            raise ModelError(f"the mask is for {lengths}, not {q.shape[2]} and {k.shape[2]}")
        made.repeats(q.shape[0], q.shape[1])
        k, v = (x.expand(q.shape[0], -1, -1, -1) if x.shape[0] == 1 < q.shape[0] else x for x in (k, v))
        return launch.run_forward(q, k, v, self.problem(q, scale, count))

    def backward(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
        grad: Tensor, grad_lse: Tensor | None = None, scale: float | None = None, count: int = 0,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        """Gradients of q, k and v, and the counts of the two kernels (query gradient, then key gradient)."""
        return launch.backward(q, k, v, out, lse, grad, grad_lse, self.problem(q, scale, count))

    def predicted(self, kernel: Kernel, q: Tensor, v: Tensor) -> FlexCounts:
        """The tiles that a kernel is predicted to compute for such operands."""
        tiles = block_lists.tiles_for(kernel, q, v, (self.blocks.rows, self.blocks.columns))
        by_column = kernel == "key_gradient"
        return block_lists.predicted_tiles(self.blocks, tiles, q.shape[0], q.shape[1], by_column)

    def tile_flops(self, kernel: Kernel, q: Tensor, v: Tensor) -> int:
        """FLOPs of one tile's products: two forward, three for the query's gradient, four for the key's and value's."""
        tiles = block_lists.tiles_for(kernel, q, v, (self.blocks.rows, self.blocks.columns))
        width, value = int(q.shape[-1]), int(v.shape[-1])
        of_keys, of_values = {"forward": (1, 1), "query_gradient": (2, 1), "key_gradient": (2, 2)}[kernel]
        return 2 * tiles.rows * tiles.columns * (of_keys * width + of_values * value)

    def problem(self, q: Tensor, scale: float | None = None, count: int = 0) -> launch.LaunchSettings:
        """The arguments of a launch except its operands."""
        scale = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
        return replace(self.settings, scale=scale, count=count)


def prepare(
    q: Tensor, k: Tensor, score_mod: Callable[..., Any] | None = None,
    block_mask: Any = None, score_tensors: Sequence[Tensor] = (),
    mask_tensors: Sequence[Tensor] = (),
) -> PreparedAttention:  # fmt: skip
    """Trace and translate a score function and a mask's function, and list the mask's blocks.

    q, k: operands of the sizes and element type that it will be called with; nothing is computed from them.
    score_mod: `score_mod(score, b, h, q_idx, kv_idx, *score_tensors)`.
    block_mask: torch's `BlockMask`, or `(function, Blocks)`; None masks nothing.
    """
    if block_mask is None:
        queries, keys = q.shape[2], k.shape[2]
        mask, blocks = None, block_lists.dense(queries, keys, _block(queries), _block(keys), q.device)
    elif isinstance(block_mask, tuple):
        mask, blocks = block_mask
    else:
        mask, blocks = block_mask.mask_mod, block_lists.from_block_mask(block_mask)
    key, buffers = written(score_mod, mask, q.dtype, q.device, score_tensors, mask_tensors)
    each = (*blocks.by_row, *blocks.by_column)
    settings = launch.LaunchSettings(
        lists=tuple(tensor for x in each for tensor in (x.counts, x.places)),
        buffers=buffers,
        functions=key,
        scale=1.0,
        rows=blocks.rows,
        columns=blocks.columns,
        contiguous=sum(x.contiguous << bit for bit, x in enumerate(each)),
        present=sum((not x.empty) << bit for bit, x in enumerate(each)),
        count=0,
    )
    return PreparedAttention(blocks, settings)


def flex_attention(
    q: Tensor, k: Tensor, v: Tensor, score_mod: Callable[..., Any] | None = None,
    block_mask: Any = None, scale: float | None = None, enable_gqa: bool = False, return_lse: bool = False,
    count: bool = False,
) -> Any:  # fmt: skip
    """Attention as torch's `flex_attention` defines it. `return_lse` and `count` add their results, in that order.

    Functions are traced at every call. Use `prepare` where that matters, and for torch.compile.
    count: return a `FlexCounts` of the forward kernel, with visible scores.
    """
    if q.shape[1] != k.shape[1] and not enable_gqa:
        raise ModelError(f"{q.shape[1]} query heads for {k.shape[1]} key heads: pass enable_gqa=True")
    out, lse, counts = prepare(q, k, score_mod, block_mask).forward(q, k, v, scale, 2 if count else 0)
    more = (*((lse,) if return_lse else ()), *((counted(counts),) if count else ()))
    return (out, *more) if more else out


def scaled_dot_product_attention(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Attention as torch's function of that name defines it, without dropout, by the same kernel with a generated mask."""
    if attn_mask is not None and is_causal:
        raise ModelError("attn_mask and is_causal exclude one another")
    if q.shape[1] != k.shape[1] and not enable_gqa:
        raise ModelError(f"{q.shape[1]} query heads for {k.shape[1]} key heads: pass enable_gqa=True")
    out, _ = sdpa(q, k, attn_mask, is_causal)(q, k, v, scale)
    return out


def sdpa(q: Tensor, k: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> PreparedAttention:
    """`scaled_dot_product_attention` prepared: dense, causal (from the top left), or with a mask or bias tensor."""
    queries, keys = q.shape[2], k.shape[2]
    rows, columns = _block(queries), _block(keys)
    if is_causal:
        blocks = block_lists.causal(queries, keys, rows, columns, q.device)
        return prepare(q, k, None, (lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, blocks))
    if attn_mask is None:
        return prepare(q, k)
    full = attn_mask.detach().reshape((1,) * (4 - attn_mask.dim()) + tuple(attn_mask.shape))
    spread = full.expand(*full.shape[:2], queries, keys)
    # An axis of size one is indexed at zero for every batch entry or head.
    entry, head = (int(size > 1) for size in full.shape[:2])

    def given(b: Tensor, h: Tensor, i: Tensor, j: Tensor, m: Tensor) -> Tensor:
        return m[b * entry, h * head, i, j]

    if attn_mask.dtype == torch.bool:
        return prepare(q, k, None, (given, block_lists.from_mask(spread, rows, columns)), (), (spread,))
    return prepare(q, k, lambda score, *place: score + given(*place), None, (spread,))


def counted(counts: Tensor) -> FlexCounts:
    """The sum of the programs' counts; waits for the kernel."""
    return FlexCounts(*counts.sum(0).tolist())


def _block(length: int) -> int:
    """The size of a block: the default, or less if the length is less."""
    return max(16, min(BLOCK, 1 << max(length - 1, 0).bit_length()))
