"""Calls that change the shape of a tensor in place: of what type its names are from then on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from graphflops.cost import Estimate, Value
from graphflops.errors import RuleError, shown
from graphflops.graph import Graph, Node, Ref
from graphflops.passes.program import PricedCall
from graphflops.tensor import TensorType, UnknownType

Links = list[tuple[str, str]]


def reshaped(
    node: Node,
    estimate: Estimate,
    calls: Sequence[PricedCall],
    values: Mapping[str, Value],
    graph: Graph,
    *,
    is_nested: bool,
) -> dict[str, Value]:
    """New types of the tensors whose shape a call changes: unknown for those that may be the same object, or another.

    calls: those before. Raises RuleError where a nested graph changes a tensor from around it, which is not followed.
    """
    found: dict[str, Value] = {}
    for name, after in _written(node, estimate):
        before = values[name]
        if not isinstance(after, TensorType) or not isinstance(before, TensorType):
            continue
        if after.shape == before.shape:
            continue
        certain, possible = _links(calls, values, graph)
        same = _reached(name, certain)
        perhaps = _reached(name, certain + possible)
        outside = perhaps & {*graph.captures, *(entry.name for entry in graph.inputs)} if is_nested else ()
        if outside:
            raise RuleError(
                f"{shown(node.name)} changes the shape of {shown(min(outside))}, which other graphs use"
            )
        found.update(dict.fromkeys(perhaps, UnknownType(before.dtype)))
        found.update({other: after.like(dtype=before.dtype) for other in same})
    return {name: value for name, value in found.items() if name in values}


def _written(node: Node, estimate: Estimate) -> Iterator[tuple[str, Value]]:
    """The tensors that a call writes, each with its type afterwards: the first operand, or those given for results."""
    if node.operator.mutates:
        yield from zip(node.reads()[:1], estimate.out, strict=False)
    elif "out" in node.operator.variant:
        given = [value.name for _, value in node.kwargs if isinstance(value, Ref)]
        yield from zip(given[-len(estimate.out) :], estimate.out, strict=False)


def _links(calls: Sequence[PricedCall], values: Mapping[str, Value], graph: Graph) -> tuple[Links, Links]:
    """Pairs of names that are one tensor, and that may be one."""
    certain: Links = []
    possible: Links = []
    for call in calls:
        results = [name for name in call.node.outputs if name is not None]
        written = [name for name, _ in _written(call.node, call.estimate)]
        certain += zip(results, written, strict=False)
        if not written and _may_return_operand(call):
            pairs = [(result, name) for result in results for name in call.uses]
            possible += [pair for pair in pairs if _alike(values.get(pair[0]), values.get(pair[1]))]
    targets = {entry.target: entry.name for entry in graph.inputs if entry.target}
    shared = [(entry.name, entry.alias_of) for entry in graph.inputs if entry.alias_of]
    return certain, possible + [(name, targets[target]) for name, target in shared if target in targets]


def _may_return_operand(call: PricedCall) -> bool:
    """Whether a result of a call may be one of its operands: computing something or copying makes a new tensor."""
    estimate, operator = call.estimate, call.node.operator
    makes = estimate.cost.matrix_flops or estimate.cost.vector_flops or estimate.cost.transcendentals
    copies = "copy" in operator.word or "clone" in operator.word or operator.kind == "creation"
    return bool(estimate.regions) or operator.shares_memory or not (makes or copies)


def _alike(one: Value, other: Value) -> bool:
    if not isinstance(one, TensorType) or not isinstance(other, TensorType):
        return isinstance(one, UnknownType) or isinstance(other, UnknownType)
    return one.shape == other.shape and one.dtype is other.dtype


def _reached(name: str, links: Links) -> set[str]:
    """The names that pairs lead to."""
    import networkx

    graph = networkx.Graph(links)
    return {name, *networkx.node_connected_component(graph, name)} if name in graph else {name}
