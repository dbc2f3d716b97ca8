"""Score and mask functions, which a program holds as graphs of scalars, evaluated: for many pairs, or rectangles of them.

Captured tensors are indexed by numbers of the function, one axis after the other or several at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from graphflops.attention import pointwise
from graphflops.attention.ranges import Range, extremes, fitted, ranged
from graphflops.errors import ModelError, shown
from graphflops.graph import Opaque, Ref
from graphflops.tensor import DType, TensorType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphflops.graph import Graph, Node

V = TypeVar("V")


@dataclass(frozen=True)
class Held:
    """A captured tensor as far as it has been indexed.

    axes: those of the array that are left, in their order. given: the index of each axis that has one.
    """

    array: Any
    axes: tuple[int, ...]
    given: tuple[Any, ...]

    @staticmethod
    def of(array: Any) -> Held:
        return Held(array, tuple(range(array.ndim)), (None,) * array.ndim)

    @property
    def whole(self) -> bool:
        """Whether nothing has been indexed."""
        return len(self.axes) == len(self.given)

    def at(self, indices: Sequence[Any]) -> Held:
        """Its first axes indexed; None leaves one."""
        given, left = list(self.given), []
        for place, axis in enumerate(self.axes):
            index = indices[place] if place < len(indices) else None
            if index is None:
                left.append(axis)
            else:
                given[axis] = index
        return Held(self.array, tuple(left), tuple(given))


def needed(graph: Graph) -> tuple[list[Node], set[str]]:
    """The calls that a function's first result depends on, and the names of all values that it does."""
    value = graph.outputs[0].value
    wanted = {value.name} if isinstance(value, Ref) else set()
    kept = []
    for node, uses in zip(reversed(graph.nodes), reversed(graph.operands), strict=True):
        if not wanted.isdisjoint(name for name in node.outputs if name is not None):
            kept.append(node)
            wanted.update(uses)
    return kept[::-1], wanted


