"""A report as GitHub-flavoured Markdown, for a pull request or a wiki."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from graphflops.cost import CONVENTIONS
from graphflops.errors import ZERO_WIDTH
from graphflops.render import summary
from graphflops.render.ledger import Ledger
from graphflops.render.tables import Entry, TextTable, tables
from graphflops.render.text import safe, shortened
from graphflops.report import Cut, Report

_FORMULA = 200  # characters of a formula shown
_SPECIAL = re.compile(r"([\\`*_\[\]|~])")
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
# What GitHub makes a mention, a reference to an issue or a link, after it has resolved character references.
_LINKED = re.compile(r"@|#(?=\d)|\bGH-(?=\d)|:(?=//)|\bwww(?=\.)", re.IGNORECASE)


def markdown(
    report: Report,
    *,
    by: Cut | None = None,
    depth: int | None = None,
    top: int | None = None,
    verbose: bool = False,
) -> str:
    """Totals, where the work is, what is unknown; the same choices as in the table for a terminal."""
    ledger = Ledger(report, formula_width=_FORMULA)
    parts = [f"## {escaped(summary.title(report))}\n\n{escaped(summary.headline(report))}\n"]
    sizes = summary.sizes(report)
    if sizes:
        parts.append(drawn(TextTable(("size", "where"), [Entry(size) for size in sizes], 2)))
    facts = [
        Entry([fact.label, re.sub(" {3,}", "; ", fact.text), shortened(fact.formula, _FORMULA)])
        for fact in summary.facts(report, ledger)
    ]
    parts.append(drawn(TextTable(("total", "", "formula"), facts, 3)))
    parts += [drawn(grid) for grid in tables(report, ledger, by, depth, top, verbose=verbose)]
    if report.coverage.unknown_ops:
        unknown = [Entry([safe(op), f"{times:,}"]) for op, times in report.coverage.unknown_ops.items()]
        parts.append(drawn(TextTable(("unknown operator", "calls"), unknown)))
    problems = [f"- {escaped(problem)}" for problem in summary.diagnostics(report)]
    if problems:
        parts.append("\n".join(problems) + "\n")
    parts.append(f"FLOPs: {escaped(CONVENTIONS['flops'])}. Bytes: {escaped(CONVENTIONS['bytes'])}.\n")
    return "\n".join(parts)


def escaped(text: str) -> str:
    """Escapes text so that Markdown shows it literally, without markup, HTML, links, mentions or line breaks."""
    text = _LINKED.sub(lambda found: f"{found[0]}{ZERO_WIDTH}", safe(text, 10_000))
    return "".join(_HTML.get(c, c) for c in _SPECIAL.sub(r"\\\1", text))


def drawn(grid: TextTable) -> str:
    """A table."""
    title = f"{escaped(grid.title)}:\n\n" if grid.title else ""
    return title + "".join(f"{line}\n" for line in rows(grid))


def rows(grid: TextTable) -> list[str]:
    """A table without its title, line by line."""
    rules = ["---" if index < grid.names else "---:" for index in range(len(grid.heads))]
    names = (entry.path or entry.cells[0] for entry in grid.entries)
    cells = ([name, *entry.cells[1:]] for name, entry in zip(names, grid.entries, strict=True))
    lines = [grid.heads, rules, *(map(escaped, line) for line in cells)]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def fitted(lines: Sequence[tuple[str, int]], limit: int | None, rest: Callable[[int], str]) -> str:
    """As many lines as fit in `limit` characters, and `rest` of the others. lines: each with what it counts for."""
    if limit is None or sum(len(line) for line, _ in lines) <= limit:
        return "".join(line for line, _ in lines)
    room = limit - len(rest(sum(count for _, count in lines)))
    kept = 0
    for line, _ in lines:
        if len(line) > room:
            break
        room -= len(line)
        kept += 1
    return "".join(line for line, _ in lines[:kept]) + rest(sum(count for _, count in lines[kept:]))
