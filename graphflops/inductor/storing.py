"""Which results inductor stores, and which it recomputes in each kernel that reads them.

A pointwise operator is computed inside each kernel that reads it, with these exceptions: a library kernel reads it; several
operators read it and it takes more than four loads; or an operator with a window reads it and it takes several tensors.
"""

from collections.abc import Container, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from graphflops.base.record import replace
from graphflops.dims import Dim
from graphflops.inductor.lowering import Extern, JointGraph, Loop, Op, Reduction, users_of
from graphflops.kernels.choices import limits

_MOST_JOINED, _MOST_READ_SHARED = limits("inductor_2", "store", "joined read_shared")
_MOST_READ, _MOST_INSTRUCTIONS = limits("inductor_2", "store", "read instructions")


class _Formula(NamedTuple):
    """How a result is computed from stored tensors."""

    op: Loop  # as if it read the stored tensors itself
    own: Loop  # as it is, with the operators that are computed inside
    loads: int  # per element
    computed: frozenset[tuple[str, int]]  # what is computed for it, with instructions per element


def realized(ops: Sequence[Op], outputs: Container[str], joint: JointGraph) -> list[Op]:
    """The operators whose results are stored, each with the stored tensors that it is computed from.

    All others are computed inside their readers. outputs: tensors that outlive the graph.
    """
    found = _Realized(ops, outputs, joint)
    for op in ops:
        found.add(op)
    return found.stored


class _Realized:
    def __init__(self, ops: Sequence[Op], outputs: Container[str], joint: JointGraph) -> None:
        self.users, self.outputs, self.joint = users_of(ops), outputs, joint
        self.formulas: dict[str, _Formula] = {}  # by tensor that is not stored
        self.stored: list[Op] = []
        self.made: dict[str, Op] = {}  # by stored tensor
        self.fixed: set[str] = set()  # stored tensors whose layout is decided

    def add(self, op: Op) -> None:
        """Store an operator's result, or note its formula.

        If a result is needed in memory only by one reader, or by products that add or read another shape, it is stored just
        before that reader; earlier readers compute it themselves.
        """
        for name in op.reads:
            if name in self.formulas and _wants_stored(op, name):
                self.store(self.formulas[name].op)
        if not isinstance(op, Loop):
            self.store(op)
        elif op.role == "join" and not self.is_one_kernel(op):
            self.join(op)
        elif self.is_stored(op, formula := _formula(op, self.formulas)):
            self.store(formula.op)
        else:
            self.formulas.update(dict.fromkeys(op.outputs, formula))

    def store(self, op: Op) -> None:
        self.stored.append(op)
        for name in op.outputs:
            self.formulas.pop(name, None)
            self.made[name] = op
        if isinstance(op, Extern):
            self.fixed.update((*op.outputs, *op.reads))
        if self.joint.channels_last:
            self.fixed.update(op.outputs)

    def is_stored(self, op: Loop, formula: _Formula) -> bool:
        pairs = [(name, user) for name in op.outputs for user in self.users.get(name, ())]
        loops = [user for _, user in pairs if isinstance(user, Loop)]
        instructions = formula.loads + sum(count for _, count in formula.computed)  # for each element
        is_shared = len(pairs) > 1 or any(user.reads_twice for user in loops)
        return (
            isinstance(op, Reduction)
            or op.is_alone
            or op.part_bytes != 0
            or op.role in ("random", "adding", "base")
            or any(name in self.outputs for name in op.outputs)
            or (
                len(pairs) > 1
                and any(_wants_stored(user, name) and not _is_late(user, name) for name, user in pairs)
            )
            or (formula.loads > 1 and any(user.window > 1 for user in loops))
            or (instructions > _MOST_INSTRUCTIONS and (is_shared or formula.loads > 1))
            or formula.loads > (_MOST_READ_SHARED if is_shared else _MOST_READ)
        )

    def is_one_kernel(self, op: Loop) -> bool:
        """Whether tensors are joined by one kernel that reads them, or inside the readers of the result.

        Source: `cat` in torch/_inductor/lowering.py. If a part is computed from a reduction, or can be written into place,
        this is so only if all readers of the result are elementwise.
        """
        if sum(len(op.parts.get(name, ("",))) for name in op.reads) > _MOST_JOINED:
            return False
        # What is read through a view cannot be moved (`can_realize_into_without_copy`).
        is_copied = [name not in self.made or name in self.fixed or name in op.views for name in op.reads]
        stored = _formula(op, self.formulas).op.reads
        is_sum = any(isinstance(self.made.get(read), Reduction) for read in stored)
        users = self.users.get(op.outputs[0], ())
        is_read = op.outputs[0] not in self.outputs
        goes_on = is_read and all(type(user) is Loop and user.role != "placing" for user in users)
        return (any(is_copied) and goes_on) or (all(is_copied) and not is_sum)

    def join(self, op: Loop) -> None:
        """Store the parts of one tensor: each is written into place by its own kernel, or copied there."""
        out, sizes, lies_in = op.outputs[0], self.joint.sizes, self.joint.lies_in
        found: list[str] = []
        for name in op.reads:
            can_move = name in self.formulas or (name in self.made and name not in self.fixed)
            if not can_move or name in op.views or name in lies_in or name in self.outputs:
                size = sum(op.parts[name].values()) if name in op.parts else self.joint.bytes(name)
                part = f"{out}, part {len(found) + 1}"
                count = op.elements * self.joint.number(size) // max(self.joint.bytes(out), 1)
                copy = replace(
                    op, outputs=(part,), reads=(name,), elements=count, role="placing", part_bytes=size
                )
                self.store(_formula(copy, self.formulas).op)
                sizes[part], name = size, part
            elif name in self.formulas:
                self.store(self.formulas[name].op)
            lies_in[name] = out
            found.append(name)
        self.store(Extern(op.outputs, tuple(found), op.elements, op.row, op.node, role="joined"))


