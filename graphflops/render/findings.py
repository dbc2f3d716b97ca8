"""Findings as text, and what was fixed: for a terminal, a review, and programs. SARIF has a file of its own."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import msgspec

from graphflops.base.units import measured, memory, number, percent
from graphflops.dims import evaluate
from graphflops.render import formats
from graphflops.render.brief import conclusion, counted, state
from graphflops.render.json import inert
from graphflops.render.markdown import drawn, escaped
from graphflops.render.table import Page
from graphflops.render.tables import Entry, TextTable
from graphflops.render.text import Numbers, assumptions, count_of, safe
from graphflops.report.findings import SEVERITIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from graphflops.dims import Dim
    from graphflops.onnx_fix.fix import Fixed, Saving
    from graphflops.report.findings import Finding, Findings, LimitResult, ModelFindings, Severity


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
    page.line(
        f"{f'written: {safe(written)}; ' if written else ''}left: {counted(found.after.findings)}{more}"
    )
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
    parts = (
        f"{number(flops)} FLOPs" if flops else "",
        f"{memory(moved)} moved in a run" if moved else "",
        f"{memory(stored)} of weights"
        if stored > 0
        else f"{memory(-stored)} more of weights"
        if stored
        else "",
    )
    return ", ".join(filter(None, parts)) or "nothing"


_SECOND = 10**9  # nanoseconds, in which times are limited
_FORMULA = 60  # characters of a formula in the middle of a line
_SENTENCE = 1_000  # characters of a message shown
_MARKS = {"within": "ok", "over": "OVER", "unknown": "?"}
_COLORS: dict[Severity, str] = {"error": "red", "warning": "yellow", "note": "cyan"}


def table(
    found: Findings,
    *,
    top: int | None = None,
    statistics: bool = False,
    width: int = 120,
    color: bool = False,
) -> str:
    """Each finding in a few lines, the most severe first; models without findings in one line.

    top: findings of one code shown for one model; the others are counted. statistics: a line for each code instead.
    """
    from graphflops.render import audit
    from graphflops.render.table import Page

    page = Page(width, color)
    if statistics:
        page.table(audit.statistics(found))
        page.line((f"  {conclusion(found.models)}", "bold"))
        return page.text()
    if found.command == "audit":
        audit.table(found, page, top or found.per_code)
        return page.text()
    for model in found.models:
        _model(page, model, top or found.per_code)
    if len(found.models) > 1:
        page.line((conclusion(found.models), "bold"))
    return page.text()


def _model(page: Page, model: ModelFindings, top: int | None) -> None:
    page.line((safe(model.model), "bold"), f"  {state(model)}")
    if model.assumed and any(worth(finding, model) for finding in model.findings):
        page.line((f"  costs at {assumptions(model.assumed)}", "dim"))
    if model.limits:
        page.table(limit_table(model.limits))
    kept, rest = _most(model.findings, top)
    for finding in kept:
        place = where(finding)
        page.line()
        page.line(
            (f"  {finding.severity}", _COLORS[finding.severity]),
            (f"  {safe(finding.code, 20)} {safe(finding.name, 60)}", "bold"),
            f"  {place}" if place else "",
        )
        page.line(f"    {safe(finding.message, _SENTENCE)}")
        work = worth(finding, model)
        if work:
            page.line(f"    costs {work}")
        if finding.fix:
            page.line((f"    fix: {safe(finding.fix, _SENTENCE)}", "dim"))
    for code, more in rest.items():
        page.line()
        page.line(f"  … and {more:,} more of {safe(code, 20)}")
    if model.findings or model.limits:
        page.line()


def markdown(found: Findings, *, top: int | None = None, limit: int | None = None) -> str:
    """How many there are, and for each model its limits and its findings; past `limit` characters these are only counted.

    top: folded findings of one code of an audit that are shown; the others are counted.
    """
    from graphflops.render import audit

    heads = f"**{conclusion(found.models)}**\n"
    room = None if limit is None else limit - len(heads)
    lines = (
        audit.markdown(found, top or found.per_code) if found.command == "audit" else _sections(found.models)
    )
    return heads + fitted(list(lines), room)


def json(found: Findings) -> str:
    """`{"models": [{"model", "findings": [...]}]}`; a cost is a number, `{"value", "formula"}`, or null where not known."""
    models = [
        {
            "model": safe(model.model, 10_000),
            "findings": [_wire(finding, model) for finding in _sorted(model.findings)],
            **({"limits": [*map(_limit_wire, model.limits)]} if found.command == "check" else {}),
        }
        for model in found.models
    ]
    return inert(msgspec.json.encode({"schema": 1, "models": models}))


def fitted(lines: Sequence[tuple[str, int]], limit: int | None) -> str:
    """As many lines as fit in `limit` characters, and the findings in the others. lines: each with its findings."""
    if limit is None or sum(len(line) for line, _ in lines) <= limit:
        return "".join(line for line, _ in lines)
    room = limit - len(_rest(sum(findings for _, findings in lines)))
    kept = 0
    for line, _ in lines:
        if len(line) > room:
            break
        room -= len(line)
        kept += 1
    rest = sum(findings for _, findings in lines[kept:])
    return "".join(line for line, _ in lines[:kept]) + _rest(rest)


def _rest(findings: int) -> str:
    return f"\n… and {count_of(findings, 'more finding')}.\n"


def limit_table(limits: Sequence[LimitResult]) -> TextTable:
    """Every limit: whether it holds, what was measured, what is allowed, and the share of it that is used."""
    entries = []
    for limit in limits:
        of = f"{limit.quantity} of {safe(limit.module, 80)}" if limit.module else limit.quantity
        used = None if limit.unit == "%" else limit.used
        share = "" if used is None else f"{percent(used.numerator, used.denominator)} %"
        cells = (_MARKS[limit.verdict], of, _amount(limit.measured, limit), _amount(limit.most, limit), share)
        entries.append(Entry(cells, alarming=limit.verdict != "within"))
    return TextTable(("", "limit", "measured", "allowed", "used"), entries, 2)


def _amount(count: int | None, limit: LimitResult) -> str:
    if count is None:
        return "?"
    return measured(limit.quantity, count, limit.unit)


def where(finding: Finding) -> str:
    """Where in the model it is: its module, else its call, the source line, and its neighbours."""
    place = safe(finding.module, 80) or safe(finding.node, 80)
    source = safe(finding.source, 80)
    between = f"between {safe(finding.between, 120)}" if finding.between else ""
    return " ".join(filter(None, (place, f"({source})" if place and source else source, between)))


def worth(finding: Finding, model: ModelFindings) -> str:
    """What it costs in one run: `3.1 M FLOPs, 1.2 MB`; "" where nothing."""
    numbers = Numbers(lambda quantity: evaluate(quantity, model.values), _FORMULA, model.names)
    flops, moved = finding.flops, finding.bytes
    parts = [
        "" if flops == 0 else "FLOPs not known" if flops is None else f"{numbers.count(flops)} FLOPs",
        "" if moved == 0 else "bytes not known" if moved is None else numbers.memory(moved),
        f"{numbers.memory(finding.stored)} stored" if finding.stored > 0 else "",
    ]
    return ", ".join(part for part in parts if part)


def _sorted(findings: Iterable[Finding]) -> list[Finding]:
    """The most severe first, else in the order found."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def _most(findings: Iterable[Finding], top: int | None) -> tuple[list[Finding], dict[str, int]]:
    """At most `top` of each code, and how many more there are by code."""
    seen: Counter[str] = Counter()
    kept = []
    for finding in _sorted(findings):
        seen[finding.code] += 1
        if top is None or seen[finding.code] <= top:
            kept.append(finding)
    return kept, {code: n - top for code, n in seen.items() if top is not None and n > top}


