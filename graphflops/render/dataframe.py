"""A report as a pandas DataFrame: the lines of its CSV, with missing values for what is not known."""

from __future__ import annotations

from typing import Any, get_args

from graphflops.errors import OptionError, require_choice
from graphflops.render.csv import lines
from graphflops.report import Cut, Report


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
