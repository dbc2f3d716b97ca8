"""Views of tables of a scan: a page, the changes between two, and the rows that break a policy (limits of a budget)."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from graphflops.base.patterns import matches_op
from graphflops.base.record import Record
from graphflops.base.units import measured, memory, number, parameters, percent
from graphflops.budget.check import RULES, finding
from graphflops.budget.limits import Budget, BudgetFile
from graphflops.budget.measure import UNITS, Limit
from graphflops.errors import FileError, shown
from graphflops.render.html.fragment import escaped, inert, page as whole, read
from graphflops.render.table import Page
from graphflops.render.text import Entry, TextTable, count_of, safe
from graphflops.report import HELD
from graphflops.report.findings import Finding, Findings, ModelFindings
from graphflops.scan import store
from graphflops.scan.worker import ANALYZED, COSTS, RESULTS, Row
from graphflops.tensor import grouped

_COMPARED = ("status", "matrix_flops", "parameters", "read_bytes", "written_bytes", "peak_bytes", "unknown")
_LINES = 40
_NAME = 120


class RowChange(Record, frozen=True):
    """A file at a binding; a side is None if its table does not have it."""

    name: str
    before: Row | None
    after: Row | None

    @property
    def rank(self) -> int:
        sides = [(side or {}).get("matrix_flops") or 0 for side in (self.before, self.after)]
        return abs(int(sides[1] - sides[0]))


class FleetChange(Record, frozen=True):
    """The rows that differ, those with the largest change of FLOPs first; same: how many do not. flops: of all rows."""

    rows: tuple[RowChange, ...]
    same: int
    flops: tuple[int, int]


def changes(old: str, new: str) -> FleetChange:
    """Compares two tables by path and binding; FileError if one is not a table of a scan."""
    before, after = _rows(old), _rows(new)
    keys = {**before, **after}
    every = [RowChange(" ".join(filter(None, key)), before.get(key), after.get(key)) for key in keys]
    found = [one for one in every if _figures(one.before) != _figures(one.after)]
    found.sort(key=lambda change: (-change.rank, change.name))
    ours_, theirs_ = (sum(row["matrix_flops"] or 0 for row in rows.values()) for rows in (before, after))
    return FleetChange(tuple(found), len(every) - len(found), (ours_, theirs_))


def _figures(row: Row | None) -> list[Any] | None:
    return None if row is None else [row[column] for column in _COMPARED]


def _rows(folder: str) -> Mapping[tuple[str, str], Row]:
    table = store.read(folder, columns=("path", "binding", "inputs", *_COMPARED))
    return {(row["path"], row["binding"]): row for row in store.rows_of(table)}


def text(found: FleetChange, *, width: int = 120, color: bool = False) -> str:
    """One line for the fleet, then a line for each row that changed."""
    page = Page(width, color)
    states = [_state(change) for change in found.rows]
    counts = [f"{states.count(name):,} {name}" for name in ("changed", "new", "gone") if name in states]
    total = f"FLOPs of all {number(found.flops[0])} → {number(found.flops[1])}{_percent(*found.flops)}"
    what = ", ".join(counts) or "identical"
    page.line((f"{count_of(found.same + len(found.rows), 'row')}: {what}; {total}", "bold"))
    if not found.rows:
        return page.text()
    entries = [Entry(_cells(change)) for change in found.rows[:_LINES]]
    if len(found.rows) > _LINES:
        entries.append(Entry([f"… {len(found.rows) - _LINES:,} more", *[""] * 7]))
    heads = ("model", "change", "FLOPs before", "after", "%", "peak %", "params", "status")
    page.table(TextTable(heads, entries, names=2))
    return page.text()


def _state(change: RowChange) -> str:
    return "new" if change.before is None else "gone" if change.after is None else "changed"


def _cells(change: RowChange) -> list[str]:
    ours, theirs = change.before or {}, change.after or {}
    columns = ("matrix_flops", "peak_bytes", "inputs")
    flops, peaks, inputs = ((ours.get(name), theirs.get(name)) for name in columns)
    held = (theirs.get("parameters") or 0) - (ours.get("parameters") or 0)
    more = f"+{parameters(held)}" if held > 0 else parameters(held) if held else ""
    status = " → ".join(dict.fromkeys(side["status"] for side in (ours, theirs) if side))
    state = _state(change) + ", other sizes" * (all(inputs) and inputs[0] != inputs[1])
    work = ("" if value is None else number(value) for value in flops)
    shares = [_percent(*pair).strip(" ()%") for pair in (flops, peaks)]
    return [safe(change.name, _NAME), state, *work, *shares, more, status]


def _percent(before: int | None, after: int | None) -> str:
    if not before or after is None:
        return ""
    return f" ({100 * (after - before) / before:+.1f} %)" if after != before else " (0.0 %)"


_COLUMNS = (
    "path", "binding", "status", "message", "contradiction", *COSTS, *HELD, "counted", "free", "unknown",
    "unknown_ops",
)  # fmt: skip


def checked(path: str, policy: BudgetFile) -> tuple[Findings, int]:
    """Findings of the rows that break the policy, and how many it is for. FileError for limits that no table answers."""
    for budget in policy.budgets:
        if len(budget.limits) > 1 or budget.forbid or budget.relative or budget.sizes.serving:
            what = "modules, forbid, serving and relative limits need the models: check these, or leave the limits out"
            raise FileError(f"{shown(policy.path)}: {what}")
    found, count = [], 0
    for row in store.rows_of(store.read(path, columns=_COLUMNS)):
        named = [one for one in policy.budgets if one.applies(policy.name_of(row["path"]))]
        # A budget that states no sizes is for all of them.
        budgets = [one for one in named if str(one.sizes) in ("", row["binding"])]
        count += bool(budgets)
        broken = [finding_ for budget in budgets for finding_ in _broken(row, budget)]
        if broken:
            name = " ".join(part for part in (row["path"], row["binding"]) if part)
            found.append(ModelFindings(name, tuple(dict.fromkeys(broken))))
    return Findings(tuple(found), "check", RULES), count


def _broken(row: Mapping[str, Any], budget: Budget) -> Iterator[Finding]:
    counts = [row[name] for name in ("counted", "free", "unknown")]
    if None in counts or row["message"] or row["status"] not in ANALYZED:
        yield finding("GF310", f"{row['status']}: {row['message']}")
        return
    if any(isinstance(value, int) and value < 0 for value in row.values()):
        yield finding("GF310", "the row has a number below zero, which no scan writes: scan again")
    if row["contradiction"] is None:
        what = "an older version wrote this row, which did not look for contradictions"
        yield finding("GF310", f"{what}: scan again")
    elif row["contradiction"]:
        yield finding("GF313", row["contradiction"])
    for limit in [limit for _, limits in budget.limits for limit in limits]:
        yield from _compared(row, limit, budget)
    calls = sum(counts)
    known = calls - row["unknown"]
    if budget.coverage is not None and known < budget.coverage * calls:
        asked = f"{float(100 * budget.coverage):g} %"
        yield finding("GF305", f"coverage is {percent(known, calls)} %, less than {asked}")


def _compared(row: Mapping[str, Any], limit: Limit, budget: Budget) -> Iterator[Finding]:
    value, most = row[limit.quantity], limit.most
    assert isinstance(most, int)
    named = row["unknown_ops"] or ["operators that the row does not name"] * bool(row["unknown"])
    ops = [op for op in named if not any(matches_op(one, op) for one in budget.unknown)]
    if value is None:
        what = "depends on a size without a value, or is past the table's integers"
        yield finding("GF304", f"{limit.quantity} {what}")
    elif value > most:
        unit = UNITS[limit.quantity]
        is_, over = (measured(limit.quantity, count, unit) for count in (value, value - most))
        yield finding("GF301", f"{limit.quantity} is {is_}: {over} over the limit of {shown(limit.text)}")
    elif limit.quantity in COSTS and ops:
        calls = count_of(row["unknown"], "call")
        yield finding("GF303", f"{limit.quantity} lacks {calls} of unknown cost ({', '.join(ops[:3])})")


# Head, column, and how its numbers are written: n count, p parameters, b bytes, s seconds, "" text.
_SHOWN = (
    ("model", "path", ""),
    ("binding", "binding", ""),
    ("inputs", "inputs", ""),
    ("assumed", "assumed", ""),
    ("status", "status", ""),
    ("FLOPs", "matrix_flops", "n"),
    ("params", "parameters", "p"),
    ("read", "read_bytes", "b"),
    ("written", "written_bytes", "b"),
    ("peak memory", "peak_bytes", "b"),
    ("time", "time_seconds", "s"),
    ("attentions", "attentions", "n"),
    ("errors", "audit_errors", "n"),
    ("warnings", "audit_warnings", "n"),
    ("unknown calls", "unknown", "n"),
    ("producer", "producer", ""),
    ("message", "message", ""),
    ("contradiction", "contradiction", ""),
)
_TEXT = 300
_LISTED = 6  # inputs or sizes of a row
_HERE = Path(__file__).parent


def page(folder: str, name: str = "") -> str:
    """The table in a folder as a page of that name, or its own; FileError if there is none."""
    columns = [column for _, column, _ in _SHOWN]
    formulas = [f"{column}_formula" for column in columns if f"{column}_formula" in RESULTS]
    rows = list(store.rows_of(store.read(folder, columns=[*columns, *formulas])))
    rows.sort(key=lambda row: (-(row["matrix_flops"] or -1), row["path"], row["binding"]))
    kept = [i for i, column in enumerate(columns) if any(row[column] not in (None, "", []) for row in rows)]
    heads = [[_SHOWN[index][0], _SHOWN[index][2]] for index in kept]
    cells = [[*(_cell(row[columns[i]]) for i in kept), _assumed(row, columns, kept)] for row in rows]
    data = {"heads": heads, "rows": cells}
    name = name or folder
    counts = Counter(row["status"] for row in rows)
    states = ", ".join(
        f"{count:,} {safe(name, 40)} ({percent(count, len(rows))} %)"
        for name, count in sorted(counts.items())
    )
    groups = grouped((row["binding"] or "", row) for row in rows)
    sums = (f"{safe(name, 80)}: " * (len(groups) > 1) + _together(group) for name, group in groups.items())
    assumed = sum(bool(row["assumed"]) for row in rows)
    said = f"{count_of(len(rows), 'row')}: {states}. {'; '.join(sums)}."
    if assumed:
        marked = "a ~ marks them and what follows from them."
        said += f" Sizes were assumed for {count_of(assumed, 'row')}: {marked}"
    body = f"""<h1>{escaped(name)}</h1>
