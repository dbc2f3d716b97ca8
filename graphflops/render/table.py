"""A report as text for a terminal or a pipe."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from graphflops.cost import CONVENTIONS
from graphflops.render import summary
from graphflops.render.grids import Grid, grids
from graphflops.render.grids import listing as cells
from graphflops.render.ledger import Ledger
from graphflops.render.text import elided, shortened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.render.listing import Listing
    from graphflops.report import Cut, Report

_MARGIN = 2
_GAP = 2
_NARROWEST = 12  # a column of names or formulas is not made narrower than this
_UNBOUNDED = 10_000  # what rich may use: a line too long for the terminal is better than a figure cut off


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
        style = "red" if fact.alarming else ""
        used = _MARGIN + room + len(fact.text) + 4
        beside = shortened(fact.formula, max(page.width - used, 40)) if fact.formula else ""
        gap = "    " if fact.text and beside else ""
        page.line(
            ("  " + fact.label.ljust(room), "bold"),
            (fact.text, style),
            gap,
            (beside, "" if gap == "" else "dim"),
        )
    for grid in grids(report, ledger, by, depth, top):
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


def listing(listing: Listing, *, width: int = 120, color: bool = False) -> str:
    """A table of names, or of figures."""
    page = Page(width, color)
    page.table(cells(listing))
    return page.text()


class Page:
    """Text under way: lines and tables, plain or in colour."""

    def __init__(self, width: int, color: bool) -> None:
        self.width = max(width, 40)
        self.color = color
        self.file = io.StringIO()
        self.console = Console(
            file=self.file,
            width=_UNBOUNDED,
            force_terminal=color,
            color_system="standard" if color else None,
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
            _environ={},
        )

    def line(self, *parts: str | tuple[str, str]) -> None:
        """One line, however long; each part plain or with a style."""
        self.console.print(Text.assemble(*parts, end=""), soft_wrap=True)

    def table(self, grid: Grid) -> None:
        """A table; names are elided where the width does not suffice, figures never."""
        rows = [["  " * entry.level + entry.cells[0], *entry.cells[1:]] for entry in grid.entries]
        widths = _widths(grid, rows, self.width - _MARGIN)
        drawn = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold", show_edge=False)
        for index, (head, room) in enumerate(zip(grid.heads, widths, strict=True)):
            side: Literal["left", "right"] = "left" if index < grid.names else "right"
            drawn.add_column(Text(head), justify=side, no_wrap=True, overflow="ellipsis", width=room)
        for entry, row in zip(grid.entries, rows, strict=True):
            cells = (Text(_fitted(cell, room)) for cell, room in zip(row, widths, strict=True))
            drawn.add_row(*cells, style="red" if entry.alarming else None)
        self.console.print(Padding(drawn, (0, 0, 0, _MARGIN), expand=False))

    def text(self) -> str:
        """Everything so far, without blanks at line ends."""
        return "\n".join(line.rstrip() for line in self.file.getvalue().splitlines()) + "\n"


def _padded(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    room = max((len(first) for first, _ in pairs), default=0)
    return [(first.ljust(room), second) for first, second in pairs]


def _widths(grid: Grid, rows: Sequence[Sequence[str]], width: int) -> list[int]:
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
