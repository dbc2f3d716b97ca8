"""The steps in which inductor reduces, and the operators that it fuses into one kernel.

Reductions to few results run in several steps (`Reduction.num_splits` and `reduction_split_factor` of inductor). Stored
pointwise operators and reductions over the same elements are one kernel, unless another kernel must run between them.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from functools import cached_property
from itertools import pairwise

from msgspec import Struct

from graphflops.base.record import Record, replace
from graphflops.devices import Platform
from graphflops.inductor.lowering import Extern, JointGraph, Loop, Op, Reduction, users_of
from graphflops.kernels.choices import limits

Size = Callable[[str], int]  # bytes of a tensor
_MOST_MEMBERS, _FARTHEST, _WORTH = limits("inductor_2", "fuse", "members near worth")


class Kernel(Record, frozen=True, dict=True):
    """Operators that run in one kernel."""

    members: tuple[Op, ...]  # each with the stored tensors that it reads
    outputs: tuple[str, ...]  # tensors that other kernels read, or that outlive the graph
    inside: tuple[str, ...]  # other tensors: they take no memory, but inductor's estimate counts them
    reads: tuple[str, ...]  # tensors of other kernels

    @property
    def last(self) -> Op:
        """The last operator; the kernel is reported under its call."""
        return self.members[-1]

    @cached_property
    def over(self) -> Mapping[str, tuple[str, ...]]:
        """By result, the tensors that its operator reads at the places that it writes: it may be written over them."""
        last = self.last
        if isinstance(last, Extern):
            return {last.outputs[0]: last.reads} if last.into == "operand" else {}
        return {
            op.outputs[0]: tuple([name for name in op.reads if name not in op.moved and name not in op.parts])
            for op in self.members
            if isinstance(op, Loop) and len(op.outputs) == 1
        }


def fused(stored: Sequence[Op], outputs: Container[str], size: Size) -> list[Kernel]:
    """The kernels of stored operators, in the order of their first operators.

    outputs: tensors that outlive the graph. size: bytes of a tensor, including tensors that the graph is given.
    """
    groups = _Groups(users_of(stored), outputs, size)
    for op in stored:
        groups.add(op)
    groups.join_to_only_reader()
    return [groups.kernel(group) for group in groups.all if group.members]


def run_together(one: Op, other: Op) -> bool:
    """Whether one kernel can run both: over the same elements, or over those that a reduction reads or returns.

    A kernel loops over a reduction's elements row by row if those that are summed are contiguous.
    """
    if not one.is_fusible or not other.is_fusible:
        return False
    match one, other:
        case Reduction(), Reduction():
            return (one.elements, one.kept) == (other.elements, other.kept)
        case (Reduction() as rows, loop) | (loop, Reduction() as rows):
            by_row = rows.is_inner and rows.in_order
            return loop.elements == rows.kept or (by_row and loop.elements == rows.elements)
        case Loop(), Loop():
            return (one.elements, one.is_across) == (other.elements, other.is_across)
    return False


def run_alike(one: Op, other: Op) -> bool:
    """Whether one kernel can run both, and reads what both read only once: they loop over the same axes."""
    repeats = [isinstance(op, Loop) and op.is_repeating for op in (one, other)]
    return repeats[0] == repeats[1] and run_together(one, other)


class _Group(Struct, eq=False):
    """Operators of one kernel. A group that reads another has a greater depth: joining at equal depth makes no cycle."""

    members: list[Op]
    depth: int
    loop: Op  # the operator that decides what the kernel loops over: a reduction, if there is one
    first: int  # the number of its first operator


class _Groups:
    def __init__(self, users: Mapping[str, Sequence[Op]], outputs: Container[str], size: Size) -> None:
        self.users, self.outputs, self.size = users, outputs, size
        # By number of the operator that each group began with; a group that has joined another is empty.
        self.all: list[_Group] = []
        self.of: dict[str, _Group] = {}  # by tensor, the group that makes it
        self.readers: dict[tuple[str, str], list[Op]] = {}  # by tensor and part
        self.added: set[str] = set()  # tensors that are added to in place, or written in parts

    def add(self, op: Op) -> None:
        """Put an operator into the groups that make what it reads, if one kernel can run them."""
        makers = dict.fromkeys(self.of[name] for name in op.reads if name in self.of)
        deepest, number = max((group.depth for group in makers), default=0), len(self.all)
        near = [group for group in makers if group.depth == deepest]
        if not self.added.isdisjoint(op.reads) or not self.fit(near, op):
            deepest, near = deepest + 1, []
        self.all.append(_Group([op], deepest, op, number))
        self.of.update(dict.fromkeys(op.outputs, self.all[-1]))
        for other in near:
            self.join(other, self.of[op.outputs[0]])
        if isinstance(op, Loop) and (op.role in ("adding", "base") or op.part_bytes != 0):
            self.added.update(op.outputs)
        # Operators of the same depth that read the same tensors, or parts of them, are joined with it.
        for key in ((name, part) for name in op.reads for part in op.parts.get(name, ("",))):
            readers = self.readers.setdefault(key, [])
            for reader in dict.fromkeys(self.of[other.outputs[0]] for other in readers[-_FARTHEST:]):
                own = self.of[op.outputs[0]]  # joining an earlier reader may have changed it
                is_near = number - reader.first <= _FARTHEST and reader.depth == own.depth
                is_open = reader is not own and is_near and run_alike(reader.loop, own.loop)
                if is_open and self.fit([reader], op, own.members):
                    self.join(reader, own)
            readers.append(op)

    def join(self, group: _Group, other: _Group) -> None:
        group.members += other.members
        self.of.update((name, group) for op in other.members for name in op.outputs)
        if isinstance(other.loop, Reduction):
            group.loop = other.loop
        group.first, other.members = min(group.first, other.first), []

    def join_to_only_reader(self) -> None:
        """Join each group that only one other group reads with that group: no kernel runs between them."""
        for group in reversed(self.all):
            names = [name for op in group.members for name in op.outputs]
            users = (user for name in names for user in self.users.get(name, ()))
            readers = {self.of[user.outputs[0]] for user in users} - {group}
            if len(readers) == 1 and self.added.isdisjoint(names):
                (other,) = readers
                is_small = len(group.members) + len(other.members) <= _MOST_MEMBERS
                if is_small and self.fit([group], other.loop, other.members):
                    self.join(group, other)

    def fit(self, groups: Sequence[_Group], op: Op, members: Sequence[Op] = ()) -> bool:
        """Whether one kernel can run an operator and all of these groups. members: those of the operator's own group."""
        if any(len(group.members) >= _MOST_MEMBERS for group in groups):
            return False
        loops = [group.loop for group in groups]
        if not all(run_together(*pair) for pair in (*((loop, op) for loop in loops), *pairwise(loops))):
            return False
        found = members or [op]
        for group in groups:
            if self.raises_peak(group.members, found):
                return False
            found = [*group.members, *found]
        return True

    def raises_peak(self, members: Sequence[Op], others: Sequence[Op]) -> bool:
        """Whether two kernels stay apart so that the later can reuse memory of what the earlier reads last.

        They do if that memory is 32 times what both of them read or write (`can_fusion_increase_peak_memory`).
        """
        single: list[set[int]] = []
        touched: list[set[tuple[str, str]]] = []  # tensors, and the parts that are read of them
        for ops in (members, others):
            made = {name for op in ops for name in op.outputs}
            read = {(name, part) for op in ops for name in op.reads for part in op.parts.get(name, ("",))}
            alone = {name for name, _ in read if name in self.of and len(self.users[name]) == 1} - made
            single.append({self.size(name) for name in alone if name not in self.outputs})
            touched.append({(name, "") for name in made} | read)
        saved = sum(self.size(name) for name, _ in touched[0] & touched[1])
        return sum(single[0] & single[1]) > _WORTH * saved

    def kernel(self, group: _Group) -> Kernel:
        """A group, with what it reads from other groups and what they read of it."""
        made = {name: None for op in group.members for name in op.outputs}
        reads = {name: None for op in group.members for name in op.reads if name not in made}
        is_extern = isinstance(group.members[0], Extern)

        def is_left(name: str) -> bool:
            readers = (self.of[user.outputs[0]] for user in self.users.get(name, ()))
            return is_extern or name in self.outputs or any(reader is not group for reader in readers)

        left = tuple([name for name in made if is_left(name)])
        inside = tuple([name for name in made if name not in left])
        return Kernel(tuple(group.members), left, inside, tuple(reads))