<p>{escaped(said)}</p>
<p><label>Filter: <input id="filter" type="search" placeholder="onnx error flops&gt;1e12"></label>
<span id="count"></span></p>
<noscript>The table needs the script of this page.</noscript>
<div class="room"><table id="table"><thead></thead><tbody></tbody></table></div>
<script type="application/json" id="data">{inert(json.dumps(data).encode())}</script>"""
    return whole(f"{name}: fleet", body, read(_HERE, "page.css"), read(_HERE, "page.js"))


def _assumed(row: dict[str, Any], columns: list[str], kept: list[int]) -> list[int]:
    """Places of the figures that may depend on an assumed size."""
    if not row["assumed"]:
        return []
    open_ = {"time_seconds", *(name for name in columns if not (row.get(f"{name}_formula") or "0").isdigit())}
    known = [(place, columns[index]) for place, index in enumerate(kept)]
    return [place for place, name in known if name in open_ and row[name] is not None]


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        more = [f"… {len(value) - _LISTED:,} more"] if len(value) > _LISTED else []
        value = "; ".join([*value[:_LISTED], *more])
    return safe(value, _TEXT) if isinstance(value, str) else value


def _together(rows: list[dict[str, Any]]) -> str:
    flops = sum(row["matrix_flops"] or 0 for row in rows)
    held = sum(row["parameters"] or 0 for row in rows)
    moved = sum((row["read_bytes"] or 0) + (row["written_bytes"] or 0) for row in rows)
    return f"{number(flops)} FLOPs, {parameters(held)} parameters, {memory(moved)} moved in all"
