"""Whole renderings, compared with golden files: GRAPHFLOPS_OVERWRITE=1 writes them anew, for you to diff."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from graphflops.render import render
from graphflops.render.formats import names
from graphflops.render.text import Listing
from graphflops.report import Report
from tests.render.reports import (
    HOSTILE,
    assumed,
    bound,
    decoder,
    hostile,
    joint,
    training,
    unset,
    with_unknown,
)

GOLDEN = Path(__file__).parent / "golden"
REPORTS = {
    "hint": decoder(),
    "given": bound(decoder()),
    "assumed": assumed(decoder()),
    "formulas": unset(decoder()),
    "unknown": with_unknown(decoder(3)),
    "training": training(decoder(2)),
    "joint": joint(decoder(2)),
    "hostile": hostile(),
}
SUFFIX = {"table": "txt", "markdown": "md", "csv": "csv", "json": "json"}


def check(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("GRAPHFLOPS_OVERWRITE"):
        path.write_text(text, encoding="utf-8", newline="")
    assert text == path.read_bytes().decode()


@pytest.mark.parametrize("form", ["table", "markdown"])
@pytest.mark.parametrize("name", REPORTS)
def test_golden(name: str, form: str) -> None:
    check(f"{name}.{SUFFIX[form]}", render(REPORTS[name], form))  # type: ignore[arg-type]


@pytest.mark.parametrize("by", ["op", "source", "module"])
@pytest.mark.parametrize("form", ["table", "csv"])
def test_golden_by(form: str, by: str) -> None:
    text = render(training(decoder(2)), form, by=by, width=80)  # type: ignore[arg-type]
    check(f"by_{by}.{SUFFIX[form]}", text)


def test_golden_rows() -> None:
    check("rows.csv", render(with_unknown(unset(decoder(1))), "csv"))


def test_golden_json() -> None:
    """The format itself: it changes only together with its schema number."""
    text = json.dumps(json.loads(render(training(with_unknown(decoder(1))), "json")), indent=1)
    check("report.json", re.sub(r'"version": "[^"]*"', '"version": "x"', text) + "\n")


@pytest.mark.parametrize("name", [name for name in REPORTS if name != "hostile"])
def test_json_reads_back_to_the_same_rendering(name: str) -> None:
    again = Report.from_json(render(REPORTS[name], "json").encode())
    for form in names("Listing"):
        assert render(again, form) == render(REPORTS[name], form)


@pytest.mark.parametrize("form", names("Listing"))
def test_nothing_from_a_file_reaches_a_terminal(form: str) -> None:
    text = render(hostile(), form)  # type: ignore[arg-type]
    assert text.replace("\n", "").replace("\u200b", "").isprintable()  # zero-width spaces break mentions
    for active in ("\x1b", "\x9b", "\u202e", "\r", "\t", "\x00"):
        assert active not in text
    if form != "json":
        assert "\\x1b" in text
        assert "\\u202e" in text


def test_colour_escapes_are_ours_only() -> None:
    text = render(hostile(), "table", color=True)
    assert set(re.findall(r"\x1b\[[0-9;]*m", text)) <= {
        f"\x1b[{code}m" for code in ("0", "1", "2", "31", "33", "1;31")
    }
    assert re.sub(r"\x1b\[[0-9;]*m", "", text).replace(" ", "") == render(hostile(), "table").replace(" ", "")


def test_markup_of_rich_stays_text() -> None:
    assert "[red]m[/red]" in render(hostile(), "table")
    assert "[red]m[/red]" in render(hostile(), "table", color=True)


def test_markdown_shows_names_as_they_are() -> None:
    text = render(hostile(), "markdown")
    assert "<b>" not in text
    assert not re.search(r"(?<!\\)\]\(", text)
    assert "://" not in text
    assert "@all" not in text
    assert not re.search(r"(?<!\\)`", text)
    tables = [line for line in text.splitlines() if line.startswith("|")]
    widths = [len(re.findall(r"(?<!\\)\|", line)) for line in tables]
    heads = [index for index, line in enumerate(tables) if line.startswith("| ---")]
    for start, stop in zip(heads, [*heads[1:], len(tables) + 1], strict=True):
        assert len(set(widths[start - 1 : stop - 1])) == 1


def test_a_spreadsheet_computes_nothing() -> None:
    for by in (None, "op", "source", "module"):
        for row in csv.reader(io.StringIO(render(hostile(), "csv", by=by))):  # type: ignore[arg-type]
            assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in row)


def test_json_holds_names_unchanged() -> None:
    rows = json.loads(render(hostile(), "json"))["rows"]
    assert rows[0]["op"] == HOSTILE
    assert rows[1]["node"] == "=cmd|'/c calc'!A0"


def test_csv_has_a_line_for_each_call() -> None:
    report = with_unknown(unset(decoder(2)))
    rows = list(csv.DictReader(io.StringIO(render(report, "csv"))))
    assert [row["node"] for row in rows] == [row.node for row in report.rows]
    by_node = {row["node"]: row for row in rows}
    assert (
        by_node["linear_0"]["matrix_flops"] == by_node["linear_0"]["matrix_flops_formula"] == "24576*s23*s27"
    )
    assert by_node["view_0"]["matrix_flops"] == "0"
    assert by_node["fused_0"]["matrix_flops"] == "", "unknown is not zero"


def test_csv_of_modules_adds_up() -> None:
    rows = list(csv.DictReader(io.StringIO(render(decoder(4), "csv", by="module", depth=2))))
    flops = {row["module"]: int(row["matrix_flops"]) for row in rows}
    assert flops["blocks"] == sum(flops[f"blocks.{i}"] for i in range(4))
    assert [row["module"] for row in rows] == ["", "embed", "blocks", *(f"blocks.{i}" for i in range(4))]


@pytest.mark.parametrize("width", [20, 60, 80, 100, 200])
@pytest.mark.parametrize("name", REPORTS)
def test_no_figure_is_cut_at_any_width(name: str, width: int) -> None:
    """Names and formulas may be cut; a number never."""
    figures = re.compile(r"(?<![\w.])\d+(?:\.\d+)? [kMGT]B?(?=\s|$)")
    report = bound(decoder()) if name == "formulas" else REPORTS[name]
    wide = figures.findall(render(report, "table", width=300))
    assert sorted(figures.findall(render(report, "table", width=width))) == sorted(wide)


def test_unknown_is_never_zero() -> None:
    text = render(with_unknown(decoder(3)), "table")
    assert re.search(r"FLOPs +>= [\d.]+ M .*\(3 nodes unknown\)", text)
    assert re.search(r"my.fused +2 +unknown +unknown +unknown", text)
    assert "--rules" in text
    assert ">=" not in render(decoder(3), "table")


def test_unknown_is_red() -> None:
    text = render(with_unknown(decoder(3)), "table", color=True)
    assert "\x1b[31m" in text
    assert "\x1b[31m" not in render(decoder(3), "table", color=True)


def test_many_diagnostics_fold() -> None:
    from dataclasses import replace

    from graphflops.report import Diagnostic

    found = tuple(Diagnostic("GF102", "shape-mismatch", f"n{i}", "differs") for i in range(30))
    text = render(replace(decoder(1), diagnostics=found), "table")
    assert text.count("shape-mismatch") == 9
    assert "… and 22 more" in text


def test_many_sizes_fold() -> None:
    from dataclasses import replace

    from graphflops.report import SymbolInfo

    report = replace(decoder(1), symbols={f"u{i}": SymbolInfo(None, None) for i in range(30)})
    assert "… 22 more sizes" in render(report, "table")


def test_a_huge_total_is_printed() -> None:
    from dataclasses import replace

    from graphflops.cost import Cost
    from graphflops.report import Totals

    report = decoder(1)
    rows = tuple(row._replace(cost=Cost(10**5000, read_bytes=10**5000)) for row in report.rows)
    report = replace(report, rows=rows, totals=Totals(Cost.sum(row.cost for row in rows)))
    assert "10^50" in render(report, "table")
    assert "10^50" in render(report, "markdown")


def test_listing() -> None:
    listing = Listing(("operator", "rule"), [["aten.mm", "matmul"], ["=1|2", "\x1b[0m"]])
    assert render(listing, "table") == "  operator  rule\n  aten.mm   matmul\n  =1|2      \\x1b[0m\n"
    assert render(listing, "csv") == "operator,rule\naten.mm,matmul\n'=1|2,\\x1b[0m\n"
    rows = [dict(zip(listing.heads, row, strict=True)) for row in listing.rows]
    assert json.loads(render(listing, "json")) == rows
    assert "| =1\\|2 | \\\\x1b\\[0m |" in render(listing, "markdown")


@pytest.mark.parametrize("form", ["table", "markdown", "html"])
def test_a_training_step_without_a_time_has_an_empty_cell(form: str) -> None:
    """A saved report may name a device and hold no time."""
    report = replace(training(decoder(2)), device="h200")
    assert "step" in render(report, form)
