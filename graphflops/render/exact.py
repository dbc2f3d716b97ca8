"""A report exactly: as CSV, a line a call or a group of calls; the same as a pandas DataFrame; as JSON.

What is written is safe to print: characters that a terminal could act on are escaped.
"""

from __future__ import annotations

import csv as writer
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from graphflops.attention.attention_use import BLOCKS, KERNEL, SIZES
from graphflops.base.json_form import Formula
from graphflops.cost import REPORTED, Cost
from graphflops.dims import Dim, evaluate
from graphflops.errors import OptionError, require_choice
from graphflops.render.ledger import Group, Ledger
from graphflops.render.text import safe
from graphflops.render.tree import Tree
from graphflops.report import Cut, Report

_STARTS_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_LONGEST_NAME = 10_000


def csv(report: Report, *, by: Cut | None = None, depth: int | None = None, top: int | None = None) -> str:
    """One line a call (`by` None), a module with everything in it, an operator or a source line.

    A quantity is an integer, or its formula where a size has no value.
    depth: components of a module's path.
    top: lines kept, from the first.
    """
    heads, rows = lines(report, by, depth)
    return written(heads, rows if top is None else rows[:top])


def lines(report: Report, by: Cut | None, depth: int | None) -> tuple[list[str], list[list[str | int]]]:
    """The heads and the lines; "" for a figure that is not known."""
    ledger = Ledger(report)
    if by is None:
        return _calls(report, ledger)
    if by == "module":
        rows: list[list[str | int]] = [
            [
                one.path,
                one.type,
                one.group.calls,
                one.group.unknown,
                one.parameters,
                *_work(one.group, ledger),
            ]
            for one in Tree(report, ledger, idle=True).paths(depth)
        ]
        return ["module", "module_type", "calls", "unknown", "parameters", *_heads(ledger)], rows
    if by == "attention":
        return _attentions(report, ledger)
    groups = ledger.groups(lambda row: row.op if by == "op" else row.source)
    rows = [[name, group.calls, group.unknown, *_work(group, ledger)] for name, group in groups.items()]
    return [by, "calls", "unknown", *_heads(ledger)], rows


def _attentions(report: Report, ledger: Ledger) -> tuple[list[str], list[list[str | int]]]:
    texts, names = ("module", "source", "op", "mask"), SIZES
    rows = [
        [
            *(getattr(use, name) for name in texts),
            len(use.calls),
            *(_quantity(getattr(use, n), ledger) for n in names),
            *("" if n is None else _quantity(n, ledger) for n in (getattr(use, name) for name in BLOCKS)),
            *(getattr(use, name) for name in KERNEL),
        ]
        for use in report.attentions
    ]
    return [*texts, "calls", *names, *BLOCKS, *KERNEL], rows


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


def _quantity(quantity: Dim, ledger: Ledger) -> str | int:
    value = ledger.numbers.value(quantity)
    return str(quantity) if value is None else value


def _costs(cost: Cost, ledger: Ledger) -> list[str | int]:
    return [_quantity(getattr(cost, quantity.name), ledger) for quantity in REPORTED]


def _heads(ledger: Ledger) -> list[str]:
    names = [quantity.name for quantity in REPORTED]
    return [*names, *(f"backward_{name}" for name in names)] if ledger.phases else names


def _work(group: Group, ledger: Ledger) -> list[str | int]:
    forward = _costs(group.forward, ledger)
    return [*forward, *_costs(group.backward, ledger)] if ledger.phases else forward


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
    if any(isinstance(cell, int) for cell in cells):
        values = [None if cell == "" else cell for cell in cells]
        if all(value is None or (isinstance(value, int) and abs(value) < 2**63) for value in values):
            return pandas.array(values, dtype="Int64")
        return pandas.array(values, dtype=object)
    return pandas.array(list(cells), dtype=object)


_ACTIVE = re.compile("[\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


def json(report: Report) -> str:
    """The whole report, one object on one line."""
    return inert(report.to_json())


def quantity(dim: Dim | None, values: Mapping[str, int]) -> int | Formula | None:
    """A quantity for programs: a number, with its formula where it depends on a size; None where it is not known."""
    return dim if dim is None or isinstance(dim, int) else Formula(evaluate(dim, values), str(dim))


def inert(data: bytes) -> str:
    """JSON as a line of text: characters that a terminal could act on are escaped."""
    text = data.decode()
    if not text.isascii() or "\x7f" in text:
        text = _ACTIVE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return text + "\n"
