"""Several models, one line each, in every format that has lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from graphflops.dims import evaluate
from graphflops.render import csv as csv_
from graphflops.render.json import inert
from graphflops.render.markdown import drawn, escaped
from graphflops.render.tables import Entry, TextTable
from graphflops.render.text import Numbers, assumptions, count_of, parameters, percent, safe

if TYPE_CHECKING:
    from graphflops.dims import Dim
    from graphflops.overview import ModelCost, Overview, OverviewLine

_HEADS = ("model", "FLOPs", "params", "bytes", "peak memory", "coverage", "seconds")
_FIELDS = (
    *("model", "matrix_flops", "parameters", "bytes", "peak_bytes", "calls", "unknown", "seconds"),
    "error",
)
_FORMULA = 40  # characters of a formula
_NAME = 200
_ERROR = 1_000


def grid(found: Overview) -> TextTable:
    """A line for each model, with a column of errors where there are any."""
    has_errors = any(line.error for line in found.lines)
    cells = [[*_cells(line), *([safe(line.error, _ERROR)] if has_errors else [])] for line in found.lines]
    heads = (*_HEADS, *(("error",) if has_errors else ()))
    return TextTable(heads, [Entry(row) for row in cells])


def table(found: Overview, *, width: int = 120, color: bool = False) -> str:
    """A line for each model, which ends with the error of one that failed."""
    from graphflops.render.table import Page

    page = Page(width, color)
    figures = Page(width, color)
    figures.table(TextTable(_HEADS, [Entry(_cells(line)) for line in found.lines]))
    page.lines += figures.lines[:1]
    for line, text in zip(found.lines, figures.lines[1:], strict=True):
        error = (f"  error: {safe(line.error, _ERROR)}", "red") if line.error else ""
        page.line(text.rstrip(), error)
    notes = _assumed(found)
    if notes:
        page.line()
    for note in notes:
        page.line((f"  {note}", "dim"))
    return page.text()


def markdown(found: Overview) -> str:
    """A table; errors are in the last column."""
    notes = "".join(f"\n{escaped(note)}\n" for note in _assumed(found))
    return drawn(grid(found)) + notes


def csv(found: Overview) -> str:
    """Whole numbers; the formula where a size has no value, nothing where the model could not be analyzed."""
    rows = [[_spelled(cell) for cell in _exact(line).values()] for line in found.lines]
    return csv_.written(_FIELDS, rows)


def json(found: Overview) -> str:
    """`{"schema": 1, "models": [...]}`: null for everything that is not known."""
    models = [_exact(line) for line in found.lines]
    return inert(msgspec.json.encode({"schema": 1, "models": models}))


def _cells(line: OverviewLine) -> list[str]:
    cost = line.cost
    name = safe(line.model, _NAME)
    if cost is None:
        return [name, *[""] * (len(_HEADS) - 1)]
    numbers = Numbers(lambda quantity: evaluate(quantity, cost.values), _FORMULA)
    least = ">= " if cost.unknown else ""
    known = f"{percent(cost.calls - cost.unknown, cost.calls) or '100.0'} %"
    return [
        name,
        f"{least}{numbers.count(cost.matrix_flops)}",
        parameters(cost.parameters),
        f"{least}{numbers.memory(cost.moved_bytes)}",
        f"{least}{numbers.memory(cost.peak_bytes)}",
        f"{known}, {cost.unknown:,} unknown" if cost.unknown else known,
        f"{cost.seconds:.2f}",
    ]


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


def _exact(line: OverviewLine) -> dict[str, Any]:
    cost = line.cost
    if cost is None:
        return {
            **dict.fromkeys(_FIELDS),
            "model": safe(line.model, 10_000),
            "error": safe(line.error, 10_000),
        }
    figures = (cost.matrix_flops, cost.parameters, cost.moved_bytes, cost.peak_bytes)
    return dict(
        zip(
            _FIELDS,
            (
                safe(line.model, 10_000),
                *(_quantity(figure, cost) for figure in figures),
                *(cost.calls, cost.unknown, round(cost.seconds, 3)),
                safe(line.error, 10_000) or None,
            ),
            strict=True,
        )
    )


def _quantity(quantity: Dim, cost: ModelCost) -> Any:
    if isinstance(quantity, int):
        return quantity
    return {"value": evaluate(quantity, cost.values), "formula": str(quantity)}


def _spelled(cell: Any) -> str | int:
    if isinstance(cell, dict):
        return cell["formula"] if cell["value"] is None else int(cell["value"])
    return "" if cell is None else cell if isinstance(cell, int) else str(cell)
