"""A report as text for a terminal or a pipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.cost import CONVENTIONS
from graphflops.render import summary
from graphflops.render.ledger import Ledger
from graphflops.render.tables import TextTable, tables
from graphflops.render.tables import listing as cells
from graphflops.render.text import columns, elided, shortened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.render.listing import Listing
    from graphflops.report import Cut, Report

_MARGIN = 2
_GAP = 2
_NARROWEST = 12  # a column of names or formulas is not made narrower than this
# Escape sequences of terminals.
_STYLES = {"bold": "\x1b[1m", "dim": "\x1b[2m", "red": "\x1b[31m", "yellow": "\x1b[33m"}
_RESET = "\x1b[0m"


def table(
    report: Report,
    *,
    by: Cut | None = None,
    depth: int | None = None,
    top: int | None = None,
    width: int = 120,
    color: bool = False,
) -> str:
    """What a reader sees first: totals, sizes and what is unknown, then where the work is.

    by: only modules, only operators or only source lines; None is the tree of modules and the top operators.
    depth: levels of the tree; None shows as many as fit a screen.
    top: lines of a table, or lines under one module; what does not fit is one line together.
    """
    ledger = Ledger(report, formula_width=min(max((width - 60) // 2, _NARROWEST), 40))
    page = Page(width, color)
    page.line((summary.title(report), "bold"), f"  {summary.headline(report)}")
    for size, about in _padded(summary.sizes(report)):
        page.line(f"  {size}", (f"  {about}", "dim"))
    page.line()
    listed = list(summary.facts(report, ledger))
    room = max(len(fact.label) for fact in listed) + 2
    for fact in listed:
        _fact_line(page, fact, room)
    for grid in tables(report, ledger, by, depth, top):
        page.line()
        page.table(grid)
    problems = summary.diagnostics(report)
    if problems:
        page.line()
        for problem in problems:
            page.line((f"  {problem}", "yellow"))
    page.line()
    page.line((f"  FLOPs: {CONVENTIONS['flops']}", "dim"))
    page.line((f"  bytes: {CONVENTIONS['bytes']}", "dim"))
    return page.text()


def _fact_line(page: Page, fact: summary.Fact, room: int) -> None:
    """A total with its label, and its formula as far as the width allows."""
    used = _MARGIN + room + len(fact.text) + 4
    beside = shortened(fact.formula, max(page.width - used, 40)) if fact.formula else ""
    gap = "    " if fact.text and beside else ""
    text = (fact.text, "red" if fact.alarming else "")
    page.line(("  " + fact.label.ljust(room), "bold"), text, gap, (beside, "dim" if gap else ""))


def listing(listing: Listing, *, width: int = 120, color: bool = False) -> str:
    """A table of names, or of figures."""
    page = Page(width, color)
    page.table(cells(listing))
    return page.text()


class Page:
    """Builds a text of lines and tables, plain or in colour."""

    def __init__(self, width: int, color: bool) -> None:
        self.width = max(width, 40)
        self.color = color
        self.lines: list[str] = []

    def line(self, *parts: str | tuple[str, str]) -> None:
        """One line, however long; each part plain or with a style."""
        styled = [(part, "") if isinstance(part, str) else part for part in parts]
        self.lines.append("".join(self._styled(text, style) for text, style in styled))

    def table(self, grid: TextTable) -> None:
        """A table; names are elided where the width does not suffice, figures never."""
        rows = [["  " * entry.level + entry.cells[0], *entry.cells[1:]] for entry in grid.entries]
        widths = _widths(grid, rows, self.width - _MARGIN)
        self._row(grid, grid.heads, widths, "bold")
        for entry, row in zip(grid.entries, rows, strict=True):
            cells = [_fitted(cell, room) for cell, room in zip(row, widths, strict=True)]
            self._row(grid, cells, widths, "red" if entry.alarming else "")

    def _row(self, grid: TextTable, cells: Sequence[str], widths: Sequence[int], style: str) -> None:
        padded = [
            cell + " " * (room - columns(cell)) if index < grid.names else " " * (room - columns(cell)) + cell
            for index, (cell, room) in enumerate(zip(cells, widths, strict=True))
        ]
        self.lines.append(" " * _MARGIN + self._styled((" " * _GAP).join(padded).rstrip(), style))

    def _styled(self, text: str, style: str) -> str:
        return f"{_STYLES[style]}{text}{_RESET}" if self.color and style and text else text

    def text(self) -> str:
        """The text, without blanks at line ends."""
        return "\n".join(line.rstrip() for line in self.lines) + "\n"


def _padded(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    room = max((len(first) for first, _ in pairs), default=0)
    return [(first.ljust(room), second) for first, second in pairs]


def _widths(grid: TextTable, rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Room for each column: figures get what they need, names share what is left."""
    needs = [max([len(head), *(len(row[index]) for row in rows)]) for index, head in enumerate(grid.heads)]
    over = sum(needs) + _GAP * (len(needs) - 1) - width
    for spared in (2, 1_000_000):  # the last columns of names give way first, at first by half
        for index in reversed(range(grid.names)):
            cut = max(min(over, needs[index] - max(_NARROWEST, needs[index] // spared)), 0)
            needs[index] -= cut
            over -= cut
    return needs


def _fitted(cell: str, room: int) -> str:
    """A cell that fits, its indent kept."""
    if len(cell) <= room:
        return cell
    name = cell.lstrip(" ")
    indent = min(len(cell) - len(name), room // 2)
    return " " * indent + elided(name, room - indent)
