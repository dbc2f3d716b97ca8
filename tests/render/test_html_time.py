"""Predicted times in a page: what is shown of them, at which sizes, and the sweep's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from graphflops import analyze
from graphflops.cli import main
from graphflops.comparison.compare import compared
from graphflops.render import render
from tests.render.test_html_page import TRANSFORMER, boxes, lines, opened, tiles

if TYPE_CHECKING:
    from pathlib import Path

    from graphflops.report import Report
    from tests.render.browser import Browser

RESET = "Times are predicted for the sizes of the report only: reset the sizes to see them."


@pytest.fixture(scope="module")
def timed() -> Report:
    return analyze(TRANSFORMER, device="a100", execution="graph")


def in_milliseconds(shown: str) -> float:
    figure, unit = shown.split()
    return float(figure) * {"ns": 1e-6, "µs": 1e-3, "ms": 1, "s": 1e3}[unit]


def test_modules_are_as_wide_as_they_take_time(browser: Browser, tmp_path: Path, timed: Report) -> None:
    page = opened(browser, tmp_path, timed)
    page.choose("time")
    time = sum(row.time.seconds for row in timed.rows if row.time is not None)
    whole, layers = (in_milliseconds(boxes(page)[name]) for name in ("Transformer", "blocks.0-3"))
    assert whole == pytest.approx(1e3 * time, rel=5e-3)
    inside = sum(r.time.seconds for r in timed.rows if r.time is not None and r.module.startswith("blocks."))
    assert layers == pytest.approx(1e3 * inside, rel=5e-3)
    assert browser.complaints() == []


def test_the_roofline_is_that_of_the_device(browser: Browser, tmp_path: Path, timed: Report) -> None:
    page = opened(browser, tmp_path, timed)
    chosen = page.run("return document.getElementById('device').selectedOptions[0].innerText")
    assert chosen == timed.device == "NVIDIA A100 SXM 80 GB"
    assert "2.04 TB/s" in page.text("#roofline > .note")


def test_operators_have_their_time_and_short_names(browser: Browser, tmp_path: Path, timed: Report) -> None:
    found = {line[0]: line[-1] for line in lines(opened(browser, tmp_path, timed))}
    linear = sum(row.time.seconds for row in timed.rows if row.op == "aten.linear.default" and row.time)
    assert in_milliseconds(found["aten.linear"]) == pytest.approx(1e3 * linear, rel=5e-3)
    assert not any(name.endswith(".default") for name in found)


def test_times_are_shown_at_the_sizes_of_the_report_only(
    browser: Browser, tmp_path: Path, timed: Report
) -> None:
    page = opened(browser, tmp_path, timed)
    assert timed.totals.time is not None
    assert in_milliseconds(tiles(page)["time"]) == pytest.approx(1e3 * timed.totals.time.seconds, rel=5e-3)
    page.choose("time")
    page.type("#size-1", "32")
    assert page.text(".empty") == RESET
    assert "time" not in tiles(page)
    page.find("#sizes button").click()
    page.settled()
    assert "time" in tiles(page)
    assert "Transformer" in boxes(page)


def test_a_step_and_a_comparison_have_times(browser: Browser, tmp_path: Path, timed: Report) -> None:
    step = analyze(TRANSFORMER, training=True, device="h200")
    assert step.step_time is not None
    shown = tiles(opened(browser, tmp_path, step))["time of a training step"]
    assert in_milliseconds(shown) == pytest.approx(1e3 * step.step_time.seconds, rel=5e-3)
    longer = analyze(TRANSFORMER, dims={"ids[1]": 4096}, device="a100", execution="graph")
    page = opened(browser, tmp_path, render(compared(timed, longer), "html"))
    before, after = tiles(page)["time"].split(" → ")
    assert 2 * in_milliseconds(before) < in_milliseconds(after)
    page.choose("time")
    assert " → " in boxes(page)["Transformer"]


def test_a_page_without_device_has_no_times(browser: Browser, tmp_path: Path) -> None:
    page = opened(browser, tmp_path, analyze(TRANSFORMER))
    assert "time" not in page.all("#modules .choice label")
    assert "time" not in page.all("#operators th")


def test_a_row_without_kernels_takes_no_time(timed: Report) -> None:
    row = next(row for row in timed.rows if row.op == "aten.view.default")
    assert row.seconds == 0


def test_a_sweep_predicts_each_of_its_points(tmp_path: Path) -> None:
    args = ["analyze", str(TRANSFORMER), "--device", "a100", "--sweep", "ids[1]=16,2048", "--format", "json"]
    points = json.loads(CliRunner().invoke(main, args, catch_exceptions=False).output)
    for point in points:
        time = analyze(TRANSFORMER, dims={"ids[1]": point["ids[1]"]}, device="a100").totals.time
        assert time is not None
        assert (point["seconds"], point["seconds_low"], point["seconds_high"]) == (
            time.seconds,
            time.low,
            time.high,
        )
    page = tmp_path / "page.html"
    CliRunner().invoke(main, [*args[:-2], "--output", str(page)], catch_exceptions=False)
    assert "<figcaption>time</figcaption>" in page.read_text("utf-8")
