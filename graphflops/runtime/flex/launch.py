"""Launches the attention kernels, forward and backward, with their operands, strides, constants and sizes of tiles.

They are also registered as operators of torch, so that autograd, torch.compile and torch.export support them.
"""

from __future__ import annotations

import functools
from collections import namedtuple
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
import triton.language as tl
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from graphflops.errors import ModelError
from graphflops.runtime.flex.blocks import Kernel, Tiles, tiles_for
from graphflops.runtime.flex.kernels import forward_kernel, key_kernel, query_kernel
from graphflops.runtime.flex.trace import functions

# The most bytes of keys and values of heads that run together: half of a large L2 cache.
_CACHE_BYTES = 24 << 20


@dataclass(frozen=True)
class LaunchSettings:
    """The arguments that every launch of one attention shares."""

    # By row: counts and indices of partial blocks, then of full blocks. Then the same four by column.
    lists: Sequence[Tensor]
    buffers: Sequence[Tensor]
    functions: str
    scale: float
    rows: int
    columns: int
    contiguous: int  # one bit each for the partial and full lists by row, then by column, from the lowest
    present: int  # bits, like `contiguous`
    count: int


INTERPRETED = not hasattr(forward_kernel, "cache_key")  # kernels run in Triton's interpreter
# Compile-time constants of a kernel. ROWS, COLUMNS: of a tile. SHARING: query heads per key head. EVEN_...: no tile exceeds
# the length. CLAMP: keep indices inside buffers. COUNT: 0 nothing, 1 tiles, 2 tiles and visible scores. SUM: type of sums.
# UPCAST: products in single precision.
Constants = namedtuple(
    "Constants",
    "HAS_SCORE HAS_MASK SCALE WIDTH VALUE_WIDTH BLOCK_WIDTH BLOCK_VALUE_WIDTH ROWS COLUMNS BLOCK_ROWS BLOCK_COLUMNS "
    "SHARING TOGETHER HAS_PARTIAL HAS_FULL PARTIAL_CONTIGUOUS FULL_CONTIGUOUS EVEN_QUERIES EVEN_KEYS CLAMP COUNT "
    "DESCRIPTORS STAGES SUM PRECISION UPCAST",
)


