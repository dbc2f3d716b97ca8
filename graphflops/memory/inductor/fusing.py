"""Which operators torch.compile's inductor runs as one kernel, and which tensors it stores.

A pointwise operator is computed inside of each kernel that reads it, unless a kernel of a library reads it, or it is read
by several operators and computed from more than four tensors. Stored pointwise operators and reductions over the same
elements are one kernel if no other kernel lies between them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from graphflops.dims import Dim
    from graphflops.memory.inductor.joint_graph import Op

_MOST_READ_SHARED, _MOST_READ = 4, 8  # inductor's realize_reads_threshold and realize_acc_reads_threshold
_MOST_INSTRUCTIONS, _INSTRUCTIONS_OF_OP = (
    30,
    2,
)  # its realize_opcount_threshold; how many an operator has, about
_MOST_MEMBERS = 64  # operators of a kernel, about (its max_fusion_size)
_FARTHEST = 64  # operators between two that are only joined because they read the same


@dataclass(frozen=True, slots=True)
class Kernel:
    """Operators that run together.

    outputs: tensors that other kernels read, or that outlive the graph. inside: others, which take no memory, but which
    inductor counts where it estimates memory. reads: tensors from outside. row, node: of the call
    of the last operator. over: by result, the tensors that the operator that makes it reads: it may be written over them.
    reuses: whether results may take free memory.
    """

    outputs: tuple[str, ...]
    inside: tuple[str, ...]
    reads: tuple[str, ...]
    row: int
    node: str
    workspace: Dim
    over: Mapping[str, tuple[str, ...]]
    reuses: bool


def kernels(ops: Sequence[Op], outputs: Container[str]) -> list[Kernel]:
    """The kernels of a graph, in the order of their first operators. outputs: tensors that outlive the graph."""
    stored = _stored(ops, outputs)
    groups = _Groups()
    for op in stored:
        groups.add(op)
    return groups.kernels(outputs)


def _stored(ops: Sequence[Op], outputs: Container[str]) -> list[Op]:
    """The operators that are no part of others: each with the stored tensors that it is computed from."""
    users: dict[str, list[Op]] = {}
    for op in ops:
        for name in op.reads:
            users.setdefault(name, []).append(op)
    sources: dict[str, tuple[str, ...]] = {}  # by tensor that is computed wherever it is read
    parts: dict[str, frozenset[str]] = {}  # of these, of what a part is read
    work: dict[str, int] = {}  # of these, instructions
    found: list[Op] = []
    for op in ops:
        count = _INSTRUCTIONS_OF_OP + sum(work.get(name, 0) for name in op.reads)
        cut = op.parts.union(*(parts.get(name, ()) for name in op.reads))
        own = tuple(dict.fromkeys(source for name in op.reads for source in sources.get(name, (name,))))
        if op.kind == "pointwise" and not op.is_alone and _is_inlined(op, own, count, users, outputs):
            sources.update(dict.fromkeys(op.outputs, own))
            parts.update(dict.fromkeys(op.outputs, cut))
            work.update(dict.fromkeys(op.outputs, count))
        else:
            found.append(op if own == op.reads else replace(op, reads=own, parts=cut))
    return found


def _is_inlined(
    op: Op, own: Sequence[str], count: int, users: Mapping[str, list[Op]], outputs: Container[str]
) -> bool:
    readers = [user for name in op.outputs for user in users.get(name, ())]
    if any(name in outputs for name in op.outputs) or any(not user.is_fusible for user in readers):
        return False
    is_shared = len(readers) > 1 or any(user.reads_twice for user in readers)
    if is_shared and count > _MOST_INSTRUCTIONS:
        return False
    return len(own) <= (_MOST_READ_SHARED if is_shared else _MOST_READ)


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
        last = members[-1]
        inside = tuple(name for name in made if name not in left)
        over = {} if is_extern else {op.outputs[0]: op.reads for op in members if len(op.outputs) == 1}
        where = (last.row, last.node, last.workspace)
        return Kernel(tuple(left), inside, tuple(reads), *where, over, not last.allocates)