def _wants_stored(user: Op, name: str) -> bool:
    """Whether an operator can read a tensor only from memory."""
    is_part = isinstance(user, Loop) and user.part_bytes != 0
    return not user.is_fusible or (is_part and name not in user.views)


def _is_late(user: Op, name: str) -> bool:
    """Whether inductor learns only at the reader that it needs a tensor in memory, as with products that add."""
    return user.role in ("product and sum", "product and bias") or name in user.views


def _formula(op: Loop, known: Mapping[str, _Formula]) -> _Formula:
    """How an operator's result is computed, through the formulas in `known` of what it reads."""
    own = frozenset([(op.outputs[0], op.instructions), *[(f"{number}", 1) for number in op.numbers]])
    inside = tuple([name for name in op.reads if name in known])
    further = sum(len(op.parts[name]) - 1 for name in {*op.reads}.difference(inside) if name in op.parts)
    if not inside:
        return _Formula(op, op, len(op.reads) * op.window + further, own)
    sources = {name: known[name].op.reads if name in known else (name,) for name in op.reads}
    reads = tuple(dict.fromkeys(chain.from_iterable(sources.values())))
    # What is read at other places, by this operator or by those inside it.
    moved = frozenset(source for name in op.moved for source in sources.get(name, ()))
    moved = moved.union(*[known[name].op.moved for name in inside])
    further += sum(known[name].loads - len(known[name].op.reads) for name in inside)
    computed = own.union(*[known[name].computed for name in inside])
    loads, parts = len(reads) * op.window + further, _parts(op, known, sources)
    op = replace(op, computes=tuple([known[name].own for name in inside]))
    return _Formula(replace(op, parts=parts, reads=reads, moved=moved), op, loads, computed)


def _parts(
    op: Loop, known: Mapping[str, _Formula], sources: Mapping[str, Sequence[str]]
) -> Mapping[str, Mapping[str, Dim]]:
    """By stored tensor that an operator reads only in parts, the parts, with those read by what is computed inside."""
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


# What products add: a tensor that is added to the product, or a bias (`addmm` and `unfuse_bias_add_to_pointwise` in
# torch/_inductor/fx_passes/post_grad.py). They add nothing if all readers of the sum are elementwise: these then add it.


def with_sums(ops: Sequence[Op], outputs: Container[str], joint: JointGraph) -> list[Op]:
    """The operators of a graph with sums fused into products, from the last on. outputs: tensors that outlive the graph."""
    users, maker = users_of(ops), {name: op for op in ops for name in op.outputs}
    found: list[Op] = []
    for op in reversed(ops):
        (out, *_), own = op.outputs, [op]
        if maker[out] is not op:  # already part of a sum
            continue
        is_inlined = out not in outputs and all(map(_is_elementwise, users.get(out, ())))
        if op.role == "product and bias" and is_inlined:
            inner, bias = joint.without_bias(out), op.reads[-1]
            joint.sizes[inner] = joint.sizes[out]
            product = replace(op, outputs=(inner,), reads=op.reads[:-1], role="")
            own = [Loop((out,), (inner, bias), op.elements, op.row, op.node), product]
        elif op.role == "sum" and not is_inlined and len(op.reads) == 2:
            for name, other in ((op.reads[1], op.reads[0]), op.reads):
                is_alone = name in maker and len(users[name]) == 1 and name not in outputs
                if is_alone and maker[name].role == "product" and joint.bytes(name) == joint.bytes(out):
                    reads = (*maker[name].reads, other)
                    own = [replace(maker[name], outputs=(out,), reads=reads, role="product and sum")]
                    users[other] = [own[0] if user is op else user for user in users[other]]
                    maker[name] = own[0]
                    break
        found += own
    return found[::-1]


def _is_elementwise(op: Op) -> bool:
    return type(op) is Loop and op.role not in ("placing", "join", "adding") and not op.is_alone
