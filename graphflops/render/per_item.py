"""FLOPs and time of a token or sample as a table: of the forward and of the training step."""

from __future__ import annotations

from collections.abc import Callable

from graphflops.base.units import number, seconds
from graphflops.base.units import parameters as as_parameters
from graphflops.derived.per_item import PerItem
from graphflops.render.tables import Listing

_COUNTED = {
    "dense": "matrix FLOPs, those that masks hide too",
    "visible": "matrix FLOPs that masks leave visible",
    "active": "2N or 6N of what runs, and attention",
    "total": "2N or 6N of all experts, and attention",
}


def listing(found: PerItem, *, exact: bool) -> Listing:
    """FLOPs by convention, and the parameters behind them. exact: whole numbers, for programs."""
    least = ">= " if found.unknown else ""
    shown: Callable[[int], str | int] = (lambda n: n) if exact else lambda n: f"{least}{number(n)}"
    heads = (f"per entry of {found.axis}", "forward", "training", "what is counted")
    rows: list[tuple[str | float, ...]] = [
        (name, *(shown(round(getattr(phase, name))) for phase in (found.forward, found.training)), what)
        for name, what in _COUNTED.items()
    ]
    times = (found.seconds, found.step_seconds)
    if any(time is not None for time in times):
        name = "seconds" if exact else "time"
        rows.append((name, *(_time(time, found, exact) for time in times), "predicted for the device"))
    counts = {
        "active parameters": (found.active_parameters, as_parameters, least, "N of the line active"),
        "parameters": (found.parameters, as_parameters, least, "N of the line total, without embeddings"),
        "items": (found.items, number, "", "in one run"),
        "unknown": (found.unknown, number, "", "calls of unknown cost"),
    }
    for name, (count, said, bound, what) in counts.items():
        if count or "parameters" in name:
            rows.append((name, count if exact else bound + said(count), "", what))
    return Listing(heads, rows)


def _time(time: float | None, found: PerItem, exact: bool) -> str | float:
    if time is None or exact:
        return "" if time is None else time
    return (">= " if found.is_lower_bound else "") + seconds(time)
