"""What the tensors hold that an attention's functions capture, where the program tells: stored, or made of numbers alone."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from graphflops.attention import pointwise
from graphflops.attention.stored import array_of
from graphflops.dims import Expr, at_least
from graphflops.errors import GraphflopsError
from graphflops.graph import Graph, Ref
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from graphflops.cost import Value
    from graphflops.graph import Node

_MOST = 2**26  # elements of a tensor that is made
_DEEPEST = 64  # calls followed
_VIEWS = frozenset(
    pointwise.words(
        "view reshape _unsafe_view expand expand_as permute transpose t squeeze unsqueeze alias detach detach_ select slice"
        " narrow to contiguous flatten unflatten view_as diagonal as_strided movedim swapaxes numpy_T"
    )
)
_HANDED_ON = (
    "higher_order.wrap_with_set_grad_enabled",
    "higher_order.wrap_with_autocast",
    "higher_order.invoke_subgraph",
    "higher_order.wrap",
    "higher_order.wrap_activation_checkpoint",
    "higher_order.tag_activation_checkpoint",
    "higher_order.hints_wrapper",
    "higher_order.strict_mode",
    "higher_order.cond",
)  # operators whose graphs get the operands that come after them, as they are


class Captured:
    """Contents of values of a program and of the graphs nested in it, as numpy arrays."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.outside = dict(_outside(graph))
        self.makers: dict[Graph, dict[str, Node]] = {}
        self.written: dict[Graph, set[str]] = {}
        self.known: dict[tuple[Graph, str], Any] = {}

    def array(self, graph: Graph, name: str, value: Value = None) -> Any:
        """The contents of a value in a graph; None where they are not known.

        value: what the analysis knows of it.
        """
        if isinstance(value, TensorType) and value.value is not None:
            held = _of_contents(value)
            if held is not None:
                return held
        key = (graph, name)
        if key not in self.known:
            self.known[key] = None
            # Whatever a file holds, not to know contents is never wrong.
            with suppress(
                GraphflopsError, ArithmeticError, LookupError, MemoryError, OSError, TypeError, ValueError
            ):
                self.known[key] = self.found(graph, name, 0)
        return self.known[key]

    def found(self, graph: Graph, name: str, depth: int) -> Any:
        if depth > _DEEPEST or name in self.writes(graph):
            return None
        entry = next((entry for entry in graph.inputs if entry.name == name), None)
        if entry is not None and entry.role != "user":
            stored = None if graph.contents is None else graph.contents(name)
            return None if stored is None else array_of(stored)
        if entry is not None:
            around = self.outside.get((graph, name))
            return None if around is None else self.found(*around, depth + 1)
        maker = self.made(graph).get(name)
        return None if maker is None else self.computed(graph, maker, depth + 1)

    def made(self, graph: Graph) -> dict[str, Node]:
        """The call that makes each value of one result."""
        if graph not in self.makers:
            made = (
                (name, node)
                for node in graph.nodes
                if len(node.outputs) == 1
                for name in node.outputs
                if name
            )
            self.makers[graph] = dict(made)
        return self.makers[graph]

    def writes(self, graph: Graph) -> set[str]:
        """Names of the values that are written in place, and of what they may be views of."""
        if graph not in self.written:
            found = set()
            for node in graph.nodes:
                base = node.operator.functional
                target = node.args[0] if node.args else None
                if base is not None and base != "aten.detach":
                    while isinstance(target, Ref) and target.name not in found:
                        found.add(target.name)
                        maker = self.made(graph).get(target.name)
                        is_view = maker is not None and pointwise.word_of(maker.op) in _VIEWS
                        target = maker.args[0] if maker is not None and is_view else None
            self.written[graph] = found
        return self.written[graph]

    def computed(self, graph: Graph, node: Node, depth: int) -> Any:
        """The result of a call whose operands are known."""
        import numpy as np

        typed = graph.types.get(node.outputs[0] or "")
        shape = [x for x in typed.shape if isinstance(x, int)] if isinstance(typed, TensorType) else []
        if not isinstance(typed, TensorType) or len(shape) < typed.rank or not at_least(_MOST, typed.numel):
            return None
        word = pointwise.word_of(node.op).rstrip("_")
        filled = pointwise.number_filled(node, word)
        if filled is not None:
            return np.full(shape, filled, pointwise.array_type(typed.dtype))
        if word == "arange":
            return pointwise.converted(
                np.arange(*[x for x in node.args if isinstance(x, (int, float))]), typed.dtype
            )
        values: list[Any] = []
        for argument in node.args:
            if isinstance(argument, Ref):
                values.append(self.found(graph, argument.name, depth))
                if values[-1] is None:
                    return None
            elif argument is None or isinstance(argument, (bool, int, float)):
                values.append(argument)
        if word == "cumsum" and len(values) > 1:
            return pointwise.converted(np.cumsum(values[0], values[1]), typed.dtype)
        if word in ("view", "reshape", "flatten", "squeeze", "unsqueeze", "_unsafe_view"):
            return values[0].reshape(shape)
        if word == "expand":
            return np.broadcast_to(values[0], shape)
        dtypes = [self.type_of(graph, argument) for argument in node.args if _is_operand(argument)]
        values = values[:1] if word in pointwise.SAME else values
        found = pointwise.computed(node, word, values, dtypes[: len(values)], typed.dtype)
        return found if found.shape == tuple(shape) else None

    @staticmethod
    def type_of(graph: Graph, argument: Any) -> Any:
        typed = graph.types.get(argument.name) if isinstance(argument, Ref) else None
        return typed.dtype if isinstance(typed, TensorType) else None


def _of_contents(typed: TensorType) -> Any:
    """Contents that the analysis followed, where all are numbers."""
    import numpy as np

    def numbers(value: Any) -> bool:
        return all(map(numbers, value)) if isinstance(value, tuple) else not isinstance(value, Expr)

    if not numbers(typed.value) or not all(isinstance(size, int) for size in typed.shape):
        return None
    return pointwise.converted(np.array(typed.value).reshape(typed.shape), typed.dtype)


def _is_operand(argument: Any) -> bool:
    return argument is None or isinstance(argument, (Ref, bool, int, float))


def _outside(graph: Graph) -> Mapping[tuple[Graph, str], tuple[Graph, str] | None]:
    """By graph and name of an operand in a nested graph: graph and name of what is handed to it, where that is one value."""
    found: dict[tuple[Graph, str], tuple[Graph, str] | None] = {}
    waiting, seen = [graph], {graph}
    while waiting:
        around = waiting.pop()
        for node in around.nodes:
            for inner, operands in _handed(node):
                entries = [entry for entry in inner.inputs if entry.role == "user"]
                matching = len(entries) == len(operands)
                for place, entry in enumerate(entries):
                    operand = operands[place] if matching else None
                    source = (around, operand.name) if isinstance(operand, Ref) else None
                    key = (inner, entry.name)
                    found[key] = source if key not in found or found[key] == source else None
                if inner not in seen:
                    seen.add(inner)
                    waiting.append(inner)
    return found


def _handed(node: Node) -> Iterator[tuple[Graph, list[Any]]]:
    if node.op not in _HANDED_ON and not any(isinstance(argument, Graph) for argument in node.args):
        return
    for place, argument in enumerate(node.args):
        if isinstance(argument, Graph):
            rest = [x for x in _flat(node.args[place + 1 :]) if not isinstance(x, Graph)]
            if node.op == "higher_order.invoke_subgraph":
                rest = rest[1:]  # the graph's own name
            yield argument, rest if node.op in _HANDED_ON else []


def _flat(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple):
            yield from _flat(value)
        else:
            yield value
