"""FLOPs of a token or sample as a table: a line each for the forward and the training step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.base.units import number
from graphflops.base.units import parameters as as_parameters
from graphflops.render.listing import Listing

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphflops.derived.per_item import PerItem


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
    rows: list[tuple[str | int, ...]] = [
        (name, *(shown(round(getattr(phase, name))) for phase in (found.forward, found.training)), what)
        for name, what in _COUNTED.items()
    ]
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
