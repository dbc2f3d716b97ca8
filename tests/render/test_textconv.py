"""The text that git compares: layers that are alike are written once."""

from __future__ import annotations

from dataclasses import replace

from graphflops.cost import Cost
from graphflops.render.viewers import textconv
from tests.render.reports import decoder, with_unknown


def modules(text: str) -> list[str]:
    """The lines behind the totals."""
    lines = text.splitlines()
    return lines[next(index for index, line in enumerate(lines) if line.startswith("coverage:")) + 1 :]


def test_one_layer_more_is_one_line() -> None:
    old, new = (modules(textconv(decoder(layers=layers))) for layers in (3, 4))
    assert [(a, b) for a, b in zip(old, new, strict=True) if a != b] == [
        ("blocks.*: 3 alike (0-2)", "blocks.*: 4 alike (0-3)")
    ]


def test_a_layer_that_is_not_alike_is_written_by_itself() -> None:
    report = decoder(layers=4)
    rows = [
        row._replace(cost=Cost(7) + row.cost) if row.module == "blocks.2.mlp.up" else row
        for row in report.rows
    ]
    lines = modules(textconv(replace(report, rows=tuple(rows))))
    assert "blocks.*: 3 alike (0-1, 3)" in lines
    assert any(line.startswith("blocks.2.mlp.up aten.linear") for line in lines)
    assert any(line.startswith("blocks.*.mlp.up aten.linear") for line in lines)
    assert not any(line.startswith("blocks.0") for line in lines)


def test_totals_that_calls_of_unknown_cost_add_to_are_lower_bounds() -> None:
    lines = textconv(with_unknown(decoder(2))).splitlines()
    totals = [line for line in lines if line.startswith(("total ", "peak memory"))]
    assert totals
    assert all(": >= " in line for line in totals)
