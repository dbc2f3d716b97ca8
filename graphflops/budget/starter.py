"""Writes a first budget: for each model what it costs now, with headroom."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from graphflops.budget.measure import Measures
from graphflops.budget.quantities import UNITS
from graphflops.report import Report

HEADROOM = 10  # percent
_LIMITED = ("matrix_flops", "peak_bytes", "parameters")
_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def starter(reports: Mapping[str, Report]) -> str:
    """The text of a budget for these models, by their paths relative to its folder."""
    listed = ", ".join(map(_quoted, reports))
    head = f"# Each limit is what was measured and {HEADROOM} % more: lower or raise it as the model needs.\n"
    return f"{head}models = [{listed}]\n" + "".join(_budget(name, report) for name, report in reports.items())


def _budget(name: str, report: Report) -> str:
    return "".join(f"{line}\n" for line in ("", "[[budget]]", f"models = {_quoted(name)}", *_limits(report)))


def _limits(report: Report) -> Iterator[str]:
    measures = Measures(report)
    if measures.sizes:
        yield f"dims = {{{', '.join(f'{_quoted(name)} = {size}' for name, size in measures.sizes.items())}}}"
    if not report.coverage.unknown:
        yield 'coverage = "100 %"'
    for quantity in _LIMITED:
        figure = measures.figure(measures.total(quantity))
        is_known = quantity == "parameters" or not report.coverage.unknown
        if isinstance(figure, int) and is_known:
            yield f"{quantity} = {_quoted(with_headroom(quantity, figure))}"


def with_headroom(quantity: str, count: int) -> str:
    """The amount and 10 % more, rounded up to three digits: `2.49 MFLOP` for 2,260,992."""
    most = -(-count * (100 + HEADROOM) // 100)
    step = 10 ** max(len(str(most)) - 3, 0)
    most = -(-most // step) * step
    power = min((len(str(most)) - 1) // 3, len(_PREFIXES) - 1)
    whole, rest = divmod(most, 1000**power)
    digits = str(rest).zfill(3 * power).rstrip("0") if power else ""
    figure = f"{whole}.{digits}" if digits else str(whole)
    prefix = "B" if quantity == "parameters" and _PREFIXES[power] == "G" else _PREFIXES[power]
    return f"{figure} {prefix}{UNITS[quantity]}".rstrip()


def _quoted(text: str) -> str:
    return json.dumps(text)  # a string of JSON is one of TOML
