"""A report exactly: as CSV and pandas DataFrame, a line a call or a group of calls; as JSON; as lines that a diff compares.

What is written is safe to print: characters that a terminal could act on are escaped. In the lines for a diff layers that
are alike are written once, so that one layer more changes one line beside the totals.
"""

from __future__ import annotations

import csv as writer
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from graphflops.attention.attention_use import BLOCKS, KERNEL, SIZES
from graphflops.base.json_form import Formula
from graphflops.base.numbered import is_index, spans
from graphflops.base.units import exact
from graphflops.budget.measure import TOP, Measures
from graphflops.cost import QUANTITIES, REPORTED, Cost
from graphflops.dims import Dim, evaluate
from graphflops.errors import OptionError, require_choice
from graphflops.open_sizes import of_report
from graphflops.render.ledger import Group, Ledger
from graphflops.render.text import count_of, safe
from graphflops.render.tree import Tree
from graphflops.report import Cut, Report
from graphflops.report.call_time import CallTime
from graphflops.report.contradictions import contradictions
from graphflops.report.size_names import collapsed, named

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
        return _modules(report, ledger, depth)
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
        times = _seconds(row.time, row.backward_time) if report.device else []
        rows.append([row.node, row.op, *place, row.state, row.matrix_dtype, *figures, *times])
    timed = ["seconds", "backward_seconds"] if report.device else []
    return [*heads, *_heads(ledger), "matrix_flops_formula", *timed], rows


def _seconds(*times: CallTime | None) -> list[str | int]:
    """Seconds in full; "" where there are none."""
    return ["" if time is None else repr(time.seconds) for time in times]


def _modules(report: Report, ledger: Ledger, depth: int | None) -> tuple[list[str], list[list[str | int]]]:
    rows: list[list[str | int]] = []
    for line in Tree(report, ledger, idle=True).paths(depth):
        work = line.group
        rows.append([line.path, line.type, work.calls, work.unknown, line.parameters, *_work(work, ledger)])
    return ["module", "module_type", "calls", "unknown", "parameters", *_heads(ledger)], rows


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


# What stands behind the number of each quantity: `vector`, `masked FLOPs`, `B read`.
_UNITS = {
    quantity.name: f"{'B ' if quantity.unit == 'B' else ''}{quantity.head}{' FLOPs' if quantity.part_of else ''}"
    for quantity in REPORTED
    if quantity.name in QUANTITIES
}
_FORMULA = 2_000  # characters of a formula; a longer one is cut in the middle
_DEEPEST = 100  # components of a path


@dataclass(slots=True)
class _Module:
    """What is said of a module's own calls and parameters, and the modules in it."""

    texts: list[str] = field(default_factory=list)
    parts: dict[str, _Module] = field(default_factory=dict)
    kind: int = 0  # equal for modules of which the same is said, parts included


def textconv(report: Report) -> str:
    """Totals with their formulas, then what each module's operators cost, layers that differ by number together.

    What costs nothing is left out. No two lines depend on each other's width, so that only what changed differs.
    """
    return "".join(f"{line}\n" for line in _lines(Measures(report)))


def _lines(measures: Measures) -> Iterator[str]:
    report = measures.report
    yield f"exported by {safe(report.origin.producer or report.origin.format)}"
    sizes = of_report(report)
    for name, info in report.symbols.items():
        called, size = sizes.stated[name]
        axes = collapsed(axis for axis in info.where if axis != called and axis not in info.computed)
        told = [*axes, *(f"{axis} = {info.computed[axis]}" for axis in info.computed if axis != called)]
        told += [str(size)] * (called in info.computed)
        where = f" ({', '.join(map(safe, told))})" if told else ""
        value = report.value(size)
        yield f"size {safe(called)}{where} = {'?' if value is None else value}"
    totals = report.step() or report.totals
    least = ">= " if report.coverage.unknown else ""
    for name in QUANTITIES:
        quantity = getattr(totals.cost, name)
        if quantity != 0:
            yield f"total {_UNITS[name]}: {least}{_both(measures, quantity)}"
    yield f"peak memory: {least}{_exact(measures, totals.peak_bytes)} B"
    held = map(exact, (report.parameters, report.parameter_bytes, report.buffer_bytes))
    yield "parameters: {} in {} B, buffers {} B".format(*held)
    cover = report.coverage
    yield f"coverage: {cover.counted:,} counted, {cover.free:,} free, {cover.unknown:,} unknown"
    for found in contradictions(report):
        yield f"contradiction {found.code} {safe(found.node)}: {safe(found.message, _FORMULA)}"
    yield from _module_lines(_tree(measures))


