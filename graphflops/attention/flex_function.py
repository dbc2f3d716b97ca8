"""A score or mask function of flexible attention: a graph of scalars with the tensors that it captures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from graphflops.attention.affine import AffineDomain
from graphflops.attention.concrete import MOST_CAPTURED, MOST_STEPS, ConcreteDomain, Known, array_of_value
from graphflops.attention.conditions import COLUMN, HIDING, NEVER, ROW, TRUE, Truth
from graphflops.attention.elementwise import converted
from graphflops.attention.index_propagation import Propagation, is_followed
from graphflops.attention.interval_functions import Interval
from graphflops.attention.intervals import IntervalDomain
from graphflops.attention.piecewise import UNKNOWN_NUMBER, Number, as_truth, visible_where
from graphflops.attention.scopes import size_of
from graphflops.errors import shown
from graphflops.graph import Ref

if TYPE_CHECKING:
    from graphflops.attention.hidden_pairs import ValueNumbers
    from graphflops.attention.scopes import Scope, Step

FAR = -1e8  # a score is hidden where this or less is added to it
_LOGARITHMS = frozenset({"log", "log2", "log10", "log1p"})  # may give minus infinity
_SCORE = Interval(
    -1e3, 1e3
)  # scores before their function; what they are does not tell whether it hides them
_AFTER_ALL = 2**62  # place of the result in its scope


@dataclass(frozen=True, eq=False)
class Function:
    """A score or mask function. places: how many of its inputs come before those that are captured."""

    scope: Scope
    places: int
    concrete: ConcreteDomain

    @cached_property
    def names(self) -> list[str]:
        """Names of the inputs."""
        return [entry.name for entry in self.scope.graph.inputs]

    @cached_property
    def result(self) -> Any:
        return self.scope.graph.outputs[0].value

    @cached_property
    def needed(self) -> tuple[list[Step], set[str]]:
        """The steps that the result depends on, and the names of all values that it does."""
        wanted = {self.result.name} if isinstance(self.result, Ref) else set()
        kept = []
        for step in reversed(self.scope.steps):
            if not wanted.isdisjoint(name for name in step.node.outputs if name is not None):
                kept.append(step)
                wanted.update(step.uses)
        return kept[::-1], wanted

    def key(self, numbers: ValueNumbers) -> Any:
        """Equal for functions that do the same."""
        calls = tuple(
            (step.node.op, step.node.args, step.node.kwargs, step.node.outputs) for step in self.needed[0]
        )
        captured = tuple(
            (self.scope.types.get(name), numbers.of(self.scope, Ref(name))) for name in self.captured
        )
        return calls, self.result, tuple(self.names), captured

    def depends_on(self, place: int) -> bool:
        """Whether the result depends on the batch entry (0) or the head (1)."""
        return self.names[self.places - 4 + place] in self.needed[1]

    @cached_property
    def captured(self) -> list[str]:
        """Names of the captured inputs that the result depends on."""
        return [name for name in self.names[self.places :] if name in self.needed[1]]

    @cached_property
    def arrays(self) -> dict[str, Any]:
        """Contents of the captured tensors, where they are available."""
        found = {}
        for name in self.captured:
            typed, around = self.scope.type_of(name), self.scope.bound.get(name)
            array = None if typed is None else array_of_value(self.scope, name, typed)
            if array is None and around is not None and isinstance(around[1], Ref):
                array = self.concrete.array(around[0], around[1].name, around[2], MOST_CAPTURED)
            if array is not None:
                found[name] = array
        return found

    @cached_property
    def missing(self) -> list[str]:
        """Captured inputs whose contents are not available."""
        return [
            name
            for name in self.captured
            if name not in self.arrays and not isinstance(size_of(self.scope, Ref(name)), (int, float))
        ]

    def labels(self) -> list[str]:
        """What the missing inputs are called around the function; sizes without a value are none."""
        handed = [self.scope.bound.get(name) for name in self.missing if self.scope.type_of(name) is not None]
        return [around[1].name for around in handed if around is not None and isinstance(around[1], Ref)]

    @cached_property
    def not_followed(self) -> str:
        """The first operator that values are not propagated through; "" without one."""
        return next((shown(step.node.op) for step in self.needed[0] if not is_followed(step)), "")

    # What a score function may do

    @property
    def may_hide(self) -> bool:
        """Whether what comes of a score may be minus infinity, or a number that stands for it."""
        return self.replaces or self.may_hide_by_contents or any(map(math.isinf, self._numbers))

    @property
    def replaces(self) -> bool:
        """Whether the function has a number that stands for minus infinity."""
        return any(number <= HIDING and not math.isinf(number) for number in self._numbers)

    @cached_property
    def may_hide_by_contents(self) -> bool:
        """Whether it may be so because of what a captured tensor holds, or of a logarithm."""
        floats = [array for array in self.arrays.values() if array.dtype.kind == "f"]
        names = {step.operator.name for step in self.needed[0]}
        return not names.isdisjoint(_LOGARITHMS) or any(bool((array <= FAR).any()) for array in floats)

    @cached_property
    def _numbers(self) -> list[float]:
        nodes = [step.node for step in self.needed[0]]
        arguments = [x for node in nodes for x in (*node.args, *(x for _, x in node.kwargs))]
        return [x for x in arguments if isinstance(x, (int, float))]

    # Its value in each domain

    @cached_property
    def where(self) -> Truth:
        """Where a mask function is true, as a formula."""
        return as_truth(self._formula())

    @cached_property
    def kept(self) -> Truth:
        """Where a score function does not hide the score, as a formula."""
        if not self.may_hide:
            return TRUE
        kept = visible_where(self._formula(), unknown=TRUE)
        return Truth(kept.upper, NEVER) if self.may_hide_by_contents else kept

    def _formula(self) -> Any:
        unknown = [UNKNOWN_NUMBER] * (self.places - 2)
        places = [Number(((TRUE, index),)) for index in (ROW, COLUMN)]
        return Propagation(AffineDomain(FAR), MOST_STEPS).evaluate(
            self.scope, self.result, (), _AFTER_ALL, dict(zip(self.names, (*unknown, *places), strict=False))
        )

    def at_points(self, *places: Any) -> Known:
        """The function of batch entry, head, query and key, in arrays that broadcast with one another."""
        import numpy as np

        given: list[Known] = [Known(0.0, False)] * (self.places - 4)
        for name, place in zip(self.names[self.places - 4 :], places, strict=False):
            typed = self.scope.type_of(name)
            given.append(Known(np.asarray(place) if typed is None else converted(place, typed.dtype)))
        inputs = dict(zip(self.names, given, strict=False))
        return self._points.evaluate(self.scope, self.result, (), _AFTER_ALL, inputs)

    def in_intervals(self, *places: Interval) -> Interval:
        """The function of intervals."""
        import numpy as np

        given = [Interval(*(np.asarray(end, np.float64) for end in place)) for place in places]
        inputs = dict(zip(self.names, (*[_SCORE] * (self.places - 4), *given), strict=False))
        return self._intervals.evaluate(self.scope, self.result, (), _AFTER_ALL, inputs)

    @cached_property
    def _points(self) -> Propagation[Known]:
        return Propagation(self.concrete, MOST_STEPS)

    @cached_property
    def _intervals(self) -> Propagation[Interval]:
        return Propagation(IntervalDomain(self.concrete), MOST_STEPS)
