"""Where partial sums are added up over devices: those of experts after the sum over the experts that a token went to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.dims import evaluate
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphflops.graph import Graph, Node

_REARRANGING = frozenset(
    {"view", "cast", "gather"}
)  # kinds of calls that do to a sum what they do to its parts
_LINEAR = frozenset({"mul", "sum"})


def latest(graph: Graph, value: str, readers: Mapping[str, Sequence[Node]]) -> str:
    """The value that holds the fewest bytes, of this one and what linear calls make of it alone; the first of equals.

    readers: by value, the calls that read it for a result.
    """
    found, most = value, _nbytes(graph, value)
    while value not in graph.returned and len(readers.get(value, ())) == 1:
        (node,) = readers[value]
        (out, *more), reads = node.outputs, node.reads()
        is_linear = node.operator.kind in _REARRANGING or node.operator.name in _LINEAR
        if out is None or more or not is_linear or reads.count(value) != 1 or node.operator.mutates:
            break
        if node.operator.name != "mul" and reads[0] != value:
            break
        value = out
        if (size := _nbytes(graph, value)) < most:
            found, most = value, size
    return found


def _nbytes(graph: Graph, value: str) -> int:
    """Bytes of a value where open sizes are 1, by which those of one path compare."""
    typed = graph.types.get(value)
    size = evaluate(typed.nbytes, dict.fromkeys(graph.symbols, 1)) if isinstance(typed, TensorType) else None
    return 0 if size is None else size
