"""Compares each model that a push or a pull request changes with its old version."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from graphflops.base.limits import next_analysis
from graphflops.base.writing import whole
from graphflops.budget.run import EXPORTED, measures_before
from graphflops.comparison.compare import compared
from graphflops.comparison.result import HELD, WORK
from graphflops.errors import GraphflopsError, shown
from graphflops.loading import analyze
from graphflops.onnx_audit.audit import audit
from graphflops.render.audit import offered
from graphflops.report import Report
from graphflops.report.contradictions import contradictions
from graphflops.version import tool
from graphflops.versions.revisions import changed, file_here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from fractions import Fraction

    from graphflops.comparison.result import Comparison

_WATCHED = (*WORK, "peak_bytes", *HELD)  # the totals that a threshold is for


@dataclass(frozen=True, slots=True)
class ModelChange:
    """One model that changed.

    path: where it is, or was if it is gone. comparison: None for a model that is new or gone, and where one of the
    two cannot be analyzed: then `error` says why. offer: the command that mends what an audit of an ONNX file finds.
    """

    path: str
    status: Literal["changed", "new", "gone"]
    comparison: Comparison | None = None
    report: Report | None = None
    error: str = ""
    offer: str = ""

    @property
    def identical(self) -> bool:
        """True if the file is another one and costs the same in every way."""
        return (
            self.comparison is not None and self.comparison.same and not contradictions(self.comparison.new)
        )

    def past(self, threshold: Fraction) -> bool:
        """True if a total changed by more than the threshold, or its change has no percentage."""
        if self.comparison is None or contradictions(self.comparison.new):
            return True
        totals = self.comparison.totals["forward"]
        for name in _WATCHED:
            figure = totals.get(name)
            if figure is None or not figure.differs:
                continue
            delta = figure.delta
            if delta is None or not figure.before_value or abs(delta) > threshold * figure.before_value:
                return True
        opened = any(size.opened or size.fixed for size in self.comparison.sizes)
        return opened or bool(self.comparison.unknown)


def changes(base: str, wanted: Callable[[str], bool], cache: str | None) -> Iterator[ModelChange]:
    """Every model that differs between a commit and the checkout, by its path.

    wanted: whether a path is meant. cache: a folder where reports of the base are kept from one run to the next.
    """
    pairs = [(old, new) for old, new in changed(base, None, []) if wanted(new or old or "")]
    for old, new in sorted(pairs, key=lambda pair: pair[1] or pair[0] or ""):
        yield _change(base, old, new, cache)


def _change(base: str, old: str | None, new: str | None, cache: str | None) -> ModelChange:
    next_analysis()
    path = new or old or ""
    if new is None:
        return ModelChange(path, "gone")
    status: Literal["changed", "new"] = "new" if old is None else "changed"
    try:
        with file_here(new) as file:
            report = _named(analyze(file), new)
            found = audit(file).of_model() if new.endswith(".onnx") else None
        offer = "" if found is None else offered(replace(found, model=new))
        comparison = None if old is None else compared(_before(base, old, cache), report)
        return ModelChange(path, status, comparison, report, offer=offer)
    except (GraphflopsError, OSError, RecursionError) as error:
        return ModelChange(path, status, error=shown(str(error), 500))


def _before(base: str, path: str, cache: str | None) -> Report:
    """The report of a model at the base, kept under its commit, its path, the version and the options."""
    made = f"{tool()} {EXPORTED!r} ".encode()  # another version, or other options, give another report
    name = hashlib.sha256(made + os.fsencode(path)).hexdigest()
    kept = None if cache is None else os.path.join(cache, base, f"{name}.json")
    if kept is not None and os.path.isfile(kept):
        try:
            with open(kept, "rb") as file:
                return _named(Report.from_json(file.read()), path)
        except (GraphflopsError, OSError):
            pass  # of another version, or not written to its end: made again
    report = measures_before(base, path).report
    if kept is not None:
        os.makedirs(os.path.dirname(kept), exist_ok=True)
        with whole(kept) as part, open(part, "wb") as file:
            file.write(report.to_json())
    return _named(report, path)


def _named(report: Report, path: str) -> Report:
    return replace(report, origin=replace(report.origin, path=path))
