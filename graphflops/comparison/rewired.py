"""Which calls of two programs are the same, and which of them read other values: a skip connection that is gone."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, Union

from graphflops.base.aligned import matching_blocks
from graphflops.base.numbered import numbered, unnumbered
from graphflops.ops import operator

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from graphflops.comparison.align import Pairs
    from graphflops.report import Report

_NAMED = 3  # changes that one sentence tells
Numbers = tuple["Sequence[int | None]", "Sequence[int | None]"]  # of both programs
Source = Union[int, str]  # the row of a call; else an input, by its place among them, or a weight


class Rewired(NamedTuple):
    """A call of the new program that reads other results than before. place: its module; before, after: calls or inputs."""

    op: str
    place: str
    before: tuple[str, ...]
    after: tuple[str, ...]


def aligned(old: Report, new: Report, pairs: Pairs, numbers: Numbers) -> dict[int, int]:
    """Rows of the new program by those of the old one: calls of paired modules that are of one kind, and in one order.

    numbers: of the kind of each call; those without cost are of one kind where their operators are.
    """
    found: dict[int, int] = {}
    for ours, theirs in pairs.new.items():
        kinds, others = (
            [report.rows[row].op if number[row] is None else number[row] for row in rows]
            for report, number, rows in zip((old, new), numbers, (ours.rows, theirs.rows), strict=True)
        )
        for a, b, size in matching_blocks(kinds, others):
            found.update(zip(ours.rows[a : a + size], theirs.rows[b : b + size], strict=True))
    return found


def rewired(old: Report, new: Report, paired: Mapping[int, int], numbers: Numbers) -> Iterator[Rewired]:
    """Every call whose operands come from other calls than those of its pair; unpaired calls are changes of their own.

    Calls without cost are looked through, and equal calls of equal operands are one: exporters add and merge them at will.
    """
    paired = {ours: theirs for ours, theirs in paired.items() if numbers[0][ours] is not None}
    reads = (_reads(old, numbers[0]), _reads(new, numbers[1]))
    names = (_merged(old, numbers[0], reads[0]), _merged(new, numbers[1], reads[1]))
    same: dict[Source, Source] = {names[0][ours]: names[1][theirs] for ours, theirs in paired.items()}
    paired_new = {*same.values()}
    for ours, theirs in paired.items():
        was = [names[0].get(source, source) for source in reads[0][ours] if _counts(source)]
        after = [names[1].get(source, source) for source in reads[1][theirs] if _counts(source)]
        if not (_are_paired(was, same) and _are_paired(after, paired_new)):
            continue
        before = [same.get(source, source) for source in was]
        is_unordered = "commutative" in operator(new.rows[theirs].op).facts
        if before == after or (is_unordered and Counter(before) == Counter(after)):
            continue
        row = new.rows[theirs]
        gone, come = _left(before, after), _left(after, before)
        yield Rewired(
            _word(row.op),
            row.module,
            tuple([_named(new, source) for source in gone or before]),
            tuple([_named(new, source) for source in come or after]),
        )


def told(found: Sequence[Rewired]) -> str:
    """The changes in one sentence, those of repeated layers together; "" for none."""
    groups: dict[tuple[object, ...], list[Rewired]] = {}
    for one in found:
        key = (
            one.op,
            unnumbered(one.place),
            *(tuple(map(unnumbered, names)) for names in (one.before, one.after)),
        )
        groups.setdefault(key, []).append(one)
    parts = []
    for group in [*groups.values()][:_NAMED]:
        first = group[0]
        place = numbered([one.place for one in group])
        before, after = (
            " and ".join(numbered([names[index] for names in side]) for index in range(len(side[0])))
            for side in ([one.before for one in group], [one.after for one in group])
        )
        where = f" of {place}" if place else ""
        parts.append(f"{first.op}{where} reads {after}, no longer {before}")
    more = len(groups) - _NAMED
    return "wiring: " + "; ".join(parts) + (f"; and {more:,} more" if more > 0 else "") if parts else ""


def _reads(report: Report, numbers: Sequence[int | None]) -> list[list[Source]]:
    """By row, where its tensors come from: looked through calls without cost to those that make them."""
    made: dict[str, Source] = {name: f"input {place}" for place, (name, _) in enumerate(report.inputs)}
    reads: list[list[Source]] = []
    for index, row in enumerate(report.rows):
        sources = [made.get(name, f"weight {name}") for name, _ in row.inputs]
        reads.append(sources)
        result = index if numbers[index] is not None or not sources else sources[0]
        made.update((name, result) for name, _ in row.outputs)
    return reads


def _merged(
    report: Report, numbers: Sequence[int | None], reads: Sequence[Sequence[Source]]
) -> dict[Source, Source]:
    """By row, the first row of an equal call of equal operands."""
    first: dict[tuple[object, ...], int] = {}
    found: dict[Source, Source] = {}
    for index, number in enumerate(numbers):
        if number is not None:
            operands = [found.get(source, source) for source in reads[index]]
            found[index] = first.setdefault((number, report.rows[index].module, *operands), index)
    return found


def _are_paired(sources: Sequence[Source], paired: Container[Source]) -> bool:
    return all(source in paired for source in sources if isinstance(source, int))


def _counts(source: Source) -> bool:
    return isinstance(source, int) or source.startswith("input")


def _left(some: Sequence[Source], others: Sequence[Source]) -> list[Source]:
    """Those that the others lack, as often as they lack them."""
    return [*(Counter(some) - Counter(others)).elements()]


def _named(report: Report, source: Source) -> str:
    if isinstance(source, str):
        return f"input {report.inputs[int(source.split()[1])].name}"
    row = report.rows[source]
    return f"{_word(row.op)} of {row.module}" if row.module else _word(row.op)


def _word(op: str) -> str:
    return operator(op).word
