"""Random masks in every spelling and every domain of values, against all pairs evaluated one by one.

    python -m tests.attention.test_every_spelling [FIRST] [LAST]

Never may more be hidden than the mask hides; where sizes are numbers the count is exact in every spelling, and for lengths
that are bound afterwards all spellings give one count, which is exact where the condition is.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np
from hypothesis import given, settings, strategies as st

from graphflops.analysis import analyze
from graphflops.attention.affine import AffineDomain
from graphflops.attention.arrays import ArrayDomain
from graphflops.attention.attention_use import AttentionUse
from graphflops.attention.conditions import COLUMN, ROW, Cases, Residue, SameBlock
from graphflops.attention.elementwise import Interval, point
from graphflops.attention.index_propagation import Propagation
from graphflops.attention.piecewise import as_truth
from graphflops.attention.scopes import GraphScopes
from graphflops.dims import evaluate
from graphflops.graph import Ref
from tests.attention.mask_expressions import (
    KEYS,
    LONGEST,
    PAIR,
    QUERIES,
    SPELLINGS,
    Expression,
    can_render,
    evaluated,
    names_in,
    rendered,
)

BLOCK = 4


def number(draw: Any, depth: int) -> Expression:
    """A whole number that is not the same for every pair."""
    if depth <= 0 or draw(4) == 0:
        return "ij"[draw(2)]
    a = number(draw, depth - 1)
    kind = draw(10)
    if kind == 0:
        return ("add", a, draw(9) - 4)
    if kind == 1:
        return ("sub", a, number(draw, depth - 1))
    if kind == 2:
        return ("mul", a, (-1, 2, 3)[draw(3)])
    if kind == 3:
        return ("floor_divide", a, 2 + draw(4))
    if kind == 4:
        return ("remainder", a, 2 + draw(4))
    if kind == 5:
        return (("abs", "neg")[draw(2)], a)
    if kind == 6:
        return (("minimum", "maximum")[draw(2)], a, number(draw, depth - 1))
    if kind == 7:
        return ("clamp", a, draw(4) - 2, 2 + draw(8))
    if kind == 8:
        return ("where", truth(draw, depth - 1), a, number(draw, depth - 1))
    return ("table", "ij"[draw(2)])


def truth(draw: Any, depth: int) -> Expression:
    """A truth: a comparison, or several."""
    if depth <= 0 or draw(3) == 0:
        compare = ("le", "lt", "ge", "gt", "eq", "ne")[draw(6)]
        a = number(draw, 2)
        return (compare, a, number(draw, 1) if draw(2) else draw(12) - 3)
    a, kind = truth(draw, depth - 1), draw(5)
    if kind == 0:
        return ("not", a)
    if kind == 1:
        return ("where", a, truth(draw, depth - 1), truth(draw, depth - 1))
    return (("and", "or", "xor")[kind - 2], a, truth(draw, depth - 1))


def pairs(expression: Expression, queries: int, keys: int) -> Any:
    """Where the mask holds, in plain Python."""
    return np.array([[bool(evaluated(expression, i, j)) for j in range(keys)] for i in range(queries)])


def visible(use: AttentionUse, bound: dict[str, int]) -> int:
    flops = evaluate(use.flops - use.masked_flops, bound)
    assert flops is not None
    assert flops % PAIR == 0
    return flops // PAIR


def check_counts(expression: Expression, queries: int, keys: int) -> None:
    """Of numbers: exact in every spelling."""
    expected = int(pairs(expression, queries, keys).sum())
    for spelling in SPELLINGS:
        if can_render(expression, spelling):
            (use,) = analyze(rendered(expression, queries, keys, spelling, BLOCK)).attentions
            assert visible(use, {}) == expected, spelling


def check_blocks(expression: Expression, queries: int, keys: int) -> None:
    """Blocks with some and with only visible pairs."""
    seen = pairs(expression, queries, keys)
    blocks = [
        seen[top : top + BLOCK, left : left + BLOCK]
        for top in range(0, queries, BLOCK)
        for left in range(0, keys, BLOCK)
    ]
    full = sum(block.sum() == BLOCK * BLOCK for block in blocks)
    (use,) = analyze(rendered(expression, queries, keys, "mask", BLOCK)).attentions
    assert (use.partial_blocks, use.full_blocks) == (sum(block.any() for block in blocks) - full, full)


def check_lengths(expression: Expression, sizes: list[tuple[int, int]]) -> None:
    """Of lengths bound afterwards: one count in every spelling, exact where no diagnostic doubts it, else an upper bound."""
    reports = {
        spelling: analyze(rendered(expression, QUERIES, KEYS, spelling, BLOCK))
        for spelling in SPELLINGS
        if spelling != "stored" and can_render(expression, spelling)
    }
    is_exact = not reports["mask"].diagnostics
    for queries, keys in sizes:
        counts = {visible(*report.attentions, {"q": queries, "k": keys}) for report in reports.values()}
        assert len(counts) == 1
        found = counts.pop()
        expected = int(pairs(expression, queries, keys).sum())
        assert found == expected if is_exact else found >= expected


def holds(cases: Cases, i: int, j: int) -> bool:
    def term_holds(term: Any) -> bool:
        if isinstance(term, SameBlock):
            return bool(i // term.constant == j // term.constant)
        value = term.row * i + term.column * j + term.constant
        if isinstance(term, Residue):
            return value % term.modulus in term.remainders
        return bool(value >= 0)

    return any(all(map(term_holds, case)) for case in cases)


def check_domains(expression: Expression, queries: int, keys: int) -> None:
    """Each domain, pair by pair: the affine one holds the mask between its bounds, intervals hold it in rectangles."""
    graph = rendered(expression, queries, keys, "kept")
    mask = graph.nodes[-1].args[3]
    scope = GraphScopes(graph).of(graph)
    assert isinstance(mask, Ref)
    seen = pairs(expression, queries, keys)
    formula = as_truth(Propagation(AffineDomain(), 400).evaluate(scope, mask, (ROW, COLUMN), 2**30))
    for (i, j), sees in np.ndenumerate(seen):
        assert holds(formula.upper, i, j) or not sees
        assert not holds(formula.lower, i, j) or sees
    arrays = ArrayDomain()
    at = point(np.arange(queries)[:, None]), point(np.arange(keys)[None, :])
    points = Propagation(arrays, 400).evaluate(scope, mask, at, 2**30)
    assert points.is_exact
    assert np.array_equal(np.broadcast_to(points.low, seen.shape).astype(bool), seen)
    edges = [
        (0, queries - 1, 0, keys - 1),
        (queries // 2, queries - 1, 0, keys // 2),
        (0, 0, keys - 1, keys - 1),
    ]
    for top, bottom, left, right in edges:
        spans = (Interval(np.array([top]), np.array([bottom])), Interval(np.array([left]), np.array([right])))
        low, high = Propagation(arrays, 400).evaluate(scope, mask, spans, 2**30)
        part = seen[top : bottom + 1, left : right + 1]
        assert np.all(low <= part.min())
        assert np.all(high >= part.max())


def check(draw: Any) -> Expression:
    expression = truth(draw, 2)
    queries, keys = 1 + draw(LONGEST), 1 + draw(LONGEST)
    check_counts(expression, queries, keys)
    check_blocks(expression, queries, keys)
    check_domains(expression, queries, keys)
    check_lengths(expression, [(queries, keys), (5, 5), (LONGEST, 7)])
    return expression


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data())
def test_one_count_in_every_spelling(data: st.DataObject) -> None:
    check(lambda most: data.draw(st.integers(0, most - 1)))


def main() -> int:
    first, last = (int(x) for x in (sys.argv[1:3] if len(sys.argv) > 2 else ("0", "300")))
    failed = affine = 0
    for seed in range(first, last):
        source = random.Random(seed)
        try:
            affine += not names_in(check(source.randrange)) & {"remainder", "table"}
        except AssertionError as error:
            failed += 1
            source = random.Random(seed)
            print(f"{seed}: {truth(source.randrange, 2)}: {str(error).splitlines()[:1]}")
    print(
        f"{last - first} masks in {len(SPELLINGS)} spellings, {affine} of them without modulo and tables, {failed} differ"
    )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
