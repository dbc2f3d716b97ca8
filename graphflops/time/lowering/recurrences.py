"""LSTM, GRU and RNN layers: one kernel stands for all of theirs; a cell is two products and a pointwise kernel."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from graphflops.time.kernel import Kernel, Product, Recurrence
from graphflops.time.lowering.moved import copy, elementwise, reduction

if TYPE_CHECKING:
    from graphflops.time.concrete import ConcreteCall, Tensor
    from graphflops.time.kernel import Pass

_GATES = {"lstm": 4, "gru": 3, "rnn": 1}
_SEQUENCE_RANK = 3
_BATCH_FIRST = "#8"  # the argument of that place


def recurrent(call: ConcreteCall) -> list[Kernel]:
    """One kernel for all layers and steps, after a copy that puts the steps first."""
    if _is_cell(call):
        return _cell(call)
    x = call.operands[0] if call.operands else None
    turned = [copy(_steps_first(x))] if x is not None and _is_batch_first(call) else []
    kernels = _kernels(call, call.cost.matrix_flops, call.cost.read_bytes, call.cost.written_bytes, "forward")
    return [*turned, *kernels]


def recurrent_backward(call: ConcreteCall) -> list[Kernel]:
    """One kernel that goes through the steps in reverse."""
    if _is_cell(call):
        return _cell_backward(call)
    cost = call.backward_cost
    return _kernels(call, cost.matrix_flops, cost.read_bytes, cost.written_bytes, "backward")


def _is_cell(call: ConcreteCall) -> bool:
    return "cell" in call.operator.word


def _is_batch_first(call: ConcreteCall) -> bool:
    found = call.arguments.get(_BATCH_FIRST, call.arguments.get("batch_first"))
    return found is True and bool(call.operands) and call.operands[0].rank >= _SEQUENCE_RANK


def _steps_first(x: Tensor) -> Tensor:
    """The operand as cuDNN reads it: its first two axes exchanged."""
    batch, steps, *width = x.shape
    strides = (x.strides[1], x.strides[0], *x.strides[2:])
    return replace(x, shape=(steps, batch, *width), strides=strides)


def _kernels(call: ConcreteCall, flops: int, read: int, written: int, phase: Pass) -> list[Kernel]:
    x = call.operands[0] if call.operands else None
    out = call.out
    if x is None or out is None or not out.rank:
        return []
    sizes = replace(_sizes(call), phase=phase)
    return [Kernel("recurrence", x.dtype, flops, 0, read, written, sizes)]


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
        steps, batch = (x.shape[1], x.shape[0]) if _is_batch_first(call) else x.shape[:2]
    return Recurrence(steps, batch, x.shape[-1] if x.rank else 1, hidden, gates, layers, directions)


def _cell(call: ConcreteCall) -> list[Kernel]:
    """Products of operand and state, and all gates in one kernel."""
    if not call.operands or call.out is None or not call.out.rank:
        return []
    x, sizes = call.operands[0], _sizes(call)
    gates = sizes.gates * sizes.hidden
    size = sizes.batch * gates * x.bits // 8
    products = [_product(x, sizes.batch, gates, width) for width in (sizes.inputs, sizes.hidden)]
    return [*products, elementwise(x, 2 * size, size // sizes.gates, 3 * sizes.batch * gates)]


def _cell_backward(call: ConcreteCall) -> list[Kernel]:
    """The gates, sums for both biases, and of each product the gradients of its operand and weight."""
    if not call.operands or call.out is None or not call.out.rank:
        return []
    x, sizes = call.operands[0], _sizes(call)
    gates, rows = sizes.gates * sizes.hidden, sizes.batch
    size = rows * gates * x.bits // 8
    grads = replace(x, shape=(rows, gates), strides=(gates, 1), nbytes=size)
    kernels = [
        elementwise(x, 2 * size, size, 3 * rows * gates),
        *[reduction(grads, gates, is_inner=False)] * 2,
    ]
    for width in (sizes.inputs, sizes.hidden):
        of_x = replace(_product(x, rows, width, gates), sizes=Product(rows, width, gates, layout="nn"))
        of_weight = replace(_product(x, gates, width, rows), sizes=Product(gates, width, rows, layout="nt"))
        kernels += [of_x, of_weight]
    return kernels


def _product(x: Tensor, m: int, n: int, k: int) -> Kernel:
    width = x.bits // 8
    read, written = width * k * (m + n), width * m * n
    return Kernel("matmul", x.dtype, 2 * m * n * k, 0, read, written, Product(m, n, k))
