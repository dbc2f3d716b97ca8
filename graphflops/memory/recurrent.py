"""Memory of cuDNN's recurrent layers: the reserve that gradients read, and a workspace.

In units of one tensor of all steps and hidden states: each layer reserves gates and states, layers beside the first also
what they read. Half precision keeps a copy of all weights in the reserve. The workspace holds products of gates, the weights
once more, and 8 MiB for each layer and direction; sequences with the batch first are copied. Layers of an LSTM also hold
what one gives to the next. Read from 180 measurements of LSTMs on an H200 with PyTorch 2.11, and programs with a GRU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from graphflops.dims import Dim, ceil_div, dim_max, total
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphflops.cost import Value
    from graphflops.passes.program import PricedCall

_RESERVED = {"lstm": 5, "gru": 6}  # units that one layer reserves, by cell
_LAYER_BYTES = 2**23
_LAYERS, _TRAIN, _BIDIRECTIONAL, _BATCH_FIRST = "#4", "#6", "#7", "#8"  # arguments by place
_SEQUENCE_AXES = 3  # of padded sequences
_HALF = 16  # bits


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
        if not isinstance(out, TensorType) or out.rank != _SEQUENCE_AXES:
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
        products = (15 if directions > 1 else 6 + between) + is_batch_first  # units
        workspace = unit * products + copied + layers * directions * _LAYER_BYTES
        transposed = out.like().nbytes if is_batch_first else 0
        unwanted = x.like().nbytes if isinstance(x, TensorType) and not x.requires_grad else 0
        return Recurrent(
            reserve=kept + (copied if out.dtype.bits == _HALF else 0),
            workspace=workspace,
            backward=workspace + unwanted + dim_max(0, transposed - copied),
        )
