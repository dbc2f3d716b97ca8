"""Counts in closed form the (query, key) pairs for which conditions hold."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from graphflops.attention.conditions import SameBlock, where_not_negative
from graphflops.dims import at_least, dim_max, dim_min, floor_div
from graphflops.rules.attention import doubled_pairs

if TYPE_CHECKING:
    from graphflops.attention.conditions import Case, Cases
    from graphflops.dims import Dim

_MOST_CASES = 4  # whose overlaps are counted: 15 formulas


def doubled_visible(cases: Cases, queries: Dim, keys: Dim) -> tuple[Dim, bool]:
    """2 x the pairs for which one of the cases holds, and whether the count is exact.

    If not, some condition was dropped and the count is an upper bound. Raises DimError where the formula grows too large.
    """
    kept = [_countable(case) for case in cases]
    if () in kept:
        return 2 * queries * keys, () in cases
    exact = kept == list(cases)
    if len(kept) > _MOST_CASES:
        return 2 * queries * keys, False
    visible: Dim = 0
    for number in range(1, len(kept) + 1):
        for chosen in combinations(kept, number):
            for case in where_not_negative(*[term for each in chosen for term in each]).upper:
                if _countable(case) != case:
                    return 2 * queries * keys, False
                visible = visible + _doubled(case, queries, keys) * (1 if number % 2 else -1)
    return visible, exact


def _countable(case: Case) -> Case:
    """The conditions that have a closed form together: bounds of queries and keys, diagonals, and without bounds blocks."""
    blocks = [term for term in case if isinstance(term, SameBlock)]
    kept = [term for term in case if term not in blocks and _is_simple(term.row, term.column)]
    bounded = any(0 in (term.row, term.column) for term in kept)
    return (*kept, *([] if bounded else blocks[:1]))


def _is_simple(row: int, column: int) -> bool:
    return abs(row) <= 1 and abs(column) <= 1 and (row, column) not in ((0, 0), (1, 1), (-1, -1))


def _doubled(case: Case, queries: Dim, keys: Dim) -> Dim:
    """2 x the pairs for which all of the conditions hold: a band of diagonals, cut out of a rectangle."""
    limit = {(term.row, term.column): term.constant for term in case}
    size = limit.get((0, 0))
    if size is not None:
        rest = tuple([term for term in case if not isinstance(term, SameBlock)])
        whole = dim_min(floor_div(queries, size), floor_div(keys, size))
        rows, columns = (dim_min(length - whole * size, size) for length in (queries, keys))
        return whole * _doubled(rest, size, size) + _doubled(rest, rows, columns)
    top, bottom = _span(limit.get((1, 0)), limit.get((-1, 0)), queries)
    first, end = _span(limit.get((0, 1)), limit.get((0, -1)), keys)
    left, right = limit.get((-1, 1)), limit.get((1, -1))
    pairs = doubled_pairs(bottom - top, end - first, left=left, right=right, offset=top - first)
    if left is not None and right is not None and not at_least(left + right, 0):
        pairs = dim_max(pairs, 0)
    return pairs


def _span(above: Dim | None, below: Dim | None, size: Dim) -> tuple[Dim, Dim]:
    """The places from the first up to before the last for which `place + above >= 0` and `below - place >= 0`."""
    begin = 0 if above is None else dim_max(-above, 0)
    end = size if below is None else dim_min(below + 1, size)
    return (begin, end) if above is None and below is None else (begin, dim_max(begin, end))
