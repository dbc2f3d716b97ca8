"""Checks a table of a scan against a policy: the limits of a budget, for every row at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from graphflops.base.units import measured, percent
from graphflops.budget.check import RULES, finding
from graphflops.budget.limits import Budget, BudgetFile
from graphflops.budget.measure import UNITS, Limit
from graphflops.errors import FileError, shown
from graphflops.render.text import count_of
from graphflops.report.findings import Finding, Findings, ModelFindings
from graphflops.scan import store
from graphflops.scan.measure import COSTS, HELD

_COLUMNS = (
    "path", "binding", "status", "message", "contradiction", *COSTS, *HELD, "counted", "free", "unknown",
    "unknown_ops",
)  # fmt: skip


def checked(path: str, policy: BudgetFile) -> tuple[Findings, int]:
    """The findings of the rows that break the policy, and the number of rows that it is for.

    Raises FileError for a limit that a table cannot answer: of modules, of operators, of serving, or relative to a baseline.
    """
    for budget in policy.budgets:
        if budget.modules or budget.forbid or budget.relative or budget.sizes.serving:
            what = "modules, forbid, serving and relative limits need the models: check these, or leave the limits out"
            raise FileError(f"{shown(policy.path)}: {what}")
    found, count = [], 0
    for row in store.rows_of(store.read(path, columns=_COLUMNS)):
        named = [one for one in policy.budgets if one.applies(policy.name_of(row["path"]))]
        budgets = [one for one in named if _at(one, row)]
        count += bool(budgets)
        broken = [finding_ for budget in budgets for finding_ in _broken(row, budget)]
        if broken:
            name = " ".join(part for part in (row["path"], row["binding"]) if part)
            found.append(ModelFindings(name, tuple(dict.fromkeys(broken))))
    return Findings(tuple(found), "check", RULES), count


def _at(budget: Budget, row: Mapping[str, Any]) -> bool:
    """True if the budget is for the sizes of the row; one that states none is for all of them."""
    return not str(budget.sizes) or str(budget.sizes) == row["binding"]


def _broken(row: Mapping[str, Any], budget: Budget) -> Iterator[Finding]:
    if row["counted"] is None or row["message"]:
        yield finding("GF310", f"{row['status']}: {row['message']}")
        return
    if row["contradiction"] is None:
        what = "an older version wrote this row, which did not look for contradictions"
        yield finding("GF310", f"{what}: scan again")
    elif row["contradiction"]:
        yield finding("GF313", row["contradiction"])
    for limit in budget.limits:
        yield from _compared(row, limit, budget)
    calls = row["counted"] + row["free"] + row["unknown"]
    known = calls - row["unknown"]
    if budget.coverage is not None and known < budget.coverage * calls:
        asked = f"{float(100 * budget.coverage):g} %"
        yield finding("GF305", f"coverage is {percent(known, calls)} %, less than {asked}")


def _compared(row: Mapping[str, Any], limit: Limit, budget: Budget) -> Iterator[Finding]:
    value, most = row[limit.quantity], limit.most
    assert isinstance(most, int)
    if value is None:
        what = "depends on a size without a value, or is past the table's integers"
        yield finding("GF304", f"{limit.quantity} {what}")
    elif value > most:
        unit = UNITS[limit.quantity]
        is_, over = (measured(limit.quantity, count, unit) for count in (value, value - most))
        yield finding("GF301", f"{limit.quantity} is {is_}: {over} over the limit of {shown(limit.text)}")
    elif limit.quantity in COSTS and _unexcused(row, budget):
        names = ", ".join(_unexcused(row, budget)[:3])
        calls = count_of(row["unknown"], "call")
        yield finding("GF303", f"{limit.quantity} lacks {calls} of unknown cost ({names})")


def _unexcused(row: Mapping[str, Any], budget: Budget) -> list[str]:
    from graphflops.base.patterns import matches_op

    ops = row["unknown_ops"] or []
    return [op for op in ops if not any(matches_op(pattern, op) for pattern in budget.unknown)]
