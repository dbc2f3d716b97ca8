"""A score or mask function of flexible attention: a graph of scalars with the tensors that it captures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from graphflops.attention.affine import AffineDomain
from graphflops.attention.concrete import MOST_CAPTURED, MOST_STEPS, ConcreteDomain
from graphflops.attention.conditions import COLUMN, HIDING, NEVER, ROW, TRUE, Truth
from graphflops.attention.index_propagation import Propagation, is_followed
from graphflops.attention.scopes import FAR, Restriction, Scope, Step, size_of
from graphflops.dims import Dim
from graphflops.errors import shown
from graphflops.graph import Ref

# Inputs of a score function before what it captures.
SCORE_PLACES = ("score", "batch", "head", "query", "key")
MASK_PLACES = SCORE_PLACES[1:]
_LOGARITHMS = frozenset({"log", "log2", "log10", "log1p"})  # may give minus infinity
_AFTER_ALL = 2**62  # place of the result in its scope


@dataclass(frozen=True, eq=False)
class Function:
    """A score or mask function."""

    scope: Scope
    places: tuple[str, ...]  # what its first inputs are
    lead: tuple[Dim, ...]  # batch entries and heads
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

    def depends_on(self, axis: int) -> bool:
        """Whether the result depends on the batch entry (axis 0) or the head (axis 1)."""
        return self.restriction.places[-len(MASK_PLACES) :][axis] in self.needed[1]

    @cached_property
    def captured(self) -> list[str]:
        """Names of the captured inputs that the result depends on."""
        return [name for name in self.names[len(self.places) :] if name in self.needed[1]]

    @cached_property
    def arrays(self) -> dict[str, Any]:
        """Contents of the captured tensors, where they are available."""
        found = {name: self.concrete.array(self.scope, name, 0, MOST_CAPTURED) for name in self.captured}
        return {name: array for name, array in found.items() if array is not None}

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

    # What the function hides

    @cached_property
    def restriction(self) -> Restriction:
        """The function as it applies to scores."""
        return Restriction(
            *(self.scope, self.result, _AFTER_ALL),
            sense="score" if self.places == SCORE_PLACES else "keep",
            lead=self.lead,
            places=tuple(self.names[: len(self.places)]),
            kept_above=HIDING if self.replaces else FAR,
        )

    @cached_property
    def truth(self) -> Truth:
        """Where the function lets scores through, as a formula."""
        is_mask = self.places == MASK_PLACES
        if not is_mask and not self.may_hide:
            return TRUE
        at = (None, None, ROW, COLUMN)
        affine = Propagation(AffineDomain(FAR), MOST_STEPS)
        found = self.restriction.truth(affine.restriction(self.restriction, at))
        return found if is_mask or not self.may_hide_by_contents else Truth(found.upper, NEVER)
