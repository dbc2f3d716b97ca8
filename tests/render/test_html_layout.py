"""Pages in a real browser: comparisons, colours, widths, print, keyboard, and large pages."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from graphflops import analyze
from graphflops.base.units import number
from graphflops.comparison.compare import compared
from graphflops.render import render
from graphflops.report import Report, SymbolInfo
from tests.render.reports import decoder, with_unknown
from tests.render.test_html_page import (
    TRANSFORMER,
    boxes,
    folder,
    lines,
    opened,
    page,
    sample,
    tiles,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.render.browser import Browser

__all__ = ["folder", "page", "sample"]  # fixtures


def test_a_comparison_shows_both(browser: Browser, folder: Path) -> None:
    old, new = decoder(4), decoder(6)
    opened(browser, folder, render(compared(old, new), "html"))
    flops = [number(report.value(report.total().matrix_flops) or 0) for report in (old, new)]
    assert tiles(browser)["FLOPs"] == " → ".join(flops)
    assert re.search(r"blocks\.4-5 \(x2\)\s*Block", browser.text("#changes"))
    assert boxes(browser)["blocks.4-5"].startswith("0 → ")
    assert boxes(browser)["blocks.0-3"].endswith("(same)")
    shades = {
        label: browser.run(
            "return document.querySelector(arguments[0]).className", f".box[aria-label^='{label}:']"
        )
        for label in ("blocks.4-5", "blocks.0-3")
    }
    assert shades == {"blocks.4-5": "box more", "blocks.0-3": "box same"}
    assert next(row[:2] for row in lines(browser)) == ["aten.linear", "13 → 19"]
    assert browser.all(".lead p")
    browser.type("#size-1", "14")
    twice = [replace(r, symbols={**r.symbols, "s27": SymbolInfo(14, "user")}) for r in (old, new)]
    assert tiles(browser)["FLOPs"] == " → ".join(number(r.value(r.total().matrix_flops) or 0) for r in twice)
    assert browser.all(".lead p") == [], "what was said of other sizes is gone"
    assert browser.complaints() == []


CONTRAST = """
const channels = (color) => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  canvas.fillStyle = color;
  canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
};
const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
const light = ([r, g, b]) => [r, g, b].map((v) => linear(v / 255))
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const behind = (element) => {
  for (let one = element; one; one = one.parentElement) {
    const color = getComputedStyle(one).backgroundColor;
    if (channels(color)[3] === 255) return channels(color);
  }
  return channels("white");
};
return [...document.querySelectorAll(arguments[0])].filter((e) => e.checkVisibility()).map((element) => {
  const [one, other] = [light(channels(getComputedStyle(element).color)), light(behind(element))].sort((a, b) => b - a);
  return (one + 0.05) / (other + 0.05);
});
"""


@pytest.mark.parametrize("dark", [False, True])
def test_readable_in_light_and_dark(browser: Browser, folder: Path, dark: bool) -> None:
    """Text stands out from what is behind it by 4.5 to 1 at least, as WCAG asks."""
    for report in (analyze(TRANSFORMER), render(compared(decoder(4), with_unknown(decoder(6))), "html")):
        opened(browser, folder, report, dark=dark)
        for what in (
            "h1",
            ".note",
            ".headline",
            "td",
            "th button",
            ".box .label",
            ".tile dd",
            ".change",
            ".choice span",
        ):
            found = list(browser.run(CONTRAST, what))
            worst = 2.0 if what == "td" else 4.5  # cells that hold 0 are dimmed
            assert min(found, default=21) >= worst, what
        assert min(browser.run(CONTRAST, "td:not(.zero)")) >= 4.5
    lightness = browser.run("return getComputedStyle(document.documentElement).backgroundColor")
    assert lightness == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")


def test_printed_without_controls(browser: Browser, folder: Path, sample: Report) -> None:
    opened(browser, folder, sample, dark=True)
    browser.media(dark=True, kind="print")
    assert (
        browser.run("return getComputedStyle(document.documentElement).backgroundColor")
        == "rgb(255, 255, 255)"
    )
    assert browser.all("button:not(th button, .tree button), input[type=range], #search") == []
    assert browser.all(".choice label") == ["FLOPs", "Operators"]
    assert min(browser.run(CONTRAST, "h1, .note, td:not(.zero)")) >= 4.5


@pytest.mark.parametrize("width", [360, 800, 1920])
def test_no_width_cuts_the_page(browser: Browser, folder: Path, sample: Report, width: int) -> None:
    opened(browser, folder, sample, width=width)
    browser.settled()
    assert browser.run("return document.documentElement.scrollWidth") <= width
    narrow = "return [...document.querySelectorAll('.chart svg')].map(s => s.getBoundingClientRect().width)"
    assert all(0 < drawn <= width for drawn in browser.run(narrow))
    room = """return [...document.querySelectorAll('td.tree')].map(
        cell => cell.clientWidth - parseFloat(getComputedStyle(cell).paddingLeft))"""
    assert min(browser.run(room)) > 60  # ten characters of a module's name


def test_every_control_is_reached_by_the_tab_key(page: Browser) -> None:
    page.run("document.body.tabIndex = -1; document.body.focus()")
    what = """
    const e = document.activeElement;
    return e.id || e.getAttribute('aria-label') || e.innerText || e.value || e.className;
    """
    reached = []
    for _ in range(36):
        page.driver.switch_to.active_element.send_keys("\ue004")
        reached.append(str(page.run(what)))
    text = "\n".join(reached)
    for control in (
        "size-0",
        "size-1",
        "logarithmic",
        "Reset",
        "flops",
        "Transformer: 13.63 M",
        "op",
        "search",
        "bytes",
        "device",
    ):
        assert control in text, control


def test_ten_thousand_calls(browser: Browser, folder: Path) -> None:
    """A page of 10,012 calls is small, and its sums are exact."""
    report = decoder(1430)
    text = render(report, "html")
    assert len(text.encode()) < 2_000_000
    opened(browser, folder, text)
    assert tiles(browser)["nodes"] == number(len(report.rows))
    assert boxes(browser)["Decoder"] == number(report.value(report.total().matrix_flops) or 0)
    browser.choose("Calls")
    browser.type("#search", "blocks.1429.")
    assert len(lines(browser)) == 6
    assert browser.complaints() == []


def test_a_size_that_was_given_is_no_field(browser: Browser, folder: Path) -> None:
    """Such a report holds no formula in it: a field would change nothing."""
    opened(browser, folder, analyze(TRANSFORMER, dims={"s27": 512}))
    assert [text.split("\n")[0] for text in browser.all(".size")] == ["ids[0]", "ids[1]"]
    assert len(browser.all(".size input[type=text]")) == 1
    assert re.search(r"ids\[1\]\s+512\s+s27 · given", browser.text(".size:nth-child(2)"))
    browser.type("#size-0", "1")
    assert tiles(browser)["FLOPs"] == number(409_600 * 512 + 1024 * 512**2)
    opened(browser, folder, analyze(TRANSFORMER, dims={"s23": 1, "s27": 512}))
    assert browser.all(".size input") == []
    assert "Given when the report was made" in browser.text("#sizes")
    assert browser.complaints() == []
