"""The parts of a result that all formats share, and a writer for each format; reports as Markdown, CSV and JSON."""

from __future__ import annotations

import csv as writer
import io
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, get_args

import msgspec

from graphflops.attention.attention_use import BLOCKS, KERNEL, SIZES
from graphflops.base.json_form import Formula
from graphflops.base.lazy import imported
from graphflops.base.record import Record
from graphflops.cost import CONVENTIONS, REPORTED
from graphflops.dims import Dim, evaluate
from graphflops.errors import ZERO_WIDTH, OptionError, require_choice
from graphflops.render import summary
from graphflops.render.formats import DOCUMENTS
from graphflops.render.html.fragment import escaped as html_escaped, page, table as html_table
from graphflops.render.ledger import Group, Ledger, Tree
from graphflops.render.table import Page
from graphflops.render.tables import tables
from graphflops.render.text import Entry, Listing, TextTable, inert, safe, shortened
from graphflops.report import Cut, Report

_WIDEST = 200  # characters of a formula shown
_SPECIAL = re.compile(r"([\\`*_\[\]|~])")
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
# Text that GitHub turns into a mention, a reference to an issue or a link, even if written as character references.
_LINKED = re.compile(r"@|#(?=\d)|\bGH-(?=\d)|:(?=//)|\bwww(?=\.)", re.IGNORECASE)


