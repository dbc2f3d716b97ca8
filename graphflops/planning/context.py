"""Context parallelism: whether each call but attention works on the tokens that one device has of a sequence."""

from __future__ import annotations

from graphflops.dims import Expr, symbol
from graphflops.graph import Graph, Node, Ref
from graphflops.planning.parts import Split

_ANY_PART = frozenset({"attention", "gather", "size"})  # attention gets keys and values of the other devices


def mixed(graph: Graph, length: str) -> str:
    """The first call that needs a whole sequence, with the reason; "" where each works on a part of it.

    length: the symbol of the tokens of a sequence. Integers, such as positions and what a mask is made of, each device can
    have whole. What has the tokens of all sequences in one axis treats each alone, as it does in a batch of any size.
    """
    found, size = Split(graph, 1), symbol(length)
    for node in graph.nodes:
        for name in node.reads() if node.operator.kind not in _ANY_PART else ():
            typed = found.type(name)
            if typed is None or typed.dtype.kind != "float":
                continue
            axes = [axis for axis, one in enumerate(typed.shape) if one == size]
            if not all(_is_split(found, node, name, axis, length) for axis in axes):
                return f"{node.name}: {node.op} needs the whole sequence"
    return ""


def _is_split(found: Split, node: Node, name: str, axis: int, length: str) -> bool:
    """Whether a call works on a part of an operand along the axis of a sequence's tokens."""
    given, rank = node.arguments(), found.rank(name)
    out = [typed for typed in map(found.type, filter(None, node.outputs)) if typed is not None]
    if not out:
        return True
    if node.operator.kind == "product":
        first = given.get("a", given.get("#0"))
        is_first = isinstance(first, Ref) and first.name == name
        return axis != (rank - 1 if is_first or "weight" in given else max(rank - 2, 0))
    if node.operator.kind == "view" and "axis" not in node.operator.parameters:
        return any(isinstance(one, Expr) and length in one.symbols for one in out[0].shape)
    is_left = all(
        symbol(length) in typed.shape for typed in out
    )  # a slice of it is not, nor what is joined to more
    return is_left and (node.operator.name == "cat" or found.axis_of_result(node, name, axis) is not None)
