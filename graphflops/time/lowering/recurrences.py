"""LSTM, GRU and RNN layers: one product of all inputs, then one step after the other."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from graphflops.time.kernel import Kernel, Recurrence

if TYPE_CHECKING:
    from graphflops.time.concrete import ConcreteCall

_GATES = {"lstm": 4, "gru": 3, "rnn": 1}
_SEQUENCE_RANK = 3


def recurrent(call: ConcreteCall) -> list[Kernel]:
    """One kernel for all layers and steps."""
    return _kernels(call, call.cost.matrix_flops, call.cost.read_bytes, call.cost.written_bytes)


def recurrent_backward(call: ConcreteCall) -> list[Kernel]:
    """One kernel that goes through the steps in reverse."""
    cost = call.backward_cost
    return _kernels(call, cost.matrix_flops, cost.read_bytes, cost.written_bytes)


def _kernels(call: ConcreteCall, flops: int, read: int, written: int) -> list[Kernel]:
    x = call.operands[0] if call.operands else None
    out = call.out
    if x is None or out is None or not out.rank:
        return []
    return [Kernel("recurrence", x.dtype, flops, 0, read, written, _sizes(call))]


def _sizes(call: ConcreteCall) -> Recurrence:
    """Steps, batch and widths, as far as the operands tell them; a cell is one step."""
    x, out = call.operands[0], call.out
    assert out is not None
    gates = _GATES.get(call.operator.name, 1)
    state = next((r for r in call.results[1:] if r.rank >= _SEQUENCE_RANK), None)
    hidden = state.shape[-1] if state is not None else out.shape[-1]
    directions = max(out.shape[-1] // max(hidden, 1), 1)
    layers = max(prod(state.shape[:-2]) // directions, 1) if state is not None else 1
    if x.rank < _SEQUENCE_RANK:
        steps, batch = (x.shape[0], 1) if state is not None else (1, x.shape[0] if x.rank else 1)
    else:
        is_batch_first = (
            bool(call.call.node.args) and call.call.node.args[-1] is True
        )  # the last argument of all of them
        steps, batch = (x.shape[1], x.shape[0]) if is_batch_first else x.shape[:2]
    return Recurrence(steps, batch, x.shape[-1] if x.rank else 1, hidden, gates, layers, directions)
