"""Launches the attention kernels, forward and backward."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from graphflops.errors import ModelError
from graphflops.runtime.flex import arguments
from graphflops.runtime.flex.arguments import LaunchSettings
from graphflops.runtime.flex.configs import Kernel
from graphflops.runtime.flex.forward import forward_kernel
from graphflops.runtime.flex.functions import functions
from graphflops.runtime.flex.key_gradient import key_kernel
from graphflops.runtime.flex.query_gradient import query_kernel


def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, problem: LaunchSettings
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Output, log-sum-exp, and each program's counts [programs, 3], empty if nothing is counted."""
    arguments.check(q, k, v)
    out = q.new_empty((*q.shape[:3], v.shape[-1]))
    lse = torch.empty(q.shape[:3], dtype=arguments.sum_type(q.dtype), device=q.device)
    with _on(q.device):
        counts = _run("forward", forward_kernel, (q, k, v), (out, lse), (out,), problem)
    return out, lse, counts


def backward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor,
    grad: torch.Tensor, grad_lse: torch.Tensor | None, problem: LaunchSettings,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Gradients of q, k and v, and the counts of the kernel of the query's and of the key's gradient.

    The first kernel writes `delta`, which the second reads.
    """
    arguments.check(q, k, v)
    grad_q, grad_k, grad_v = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    loaded, gradient = (q, k, v, grad), functions(problem.functions).gradient
    with _on(q.device):
        delta = torch.empty_like(lse)
        own = (out, lse, delta if grad_lse is None else grad_lse.contiguous(), delta, grad_q)
        more = {"GRADIENT": gradient, "HAS_GRAD_LSE": grad_lse is not None}
        counts = _run("query_gradient", query_kernel, loaded, own, (out, grad_q), problem, **more)
        written = (grad_k, grad_v)
        of_keys = (lse, delta, *written)
        key_counts = _run("key_gradient", key_kernel, loaded, of_keys, written, problem, GRADIENT=gradient)
    return grad_q, grad_k, grad_v, counts, key_counts


def _run(
    name: Kernel, kernel: Any, loaded: tuple[torch.Tensor, ...], own: tuple[torch.Tensor, ...],
    strided: tuple[torch.Tensor, ...], problem: LaunchSettings, **more: Any,
) -> torch.Tensor:  # fmt: skip
    """Launch a kernel; returns each program's counts.

    loaded: query, key, value, and the gradient of the output, which it loads in tiles. own: its further tensors.
    strided: those among them that need not be contiguous.
    """
    q, k, v = loaded[:3]
    by_column = name == "key_gradient"
    tiles = arguments.tiles_for(name, q, v, (problem.rows, problem.columns))
    programs = arguments.programs_of(name, tiles, q, k)
    counts = arguments.counters(programs, problem.count, q.device)
    use = tiles.descriptors and arguments.describable(*loaded)
    lists, meta = arguments.listing(problem, by_column=by_column)
    heights = (tiles.rows, tiles.columns, tiles.columns, tiles.rows)
    _start(
        kernel,
        programs,
        arguments.constants(q, k, v, problem, tiles, use, by_column=by_column),
        *(arguments.source(tensor, rows, use) for tensor, rows in zip(loaded, heights, strict=False)),
        *(*own, counts, lists, arguments.buffers_of(problem, q)),
        *arguments.strides(*loaded, *strided),
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
            if constants["STAGES"] == 1:
                raise ModelError(f"attention kernel: {error}") from None
            # Later launches use the same dictionary.
            constants["STAGES"] = constants["num_stages"] = constants["STAGES"] - 1


def _on(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Triton launches on the current device: make it the operands'."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    chosen: contextlib.AbstractContextManager[None] = torch.cuda.device(device)
    return chosen
