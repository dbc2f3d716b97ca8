"""A score or mask function of flexible attention, with what it captures."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from graphflops.attention import pointwise
from graphflops.attention.conditions import Conditions
from graphflops.attention.functions import Held, Points, Ranges
from graphflops.attention.predicates import HIDING
from graphflops.attention.ranges import Range
from graphflops.graph import Ref
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.cost import Value
    from graphflops.graph import Graph

FAR = -1e8  # a score of this or less is hidden, whatever it was and whatever was added
_LOGARITHMS = frozenset({"log", "log2", "log10", "log1p"})  # which make minus infinity of a number


@dataclass(frozen=True)
class Function:
    """A score or mask function.

    places: how many of its inputs come before those that are captured.
    values: what is known of those, by name. arrays: what they hold, where that is at hand. labels: their names outside.
    """

    graph: Graph
    places: int
    values: dict[str, Value]
    arrays: dict[str, Any]
    labels: dict[str, str]

    @cached_property
    def conditions(self) -> Conditions:
        return Conditions(self.graph, self.values, self.places)

    @cached_property
    def points(self) -> Points:
        return Points(self.graph)

    @cached_property
    def ranges(self) -> Ranges:
        return Ranges(self.graph)

    @cached_property
    def names(self) -> list[str]:
        return [entry.name for entry in self.graph.inputs]

    @property
    def key(self) -> Any:
        """Equal for functions that do the same."""
        calls = tuple((node.op, node.args, node.kwargs, node.outputs) for node in self.graph.nodes)
        values = tuple((name, value) for name, value in self.values.items() if name not in self.arrays)
        arrays = tuple((name, digest(array)) for name, array in self.arrays.items())
        return calls, self.graph.outputs, tuple(self.names), values, arrays

    def tells_apart(self, place: int) -> bool:
        """Whether the result depends on the batch entry (0) or the head (1)."""
        return self.names[self.places - 4 + place] in self.points.names

    @property
    def missing(self) -> list[str]:
        """What the result depends on and is not at hand."""
        wanted = [name for name in self.names[self.places :] if name in self.points.names]
        return [
            name
            for name in wanted
            if name not in self.arrays and not isinstance(self.values.get(name), (int, float))
        ]

    @property
    def arrays_used(self) -> list[Any]:
        """What is at hand of the tensors that the result depends on."""
        return [array for name, array in self.arrays.items() if name in self.points.names]

    @property
    def may_hide(self) -> bool:
        """Whether what comes of a score may be minus infinity, or a number that stands for it."""
        return self.replaces or self.may_hide_by_contents or any(map(math.isinf, self.numbers))

    @property
    def replaces(self) -> bool:
        """Whether the function knows a number that stands for minus infinity."""
        return any(number <= HIDING and not math.isinf(number) for number in self.numbers)

    @cached_property
    def may_hide_by_contents(self) -> bool:
        """Whether it may be so because of what a captured tensor holds, or of a logarithm."""
        floats = [array for array in self.arrays_used if array.dtype.kind == "f"]
        words = {pointwise.word_of(node.op) for node in self.points.nodes}
        return not words.isdisjoint(_LOGARITHMS) or any(bool((array <= FAR).any()) for array in floats)

    @property
    def numbers(self) -> list[float]:
        """The numbers in its calls."""
        arguments = [x for node in self.points.nodes for x in (*node.args, *(x for _, x in node.kwargs))]
        return [x for x in arguments if isinstance(x, (int, float))]

    def inputs(self, evaluator: Points | Ranges, places: Sequence[Any]) -> dict[str, Any]:
        """The values of the inputs, given those of the places."""
        known: dict[str, Any] = dict(zip(self.names, places, strict=False))
        for name in self.names[self.places :]:
            value = self.values.get(name)
            if name in self.arrays:
                known[name] = Held.of(self.arrays[name])
            elif isinstance(value, (bool, int, float)):
                known[name] = evaluator.literal(value)
        return known

    def at_points(self, *places: Any) -> Any:
        """The function of numbers, in arrays that broadcast with one another."""
        import numpy as np

        given = []
        for name, place in zip(self.names, places, strict=False):
            dtype = self.points.dtype(Ref(name))
            given.append(np.asarray(place) if dtype is None else pointwise.converted(place, dtype))
        return self.points(self.inputs(self.points, given))

    def in_ranges(self, *places: Range) -> Range:
        """The function of ranges; what is captured and not at hand may be anything."""
        import numpy as np

        given = [Range(*(np.asarray(end, np.float64) for end in place)) for place in places]
        known = self.inputs(self.ranges, given)
        for name in self.missing:
            value = self.values.get(name)
            shape = value.shape if isinstance(value, TensorType) else ()
            known[name] = Held.of(np.broadcast_to(np.nan, shape))  # type: ignore[arg-type]
        return self.ranges(known)


def digest(array: Any) -> Any:
    """Equal for arrays that hold the same."""
    import numpy as np

    return (
        array.dtype.str,
        array.shape,
        hashlib.blake2b(np.ascontiguousarray(array).data, digest_size=16).digest(),
    )
