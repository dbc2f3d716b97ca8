"""Launching the kernels: shapes, strides, descriptors and the sizes of tiles."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import triton.language as tl

from graphflops.errors import ModelError
from graphflops.runtime.flex import configs
from graphflops.runtime.flex.backward import key_kernel, query_kernel
from graphflops.runtime.flex.forward import forward_kernel
from graphflops.runtime.flex.functions import functions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.runtime.flex.configs import Kernel, Tiles

_CACHE_BYTES = (
    24 << 20
)  # keys and values of heads that run together; half of what a large second-level cache holds


@dataclass(frozen=True)
class LaunchSettings:
    """What is the same for every launch of one attention.

    lists: counts and places of partial blocks, then of full ones, by row, then the same four by column.
    contiguous, present: of partial and full lists by row, then by column: bits from the lowest.
    """

    lists: Sequence[torch.Tensor]
    buffers: Sequence[torch.Tensor]
    functions: str
    scale: float
    rows: int
    columns: int
    contiguous: int
    present: int
    count: int


@functools.cache
def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter."""
    return not hasattr(forward_kernel, "cache_key")


def tiles_for(
    kernel: Kernel, q: torch.Tensor, v: torch.Tensor, blocks: tuple[int, int] | None = None
) -> Tiles:
    """The settings a kernel will run with."""
    return configs.choose(
        kernel, _device_name(q.device), q.element_size(), max(q.shape[-1], v.shape[-1]), blocks
    )