def laid_out(
    kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, problem: LaunchSettings
) -> tuple[Tiles, int, Tensor]:
    """The tiles of a kernel, its number of programs (one for each tile in each head), and a tensor for their counts."""
    tiles = tiles_for(kernel, q, v, (problem.rows, problem.columns))
    rows, tile = (k, tiles.columns) if kernel == "key_gradient" else (q, tiles.rows)
    batch, heads, length = rows.shape[:3]
    programs: int = -(-length // tile) * batch * heads
    return tiles, programs, q.new_empty((programs if problem.count else 0, 3), dtype=torch.int64)


def check(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise ModelError for operands that the kernels do not support."""
    if not q.dtype == k.dtype == v.dtype:
        raise ModelError(f"query, key and value differ in type: {q.dtype}, {k.dtype}, {v.dtype}")
    if q.dtype not in _TRITON_TYPES:
        raise ModelError(f"attention in {q.dtype} has no kernel; use float16, bfloat16 or float32")
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4:
        raise ModelError("query, key and value are [batch, heads, length, width]")
    if q.shape[-1] != k.shape[-1] or k.shape[:3] != v.shape[:3] or q.shape[0] != k.shape[0]:
        shapes = f"{list(q.shape)}, {list(k.shape)}, {list(v.shape)}"
        raise ModelError(f"query, key and value do not fit: {shapes}")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ModelError(f"{q.shape[1]} query heads cannot share {k.shape[1]} key heads")
    if max(q.shape[-1], v.shape[-1]) > 256:
        raise ModelError("head widths above 256 have no kernel")
    if not q.is_cuda and not INTERPRETED:
        where = f"CUDA, not {q.device.type}; TRITON_INTERPRET=1 runs them anywhere"
        raise ModelError(f"attention kernels run on {where}")


@functools.lru_cache(4096)
def _constants(
    dtype: torch.dtype, q_shape: torch.Size, k_shape: torch.Size, value_width: int, key: str, scale: float,
    rows: int, columns: int, contiguous: int, present: int, count: int, indexed: bool, tiles: Tiles,
    use: bool, by_column: bool, exact: bool,
) -> dict[str, Any]:  # fmt: skip
    """Compile-time arguments of all kernels. use: descriptors are used. exact: float32 products do not use TF32."""
    sharing, itemsize = q_shape[1] // k_shape[1], dtype.itemsize
    length, share, heads = (q_shape[2], 1, k_shape[1]) if by_column else (k_shape[2], sharing, q_shape[1])
    # The number of heads that run at the same time: their keys and values must fit in the L2 cache.
    most = max(1, min(_CACHE_BYTES // max(length * (q_shape[3] + value_width) * itemsize, 1), 64)) * share
    together = 1 << (min(most, max(q_shape[0] * heads, 1)).bit_length() - 1)
    given, listed, follows = functions(key), present >> 2 * by_column, contiguous >> 2 * by_column
    even_queries, even_keys = q_shape[2] % rows == 0, k_shape[2] % columns == 0
    known = Constants(
        HAS_SCORE=given.score is not None, HAS_MASK=given.mask is not None, SCALE=scale,
        WIDTH=q_shape[-1], BLOCK_WIDTH=_block_width(q_shape[-1]),
        VALUE_WIDTH=value_width, BLOCK_VALUE_WIDTH=_block_width(value_width),
        ROWS=tiles.rows, COLUMNS=tiles.columns, BLOCK_ROWS=rows, BLOCK_COLUMNS=columns,
        SHARING=sharing, TOGETHER=together,
        HAS_PARTIAL=bool(listed & 1), PARTIAL_CONTIGUOUS=bool(follows & 1),
        HAS_FULL=bool(listed & 2), FULL_CONTIGUOUS=bool(follows & 2),
        EVEN_QUERIES=even_queries, EVEN_KEYS=even_keys,
        CLAMP=indexed and not (even_queries and even_keys),  # functions read with the indices
        COUNT=count, DESCRIPTORS=use, STAGES=tiles.stages,
        SUM=_TRITON_TYPES[sum_type(dtype)], UPCAST=INTERPRETED and dtype == torch.bfloat16,
        PRECISION="ieee" if exact or dtype != torch.float32 else "tf32",
    )  # fmt: skip
    launched = {"C": known, "num_warps": tiles.warps, "num_stages": tiles.stages}
    return {"SCORE": given.score, "MASK": given.mask, **launched}


def source(tensor: Tensor, rows: int, use: bool) -> Any:
    """What a kernel loads tiles from: a tensor descriptor, or the tensor itself."""
    if not use:
        return tensor
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor(tensor, *_described(tensor.shape, tensor.stride(), rows))


@functools.lru_cache(4096)
def _described(
    shape: torch.Size, strides: tuple[int, ...], rows: int
) -> tuple[list[int], list[int], list[int]]:
    """Sizes, strides and tile of a descriptor. An axis of size one gets a stride that TMA accepts."""
    width = shape[-1]
    outer = [stride if size > 1 else max(16, width) for size, stride in zip(shape, strides, strict=True)]
    return list(shape), [*outer[:-1], 1], [1, 1, rows, _block_width(width)]


@functools.lru_cache(4096)
def _regular(shape: torch.Size, strides: tuple[int, ...], size: int, device: torch.device) -> bool:
    """Whether TMA can load a tensor: Hopper or later, contiguous rows, rows and other strides in multiples of 16 bytes."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] < 9:
        return False
    if size > 4 or strides[-1] != 1 or shape[-1] * size % 16:
        return False
    outer = zip(shape[:-1], strides[:-1], strict=True)
    return all(length == 1 or (stride > 0 and stride * size % 16 == 0) for length, stride in outer)


def _block_width(width: int) -> int:
    """The power of two to which a head width is padded."""
    return max(16, 1 << max(width - 1, 0).bit_length())


_TRITON_TYPES = {
    torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32, torch.float64: tl.float64,
}  # fmt: skip


def sum_type(dtype: torch.dtype) -> torch.dtype:
    """Element type of sums."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def forward(q: Tensor, k: Tensor, v: Tensor, problem: LaunchSettings) -> tuple[Tensor, Tensor, Tensor]:
    """Output, log-sum-exp, and each program's counts [programs, 3], empty if nothing is counted."""
    check(q, k, v)
    out = q.new_empty((*q.shape[:3], v.shape[-1]))
    lse = torch.empty(q.shape[:3], dtype=sum_type(q.dtype), device=q.device)
    with torch.cuda.device_of(q):
        counts = _run("forward", forward_kernel, (q, k, v), (out, lse), (out,), problem)
    return out, lse, counts


def backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
    grad: Tensor, grad_lse: Tensor | None, problem: LaunchSettings,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k and v, and the counts of the two kernels. The first writes `delta`, which the second reads."""
    check(q, k, v)
    grad_q, grad_k, grad_v = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    loaded, gradient = (q, k, v, grad), functions(problem.functions).gradient
    with torch.cuda.device_of(q):
        delta = torch.empty_like(lse)
        own = (out, lse, delta if grad_lse is None else grad_lse.contiguous(), delta, grad_q)
        more = {"GRADIENT": gradient, "HAS_GRAD_LSE": grad_lse is not None}
        counts = _run("query_gradient", query_kernel, loaded, own, (out, grad_q), problem, **more)
        written = (grad_k, grad_v)
        of_keys = (lse, delta, *written)
        key_counts = _run("key_gradient", key_kernel, loaded, of_keys, written, problem, GRADIENT=gradient)
    return grad_q, grad_k, grad_v, counts, key_counts


def _run(
    name: Kernel, kernel: Any, loaded: tuple[Tensor, ...], own: tuple[Tensor, ...],
    strided: tuple[Tensor, ...], problem: LaunchSettings, **more: Any,
) -> Tensor:  # fmt: skip
    """Launch a kernel; returns each program's counts.

    loaded: query, key, value, and the gradient of the output, which it loads in tiles. own: its further tensors.
    strided: those among them that need not be contiguous.
    """
    q, k, v = loaded[:3]
    by_column = name == "key_gradient"
    tiles, programs, counts = laid_out(name, q, k, v, problem)
    regular = (_regular(x.shape, x.stride(), x.element_size(), x.device) for x in loaded)
    # all tensors must suit TMA
    use = tiles.descriptors and all(x.data_ptr() % 16 == 0 for x in loaded) and all(regular)
    # torch's default is exact, unless the user lowers it.
    exact = torch.get_float32_matmul_precision() == "highest"
    constants = _constants(
        *(q.dtype, q.shape, k.shape, v.shape[-1]),
        *(problem.functions, problem.scale, problem.rows, problem.columns, problem.contiguous),
        *(problem.present, problem.count, bool(problem.buffers), tiles, use, by_column, exact),
    )
    lists = tuple(problem.lists[4:] if by_column else problem.lists[:4])
    # The capacity of each line of partial and of full lists; the sizes of the mask.
    meta = (lists[1].shape[-1], lists[3].shape[-1], *lists[0].shape)
    heights = (tiles.rows, tiles.columns, tiles.columns, tiles.rows)
    _start(
        *(kernel, programs, constants),
        *(source(tensor, rows, use) for tensor, rows in zip(loaded, heights, strict=False)),
        *(*own, counts, lists, tuple(problem.buffers) or (q,)),  # no kernel takes an empty list
        *(tensor.stride() for tensor in (*loaded, *strided)),
        *(meta, (*q.shape[:3], k.shape[2])),
        **more,
    )
    return counts


def _start(kernel: Any, programs: int, constants: dict[str, Any], *args: Any, **more: Any) -> None:
    """Launch a kernel, with fewer stages if the loads of its functions leave too little shared memory."""
    from triton.runtime.errors import OutOfResources

    while programs:
        try:
            kernel[(programs,)](*args, **constants, **more)
            return
        except OutOfResources as error:
            stages = constants["num_stages"] - 1
            if stages == 0:
                raise ModelError(f"attention kernel: {error}") from None
            # Later launches use the same dictionary.
            constants.update(C=constants["C"]._replace(STAGES=stages), num_stages=stages)


# Operators of torch

_PLAIN = (Tensor, torch.nn.Parameter)
_SETTINGS = (
    "Tensor[] lists, Tensor[] buffers, str functions, float scale, "
    "int rows, int columns, int contiguous, int present, int count"
)


@torch.library.custom_op(  # type: ignore[untyped-decorator]
    "graphflops::flex_attention",
    mutates_args=(),
    schema=f"(Tensor q, Tensor k, Tensor v, {_SETTINGS}) -> (Tensor, Tensor, Tensor)",
)
def flex_forward(q: Tensor, k: Tensor, v: Tensor, *settings: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Output, log-sum-exp and each program's counts; `functions` is the key of registered functions."""
    return forward(q, k, v, LaunchSettings(*settings))


@flex_forward.register_fake  # type: ignore[untyped-decorator]
def _(q: Tensor, k: Tensor, v: Tensor, *settings: Any) -> tuple[Tensor, Tensor, Tensor]:
    problem = LaunchSettings(*settings)
    return (
        q.new_empty((*q.shape[:-1], v.shape[-1])),
        q.new_empty(q.shape[:-1], dtype=sum_type(q.dtype)),
        laid_out("forward", q, k, v, problem)[2],
    )


@torch.library.custom_op(  # type: ignore[untyped-decorator]
    "graphflops::flex_attention_backward",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor grad, Tensor? grad_lse, "
    f"{_SETTINGS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def flex_backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
    grad: Tensor, grad_lse: Tensor | None, *settings: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of query, key and value, and the counts of the two kernels."""
    return backward(q, k, v, out, lse, grad, grad_lse, LaunchSettings(*settings))


@flex_backward.register_fake  # type: ignore[untyped-decorator]
def _(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    problem = LaunchSettings(*others[4:])
    counts = [laid_out(kernel, q, k, v, problem)[2] for kernel in ("query_gradient", "key_gradient")]
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), counts[0], counts[1]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, lists, buffers, *settings = inputs
    out, lse, counts = output
    ctx.mark_non_differentiable(counts)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, out, lse, *lists, *buffers)
    ctx.lists, ctx.settings = len(lists), settings


def _gradients(ctx: Any, grad: Any, grad_lse: Any, _counts: Any) -> tuple[Any, ...]:
    q, k, v, out, lse, *rest = ctx.saved_tensors
    lists, buffers = rest[: ctx.lists], rest[ctx.lists :]
    if grad is None and grad_lse is None:
        return (None,) * 12
    grad = torch.zeros_like(out) if grad is None else grad
    gradients = flex_backward(q, k, v, out, lse, grad, grad_lse, lists, buffers, *ctx.settings[:-1], 0)
    none: list[None] = [None] * len(lists)
    return (*gradients[:3], none, [None] * len(buffers), *(None,) * 7)


flex_forward.register_autograd(_gradients, setup_context=_keep)


class _Eager(torch.autograd.Function):  # type: ignore[misc]
    """The attention for eager calls, without the overhead of a custom operator."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, problem: LaunchSettings
    ) -> tuple[Tensor, Tensor, Tensor]:
        out, lse, counts = forward(q, k, v, problem)
        ctx.mark_non_differentiable(counts)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.problem = replace(problem, count=0)
        return out, lse, counts

    @staticmethod
    def backward(ctx: Any, grad: Any, grad_lse: Any, _counts: Any) -> tuple[Any, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        if grad is None and grad_lse is None:
            return (None,) * 4
        grad = torch.zeros_like(out) if grad is None else grad
        return (*backward(q, k, v, out, lse, grad, grad_lse, ctx.problem)[:3], None)


def run_forward(q: Tensor, k: Tensor, v: Tensor, problem: LaunchSettings) -> tuple[Tensor, Tensor, Tensor]:
    """Output, log-sum-exp and counts, by the operator while torch traces, else without it."""
    found: tuple[Tensor, Tensor, Tensor]
    if torch.compiler.is_compiling() or type(q) not in _PLAIN or _get_current_dispatch_mode() is not None:
        settings = (getattr(problem, field.name) for field in fields(problem))
        found = flex_forward(q, k, v, *settings)
    elif torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        found = _Eager.apply(q, k, v, problem)
    else:
        found = forward(q, k, v, problem)
    return found
