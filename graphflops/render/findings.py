"""Findings by code, the gravest and most expensive first, for people and programs; what `--fix` changed, with its proof."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from graphflops.base.units import in_parentheses, measured, memory, number, numbered, percent, unnumbered
from graphflops.dims import Dim, evaluate, total
from graphflops.render import formats
from graphflops.render.document import drawn, escaped, fitted, quantity
from graphflops.render.html.fragment import escaped as html, table as html_table
from graphflops.render.summary import conclusion, counted, state
from graphflops.render.table import Page
from graphflops.render.text import Entry, TextTable, assumptions, count_of, inert, safe
from graphflops.report.findings import SEVERITIES, Finding, Findings, LimitResult, ModelFindings
from graphflops.tensor import grouped

if TYPE_CHECKING:
    from graphflops.onnx_fix.fix import Fixed, Saving

_SECOND = 10**9  # nanoseconds, in which times are limited
_SENTENCE = 1_000  # characters of a message shown
_MARKS = {"within": "ok", "over": "OVER", "unknown": "?"}
_COLORS = {"error": "red", "warning": "yellow", "note": "cyan"}


Fold = tuple[Finding, ...]  # findings of one code whose places differ by numbers only


def _place(found: Fold) -> str:
    """`layers.0-35.self_attn (x36)`; the source line of one that stands alone, and the neighbours all have."""
    first = found[0]
    label = safe(numbered([finding.module or finding.node for finding in found]), 120)
    source = safe(first.source, 80)
    where = f"{label} ({source})" if label and source else label or source
    times = f"(x{len(found):,})" if len(found) > 1 else ""
    between = [finding.between for finding in found]
    is_one = first.between and len({*map(unnumbered, between)}) == 1
    beside = f"between {safe(numbered(between), 120)}" if is_one else ""
    return " ".join(filter(None, (where, times, beside)))


def folded(findings: Iterable[Finding]) -> list[Fold]:
    """Findings whose places differ only in numbers, together; one about time is about all such calls already."""

    def key(one: Finding) -> tuple[str, ...]:
        own = one.message if one.seconds else ""
        return one.code, one.severity, one.op, unnumbered(one.module or one.node), one.source, own

    return [*map(tuple, grouped((key(finding), finding) for finding in findings).values())]


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
        return flops, self.value(total(finding.bytes or 0 for finding in findings))

    def stored(self, findings: Sequence[Finding]) -> int:
        return max(sum(finding.stored for finding in findings), 0)

    def text(self, findings: Sequence[Finding]) -> str:
        """`3.1 M FLOPs (2.0 % of all), 1.2 MB (0.4 % of all)`; "" where nothing is known to be wasted."""
        flops, moved = (
            part if part is None or not whole else min(part, whole)  # findings may be about the same work
            for part, whole in zip(self.sums(findings), (self.flops, self.bytes), strict=True)
        )
        costs = {"FLOPs": [one.flops for one in findings], "bytes": [one.bytes for one in findings]}
        unknown = [name for name, each in costs.items() if None in each]
        parts = [
            f"{number(flops)} FLOPs{in_parentheses(flops, self.flops)}" if flops else "",
            f"{memory(moved)}{in_parentheses(moved, self.bytes)}" if moved else "",
            f"{memory(stored)} stored" if (stored := self.stored(findings)) else "",
            "not known at the sizes left open" if flops is None or moved is None else "",
            f"{' and '.join(unknown)} not known" if unknown else "",
        ]
        return ", ".join(part for part in parts if part)


class _Code(NamedTuple):
    severity: str
    name: str
    times: str  # `x6` of several
    work: str  # what all cost together
    fix: str
    lines: list[tuple[str, int]]  # each with the number of findings that it stands for


class _Section:
    """The text about one model. saving: the most that all fixes save, since findings may be about the same work."""

    def __init__(self, model: ModelFindings, found: Findings, top: int | None) -> None:
        shares = Shares(model)
        self.model, self.state = model, state(model)
        text = shares.text(model.findings)
        self.saving = f"; together at most {text}" if text else ""
        is_told = model.assumed and any(shares.text([finding]) for finding in model.findings)
        self.at = f"costs at {assumptions(model.assumed)}" if is_told else ""
        self.limits = [limit_table(model.limits)] if model.limits else []
        is_audit = found.command == "audit"
        by_code = grouped(((one.code, one.severity, one.fix), one) for one in model.findings)
        rank = SEVERITIES.index
        ranked = sorted(by_code.values(), key=lambda each: (rank(each[0].severity), -shares.share(each)))
        self.codes = [_code(one, shares, top or found.per_code, is_audit) for one in ranked]


def _code(findings: Sequence[Finding], shares: Shares, top: int | None, is_audit: bool) -> _Code:
    """is_audit: whether equal findings of layers are joined; findings about limits of a budget are not."""
    first = findings[0]
    folds = folded(findings) if is_audit else [(finding,) for finding in findings]
    folds.sort(key=lambda fold: -shares.share(fold))
    lines = []
    for fold in folds[:top]:
        place = f"{place}: " if (place := _place(fold)) else ""
        costs = shares.text(fold) if len(folds) > 1 else ""  # where that is not what all of them cost
        message = safe(fold[0].message, _SENTENCE)
        lines.append((f"{place}{message}{f'  {costs}' if costs else ''}", len(fold)))
    rest = len(findings) - sum(count for _, count in lines)
    if rest:
        lines.append((f"… and {rest:,} more of {safe(first.code, 20)}", rest))
    name = f"{safe(first.code, 20)} {safe(first.name, 60)}"
    times = f"x{len(findings):,}" * (len(findings) > 1)
    return _Code(first.severity, name, times, shares.text(findings), safe(first.fix, _SENTENCE), lines)


def table(
    found: Findings, *, top: int | None = None, statistics: bool = False, width: int = 120,
    color: bool = False,
) -> str:  # fmt: skip
    """The findings of each model by code. top: lines of one code. statistics: a line for each code instead."""
    page = Page(width, color)
    if statistics:
        page.table(_statistics(found))
        page.line((f"  {conclusion(found.models)}", "bold"))
        return page.text()
    for section in (_Section(model, found, top) for model in found.models):
        _written(page, section)
    if len(found.models) > 1:
        page.line((conclusion(found.models), "bold"))
    return page.text()


def _written(page: Page, section: _Section) -> None:
    model = section.model
    page.line((safe(model.model), "bold"), f"  {section.state}")
    if section.at:
        page.line((f"  {section.at}", "dim"))
    for grid in section.limits:
        page.table(grid)
    for code in section.codes:
        page.line()
        title = "".join(f"  {text}" for text in (code.name, code.times) if text)
        severity, work = (f"  {code.severity}", _COLORS[code.severity]), f"  {code.work}" if code.work else ""
        page.line(severity, (title, "bold"), work)
        if code.fix:
            page.line((f"    fix: {code.fix}", "dim"))
        for line, _ in code.lines:
            page.line(f"    {line}")
    if model.findings:
        page.line()
        page.line((f"  {counted(model.findings)}{section.saving}", "bold"))
        if offer := offered(model):
            page.line(f"  {offer}")
    if model.findings or model.limits:
        page.line()


def markdown(found: Findings, *, top: int | None = None, limit: int | None = None) -> str:
    """How many there are, and the same for each model; past `limit` characters findings are only counted."""
    heads = f"**{conclusion(found.models)}**\n"
    sections = (_Section(model, found, top) for model in found.models)
    lines = [line for section in sections for line in _in_markdown(section)]
    room = None if limit is None else limit - len(heads)
    return heads + fitted(lines, room, lambda rest: f"\n… and {count_of(rest, 'more finding')}.\n")


def _in_markdown(section: _Section) -> Iterator[tuple[str, int]]:
    """Lines of Markdown, each with its number of findings; a list's heading is part of its first line."""
    heads = f"\n### {escaped(section.model.model)}: {section.state}{section.saving}\n"
    if section.at:
        heads += f"\n{escaped(section.at.capitalize())}.\n"
    for grid in section.limits:
        yield f"{heads}\n{drawn(grid)}", 0
        heads = ""
    for code in section.codes:
        title = " ".join(filter(None, (code.name, code.times)))
        heads += f"\n**{code.severity} {escaped(title)}**{f' {escaped(code.work)}' if code.work else ''}"
        heads += f"  \nFix: {escaped(code.fix)}.\n\n" if code.fix else "\n\n"
        for line, count in code.lines:
            yield f"{heads}- {escaped(line)}\n", count
            heads = ""


