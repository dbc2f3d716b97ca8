"""Several models, one line each, in every format that has lines."""

from __future__ import annotations

from typing import Any

from graphflops.base.json_form import Formula
from graphflops.base.units import interval, memory, parameters, percent, seconds
from graphflops.derived.overview import Overview, OverviewLine
from graphflops.dims import evaluate
from graphflops.render.document import Document
from graphflops.render.exact import quantity
from graphflops.render.table import Page
from graphflops.render.tables import Entry, Listing, TextTable
from graphflops.render.text import Numbers, assumptions, count_of, safe

_HEADS = ("model", "FLOPs", "params", "bytes", "peak memory", "coverage", "analyzed in")
_DEVICE_HEADS = ("time", "90 % interval", "device memory")
_COUNTED = ("model", "matrix_flops", "parameters", "bytes", "peak_bytes", "calls", "unknown", "seconds")
_FIELDS = (*_COUNTED, "error")
_QUANTITIES = ("matrix_flops", "bytes", "peak_bytes")
_DEVICE_FIELDS = ("time_seconds", "time_low", "time_high", "device_bytes")
_FORMULA = 40  # characters of a formula
_NAME = 200
_ERROR = 1_000


def grid(found: Overview) -> TextTable:
    """A line for each model, with a column of errors where there are any."""
    has_errors = any(line.error for line in found.lines)
    figures = _figures(found)
    errors = [[safe(line.error, _ERROR)] if has_errors else [] for line in found.lines]
    entries = [Entry([*entry.cells, *error]) for entry, error in zip(figures.entries, errors, strict=True)]
    return TextTable((*figures.heads, *(("error",) if has_errors else ())), entries)


def _figures(found: Overview) -> TextTable:
    """A line for each model, without errors; with its time and memory where a device is named."""
    is_timed = _is_timed(found)
    heads = (*_HEADS, *(_DEVICE_HEADS if is_timed else ()))
    cells = [[*_cells(line), *(_device_cells(line) if is_timed else [])] for line in found.lines]
    return TextTable(heads, [Entry(row) for row in cells])


def _is_timed(found: Overview) -> bool:
    return any(line.cost is not None and line.cost.time is not None for line in found.lines)


def table(found: Overview, *, width: int = 120, color: bool = False) -> str:
    """A line for each model, which ends with the error of one that failed; on a narrow screen errors are below."""
    page = Page(width, color)
    figures = Page(width, color)
    figures.table(_figures(found))
    errors = [f"error: {safe(line.error, _ERROR)}" if line.error else "" for line in found.lines]
    if len(figures.lines) == len(errors) + 1:  # no name or column went to a line of its own
        errors = ["", *errors]
        for text, error in zip(figures.lines, errors, strict=True):
            page.line(text.rstrip(), (f"  {error}" if error else "", "red"))
    else:
        page.lines += figures.lines
        for line, error in zip(found.lines, errors, strict=True):
            if error:
                page.line((f"  {safe(line.model, _NAME)}: {error}", "red"))
    notes = _assumed(found)
    if notes:
        page.line()
    for note in notes:
        page.line((f"  {note}", "dim"))
    return page.text()


def document(found: Overview) -> Document:
    """The same with errors in the last column.

    For spreadsheets whole numbers; the formula where a size has no value, nothing where the model could not be analyzed.
    """
    return Document([grid(found)], _assumed(found), exact=lambda: _listed(found), data=lambda: _data(found))


def _listed(found: Overview) -> Listing:
    rows = [_exact(line, is_timed=_is_timed(found)) for line in found.lines]
    heads = (*_FIELDS, *(_DEVICE_FIELDS if _is_timed(found) else ()))
    return Listing(heads, [[_spelled(cell) for cell in row.values()] for row in rows])


def _data(found: Overview) -> dict[str, Any]:
    """`{"schema": 1, "models": [...]}`: null for everything that is not known."""
    return {"schema": 1, "models": [_exact(line, is_timed=_is_timed(found)) for line in found.lines]}


def _cells(line: OverviewLine) -> list[str]:
    cost = line.cost
    name = safe(line.model, _NAME)
    if cost is None:
        return [name, *[""] * (len(_HEADS) - 1)]
    numbers = Numbers(lambda quantity: evaluate(quantity, cost.values), _FORMULA)
    least = ">= " if cost.unknown else ""
    known = f"{percent(cost.calls - cost.unknown, cost.calls) or '100.0'} %"
    known = f"{known}, {cost.unknown:,} unknown" if cost.unknown else known
    flops = f"{least}{numbers.count(cost.matrix_flops)}"
    sizes = [f"{least}{numbers.memory(size)}" for size in (cost.moved_bytes, cost.peak_bytes)]
    return [name, flops, parameters(cost.parameters), *sizes, known, f"{cost.seconds:.2f} s"]


def _device_cells(line: OverviewLine) -> list[str]:
    """Predicted time, its interval, and memory on the device; empty where they are not known."""
    cost = line.cost
    if cost is None or cost.time is None:
        return [""] * len(_DEVICE_HEADS)
    time, least = cost.time, ">= " if cost.time.is_lower_bound else ""
    held = "" if cost.device_bytes is None else f"{'>= ' if cost.unknown else ''}{memory(cost.device_bytes)}"
    return [f"{least}{seconds(time.seconds)}", interval(time.low, time.high), held]


def _assumed(found: Overview) -> list[str]:
    """The assumed sizes; models that assume the same are one line."""
    models: dict[str, list[str]] = {}
    for line in found.lines:
        if line.cost is not None and line.cost.assumed:
            models.setdefault(assumptions(line.cost.assumed), []).append(safe(line.model, 60))
    return [
        f"{sizes}: {names[0] if len(names) == 1 else count_of(len(names), 'model')}"
        for sizes, names in models.items()
    ]


def _exact(line: OverviewLine, *, is_timed: bool) -> dict[str, Any]:
    """The figures by field; None for what is not known. is_timed: those of a device too."""
    row: dict[str, Any] = dict.fromkeys((*_FIELDS, *(_DEVICE_FIELDS if is_timed else ())))
    row |= {"model": safe(line.model, 10_000), "error": safe(line.error, 10_000) or None}
    if (cost := line.cost) is None:
        return row
    for name, figure in zip(_QUANTITIES, (cost.matrix_flops, cost.moved_bytes, cost.peak_bytes), strict=True):
        row[name] = quantity(figure, cost.values)
    row |= {"parameters": cost.parameters, "calls": cost.calls, "unknown": cost.unknown}
    row["seconds"] = round(cost.seconds, 3)
    if is_timed:
        ends = (None, None, None) if cost.time is None else (cost.time.seconds, cost.time.low, cost.time.high)
        row |= zip(_DEVICE_FIELDS, (*ends, cost.device_bytes), strict=True)
    return row


def _spelled(cell: Any) -> str | int:
    if isinstance(cell, Formula):
        return cell.formula if cell.value is None else cell.value
    return "" if cell is None else cell if isinstance(cell, int) else str(cell)
