"""The values that masks are made of, by scope: a whole program with its nested graphs, or one graph.

Scopes record in-place writes: after a write, a name has other contents than where it was made.
A `Domain` has what index propagation needs of values: numbers, indices, elementwise functions, choices, stored arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, Protocol, TypeVar

from msgspec import Struct

from graphflops.attention.conditions import HIDING, TRUE, UNKNOWN, Truth
from graphflops.attention.constants import Constants
from graphflops.attention.elementwise import Function, Interval
from graphflops.attention.piecewise import Number, as_truth, visible_where
from graphflops.base.lazy import numpy as np
from graphflops.base.record import Record
from graphflops.dims import Dim, Expr
from graphflops.graph import Graph, Node, Ref, tensor_type
from graphflops.tensor import DType, TensorType, flat
from graphflops.view import Step, View

_WITH_OPERANDS = frozenset({"wrap", "wrap_with_autocast", "invoke_subgraph", "cond"})


class Scope(Struct, eq=False, dict=True):
    """Values by name, each made by a step, stored, or an input."""

    graph: Graph
    steps: Sequence[Step]
    types: Mapping[str, Any]  # of tensors
    size: Callable[[str], Any]  # the number that a value is if it is no tensor
    # By input of a nested graph: the scope, the operand and the place of the call that passes it in.
    bound: dict[str, tuple[Scope, Any, int] | None] = {}

    @cached_property
    def makers(self) -> dict[str, Step]:
        return {name: step for step in self.steps for name in step.node.outputs if name}

    @cached_property
    def writes(self) -> dict[str, list[Step]]:
        """By owner of memory (a value that is no view), the steps that write to it in place, in order."""
        found: dict[str, list[Step]] = {}
        for step in self.steps:
            if step.writes:  # to its first operand, or to all tensors of a list that is the first
                first = next(iter((*step.node.args, *(value for _, value in step.node.kwargs))), None)
                for argument in first if isinstance(first, tuple) else (first,):
                    if isinstance(argument, Ref):
                        *_, owner = argument.name, *(each.uses[0] for each in self.views_back(argument.name))
                        found.setdefault(owner, []).append(step)
        return found

    def last_write(self, name: str, before: int) -> Step | None:
        """The last step before a place that wrote to a value's memory; None if there is none."""
        if not self.writes:
            return None
        *_, owner = name, *(step.uses[0] for step in self.views_back(name))
        return next((step for step in reversed(self.writes.get(owner, ())) if step.place < before), None)

    def is_view(self, name: str) -> bool:
        """Whether a value is a view of another, or a value that was written in place."""
        maker = self.makers.get(name)
        if maker is None or maker.writes:
            return maker is not None
        return bool(maker.uses) and maker.may_share

    def views_back(self, name: str, until: str = "") -> Iterator[Step]:
        """The steps that made a view or wrote to it, from a value back to `until` or to the owner of its memory."""
        while name != until and self.is_view(name):
            yield (maker := self.makers[name])
            name = maker.uses[0]

    @cached_property
    def constants(self) -> Constants:
        return Constants(self.graph, lambda name: name in self.writes)

    def type_of(self, name: str) -> TensorType | None:
        return tensor_type(name, self.types)

    def bind(self, other: Scope, name: str, argument: Any, place: int) -> None:
        """Bind the input of a nested graph; an input that gets several operands is not followed."""
        found = (other, argument, place)
        known = self.bound.setdefault(name, found)
        if known is not None and known[:2] != found[:2]:
            self.bound[name] = None


def scope_of_view(view: View) -> Scope:
    """The scope of a priced program with its nested graphs, whose values have names of their own."""
    scope = Scope(view.graph, view.calls, view.types, view.size)
    defined = {entry.name for entry in view.graph.inputs} | scope.makers.keys()
    for step in scope.steps:
        for _, operands in handed(step.node):
            for name, operand in operands:
                if name not in defined:
                    scope.bind(scope, name, operand, step.place)
    return scope


class GraphScopes:
    """The scopes of a graph and its nested graphs, before anything is priced."""

    def __init__(self, graph: Graph) -> None:
        self.known: dict[Graph, Scope] = {}
        waiting = [graph]
        while waiting:
            around = self.of(waiting.pop())
            for step in around.steps:
                for inner, operands in handed(step.node):
                    if inner not in self.known:
                        waiting.append(inner)
                    for name, operand in operands:
                        self.of(inner).bind(around, name, operand, step.place)

    def of(self, graph: Graph) -> Scope:
        if graph not in self.known:
            pairs = enumerate(zip(graph.nodes, graph.operands, strict=True))
            steps = [Step(node, uses, place) for place, (node, uses) in pairs]
            self.known[graph] = Scope(graph, steps, graph.types, View(graph, ()).size)
        return self.known[graph]