class Evaluator(ABC, Generic[V]):
    """Evaluates one function. What a value is is for those to say that are derived from it."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes, self.names = needed(graph)

    @abstractmethod
    def literal(self, number: Any) -> V:
        """A number of the program as a value."""

    @abstractmethod
    def gathered(self, held: Held) -> V:
        """The element at indices of every axis."""

    @abstractmethod
    def call(
        self,
        node: Node,
        word: str,
        values: Sequence[V | None],
        dtypes: Sequence[DType | None],
        result: DType | None,
    ) -> V:
        """A pointwise call."""

    def __call__(self, inputs: Mapping[str, V | Held]) -> V:
        """The function's first result. Raises ModelError where something in it cannot be followed."""
        known: dict[str, V | Held] = dict(inputs)
        for node in self.nodes:
            name = next(name for name in node.outputs if name is not None)
            known[name] = self.value(node, known)
        return self.single(self.operand(self.graph.outputs[0].value, known))

    def value(self, node: Node, known: Mapping[str, V | Held]) -> V | Held:
        word = pointwise.word_of(node.op)
        if (
            node.op == "higher_order.flat_apply"
            and len(node.args) > 4
            and str(node.args[2]).endswith("ModIndex")
        ):
            return self.indexed(self.operand(node.args[3], known), node.args[4:], known)
        if word == "index" and isinstance(node.args[1], tuple):
            return self.indexed(self.operand(node.args[0], known), node.args[1], known)
        filled = pointwise.number_filled(node, word)
        if filled is not None:
            return self.literal(filled)
        if not word:
            raise ModelError(f"{shown(node.op)} is not followed")
        return self.layout(node, word, known) or self.pointwise(node, word, known)

    def pointwise(self, node: Node, word: str, known: Mapping[str, V | Held]) -> V | Held:
        values, dtypes = [], []
        for argument in self.arguments(node, word):
            values.append(None if argument is None else self.operand(argument, known))
            dtypes.append(self.dtype(argument))
        name = next(name for name in node.outputs if name is not None)
        result = self.dtype(Ref(name))
        held = [value for value in values if isinstance(value, Held) and value.axes]
        if not held:
            singles = [None if value is None else self.single(value) for value in values]
            return self.call(node, word, singles, dtypes, result)
        if all(value.whole for value in held):
            arrays = [self.plain(argument, value) for argument, value in zip(node.args, values, strict=False)]
            return Held.of(pointwise.computed(node, word, arrays, dtypes, result))
        raise ModelError(f"{shown(node.op)} of part of a captured tensor is not followed")

    def plain(self, argument: Any, value: V | Held | None) -> Any:
        """An operand beside a whole captured tensor."""
        if isinstance(value, Held) and value.whole:
            return value.array
        if value is None or isinstance(argument, (bool, int, float)):
            return argument
        raise ModelError("a captured tensor combined with places as a whole is not followed")

    def arguments(self, node: Node, word: str) -> list[Any]:
        """The operands of a pointwise call, None for one left out."""
        named = dict(node.kwargs)
        found = [argument for argument in node.args if not isinstance(argument, (DType, Opaque, tuple))]
        if word == "clamp":
            found += [None] * (3 - len(found))
            limits = zip(found[1:], (named.get("min"), named.get("max")), strict=True)
            return [found[0], *(second if first is None else first for first, second in limits)]
        return found[:1] if word in pointwise.SAME else found

    def dtype(self, argument: Any) -> DType | None:
        typed = self.graph.types.get(argument.name) if isinstance(argument, Ref) else None
        return typed.dtype if isinstance(typed, TensorType) else None

    def operand(self, argument: Any, known: Mapping[str, V | Held]) -> V | Held:
        if isinstance(argument, Ref):
            if argument.name not in known:
                raise ModelError(f"{shown(argument.name)} is not at hand")
            return known[argument.name]
        if isinstance(argument, (bool, int, float)):
            return self.literal(argument)
        raise ModelError(f"an argument of type {type(argument).__name__} is not followed")

    def single(self, value: V | Held) -> V:
        """A value that is one number for each pair."""
        if not isinstance(value, Held):
            return value
        if value.axes:
            raise ModelError("a captured tensor is used whole")
        return self.gathered(value)

    # Captured tensors

    def indexed(self, source: V | Held, indices: Sequence[Any], known: Mapping[str, V | Held]) -> Held:
        if not isinstance(source, Held):
            raise ModelError("what is indexed is no captured tensor")
        found = [None if index is None else self.single(self.operand(index, known)) for index in indices]
        return source.at(found)

    def layout(self, node: Node, word: str, known: Mapping[str, V | Held]) -> Held | None:
        """A call that selects of a captured tensor or changes the order of its axes; None for any other."""
        source = known.get(node.args[0].name) if node.args and isinstance(node.args[0], Ref) else None
        if not isinstance(source, Held):
            return None
        order = list(source.axes)
        if word == "select":
            axis, index = node.args[1:3]
            if not isinstance(axis, int):
                return None
            places: list[Any] = [None] * len(order)
            places[axis] = self.single(self.operand(index, known))
            return source.at(places)
        if word in ("transpose", "t"):
            first, second = node.args[1:3] if word == "transpose" else (0, -1)
            if not isinstance(first, int) or not isinstance(second, int):
                return None
            order[first], order[second] = order[second], order[first]
            return replace(source, axes=tuple(order))
        if word == "permute" and isinstance(node.args[1], tuple):
            return replace(
                source, axes=tuple([order[axis] for axis in node.args[1] if isinstance(axis, int)])
            )
        if word in ("detach", "alias", "lift_fresh_copy", "clone", "contiguous"):
            return source
        return None


class Points(Evaluator[Any]):
    """Values are arrays that broadcast with one another: a number for each pair."""

    def literal(self, number: Any) -> Any:
        import numpy as np

        return np.asarray(number)

    def gathered(self, held: Held) -> Any:
        if not held.array.ndim:
            return held.array
        return held.array[tuple(held.given)]

    def call(self, node: Node, word: str, values: Any, dtypes: Any, result: DType | None) -> Any:
        literal = [
            dtype is None and value is not None and value.ndim == 0
            for value, dtype in zip(values, dtypes, strict=True)
        ]
        given = [value.item() if is_one else value for value, is_one in zip(values, literal, strict=True)]
        return pointwise.computed(node, word, given, dtypes, result)


class Ranges(Evaluator[Range]):
    """Values are ranges that hold throughout a rectangle of pairs, or for one pair."""

    def literal(self, number: Any) -> Range:
        import numpy as np

        return Range(np.float64(number), np.float64(number))

    def gathered(self, held: Held) -> Range:
        import numpy as np

        array, given = held.array, list(held.given)
        if all(np.all(index.low == index.high) for index in given):
            found = array[tuple(index.low.astype(np.int64) for index in given)].astype(np.float64)
            return fitted(Range(found, found), None)
        # What is the same for all rectangles (batch entry and head) goes first, so that less is left to look through.
        for axis in reversed(range(array.ndim)):
            low, high = given[axis]
            if low.ndim == 0 and low == high:
                array = np.take(array, int(low), axis)
                del given[axis]
        if array.ndim == 1:
            return fitted(extremes(array, *given[0]), None)
        return fitted(Range(np.float64(array.min()), np.float64(array.max())), None)

    def call(self, node: Node, word: str, values: Any, dtypes: Any, result: DType | None) -> Range:
        return ranged(node, word, values, dtypes, result)
