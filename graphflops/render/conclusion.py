"""How many findings there are, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from graphflops.render.text import count_of
from graphflops.report.findings import SEVERITIES, Finding, ModelFindings


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
