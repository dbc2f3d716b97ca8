"""A report as a small piece of HTML without script or style: for notebooks, and for browsers that run no script."""

from __future__ import annotations

from collections.abc import Sequence

from graphflops.render import summary
from graphflops.render.ledger import Ledger
from graphflops.render.tables import TextTable, tables
from graphflops.render.text import safe, shortened
from graphflops.report import Report

_FORMULA = 100  # characters of a formula shown
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"}


def fragment(report: Report) -> str:
    """Totals and where the work is, as tables."""
    ledger = Ledger(report, formula_width=_FORMULA)
    sizes = "".join(f"<br>{escaped(size)} {escaped(about)}" for size, about in summary.sizes(report))
    facts = "".join(
        f"<tr><th>{escaped(fact.label)}</th><td>{escaped(fact.text)}</td>"
        f"<td>{escaped(shortened(fact.formula, _FORMULA))}</td></tr>"
        for fact in summary.facts(report, ledger)
    )
    problems = "".join(f"<li>{escaped(problem)}</li>" for problem in summary.diagnostics(report))
    return (
        f"<div><p><b>{escaped(summary.title(report))}</b> {escaped(summary.headline(report))}{sizes}</p>"
        f"<table>{facts}</table>"
        f"{''.join(map(table, tables(report, ledger)))}"
        f"{f'<ul>{problems}</ul>' if problems else ''}</div>"
    )


def table(grid: TextTable) -> str:
    """A table; figures stand on the right."""
    sides = ["left" if index < grid.names else "right" for index in range(len(grid.heads))]
    heads = _cells("th", sides, grid.heads)
    rows = "".join(f"<tr>{_cells('td', sides, entry.cells, entry.level)}</tr>" for entry in grid.entries)
    title = f"<caption>{escaped(grid.title)}</caption>" if grid.title else ""
    return f"<table>{title}<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def wide(grid: TextTable, label: str) -> str:
    """A table of figures for a page, in a box that scrolls. label: of the box, for screen readers."""
    heads = "".join(f'<th scope="col" class="figure">{escaped(text)}</th>' for text in grid.heads)
    lines = ("".join(f'<td class="figure">{escaped(cell)}</td>' for cell in e.cells) for e in grid.entries)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    caption = f"<caption>{escaped(grid.title)}</caption>" if grid.title else ""
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{label}">'
        f"<table>{caption}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def escaped(text: str) -> str:
    """Text that HTML shows as it is."""
    return "".join(_ENTITIES.get(c, c) for c in safe(text, 10_000))


def _cells(tag: str, sides: Sequence[str], cells: Sequence[str], level: int = 0) -> str:
    indents = ["&emsp;" * level, *[""] * (len(cells) - 1)]
    texts = [f"{indent}{escaped(cell)}" for indent, cell in zip(indents, cells, strict=True)]
    return "".join(f'<{tag} align="{side}">{text}</{tag}>' for side, text in zip(sides, texts, strict=True))
