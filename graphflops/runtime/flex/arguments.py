"""Arguments of the kernels: operands, strides, constants and the sizes of tiles."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl

from graphflops.errors import ModelError
from graphflops.runtime.flex import configs
from graphflops.runtime.flex.configs import Kernel, Tiles
from graphflops.runtime.flex.forward import forward_kernel
from graphflops.runtime.flex.functions import functions

# Keys and values of heads that run together: half of a large second-level cache.
_CACHE_BYTES = 24 << 20


@dataclass(frozen=True)
class LaunchSettings:
    """The arguments that every launch of one attention shares.

    lists: counts and indices of partial blocks, then of full blocks, by row; then the same four by column.
    contiguous, present: one bit each for the partial and full lists by row, then by column, from the lowest.
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
    """True if kernels run in Triton's interpreter."""
    return not hasattr(forward_kernel, "cache_key")


def tiles_for(
    kernel: Kernel, q: torch.Tensor, v: torch.Tensor, blocks: tuple[int, int] | None = None
) -> Tiles:
    """The tile sizes that a kernel runs with."""
    width = max(q.shape[-1], v.shape[-1])
    return configs.choose(kernel, _device_name(q.device), q.element_size(), width, blocks)


def programs_of(kernel: Kernel, tiles: Tiles, q: torch.Tensor, k: torch.Tensor) -> int:
    """How many programs a kernel has: one for each tile of queries and head, or of keys and head of keys."""
    rows, tile = (k, tiles.columns) if kernel == "key_gradient" else (q, tiles.rows)
    batch, heads, length = rows.shape[:3]
    programs: int = -(-length // tile) * batch * heads
    return programs


def check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
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
    if not q.is_cuda and not interpreted():
        where = f"CUDA, not {q.device.type}; TRITON_INTERPRET=1 runs them anywhere"
        raise ModelError(f"attention kernels run on {where}")


def constants(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, problem: LaunchSettings, tiles: Tiles, use: bool,
    by_column: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Compile-time arguments that all kernels take."""
    return _known_constants(
        *(q.dtype, q.shape, k.shape, v.shape[-1]),
        *(problem.functions, problem.scale, problem.rows, problem.columns, problem.contiguous),
        *(problem.present, problem.count, bool(problem.buffers), tiles, use, by_column, _exact()),
    )


@functools.lru_cache(4096)
def _known_constants(
    dtype: torch.dtype, q_shape: torch.Size, k_shape: torch.Size, value_width: int, key: str, scale: float,
    rows: int, columns: int, contiguous: int, present: int, count: int, indexed: bool, tiles: Tiles,
    use: bool, by_column: bool, exact: bool,
) -> dict[str, Any]:  # fmt: skip
    sharing, itemsize = q_shape[1] // k_shape[1], dtype.itemsize
    length, share, heads = (q_shape[2], 1, k_shape[1]) if by_column else (k_shape[2], sharing, q_shape[1])
    together = _together(length * (q_shape[3] + value_width) * itemsize, share, q_shape[0] * heads)
    given, listed, follows = functions(key), present >> 2 * by_column, contiguous >> 2 * by_column
    even_queries, even_keys = q_shape[2] % rows == 0, k_shape[2] % columns == 0
    return {
        "SCORE": given.score, "HAS_SCORE": given.score is not None,
        "MASK": given.mask, "HAS_MASK": given.mask is not None,
        "ROWS": tiles.rows, "COLUMNS": tiles.columns, "BLOCK_ROWS": rows, "BLOCK_COLUMNS": columns,
        "STAGES": tiles.stages, "num_warps": tiles.warps, "num_stages": tiles.stages,
        "EVEN_QUERIES": even_queries, "EVEN_KEYS": even_keys,
        "CLAMP": indexed and not (even_queries and even_keys),  # functions read with the indices
        "HAS_PARTIAL": bool(listed & 1), "PARTIAL_CONTIGUOUS": bool(follows & 1),
        "HAS_FULL": bool(listed & 2), "FULL_CONTIGUOUS": bool(follows & 2),
        "WIDTH": q_shape[-1], "BLOCK_WIDTH": _block_width(q_shape[-1]),
        "VALUE_WIDTH": value_width, "BLOCK_VALUE_WIDTH": _block_width(value_width),
        "SHARING": sharing, "TOGETHER": together, "SCALE": scale, "COUNT": count, "DESCRIPTORS": use,
        "SUM": _TRITON_TYPES[sum_type(dtype)], "UPCAST": interpreted() and dtype == torch.bfloat16,
        "PRECISION": "ieee" if exact or dtype != torch.float32 else "tf32",
    }  # fmt: skip


def listing(problem: LaunchSettings, by_column: bool) -> tuple[tuple[torch.Tensor, ...], tuple[int, ...]]:
    """The four lists of a kernel; the capacity of each line of partial and of full lists; the sizes of the mask."""
    lists = tuple(problem.lists[4:] if by_column else problem.lists[:4])
    return lists, (lists[1].shape[-1], lists[3].shape[-1], *lists[0].shape)


def source(tensor: torch.Tensor, rows: int, use: bool) -> Any:
    """The source from which a kernel loads tiles: a descriptor of tiles, or the tensor."""
    if not use:
        return tensor
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor(tensor, *_described(tensor.shape, tensor.stride(), rows))


@functools.lru_cache(4096)
def _described(
    shape: torch.Size, strides: tuple[int, ...], rows: int
) -> tuple[list[int], list[int], list[int]]:
    """Sizes, strides and tile of a descriptor; an axis of size one gets a stride that the copy engine accepts."""
    width = shape[-1]
    outer = [stride if size > 1 else max(16, width) for size, stride in zip(shape, strides, strict=True)]
    return list(shape), [*outer[:-1], 1], [1, 1, rows, _block_width(width)]


def describable(*tensors: torch.Tensor) -> bool:
    """True if the tensor copy engine accepts all tensors."""
    aligned = all(x.data_ptr() % 16 == 0 for x in tensors)
    return aligned and all(_regular(x.shape, x.stride(), x.element_size(), x.device) for x in tensors)


@functools.lru_cache(4096)
def _regular(shape: torch.Size, strides: tuple[int, ...], size: int, device: torch.device) -> bool:
    """Rows of whole elements, every other stride of 16 bytes."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] < 9:
        return False
    if size > 4 or strides[-1] != 1 or shape[-1] * size % 16:
        return False
    outer = zip(shape[:-1], strides[:-1], strict=True)
    return all(length == 1 or (stride > 0 and stride * size % 16 == 0) for length, stride in outer)


def strides(*tensors: torch.Tensor) -> list[tuple[int, ...]]:
    """Strides of each tensor."""
    return [tensor.stride() for tensor in tensors]


def buffers_of(problem: LaunchSettings, q: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The captured tensors; the query in their place if there are none."""
    return tuple(problem.buffers) or (q,)


def counters(programs: int, count: int, device: torch.device) -> torch.Tensor:
    """Room for the counts of each program; empty if nothing is counted."""
    return torch.empty((programs if count else 0, 3), dtype=torch.int64, device=device)


def _together(bytes_per_head: int, sharing: int, heads: int) -> int:
    """Number of heads that run at the same time, such that their keys and values fit in the second-level cache."""
    most = max(1, min(_CACHE_BYTES // max(bytes_per_head, 1), 64)) * sharing
    return 1 << (min(most, max(heads, 1)).bit_length() - 1)


def _block_width(width: int) -> int:
    """The power of two to which a head width is padded."""
    return max(16, 1 << max(width - 1, 0).bit_length())


def _exact() -> bool:
    """True if products in single precision are exact: the default of torch, unless the user lowers it."""
    return bool(torch.get_float32_matmul_precision() == "highest")


_TRITON_TYPES = {
    torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32, torch.float64: tl.float64,
}  # fmt: skip


def sum_type(dtype: torch.dtype) -> torch.dtype:
    """Element type of sums."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@functools.cache
def _device_name(device: torch.device) -> str:
    return str(torch.cuda.get_device_name(device) if device.type == "cuda" else device.type)
