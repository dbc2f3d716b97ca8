"""Judges once, for memory and time alike, whether the results of a call are those that its rule derived.

A file may record types that contradict a call, or a call that no rule accepts. The passes before have said so and chosen a
type for each value. Kernels and layouts are rules about operands and results that fit together: a call that contradicts
itself keeps the bytes and the work that it was priced with, and is run as an operator of which nothing else is known.
"""

from __future__ import annotations

from dataclasses import replace
from operator import is_
from typing import TYPE_CHECKING

from graphflops.dims import differ
from graphflops.graph import Ref
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphflops.cost import Estimate, Value
    from graphflops.passes.program import Backward, PricedCall, PricedGraph

_OPERATOR = "unknown"  # no operator's spelling: of the kind `other`, without names of arguments


def consistent(graph: PricedGraph) -> Sequence[PricedCall]:
    """The calls of a graph, those that contradict their results as calls of an unknown operator.

    The same object where all calls agree with their results. Further results that nobody reads are as the file records
    them: kernels of different devices keep different statistics.
    """
    found = [_judged(call, graph) for call in graph.calls]
    return graph.calls if all(map(is_, found, graph.calls)) else found


def _judged(call: PricedCall, graph: PricedGraph) -> PricedCall:
    wrong = _contradicted(call, graph.values)
    # Of what it makes nothing is kept, so nothing can be read.
    if not call.node.outputs and call.tensors(graph.values):
        return _unknown(call, graph.values)
    if not wrong:
        return call
    if call.node.outputs[0] not in wrong and wrong.isdisjoint(graph.graph.used):
        return replace(call, estimate=_as_recorded(call, graph.values))
    return _unknown(call, graph.values)


def _contradicted(call: PricedCall, values: Mapping[str, Value]) -> set[str]:
    """The results whose derived types are not those that the program's values have."""
    wrong: set[str] = set()
    estimate = call.estimate
    derived = estimate.out
    for place, name in enumerate(call.node.outputs):
        if name is not None:
            ours, value = derived[place] if place < len(derived) else None, values.get(name)
            is_open = bool(estimate.unknown) and not isinstance(ours, TensorType)
            if is_open or (ours is not value and not _agree(ours, value)):
                wrong.add(name)
    return wrong


def _agree(ours: Value, value: Value) -> bool:
    """Whether two types may be of one value; element types may differ, as those that autocasting chose do."""
    if not isinstance(ours, TensorType) or not isinstance(value, TensorType):
        return not isinstance(ours, TensorType) and not isinstance(value, TensorType)
    return ours.rank == value.rank and not any(map(differ, ours.shape, value.shape))


def _as_recorded(call: PricedCall, values: Mapping[str, Value]) -> Estimate:
    """The estimate of a call with the types that the program's values have."""
    out = tuple(None if name is None else values.get(name) for name in call.node.outputs)
    return replace(call.estimate, out=out)


def _unknown(call: PricedCall, values: Mapping[str, Value]) -> PricedCall:
    """The call as one of an unknown operator."""
    operands, results = len(call.tensors(values)), len(call.node.outputs)
    node = replace(call.node, op=_OPERATOR, args=tuple(map(Ref, call.uses)), kwargs=())
    gradient = None if call.gradient is None else _within(call.gradient, operands, results)
    estimate = _as_recorded(call, values)
    return replace(call, node=node, estimate=estimate, gradient=gradient, form=None)


def _within(gradient: Backward, operands: int, results: int) -> Backward:
    """The gradient without what it reads of operands and results that the call does not have."""
    return replace(
        gradient,
        gradients=tuple(entry for entry in gradient.gradients if entry[0] < operands),
        operands=frozenset(place for place in gradient.operands if place < operands),
        results=frozenset(place for place in gradient.results if place < results),
    )