def fragment(found: Findings) -> str:
    """The same for a notebook."""
    parts = [f"<p><b>{html(conclusion(found.models))}</b></p>"]
    for section in (_Section(model, found, None) for model in found.models):
        parts.append(f"<p><b>{html(section.model.model)}</b>: {html(section.state + section.saving)}</p>")
        parts += map(html_table, section.limits)
        for code in section.codes:
            about = " ".join(filter(None, (code.severity, code.name, code.times, code.work)))
            fix = f"<br>Fix: {html(code.fix)}" if code.fix else ""
            lines = "".join(f"<li>{html(line)}</li>" for line, _ in code.lines)
            parts.append(f"<p>{html(about)}{fix}</p><ul>{lines}</ul>")
    return f"<div>{''.join(parts)}</div>"


def json(found: Findings) -> str:
    """`{"models": [{"model", "findings": [...]}]}`; a cost is a number, `{"value", "formula"}`, or null where not known."""
    models = [
        {
            "model": safe(model.model, 10_000),
            "findings": [
                _wire(finding, model)
                for finding in sorted(model.findings, key=lambda one: SEVERITIES.index(one.severity))
            ],
            **({"limits": [*map(_limit_wire, model.limits)]} if found.command == "check" else {}),
        }
        for model in found.models
    ]
    return inert(msgspec.json.encode({"schema": 1, "models": models}))


