"""A report as text for a terminal or a pipe."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from graphflops.cost import CONVENTIONS
from graphflops.render import summary
from graphflops.render.ledger import Group, Ledger, traffic
from graphflops.render.text import elided, number, safe, short_type, shortened
from graphflops.render.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

    from graphflops.report import Grouping, Report

_OPERATORS = 8  # lines of the table of operators under the tree
_LINES = 25  # lines of a table that was asked for
_MARGIN = 2
_GAP = 2
_NARROWEST = 12  # a column of names is not made narrower than this


class Column(NamedTuple):
    """A column of a table; one of names is elided where the width does not suffice, one of figures never."""

    head: str
    names: bool = False


class Entry(NamedTuple):
    """A line of a table; the first cell is `level` steps indented."""

    cells: Sequence[str]
    level: int = 0
    style: str = ""


def table(
    report: Report,
    *,
    by: Grouping | None = None,
    depth: int | None = None,
    top: int | None = None,
    width: int = 120,
    color: bool = False,
) -> str:
    """What a reader sees first: totals, sizes and what is unknown, then where the work is.

    by: only the tree of modules, only operators, or only source lines; None shows the tree and the top operators.
    depth: levels of the tree; None shows as many as fit a screen.
    top: lines of a table, or lines under one module; what does not fit is one line together.
    """
    ledger = Ledger(report)
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
        page.line(("  " + fact.label.ljust(room), "bold"), (fact.text, style), gap, (beside, "" if gap == "" else "dim"))
    steps = summary.phases(report, ledger.numbers)
    if steps:
        page.line()
        page.table([Column(head, not head) for head in summary.PHASE_HEADS], [Entry(step) for step in steps])
    if by in (None, "module"):
        page.line()
        page.table(*_modules(report, ledger, depth, top))
    if by in (None, "op"):
        page.line()
        most = top or (_OPERATORS if by is None else _LINES)
        page.table(*_groups("operator", ledger, ledger.groups(lambda row: row.op), most, idle=by is not None))
    if by == "source":
        page.line()
        page.table(*_groups("source", ledger, ledger.groups(lambda row: row.source), top or _LINES, idle=True))
    problems = summary.diagnostics(report)
    if problems:
        page.line()
        for problem in problems:
            page.line((f"  {problem}", "yellow"))
    page.line()
    page.line((f"  {CONVENTIONS['flops']}; bytes: {CONVENTIONS['bytes']}", "dim"))
    return page.text()


def listing(heads: Sequence[str], rows: Iterable[Sequence[str]], *, width: int = 120, color: bool = False) -> str:
    """Any table of names, as text."""
    page = Page(width, color)
    page.table([Column(head, True) for head in heads], [Entry([safe(cell) for cell in row]) for row in rows])
    return page.text()


class Page:
    """Text under way: lines and tables, plain or in colour."""

    def __init__(self, width: int, color: bool) -> None:
        self.width = max(width, 40)
        self.color = color
        self.file = io.StringIO()
        self.console = Console(
            file=self.file,
            width=self.width,
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

    def table(self, columns: Sequence[Column], entries: Sequence[Entry]) -> None:
        """A table; columns without any content are left out."""
        used = [i for i, column in enumerate(columns) if column.head or any(entry.cells[i] for entry in entries)]
        columns = [columns[index] for index in used]
        rows = [[entry.cells[index] for index in used] for entry in entries]
        rows = [["  " * entry.level + row[0], *row[1:]] for entry, row in zip(entries, rows)]
        widths = _widths(columns, rows, self.width - _MARGIN)
        drawn = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold", show_edge=False)
        for column, room in zip(columns, widths):
            drawn.add_column(
                Text(column.head),
                justify="left" if column.names else "right",
                no_wrap=True,
                overflow="ellipsis",
                width=room,
            )
        for entry, row in zip(entries, rows):
            cells = [_fitted(cell, room) for cell, room in zip(row, widths)]
            drawn.add_row(*(Text(cell) for cell in cells), style=entry.style or None)
        self.print(Padding(drawn, (0, 0, 0, _MARGIN)), _MARGIN + sum(widths) + _GAP * len(widths))

    def print(self, what: RenderableType, width: int) -> None:
        """Draw at least so wide: a line too long for the terminal is better than a figure cut off."""
        self.console.print(what, width=max(width, self.width))

    def text(self) -> str:
        """Everything so far, without blanks at line ends."""
        return "\n".join(line.rstrip() for line in self.file.getvalue().splitlines()) + "\n"


def _padded(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    room = max((len(first) for first, _ in pairs), default=0)
    return [(first.ljust(room), second) for first, second in pairs]


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Room for each column: figures get what they need, names share what is left."""
    needs = [
        max([len(column.head), *(len(row[index]) for row in rows)], default=0) for index, column in enumerate(columns)
    ]
    spare = width - sum(needs) - _GAP * (len(needs) - 1)
    for index in sorted((i for i, column in enumerate(columns) if column.names), key=lambda i: -needs[i]):
        if spare < 0:
            cut = min(-spare, max(needs[index] - max(_NARROWEST, needs[index] // 2), 0))
            needs[index] -= cut
            spare += cut
    return needs


def _fitted(cell: str, room: int) -> str:
    """A cell that fits, its indent kept."""
    if len(cell) <= room:
        return cell
    name = cell.lstrip(" ")
    indent = min(len(cell) - len(name), room // 2)
    return " " * indent + elided(name, room - indent)


def _modules(
    report: Report, ledger: Ledger, depth: int | None, top: int | None
) -> tuple[list[Column], list[Entry]]:
    lines = Tree(report, ledger).lines(depth, top)
    whole = lines[0].group
    entries = [
        Entry(
            [
                safe(line.label),
                safe(short_type(line.type)) if line.level else "",
                *_work(line.group, whole, ledger),
                number(line.parameters) if line.parameters else "",
                ledger.numbers.memory(traffic(line.group.cost)),
            ],
            line.level,
            "red" if line.group.unknown else "",
        )
        for line in lines
    ]
    heads = [Column("module", True), Column("type", True), *_work_heads(ledger), Column("params"), Column("bytes")]
    return heads, entries


def _groups(
    head: str, ledger: Ledger, groups: dict[str, Group], most: int, *, idle: bool
) -> tuple[list[Column], list[Entry]]:
    """Groups that work, in order; those that cost nothing only where `idle`."""
    whole = ledger.rest(groups.values())
    worth = {name: group for name, group in groups.items() if idle or group.unknown or group.cost}
    unknown = [name for name, group in worth.items() if group.unknown]
    names = list(worth)[:most]
    names += [name for name in unknown[:most] if name not in names]
    chosen = [(safe(name) or "(no source line)", groups[name]) for name in names]
    rest = [group for name, group in worth.items() if name not in names]
    if rest:
        chosen.append((f"… {len(rest):,} more", ledger.rest(rest)))
    entries = [
        Entry(
            [
                name,
                f"{group.calls:,}",
                *_work(group, whole, ledger),
                ledger.numbers.count(group.cost.vector_flops),
                ledger.numbers.memory(traffic(group.cost)),
            ],
            style="red" if group.unknown else "",
        )
        for name, group in chosen
    ]
    heads = [Column(head, True), Column("calls"), *_work_heads(ledger), Column("vector"), Column("bytes")]
    return heads, entries


def _work_heads(ledger: Ledger) -> list[Column]:
    return [Column(head) for head in (("forward", "backward", "%") if ledger.phases else ("FLOPs", "%"))]


def _work(group: Group, whole: Group, ledger: Ledger) -> list[str]:
    """FLOPs, of each phase where there are two, and the share of the whole."""
    numbers = ledger.numbers
    costs = (group.forward, group.backward) if ledger.phases else (group.forward,)
    least = ">= " if group.unknown else ""
    nothing = group.unknown == group.calls or bool(least) and not group.cost
    figures = ["unknown" if nothing else least + numbers.count(cost.matrix_flops) for cost in costs]
    share = "" if nothing else numbers.share(group.cost.matrix_flops, whole.cost.matrix_flops)
    return [*figures, share]
