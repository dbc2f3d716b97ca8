"""Changes that have one reason are one line, the largest first, in at most twelve lines of the width that there is."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from graphflops.comparison.compare import compared
from graphflops.cost import Cost
from graphflops.render import render
from graphflops.render.diff.texts import VISIBLE, cause_words
from tests.compare.programs import BATCH, SHAPE, decoder, report
from tests.render.reports import decoder as made_decoder

LAYERS = 11  # so that numbers have two digits


@cache
def of(**sizes: int):
    return report(decoder(layers=LAYERS, **sizes))


@pytest.fixture(scope="module")
def base():
    return of()


def words(base, **sizes: int) -> list[str]:
    return [cause_words(cause) for cause in compared(base, of(**sizes)).causes]


def test_a_wider_layer_is_one_line(base) -> None:
    assert words(base, inner=96) == [f"blocks.0-10.mlp (x11): {SHAPE.inner} → 96 wide in up, down, act"]


def test_fewer_heads_and_their_products_are_one_line(base) -> None:
    assert words(base, kv_heads=2) == [
        "blocks.0-10.attention (x11): key and value heads 4 → 2, 32 → 16 wide in k, v"
    ]


def test_two_changes_are_two_lines_and_sum_to_the_total(base) -> None:
    comparison = compared(base, of(inner=96, vocabulary=128))
    assert [cause_words(cause) for cause in comparison.causes] == [
        "blocks.0-10.mlp (x11): 64 → 96 wide in up, down, act",
        "head, embedding: 96 → 128 rows",
    ]
    deltas = [cause.figures["matrix_flops"].delta for cause in comparison.causes]
    # 2 x 8 tokens; up and down 32 wider, 32 words more, each against a width of 32; 2 FLOPs a multiply-add
    assert deltas == [LAYERS * 2 * (2 * BATCH * 8 * 32 * 32), 2 * BATCH * 8 * 32 * 32]
    assert sum(deltas) == comparison.totals["forward"]["matrix_flops"].delta


@pytest.mark.parametrize("width", [80, 120])
def test_many_changes_keep_to_the_screen(width: int) -> None:
    old = made_decoder(layers=30)
    rows = [row._replace(cost=row.cost + Cost(1000 - index)) for index, row in enumerate(old.rows)]
    new = replace(old, rows=tuple(rows), totals=replace(old.totals, cost=Cost.sum(row.cost for row in rows)))
    lines = render(compared(old, new), "table", width=width).splitlines()
    assert len(lines) <= VISIBLE
    assert max(map(len, lines)) <= width
    assert any("more changes" in line for line in lines)
    heads = next(line for line in lines if line.strip().startswith("what changed"))
    assert "% of all" in heads
    tables = render(compared(old, new), "table", width=width, verbose=True).splitlines()
    assert max(map(len, tables)) <= width


def test_markdown_folds_the_tables(base) -> None:
    text = render(compared(base, of(inner=96)), "markdown")
    visible, _, folded = text.partition("<details>")
    assert len([line for line in visible.splitlines() if line]) <= VISIBLE
    assert "| total | before |" in folded
    assert text.endswith("</details>\n")
    assert render(compared(base, base), "markdown").count("\n") == 1
