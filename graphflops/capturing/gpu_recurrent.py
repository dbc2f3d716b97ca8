"""Recurrent layers as a GPU runs them: cuDNN's one call for all layers and steps, and one for their gradients."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from graphflops.kernels.products import reserve_bytes
from graphflops.rules.recurrent import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable

_ATEN = torch.ops.aten
_LSTM = "lstm"
_CELLS = (_LSTM, "gru")  # whose reserve is known
_HALF = 2  # bytes


class _Options(NamedTuple):
    """Arguments of cuDNN's call after the tensors."""

    mode: int
    hidden_size: int
    proj_size: int
    num_layers: int
    batch_first: bool
    dropout: float
    train: bool
    bidirectional: bool
    batch_sizes: tuple[int, ...] = ()
    dropout_state: None = None


def functions() -> dict[str, Callable[..., Any]]:
    """What runs in place of each operator on padded sequences, by its name."""
    return {f"{name}.input": partial(_run, name) for name in _CELLS}


def gradients(x: Any, weight: Any, stride0: int, buffer: Any, hx: Any, cx: Any, *rest: Any) -> Any:
    """Results of cuDNN's gradient without data, of which torch does not know the shapes."""
    *wanted, wants_weights = rest[-1]
    found = zip((x, hx, cx), wanted, strict=True)
    single = [torch.empty_like(each) if each is not None and is_wanted else None for each, is_wanted in found]
    return *single, [torch.empty_like(each) for each in weight if wants_weights]


def _run(
    name: str, x: Any, hx: Any, params: Any, has_biases: bool, num_layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool,
) -> Any:  # fmt: skip
    """As the operator; layers with projections are the calls that torch makes for them on a CPU."""
    states = hx if name == _LSTM else [hx]
    each = len(params) // max(num_layers * (2 if bidirectional else 1), 1)
    if each != (4 if has_biases else 2):
        own = getattr(_ATEN, name).input
        return own.decompose(
            x, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first
        )
    hidden = states[0].shape[-1]
    options = _Options(
        *([*KINDS].index(name), hidden, 0, num_layers, batch_first, dropout, train, bidirectional)
    )
    cell = states[1] if name == _LSTM else None
    out, *final = _Layers.apply(name, options, each, x, states[0], cell, *params)
    return (out, *final[: len(states)])


class _Layers(torch.autograd.Function):  # type: ignore[misc]
    """The layers in one call, forward and backward; what the backward reads is in cuDNN's reserve."""

    @staticmethod
    def forward(
        ctx: Any, name: str, options: _Options, each: int, x: Any, hx: Any, cx: Any, *params: Any
    ) -> Any:
        """Result and last states."""
        with torch._C._AutoDispatchBelowAutograd():
            made = _ATEN._cudnn_rnn.default(x, params, each, None, hx, cx, *options)
            weights, is_half = sum(weight.nbytes for weight in params), x.itemsize == _HALF
            of_result = name, made[0].nbytes, options.num_layers
            size = reserve_bytes(*of_result, weights, is_half=is_half, is_training=options.train)
            reserve = torch.empty(size, dtype=torch.uint8)
        ctx.save_for_backward(x, hx, cx, made[0], reserve, *params)
        ctx.options, ctx.each = options, each
        return made[:3]

    @staticmethod
    def backward(ctx: Any, of_out: Any, of_hy: Any, of_cy: Any) -> Any:
        """Gradients of the operand, the states and the weights."""
        x, hx, cx, out, reserve, *params = ctx.saved_tensors
        needs = ctx.needs_input_grad
        mask = [*needs[3:6], any(needs[6:])]
        of_cy = of_cy if cx is not None else None
        with torch._C._AutoDispatchBelowAutograd():
            of_x, of_hx, of_cx, of_params = _ATEN._cudnn_rnn_backward.default(
                *(x, params, ctx.each, params[0], hx, cx, out, of_out, of_hy, of_cy),
                *(*ctx.options, reserve, mask),
            )
        return None, None, None, of_x, of_hx, of_cx, *(of_params or [None] * len(params))