def _tree(measures: Measures) -> _Module:
    """The modules with what is said of them; modules alike have the same kind."""
    top = _Module()
    ledger, rows = measures.ledger, measures.report.rows
    counts: dict[tuple[str, str], Counter[int]] = {}
    for row, kind in zip(rows, ledger.of, strict=True):
        counts.setdefault((row.module, row.op), Counter())[kind] += 1
    for (path, op), found in counts.items():
        work = _summed(measures, ledger.group(found))
        if work:
            _at(top, path).texts.append(f"{safe(op)}: {work}")
    for path, count in measures.report.parameter_modules.items():
        _at(top, path).texts.append(f"parameters: {exact(count)}")
    every = [top]
    for module in every:
        every += module.parts.values()
    kinds: dict[tuple[object, ...], int] = {}
    for module in reversed(every):  # parts before the modules that they are in
        said = (*module.texts, *((name, part.kind) for name, part in module.parts.items()))
        module.kind = kinds.setdefault(said, len(kinds))
    return top


def _at(top: _Module, path: str) -> _Module:
    module = top
    for name in path.split(".")[:_DEEPEST] if path else ():
        module = module.parts.setdefault(name, _Module())
    return module


def _module_lines(top: _Module) -> Iterator[str]:
    """Each module's texts under its path, of numbered modules alike only one."""
    stack = [("", top)]
    while stack:
        path, module = stack.pop()
        yield from (f"{path or TOP} {text}" for text in module.texts)
        alike: dict[int, list[int]] = {}
        for name, part in module.parts.items():
            if is_index(name):
                alike.setdefault(part.kind, []).append(int(name))
        most = max(map(len, alike.values()), default=0)
        inside = []
        for name, part in module.parts.items():
            numbers = alike.get(part.kind, []) if name.isdecimal() else []
            if numbers and int(name) != numbers[0]:
                continue
            called = safe(name)
            if len(numbers) > 1:
                called, most = ("*", 0) if len(numbers) == most else (called, most)
                yield f"{path}{'.' if path else ''}{called}: {len(numbers):,} alike ({spans(sorted(numbers))})"
            inside.append((f"{path}.{called}" if path else called, part))
        stack += reversed(inside)


def _summed(measures: Measures, group: Group) -> str:
    """What some calls cost; "" where that is nothing."""
    costs = [(getattr(group.cost, name), unit) for name, unit in _UNITS.items()]
    parts = [f"{_exact(measures, quantity)} {unit}" for quantity, unit in costs if quantity != 0]
    if group.unknown:
        parts.append(f"cost of {count_of(group.unknown, 'call')} unknown")
    return ", ".join([count_of(group.calls, "call"), *parts]) if parts else ""


def _exact(measures: Measures, quantity: Dim) -> str:
    figure = measures.figure(quantity)
    return exact(figure) if isinstance(figure, int) else safe(figure, _FORMULA)


def _both(measures: Measures, quantity: Dim) -> str:
    """The number, and the formula that it comes from."""
    exact = _exact(measures, quantity)
    known = isinstance(quantity, int) or isinstance(measures.figure(quantity), str)
    return exact if known else f"{exact} = {safe(named(str(quantity), measures.report.names), _FORMULA)}"
