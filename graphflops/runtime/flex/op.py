"""The kernels as operators of torch, so that autograd, torch.compile and torch.export support them."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from graphflops.runtime.flex import launch
from graphflops.runtime.flex.blocks import Kernel

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
    return launch.forward(q, k, v, launch.LaunchSettings(*settings))


@flex_forward.register_fake  # type: ignore[untyped-decorator]
def _(q: Tensor, k: Tensor, v: Tensor, *settings: Any) -> tuple[Tensor, Tensor, Tensor]:
    problem = launch.LaunchSettings(*settings)
    sums = torch.float64 if q.dtype == torch.float64 else torch.float32
    return (
        q.new_empty((*q.shape[:-1], v.shape[-1])),
        q.new_empty(q.shape[:-1], dtype=sums),
        q.new_empty((_programs("forward", q, k, v, problem), 3), dtype=torch.int64),
    )


def _programs(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, problem: launch.LaunchSettings) -> int:
    """How many programs of a kernel count; none where nothing is counted."""
    if not problem.count:
        return 0
    tiles = launch.tiles_for(kernel, q, v, (problem.rows, problem.columns))
    return launch.programs_of(kernel, tiles, q, k)


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
    return launch.backward(q, k, v, out, lse, grad, grad_lse, launch.LaunchSettings(*settings))


@flex_backward.register_fake  # type: ignore[untyped-decorator]
def _(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    problem = launch.LaunchSettings(*others[4:])
    programs = [_programs(kernel, q, k, v, problem) for kernel in ("query_gradient", "key_gradient")]
    gradients = [x.new_empty(x.shape) for x in (q, k, v)]
    counts = [q.new_empty((number, 3), dtype=torch.int64) for number in programs]
    return gradients[0], gradients[1], gradients[2], counts[0], counts[1]


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
    """The same for plain tensors, without the overhead of a custom operator."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, problem: launch.LaunchSettings
    ) -> tuple[Tensor, Tensor, Tensor]:
        out, lse, counts = launch.forward(q, k, v, problem)
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
        return (*launch.backward(q, k, v, out, lse, grad, grad_lse, ctx.problem)[:3], None)


def run_forward(
    q: Tensor, k: Tensor, v: Tensor, problem: launch.LaunchSettings
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, log-sum-exp and counts; through the operator while torch traces, else directly."""
    found: tuple[Tensor, Tensor, Tensor]
    if torch.compiler.is_compiling() or type(q) not in _PLAIN or _get_current_dispatch_mode() is not None:
        settings = (getattr(problem, field.name) for field in fields(problem))
        found = flex_forward(q, k, v, *settings)
    elif torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        found = _Eager.apply(q, k, v, problem)
    else:
        found = launch.forward(q, k, v, problem)
    return found
