"""Which matrix products torch.compile pads (inductor's `pad_mm`): tensor cores load rows of a multiple of 8 elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphflops.cost import Value
    from graphflops.passes.program import PricedCall

_ALIGNED, _HALF = 8, 16


def padded_columns(call: PricedCall, values: Mapping[str, Value]) -> int | None:
    """Columns of a linear layer's result after padding; None where they are a multiple of 8 or no tensor core is used.

    Inductor measures whether that is worth a copy: it is for a vocabulary of 50,257 words.
    """
    names = call.tensors(values)
    weight = values.get(names[1]) if call.node.operator.name == "linear" else None
    if not isinstance(weight, TensorType) or weight.dtype.bits != _HALF or weight.rank != 2:
        return None
    columns = weight.shape[0]
    if not isinstance(columns, int) or columns <= _ALIGNED or columns % _ALIGNED == 0:
        return None
    return -(-columns // _ALIGNED) * _ALIGNED
