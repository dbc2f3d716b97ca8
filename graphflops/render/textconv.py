"""A report as lines that a diff can compare: exact, unaligned, a line for each module and operator.

Layers that are alike are written once, so that one layer more changes one line beside the totals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from graphflops.base.units import exact, is_index, spans
from graphflops.budget.measure import TOP, Measures
from graphflops.cost import QUANTITIES, REPORTED
from graphflops.dims import Dim
from graphflops.open_sizes import of_report
from graphflops.render.ledger import Group
from graphflops.render.text import count_of, safe
from graphflops.report import Report
from graphflops.report.contradictions import contradictions
from graphflops.report.size_names import collapsed, named

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
            is_number = isinstance(quantity, int) or isinstance(measures.figure(quantity), str)
            beside = "" if is_number else f" = {safe(named(str(quantity), report.names), _FORMULA)}"
            yield f"total {_UNITS[name]}: {least}{_exact(measures, quantity)}{beside}"
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
        work = _work(measures, ledger.group(found))
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


def _work(measures: Measures, group: Group) -> str:
    """What some calls cost; "" where that is nothing."""
    costs = [(getattr(group.cost, name), unit) for name, unit in _UNITS.items()]
    parts = [f"{_exact(measures, quantity)} {unit}" for quantity, unit in costs if quantity != 0]
    if group.unknown:
        parts.append(f"cost of {count_of(group.unknown, 'call')} unknown")
    return ", ".join([count_of(group.calls, "call"), *parts]) if parts else ""


def _exact(measures: Measures, quantity: Dim) -> str:
    figure = measures.figure(quantity)
    return exact(figure) if isinstance(figure, int) else safe(figure, _FORMULA)
