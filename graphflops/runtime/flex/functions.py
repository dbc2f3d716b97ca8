"""Generated source compiled to Triton functions, registered by the digest of the source."""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from graphflops.errors import ModelError
from graphflops.runtime.flex import library
from graphflops.runtime.flex.codegen import GRADIENT, MASK, SCORE, Buffer, triton_function
from graphflops.runtime.flex.trace import Traced, trace_gradient, trace_mask, trace_score

_HEAD = '"""Score and mask functions of one attention, generated from its graph."""\n\n'


@dataclass(frozen=True)
class KernelFunctions:
    """The functions that a kernel calls for each tile of scores; None for an absent function.

    source: the Python text that `--show-kernel` prints.
    """

    source: str
    score: Any
    gradient: Any
    mask: Any


@dataclass(frozen=True)
class Written:
    """Key of registered functions, and the tensors that they index, in the order of the kernels."""

    key: str
    buffers: tuple[torch.Tensor, ...]


_known: dict[str, KernelFunctions] = {}


def written(
    score: Callable[..., Any] | None, mask: Callable[..., Any] | None, dtype: torch.dtype,
    device: torch.device, score_tensors: Sequence[torch.Tensor] = (),
    mask_tensors: Sequence[torch.Tensor] = (),
) -> Written:  # fmt: skip
    """Trace, translate and register the functions of one attention.

    dtype: the scores' element type as the functions see it. Raises ModelError for an operator without a translation.
    """
    buffers: list[torch.Tensor] = []
    parts = []
    if score is not None:
        forward = trace_score(score, score_tensors, dtype, device)
        if len(forward.graph.nodes) or not _identity(forward):
            gradient = trace_gradient(score, score_tensors, dtype, device)
            parts.append(triton_function(forward.graph, "score_mod", SCORE, _placed(forward, buffers)))
            parts.append(triton_function(gradient.graph, "score_grad", GRADIENT, _placed(gradient, buffers)))
    if mask is not None:
        traced = trace_mask(mask, mask_tensors, device)
        parts.append(triton_function(traced.graph, "mask_mod", MASK, _placed(traced, buffers)))
    source = _HEAD + "\n\n".join(parts)
    key = hashlib.sha256(source.encode()).hexdigest()[:16]
    if key not in _known:
        _known[key] = _compiled(source, key)
    return Written(key, tuple(_plain(tensor, device) for tensor in buffers))


def functions(key: str) -> KernelFunctions:
    """The functions registered under a key; raises ModelError if this process has not registered them."""
    try:
        return _known[key]
    except KeyError:
        raise ModelError(f"attention functions {key} are not of this process; prepare them again") from None


def _identity(traced: Traced) -> bool:
    output = traced.graph.outputs[0].value
    return getattr(output, "name", None) == traced.graph.inputs[0].name


def _placed(traced: Traced, buffers: list[torch.Tensor]) -> list[Buffer]:
    """Indices of a function's captured tensors among all; a tensor of several functions is passed once."""
    placed = []
    for tensor in traced.tensors:
        same = (i for i, other in enumerate(buffers) if _same(other, tensor))
        place = next(same, len(buffers))
        if place == len(buffers):
            buffers.append(tensor)
        dtype = str(tensor.dtype).removeprefix("torch.")
        placed.append(Buffer(place, tuple(tensor.shape), tuple(tensor.stride()), dtype))
    return placed


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True if two tensors are the same view of the same memory."""
    first, second = ((x.dtype, x.device, x.data_ptr(), x.shape, x.stride()) for x in (a, b))
    return first == second


def _plain(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor in the form that a kernel reads: on the device, booleans as bytes."""
    moved = tensor if tensor.device == device else tensor.to(device)
    return moved.view(torch.uint8) if moved.dtype == torch.bool else moved


def _compiled(source: str, key: str) -> KernelFunctions:
    name = f"<graphflops attention {key}>"
    helpers = {word: value for word, value in vars(library).items() if not word.startswith("_")}
    space: dict[str, Any] = {**helpers, "triton": triton, "tl": tl, "__name__": f"graphflops_attention_{key}"}
    # Triton and tracebacks read the source of a function by its file name.
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), space)
    return KernelFunctions(source, space.get("score_mod"), space.get("score_grad"), space.get("mask_mod"))
