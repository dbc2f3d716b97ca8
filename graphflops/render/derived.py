"""What follows from reports: a sweep over sizes, figures of a token or sample, several models, the history of one; rules."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from inspect import unwrap
from pathlib import Path
from typing import Any

from graphflops.base.docstrings import docstring
from graphflops.base.json_form import Formula
from graphflops.base.units import interval, measured, memory, number, parameters, percent, rate, seconds
from graphflops.cost import REPORTED
from graphflops.derived.items import PerItem, cost_per_million
from graphflops.derived.overview import Overview, OverviewLine
from graphflops.derived.resize import Point, Sweep
from graphflops.dims import evaluate
from graphflops.fitting.cells import QUANTITIES
from graphflops.render.document import Document, quantity
from graphflops.render.html.plot import Curve, plot
from graphflops.render.summary import NAMED
from graphflops.render.text import Entry, Listing, Numbers, TextTable, assumptions, count_of, safe
from graphflops.report import Report
from graphflops.report.as_json import Tool
from graphflops.report.timeline import PhaseTime
from graphflops.rules import Rule, find, known
from graphflops.tensor import grouped
from graphflops.version import __version__
from graphflops.versions.revisions import QUANTITIES as TOTALS, History, HistoryPoint

# Heads; True: exact.
_TIMES = {False: ("time", "90 % interval"), True: ("seconds", "seconds_low", "seconds_high")}
_OTHERS = [quantity for quantity in REPORTED if quantity.name not in NAMED]


def sweep_document(sweep: Sweep) -> Document:
    """A row for each point; `?` for a figure that depends on a size without a value."""
    price = sweep.report.price_per_hour
    points = cells(sweep.points, price, exact=False).table()
    return Document([points], sweep.notes, exact=lambda: cells(sweep.points, price, exact=True))


_WORK = (
    ("matrix_flops", "FLOPs"), ("visible_flops", "visible"), ("vector_flops", "vector"),
    ("transcendentals", "transcendental"),
)  # fmt: skip
_MOVED = (("bytes", "bytes"), ("flops_per_byte", "FLOP/B"), ("peak_bytes", "peak memory"))


def cells(points: Sequence[Point], price_per_hour: float | None = None, *, exact: bool) -> Listing:
    """One row for each point. exact: whole numbers, for programs."""

    def cell(value: float | None, said: Callable[[Any], str], bound: str = ">= ") -> str | float:
        return "?" if value is None else value if exact else bound * point.is_lower_bound + said(value)

    has_masks = any(point.cost["masked_flops"] for point in points)
    others = [q for q in _OTHERS if not q.is_rare or any(point.cost[q.name] != 0 for point in points)]
    is_timed = any(point.time is not None for point in points)
    names = [*points[0].sizes] if points else []
    counted = list(dict.fromkeys(name for point in points for name in point.rates))
    work = [pair for pair in _WORK if has_masks or pair[0] != "visible_flops"]
    columns = [*work, *((q.name, q.head) for q in others), *_MOVED]
    heads = [*names, *(pair[not exact] for pair in columns), *(_TIMES[exact] if is_timed else ())]
    rates, price = ("{}_per_second", "price_of_a_million_{}") if exact else ("{}/s", "price of 1 M {}")
    forms = [rates] if price_per_hour is None else [rates, price]
    heads += [form.format(name) for form in forms for name in counted]
    served = [quantity for quantity in QUANTITIES if any(quantity.name in point.serving for point in points)]
    heads += [quantity.name if exact else quantity.head for quantity in served]
    rows = []
    for point in points:
        flops, masked = point.cost["matrix_flops"], point.cost["masked_flops"]
        visible = None if flops is None or masked is None else flops - masked
        intensity = "" if point.intensity is None else f"{point.intensity:.4g}"
        row: list[str | float] = [size if exact else f"{size:,}" for size in point.sizes.values()]
        row += [cell(flops, number), *([cell(visible, number)] if has_masks else [])]
        row += [cell(point.cost[name], number) for name in ("vector_flops", "transcendentals")]
        row += [cell(point.cost[q.name], memory if q.unit == "B" else number) for q in others]
        row += [cell(point.traffic, memory), intensity, cell(point.peak_bytes, memory)]
        row += _time(point.time, exact=exact) if is_timed else []
        row += [cell(point.rates.get(name), rate, "at most ") for name in counted]
        prices = cost_per_million(point.rates, price_per_hour)
        if price_per_hour is not None:
            row += [cell(prices.get(name), "{:,.4g}".format) for name in counted]
        row += [cell(point.serving.get(quantity.name), quantity.said, "") for quantity in served]
        rows.append(row)
    return Listing(heads, rows, figures=True)


def _time(time: PhaseTime | None, *, exact: bool) -> list[str | float]:
    if time is None:
        return ["?"] * len(_TIMES[exact])
    if exact:
        return [time.seconds, time.low, time.high]
    return [(">= " if time.is_lower_bound else "") + seconds(time.seconds), interval(time.low, time.high)]


_CONVENTIONS = {
    "dense": "matrix FLOPs, those that masks hide too",
    "visible": "matrix FLOPs that masks leave visible",
    "active": "2N or 6N of what runs, and attention",
    "total": "2N or 6N of all experts, and attention",
}


def per_item(found: PerItem, *, exact: bool) -> Listing:
    """FLOPs by convention, and the parameters behind them. exact: whole numbers, for programs."""
    least = ">= " if found.unknown else ""
    shown: Callable[[int], str | int] = (lambda n: n) if exact else lambda n: f"{least}{number(n)}"
    heads = (f"per entry of {found.axis}", "forward", "training", "what is counted")
    rows: list[tuple[str | float, ...]] = [
        (name, *(shown(round(getattr(phase, name))) for phase in (found.forward, found.training)), what)
        for name, what in _CONVENTIONS.items()
    ]
    times = (found.seconds, found.step_seconds)
    if any(time is not None for time in times):
        at_least = ">= " if found.is_lower_bound else ""
        told = ["" if time is None else time if exact else at_least + seconds(time) for time in times]
        rows.append(("seconds" if exact else "time", *told, "predicted for the device"))
    counts = {
        "active parameters": (found.active_parameters, parameters, least, "N of the line active"),
        "parameters": (found.parameters, parameters, least, "N of the line total, without embeddings"),
        "items": (found.items, number, "", "in one run"),
        "unknown": (found.unknown, number, "", "calls of unknown cost"),
    }
    for name, (count, said, bound, what) in counts.items():
        if count or "parameters" in name:
            rows.append((name, count if exact else bound + said(count), "", what))
    return Listing(heads, rows)


_HEADS = ("model", "FLOPs", "params", "bytes", "peak memory", "coverage", "analyzed in")
_DEVICE_HEADS = ("time", "90 % interval", "device memory")
_COUNTED = ("model", "matrix_flops", "parameters", "bytes", "peak_bytes", "calls", "unknown", "seconds")
_FIELDS = (*_COUNTED, "error")
_DEVICE_FIELDS = ("time_seconds", "time_low", "time_high", "device_bytes")
_FORMULA = 40  # characters of a formula
_NAME = 200
_ERROR = 1_000


def overview_document(found: Overview) -> Document:
    """A line for each model, on a device with time and memory; what is assumed, and why models failed."""
    is_timed = any(line.cost is not None and line.cost.time is not None for line in found.lines)
    heads, fields = (*_HEADS, *_DEVICE_HEADS * is_timed), (*_FIELDS, *_DEVICE_FIELDS * is_timed)
    cells = [[safe(line.model, _NAME), *_cells(line)] for line in found.lines]
    entries = [Entry([*row, *[""] * (len(heads) - len(row))]) for row in cells]
    rows = [_exact(line, fields) for line in found.lines]
    failed = [f"{safe(line.model, _NAME)}: {safe(line.error, _ERROR)}" for line in found.lines if line.error]
    lists = {"Assumed": _assumed(found), "Failed": failed}
    return Document(
        [TextTable(heads, entries)],
        exact=lambda: Listing(fields, [[_spelled(cell) for cell in row.values()] for row in rows]),
        data=lambda: {"schema": 1, "models": rows},
        lists=[(title, lines) for title, lines in lists.items() if lines],
    )


def _cells(line: OverviewLine) -> Iterator[str]:
    """Figures, those of a device behind the others; none of a model that could not be analyzed."""
    if (cost := line.cost) is None:
        return
    numbers = Numbers(lambda quantity: evaluate(quantity, cost.values), _FORMULA)
    least = ">= " if cost.unknown else ""
    known = f"{percent(cost.calls - cost.unknown, cost.calls) or '100.0'} %"
    yield from (f"{least}{numbers.count(cost.matrix_flops)}", parameters(cost.parameters))
    yield from (f"{least}{numbers.memory(size)}" for size in (cost.moved_bytes, cost.peak_bytes))
    yield f"{known}, {cost.unknown:,} unknown" if cost.unknown else known
    yield f"{cost.seconds:.2f} s"
    if cost.time is not None:
        yield f"{'>= ' if cost.time.is_lower_bound else ''}{seconds(cost.time.seconds)}"
        yield interval(cost.time.low, cost.time.high)
        yield "" if cost.device_bytes is None else f"{least}{memory(cost.device_bytes)}"


def _assumed(found: Overview) -> list[str]:
    """The assumed sizes; models that assume the same are one line."""
    costs = ((line.cost, safe(line.model, 60)) for line in found.lines)
    models = grouped((assumptions(cost.assumed), name) for cost, name in costs if cost and cost.assumed)
    return [
        f"{sizes}: {names[0] if len(names) == 1 else count_of(len(names), 'model')}"
        for sizes, names in models.items()
    ]


def _exact(line: OverviewLine, names: Sequence[str]) -> dict[str, Any]:
    """The figures by field; None for what is not known."""
    row: dict[str, Any] = dict.fromkeys(names)
    row |= {"model": safe(line.model, 10_000), "error": safe(line.error, 10_000) or None}
    if (cost := line.cost) is None:
        return row
    dims = {"matrix_flops": cost.matrix_flops, "bytes": cost.moved_bytes, "peak_bytes": cost.peak_bytes}
    row |= {name: quantity(dim, cost.values) for name, dim in dims.items()}
    counts = ("parameters", "calls", "unknown", "device_bytes")
    row |= {name: getattr(cost, name) for name in counts if name in names}
    row["seconds"] = round(cost.seconds, 3)
    if cost.time is not None:
        row |= {f"time_{name}": getattr(cost.time, name) for name in ("seconds", "low", "high")}
    return row


def _spelled(cell: Any) -> str | int:
    if isinstance(cell, Formula):
        return cell.formula if cell.value is None else cell.value
    return "" if cell is None else cell if isinstance(cell, int) else str(cell)


_HISTORY = 1
_COMMIT_HEADS = ("commit", "date", "subject", "FLOPs", "%", "params", "bytes", "peak memory")
_NAMES = (REPORTED[0].label, "parameters", "bytes read and written", "peak memory")
_LABELS = dict(zip(TOTALS, _NAMES, strict=True))
_HASH = 10  # digits of a commit
_SUBJECT = 60


def history_document(found: History) -> Document:
    """A line for each commit, the oldest first, with its change of FLOPs; for programs null if not known."""
    head = {"history": _HISTORY, "tool": Tool("graphflops", __version__), "path": safe(found.path, 10_000)}
    heads = ("commit", "date", "path", *TOTALS, "error", "subject")
    return Document(
        [history_grid(found)],
        headline=safe(found.path),
        exact=lambda: Listing(heads, [[*_exact_point(point).values()] for point in found.points]),
        data=lambda: {**head, "points": [_exact_point(point) for point in found.points]},
        title=f"{found.path}: history",
        pictures=lambda: "".join(_chart(found, quantity) for quantity in TOTALS),
    )


def history_grid(found: History) -> TextTable:
    """A line for each commit."""
    entries = []
    before: int | None = None
    for point in found.points:
        version, cost = point.version, point.line.cost
        flops = point.value("matrix_flops")
        change = "" if not before or flops is None else f"{100 * (flops - before) / before:+.1f}"
        change = change.replace("+0.0", "0.0").replace("-0.0", "0.0")
        known = ((name, point.value(name)) for name in TOTALS)
        texts = ["" if value is None else measured(name, value) for name, value in known]
        least = ">= " if cost is not None and cost.unknown else ""
        commit, subject = version.commit[:_HASH], safe(point.line.error or version.subject, _SUBJECT)
        entries.append(Entry([commit, version.date, subject, least + texts[0], change, *texts[1:]]))
        before = flops if flops is not None else before
    return TextTable(_COMMIT_HEADS, entries, names=3)


def _exact_point(point: HistoryPoint) -> dict[str, Any]:
    version = point.version
    return {
        "commit": version.commit,
        "date": version.date,
        "path": safe(version.path, 10_000),
        **{quantity: point.value(quantity) for quantity in TOTALS},
        "error": safe(point.line.error, 10_000) or None,
        "subject": safe(version.subject, 10_000),
    }


def _chart(found: History, quantity: str) -> str:
    values = [(place, point.value(quantity)) for place, point in enumerate(found.points, 1)]
    known = tuple([(place, value) for place, value in values if value is not None])
    if not known:
        return ""
    versions = [point.version for point in found.points]
    names = [f"{version.commit[:_HASH]} {version.date}, {version.subject}" for version in versions]
    name, told = _LABELS[quantity], partial(measured, quantity)
    drawn = plot(quantity, name, "commit", [Curve("", known)], told, lambda place: names[place - 1])
    return f"<figure><figcaption>{name}</figcaption>{drawn}</figure>"


def registered() -> Listing:
    """Every operator that has a rule."""
    heads = ("operator", "rule", "file", "what is counted")
    rows = [[rule.key, *_home(rule), docstring(rule.function).partition("\n")[0]] for rule in known()]
    return Listing(heads, rows)


def used(report: Report) -> Listing:
    """Every operator of a program, the unknown ones first: how often it is called, and what priced it."""
    heads = ("operator", "calls", "state", "priced as", "rule", "file")
    states = grouped((row.op, row.state) for row in report.rows)
    rows: list[list[str | int]] = []
    for op, seen in sorted(states.items(), key=lambda item: ("unknown" not in item[1], item[0])):
        rule = find(op)
        home = [rule.key, *_home(rule)] if rule else ["", "", ""]
        rows.append([op, len(seen), ", ".join(sorted({*seen})), *home])
    return Listing(heads, rows)


def _home(rule: Rule) -> list[str]:
    function = unwrap(rule.function)
    name = getattr(function, "__qualname__", type(rule.function).__name__)
    package, _, module = rule.home.rpartition(".")
    if package == "graphflops.rules":
        return [name.replace("<locals>.", ""), f"{module}.py"]
    code = getattr(function, "__code__", None)
    return [name.replace("<locals>.", ""), Path(code.co_filename).name if code else rule.home]
