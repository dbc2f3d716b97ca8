"""A report as lines that a diff can compare: exact, unaligned, a line for each module and operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.budget.measure import TOP, Measures
from graphflops.contradictions import contradictions
from graphflops.cost import QUANTITIES, REPORTED
from graphflops.render.text import count_of, safe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from graphflops.dims import Dim
    from graphflops.render.ledger import Group
    from graphflops.report import Report

# What stands behind the number of each quantity: `vector`, `masked FLOPs`, `B read`.
_UNITS = {
    quantity.name: f"{'B ' if quantity.unit == 'B' else ''}{quantity.head}{' FLOPs' if quantity.part_of else ''}"
    for quantity in REPORTED
    if quantity.name in QUANTITIES
}
_FORMULA = 2_000  # characters of a formula; a longer one is cut in the middle


def textconv(report: Report) -> str:
    """Totals with their formulas, then what each module's operators cost, layers that differ by number together.

    What costs nothing is left out. No two lines depend on each other's width, so that only what changed differs.
    """
    return "".join(f"{line}\n" for line in _lines(Measures(report)))


def _lines(measures: Measures) -> Iterator[str]:
    report = measures.report
    yield f"exported by {safe(report.origin.producer or report.origin.format)}"
    for name, info in report.symbols.items():
        where = f" ({', '.join(safe(axis) for axis in info.where)})" if info.where else ""
        yield f"size {safe(name)}{where} = {'?' if info.value is None else info.value}"
    totals = report.step() or report.totals
    for name in QUANTITIES:
        quantity = getattr(totals.cost, name)
        if quantity != 0:
            yield f"total {_UNITS[name]}: {_both(measures, quantity)}"
    yield f"peak memory: {_exact(measures, totals.peak_bytes)} B"
    yield f"parameters: {report.parameters:,} in {report.parameter_bytes:,} B, buffers {report.buffer_bytes:,} B"
    cover = report.coverage
    yield f"coverage: {cover.counted:,} counted, {cover.free:,} free, {cover.unknown:,} unknown"
    for found in contradictions(report):
        yield f"contradiction {found.code} {safe(found.node)}: {safe(found.message, _FORMULA)}"
    for line in measures.lines:
        work = _work(measures, line.group)
        if work:
            yield f"{safe(line.module) or TOP} {safe(line.op)}: {work}"
    for module, count in measures.parameters_in().items():
        yield f"{safe(module) or TOP} parameters: {count:,}"


def _work(measures: Measures, group: Group) -> str:
    """What some calls cost; "" where that is nothing."""
    costs = [(getattr(group.cost, name), unit) for name, unit in _UNITS.items()]
    parts = [f"{_exact(measures, quantity)} {unit}" for quantity, unit in costs if quantity != 0]
    if group.unknown:
        parts.append(f"cost of {count_of(group.unknown, 'call')} unknown")
    return ", ".join([count_of(group.calls, "call"), *parts]) if parts else ""


def _exact(measures: Measures, quantity: Dim) -> str:
    figure = measures.figure(quantity)
    return f"{figure:,}" if isinstance(figure, int) else safe(figure, _FORMULA)


def _both(measures: Measures, quantity: Dim) -> str:
    """The number, and the formula that it comes from."""
    exact = _exact(measures, quantity)
    known = isinstance(quantity, int) or isinstance(measures.figure(quantity), str)
    return exact if known else f"{exact} = {safe(str(quantity), _FORMULA)}"
