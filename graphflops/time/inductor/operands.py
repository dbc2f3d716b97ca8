"""What calls of libraries read: tensors in memory, some of which are copied first."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from graphflops.graph import Ref
from graphflops.tensor import TensorType
from graphflops.time.concrete import ConcreteCall
from graphflops.time.lowering.products import must_copy

if TYPE_CHECKING:
    from graphflops.passes.program import PricedCall
    from graphflops.time.inductor.nodes import Value
    from graphflops.time.inductor.values import Values

_IMAGE_RANK = 4
_BOOLEAN = 8  # bits
_NUMBER = 2  # bytes of an entry of a mask


def operand_name(call: PricedCall, argument: str) -> str:
    """The value that an argument is; nothing where it is none."""
    given = call.node.arguments().get(argument)
    return given.name if isinstance(given, Ref) else ""


def operands_of(call: PricedCall, values: Values) -> list[Value]:
    """The operands of a call as its library reads them."""
    prepare = {"product": _in_rows, "attention": _with_mask, "convolution": _in_channels_last}
    named = prepare.get(call.node.operator.kind)
    if named is not None:
        return named(call, values)
    return [values.stored(name) for name in call.tensors(values.graph.values)]


def _in_rows(call: PricedCall, values: Values) -> list[Value]:
    """Operands of a product; those that BLAS cannot read as they lie are copied."""
    found = []
    concrete = ConcreteCall(call, values.graph.values, values.layouts.known, values.sizes)
    for name, tensor in zip(call.tensors(values.graph.values), concrete.operands, strict=True):
        if must_copy(tensor):
            found.append(_copy(call, name, values, tensor.full_bytes, tensor.numel))
        else:
            found.append(values.stored(name))
    return found


def _with_mask(call: PricedCall, values: Values) -> list[Value]:
    """Operands of an attention; a mask of booleans becomes numbers."""
    mask = operand_name(call, "mask")
    found = []
    for name in call.tensors(values.graph.values):
        kind = values.graph.values[name]
        if name == mask and isinstance(kind, TensorType) and kind.dtype.bits <= _BOOLEAN:
            found.append(_copy(call, name, values, _NUMBER * values.nbytes(name)))
        else:
            found.append(values.stored(name))
    return found


def _in_channels_last(call: PricedCall, values: Values) -> list[Value]:
    """Operands of a convolution; weights and the graph's own inputs are copied where channels must be innermost."""
    found = []
    for name in call.tensors(values.graph.values):
        value = values.stored(name)
        is_input = name not in values.rows and values.base.get(name, name) == name
        if values.channels_last and is_input and _must_turn(name, values):
            value = _copy(call, name, values, values.nbytes(name))
        found.append(value)
    return found


def _must_turn(name: str, values: Values) -> bool:
    """Whether a tensor with its channels outermost lies differently from one with channels innermost."""
    kind, strides = values.graph.values[name], values.layouts.known.get(name)
    if not isinstance(kind, TensorType) or kind.rank < _IMAGE_RANK:
        return False
    is_last = strides is not None and strides[1] == 1
    return not is_last and values.sizes(kind.shape[1]) > 1 and values.sizes(prod(kind.shape[2:])) > 1


def _copy(call: PricedCall, name: str, values: Values, nbytes: int, elements: int = 0) -> Value:
    """A loop that writes an operand for this call."""
    elements = elements or values.elements(name)
    return values.recorder.loop(call.row, elements, values.value(name), f"{name}/{call.node.name}", nbytes)
