"""Counts what flexible attention leaves visible: the pairs that its functions let through, and the blocks that run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from graphflops.attention.arrays import MOST_CAPTURED, ArrayDomain, array_of_value
from graphflops.attention.flex_problem import MASK_PLACES, SCORE_PLACES, Function, Problem
from graphflops.attention.hidden_pairs import ValueNumbers
from graphflops.attention.rectangles import Lists
from graphflops.attention.scopes import FAR, GraphScopes, Scope
from graphflops.dims import Expr
from graphflops.errors import GraphflopsError
from graphflops.graph import Graph, Node, Ref
from graphflops.rules.flex import LARGEST_BLOCK, Seen
from graphflops.tensor import TensorType

# Places in a block mask: how many partial blocks each line has, and which; the same of full ones.
_LISTS = (2, 3), (4, 5)


class FlexAttentions:
    """The flexible attentions of a program."""

    def __init__(self, graph: Graph) -> None:
        self.scopes = GraphScopes(graph)
        self.arrays = ArrayDomain(FAR)
        self.numbers = ValueNumbers(by_contents=True)
        self.known: dict[Any, tuple[Seen | None, str]] = {}

    def seen(self, graph: Graph, node: Node, values: Sequence[Any]) -> tuple[Seen | None, str]:
        """The visible pairs and blocks of one call, and the reason where they are only a bound; None where nothing is known.

        graph: the one that the call is in. values: its arguments as the analysis knows them.
        """
        try:
            problem = self.problem(graph, node, values)
        except (GraphflopsError, ArithmeticError, LookupError, TypeError, ValueError):
            return None, ""  # not a valid call: its rule reports the error
        if problem is None:
            return None, ""
        identity = problem.identity(self.numbers)
        if identity not in self.known:
            self.known[identity] = problem.seen()
        return self.known[identity]

    def problem(self, graph: Graph, node: Node, values: Sequence[Any]) -> Problem | None:
        """The attention of a call; None where its arguments have another form."""
        given = node.arguments()
        known = dict(zip(node.operator.parameters, values, strict=False))
        query, key, blocks = known["query"], known["key"], given["block_mask"]
        for operand in (query, key):
            if not isinstance(operand, TensorType) or operand.rank != 4:
                return None
        if not isinstance(blocks, tuple):
            return None
        around = self.scopes.of(graph)
        place = next((step.place for step in around.steps if step.node is node), len(around.steps))
        of_call = around, place, given, known
        score = self.function(given["score_mod"], SCORE_PLACES, "score_captures", *of_call)
        mask = self.function(blocks[-1], MASK_PLACES, "mask_captures", *of_call)
        rows, columns = known["block_mask"][-3:-1]
        is_whole = rows == columns == LARGEST_BLOCK
        lists = None if is_whole else self.lists(around, place, blocks, known["block_mask"])
        *lead, queries, _ = query.shape
        return Problem(tuple(lead), queries, key.shape[2], rows, columns, score, mask, lists)

    def function(
        self, function: Any, places: tuple[str, ...], captures: str, around: Scope, place: int,
        given: Mapping[str, Any], known: Mapping[str, Any],
    ) -> Function:  # fmt: skip
        """A function of a call, with what it captures: operands as given, and as the analysis knows them."""
        if not isinstance(function, Graph):
            raise TypeError  # its rule reports the error
        names = [entry.name for entry in function.inputs if entry.role == "user"]
        scope = replace(self.scopes.of(function), types=dict(function.types), bound={})
        for name, each in zip(names, places, strict=False):
            scope.bind(around, name, each, place)
        captured = given.get(captures, ()), known.get(captures, ())
        for name, operand, value in zip(names[len(places) :], *captured, strict=True):
            if isinstance(value, (bool, int, float, Expr)):
                operand = value
            elif isinstance(value, TensorType):
                scope.types[name] = value  # type: ignore[index]
            scope.bind(around, name, operand, place)
        return Function(scope, places, known["query"].shape[:2], self.arrays)

    def lists(self, around: Scope, place: int, blocks: Sequence[Any], values: Sequence[Any]) -> Lists | None:
        """The lists of blocks that run, where their contents are available."""
        found: list[tuple[Any, Any] | None] = []
        if not isinstance(blocks[_LISTS[0][0]], Ref):
            return None
        for places in _LISTS:
            given = [blocks[at] for at in places]
            arrays = [self.array(around, place, blocks[at], values[at]) for at in places]
            if any(isinstance(x, Ref) and array is None for x, array in zip(given, arrays, strict=True)):
                return None
            number, which = arrays
            is_list = number is not None and which is not None
            if is_list and (which.ndim != 4 or number.shape != which.shape[:3]):
                return None
            found.append((number, which) if is_list else None)
        return Lists(*found)

    def array(self, around: Scope, place: int, argument: Any, value: Any) -> Any:
        """The contents of an operand; None where they are not available."""
        if not isinstance(argument, Ref) or not isinstance(value, TensorType):
            return None
        found = array_of_value(around, argument.name, value)
        return self.arrays.array(around, argument.name, place, MOST_CAPTURED) if found is None else found
