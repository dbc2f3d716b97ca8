"""The baseline, a small JSON file of what models cost before; it is meant to be committed and read in diffs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, Union

import msgspec

from graphflops.base.files import content
from graphflops.base.patterns import matches_module
from graphflops.base.record import Record, replace
from graphflops.base.units import starred
from graphflops.budget.limits import Budget
from graphflops.budget.measure import TOP, UNITS, Figure, Measures
from graphflops.cost import QUANTITIES
from graphflops.errors import FileError, shown
from graphflops.report import Report

_NOTHING: Mapping[str, Figure] = {}


class Culprit(NamedTuple):
    """A group of calls, or a module: its part of a figure and the source line of most of its calls."""

    name: str
    op: str
    calls: int
    amount: int
    source: str


def culprits(measures: Measures, path: str, quantity: str, before: Before | None = None) -> list[Culprit]:
    """The contributions to a quantity of the model or of the module at `path`; with `before`, to its growth."""
    lines = before.lines if before else {}
    stored, of_each = ("matrix_flops", 2) if quantity == "macs" else (quantity, 1)
    found: list[Culprit] = []
    if quantity == "parameters":
        sources = {line.module: line.source for line in reversed(measures.lines_in())}
        for module, count in measures.parameters_in(path).items():
            then = lines.get(module or TOP, _NOTHING).get(stored, 0)
            if isinstance(then, int):
                found.append(Culprit(module or TOP, "", 0, count - then, sources.get(starred(module), "")))
    for line in measures.lines_in(path) if stored in QUANTITIES else ():
        then = lines.get(line.name, _NOTHING).get(stored, 0)
        now = measures.figure(getattr(line.group.cost, stored))
        if isinstance(now, int) and isinstance(then, int):
            amount = (now - then) // of_each
            found.append(Culprit(line.module or TOP, line.op, line.group.calls, amount, line.source))
    return sorted((culprit for culprit in found if culprit.amount > 0), key=lambda culprit: -culprit.amount)


SCHEMA: Literal[1] = 1
Figures = dict[str, Union[int, str]]  # a number by name, or its formula where a size has no value
_LARGEST = 2**28  # bytes of a baseline
_SECOND = 10**9  # nanoseconds, in which times are limited


class Before(Record, frozen=True):
    """What one model cost at one choice of sizes."""

    sizes: Mapping[str, int] = {}  # those that are examples of the file, or assumed
    # By quantity; a time in nanoseconds, in the file in seconds.
    totals: Mapping[str, Union[int, float, str]] = {}
    modules: Mapping[str, Figures] = {}  # those that limits ask for
    # What costs something by module without numbers and operator, and `parameters` by module; no zeros.
    lines: Mapping[str, Figures] = {}


# By model, relative to the budget, and by sizes as `Sizes` prints them.
Baseline = dict[str, dict[str, Before]]


class _Wire(msgspec.Struct):
    schema: Literal[1]
    models: Baseline


def measured(measures: Measures, budgets: Iterable[Budget]) -> Before:
    """Measures what a later check compares with; of modules, those that have a relative limit."""
    modules: dict[str, Figures] = {}
    for pattern, limits in [pair for budget in budgets for pair in budget.limits if pair[0]]:
        names = [limit.quantity for limit in limits if limit.relative]
        for path in measures.modules if names else ():
            if matches_module(pattern, path):
                figures = {name: measures.figure(measures.module(path, name)) for name in names}
                modules.setdefault(path, {}).update(figures)
    lines: dict[str, Figures] = {}
    for line in measures.lines_in():
        figures = {name: measures.figure(getattr(line.group.cost, name)) for name in QUANTITIES}
        costs = {name: figure for name, figure in figures.items() if figure != 0}
        if costs:
            lines[line.name] = {"calls": line.group.calls, **costs}
    for path, count in measures.parameters_in().items():
        lines[path or TOP] = {"parameters": count}
    totals = {quantity: measures.figure(measures.total(quantity)) for quantity in filter(measures.has, UNITS)}
    return Before(measures.sizes, totals, modules, lines)


def to_json(baseline: Baseline) -> str:
    """The file's text: sorted, a line for each total, module and group of calls."""
    models: dict[str, dict[str, Any]] = {}
    for model, by_sizes in baseline.items():
        for sizes, before in by_sizes.items():
            at = models.setdefault(model, {})[sizes] = {"sizes": _OneLine(before.sizes)}
            at["totals"] = {
                name: figure / _SECOND if UNITS[name] == "ns" and isinstance(figure, int) else figure
                for name, figure in before.totals.items()
            }
            at |= {"modules": _lines(before.modules)} if before.modules else {}
            at["lines"] = _lines(before.lines)
    return _text({"schema": SCHEMA, "models": models}, "") + "\n"


