"""Which operators inductor runs as one kernel.

Stored pointwise operators and reductions over the same elements are one kernel if no other kernel lies between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from graphflops.dims import Dim
    from graphflops.inductor.joint_graph import Op

_MOST_MEMBERS = 64  # operators of a kernel, about (its max_fusion_size)
_FARTHEST = 64  # operators between two that are only joined because they read the same


@dataclass(frozen=True)
class Kernel:
    """Operators that run together: members, each with the stored tensors that it reads.

    outputs: tensors that other kernels read, or that outlive the graph. inside: others, which take no memory, but which
    inductor counts where it estimates memory. reads: tensors from outside.
    """

    members: tuple[Op, ...]
    outputs: tuple[str, ...]
    inside: tuple[str, ...]
    reads: tuple[str, ...]

    @property
    def row(self) -> int:
        """The row of the call of its last operator."""
        return self.members[-1].row

    @property
    def node(self) -> str:
        """The name of that call."""
        return self.members[-1].node

    @property
    def workspace(self) -> Dim:
        """Bytes during the kernel alone."""
        return self.members[-1].workspace

    @property
    def is_written(self) -> bool:
        """Whether inductor writes its code; others are of libraries."""
        return self.members[0].kind != "extern"

    @property
    def takes_free_memory(self) -> bool:
        """Whether its results may lie in memory that is free; those that a library allocates do not."""
        return not self.members[-1].allocates

    @cached_property
    def over(self) -> Mapping[str, tuple[str, ...]]:
        """By result, the tensors that the operator that makes it reads: it may be written over them."""
        if not self.is_written:
            return {}
        return {op.outputs[0]: op.reads for op in self.members if len(op.outputs) == 1}


def fused(stored: Sequence[Op], outputs: Container[str]) -> list[Kernel]:
    """The kernels of operators whose results are stored, in the order of their first ones.

    outputs: tensors that outlive the graph.
    """
    groups = _Groups()
    for op in stored:
        groups.add(op)
    return groups.kernels(outputs)


class _Groups:
    """Joins stored operators. A group that reads another has a greater depth: joining at equal depth makes no circle."""

    def __init__(self) -> None:
        self.members: list[list[Op]] = []
        self.depth: list[int] = []
        self.joined: list[int] = []
        self.kept: list[int] = []  # elements that the reductions of a group keep; 0 without one
        self.maker: dict[str, int] = {}
        self.readers: dict[str, list[int]] = {}
        self.first: list[int] = []  # by group, the number of its first operator

    def found(self, group: int) -> int:
        while self.joined[group] != group:
            self.joined[group] = self.joined[self.joined[group]]
            group = self.joined[group]
        return group

    def add(self, op: Op) -> None:
        """Put an operator into the group of what it reads, if it can run in that kernel."""
        makers = list(dict.fromkeys(self.found(self.maker[name]) for name in op.reads if name in self.maker))
        deepest = max((self.depth[group] for group in makers), default=0)
        near = [group for group in makers if self.depth[group] == deepest]
        fitting = [group for group in near if self.fits(group, op)]
        kinds = {self.kept[group] for group in fitting if self.kept[group]}
        if len(fitting) < len(near) or len(kinds) > 1:
            deepest, fitting = deepest + 1, []
        group = self.new(op, deepest)
        for other in fitting:
            self.join(other, group)
        self.join_readers(op, group)
        self.maker.update(dict.fromkeys(op.outputs, group))

    def join_readers(self, op: Op, group: int) -> None:
        """Join a group with others of its depth that read the same tensors."""
        for name in (name for name in op.reads if name not in op.parts):
            for reader in dict.fromkeys(map(self.found, self.readers.get(name, ())[-_FARTHEST:])):
                own = self.found(group)
                is_near = group - self.first[reader] <= _FARTHEST
                if (
                    reader != own
                    and is_near
                    and self.depth[reader] == self.depth[own]
                    and self.fits(reader, op)
                ):
                    kinds = {self.kept[reader], self.kept[own]} - {0}
                    if len(kinds) < 2:
                        self.join(reader, own)
            self.readers.setdefault(name, []).append(group)

    def fits(self, group: int, op: Op) -> bool:
        """Whether an operator runs over the same elements as a group that it can be part of."""
        first = self.members[group][0]
        if not op.is_fusible or not first.is_fusible:
            return False
        if first.elements != op.elements or len(self.members[group]) >= _MOST_MEMBERS:
            return False
        return not op.kept or not self.kept[group] or self.kept[group] == op.kept

    def new(self, op: Op, depth: int) -> int:
        self.members.append([op])
        self.depth.append(depth)
        self.joined.append(len(self.joined))
        self.kept.append(op.kept)
        self.first.append(len(self.first))
        return len(self.joined) - 1

    def join(self, group: int, other: int) -> None:
        """Put the members of one group into another, which runs over the same elements."""
        other = self.found(other)
        if group == other:
            return
        self.joined[other] = group
        self.members[group] += self.members[other]
        self.kept[group] = self.kept[group] or self.kept[other]
        self.first[group] = min(self.first[group], self.first[other])

    def kernels(self, outputs: Container[str]) -> list[Kernel]:
        """The groups with what they read from others and what others read of them."""
        whole = [group for group in range(len(self.joined)) if self.joined[group] == group]
        readers: dict[str, set[int]] = {}
        for group in whole:
            for op in self.members[group]:
                for name in op.reads:
                    readers.setdefault(name, set()).add(group)
        return [self.kernel(group, readers, outputs) for group in whole]

    def kernel(self, group: int, readers: Mapping[str, set[int]], outputs: Container[str]) -> Kernel:
        members = self.members[group]
        made = {name: None for op in members for name in op.outputs}
        reads = {name: None for op in members for name in op.reads if name not in made}
        is_extern = members[0].kind == "extern"
        left = [name for name in made if is_extern or name in outputs or readers.get(name, set()) - {group}]
        inside = tuple(name for name in made if name not in left)
        return Kernel(tuple(members), tuple(left), inside, tuple(reads))