def handed(node: Node) -> Iterator[tuple[Graph, list[tuple[str, Any]]]]:
    """The graphs that a call runs, each with its inputs and their operands; without these if the call changes them."""
    for place, argument in enumerate(node.args):
        if not isinstance(argument, Graph):
            continue
        names = [entry.name for entry in argument.inputs if entry.role == "user"]
        operands = [x for x in flat(node.args[place + 1 :]) if not isinstance(x, Graph)]
        if node.operator.name == "invoke_subgraph":
            operands = operands[1:]  # the graph's own name
        follows = node.operator.name in _WITH_OPERANDS and len(names) == len(operands)
        yield argument, [(name, x) for name, x in zip(names, operands, strict=False) if follows]


def size_of(scope: Scope, argument: Any) -> Any:
    """An argument that is a number or a list of numbers, in the call or in a small tensor."""
    if isinstance(argument, Ref):
        typed = scope.type_of(argument.name)
        if typed is not None:
            return typed.value
        known = scope.size(argument.name)
        around = scope.bound.get(argument.name)
        return size_of(around[0], around[1]) if known is None and around is not None else known
    if isinstance(argument, tuple):
        return tuple([size_of(scope, item) for item in argument])
    return argument


Indices = tuple[Any, ...]  # an index for each axis; None where it is not known (the batch)
FAR = -1e8  # what a score function gives for any score, if it is this or less, is no ordinary score

Sense = Literal["added", "keep", "score"]


class Restriction(Record, frozen=True, eq=False, dict=True):
    """A mask as it applies to the scores of one attention."""

    scope: Scope
    value: Any  # the tensor, the step that makes it, or the result of the function
    before: int  # place in its scope of the call that takes it
    # The value is added to scores, true (or not zero) where they stay, or made of a score.
    sense: Sense
    lead: tuple[Dim, ...] = ()  # sizes of the axes of the scores before those of queries and keys
    # A function's inputs: the score if it takes one, batch entry, head, query and key. Empty for a tensor.
    places: tuple[str, ...] = ()
    kept_above: float = HIDING  # results of a score function above it are no hidden scores
    # Name of the scores that a step is given, which count as 0, or probabilities, which count as 1.
    scores: str = ""
    axes: tuple[int, int] = (-2, -1)  # of queries and keys in the value, counted from the end

    def placed(self, at: Indices) -> Indices:
        """The index in the value, given the indices along `lead`, of the query and of the key."""
        rest = iter(at[:-2])
        ends = {axis % len(at): index for axis, index in zip(self.axes, at[-2:], strict=True)}
        return tuple([ends[axis] if axis in ends else next(rest) for axis in range(len(at))])

    def truth(self, value: Number | Truth) -> Truth:
        """Where it lets scores through, given the value as a formula."""
        if self.sense == "keep":
            return as_truth(value)
        return visible_where(value, TRUE if self.sense == "score" else UNKNOWN)

    def certainty(self, found: Interval) -> tuple[Any, Any]:
        """Where it lets all scores through, and where it may let any, if its value is this at pairs or over rectangles."""
        low, high = map(np.asarray, found)
        if self.sense == "keep":
            if found.is_exact:
                return low.astype(bool, copy=False), low.astype(bool, copy=False)
            return (low > 0) | (high < 0), (low != 0) | (high != 0)
        if self.sense == "score":
            return low > self.kept_above, ~((high <= FAR) | ((low == high) & (high <= HIDING)))
        return low > HIDING, ~(high <= HIDING)


V = TypeVar("V")

_NO_END = 2**62  # past the end of any axis


