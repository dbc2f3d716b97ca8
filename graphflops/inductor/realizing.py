"""Which results inductor stores: its rules for what is realized.

A pointwise operator is computed inside of each kernel that reads it, unless a kernel of a library reads it, or it is read
by several operators and computed from more than four tensors, or by one with a window and computed from several tensors.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from graphflops.dims import Dim
    from graphflops.inductor.joint_graph import Op

    Parts = Mapping[str, Mapping[str, Dim]]  # bytes by tensor and part

# inductor's realize_reads_threshold, realize_acc_reads_threshold and realize_opcount_threshold
_MOST_READ_SHARED, _MOST_READ, _MOST_INSTRUCTIONS = 4, 8, 30


def realized(ops: Sequence[Op], outputs: Container[str]) -> tuple[list[Op], dict[str, Op]]:
    """The operators whose results are stored, each with the stored tensors that it is computed from.

    Then by tensor the others, which are computed wherever they are read. outputs: tensors that outlive the graph.
    """
    users: dict[str, list[Op]] = {}
    for op in ops:
        for name in op.reads:
            users.setdefault(name, []).append(op)
    sources: dict[str, tuple[str, ...]] = {}  # by tensor that is computed wherever it is read
    parts: dict[str, Parts] = {}  # of these, of what parts are read
    outer: dict[str, frozenset[str]] = {}  # of these, which of the stored tensors do not lie in order
    work: dict[str, int] = {}  # of these, instructions
    stored: list[Op] = []
    computed_again: dict[str, Op] = {}
    for op in ops:
        inside = tuple([name for name in op.reads if name in sources])
        count = op.instructions + sum(work[name] for name in inside)
        own = tuple(dict.fromkeys(source for name in op.reads for source in sources.get(name, (name,))))
        cut = op.parts
        if inside and (cut or any(name in parts for name in inside)):
            cut = _parts(op, sources, parts)
        turned = op.outer
        if inside and (turned or any(name in outer for name in inside)):
            turned = _outer(op, sources, outer)
        if op.kind == "pointwise" and not op.is_alone and _is_inlined(op, own, count, users, outputs):
            computed_again.update(dict.fromkeys(op.outputs, op))
            sources.update(dict.fromkeys(op.outputs, own))
            work.update(dict.fromkeys(op.outputs, count))
            if cut:
                parts.update(dict.fromkeys(op.outputs, cut))
            if turned:
                outer.update(dict.fromkeys(op.outputs, turned))
        else:
            stored.append(replace(op, reads=own, parts=cut, outer=turned, computes=inside) if inside else op)
    return stored, computed_again


def _outer(
    op: Op, sources: Mapping[str, tuple[str, ...]], outer: Mapping[str, frozenset[str]]
) -> frozenset[str]:
    """Stored tensors that an operator reads along an axis that is not the innermost, as `Op.outer`."""
    found: set[str] = set()
    for name in op.reads:
        whole = sources.get(name, (name,)) if name in op.outer else outer.get(name, ())
        found.update(whole)
    return frozenset(found)


def _parts(op: Op, sources: Mapping[str, tuple[str, ...]], parts: Mapping[str, Parts]) -> Parts:
    """By stored tensor of which an operator reads parts only, these, also by way of what is computed inside of it."""
    whole: set[str] = set()
    found: dict[str, dict[str, Dim]] = {}
    for name in op.reads:
        for source in sources.get(name, (name,)):
            read = op.parts.get(name) or parts.get(name, {}).get(source)
            if read is None:
                whole.add(source)
            else:
                found.setdefault(source, {}).update(read)
    return {name: read for name, read in found.items() if name not in whole}


def _is_inlined(
    op: Op, own: Sequence[str], count: int, users: Mapping[str, list[Op]], outputs: Container[str]
) -> bool:
    readers = [user for name in op.outputs for user in users.get(name, ())]
    if any(name in outputs for name in op.outputs) or any(not user.is_fusible for user in readers):
        return False
    if len(own) > 1 and any(user.has_window for user in readers):
        return False
    is_shared = len(readers) > 1 or any(user.reads_twice for user in readers)
    if count > _MOST_INSTRUCTIONS and (is_shared or len(own) > 1):
        return False
    return len(own) <= (_MOST_READ_SHARED if is_shared else _MOST_READ)
