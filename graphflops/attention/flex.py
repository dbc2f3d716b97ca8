"""What is visible of flexible attention: the pairs that its functions let through, and the blocks that run for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphflops.attention.captured import Captured
from graphflops.attention.flex_function import Function
from graphflops.attention.flex_problem import Lists, Problem
from graphflops.errors import GraphflopsError
from graphflops.graph import Graph, Ref
from graphflops.rules.flex import LARGEST_BLOCK
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.graph import Node
    from graphflops.rules.flex import Seen

# Places of arguments: score function, block mask, tensors that the score function captures, those of the mask function.
_ARGUMENTS = {
    "higher_order.flex_attention": (3, 4, 7, 8),
    "higher_order.flex_attention_backward": (7, 9, 12, 13),
}
# Places in a block mask: how many partial blocks each line has, and which; the same of full ones.
_LISTS = (2, 3), (4, 5)


class FlexAttentions:
    """The flexible attentions of a program."""

    def __init__(self, graph: Graph) -> None:
        self.captured = Captured(graph)
        self.known: dict[Any, tuple[Seen | None, str]] = {}

    def seen(self, graph: Graph, node: Node, values: Sequence[Any]) -> tuple[Seen | None, str]:
        """What is visible of one, and why that is not for certain, if it is not; None where nothing is known.

        graph: the one that the call is in. values: its arguments as the analysis knows them.
        """
        try:
            problem = self.problem(graph, node, values)
        except (GraphflopsError, ArithmeticError, LookupError, TypeError, ValueError):
            return None, ""  # no call of the operator: its rule says what is wrong
        if problem is None:
            return None, ""
        identity = problem.identity
        if identity not in self.known:
            self.known[identity] = problem.seen()
        return self.known[identity]

    def problem(self, graph: Graph, node: Node, values: Sequence[Any]) -> Problem | None:
        """The call as what is to be counted; None where it is of another form."""
        score, mask, score_tensors, mask_tensors = _ARGUMENTS[node.op]
        blocks = node.args[mask] if mask < len(node.args) else None
        query, key = values[:2]
        for operand in (query, key):
            if not isinstance(operand, TensorType) or operand.rank != 4:
                return None
        if not isinstance(blocks, tuple):
            return None
        of_scores = self.function(graph, node.args[score], 5, node, values, score_tensors)
        of_mask = self.function(graph, blocks[-1], 4, node, values, mask_tensors)
        if of_scores is None or of_mask is None:
            return None
        rows, columns = values[mask][-3:-1]
        is_whole = rows == columns == LARGEST_BLOCK
        lists = None if is_whole else self.lists(graph, blocks, values[mask])
        return Problem(query, key, rows, columns, of_scores, of_mask, lists)

    def function(
        self, graph: Graph, function: Any, places: int, node: Node, values: Sequence[Any], at: int
    ) -> Function | None:
        """A function with what it captures: the arguments of the call that are at that place."""
        if not isinstance(function, Graph):
            return None
        names = [entry.name for entry in function.inputs if entry.role == "user"][places:]
        arguments: Any = node.args[at] if at < len(node.args) else ()
        given = dict(zip(names, zip(arguments, values[at] if arguments else (), strict=True), strict=True))
        arrays = {entry.name: self.captured.array(function, entry.name) for entry in function.inputs}
        for name, (argument, value) in given.items():
            if isinstance(argument, Ref) and isinstance(value, TensorType):
                arrays[name] = self.captured.array(graph, argument.name, value)
        return Function(
            function,
            places,
            {name: value for name, (_, value) in given.items()},
            {name: array for name, array in arrays.items() if array is not None},
            {name: argument.name for name, (argument, _) in given.items() if isinstance(argument, Ref)},
        )

    def lists(self, graph: Graph, blocks: Sequence[Any], values: Sequence[Any]) -> Lists | None:
        """The blocks that are listed, where the lists are at hand."""
        found: list[tuple[Any, Any] | None] = []
        if not isinstance(blocks[_LISTS[0][0]], Ref):
            return None
        for places in _LISTS:
            given = [blocks[at] for at in places]
            arrays = [
                self.captured.array(graph, x.name, values[at]) if isinstance(x, Ref) else None
                for x, at in zip(given, places, strict=True)
            ]
            if any(isinstance(x, Ref) and array is None for x, array in zip(given, arrays, strict=True)):
                return None
            number, which = arrays
            if (
                number is not None
                and which is not None
                and (which.ndim != 4 or number.shape != which.shape[:3])
            ):
                return None
            found.append(None if number is None or which is None else (number, which))
        return Lists(*found)
