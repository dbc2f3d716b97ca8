"""A result in one line: its `repr`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from graphflops.base.lazy import imported
from graphflops.base.units import parameters
from graphflops.errors import elided
from graphflops.render.text import Numbers, count_of, safe
from graphflops.report import Report
from graphflops.report.findings import SEVERITIES, Finding, ModelFindings

_WIDTH = 200  # characters
_FORMULA = 60  # characters of a formula


def brief(value: Any) -> str:
    """`<Report model.pt2: 1.200 G FLOPs, 221.8 k parameters, 118 calls>`."""
    kind = type(value).__name__
    about = _ABOUT[kind]
    return f"<{kind} {elided(imported(about)(value) if isinstance(about, str) else about(value), _WIDTH)}>"


def _report(report: Report) -> str:
    from graphflops.render.summary import title

    numbers, unknown = Numbers(report.value, _FORMULA, report.names), report.coverage.unknown
    calls = count_of(report.coverage.nodes, "call") + (f", {unknown:,} of them unknown" if unknown else "")
    flops = f"{'>= ' if unknown else ''}{numbers.count(report.totals.cost.matrix_flops)} FLOPs"
    return f"{title(report)}: {flops}, {parameters(report.parameters)} parameters, {calls}"


def _sweep(sweep: Any) -> str:
    from graphflops.render.summary import title

    return f"{title(sweep.report)}: {count_of(len(sweep.points), 'point')}"


def _comparison(found: Any) -> str:
    from graphflops.render.diff import words
    from graphflops.render.diff.words import titles

    return next(iter(words.headlines(found)), " → ".join(titles(found)))


def _overview(found: Any) -> str:
    failed = sum(line.cost is None for line in found.lines)
    return count_of(len(found.lines), "model") + (f", {failed:,} failed" if failed else "")


def _validation(found: Any) -> str:
    from graphflops.render.validation import conclusion

    return f"{safe(found.path, 80)}: {conclusion(found)}"


_ABOUT: dict[str, str | Callable[[Any], str]] = {
    "Report": _report,
    "Sweep": _sweep,
    "Overview": _overview,
    "History": lambda found: f"{safe(found.path, 80)}: {count_of(len(found.points), 'commit')}",
    "Comparison": _comparison,
    "Findings": lambda found: conclusion(found.models),
    "Fits": "graphflops.render.fits:verdict",
    "Checked": lambda found: conclusion(found.findings.models),
    "Audit": lambda found: f"{safe(found.path, 80)}: {counted(found.findings)}",
    "Validation": _validation,
    "Statement": "graphflops.render.statement:headline",
    "Serving": "graphflops.render.serving:headline",
    "Plan": "graphflops.render.plan:said",
}


def counted(findings: Iterable[Finding]) -> str:
    """`2 errors, 1 note`; `nothing found`."""
    severities = Counter(finding.severity for finding in findings)
    parts = [count_of(severities[severity], severity) for severity in SEVERITIES if severities[severity]]
    return ", ".join(parts) or "nothing found"


def state(model: ModelFindings) -> str:
    """What was found in a model; `within budget` where every limit holds."""
    return "within budget" if model.limits and not model.findings else counted(model.findings)


def conclusion(found: Sequence[ModelFindings]) -> str:
    """`3 errors in 2 of 50 models`, `nothing found in 50 models`."""
    every = [finding for model in found for finding in model.findings]
    concerned = sum(bool(model.findings) for model in found)
    some = f"{concerned:,} of " if concerned else ""
    if not every and any(model.limits for model in found):
        return f"within budget: {count_of(len(found), 'model')}"
    return f"{counted(every)} in {some}{count_of(len(found), 'model')}"
