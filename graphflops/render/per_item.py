"""FLOPs of a token or sample as a table: a line each for the forward and the training step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.render.listing import Listing
from graphflops.render.text import number

if TYPE_CHECKING:
    from graphflops.per_item import Convention, PerItem


def listing(found: PerItem) -> Listing:
    """FLOPs by convention, and the parameters behind them."""
    heads = (f"per entry of {found.axis}", "forward", "training", "what is counted")
    counted = {
        "dense": "matrix work that runs, also what masks make skippable",
        "visible": "the same without hidden pairs",
        "active": "2N or 6N of the parameters that an item is multiplied by, and attention",
        "total": "2N or 6N of all multiplied parameters, all experts included, and attention",
    }
    rows = [
        (name, _figure(found.forward, name), _figure(found.training, name), what)
        for name, what in counted.items()
    ]
    parameters = [
        ("active parameters", number(found.active_parameters), "", "N of the third line"),
        (
            "parameters",
            number(found.parameters),
            "",
            "N of the fourth line; embeddings that are looked up are not in it",
        ),
        ("items", number(found.items), "", "in one run"),
    ]
    return Listing(heads, [*rows, *parameters])


def _figure(convention: Convention, name: str) -> str:
    return number(round(getattr(convention, name)))