def report_markdown(
    report: Report, *, by: Cut | None = None, depth: int | None = None, top: int | None = None,
    verbose: bool = False,
) -> str:  # fmt: skip
    """Totals, where the work is, what is unknown; the same choices as in the table for a terminal."""
    ledger = Ledger(report, formula_width=_WIDEST)
    parts = [f"## {escaped(summary.title(report))}\n\n{escaped(summary.headline(report))}\n"]
    sizes = summary.sizes(report)
    if sizes:
        parts.append(drawn(TextTable(("size", "where"), [Entry(size) for size in sizes], 2)))
    facts = [
        Entry([fact.label, re.sub(" {3,}", "; ", fact.text), shortened(fact.formula, _WIDEST)])
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


def fitted(
    lines: Sequence[tuple[str, int]], limit: int | None, rest: Callable[[int], str],
    size: Callable[[str], int] = len,
) -> str:  # fmt: skip
    """As many lines as fit in a limit, then `rest` of the others' count. lines: each with its count. size: of a text."""
    ends = [*accumulate(size(line) for line, _ in lines)]
    if limit is None or not ends or ends[-1] <= limit:
        return "".join(line for line, _ in lines)
    kept = bisect_right(ends, limit - size(rest(sum(count for _, count in lines))))
    return "".join(line for line, _ in lines[:kept]) + rest(sum(count for _, count in lines[kept:]))


class Document(Record, frozen=True):
    """The parts of a result. Parts that a format does not write are not made."""

    tables: Iterable[TextTable]  # for people
    notes: Iterable[str] = ()  # below the headline on a terminal, else below the tables
    headline: str = ""  # the first line; "" for none
    exact: Callable[[], Listing] = lambda: Listing((), ())  # the figures for a spreadsheet
    data: Callable[[], Any] | None = None  # for programs, where `exact` is not all
    style: str = "bold"  # of the headline on a terminal
    title: str = ""  # of a page
    pictures: Callable[[], str] = lambda: ""  # on a page, as HTML
    lists: Iterable[tuple[str, Iterable[str]]] = ()  # lines below the tables, each with a title
    facts: Iterable[tuple[str, str]] = ()  # lines above them, each with a label


def of_listing(found: Listing) -> Document:
    """A table of names, or of figures."""
    return Document([found.table()], exact=lambda: found)


def document(value: object, **options: Any) -> Document:
    """The document of a result. options: those that it takes."""
    found: Document = imported(DOCUMENTS[type(value).__name__])(value, **options)
    return found


def text(value: object, *, width: int = 120, color: bool = False, **options: Any) -> str:
    """For a terminal or a pipe."""
    found, screen = document(value, **options), Page(width, color)
    if found.headline:
        screen.line((found.headline, found.style))
        for note in found.notes:
            screen.line((f"  {note}", "dim"))
    facts = [*found.facts]
    room = max((len(label) for label, _ in facts), default=0)
    for place, (label, said) in enumerate(facts):
        if not place:
            screen.line()
        screen.line((f"  {label.ljust(room)}", "bold"), f"  {said}")
    for grid in found.tables:
        if screen.lines:
            screen.line()
        screen.table(grid)
    for title, lines in found.lists:
        screen.line()
        screen.line((title, "bold"))
        for line in lines:
            screen.line((f"  {line}", ""))
    return screen.text()


def markdown(value: object, **options: Any) -> str:
    """For a review."""
    found = document(value, **options)
    parts = [f"**{escaped(found.headline)}**\n"] if found.headline else []
    if facts := "".join(f"- {label}: {escaped(said)}\n" for label, said in found.facts):
        parts.append(facts)
    parts += [*map(drawn, found.tables), *(f"{escaped(note)}\n" for note in found.notes)]
    for title, lines in found.lists:
        parts.append(f"{escaped(title)}:\n\n" + "".join(f"- {escaped(line)}\n" for line in lines))
    return "\n".join(parts)


def csv(value: object) -> str:
    """For a spreadsheet: numbers are not rounded, and unknown ones are empty."""
    found = document(value).exact()
    return written(found.heads, found.rows)


def json(value: object) -> str:
    """For programs: one line."""
    found = document(value)
    if found.data is not None:
        return inert(msgspec.json.encode(found.data()))
    exact = found.exact()
    return inert(msgspec.json.encode([dict(zip(exact.heads, row, strict=True)) for row in exact.rows]))


def fragment(value: object) -> str:
    """For a notebook: HTML without script or style."""
    found = document(value)
    head = f"<p><b>{html_escaped(found.headline)}</b></p>" if found.headline else ""
    parts = [f"<p>{html_escaped(label)}: {html_escaped(said)}</p>" for label, said in found.facts]
    parts += [*map(html_table, found.tables), *(f"<p>{html_escaped(note)}</p>" for note in found.notes)]
    for title, lines in found.lists:
        items = "".join(f"<li>{html_escaped(line)}</li>" for line in lines)
        parts.append(f"<p><b>{html_escaped(title)}</b></p><ul>{items}</ul>")
    return f"<div>{head}{''.join(parts)}</div>"


def html(value: object) -> str:
    """A page that needs no network and runs no script."""
    found = document(value)
    return page(found.title, f"<h1>{html_escaped(found.title)}</h1>{found.pictures()}{fragment(value)}")


_STARTS_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_LONGEST_NAME = 10_000


def report_csv(
    report: Report, *, by: Cut | None = None, depth: int | None = None, top: int | None = None
) -> str:
    """A line for each call (`by` None), module, operator or source line: integers, or formulas if a size has no value."""
    heads, rows = lines(report, by, depth)
    return written(heads, rows if top is None else rows[:top])


def lines(report: Report, by: Cut | None, depth: int | None) -> tuple[list[str], list[list[str | int]]]:
    """The heads and the lines; "" for a figure that is not known."""
    ledger = Ledger(report)
    if by is None:
        return _calls(report, ledger)
    if by == "module":
        rows: list[list[str | int]] = []
        for one in Tree(report, ledger, idle=True).paths(depth):
            counts = (one.group.calls, one.group.unknown, one.parameters)
            rows.append([one.path, one.type, *counts, *_work(one.group, ledger)])
        return ["module", "module_type", "calls", "unknown", "parameters", *_heads(ledger)], rows
    if by == "attention":
        return _attentions(report, ledger)
    groups = ledger.groups(ledger.counts(lambda row: row.op if by == "op" else row.source))
    rows = [[name, group.calls, group.unknown, *_work(group, ledger)] for name, group in groups.items()]
    return [by, "calls", "unknown", *_heads(ledger)], rows


def _attentions(report: Report, ledger: Ledger) -> tuple[list[str], list[list[str | int]]]:
    texts, sizes, rows = ("module", "source", "op", "mask"), (*SIZES, *BLOCKS), []
    for use in report.attentions:
        known = [_quantity(getattr(use, name), ledger) for name in sizes]
        about, kernel = ([getattr(use, name) for name in names] for names in (texts, KERNEL))
        rows.append([*about, len(use.calls), *known, *kernel])
    return [*texts, "calls", *sizes, *KERNEL], rows


def written(heads: Sequence[str], rows: Iterable[Sequence[str | float]]) -> str:
    """Heads and rows. Text is made harmless for terminals and spreadsheets, numbers stay as they are."""
    file = io.StringIO()
    out = writer.writer(file, lineterminator="\n")
    out.writerow(heads)
    out.writerows([_inert(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    return file.getvalue()


def _inert(text: str) -> str:
    text = safe(text, _LONGEST_NAME)
    return f"'{text}" if text.startswith(_STARTS_FORMULA) else text


def _quantity(quantity: Dim | None, ledger: Ledger) -> str | int:
    value = "" if quantity is None else ledger.numbers.value(quantity)
    return str(quantity) if value is None else value


def _heads(ledger: Ledger) -> list[str]:
    sides = ("", "backward_") if ledger.phases else ("",)
    return [f"{side}{quantity.name}" for side in sides for quantity in REPORTED]


def _work(group: Group, ledger: Ledger) -> list[str | int]:
    costs = (group.forward, group.backward) if ledger.phases else (group.forward,)
    return [_quantity(getattr(cost, quantity.name), ledger) for cost in costs for quantity in REPORTED]


def _calls(report: Report, ledger: Ledger) -> tuple[list[str], list[list[str | int]]]:
    heads = ["node", "op", "module", "module_type", "source", "state", "matrix_dtype"]
    work: dict[int, list[str | int]] = {}
    rows: list[list[str | int]] = []
    for row, kind in zip(report.rows, ledger.of, strict=True):
        if kind not in work:
            work[kind] = [*_work(ledger.group({kind: 1}), ledger), str(row.cost.matrix_flops)]
        figures = [""] * len(work[kind]) if row.state == "unknown" else work[kind]
        place = (row.module, row.module_type, row.source)
        both = (row.time, row.backward_time) if report.device else ()
        times = ["" if time is None else repr(time.seconds) for time in both]
        rows.append([row.node, row.op, *place, row.state, row.matrix_dtype, *figures, *times])
    timed = ["seconds", "backward_seconds"] if report.device else []
    return [*heads, *_heads(ledger), "matrix_flops_formula", *timed], rows


def dataframe(report: Report, *, by: Cut | None = None, depth: int | None = None) -> Any:
    """A line for each call (`by` None), module, operator, source line or attention."""
    try:
        import pandas
    except ModuleNotFoundError:
        raise OptionError("to_dataframe needs pandas: pip install pandas") from None
    require_choice("by", by, (None, *get_args(Cut)))
    heads, rows = lines(report, by, depth)
    columns = zip(heads, zip(*rows, strict=True) if rows else [()] * len(heads), strict=True)
    return pandas.DataFrame({head: _column(pandas, cells) for head, cells in columns})


def _column(pandas: Any, cells: tuple[str | int, ...]) -> Any:
    """Integers with missing values where a column holds numbers; else texts and formulas as they are."""
    is_number = any(isinstance(cell, int) for cell in cells)
    values = [None if is_number and cell == "" else cell for cell in cells]
    whole = (value is None or (isinstance(value, int) and abs(value) < 2**63) for value in values)
    return pandas.array(values, dtype="Int64" if is_number and all(whole) else object)


def report_json(report: Report) -> str:
    """The whole report, one object on one line."""
    return inert(report.to_json())


def quantity(dim: Dim | None, values: Mapping[str, int]) -> int | Formula | None:
    """A quantity for programs: a number, with its formula where it depends on a size; None where it is not known."""
    return dim if dim is None or isinstance(dim, int) else Formula(evaluate(dim, values), str(dim))
