"""Findings of an audit for a terminal: by code, equal ones over layers folded, each fix once, the most expensive first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from graphflops.base.numbered import numbered, unnumbered
from graphflops.base.units import memory, number, percent
from graphflops.dims import Dim, evaluate, total
from graphflops.render.brief import conclusion, counted
from graphflops.render.markdown import escaped
from graphflops.render.table import Page
from graphflops.render.tables import Entry, TextTable
from graphflops.render.text import assumptions, count_of, safe
from graphflops.report.findings import SEVERITIES, Finding, Findings, ModelFindings

_SENTENCE = 1_000  # characters of a message shown
_COLORS = {"error": "red", "warning": "yellow", "note": "cyan"}


@dataclass(frozen=True, slots=True)
class FindingFold:
    """Findings of one code whose places differ by numbers only."""

    findings: tuple[Finding, ...]

    @property
    def place(self) -> str:
        """`layers.0-35.self_attn (x36)`; the source line of one that stands alone, and the neighbours all have."""
        first = self.findings[0]
        names = [finding.module or finding.node for finding in self.findings]
        label = safe(numbered(names), 120)
        source = safe(first.source, 80)
        where = f"{label} ({source})" if label and source else label or source
        times = f"(x{len(self.findings):,})" if len(self.findings) > 1 else ""
        between = [finding.between for finding in self.findings]
        is_one = first.between and len({*map(unnumbered, between)}) == 1
        beside = f"between {safe(numbered(between), 120)}" if is_one else ""
        return " ".join(filter(None, (where, times, beside)))


def folded(findings: Iterable[Finding]) -> list[FindingFold]:
    """Findings of one code and operator whose modules, calls and sources differ by numbers only are one.

    A finding about time stands alone: it is of all such calls already, and its message says how long they take.
    """
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        place = finding.module or finding.node
        timed = finding.message if finding.seconds else ""
        key = (finding.code, finding.severity, finding.op, unnumbered(place), finding.source, timed)
        groups.setdefault(key, []).append(finding)
    return [FindingFold(tuple(members)) for members in groups.values()]


class Shares:
    """Costs of findings as numbers, and their shares of the whole model."""

    def __init__(self, model: ModelFindings) -> None:
        self.model = model
        self.flops, self.bytes = (self.value(part) or 0 for part in model.whole)

    def value(self, quantity: Dim | None) -> int | None:
        return None if quantity is None else evaluate(quantity, self.model.values)

    def share(self, findings: Sequence[Finding]) -> float:
        """The largest of the shares of FLOPs, of bytes and of time; what sorts findings."""
        sums = (*self.sums(findings), self.stored(findings), sum(finding.seconds for finding in findings))
        wholes = (self.flops, self.bytes, self.bytes, self.model.seconds)
        return max((part or 0) / whole if whole else 0.0 for part, whole in zip(sums, wholes, strict=True))

    def sums(self, findings: Sequence[Finding]) -> tuple[int | None, int | None]:
        flops = self.value(total(finding.flops or 0 for finding in findings))
        moved = self.value(total(finding.bytes or 0 for finding in findings))
        return flops, moved

    def stored(self, findings: Sequence[Finding]) -> int:
        """Bytes of stored tensors; 0 where more are stored than saved."""
        return max(sum(finding.stored for finding in findings), 0)

    def text(self, findings: Sequence[Finding]) -> str:
        """`3.1 M FLOPs (2.0 % of all), 1.2 MB (0.4 % of all)`; "" where nothing is known to be wasted."""
        flops, moved = (
            part if part is None or not whole else min(part, whole)  # findings may be about the same work
            for part, whole in zip(self.sums(findings), (self.flops, self.bytes), strict=True)
        )
        parts = [
            f"{number(flops)} FLOPs{_of(flops, self.flops)}" if flops else "",
            f"{memory(moved)}{_of(moved, self.bytes)}" if moved else "",
            f"{memory(stored)} stored" if (stored := self.stored(findings)) else "",
            "not known at the sizes left open" if flops is None or moved is None else "",
        ]
        return ", ".join(part for part in parts if part)


def _of(part: int, whole: int) -> str:
    return f" ({percent(part, whole)} %)" if whole else ""


def table(found: Findings, page: Page, top: int | None) -> None:
    """Writes the findings of each model to the page. top: folded findings of one code that are shown."""
    for model in found.models:
        page.line((safe(model.model), "bold"), f"  {counted(model.findings)}")
        shares = Shares(model)
        if model.assumed and any(shares.text([finding]) for finding in model.findings):
            page.line((f"  costs at {assumptions(model.assumed)}", "dim"))
        for first, times, work, lines in _codes(model, shares, top):
            page.line()
            title = f"  {safe(first.code, 20)} {safe(first.name, 60)}{f'  {times}' if times else ''}"
            page.line(
                (f"  {first.severity}", _COLORS[first.severity]), (title, "bold"), f"  {work}" if work else ""
            )
            if first.fix:
                page.line((f"    fix: {safe(first.fix, _SENTENCE)}", "dim"))
            for line, _ in lines:
                page.line(f"    {line}")
        if model.findings:
            page.line()
            page.line((f"  {counted(model.findings)}{_saving(model, shares)}", "bold"))
            if offer := offered(model):
                page.line(f"  {offer}")
            page.line()
    if len(found.models) > 1:
        page.line((conclusion(found.models), "bold"))


def markdown(found: Findings, top: int | None) -> Iterator[tuple[str, int]]:
    """The same for a review: lines of Markdown, each with the number of findings that it stands for."""
    for model in found.models:
        shares = Shares(model)
        heads = f"\n### {escaped(model.model)}: {counted(model.findings)}{_saving(model, shares)}\n"
        if model.assumed and any(shares.text([finding]) for finding in model.findings):
            heads += f"\nCosts at {escaped(assumptions(model.assumed))}.\n"
        for first, times, work, lines in _codes(model, shares, top):
            name = f"{safe(first.code, 20)} {safe(first.name, 60)}{f' {times}' if times else ''}"
            heads += f"\n**{first.severity} {escaped(name)}**{f' {escaped(work)}' if work else ''}"
            heads += f"  \nFix: {escaped(safe(first.fix, _SENTENCE))}.\n\n" if first.fix else "\n\n"
            for line, count in lines:
                yield f"{heads}- {escaped(line)}\n", count
                heads = ""


def _codes(
    model: ModelFindings, shares: Shares, top: int | None
) -> Iterator[tuple[Finding, str, str, list[tuple[str, int]]]]:
    """By code: its first finding, `x6`, what all cost together, and lines with the findings that each stands for."""
    for findings in _ranked(model, shares):
        folds = sorted(folded(findings), key=lambda fold: -shares.share(fold.findings))
        lines = [(_line(fold, folds, shares), len(fold.findings)) for fold in folds[:top]]
        rest = len(findings) - sum(count for _, count in lines)
        if rest:
            lines.append((f"… and {rest:,} more of {safe(findings[0].code, 20)}", rest))
        yield findings[0], f"x{len(findings):,}" * (len(findings) > 1), shares.text(findings), lines


def _ranked(model: ModelFindings, shares: Shares) -> list[list[Finding]]:
    """The findings by code and fix, the most severe first, then the most expensive."""
    by_code: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in model.findings:
        by_code.setdefault((finding.code, finding.severity, finding.fix), []).append(finding)
    return sorted(
        by_code.values(), key=lambda each: (SEVERITIES.index(each[0].severity), -shares.share(each))
    )


def _line(fold: FindingFold, folds: Sequence[FindingFold], shares: Shares) -> str:
    """The place of a fold, what is found there, and what it costs where that is not what all of them cost."""
    place = f"{fold.place}: " if fold.place else ""
    costs = shares.text(fold.findings) if len(folds) > 1 else ""
    return f"{place}{safe(fold.findings[0].message, _SENTENCE)}{f'  {costs}' if costs else ''}"


def _saving(model: ModelFindings, shares: Shares) -> str:
    """What mending everything saves at most: findings may be about the same work."""
    text = shares.text(model.findings)
    return f"; together at most {text}" if text else ""


def offered(model: ModelFindings) -> str:
    """`graphflops audit model.onnx --fix` mends 3 findings, 2 more with --unsafe-fixes; "" for nothing to mend."""
    kinds = [finding.applicability for finding in model.findings]
    if not any(kinds):
        return ""
    unsafe = f", {kinds.count('unsafe'):,} more with --unsafe-fixes" if "unsafe" in kinds else ""
    command = f"`graphflops audit {safe(model.model)} --fix`"
    return f"{command} mends {count_of(kinds.count('safe'), 'finding')}{unsafe}"


def statistics(found: Findings) -> TextTable:
    """A line for each code: how often it was found, in how many models, and what it costs together."""
    rows: dict[tuple[str, str, str], list[tuple[int, int, int]]] = {}
    for model in found.models:
        shares = Shares(model)
        codes = dict.fromkeys((f.severity, f.code, f.name) for f in model.findings)
        for key in codes:
            members = [f for f in model.findings if (f.severity, f.code, f.name) == key]
            flops, moved = shares.sums(members)
            rows.setdefault(key, []).append((len(members), flops or 0, (moved or 0) + shares.stored(members)))
    entries = []
    for (severity, code, name), counts in rows.items():
        times, flops, moved = (sum(column) for column in zip(*counts, strict=True))
        cells = (severity, safe(code, 20), safe(name, 60), f"{times:,}", count_of(len(counts), "model"))
        entries.append((severity, -times, Entry((*cells, number(flops), memory(moved)))))
    entries.sort(key=lambda entry: (SEVERITIES.index(entry[0]), entry[1]))
    heads = ("severity", "code", "name", "findings", "in", "FLOPs", "bytes")
    return TextTable(heads, [entry for _, _, entry in entries], 3)
