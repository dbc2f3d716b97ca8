"""Which results inductor stores: its rules for what is realized.

A pointwise operator is computed inside of each kernel that reads it, unless a kernel of a library reads it, or it is read
by several operators and computed from more than four loads, or by one with a window and computed from several tensors.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from graphflops.dims import Dim
    from graphflops.inductor.joint_graph import Op

    Parts = Mapping[str, Mapping[str, Dim]]  # bytes by tensor and part

# inductor's realize_reads_threshold, realize_acc_reads_threshold and realize_opcount_threshold
_MOST_READ_SHARED, _MOST_READ, _MOST_INSTRUCTIONS = 4, 8, 30


class _Formula(NamedTuple):
    """How a result is computed from stored tensors.

    sources: these tensors. parts, outer: as of an operator that reads them. loads, instructions: for each element.
    """

    sources: tuple[str, ...]
    parts: Parts
    outer: frozenset[str]
    loads: int
    instructions: int


def realized(ops: Sequence[Op], outputs: Container[str]) -> tuple[list[Op], dict[str, Op]]:
    """The operators whose results are stored, each with the stored tensors that it is computed from.

    Then by tensor the others, which are computed wherever they are read. outputs: tensors that outlive the graph.
    """
    users: dict[str, list[Op]] = {}
    for op in ops:
        for name in op.reads:
            users.setdefault(name, []).append(op)
    formulas: dict[str, _Formula] = {}  # of tensors that are not stored
    stored: list[Op] = []
    computed_again: dict[str, Op] = {}
    for op in ops:
        inside = tuple([name for name in op.reads if name in formulas])
        formula = _formula(op, formulas, inside)
        if _is_inlined(op, formula, users, outputs):
            computed_again.update(dict.fromkeys(op.outputs, op))
            formulas.update(dict.fromkeys(op.outputs, formula))
        elif inside:
            sources, parts, outer, *_ = formula
            stored.append(replace(op, reads=sources, parts=parts, outer=outer, computes=inside))
        else:
            stored.append(op)
    return stored, computed_again


def _formula(op: Op, known: Mapping[str, _Formula], inside: Sequence[str]) -> _Formula:
    """How the result of an operator is computed. inside: what it reads that is not stored."""
    if not inside:
        return _Formula(op.reads, op.parts, op.outer, len(op.reads) * op.window, op.instructions)
    formulas = [known[name] for name in inside]
    sources = tuple(
        dict.fromkeys(
            source for name in op.reads for source in (known[name].sources if name in known else (name,))
        )
    )
    further = sum(formula.loads - len(formula.sources) for formula in formulas)
    instructions = op.instructions + sum(formula.instructions for formula in formulas)
    parts, outer = op.parts, op.outer
    if parts or any(formula.parts for formula in formulas):
        parts = _parts(op, known)
    if outer or any(formula.outer for formula in formulas):
        outer = _outer(op, known)
    return _Formula(sources, parts, outer, len(sources) * op.window + further, instructions)


def _outer(op: Op, known: Mapping[str, _Formula]) -> frozenset[str]:
    """Stored tensors that an operator reads along an axis that is not the innermost, as `Op.outer`."""
    found: set[str] = set()
    for name in op.reads:
        formula = known.get(name)
        if name in op.outer:
            found.update((name,) if formula is None else formula.sources)
        elif formula is not None:
            found.update(formula.outer)
    return frozenset(found)


def _parts(op: Op, known: Mapping[str, _Formula]) -> Parts:
    """By stored tensor of which an operator reads parts only, these, also by way of what is computed inside of it."""
    whole: set[str] = set()
    found: dict[str, dict[str, Dim]] = {}
    for name in op.reads:
        formula = known.get(name)
        for source in (name,) if formula is None else formula.sources:
            read = op.parts.get(name) or (None if formula is None else formula.parts.get(source))
            if read is None:
                whole.add(source)
            else:
                found.setdefault(source, {}).update(read)
    return {name: read for name, read in found.items() if name not in whole}


def _is_inlined(op: Op, formula: _Formula, users: Mapping[str, list[Op]], outputs: Container[str]) -> bool:
    """Whether a result is not stored: it is computed wherever it is read."""
    if op.kind != "pointwise" or op.is_alone or op.part_bytes != 0:
        return False
    readers = [user for name in op.outputs for user in users.get(name, ())]
    if any(name in outputs for name in op.outputs):
        return False
    if any(not user.is_fusible or user.part_bytes != 0 for user in readers):
        return False
    if formula.loads > 1 and any(user.window > 1 for user in readers):
        return False
    is_shared = len(readers) > 1 or any(user.reads_twice for user in readers)
    if formula.instructions > _MOST_INSTRUCTIONS and (is_shared or formula.loads > 1):
        return False
    return formula.loads <= (_MOST_READ_SHARED if is_shared else _MOST_READ)
