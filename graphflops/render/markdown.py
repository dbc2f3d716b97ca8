"""A report as GitHub-flavoured Markdown, for a pull request or a wiki."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from graphflops.cost import CONVENTIONS
from graphflops.render import summary
from graphflops.render.ledger import Group, Ledger, traffic
from graphflops.render.text import number, safe, short_type, shortened
from graphflops.render.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from graphflops.report import Grouping, Report

_OPERATORS = 8
_LINES = 25
_FORMULA = 200
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#|~!])")
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;"}


def markdown(report: Report, *, by: Grouping | None = None, depth: int | None = None, top: int | None = None) -> str:
    """Totals, where the work is, what is unknown; the same choices as in the table for a terminal."""
    ledger = Ledger(report)
    parts = [f"## {escaped(summary.title(report))}\n\n{escaped(summary.headline(report))}\n"]
    sizes = [list(size) for size in summary.sizes(report)]
    if sizes:
        parts.append(_grid(("size", "where"), sizes))
    facts = [[fact.label, fact.text, shortened(fact.formula, _FORMULA)] for fact in summary.facts(report, ledger)]
    parts.append(_grid(("total", "", "formula"), facts))
    steps = summary.phases(report, ledger.numbers)
    if steps:
        parts.append(_grid(("training step", *summary.PHASE_HEADS[1:]), steps, numbers=1))
    if by in (None, "module"):
        parts.append(_modules(report, ledger, depth, top))
    if by in (None, "op"):
        most = top or (_OPERATORS if by is None else _LINES)
        parts.append(_groups("operator", ledger, ledger.groups(lambda row: row.op), most, idle=by is not None))
    if by == "source":
        parts.append(_groups("source", ledger, ledger.groups(lambda row: row.source), top or _LINES, idle=True))
    if report.coverage.unknown_ops:
        unknown = [[safe(op), f"{times:,}"] for op, times in report.coverage.unknown_ops.items()]
        parts.append(_grid(("unknown operator", "calls"), unknown, numbers=1))
    problems = [f"- {escaped(problem)}" for problem in summary.diagnostics(report)]
    if problems:
        parts.append("\n".join(problems) + "\n")
    parts.append(f"{escaped(CONVENTIONS['flops'])}; bytes: {escaped(CONVENTIONS['bytes'])}\n")
    return "\n".join(parts)


def listing(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Any table of names, as Markdown."""
    return _grid(heads, [[safe(cell) for cell in row] for row in rows])


def escaped(text: str) -> str:
    """Text that Markdown shows as it is: no markup, HTML, links, mentions or line breaks come out of it."""
    text = _SPECIAL.sub(r"\\\1", safe(text, 10_000))
    text = "".join(_HTML.get(c, c) for c in text)
    return text.replace("://", "&#58;//").replace("www.", "www&#46;")
