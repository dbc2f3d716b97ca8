"""Compares the calls of each operator, and of each source line."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from graphflops.comparison.interned_calls import counted
from graphflops.comparison.result import GroupChange

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from graphflops.comparison.entries import Trees
    from graphflops.comparison.interned_calls import Counts

_Names = tuple["str | None", "str | None"]


def by_operator(
    trees: Trees, numbers: tuple[Sequence[int | None], Sequence[int | None]]
) -> Iterator[GroupChange]:
    """One group for each operator, unchanged ones included."""
    groups = [
        _grouped([row.op for row in report.rows], kinds)
        for report, kinds in zip(trees.reports, numbers, strict=True)
    ]
    yield from _compared(trees, groups, {name: name for name in groups[0]})


def by_source(
    trees: Trees, numbers: tuple[Sequence[int | None], Sequence[int | None]]
) -> Iterator[GroupChange]:
    """One group for each source line, unchanged ones included; a line is paired with the one that has most of its calls."""
    groups = [
        _grouped([row.source for row in report.rows], kinds)
        for report, kinds in zip(trees.reports, numbers, strict=True)
    ]
    votes = Counter(_aligned(trees))
    best: tuple[dict[str, str], dict[str, str]] = ({}, {})
    for (ours, theirs), _ in sorted(votes.items(), key=lambda vote: (-vote[1], vote[0][0] != vote[0][1])):
        best[0].setdefault(ours, theirs)
        best[1].setdefault(theirs, ours)
    pairs = {ours: theirs for ours, theirs in best[0].items() if best[1].get(theirs) == ours}
    if trees.export:  # calls are not aligned, but both name the lines of one source
        pairs = {line: line for line in groups[0]}
    yield from _compared(trees, groups, pairs)


def _aligned(trees: Trees) -> Iterator[tuple[str, str]]:
    """Pairs of source lines of equal calls in paired modules, in order."""
    old, new = (report.rows for report in trees.reports)
    for ours, theirs in trees.pairs.new.items():
        places: dict[int, list[int]] = {}
        for index, kind in theirs.calls:
            places.setdefault(kind, []).append(index)
        used: Counter[int] = Counter()
        for index, kind in ours.calls:
            partners = places.get(kind, ())
            if used[kind] < len(partners):
                yield old[index].source, new[partners[used[kind]]].source
                used[kind] += 1
        if len(ours.calls) == len(theirs.calls):  # changed calls at the same place count too
            for (index, _), (other, _) in zip(ours.calls, theirs.calls, strict=True):
                if old[index].op == new[other].op:
                    yield old[index].source, new[other].source


def _grouped(names: Sequence[str], kinds: Sequence[int | None]) -> dict[str, Counts]:
    groups: dict[str, list[int]] = {}
    for name, kind in zip(names, kinds, strict=True):
        if kind is not None:
            groups.setdefault(name, []).append(kind)
    return {name: counted(members) for name, members in groups.items()}


def _compared(
    trees: Trees, groups: Sequence[dict[str, Counts]], partner: dict[str, str]
) -> Iterator[GroupChange]:
    old, new = groups
    names: list[_Names] = [(name, partner[name] if partner.get(name) in new else None) for name in old]
    taken = {found for _, found in names}
    names += [(None, name) for name in new if name not in taken]
    for ours, theirs in names:
        before = () if ours is None else old[ours]
        after = () if theirs is None else new[theirs]
        yield GroupChange(
            before=ours,
            after=theirs,
            before_calls=sum(times for _, times in before),
            after_calls=sum(times for _, times in after),
            before_unknown=trees.kinds.unknown(before),
            after_unknown=trees.kinds.unknown(after),
            figures=trees.kinds.figures(before, after, None),
            backward=trees.kinds.figures(before, after, None, backward=True) if trees.training else {},
        )


def differs(group: GroupChange) -> bool:
    """True if the group changed."""
    if (group.before is None) != (group.after is None) or group.before_calls != group.after_calls:
        return True
    if group.before_unknown != group.after_unknown:
        return True
    return any(figure.differs for figures in (group.figures, group.backward) for figure in figures.values())