_LEAST_EACH, _MOST_EACH, _BLOCK = limits("inductor_2", "split", "least most block")
_OUTER_ROWS, _OUTER_COLUMNS = limits("inductor_2", "split", "rows columns")
_TINY = limits("inductor_2", "split", "tiny_results tiny_parts")
_SMALL = limits("inductor_2", "split", "few_results many_parts")
_WIDE = limits("inductor_2", "split", "wide_above wide_most")
_EVEN, _EVEN_INNER, _EVEN_LONG = limits("inductor_2", "split", "even even_inner even_long")


def split_lengths(
    results: int, length: int, platform: Platform, *, is_inner: bool, of_moments: bool
) -> list[tuple[int, int]]:
    """The steps of a reduction: for each, the number of results, and the number of elements that each is made of.

    of_moments: for means and variances, the result of a step is split again; other reductions have at most two steps.
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
        if results >= 2 * platform.multiprocessors:
            return 1
        blocks = -(-platform.threads // (2 * _BLOCK) // results)
        return -(-length // (_each(results, length, _BLOCK * blocks, platform, is_inner=True) * _BLOCK))
    blocks = -(-platform.threads // _BLOCK // -(-results // _OUTER_COLUMNS))
    each = _each(results, length, _OUTER_ROWS * blocks, platform, is_inner=False)
    return -(-length // (each * _OUTER_ROWS))


def _each(results: int, length: int, threads: int, platform: Platform, *, is_inner: bool) -> int:
    """Elements per thread: enough threads to fill the device, preferably a divisor of the length."""
    if results * length <= _LEAST_EACH * platform.threads:
        return _LEAST_EACH
    is_long = results * length >= _MOST_EACH * platform.threads
    wanted = _MOST_EACH if is_long else -(-length // threads)
    for distance in range(_EVEN_LONG if is_long else _EVEN_INNER if is_inner else _EVEN):
        for near in (wanted - distance, wanted + distance):
            if near > 0 and length % near == 0:
                return max(near, _LEAST_EACH)
    return max(wanted, 1)


def _is_wide(results: int, parts: int) -> bool:
    """Whether blocks of the last step have 128 columns: many results of few parts (`_multilayer_second_step_hint`)."""
    is_tiny = any(results <= most and parts <= longest for most, longest in (_TINY, _SMALL))
    return not is_tiny and _WIDE[0] < parts <= _WIDE[1]


def in_steps(op: Op, joint: JointGraph) -> list[Op]:
    """The steps of a reduction as operators, with sizes for what each leaves; any other operator unchanged."""
    if not isinstance(op, Reduction) or not op.kept or op.role == "scan":
        return [op]
    length, of_moments = op.elements // op.kept, op.role == "moments"
    lengths = split_lengths(op.kept, length, joint.platform, is_inner=op.is_inner, of_moments=of_moments)
    found: list[Reduction] = []
    is_inner = op.is_inner
    for place, (results, _) in enumerate(lengths[:-1]):
        made = tuple([f"{name}, step {place + 1}" for name in op.outputs])
        pairs = zip(made, op.outputs, strict=True)
        joint.sizes.update((part, joint.bytes(name) // op.kept * results) for part, name in pairs)
        found.append(replace(op, outputs=made, kept=results, in_order=False))
        last = Reduction(op.outputs, made, results, op.row, op.node, op.is_gradient)
        role = "parts.moments" if of_moments else "parts"
        role += ".wide" * (not is_inner and _is_wide(op.kept, results // max(op.kept, 1)))
        op = replace(last, kept=op.kept, role=role)
    return [*found, op]
