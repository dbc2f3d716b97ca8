"""Where an axis goes when a tensor is reshaped."""

from __future__ import annotations

from collections.abc import Sequence

from graphflops.dims import Dim, prod


def regrouped(before: Sequence[Dim], after: Sequence[Dim], axis: int, factor: int = 0) -> int | None:
    """The axis of a reshaped tensor that a split axis becomes: of several factors that of a number, else the leading one.

    Columns of a weight can be in any order, so each factor of them can be the split one. None where it is no factor.
    """
    done, size = prod(before[:axis]), before[axis]
    for place in range(len(after)):
        if prod(after[:place]) == done and after[place] != 1:
            parts = next(
                (n for n in range(1, len(after) - place + 1) if prod(after[place : place + n]) == size), 1
            )
            chosen = after[place + factor] if factor < parts else None
            is_known = isinstance(chosen, int) and isinstance(size, int)
            return place + factor if is_known or chosen == size else None
    return None


def axis_of(given: object, rank: int) -> int:
    """An axis counted from the first one."""
    given = given[0] if isinstance(given, tuple) and given else given
    return given % max(rank, 1) if isinstance(given, int) else rank - 1