def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, problem: LaunchSettings
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Output, log-sum-exp, and each program's counts [programs, 3] (none where nothing is counted)."""
    check(q, k, v)
    tiles = tiles_for("forward", q, v, (problem.rows, problem.columns))
    batch, heads, queries, _ = q.shape
    out = q.new_empty((batch, heads, queries, v.shape[-1]))
    lse = torch.empty((batch, heads, queries), dtype=_sum_type(q.dtype), device=q.device)
    programs = -(-queries // tiles.rows) * batch * heads
    counts = _counters(programs, problem.count, q.device)
    use = tiles.descriptors and _describable(q, k, v)
    lists, meta = _listing(problem, by_column=False)
    with _on(q.device):
        _start(
            forward_kernel,
            programs,
            _constants(q, k, v, problem, tiles, use),
            _source(q, tiles.rows, use),
            _source(k, tiles.columns, use),
            _source(v, tiles.columns, use),
            out,
            lse,
            counts,
            *lists,
            _buffers(problem, q),
            *q.stride(),
            *k.stride(),
            *v.stride(),
            *out.stride(),
            *meta,
            batch,
            heads,
            queries,
            k.shape[2],
        )
    return out, lse, counts


def backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    grad: torch.Tensor,
    grad_lse: torch.Tensor | None,
    problem: LaunchSettings,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of q, k and v, and the counts of the kernel of the query's and of the key's gradient."""
    check(q, k, v)
    grad_q, grad_k, grad_v = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    with _on(q.device):
        delta = torch.empty_like(lse)
        counts = query_gradient(q, k, v, out, grad, lse, grad_lse, delta, grad_q, problem)
        key_counts = key_gradient(q, k, v, grad, lse, delta, grad_k, grad_v, problem)
    return grad_q, grad_k, grad_v, counts, key_counts


def query_gradient(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    grad: torch.Tensor,
    lse: torch.Tensor,
    grad_lse: torch.Tensor | None,
    delta: torch.Tensor,
    grad_q: torch.Tensor,
    problem: LaunchSettings,
) -> torch.Tensor:
    """Write the query's gradient, and `delta` for the key's; each program's counts."""
    tiles = tiles_for("query_gradient", q, v, (problem.rows, problem.columns))
    batch, heads, queries, _ = q.shape
    programs = -(-queries // tiles.rows) * batch * heads
    counts = _counters(programs, problem.count, q.device)
    use = tiles.descriptors and _describable(q, k, v, grad)
    lists, meta = _listing(problem, by_column=False)
    _start(
        query_kernel,
        programs,
        _constants(q, k, v, problem, tiles, use),
        _source(q, tiles.rows, use),
        _source(k, tiles.columns, use),
        _source(v, tiles.columns, use),
        _source(grad, tiles.rows, use),
        out,
        lse,
        delta if grad_lse is None else grad_lse.contiguous(),
        delta,
        grad_q,
        counts,
        *lists,
        _buffers(problem, q),
        *q.stride(),
        *k.stride(),
        *v.stride(),
        *grad.stride(),
        *out.stride(),
        *grad_q.stride(),
        *meta,
        batch,
        heads,
        queries,
        k.shape[2],
        GRADIENT=functions(problem.functions).gradient,
        HAS_GRAD_LSE=grad_lse is not None,
    )
    return counts


def key_gradient(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    grad: torch.Tensor,
    lse: torch.Tensor,
    delta: torch.Tensor,
    grad_k: torch.Tensor,
    grad_v: torch.Tensor,
    problem: LaunchSettings,
) -> torch.Tensor:
    """Write the gradients of key and value; each program's counts."""
    tiles = tiles_for("key_gradient", q, v, (problem.rows, problem.columns))
    batch, heads, queries, _ = q.shape
    pairs = batch * k.shape[1]
    programs = -(-k.shape[2] // tiles.columns) * pairs
    counts = _counters(programs, problem.count, q.device)
    use = tiles.descriptors and _describable(q, k, v, grad)
    lists, meta = _listing(problem, by_column=True)
    _start(
        key_kernel,
        programs,
        _constants(q, k, v, problem, tiles, use, by_column=True),
        _source(q, tiles.rows, use),
        _source(k, tiles.columns, use),
        _source(v, tiles.columns, use),
        _source(grad, tiles.rows, use),
        lse,
        delta,
        grad_k,
        grad_v,
        counts,
        *lists,
        _buffers(problem, q),
        *q.stride(),
        *k.stride(),
        *v.stride(),
        *grad.stride(),
        *grad_k.stride(),
        *grad_v.stride(),
        *meta,
        batch,
        heads,
        queries,
        k.shape[2],
        GRADIENT=functions(problem.functions).gradient,
    )
    return counts


def _start(kernel: Any, programs: int, constants: dict[str, Any], *args: Any, **more: Any) -> None:
    """Launch a kernel, with fewer stages where a function's own loads leave no room for as many."""
    from triton.runtime.errors import OutOfResources

    while programs:
        try:
            kernel[(programs,)](*args, **constants, **more)
            return
        except OutOfResources as error:
            if constants["STAGES"] == 1:
                raise ModelError(f"attention kernel: {error}") from None
            # The dictionary is the one that later launches find.
            constants["STAGES"] = constants["num_stages"] = constants["STAGES"] - 1


def _on(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Triton launches on the current device: make it the operands'."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    chosen: contextlib.AbstractContextManager[None] = torch.cuda.device(device)
    return chosen


# Arguments


def check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Raise ModelError for operands that no kernel takes."""
    if not q.dtype == k.dtype == v.dtype:
        raise ModelError(f"query, key and value differ in type: {q.dtype}, {k.dtype}, {v.dtype}")
    if q.dtype not in _TRITON_TYPES:
        raise ModelError(f"attention in {q.dtype} has no kernel; use float16, bfloat16 or float32")
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4:
        raise ModelError("query, key and value are [batch, heads, length, width]")
    if q.shape[-1] != k.shape[-1] or k.shape[:3] != v.shape[:3] or q.shape[0] != k.shape[0]:
        raise ModelError(
            f"query, key and value do not fit: {list(q.shape)}, {list(k.shape)}, {list(v.shape)}"
        )
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ModelError(f"{q.shape[1]} query heads cannot share {k.shape[1]} key heads")
    if max(q.shape[-1], v.shape[-1]) > 256:
        raise ModelError("head widths above 256 have no kernel")
    if not q.is_cuda and not interpreted():
        raise ModelError(
            f"attention kernels run on CUDA, not {q.device.type}; TRITON_INTERPRET=1 runs them anywhere"
        )


def _constants(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    problem: LaunchSettings,
    tiles: Tiles,
    use: bool,
    by_column: bool = False,
) -> dict[str, Any]:
    """Compile-time arguments that all kernels take."""
    return _known_constants(
        *(q.dtype, q.shape, k.shape, v.shape[-1]),
        *(problem.functions, problem.scale, problem.rows, problem.columns, problem.contiguous),
        *(problem.present, problem.count, bool(problem.buffers), tiles, use, by_column, _exact()),
    )


@functools.lru_cache(4096)
def _known_constants(
    dtype: torch.dtype,
    q_shape: torch.Size,
    k_shape: torch.Size,
    value_width: int,
    key: str,
    scale: float,
    rows: int,
    columns: int,
    contiguous: int,
    present: int,
    count: int,
    indexed: bool,
    tiles: Tiles,
    use: bool,
    by_column: bool,
    exact: bool,
) -> dict[str, Any]:
    given = functions(key)
    even_queries, even_keys = q_shape[2] % rows == 0, k_shape[2] % columns == 0
    sharing, itemsize, shift = q_shape[1] // k_shape[1], dtype.itemsize, 2 * by_column
    if by_column:
        side = _together(q_shape[2] * (q_shape[3] + value_width) * itemsize, 1, k_shape[0] * k_shape[1])
    else:
        side = _together(k_shape[2] * (k_shape[3] + value_width) * itemsize, sharing, q_shape[0] * q_shape[1])
    return {
        "SCORE": given.score,
        "MASK": given.mask,
        "HAS_SCORE": given.score is not None,
        "HAS_MASK": given.mask is not None,
        "SCALE": scale,
        "WIDTH": q_shape[-1],
        "VALUE_WIDTH": value_width,
        "BLOCK_WIDTH": _block_width(q_shape[-1]),
        "BLOCK_VALUE_WIDTH": _block_width(value_width),
        "ROWS": tiles.rows,
        "COLUMNS": tiles.columns,
        "BLOCK_ROWS": rows,
        "BLOCK_COLUMNS": columns,
        "SHARING": sharing,
        "TOGETHER": side,
        "HAS_PARTIAL": bool(present >> shift & 1),
        "HAS_FULL": bool(present >> shift & 2),
        "PARTIAL_CONTIGUOUS": bool(contiguous >> shift & 1),
        "FULL_CONTIGUOUS": bool(contiguous >> shift & 2),
        "EVEN_QUERIES": even_queries,
        "EVEN_KEYS": even_keys,
        "CLAMP": indexed and not (even_queries and even_keys),
        "COUNT": count,
        "DESCRIPTORS": use,
        "STAGES": tiles.stages,
        "SUM": _TRITON_TYPES[_sum_type(dtype)],
        "PRECISION": "ieee" if exact or dtype != torch.float32 else "tf32",
        "UPCAST": interpreted() and dtype == torch.bfloat16,
        "num_warps": tiles.warps,
        "num_stages": tiles.stages,
    }


def _listing(problem: LaunchSettings, by_column: bool) -> tuple[tuple[torch.Tensor, ...], tuple[int, ...]]:
    """The four lists of a kernel; how many places each line of partial and full ones has room for, and the mask's sizes."""
    lists = tuple(problem.lists[4:] if by_column else problem.lists[:4])
    return lists, (lists[1].shape[-1], lists[3].shape[-1], *lists[0].shape)


def _source(tensor: torch.Tensor, rows: int, use: bool) -> Any:
    """What a kernel loads tiles from: a descriptor of tiles, or the tensor."""
    if not use:
        return tensor
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor(tensor, *_described(tensor.shape, tensor.stride(), rows))


@functools.lru_cache(4096)
def _described(
    shape: torch.Size, strides: tuple[int, ...], rows: int
) -> tuple[list[int], list[int], list[int]]:
    """Sizes, strides and tile of a descriptor; an axis of one has whatever stride the engine likes."""
    width = shape[-1]
    outer = [stride if size > 1 else max(16, width) for size, stride in zip(shape, strides, strict=True)]
    return list(shape), [*outer[:-1], 1], [1, 1, rows, _block_width(width)]


def _describable(*tensors: torch.Tensor) -> bool:
    """Whether the tensor copy engine takes all of them."""
    return all(
        x.data_ptr() % 16 == 0 and _regular(x.shape, x.stride(), x.element_size(), x.device) for x in tensors
    )


@functools.lru_cache(4096)
def _regular(shape: torch.Size, strides: tuple[int, ...], size: int, device: torch.device) -> bool:
    """Rows of whole elements, every other stride of 16 bytes."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] < 9:
        return False
    if size > 4 or strides[-1] != 1 or shape[-1] * size % 16:
        return False
    outer = zip(shape[:-1], strides[:-1], strict=True)
    return all(length == 1 or (stride > 0 and stride * size % 16 == 0) for length, stride in outer)


def _buffers(problem: LaunchSettings, q: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(problem.buffers) or (q,)


def _counters(programs: int, count: int, device: torch.device) -> torch.Tensor:
    return torch.empty((programs if count else 0, 3), dtype=torch.int64, device=device)


def _together(bytes_per_head: int, sharing: int, heads: int) -> int:
    """How many heads run side by side, so that what they read again and again stays in the second-level cache."""
    most = max(1, min(_CACHE_BYTES // max(bytes_per_head, 1), 64)) * sharing
    return 1 << (min(most, max(heads, 1)).bit_length() - 1)


def _block_width(width: int) -> int:
    """The power of two a head width is padded to."""
    return max(16, 1 << max(width - 1, 0).bit_length())


def _exact() -> bool:
    """Single precision is exact unless the user let torch's own products be less."""
    return bool(torch.get_float32_matmul_precision() == "highest")


_TRITON_TYPES = {
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
}


def _sum_type(dtype: torch.dtype) -> torch.dtype:
    """What sums are kept in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@functools.cache
def _device_name(device: torch.device) -> str:
    return str(torch.cuda.get_device_name(device) if device.type == "cuda" else device.type)
