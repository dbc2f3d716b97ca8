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
        rows.append(
            (
                "seconds" if exact else "time",
                *(_time(time, found, exact) for time in times),
                "predicted for the device",
            )
        )
    parameters = {
        "active parameters": (found.active_parameters, "N of the line active"),
        "parameters": (found.parameters, "N of the line total, without embeddings"),
    }
    rows += [
        (name, count if exact else least + as_parameters(count), "", what)
        for name, (count, what) in parameters.items()
    ]
    counts = {"items": (found.items, "in one run"), "unknown": (found.unknown, "calls of unknown cost")}
    rows += [
        (name, count if exact else number(count), "", what) for name, (count, what) in counts.items() if count
    ]
    return Listing(heads, rows)


def _time(time: float | None, found: PerItem, exact: bool) -> str | float:
    if time is None or exact:
        return "" if time is None else time
    return (">= " if found.is_lower_bound else "") + seconds(time)