class Evaluator(Protocol[V]):
    """Index propagation (`Propagation`) as operators and domains use it."""

    domain: Domain[V]
    scope: Scope
    before: int
    function: Scope | None  # the scope of the function that is evaluated, if it is one
    inputs: Mapping[str, V]  # values of the inputs of a function, by name

    def value(self, name: str, at: Indices) -> V:
        """The value of that name at an index."""

    def cast(self, step: Step, value: V) -> V | None:
        """A value in the element type of a step's result."""
        return self.domain.apply(Function("cast", (None,), self.result_type(step)), [value])

    def operand(self, argument: Any, at: Indices) -> V:
        """An operand that broadcasts to the result's index, or a number."""
        if isinstance(argument, Ref):
            typed = self.scope.type_of(argument.name)
            if typed is not None:
                return self.value(argument.name, self.clipped(at[len(at) - typed.rank :], typed.shape))
            if self.scope is self.function and argument.name in self.inputs:
                return self.inputs[argument.name]
            argument = size_of(self.scope, argument)
        if isinstance(argument, (bool, int, float, Expr)):
            return self.domain.literal(argument)
        return self.domain.unknown(None)

    def clipped(self, at: Indices, shape: tuple[Dim, ...]) -> Indices:
        """Indices, with 0 for an axis of size 1, which broadcasts."""
        zero, pairs = self.domain.zero, zip(shape, at, strict=True)
        return tuple([zero if size == 1 else index for size, index in pairs])

    def number(self, argument: Any) -> Any:
        return size_of(self.scope, argument)

    def type_of(self, argument: Any) -> Any:
        return tensor_type(argument, self.scope.types) if isinstance(argument, Ref) else None

    def dtype_of(self, argument: Any) -> DType | None:
        typed = self.type_of(argument)
        return None if typed is None else typed.dtype

    def result_type(self, step: Step) -> DType | None:
        return self.dtype_of(Ref(step.result))

    def span(self, start: Any, end: Any, size: Dim) -> tuple[Dim, Dim | None]:
        """The first index of a slice, and the one past its last; None for the axis's end. TypeError if not known."""
        begin, last = (0 if start is None else self.number(start)), self.number(end)
        if not isinstance(begin, (int, Expr)) or (end is not None and not isinstance(last, (int, Expr))):
            raise TypeError
        begin, last = (self.from_end(n, size) if isinstance(n, int) and n < 0 else n for n in (begin, last))
        return begin, None if isinstance(last, int) and last >= _NO_END else last

    def from_end(self, place: int, size: Dim) -> Dim:
        """A negative index of an axis, counted from the start; an index before the first is the first."""
        return 0 if place <= -_NO_END or (isinstance(size, int) and size + place < 0) else size + place


class Domain(Protocol[V]):
    """One kind of value. zero: the first index of an axis."""

    zero: Any

    def unknown(self, dtype: DType | None) -> V:
        """An unknown value."""

    def score(self) -> V:
        """A score before its function; it does not decide whether the function hides it."""
        return self.unknown(None)

    def is_unknown(self, value: V) -> bool:
        """Whether part of a value is unknown, if that decides what is tried next."""
        return False

    def literal(self, number: Any) -> V:
        """A number, size or truth value of the program."""

    def as_index(self, value: V) -> Any:
        """A value as an index; None if it cannot be one."""

    def from_index(self, index: Any, dtype: DType) -> V:
        """An index as a value."""

    def wrapped(self, index: Any, size: Dim) -> Any:
        """An index that may be negative, counted from the start; None if its sign is not known."""

    def repeated(self, index: Any, size: Dim) -> Any:
        """An index modulo the size of a repeated axis; None if it is not known."""
        return None

    def between(self, index: Any, begin: Dim, end: Dim | None) -> V:
        """Where an index is at least `begin`, and below `end` if there is one."""

    def reshaped(self, at: Indices, shape: Sequence[Dim], source: Sequence[Dim]) -> Indices | None:
        """The index before a reshape from shape `source`, given the index after it; None if it is not followed."""
        return None

    def apply(self, function: Function, values: Sequence[V | None]) -> V | None:
        """An elementwise function; None if the domain does not have it."""

    def choose(self, condition: V, yes: V, no: V) -> V:
        """`yes` where the condition holds, else `no`."""

    def stored(self, scope: Scope, name: str, typed: TensorType, at: Indices) -> V | None:
        """An element of a tensor with known contents; None if they are not known."""

    def whole(self, evaluator: Evaluator[V], step: Step, at: Indices) -> V | None:
        """An element of the result of an operator along whole axes (cumulative sum, maximum); None if not followed."""

    def captured(self, evaluator: Evaluator[V], name: str, at: Indices) -> V | None:
        """An element of a tensor that a function captures, from the whole tensor; None if the domain cannot do this."""
        return None
