"""What one model cost at each commit that changed it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from graphflops.base.limits import next_analysis
from graphflops.base.rendered import Rendered
from graphflops.derived.overview import OverviewLine, overview
from graphflops.dims import evaluate
from graphflops.errors import FileError, GraphflopsError, shown
from graphflops.report import Report
from graphflops.versions.revisions import RevisionRange, Version, file_at, versions

QUANTITIES = ("matrix_flops", "parameters", "moved_bytes", "peak_bytes")


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """The model at one commit. line: what it cost there, or why that is not known."""

    version: Version
    line: OverviewLine

    def value(self, quantity: str) -> int | None:
        """A quantity of `QUANTITIES` as a number; None where it is not known or depends on a size without a value."""
        cost = self.line.cost
        return None if cost is None else evaluate(getattr(cost, quantity), cost.values)


@dataclass(frozen=True, slots=True, repr=False)
class History(Rendered):
    """One model at the commits that changed it, the oldest first."""

    path: str
    points: tuple[HistoryPoint, ...]


def history(path: str, span: RevisionRange | None, most: int, analyze: Callable[[str], Report]) -> History:
    """Analyzes a model at the last `most` commits of a range that changed it, and at the range's beginning.

    span: None means all commits up to HEAD. analyze: turns a file into a report. Raises FileError where no commit has it.
    """
    known: dict[str, OverviewLine] = {}
    points = []
    for version in versions(path, span, most):
        if version.blob not in known:
            next_analysis()
            known[version.blob] = _line(version, analyze)
        points.append(HistoryPoint(version, known[version.blob]))
    return History(path, tuple(points))


def _line(version: Version, analyze: Callable[[str], Report]) -> OverviewLine:
    if not version.blob:
        return OverviewLine(version.path, error="deleted")

    def analyzed(path: str) -> Report:
        with file_at(version.commit, path, from_top=True) as file:
            try:
                return analyze(file)
            except GraphflopsError as error:
                raise FileError(str(error).removeprefix(f"{shown(file)}: ")) from error

    return overview([version.path], analyzed).lines[0]
