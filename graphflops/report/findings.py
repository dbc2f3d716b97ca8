"""Findings of an audit or a budget check: each has a stable code, a place in the model, with its neighbours, and a fix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal

from graphflops.base.lazy import fractions
from graphflops.base.record import Record
from graphflops.base.rendered import Rendered
from graphflops.dims import Dim
from graphflops.ops import operator
from graphflops.report import Report, Row


class Neighbours:
    """The neighbours of the calls of a report's rows, by name of a call."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.makers: dict[str, Row] = {}
        self.readers: dict[str, Row] = {}
        self.rows: dict[str, Row] = {}
        for row in rows:
            self.rows.setdefault(row.node, row)
            self.makers.update((name, row) for name, _ in row.outputs)
            for name, _ in row.inputs:
                self.readers.setdefault(name, row)

    def between(self, node: str) -> str:
        """`layer3.5.conv3 and layer4`; "" for no call, or if both are in its own module."""
        row = self.rows.get(node)
        if row is None:
            return ""
        before = next((self.makers[name] for name, _ in row.inputs if name in self.makers), None)
        after = next((self.readers[name] for name, _ in row.outputs if name in self.readers), None)
        if row.module and all(one is None or one.module == row.module for one in (before, after)):
            return ""
        ends = (_place(before, row, "the input"), _place(after, row, "the result"))
        return " and ".join(ends)


def with_neighbours(findings: Iterable[Finding], rows: Iterable[Row]) -> list[Finding]:
    """The findings, each with the neighbours of its call."""
    beside = Neighbours(rows)
    return [replace(finding, between=beside.between(finding.node)) for finding in findings]


def _place(row: Row | None, own: Row, end: str) -> str:
    if row is None:
        return end
    return row.module if row.module and row.module != own.module else operator(row.op).word


Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")  # the gravest first
Applicability = Literal["", "safe", "unsafe"]


class Finding(Record, frozen=True):
    """One thing found."""

    code: str  # stable, as the name: `GF203`, `unused-initializer`
    name: str
    # error: the model is wrong or unsafe; warning: it costs or risks something; note: for information.
    severity: Severity
    message: str  # one sentence that names the values or calls concerned
    fix: str  # what to do, one sentence
    node: str = ""  # the call it is about, as in a report's row, like the next three; "" for the whole model
    op: str = ""
    module: str = ""
    source: str = ""
    flops: Dim | None = 0  # what it costs in one run, as `bytes`; 0: nothing is wasted; None: not known
    bytes: Dim | None = 0
    seconds: float = 0.0  # what the fix saves of a run on a device, in findings about time
    # Of the fix that `--fix` applies: safe if results stay the same bit for bit; "" without such a fix.
    applicability: Applicability = ""
    # The neighbours of that call, `layer3.5.conv3 and layer4`; "" where the module says as much.
    between: str = ""
    stored: int = 0  # bytes of stored tensors that the fix saves; below 0 where it stores what was computed

    @property
    def command(self) -> str:
        """The options of `graphflops audit` that fix it; "" where a person must."""
        unsafe = " --unsafe-fixes" if self.applicability == "unsafe" else ""
        return f"--select {self.code} --fix{unsafe}" if self.applicability else ""


class RuleInfo(Record, frozen=True):
    """What holds for all findings of one code: its name, one sentence, the fix, and the severity."""

    name: str
    summary: str
    help: str
    severity: Severity = "error"


class LimitResult(Record, frozen=True):
    """One limit of a budget and what was measured."""

    quantity: str  # what is limited
    module: str  # of which module; "" for the whole model
    unit: str  # FLOP, MAC, B, % or ""
    measured: int | None  # None, as the next, where it is not known
    most: int | None
    verdict: Literal["within", "over", "unknown"]  # unknown: the limit cannot be decided; over: it is passed
    is_least: bool = False  # `most` is the least that is allowed

    @property
    def used(self) -> fractions.Fraction | None:
        """The share of the limit that is used, more than 1 where it is passed; None where that is not known."""
        part, whole = (self.most, self.measured) if self.is_least else (self.measured, self.most)
        return None if part is None or not whole else fractions.Fraction(part, whole)


class ModelFindings(Record, frozen=True):
    """All that was found in one model."""

    model: str
    findings: tuple[Finding, ...]
    values: Mapping[str, int] = {}  # sizes at which its costs are given as numbers
    assumed: Mapping[str, int] = {}  # assumed ones, by the names that people read
    limits: tuple[LimitResult, ...] = ()  # every limit that a check compared, those that hold too
    whole: tuple[Dim, Dim] = (0, 0)  # FLOPs and bytes of the model; the costs of findings are shares of them
    seconds: float = 0.0  # of a run, where it is predicted

    @staticmethod
    def of(model: str, findings: tuple[Finding, ...], report: Report, seconds: float = 0.0) -> ModelFindings:
        whole = report.total().flops, report.total().moved_bytes
        return ModelFindings(model, findings, report.values, report.assumed, whole=whole, seconds=seconds)


class Findings(Rendered, Record, frozen=True):
    """All findings of one run."""

    models: tuple[ModelFindings, ...]
    # That found them; in code scanning, findings of one do not replace those of the other.
    command: Literal["audit", "check"] = "check"
    rules: Mapping[str, RuleInfo] = {}  # what is said of each code, found or not
    per_code: int | None = None  # findings of one code that a table shows by default
