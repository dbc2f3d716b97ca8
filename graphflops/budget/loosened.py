"""Compares two versions of a budget: what the newer one no longer limits, or limits less."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphflops.budget.limits import Budget, BudgetFile
from graphflops.budget.measure import Limit
from graphflops.errors import shown


def loosened(old: BudgetFile, new: BudgetFile) -> Iterator[str]:
    """One line for each limit that is gone or larger, and for each model, operator or share that is let go."""
    if gone := [pattern for pattern in old.models if pattern not in new.models]:
        yield f"models are no longer checked: {_names(gone)}"
    if old.baseline is not None and old.baseline != new.baseline:
        yield f"the baseline {shown(old.baseline)} is no longer the one compared with"
    for entry in old.budgets:
        same = [other for other in new.budgets if (other.models, other.sizes) == (entry.models, entry.sizes)]
        where = _names(entry.models) + (f" at {shown(str(entry.sizes))}" if str(entry.sizes) else "")
        if not same:
            yield f"{where}: all limits are gone"
        else:
            yield from (f"{where}: {what}" for what in _of_one(entry, same))


def _of_one(old: Budget, new: Sequence[Budget]) -> Iterator[str]:
    for limit in old.limits:
        yield from _larger("", limit, [other for entry in new for other in entry.limits])
    for pattern, limits in old.modules:
        same = [those for entry in new for path, those in entry.modules if path == pattern]
        others = [limit for those in same for limit in those]
        for limit in limits:
            yield from _larger(f" of {shown(pattern, 80)}", limit, others)
    least = max((entry.coverage for entry in new if entry.coverage is not None), default=None)
    if old.coverage is not None and (least is None or least < old.coverage):
        now = f", is {float(100 * least):g} %" if least else ""
        yield f"coverage was {float(100 * old.coverage):g} %{now}"
    if freed := [op for op in old.forbid if not any(op in entry.forbid for entry in new)]:
        yield f"no longer forbidden: {_names(freed)}"
    if allowed := [op for op in new[0].unknown if op not in old.unknown]:
        yield f"may be of unknown cost now: {_names(allowed)}"


def _larger(scope: str, old: Limit, new: Sequence[Limit]) -> Iterator[str]:
    others = [one for one in new if (one.quantity, one.relative) == (old.quantity, old.relative)]
    if not others:
        yield f"{old.quantity}{scope} was {_side(old)} {shown(old.text, 60)}, has no such limit now"
    elif not any(_as_strict(one, old) for one in others):
        was, now = shown(old.text, 60), shown(others[0].text, 60)
        yield f"{old.quantity}{scope} was {_side(old)} {was}, is {_side(old)} {now} now"


def _side(limit: Limit) -> str:
    return "at least" if limit.is_least else "at most"


def _as_strict(new: Limit, old: Limit) -> bool:
    if isinstance(new.most, int) or isinstance(old.most, int):
        if not isinstance(new.most, int) or not isinstance(old.most, int):
            return False
        return new.most >= old.most if new.is_least else new.most <= old.most
    return new.most.share <= old.most.share and new.most.number <= old.most.number


def _names(names: Sequence[str]) -> str:
    return ", ".join(shown(name, 80) for name in names[:8]) + (", ..." if len(names) > 8 else "")
