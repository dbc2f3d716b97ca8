"""LSTM, GRU and RNN layers: one kernel stands for all of theirs; a cell is two products and a pointwise kernel.

cuDNN keeps a reserve that gradients read, and needs a workspace, both in units of one tensor of all steps and hidden states:
each layer reserves gates and states, layers beside the first also what they read. Half precision keeps a copy of all weights
in the reserve. The workspace holds products of gates, the weights once more, and 8 MiB for each layer and direction;
sequences with the batch first are copied. Layers of an LSTM also hold what one gives to the next. Read from 180 measurements
of LSTMs on an H200 with PyTorch 2.11, and programs with a GRU.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from graphflops.dims import Dim, ceil_div, dim_max, total
from graphflops.kernels.choices import limits
from graphflops.kernels.kernel import Kernel, Product, Recurrence
from graphflops.kernels.moved import copy, elementwise, reduction
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphflops.cost import Value
    from graphflops.kernels.call import ConcreteCall, Tensor
    from graphflops.kernels.kernel import Pass
    from graphflops.passes.program import PricedCall

_GATES = {"lstm": 4, "gru": 3, "rnn": 1}
_SEQUENCE_RANK = 3
_LAYERS, _TRAIN, _BIDIRECTIONAL, _BATCH_FIRST = "#4", "#6", "#7", "#8"  # arguments by place
_LSTM, _GRU, _LAYER_BYTES, _PRODUCTS, _BOTH_PRODUCTS = limits(
    *("cudnn_9", "recurrent", "lstm_reserve", "gru_reserve", "layer", "products", "both_products")
)
_RESERVED = {"lstm": _LSTM, "gru": _GRU}  # tensors of all steps that one layer reserves, by cell
_HALF = 16  # bits


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


class Recurrent(NamedTuple):
    """Sizes of a stack of recurrent layers: bytes of the reserve and of the workspace.

    backward: what the gradients need beside them. cuDNN computes that of the operand whether or not it is wanted, from a
    copy of the result's where the batch comes first; the gradients of the weights come after it.
    """

    reserve: Dim
    workspace: Dim
    backward: Dim

    @staticmethod
    def of(call: PricedCall, values: Mapping[str, Value]) -> Recurrent | None:
        """The layers of a call on padded sequences; None for other calls."""
        name = call.node.operator.name
        reserved = _RESERVED.get(name) if call.node.operator.kind == "recurrent" else None
        if reserved is None:
            return None
        out = values.get(call.node.outputs[0] or "")
        if not isinstance(out, TensorType) or out.rank != _SEQUENCE_RANK:
            return None
        arguments, tensors = call.node.arguments(), [values[each] for each in call.tensors(values)]
        layers, directions = arguments.get(_LAYERS), 2 if arguments.get(_BIDIRECTIONAL) is True else 1
        if not isinstance(layers, int):
            return None
        is_batch_first, states = arguments.get(_BATCH_FIRST) is True, 2 if name == "lstm" else 1
        x, weights = tensors[0], tensors[1 + states :]
        copied = total(weight.like().nbytes for weight in weights if isinstance(weight, TensorType))
        unit = ceil_div(out.nbytes, directions)
        kept = unit * directions * (layers * reserved + layers - 1) if arguments.get(_TRAIN) is True else 0
        between = layers > 1 and name == "lstm"  # what a layer gives to the next
        products = (_BOTH_PRODUCTS if directions > 1 else _PRODUCTS + between) + is_batch_first  # units
        workspace = unit * products + copied + layers * directions * _LAYER_BYTES
        transposed = out.like().nbytes if is_batch_first else 0
        unwanted = x.like().nbytes if isinstance(x, TensorType) and not x.requires_grad else 0
        return Recurrent(
            reserve=kept + (copied if out.dtype.bits == _HALF else 0),
            workspace=workspace,
            backward=workspace + unwanted + dim_max(0, transposed - copied),
        )
