"""Compares the calls of one module before and after."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, get_args

from graphflops.base.aligned import matching_blocks
from graphflops.comparison.result import CallChange, Fact, FactKind
from graphflops.ops import operator

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Sequence

    from graphflops.comparison.sizes import JointSizes
    from graphflops.report import Row
    from graphflops.tensor import TensorType

_ORDER = get_args(FactKind)  # facts of one call are listed in this order

NumberedRow = tuple["Row", int]  # with the number of its kind
RowPair = tuple["Row | None", "Row | None"]


def different(old: Sequence[NumberedRow], new: Sequence[NumberedRow]) -> list[RowPair]:
    """Pairs of the calls that changed; calls that only moved within the module are left out."""
    surplus = Counter(kind for _, kind in old)
    surplus.subtract(Counter(kind for _, kind in new))
    pairs: list[RowPair] = []
    for ours, theirs in _blocks([kind for _, kind in old], [kind for _, kind in new]):
        mine = [call for call in old[ours] if _spend(surplus, call[1], 1)]
        other = [call for call in new[theirs] if _spend(surplus, call[1], -1)]
        pairs += _matched([row for row, _ in mine], [row for row, _ in other])
    return pairs


def _spend(surplus: Counter[int], kind: int, sign: int) -> bool:
    """True if the other program has fewer calls of this kind; else the call only moved."""
    if surplus[kind] * sign <= 0:
        return False
    surplus[kind] -= sign
    return True


def _blocks(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[slice, slice]]:
    """The slices in which two sequences differ."""
    i = j = 0
    for a, b, size in [*matching_blocks(old, new), (len(old), len(new), 0)]:
        if i < a or j < b:
            yield slice(i, a), slice(j, b)
        i, j = a + size, b + size


def _matched(old: list[Row], new: list[Row]) -> Iterator[RowPair]:
    """Pairs calls of the same operator in order, those of one source line first, then by position; then lists the rest."""
    for key in (lambda row: (row.op, row.source), lambda row: row.op):
        waiting: dict[Hashable, deque[Row]] = {}
        for row in new:
            waiting.setdefault(key(row), deque()).append(row)
        rest: list[Row] = []
        for row in old:
            same = waiting.get(key(row))
            if same:
                yield row, same.popleft()
            else:
                rest.append(row)
        left = {id(row) for same in waiting.values() for row in same}
        old, new = rest, [row for row in new if id(row) in left]
    if len(old) == len(new):
        yield from zip(old, new, strict=True)
        return
    yield from ((row, None) for row in old)
    yield from ((None, row) for row in new)


def changes(pairs: Iterable[RowPair]) -> tuple[CallChange, ...]:
    """The pairs as the comparison shows them."""
    return tuple(CallChange(before, after) for before, after in pairs)


def facts(pairs: Iterable[RowPair], joined: JointSizes, module: tuple[str, str]) -> list[Fact]:
    """The distinct differences of these calls. module: the path of the module in either program."""
    found: dict[Fact, None] = {}
    came: dict[str, list[int]] = {}
    for before, after in pairs:
        if before is not None and after is not None:
            found.update(dict.fromkeys(_facts(before, after, joined, module)))
        else:
            row = before or after
            assert row is not None
            came.setdefault(row.op, [0, 0])[before is None] += 1
    for op, (gone, new) in came.items():
        found[Fact("calls", str(gone), str(new), op)] = None
    return ordered(found)


def ordered(facts: Iterable[Fact]) -> list[Fact]:
    """Sorts facts by importance: among operands the weight first, then other parameters; results last."""

    def rank(fact: Fact) -> tuple[int, ...]:
        plain = fact.what.startswith("input")
        return _ORDER.index(fact.kind), fact.what == "result", plain, fact.what != "weight"

    return sorted(facts, key=rank)


def _facts(before: Row, after: Row, joined: JointSizes, module: tuple[str, str]) -> Iterator[Fact]:
    if before.state == "unknown" or after.state == "unknown":
        if before.state != after.state:
            yield Fact("unknown", before.state, after.state, after.op)
        elif before.op != after.op:
            yield Fact("operator", before.op, after.op)
        return
    if before.op != after.op:
        yield Fact("operator", before.op, after.op)
    if (before.cost.masked_flops == 0) != (after.cost.masked_flops == 0):
        masked = joined.old.text(before.cost.masked_flops), joined.new.text(after.cost.masked_flops)
        yield Fact("mask", *masked)
    if joined.old(before.times) != joined.new(after.times):
        yield Fact("times", joined.old.text(before.times), joined.new.text(after.times))
    operands = _operands(before, module[0]), _operands(after, module[1])
    for what in {**operands[0], **operands[1]}:
        ours, theirs = operands[0].get(what), operands[1].get(what)
        if ours is None or theirs is None:
            yield Fact(
                "operand",
                "" if ours is None else joined.old.text(ours),
                "" if theirs is None else joined.new.text(theirs),
                what,
            )
        else:
            yield from _types(ours, theirs, what, joined)
    if before.op == after.op and operator(after.op).kind == "attention":
        yield from _heads(before, after, joined)
    if len(before.outputs) == len(after.outputs):
        for mine, other in zip(before.outputs, after.outputs, strict=True):
            yield from _types(mine.type, other.type, "result", joined)


def _operands(row: Row, module: str) -> dict[str, TensorType]:
    """The operands of a call by the module's names for its parameters, `weight`, or `input 2` for other operands."""
    named = [(own_name(name, module) or _last(name), type_) for name, type_ in row.inputs]
    alone = sum(not name for name, _ in named) == 1
    found: dict[str, TensorType] = {}
    for name, type_ in named:
        index = 1 + sum(known.startswith("input") for known in found)
        found[name or ("input" if alone else f"input {index}")] = type_
    return found


def _heads(before: Row, after: Row, joined: JointSizes) -> Iterator[Fact]:
    """Differences in the number of heads, for operands that have an axis of heads."""
    for what, ours, theirs in zip(("query", "key and value"), before.inputs, after.inputs, strict=False):
        if ours.type.rank == theirs.type.rank == 4:
            heads = joined.old(ours.type.shape[1]), joined.new(theirs.type.shape[1])
            if heads[0] != heads[1]:
                yield Fact("heads", joined.old.text(heads[0]), joined.new.text(heads[1]), what)


def _types(ours: TensorType, theirs: TensorType, what: str, joined: JointSizes) -> Iterator[Fact]:
    if ours.dtype != theirs.dtype:
        yield Fact("dtype", ours.dtype.name, theirs.dtype.name, what)
    if [*map(joined.old, ours.shape)] != [*map(joined.new, theirs.shape)]:
        yield Fact("shape", joined.old.text(_shape(ours)), joined.new.text(_shape(theirs)), what)


def _shape(type_: TensorType) -> str:
    return f"[{', '.join(map(str, type_.shape))}]"


def _last(value: str) -> str:
    """`weight` of a parameter that belongs to another module, `p_head_weight`; "" of what is no parameter."""
    return value.rpartition("_")[2] if value.startswith("p_") else ""


def own_name(value: str, module: str) -> str:
    """`weight` of `p_fc_weight` or `fc.weight` for the module `fc`; "" where the value is no parameter of it."""
    flat = f"p_{module.replace('.', '_')}_" if module else "p_"
    for prefix in (flat, f"b{flat[1:]}", f"{module}."):
        if value.startswith(prefix) and len(value) > len(prefix):
            return value[len(prefix) :]
    return ""
