"""Which calls torch.compile's inductor runs as one kernel.

Elementwise calls, copies, gathers and reductions over the same elements are one kernel; matrix products, convolutions,
attention, sorting and scans are kernels of their own. Calls are only joined if no such kernel lies between them: all calls
of a group have the same depth, the number of kernels of their own on the longest way to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphflops.dims import Dim, dim_max, prod
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphflops.cost import Value
    from graphflops.passes.program import PricedCall

_FUSIBLE = frozenset(
    (
        *(
            "elementwise",
            "comparison",
            "logic",
            "cast",
            "identity",
            "creation",
            "movement",
            "gather",
            "reduction",
        ),
        *("normalisation", "softmax", "dropout", "random", "resampling", "pooling", "loss"),
    )
)


@dataclass(frozen=True, slots=True)
class Fusion:
    """The kernels of a compiled graph.

    groups: positions of the calls of each kernel, in program order; views belong to none.
    group_of: by position of a call, the index of its group.
    """

    groups: tuple[tuple[int, ...], ...]
    group_of: Mapping[int, int]


def is_view(call: PricedCall) -> bool:
    """Whether a call only gives its operand another shape."""
    return call.estimate.alias and not call.in_place


def is_fusible(call: PricedCall) -> bool:
    """Whether a call can be part of a kernel with others: each element is computed from elements of the operands."""
    return call.node.operator.kind in _FUSIBLE and not call.estimate.regions and not call.estimate.unknown


def fused(calls: Sequence[PricedCall], values: Mapping[str, Value]) -> Fusion:
    """The groups of calls that are one kernel each."""
    builder = _Groups(values)
    for place, call in enumerate(calls):
        builder.add(place, call)
    members: dict[int, list[int]] = {}
    for place, group in builder.group_of.items():
        members.setdefault(builder.found(group), []).append(place)
    groups = tuple(tuple(places) for places in members.values())
    return Fusion(groups, {place: index for index, places in enumerate(groups) for place in places})


class _Groups:
    """Joins calls in program order. depth, elements: of each group; maker: the group that makes a value."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self.values = values
        self.group_of: dict[int, int] = {}
        self.joined: list[int] = []  # by group: the group that it has become part of
        self.depth: list[int] = []
        self.elements: list[Dim] = []
        self.maker: dict[str, int] = {}
        self.depths: dict[str, int] = {}  # by value

    def found(self, group: int) -> int:
        while self.joined[group] != group:
            group = self.joined[group]
        return group

    def add(self, place: int, call: PricedCall) -> None:
        """Put one call into a group."""
        depth = max((self.depths.get(name, 0) for name in call.uses), default=0)
        outputs = [name for name in call.node.outputs if name is not None]
        if is_view(call):
            makers = [self.maker[name] for name in call.uses[:1] if name in self.maker]
            self.maker.update(dict.fromkeys(outputs, makers[0]) if makers else {})
            self.depths.update(dict.fromkeys(outputs, depth))
            return
        group = self.new(depth, self.iterated(call))
        if is_fusible(call):
            for name in call.uses:
                if name in self.maker:
                    self.join(self.found(self.maker[name]), group)
            self.maker.update(dict.fromkeys(outputs, group))
        self.group_of[place] = group
        self.depths.update(dict.fromkeys(outputs, depth + (not is_fusible(call))))

    def new(self, depth: int, elements: Dim) -> int:
        self.joined.append(len(self.joined))
        self.depth.append(depth)
        self.elements.append(elements)
        return len(self.joined) - 1

    def join(self, group: int, other: int) -> None:
        """Make two groups one if they have the same depth and run over the same elements."""
        other = self.found(other)
        if (
            group != other
            and self.depth[group] == self.depth[other]
            and self.elements[group] == self.elements[other]
        ):
            self.joined[group] = other

    def iterated(self, call: PricedCall) -> Dim:
        """Elements that a kernel of the call runs over: those of its largest operand or result."""
        tensors = [self.values.get(name) for name in (*call.uses, *call.node.outputs) if name is not None]
        sizes = [prod(value.shape) for value in tensors if isinstance(value, TensorType)]
        if call.node.operator.kind == "gather":  # the table is not read whole
            sizes = sizes[-1:]
        numbers = [size for size in sizes if isinstance(size, int)]
        return max(numbers) if len(numbers) == len(sizes) else dim_max(*sizes)