def limit_table(limits: Sequence[LimitResult]) -> TextTable:
    """Every limit: whether it holds, what was measured, what is allowed, and the share of it that is used."""
    entries = []
    for limit in limits:
        of = f"{limit.quantity} of {safe(limit.module, 80)}" if limit.module else limit.quantity
        used = None if limit.unit == "%" else limit.used
        share = "" if used is None else f"{percent(used.numerator, used.denominator)} %"
        counts = (limit.measured, limit.most)
        said = ("?" if one is None else measured(limit.quantity, one, limit.unit) for one in counts)
        entries.append(Entry((_MARKS[limit.verdict], of, *said, share), alarming=limit.verdict != "within"))
    return TextTable(("", "limit", "measured", "allowed", "used"), entries, 2)


def _statistics(found: Findings) -> TextTable:
    rows: dict[tuple[str, str, str], list[tuple[int, int, int]]] = {}
    for model in found.models:
        shares = Shares(model)
        by_code = grouped(((one.severity, one.code, one.name), one) for one in model.findings)
        for key, members in by_code.items():
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


def _wire(finding: Finding, model: ModelFindings) -> dict[str, Any]:
    facts = {field.name: getattr(finding, field.name) for field in fields(finding)}
    return {
        **{name: safe(text, 10_000) for name, text in facts.items() if isinstance(text, str)},
        "flops": quantity(finding.flops, model.values),
        "bytes": quantity(finding.bytes, model.values),
        "stored": finding.stored,
        "seconds": finding.seconds,
    }


def _limit_wire(limit: LimitResult) -> dict[str, Any]:
    measured, most = (
        count / _SECOND if count is not None and limit.unit == "ns" else count
        for count in (limit.measured, limit.most)
    )
    return {
        "quantity": safe(limit.quantity, 10_000),
        "module": safe(limit.module, 10_000),
        "measured": measured,
        "limit": most,
        "used": None if limit.used is None else round(float(limit.used), 6),
        "verdict": limit.verdict,
    }


_UNDONE = 8  # findings whose fix was left out that are listed


def fixes(found: Fixed, written: str, *, verbose: bool = False, width: int = 120, color: bool = False) -> str:
    """The fixes, their proof, the comparison of the two files (all of it if `verbose`), and where the new one is."""
    page = Page(width, color)
    head = f"{count_of(len(found.fixed), 'finding')} fixed" if found.fixed else "nothing fixed"
    page.line((safe(found.path), "bold"), f"  {head}")
    kinds = Counter((finding.code, finding.name, finding.applicability) for finding in found.fixed)
    for (code, name, how), times in sorted(kinds.items()):
        page.line(f"  {how}  {code} {name}{f'  x{times:,}' if times > 1 else ''}")
    for finding, why in found.undone[:_UNDONE]:
        place = safe(finding.module or finding.node, 80)
        page.line((f"  undone  {finding.code} {place}: {safe(why, 400)}", "yellow"))
    if len(found.undone) > _UNDONE:
        page.line((f"  undone  {len(found.undone) - _UNDONE:,} more", "yellow"))
    if found.comparison is not None:
        page.line(f"  {_proof(found)}")
        page.line(f"  promised {_words(found.promised)}; saved {_words(found.saved)}")
        page.line()
        screen = {"width": width, "color": color}
        text = formats.render(found.comparison, "table", verbose=verbose or None, **screen)
        page.lines += str(text).splitlines()
    unsafe = sum(finding.applicability == "unsafe" for finding in found.after.findings)
    more = f", {unsafe:,} of them for --unsafe-fixes" if unsafe else ""
    where = f"written: {safe(written)}; " if written else ""
    page.line(f"{where}left: {counted(found.after.findings)}{more}")
    return page.text()


def _proof(found: Fixed) -> str:
    if not found.runs:
        return f"NOT PROVEN: {safe(found.unproven, 400)}"
    sizes = dict.fromkeys(", ".join(f"{k}={v}" for k, v in run.dims.items()) for run in found.runs)
    at = "; ".join(filter(None, map(safe, sizes)))
    most = f"differ by at most {found.difference:.1g} of their largest number"
    how = most if found.difference else "are equal bit for bit"
    return f"proven: in {len(found.runs)} runs of onnxruntime the results {how}{f' ({at})' if at else ''}"


def _words(saving: Saving) -> str:
    flops, moved, stored = saving
    more = " more" if stored < 0 else ""
    parts = (
        f"{number(flops)} FLOPs" if flops else "",
        f"{memory(moved)} moved in a run" if moved else "",
        f"{memory(abs(stored))}{more} of weights" if stored else "",
    )
    return ", ".join(filter(None, parts)) or "nothing"


def offered(model: ModelFindings) -> str:
    """`graphflops audit model.onnx --fix` mends 3 findings, 2 more with --unsafe-fixes; "" for nothing to mend."""
    kinds = [finding.applicability for finding in model.findings]
    if not any(kinds):
        return ""
    unsafe = f", {kinds.count('unsafe'):,} more with --unsafe-fixes" if "unsafe" in kinds else ""
    command = f"`graphflops audit {safe(model.model)} --fix`"
    return f"{command} mends {count_of(kinds.count('safe'), 'finding')}{unsafe}"
