"""A report as text for a terminal or a pipe."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from graphflops.base.lazy import imported
from graphflops.base.record import Record
from graphflops.cost import CONVENTIONS
from graphflops.errors import elided
from graphflops.render import summary
from graphflops.render.ledger import Ledger
from graphflops.render.tables import tables
from graphflops.render.text import TextTable, columns, shortened, told_apart
from graphflops.report import Cut, Report

_MARGIN = 2
_GAP = 2
_HANG = 4  # how far the second line of a long one stands in from the first
_JOINED = 2  # columns of names that may stand in one where they are too wide: a tree and its types
_NAMES = 24  # columns that names get at the least, unless all are shorter
_STYLES = {"bold": "\x1b[1m", "dim": "\x1b[2m", "red": "\x1b[31m", "yellow": "\x1b[33m", "cyan": "\x1b[36m"}
_RESET = "\x1b[0m"
# A number, its unit and the mark of a lower bound are one word.
_WORD = re.compile(r" *(?:>= )?(?:[^ ]*\d (?:[kMGTPEZYRQ]?B?|[nµm]?s|%)(?![^ ,;:)·])[^ ]*|[^ ]+)")

Styled = tuple[str, str]  # a text and the name of its style, "" for plain
_NARROWEST, _LONGEST = 12, 1_000  # characters of a formula in a table
_BESIDE = 24  # characters of a formula beside its total; below that it stands on a line of its own


def table(
    report: Report, *, by: Cut | None = None, depth: int | None = None, top: int | None = None,
    verbose: bool = False, width: int = 120, color: bool = False,
) -> str:  # fmt: skip
    """What a reader sees first: totals, sizes, unknowns; then where the work is, chosen as in `tables`."""
    room = min(max((width - 60) // 2, _NARROWEST), _LONGEST)
    ledger = Ledger(report, formula_width=room)
    page = Page(width, color)
    page.line((summary.title(report), "bold"), f"  {summary.headline(report)}")
    sizes = summary.sizes(report)
    width_of_sizes = max((len(size) for size, _ in sizes), default=0)
    for size, about in sizes:
        page.line(f"  {size.ljust(width_of_sizes)}", (f"  {about}", "dim"))
    page.line()
    listed = list(summary.facts(report, ledger, max(room, 60)))
    room = max(len(fact.label) for fact in listed) + 2
    for fact in listed:
        _fact_line(page, fact, room)
    for grid in tables(report, ledger, by, depth, top, verbose=verbose):
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
    if report.device:
        page.line((f"  time:  {CONVENTIONS['time']}", "dim"))
        page.line((f"  profile: {imported('graphflops.render.time:profile')(report)}", "dim"))
    return page.text()


def _fact_line(page: Page, fact: summary.Fact, room: int) -> None:
    hang = _MARGIN + room
    left = page.width - hang - len(fact.text) - 4
    beside = shortened(fact.formula, left if left >= _BESIDE else page.width - hang) if fact.formula else ""
    gap = "    " if fact.text and beside else ""
    text = (fact.text, "red" if fact.alarming else "")
    page.line(("  " + fact.label.ljust(room), "bold"), text, gap, (beside, "dim" if gap else ""), hang=hang)


class Page:
    """Builds a text of lines and tables, plain or in colour. width: columns of the screen."""

    def __init__(self, width: int, color: bool) -> None:
        self.width = max(width, 40)
        self.color = color
        self.lines: list[str] = []

    def line(self, *parts: str | Styled, hang: int | None = None) -> None:
        """Adds a line of parts, each plain or with a style; a line that is too long continues below, indented by `hang`."""
        styled = [(part, "") if isinstance(part, str) else part for part in parts]
        if sum(columns(text) for text, _ in styled) <= self.width:
            self._add(styled)
            return
        text = "".join(text for text, _ in styled)
        inset = len(text) - len(text.lstrip(" ")) + _HANG if hang is None else hang
        for line in _broken(styled, self.width, inset):
            self._add(line)

    def table(self, grid: TextTable) -> None:
        """Adds a table. If the width does not suffice, long names have lines of their own, and columns continue below."""
        rows = [["  " * entry.level + entry.cells[0], *entry.cells[1:]] for entry in grid.entries]
        rows.insert(0, [*grid.heads])
        styles = ["bold", *("red" if entry.alarming else "" for entry in grid.entries)]
        needs = [max(map(columns, column)) for column in zip(*rows, strict=False)]
        if not grid.names:  # the first column, which blocks begin with, holds figures too
            for row in rows:
                row[0] = _aligned(row[0], needs[0], at_right=True)
        if grid.title:
            self.line((" " * _MARGIN + grid.title, "bold"))
        for number, block in enumerate(_blocks(rows, needs, grid.names, self.width - _MARGIN)):
            if number:
                self.line()
            for row, names, style in zip(rows, block.names_of(rows), styles, strict=True):
                cells = [_aligned(row[i], needs[i], at_right=i >= grid.names) for i in block.figures]
                self._row(block.room, names, cells, style)

    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines) + "\n"

    def _row(self, room: int, names: str, figures: Sequence[str], style: str) -> None:
        if columns(names) > room and figures:
            self._add([(" " * _MARGIN + _fitted(names, self.width - _MARGIN), style)])
            names = ""
        line = (" " * _GAP).join([_aligned(names, room), *figures]).rstrip()
        self._add([(" " * _MARGIN + _fitted(line, self.width - _MARGIN), style)])

    def _add(self, parts: Sequence[Styled]) -> None:
        texts = (
            f"{_STYLES[style]}{text}{_RESET}" if self.color and style and text else text
            for text, style in parts
        )
        self.lines.append("".join(texts))


class _Block(Record, frozen=True):
    names: Sequence[int]  # the columns of names
    name_widths: Sequence[int]  # of each, or () where they are joined
    room: int  # columns of the screen that the names take
    figures: Sequence[int]  # the other columns

    def names_of(self, rows: Sequence[Sequence[str]]) -> list[str]:
        texts = [[row[index] for row in rows] for index in self.names]
        for place, room in enumerate(self.name_widths):
            short = told_apart(texts[place], room)
            texts[place] = [_aligned(short[text], room) for text in texts[place]]
        return [(" " * _GAP).join(row).rstrip() for row in zip(*texts, strict=True)]


def _blocks(rows: Sequence[Sequence[str]], needs: Sequence[int], names: int, width: int) -> list[_Block]:
    """Columns side by side where they fit, else with names joined or shortened, else in several blocks."""
    keys = list(range(max(names, 1))) if names < len(needs) else [0]
    figures, own = list(range(len(keys), len(needs))), [needs[index] for index in keys]
    gaps = _GAP * (len(keys) - 1)
    rest = sum(needs[index] + _GAP for index in figures)
    if sum(own) + gaps + rest <= width:
        return [_Block(keys, own, sum(own) + gaps, figures)]
    if len(keys) > _JOINED:
        widths = _shared(own, width - rest - gaps)
        if max(widths) >= _NAMES // 2:
            return [_Block(keys, widths, width - rest, figures)]
        whole = _Block(keys, _shared(own, width - gaps), width, ())
        return [whole, *_continued(keys[:1], figures, needs, width)]
    joined = max(columns((" " * _GAP).join(row[index] for index in keys).rstrip()) for row in rows)
    room = min(joined, width - rest)
    if room >= min(joined, _NAMES):
        return [_Block(keys, (), room, figures)]
    return [*_continued(keys, figures, needs, width)]


def _shared(needs: Sequence[int], width: int) -> list[int]:
    """Widths of columns that have so much together: the longest are shortened to one length."""
    most = max(needs)
    while sum(min(need, most) for need in needs) > width:
        most -= 1
    return [min(need, most) for need in needs]


def _continued(
    keys: Sequence[int], figures: Sequence[int], needs: Sequence[int], width: int
) -> Iterator[_Block]:
    """Blocks that each begin with the first column; the other columns of names are figures of the first block."""
    room = min(needs[0], max(_NAMES, 2 * width // 5))
    waiting = [*keys[1:], *figures]
    while waiting:
        chosen, left = [waiting.pop(0)], width - room
        left -= needs[chosen[0]] + _GAP
        while waiting and needs[waiting[0]] + _GAP <= left:
            left -= needs[waiting[0]] + _GAP
            chosen.append(waiting.pop(0))
        yield _Block([0], (), room, chosen)


def _broken(parts: Sequence[Styled], width: int, hang: int) -> Iterator[list[Styled]]:
    """The parts in lines of `width` columns, broken between words."""
    line: list[Styled] = []
    used = 0
    blank = ""  # at the end of a part, which belongs to the next word
    for text, style in parts:
        words = _WORD.findall(text)
        if words:
            words[0], blank = blank + words[0], ""
        blank += " " * (len(text) - len(text.rstrip(" ")))
        for word in words:
            if used + columns(word) > width and used > hang:
                yield line
                line, used, word = [(" " * hang, "")], hang, word.lstrip(" ")
            if line and line[-1][1] == style:
                line[-1] = (line[-1][0] + word, style)
            else:
                line.append((word, style))
            used += columns(word)
    yield line


def _aligned(cell: str, room: int, *, at_right: bool = False) -> str:
    blank = " " * (room - columns(cell))
    return blank + cell if at_right else cell + blank


def _fitted(text: str, room: int) -> str:
    """A text that fits, its indent kept."""
    if columns(text) <= room:
        return text
    name = text.lstrip(" ")
    indent = min(len(text) - len(name), room // 2)
    return " " * indent + elided(name, room - indent)