def from_json(data: bytes, path: str) -> Baseline:
    """Reads what `to_json` wrote; FileError names the place where it is not a baseline."""
    try:
        models = msgspec.json.decode(data, type=_Wire).models
        return {name: {at: _in_nanoseconds(one) for at, one in own.items()} for name, own in models.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        what = f"no baseline of schema {SCHEMA}: {error}: make it again with graphflops check --update"
        raise FileError(f"{shown(path)}: {shown(what, 500)}") from None


def _in_nanoseconds(found: Before) -> Before:
    totals = {name: round(x * _SECOND) if isinstance(x, float) else x for name, x in found.totals.items()}
    return replace(found, totals=totals)


def read(path: str) -> Baseline:
    """Reads a baseline from a file; FileError if it cannot be read or is not a baseline."""
    otherwise = "make it with graphflops check --update"
    return from_json(content(path, "baseline", _LARGEST, otherwise=otherwise), path)


def is_baseline(path: str) -> bool:
    """True if the file is a baseline, not a report."""
    try:
        with open(path, "rb") as file:
            return "models" in msgspec.json.decode(file.read(_LARGEST), type=dict[str, msgspec.Raw])
    except (OSError, msgspec.MsgspecError, RecursionError):
        return True  # the reader reports what is wrong with it


class _OneLine(dict[str, Any]):
    """An object that is printed on one line."""


def _lines(figures: Mapping[str, Mapping[str, Any]]) -> dict[str, _OneLine]:
    return {name: _OneLine(inside) for name, inside in figures.items()}


def _text(value: Any, indent: str) -> str:
    if not isinstance(value, dict) or isinstance(value, _OneLine) or not value:
        return json.dumps(value, sort_keys=True)
    items = [f"{indent} {json.dumps(key)}: {_text(value[key], indent + ' ')}" for key in sorted(value)]
    return "{\n" + ",\n".join(items) + f"\n{indent}}}"


HEADROOM = 10  # percent
_LIMITED = ("matrix_flops", "peak_bytes", "parameters")
_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def starter(reports: Mapping[str, Report]) -> str:
    """The text of a budget for these models, by their paths relative to its folder."""
    listed = ", ".join(map(_quoted, reports))
    head = f"# Each limit is what was measured and {HEADROOM} % more: lower or raise it as the model needs."
    lines = [head, f"models = [{listed}]"]
    for name, report in reports.items():
        measures, is_known = Measures(report), not report.coverage.unknown
        lines += ["", "[[budget]]", f"models = {_quoted(name)}"]
        if measures.sizes:
            sizes = (f"{_quoted(name)} = {size}" for name, size in measures.sizes.items())
            lines.append(f"dims = {{{', '.join(sizes)}}}")
        lines += ['coverage = "100 %"'] * is_known
        for quantity in _LIMITED:
            figure = measures.figure(measures.total(quantity))
            if isinstance(figure, int) and (is_known or quantity == "parameters"):
                lines.append(f"{quantity} = {_quoted(with_headroom(quantity, figure))}")
    return "".join(f"{line}\n" for line in lines)


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
