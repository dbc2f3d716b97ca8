"""Which operators inductor runs as one kernel.

Stored pointwise operators and reductions over the same elements are one kernel if no other kernel lies between them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from graphflops.dims import Dim
from graphflops.inductor.lowering import Op

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

    @cached_property
    def over(self) -> Mapping[str, tuple[str, ...]]:
        """By result, the tensors that the operator that makes it reads where it writes: it may be written over them."""
        if not self.is_written and not self.members[-1].is_over:
            return {}
        single = [op for op in self.members if len(op.outputs) == 1]
        return {op.outputs[0]: tuple([name for name in op.reads if name not in op.moved]) for op in single}


def fused(stored: Sequence[Op], outputs: Container[str]) -> list[Kernel]:
    """The kernels of operators whose results are stored, in the order of their first ones.

    outputs: tensors that outlive the graph.
    """
    groups = _Groups()
    for op in stored:
        groups.add(op)
    groups.join_to_only_reader()
    return groups.kernels(outputs)


def run_together(one: Op, other: Op) -> bool:
    """Whether one kernel can run both: over the same elements, or over what a reduction reads or leaves.

    What a reduction reads is visited in its order where the elements that it adds up lie side by side, row after row.
    """
    if not one.is_fusible or not other.is_fusible:
        return False
    if bool(one.kept) == bool(other.kept):
        return (one.elements, one.kept) == (other.elements, other.kept)
    loop, rows = (other, one) if one.kept else (one, other)
    return loop.elements == rows.kept or (rows.is_inner and rows.in_order and loop.elements == rows.elements)


class _Groups:
    """Joins stored operators. A group that reads another has a greater depth: joining at equal depth makes no circle.

    loops: by group, the operator that says over what the kernel loops: a reduction, if it has one.
    """

    def __init__(self) -> None:
        self.members: list[list[Op]] = []
        self.depth: list[int] = []
        self.joined: list[int] = []
        self.loops: list[Op] = []
        self.maker: dict[str, int] = {}
        self.readers: dict[tuple[str, str], list[int]] = {}  # by tensor and part
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
        if not self.fit([*near], op):
            deepest, near = deepest + 1, []
        group = self.new(op, deepest)
        for other in near:
            self.join(other, group)
        self.join_readers(op, group)
        self.maker.update(dict.fromkeys(op.outputs, group))

    def join_readers(self, op: Op, group: int) -> None:
        """Join a group with others of its depth that read the same tensors, or the same parts of them."""
        for key in ((name, part) for name in op.reads for part in op.parts.get(name, ("",))):
            for reader in dict.fromkeys(map(self.found, self.readers.get(key, ())[-_FARTHEST:])):
                own = self.found(group)
                is_near = group - self.first[reader] <= _FARTHEST
                is_apart = self.found(reader) != own  # an earlier reader may have joined it just now
                is_open = is_apart and is_near and self.depth[reader] == self.depth[own]
                if is_open and self.fit([reader], op) and run_together(self.loops[reader], self.loops[own]):
                    self.join(reader, own)
            self.readers.setdefault(key, []).append(group)

    def fit(self, groups: Sequence[int], op: Op) -> bool:
        """Whether an operator can run in one kernel with all of these groups."""
        loops = [self.loops[group] for group in groups]
        if any(len(self.members[group]) >= _MOST_MEMBERS for group in groups):
            return False
        pairs = [*((loop, op) for loop in loops), *pairwise(loops)]
        return all(run_together(one, other) for one, other in pairs)

    def new(self, op: Op, depth: int) -> int:
        self.members.append([op])
        self.depth.append(depth)
        self.joined.append(len(self.joined))
        self.loops.append(op)
        self.first.append(len(self.first))
        return len(self.joined) - 1

    def join(self, group: int, other: int) -> None:
        """Put the members of one group into another that can run in the same kernel."""
        other = self.found(other)
        self.joined[other] = group
        self.members[group] += self.members[other]
        if self.loops[other].kept:
            self.loops[group] = self.loops[other]
        self.first[group] = min(self.first[group], self.first[other])

    def join_to_only_reader(self) -> None:
        """Join groups that only one other group reads with that group; no kernel lies between them."""
        readers = self.reading()
        for group in reversed(range(len(self.joined))):
            if self.joined[group] != group:
                continue
            names = [name for op in self.members[group] for name in op.outputs]
            found = {self.found(other) for name in names for other in readers.get(name, ())} - {group}
            if len(found) == 1:
                (other,) = found
                count = len(self.members[group]) + len(self.members[other])
                if count <= _MOST_MEMBERS and run_together(self.loops[group], self.loops[other]):
                    self.join(group, other)

    def reading(self) -> dict[str, set[int]]:
        """By tensor, the groups that read it."""
        readers: dict[str, set[int]] = {}
        for group, members in enumerate(self.members):
            for op in members if self.joined[group] == group else ():
                for name in op.reads:
                    readers.setdefault(name, set()).add(group)
        return readers

    def kernels(self, outputs: Container[str]) -> list[Kernel]:
        """The groups with what they read from others and what others read of them."""
        readers, kernels = self.reading(), list[Kernel]()
        for group, members in enumerate(self.members):
            if self.joined[group] != group:
                continue
            made = {name: None for op in members for name in op.outputs}
            reads = {name: None for op in members for name in op.reads if name not in made}
            is_extern = members[0].kind == "extern"
            read = {name for name in made if readers.get(name, set()) - {group}}  # by others
            left = [name for name in made if is_extern or name in outputs or name in read]
            inside = tuple(name for name in made if name not in left)
            kernels.append(Kernel(tuple(members), tuple(left), inside, tuple(reads)))
        return kernels
