"""What a training step adds to a forward call: its gradients, and the optimizer's update."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphflops.cost import Cost, Estimate
from graphflops.dims import prod, total
from graphflops.rules.registry import ForwardCall, Rule, find_backward
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# One AdamW update of one element, as torch's single-tensor loop writes it (torch/optim/adamw.py): weight decay 1; first
# moment 3 (lerp); second moment 4; root and bias correction 2 and one square root; update 3.
_ADAMW_FLOPS = 1 + 3 + 4 + 2 + 3


def gradient(rule: Rule, arguments: Mapping[str, Any], estimate: Estimate) -> Estimate | None:
    """The backward of one call, or None where nothing wants a gradient.

    Without a rule of its own: for a product the forward's matrix work once per wanted factor, otherwise the forward's vector
    work once per wanted operand; a view's gradient is a view.
    """
    wanted = {name: tensors for name, value in arguments.items() if (tensors := _wanting(value))}
    results = [value for value in estimate.out if isinstance(value, TensorType)]
    if not wanted or (results and not any(value.dtype.is_floating for value in results)):
        return None
    own = find_backward(rule.key)
    if own is not None:
        return own(ForwardCall(estimate, dict(arguments), frozenset(wanted)))
    gradients = tuple(tensor.like() for tensors in wanted.values() for tensor in tensors)
    if estimate.writes == ():  # a view, or a call whose nested graphs bear their gradients themselves
        return Estimate(gradients, writes=(), alias=True)
    factors = len(wanted.keys() & set(rule.product)) if rule.product else len(gradients)
    others = len(gradients) if not rule.product else 1
    incoming = tuple(value.like() for value in estimate.out if isinstance(value, TensorType) and value.dtype.is_floating)
    return Estimate(
        gradients,
        matrix_flops=estimate.matrix_flops * factors,
        masked_flops=estimate.masked_flops * factors,
        vector_flops=estimate.vector_flops * others,
        transcendentals=estimate.transcendentals * others,
        reads=(*incoming, *estimate.reads),
    )


def adamw(parameters: Iterable[TensorType]) -> Cost:
    """One AdamW step: reads parameter, gradient and two moments, writes parameter and moments, all of the parameter's type."""
    trainable = list(parameters)
    elements = total(prod(parameter.shape) for parameter in trainable)
    nbytes = total(parameter.nbytes for parameter in trainable)
    return Cost(
        vector_flops=_ADAMW_FLOPS * elements,
        transcendentals=elements,
        read_bytes=4 * nbytes,
        written_bytes=3 * nbytes,
    )


def _wanting(value: Any) -> list[TensorType]:
    if isinstance(value, TensorType):
        return [value] if value.requires_grad else []
    return [tensor for item in value for tensor in _wanting(item)] if isinstance(value, tuple) else []
