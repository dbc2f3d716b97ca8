"""What a file says of numbers and sizes that its operators give otherwise, or do not give.

A size that depends on data is believed where the program asserts it when it runs: torch writes such an assertion for every
number and for every bound that it records of one.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator

from graphflops.cost import Value
from graphflops.dims import Dim, Expr, differ, evaluate, symbol
from graphflops.errors import shown
from graphflops.exporters.types import STORED
from graphflops.graph import Graph, Node, Ref
from graphflops.passes.bind import Binding
from graphflops.tensor import TensorType, sizes_in

# Comparisons that say that the first operand is at most the second, and by how much it is less.
_AT_MOST = {"eq": 0, "le": 0, "lt": 1}


class Claims:
    """Compares what the file records with what is derived.

    told: by symbol of the file for a size that depends on data, the graph and the call that gives it.
    """

    def __init__(self, graph: Graph, binding: Binding) -> None:
        self._symbols = graph.symbols
        self._binding = binding
        self._examples = {**binding.examples, **binding.given}
        self.told: dict[str, tuple[Graph, Node]] = {}

    def is_free(self, name: str) -> bool:
        """Whether a symbol of the file is the size of no input, and the user has not given it."""
        return name in self._symbols and not self._symbols[name].where and name not in self._binding.given

    def contradict(self, ours: Value, recorded: Value) -> bool:
        """Whether what is recorded cannot be what is derived."""
        if isinstance(ours, TensorType) and isinstance(recorded, TensorType):
            return ours.rank != recorded.rank or any(map(self._differ, ours.shape, recorded.shape))
        if isinstance(ours, TensorType) or isinstance(recorded, TensorType) or ours is None:
            # NaN: no example.
            return recorded is not None and not isinstance(recorded, bool) and recorded == recorded
        if isinstance(ours, (int, float, Expr)) and isinstance(recorded, (int, float, Expr)):
            return self._differ(ours, recorded)
        return False

    def _differ(self, ours: Dim | float, recorded: Dim | float) -> bool:
        """Whether two numbers differ, provably or at the examples."""
        if isinstance(ours, float) or isinstance(recorded, float):
            numbers = [x for x in (ours, recorded) if isinstance(x, (int, float)) and not math.isnan(x)]
            return len(numbers) == 2 and not math.isclose(*numbers)
        if differ(ours, recorded):
            return True
        if not isinstance(ours, Expr) and not isinstance(recorded, Expr):
            return False
        now, then = evaluate(ours, self._examples), evaluate(recorded, self._examples)
        if recorded == 0 and any(map(self._is_count, ours.symbols if isinstance(ours, Expr) else ())):
            return False  # torch records that a sparse input stores nothing
        return self._is_stray(ours, recorded) if now is None or then is None else now != then

    def _is_count(self, name: str) -> bool:
        """Whether a symbol is how many elements a sparse input stores."""
        return name in self._symbols and any(place.startswith(STORED) for place in self._symbols[name].where)

    def _is_stray(self, ours: Dim, recorded: Dim) -> bool:
        """Whether one of two sizes has a symbol of no input, which the other does not have."""
        sizes = (
            ours.symbols if isinstance(ours, Expr) else set(),
            recorded.symbols if isinstance(recorded, Expr) else set(),
        )
        return sizes[0] <= self._symbols.keys() and any(map(self.is_free, sizes[0] ^ sizes[1]))

    def problem(self, node: Node, graph: Graph, name: str, axis: int | None, told: Dim) -> str:
        """What is wrong with a size of a result that depends on data and that the file tells; "" if nothing is."""
        if isinstance(told, int):
            is_given = (
                any(isinstance(x, Expr) for x in sizes_in(graph.types.get(name))) and self._binding.given
            )
            if is_given or isinstance(told, bool) or _is_asserted(graph, _numbers(graph, name, axis), told):
                return ""
            return f"a size that depends on data is {told:,} in the file, and the program does not assert it"
        for symbol_name in filter(self.is_free, told.symbols):
            _, first = self.told.setdefault(symbol_name, (graph, node))
            if first is not node and set(first.reads()).isdisjoint(node.reads()):
                return f"{symbol_name} depends on the data of {shown(first.name)} and on other data"
        return ""

    def unasserted(self) -> Iterator[tuple[Node, str]]:
        """The calls whose results are taken at a bound that the file states, where the program does not assert it."""
        for name, (graph, node) in self.told.items():
            most = self._symbols[name].maximum
            if most is not None and name in self._binding.assumed and name not in self._binding.learned:
                sizes = {value for value, kind in graph.types.items() if kind is symbol(name)}
                if not _is_asserted(graph, sizes, most):
                    yield node, f"{name} is at most {most:,} in the file, and the program does not assert it"


def paired(ours: Value, recorded: Value) -> Iterator[tuple[int | None, Dim, Dim]]:
    """Sizes that are derived, each with the one recorded for it, by axis; None for a number that is no axis."""
    if isinstance(ours, TensorType) and isinstance(recorded, TensorType):
        for axis, sizes in enumerate(zip(ours.shape, recorded.shape, strict=False)):
            yield axis, *sizes
    elif isinstance(ours, Expr) and isinstance(recorded, (int, Expr)):
        yield None, ours, recorded


def _numbers(graph: Graph, name: str, axis: int | None) -> set[str | None]:
    """The numbers of a graph that are a number, or one axis of a tensor."""
    if axis is None:
        return {name}
    asked = [node for node in graph.nodes if node.operator.name == "size"]
    wanted = {"x": Ref(name), "axis": axis}
    return {node.outputs[0] for node in asked if node.outputs and node.arguments() == wanted}


def _is_asserted(graph: Graph, sizes: Container[str | None], number: int) -> bool:
    """Whether a call checks that one of these numbers is at most so large."""
    bounded: set[str | None] = set()
    for node in graph.nodes:
        name = node.operator.name
        first = node.args[0] if node.args else None
        is_size = isinstance(first, Ref) and first.name in sizes
        if name in _AT_MOST and is_size and len(node.args) == 2:
            most = node.args[1]
            if isinstance(most, int) and most - _AT_MOST[name] <= number:
                bounded.update(node.outputs)
        elif name == "check" and isinstance(first, Ref):
            most = dict(node.kwargs).get("max") if is_size else None
            if first.name in bounded or (isinstance(most, int) and most <= number):
                return True
    return False
