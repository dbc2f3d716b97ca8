"""Which results inductor stores, in which steps it reduces, and which operators are one kernel.

A pointwise operator is computed inside of each kernel that reads it, unless a kernel of a library reads it, or it is read
by several operators and computed from more than four loads, or by one with a window and computed from several tensors.
Reductions to few results run in several steps (`Reduction.num_splits` and `reduction_split_factor` of inductor). Stored
pointwise operators and reductions over the same elements are one kernel if no other kernel lies between them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from functools import cached_property
from itertools import chain, pairwise
from typing import NamedTuple

from msgspec.structs import replace

from graphflops.base.record import Record
from graphflops.devices import Platform
from graphflops.dims import Dim
from graphflops.inductor.lowering import JointGraph, Op, users_of

_MOST_MEMBERS = 64  # operators of a kernel, about (its max_fusion_size)
_FARTHEST = 64  # operators between two that are only joined because they read the same


class Kernel(Record, frozen=True, dict=True):
    """Operators that run together."""

    members: tuple[Op, ...]  # each with the stored tensors that it reads
    outputs: tuple[str, ...]  # tensors that other kernels read, or that outlive the graph
    inside: tuple[str, ...]  # others: they take no memory, but inductor counts them in its estimate
    reads: tuple[str, ...]  # tensors from outside

    @property
    def last(self) -> Op:
        """Its last operator, whose call it is said to be of."""
        return self.members[-1]

    @property
    def is_written(self) -> bool:
        """Whether inductor writes its code; others are of libraries."""
        return self.members[0].kind != "extern"

    @cached_property
    def over(self) -> Mapping[str, tuple[str, ...]]:
        """By result, the tensors that the operator that makes it reads where it writes: it may be written over them."""
        if not self.is_written and not self.last.is_over:
            return {}
        single = [op for op in self.members if len(op.outputs) == 1]
        return {op.outputs[0]: tuple([name for name in op.reads if name not in op.moved]) for op in single}


def fused(stored: Sequence[Op], outputs: Container[str]) -> list[Kernel]:
    """The kernels of stored operators, in the order of their first ones. outputs: tensors that outlive the graph."""
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
    """Joins stored operators. A group that reads another has a greater depth: joining at equal depth makes no circle."""

    def __init__(self) -> None:
        self.members: list[list[Op]] = []
        self.depth: list[int] = []
        self.joined: list[int] = []
        self.loops: list[Op] = []  # what says over what the kernel of each loops: a reduction, if it has one
        self.maker: dict[str, int] = {}
        self.readers: dict[tuple[str, str], list[int]] = {}  # by tensor and part
        self.first: list[int] = []  # by group, the number of its first operator
        self.added: set[str] = set()  # tensors that an operator adds to, or writes in parts

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
        if not self.added.isdisjoint(op.reads) or not self.fit([*near], op):
            deepest, near = deepest + 1, []
        group = len(self.joined)
        self.members.append([op])
        self.depth.append(deepest)
        self.joined.append(group)
        self.loops.append(op)
        self.first.append(group)
        for other in near:
            self.join(other, group)
        self.maker.update(dict.fromkeys(op.outputs, group))
        self.added.update(op.outputs if op.adds or op.part_bytes != 0 else ())
        # Others of its depth that read the same tensors, or the same parts of them, are joined with it.
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
            if len(found) == 1 and self.added.isdisjoint(names):
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


# inductor's realize_reads_threshold, realize_acc_reads_threshold and realize_opcount_threshold
_MOST_READ_SHARED, _MOST_READ, _MOST_INSTRUCTIONS = 4, 8, 30


class _Formula(NamedTuple):
    """How a result is computed from stored tensors."""

    op: Op  # as if it read these tensors itself
    loads: int  # for each element
    computed: frozenset[tuple[str, int]]  # what is computed for it, with the instructions for each element


def realized(ops: Sequence[Op], outputs: Container[str]) -> tuple[list[Op], dict[str, Op]]:
    """The operators whose results are stored, each with the stored tensors that it is computed from.

    Then by tensor the others, which are computed wherever they are read. outputs: tensors that outlive the graph.
    """
    users = users_of(ops)
    formulas: dict[str, _Formula] = {}  # of tensors that are not stored
    stored: list[Op] = []
    computed_again: dict[str, Op] = {}
    for op in ops:
        formula = _formula(op, formulas)
        readers = [user for name in op.outputs for user in users.get(name, ())]
        instructions = formula.loads + sum(count for _, count in formula.computed)  # for each element
        is_shared = len(readers) > 1 or any(user.reads_twice for user in readers)
        is_lone = op.kind != "pointwise" or op.is_alone or op.adds or op.is_random or op.part_bytes != 0
        is_stored = (
            is_lone
            or any(name in outputs for name in op.outputs)
            or any(not user.is_fusible or user.part_bytes != 0 for user in readers)
            or (formula.loads > 1 and any(user.window > 1 for user in readers))
            or (instructions > _MOST_INSTRUCTIONS and (is_shared or formula.loads > 1))
            or formula.loads > (_MOST_READ_SHARED if is_shared else _MOST_READ)
        )
        if is_stored:
            stored.append(formula.op)
        else:
            computed_again.update(dict.fromkeys(op.outputs, op))
            formulas.update(dict.fromkeys(op.outputs, formula))
    return stored, computed_again


def _formula(op: Op, known: Mapping[str, _Formula]) -> _Formula:
    """How the result of an operator is computed, by way of those of `known` that it reads."""
    own = frozenset([(op.outputs[0], op.instructions), *[(f"{number}", 1) for number in op.numbers]])
    inside = tuple([name for name in op.reads if name in known])
    further = sum(len(op.parts[name]) - 1 for name in {*op.reads}.difference(inside) if name in op.parts)
    if not inside:
        return _Formula(op, len(op.reads) * op.window + further, own)
    sources = {name: known[name].op.reads if name in known else (name,) for name in op.reads}
    reads = tuple(dict.fromkeys(chain.from_iterable(sources.values())))
    # What is read at other places here, or for what is computed inside.
    moved = frozenset(source for name in op.moved for source in sources.get(name, ()))
    moved = moved.union(*[known[name].op.moved for name in inside])
    further += sum(known[name].loads - len(known[name].op.reads) for name in inside)
    computed = own.union(*[known[name].computed for name in inside])
    loads, parts = len(reads) * op.window + further, _parts(op, known, sources)
    return _Formula(replace(op, parts=parts, reads=reads, computes=inside, moved=moved), loads, computed)


def _parts(
    op: Op, known: Mapping[str, _Formula], sources: Mapping[str, Sequence[str]]
) -> Mapping[str, Mapping[str, Dim]]:
    """By stored tensor of which an operator reads parts only, these, also by way of what is computed inside of it."""
    whole: set[str] = set()
    found: dict[str, dict[str, Dim]] = {}
    for name, stored in sources.items():
        for source in stored:
            read = op.parts.get(name) or (known[name].op.parts.get(source) if name in known else None)
            if read is None:
                whole.add(source)
            else:
                found.setdefault(source, {}).update(read)
    return {name: read for name, read in found.items() if name not in whole}


_LEAST_EACH, _MOST_EACH = 32, 512  # elements of a thread
_BLOCK = 256  # threads
_INNER_WHOLE = 8192  # elements that one block reduces along the innermost axis
_OUTER_ROWS, _OUTER_COLUMNS = 4, 128  # of a block that reduces along an outer axis
_EVEN, _EVEN_INNER, _EVEN_LONG = 20, 30, 50  # how far from the wanted elements of a thread a divisor may be


def split_lengths(
    results: int, length: int, platform: Platform, *, is_inner: bool, of_moments: bool
) -> list[tuple[int, int]]:
    """The steps of a reduction: how many results each has, and of how many elements each is made.

    of_moments: of means and variances what one step leaves is split again; of others there are two steps at most.
    """
    steps: list[tuple[int, int]] = []
    while True:
        parts = _part_count(results, length, platform, is_inner=is_inner)
        if parts <= 1 or (steps and not of_moments):
            return [*steps, (results, length)]
        steps.append((results * parts, -(-length // parts)))
        length = parts


def _part_count(results: int, length: int, platform: Platform, *, is_inner: bool) -> int:
    if results >= 2 * _LEAST_EACH * platform.multiprocessors:
        return 1
    if is_inner or results == 1:
        if results >= 2 * platform.multiprocessors or length <= _INNER_WHOLE:
            return 1
        blocks = -(-platform.threads // (2 * _BLOCK) // results)
        return -(-length // (_each(results, length, _BLOCK * blocks, platform, is_inner=True) * _BLOCK))
    blocks = -(-platform.threads // _BLOCK // -(-results // _OUTER_COLUMNS))
    each = _each(results, length, _OUTER_ROWS * blocks, platform, is_inner=False)
    return -(-length // (each * _OUTER_ROWS))


def _each(results: int, length: int, threads: int, platform: Platform, *, is_inner: bool) -> int:
    """Elements that a thread reduces: so many that the device is full, preferably a divisor of the length."""
    if results * length <= _LEAST_EACH * platform.threads:
        return _LEAST_EACH
    is_long = results * length >= _MOST_EACH * platform.threads
    wanted = _MOST_EACH if is_long else -(-length // threads)
    for distance in range(_EVEN_LONG if is_long else _EVEN_INNER if is_inner else _EVEN):
        for near in (wanted - distance, wanted + distance):
            if near > 0 and length % near == 0:
                return max(near, _LEAST_EACH)
    return max(wanted, 1)


def in_steps(op: Op, joint: JointGraph) -> list[Op]:
    """The operators that a reduction is split into; another operator as it is. What a step leaves gets a size."""
    if not op.kept:
        return [op]
    length = op.elements // op.kept
    lengths = split_lengths(op.kept, length, joint.platform, is_inner=op.is_inner, of_moments=op.of_moments)
    found: list[Op] = []
    for place, (results, _) in enumerate(lengths[:-1]):
        made = tuple([f"{name}, step {place + 1}" for name in op.outputs])
        pairs = zip(made, op.outputs, strict=True)
        joint.sizes.update((part, joint.bytes(name) // op.kept * results) for part, name in pairs)
        found.append(replace(op, outputs=made, kept=results, in_order=False))
        op = Op("reduction", op.outputs, made, results, op.row, op.node, op.kept, is_gradient=op.is_gradient)
    return [*found, op]