def _sections(found: Sequence[ModelFindings]) -> Iterator[tuple[str, int]]:
    """A line of Markdown for each finding; a model's heading and limits come with its first."""
    for model in found:
        costs = any(worth(finding, model) for finding in model.findings)
        names = ["", "what", "where", *(["costs"] if costs else []), "fix"]
        heads = f"\n### {escaped(model.model)}: {state(model)}\n\n"
        if model.limits:
            yield f"{heads}{drawn(limit_table(model.limits))}", 0
            heads = "\n"
        if costs and model.assumed:
            heads += f"Costs at {escaped(assumptions(model.assumed))}.\n\n"
        heads += f"| {' | '.join(names)} |\n|{' --- |' * len(names)}\n"
        for finding in _sorted(model.findings):
            cells = [
                f"{finding.severity} {safe(finding.code, 20)}",
                safe(finding.message, _SENTENCE),
                where(finding),
                *([worth(finding, model)] if costs else []),
                safe(finding.fix, _SENTENCE),
            ]
            yield f"{heads}| {' | '.join(map(escaped, cells))} |\n", 1
            heads = ""


def _wire(finding: Finding, model: ModelFindings) -> dict[str, Any]:
    facts = {field.name: getattr(finding, field.name) for field in fields(finding)}
    return {
        **{name: safe(text, 10_000) for name, text in facts.items() if isinstance(text, str)},
        "flops": _quantity(finding.flops, model),
        "bytes": _quantity(finding.bytes, model),
        "stored": finding.stored,
        "seconds": finding.seconds,
    }


def _limit_wire(limit: LimitResult) -> dict[str, Any]:
    return {
        "quantity": safe(limit.quantity, 10_000),
        "module": safe(limit.module, 10_000),
        "measured": _exact(limit.measured, limit),
        "limit": _exact(limit.most, limit),
        "used": None if limit.used is None else round(float(limit.used), 6),
        "verdict": limit.verdict,
    }


def _exact(count: int | None, limit: LimitResult) -> float | None:
    """An amount for programs; a time in seconds."""
    return count / _SECOND if count is not None and limit.unit == "ns" else count


def _quantity(quantity: Dim | None, model: ModelFindings) -> Any:
    if quantity is None or isinstance(quantity, int):
        return quantity
    return {"value": evaluate(quantity, model.values), "formula": str(quantity)}
