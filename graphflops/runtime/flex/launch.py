"""Launches the attention kernels, forward and backward."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from graphflops.errors import ModelError
from graphflops.runtime.flex.arguments import (
    LaunchSettings,
    buffers_of,
    check,
    constants,
    counters,
    describable,
    listing,
    source,
    strides,
    sum_type,
    tiles_for,
)
from graphflops.runtime.flex.forward import forward_kernel
from graphflops.runtime.flex.functions import functions
from graphflops.runtime.flex.key_gradient import key_kernel
from graphflops.runtime.flex.query_gradient import query_kernel


def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, problem: LaunchSettings
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Output, log-sum-exp, and each program's counts [programs, 3], empty if nothing is counted."""
    check(q, k, v)
    tiles = tiles_for("forward", q, v, (problem.rows, problem.columns))
    batch, heads, queries, _ = q.shape
    out = q.new_empty((batch, heads, queries, v.shape[-1]))
    lse = torch.empty((batch, heads, queries), dtype=sum_type(q.dtype), device=q.device)
    programs = -(-queries // tiles.rows) * batch * heads
    counts = counters(programs, problem.count, q.device)
    use = tiles.descriptors and describable(q, k, v)
    lists, meta = listing(problem, by_column=False)
    with _on(q.device):
        _start(
            forward_kernel,
            programs,
            constants(q, k, v, problem, tiles, use),
            source(q, tiles.rows, use),
            source(k, tiles.columns, use),
            source(v, tiles.columns, use),
            out,
            lse,
            counts,
            *lists,
            buffers_of(problem, q),
            *strides(q, k, v, out),
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
    """Write the query's gradient, and `delta` for the key's gradient; returns each program's counts."""
    tiles = tiles_for("query_gradient", q, v, (problem.rows, problem.columns))
    batch, heads, queries, _ = q.shape
    programs = -(-queries // tiles.rows) * batch * heads
    counts = counters(programs, problem.count, q.device)
    use = tiles.descriptors and describable(q, k, v, grad)
    lists, meta = listing(problem, by_column=False)
    _start(
        query_kernel,
        programs,
        constants(q, k, v, problem, tiles, use),
        *(source(q, tiles.rows, use), source(k, tiles.columns, use), source(v, tiles.columns, use)),
        source(grad, tiles.rows, use),
        out,
        lse,
        delta if grad_lse is None else grad_lse.contiguous(),
        delta,
        grad_q,
        counts,
        *lists,
        buffers_of(problem, q),
        *strides(q, k, v, grad, out, grad_q),
        *meta,
        *(batch, heads, queries, k.shape[2]),
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
    """Write the gradients of key and value; returns each program's counts."""
    tiles = tiles_for("key_gradient", q, v, (problem.rows, problem.columns))
    batch, heads, queries, _ = q.shape
    pairs = batch * k.shape[1]
    programs = -(-k.shape[2] // tiles.columns) * pairs
    counts = counters(programs, problem.count, q.device)
    use = tiles.descriptors and describable(q, k, v, grad)
    lists, meta = listing(problem, by_column=True)
    _start(
        key_kernel,
        programs,
        constants(q, k, v, problem, tiles, use, by_column=True),
        *(source(q, tiles.rows, use), source(k, tiles.columns, use), source(v, tiles.columns, use)),
        source(grad, tiles.rows, use),
        lse,
        delta,
        grad_k,
        grad_v,
        counts,
        *lists,
        buffers_of(problem, q),
        *strides(q, k, v, grad, grad_k, grad_v),
        *meta,
        *(batch, heads, queries, k.shape[2]),
        GRADIENT=functions(problem.functions).gradient,
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
