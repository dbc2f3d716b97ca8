"""Operators that find gradients, which recorded steps and joint graphs call, as the gradients of their forward.

`native_layer_norm_backward` runs what the gradient of `native_layer_norm` runs. Its operands tell the forward call as far as
the gradient reads it: operands have the names that they have in the forward, and those that are missing the type of their
gradient.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Any

from msgspec.structs import replace

from graphflops.graph import Ref
from graphflops.kernels.call import ConcreteCall, Tensor, Work
from graphflops.ops.operator import Op, operator, orders
from graphflops.passes.program import Backward

_KINDS = frozenset({"attention", "gather", "loss", "normalisation", "pooling", "resampling", "softmax"})
_OUTGOING = ("grad_output", "grad_out", "grad")  # the gradient of the forward's result
_WANTED = ("output_mask", "grad_input_mask")  # for each operand whether its gradient is wanted
_DENSE = "_dense"  # of `embedding_dense_backward`, which fills a whole table


@lru_cache(maxsize=2**10)
def forward_of(found: Op) -> Op | None:
    """The operator whose gradients another finds, by its name; None for one that finds none, or of another kind."""
    word, is_gradient, rest = found.word.partition("_backward")
    if not is_gradient or rest not in ("", "_data") or found.dialect != "aten":
        return None
    forward = operator(f"aten.{word.removesuffix(_DENSE)}.default")
    return forward if forward.kind in _KINDS and forward.parameters else None


class ForwardCall(ConcreteCall):
    """The forward call whose gradients a call finds."""

    def __init__(self, call: ConcreteCall, forward: Op) -> None:
        super().__init__(*(call.call, call.values, call.strides, call.sizes, None, call.attention_kernel))
        self.given, self.forward = call, forward

    @property
    def operator(self) -> Op:
        """The forward's."""
        return self.forward

    @cached_property
    def schema(self) -> tuple[str, ...]:
        """The forward's arguments, by their names in torch's schema."""
        return orders(self.forward.spelling)[0]

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """Arguments by canonical name, those without one by their own."""
        canonical = dict(zip(self.schema, self.forward.parameters, strict=False))
        return {canonical.get(name, name): value for name, value in self.own.items()}

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """The forward's tensors by canonical name; those that the gradient does not read have the type of their gradient."""
        made = self.given.results
        wanted = next((self.own[name] for name in _WANTED if name in self.own), (True,) * len(made))
        found: dict[str, Tensor] = {}
        turn = 0  # of the operand among those that may have a gradient
        for raw, name in zip(self.schema, self.forward.parameters, strict=False):
            argument = self.own.get(raw)
            tensor = self.named(argument.name) if isinstance(argument, Ref) else None
            if raw not in self.own and turn == 0 and made:
                tensor = made[0]
            if tensor is not None:
                found[name] = replace(tensor, requires_grad=turn < len(wanted) and bool(wanted[turn]))
            turn += tensor is not None or raw not in self.own
        return found

    def operand(self, *names: str) -> Tensor | None:
        """The first of these arguments that is a tensor."""
        return next((self.tensors[name] for name in names if name in self.tensors), None)

    @cached_property
    def operands(self) -> tuple[Tensor, ...]:
        """The forward's tensors, in order."""
        return tuple(self.tensors.values())

    @cached_property
    def results(self) -> tuple[Tensor, ...]:
        """The forward's result, which has the type of its gradient."""
        given = next((self.own[name] for name in _OUTGOING if name in self.own), None)
        out = self.named(given.name) if isinstance(given, Ref) else None
        return () if out is None else (out,)

    @cached_property
    def gradient(self) -> Backward:
        """What the call finds, as the backward of the forward."""
        places = [place for place, tensor in enumerate(self.operands) if tensor.requires_grad]
        return Backward(self.call.estimate, tuple([(place, True) for place in places]))

    @property
    def backward_cost(self) -> Work:
        """The work and traffic of the call."""
        return self.cost
