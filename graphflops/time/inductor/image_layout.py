"""Whether inductor runs convolutions with channels innermost (`decide_layout_opt` of its graph.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.graph import Ref
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    from graphflops.dims import Dim
    from graphflops.passes.program import PricedCall, PricedGraph

    _Kind = Literal["grouped", "small", "narrowing", "plain"]

_FEW = 300  # nodes of a graph for each convolution, above which layouts stay as they are
_LEAST_RANK = 3  # of a weight
_SMALL = 64  # channels
# How long a convolution takes with channels innermost, by its time as it lies.
_RATIOS: dict[_Kind, float] = {"grouped": 1.358, "small": 0.783, "narrowing": 0.725, "plain": 0.823}
# Nodes that a call is decomposed into, by the kind of its operator; one for others.
_NODES = {"normalisation": 12, "product": 4, "attention": 8, "softmax": 8, "convolution": 1}
_ACTIVATION = 6


def runs_channels_last(graph: PricedGraph, calls: Sequence[PricedCall], *, is_trained: bool) -> bool:
    """Not where only a few calls are convolutions, nor where most of their work is in groups of several channels."""
    work: dict[_Kind, Dim] = {}
    nodes = len(graph.graph.inputs)
    count = 0
    for call in calls:
        kind = call.node.operator.kind
        is_activation = kind == "elementwise" and call.estimate.transcendentals != 0
        nodes += _ACTIVATION if is_activation else _NODES.get(kind, 1)
        if kind == "convolution" and (own := _kind(call, graph)) is not None:
            work[own] = work.get(own, 0) + call.estimate.matrix_flops
            count += 1
    if not count or nodes >= _FEW * count:
        return False
    if is_trained:
        return not work.keys() & {"grouped", "narrowing"} and work.keys() != {"small"}
    flops = {kind: size for kind, size in work.items() if isinstance(size, int)}
    return sum(size * _RATIOS[kind] for kind, size in flops.items()) <= sum(flops.values())


def _kind(call: PricedCall, graph: PricedGraph) -> _Kind | None:
    weight, groups = call.node.arguments().get("weight"), call.node.arguments().get("groups", 1)
    kind = graph.values.get(weight.name) if isinstance(weight, Ref) else None
    sizes = [size for size in kind.shape if isinstance(size, int)] if isinstance(kind, TensorType) else []
    if len(sizes) < _LEAST_RANK:
        return None
    filters, channels, rows = sizes[:_LEAST_RANK]
    if isinstance(groups, int) and groups > 1 and channels > 1:
        return "grouped"
    if filters <= _SMALL and channels <= _SMALL:
        return "small"
    return "narrowing" if filters * 2 <= channels and rows > 1 else "plain"
