"""The operands of a call of scaled_dot_product_attention, as they lie in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphflops.attention.kernel import Operand, Problem
from graphflops.graph import Ref, tensor_type

if TYPE_CHECKING:
    from graphflops.execution.strides import HasStrides
    from graphflops.passes.program import PricedCall


def is_chosen(call: PricedCall) -> bool:
    """Whether a call is one of the operator that chooses its kernel."""
    return call.node.operator.name == "scaled_dot_product_attention" and "._" not in call.node.op


def attention_problem(call: PricedCall, layouts: HasStrides, training: bool) -> Problem | None:
    """The operands of a call of scaled_dot_product_attention as they lie in memory; None where one is not known."""
    arguments = call.node.arguments()
    query, key, value, mask = (
        _operand(arguments.get(name), layouts) for name in ("query", "key", "value", "mask")
    )
    if query is None or key is None or value is None:
        return None
    if min(operand.type.rank for operand in (query, key, value)) < 3:
        return None
    return Problem(
        *(query, key, value, mask),
        dropout=_number(arguments.get("dropout_p")),
        is_causal=arguments.get("is_causal") is True,
        is_grouped=arguments.get("enable_gqa") is True,
        wants_gradient=training and call.gradient is not None,
    )


def _operand(argument: object, layouts: HasStrides) -> Operand | None:
    if not isinstance(argument, Ref) or (value := tensor_type(argument, layouts.values)) is None:
        return None
    return Operand(value, layouts.of(argument.name))


def _number(argument: Any) -> float:
    return float(argument) if isinstance(argument, (int, float)) else 0.0
