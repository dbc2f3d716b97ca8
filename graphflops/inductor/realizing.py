"""Which results inductor stores: its rules for what is realized.

A pointwise operator is computed inside of each kernel that reads it, unless a kernel of a library reads it, or it is read
by several operators and computed from more than four tensors.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from graphflops.inductor.joint_graph import Op

# inductor's realize_reads_threshold, realize_acc_reads_threshold and realize_opcount_threshold
_MOST_READ_SHARED, _MOST_READ, _MOST_INSTRUCTIONS = 4, 8, 30
_INSTRUCTIONS_OF_OP = 2  # about


def realized(ops: Sequence[Op], outputs: Container[str]) -> tuple[list[Op], dict[str, Op]]:
    """The operators whose results are stored, each with the stored tensors that it is computed from.

    Then by tensor the others, which are computed wherever they are read. outputs: tensors that outlive the graph.
    """
    users: dict[str, list[Op]] = {}
    for op in ops:
        for name in op.reads:
            users.setdefault(name, []).append(op)
    sources: dict[str, tuple[str, ...]] = {}  # by tensor that is computed wherever it is read
    parts: dict[str, frozenset[str]] = {}  # of these, of what a part is read
    work: dict[str, int] = {}  # of these, instructions
    stored: list[Op] = []
    computed_again: dict[str, Op] = {}
    for op in ops:
        count = _INSTRUCTIONS_OF_OP + sum(work.get(name, 0) for name in op.reads)
        cut = op.parts.union(*(parts.get(name, ()) for name in op.reads))
        own = tuple(dict.fromkeys(source for name in op.reads for source in sources.get(name, (name,))))
        if op.kind == "pointwise" and not op.is_alone and _is_inlined(op, own, count, users, outputs):
            computed_again.update(dict.fromkeys(op.outputs, op))
            sources.update(dict.fromkeys(op.outputs, own))
            parts.update(dict.fromkeys(op.outputs, cut))
            work.update(dict.fromkeys(op.outputs, count))
        else:
            stored.append(op if own == op.reads else replace(op, reads=own, parts=cut))
    return stored, computed_again


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
