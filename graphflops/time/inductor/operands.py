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
    from graphflops.time.inductor.forward import Forward
    from graphflops.time.inductor.nodes import Value

_IMAGE_RANK = 4
_BOOLEAN = 8  # bits
_NUMBER = 2  # bytes of an entry of a mask


def operand_name(call: PricedCall, argument: str) -> str:
    """The value that an argument is; nothing where it is none."""
    given = call.node.arguments().get(argument)
    return given.name if isinstance(given, Ref) else ""


def operands_of(call: PricedCall, forward: Forward) -> list[Value]:
    """The operands of a call as its library reads them."""
    prepare = {"product": _in_rows, "attention": _with_mask, "convolution": _in_channels_last}
    named = prepare.get(call.node.operator.kind)
    if named is not None:
        return named(call, forward)
    return [forward.stored(name) for name in call.tensors(forward.graph.values)]


def _in_rows(call: PricedCall, forward: Forward) -> list[Value]:
    """Operands of a product; those that BLAS cannot read as they lie are copied."""
    found = []
    concrete = ConcreteCall(call, forward.graph.values, forward.layouts.known, forward.sizes)
    for name, tensor in zip(call.tensors(forward.graph.values), concrete.operands, strict=True):
        if must_copy(tensor):
            found.append(_copy(call, name, forward, tensor.full_bytes, tensor.numel))
        else:
            found.append(forward.stored(name))
    return found


def _with_mask(call: PricedCall, forward: Forward) -> list[Value]:
    """Operands of an attention; a mask of booleans becomes numbers."""
    mask = operand_name(call, "mask")
    found = []
    for name in call.tensors(forward.graph.values):
        kind = forward.graph.values[name]
        if name == mask and isinstance(kind, TensorType) and kind.dtype.bits <= _BOOLEAN:
            found.append(_copy(call, name, forward, _NUMBER * forward.nbytes(name)))
        else:
            found.append(forward.stored(name))
    return found


def _in_channels_last(call: PricedCall, forward: Forward) -> list[Value]:
    """Operands of a convolution; weights and the graph's own inputs are copied where channels must be innermost."""
    found = []
    for name in call.tensors(forward.graph.values):
        value = forward.stored(name)
        is_input = name not in forward.rows and forward.base.get(name, name) == name
        if forward.channels_last and is_input and _must_turn(name, forward):
            value = _copy(call, name, forward, forward.nbytes(name))
        found.append(value)
    return found


def _must_turn(name: str, forward: Forward) -> bool:
    """Whether a tensor with its channels outermost lies differently from one with channels innermost."""
    kind, strides = forward.graph.values[name], forward.layouts.known.get(name)
    if not isinstance(kind, TensorType) or kind.rank < _IMAGE_RANK:
        return False
    is_last = strides is not None and strides[1] == 1
    return not is_last and forward.sizes(kind.shape[1]) > 1 and forward.sizes(prod(kind.shape[2:])) > 1


def _copy(call: PricedCall, name: str, forward: Forward, nbytes: int, elements: int = 0) -> Value:
    """A loop that writes an operand for this call."""
    elements = elements or forward.elements(name)
    return forward.recorder.loop(call.row, elements, forward.value(name), f"{name}/{call.node.name}", nbytes)
