"""Calls by what inductor does with them: views, and calls that can be part of a kernel with others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphflops.passes.program import PricedCall

_FUSIBLE = frozenset(
    (
        *(
            "elementwise",
            "comparison",
            "logic",
            "cast",
            "identity",
            "creation",
            "movement",
            "gather",
            "reduction",
        ),
        *("normalisation", "softmax", "dropout", "random", "resampling", "pooling", "loss"),
    )
)


def is_view(call: PricedCall) -> bool:
    """Whether a call only gives its operand another shape."""
    return call.estimate.alias and not call.in_place


def is_fusible(call: PricedCall) -> bool:
    """Whether a call can be part of a kernel with others: each element is computed from elements of the operands."""
    return call.node.operator.kind in _FUSIBLE and not call.estimate.regions and not call.estimate.unknown
