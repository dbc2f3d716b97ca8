"""Memory of cuDNN's recurrent layers: the reserve that gradients read, and a workspace.

In units of one tensor of all steps and hidden states: each layer reserves gates and states, layers beside the first also
what they read. Half precision keeps a copy of all weights in the reserve. The workspace holds products of gates, the weights
once more, and 8 MiB for each layer and direction; sequences with the batch first are copied. Read from 180 measurements on
an H200 with PyTorch 2.11.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphflops.dims import Dim, ceil_div, dim_max, total
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphflops.cost import Value
    from graphflops.passes.program import PricedCall

_RESERVED = {"lstm": 5, "gru": 6}  # units that one layer reserves, by cell
_LAYER_BYTES = 2**23
_TRAIN, _BIDIRECTIONAL, _BATCH_FIRST, _STEPS = (
    "#6",
    "#7",
    "#8",
    3,
)  # arguments by place; axes of a padded sequence


@dataclass(frozen=True, slots=True)
class Recurrent:
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
        if not isinstance(out, TensorType) or out.rank != _STEPS:
            return None
        arguments = call.node.arguments()
        layers, directions = arguments.get("#4"), 2 if arguments.get(_BIDIRECTIONAL) is True else 1
        if not isinstance(layers, int):
            return None
        states = 2 if name == "lstm" else 1
        weights = [values[weight] for weight in call.tensors(values)[1 + states :]]
        copied = total(weight.like().nbytes for weight in weights if isinstance(weight, TensorType))
        unit = ceil_div(out.nbytes, directions)
        kept = unit * directions * (layers * reserved + layers - 1) if arguments.get(_TRAIN) is True else 0
        products = 15 if directions > 1 else 6 + (layers > 1)  # units
        products += arguments.get(_BATCH_FIRST) is True
        x, workspace = (
            values[call.tensors(values)[0]],
            unit * products + copied + layers * directions * _LAYER_BYTES,
        )
        turned = out.like().nbytes if arguments.get(_BATCH_FIRST) is True else 0
        unwanted = x.like().nbytes if isinstance(x, TensorType) and not x.requires_grad else 0
        return Recurrent(
            kept + (copied if out.dtype.bits == 16 else 0),
            workspace,
            workspace + unwanted + dim_max(0, turned - copied),
        )
