"""The picture of a graph in a real browser: what opens, what is found, and that nothing overlaps or is cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from graphflops.render.picture.svg import page, svg
from tests.render.reports import decoder as decoder_report, with_unknown
from tests.render.test_html_page import folder, opened
from tests.render.test_picture import chain, decoder

if TYPE_CHECKING:
    from pathlib import Path

    from tests.render.browser import Browser

__all__ = ["folder"]

# Pairs of boxes of one sheet that overlap, lines of text that leave their box, and text that lies on other text.
FAULTS = """
const room = (one) => one.getBoundingClientRect();
const aside = (a, b) => a.right <= b.left + 0.5 || b.right <= a.left + 0.5;
const apart = (a, b) => aside(a, b) || a.bottom <= b.top + 0.5 || b.bottom <= a.top + 0.5;
const name = (one) => one.querySelector(".label").textContent;
const found = [];
const whole = room(document.querySelector("svg.picture"));
for (const sheet of document.querySelectorAll("svg.picture .sheet")) {
  const nodes = [...sheet.children].filter((one) => one.matches(".node"));
  const grounds = nodes.map((one) => room(one.querySelector(".ground")));
  for (let one = 0; one < nodes.length; one += 1) for (let other = 0; other < one; other += 1) {
    if (!apart(grounds[one], grounds[other])) found.push(["boxes", name(nodes[one]), name(nodes[other])]);
  }
}
const texts = [...document.querySelectorAll("svg.picture text")];
const rooms = texts.map(room);
texts.forEach((one, place) => {
  const [own, box] = [rooms[place], one.matches(".out") ? whole : room(one.closest(".node").querySelector(".ground"))];
  const isCut = own.left < box.left - 0.5 || own.right > box.right + 0.5 || own.bottom > box.bottom + 0.5;
  if (isCut) found.push(["cut", one.textContent]);
  for (let other = 0; other < place; other += 1) {
    if (!apart(own, rooms[other])) found.push(["text", one.textContent, texts[other].textContent]);
  }
});
return found;
"""
# By text, how much it stands out from the colours behind it.
CONTRASTS = """
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const mixed = (colors) => {
  canvas.clearRect(0, 0, 1, 1);
  for (const [color, opacity] of colors) {
    canvas.globalAlpha = opacity;
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
  }
  return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
};
const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
const light = (rgb) => rgb.map((v) => linear(v / 255)).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const fill = (one) => getComputedStyle(one).fill;
return [...document.querySelectorAll("svg text")].map((text) => {
  const node = text.closest(".node");
  const behind = [[fill(text.matches(".seal text") ? text.previousSibling : node.querySelector(".ground")), 1]];
  const heat = node.querySelector(":scope > .heat");
  if (heat && !text.matches(".seal text, .out")) behind.push([fill(heat), Number(heat.getAttribute("fill-opacity"))]);
  const [low, high] = [light(mixed(behind)), light(mixed([[fill(text), 1]]))].sort((a, b) => a - b);
  return [text.textContent, (high + 0.05) / (low + 0.05)];
});
"""
OPEN = "document.querySelectorAll(arguments[0]).forEach(e => e.dispatchEvent(new MouseEvent('click', { bubbles: true })))"


def labels(browser: Browser) -> list[str]:
    return [*browser.run("return [...document.querySelectorAll('svg .label')].map(e => e.textContent)")]


def click(browser: Browser, label: str) -> None:
    script = "[...document.querySelectorAll('svg .node')].find(e => e.querySelector('.label').textContent === arguments[0])"
    browser.run(f"{script}.dispatchEvent(new MouseEvent('click', {{ bubbles: true }}))", label)
    browser.settled()


@pytest.mark.parametrize("width", [1280, 400])
def test_a_box_opens_where_it_stands(browser: Browser, folder: Path, width: int) -> None:
    opened(browser, folder, page(decoder(24)), width=width)
    assert labels(browser) == ["x", "layers.0-23 × 24"]
    click(browser, "layers.0-23 × 24")
    assert sorted(labels(browser)) == sorted(
        ["x", "layers.0-23 × 24", "from x", "norm", "up", "down", "add", "to layers.1"]
    )
    assert browser.run(FAULTS) == []
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    assert "4,800 FLOPs" in browser.text(".detail")
    click(browser, "layers.0-23 × 24")
    assert labels(browser) == ["x", "layers.0-23 × 24"]
    assert browser.complaints() == []


def test_everything_opens_without_overlap(browser: Browser, folder: Path) -> None:
    """Boxes beside and below one another, in sheets within sheets."""
    graph = decoder(6, wide=3)
    for place in range(4):
        name, before = f"branch{place}", "x"
        for call in range(place + 2):
            module = f"towers.t{place}.{'deep' if call else 'first'}"
            graph.add_node(
                f"{name}.{call}", label="linear", kind="call", module=module, flops=10, bytes=1, exact="exact"
            )
            graph.add_edge(before, f"{name}.{call}", value=f"{name}.v{call}", shape="[2, 3, 4]", bytes=24)
            before = f"{name}.{call}"
        graph.add_edge(before, "c23", value=f"{name}.v", shape="[2, 3, 4]", bytes=96)
    opened(browser, folder, page(graph))
    for _ in range(4):
        browser.run(OPEN, "svg .node[aria-expanded=false]")
    assert len(labels(browser)) > 30
    assert browser.run(FAULTS) == []
    assert browser.complaints() == []


def test_keys_and_search(browser: Browser, folder: Path) -> None:
    opened(browser, folder, page(decoder(24)))
    browser.find("svg .node").send_keys("")
    browser.press("ARROW_DOWN", "ENTER")
    assert "norm" in labels(browser)
    browser.press("ENTER")
    assert "norm" not in labels(browser)
    browser.type("#picture input", "layers.17.up")
    assert browser.text("#picture [role=status]") == "1 found"
    browser.press("ENTER")
    assert "up" in labels(browser), "the layers are one box, which opens"
    assert browser.run("return document.querySelector('.found .label').textContent") == "up"
    wide = browser.run("return document.querySelector('svg.picture').clientWidth")
    browser.find("#picture button[aria-label=Larger]").click()
    assert browser.run("return document.querySelector('svg.picture').clientWidth") == pytest.approx(
        1.25 * wide, abs=2
    )
    assert browser.complaints() == []


@pytest.mark.parametrize("dark", [False, True])
def test_text_can_be_read_on_every_colour(browser: Browser, folder: Path, dark: bool) -> None:
    """Boxes that cost all and nothing, unknown ones, and marks."""
    graph = chain(("a", "conv", 1000), ("b", "conv", 0), ("c", "conv", 10))
    for place, status in enumerate(("new", "gone", "changed")):
        graph.nodes[f"c{place}"]["status"] = status
    opened(browser, folder, page(graph), dark=dark)
    found = browser.run(CONTRASTS)
    poor = [(text, ratio) for text, ratio in found if ratio < 4.5]
    assert poor == []
    assert {"+", "−", "≠"} <= {text for text, _ in found}, "not by colour alone"


def test_of_five_thousand_calls_few_boxes_are_drawn_at_once(browser: Browser, folder: Path) -> None:
    """So that a page opens in less than a second, which is measured by hand: a clock fails on a busy machine."""
    text = page(chain(*[(f"blocks.{place // 100}.part", f"op{place}", place) for place in range(5_000)]))
    opened(browser, folder, text)
    assert browser.run("return document.querySelectorAll('svg.picture *').length") < 3_000
    assert len(text.encode()) < 10_000_000
    browser.run(OPEN, "svg .node[data-sheet='1']")
    browser.run(OPEN, "svg .node[data-sheet='2']")
    assert len(labels(browser)) > 50
    assert browser.complaints() == []


def test_a_report_holds_its_picture(browser: Browser, folder: Path) -> None:
    opened(browser, folder, with_unknown(decoder_report(3)))
    assert browser.run("return document.querySelectorAll('#picture svg .node').length") > 2
    assert "cost unknown" in browser.text("#picture > .note")
    order = browser.run(
        "return [...document.querySelectorAll('main > section, main > div > section')].map(e => e.id)"
    )
    assert order.index("picture") == order.index("modules") + 1
    assert browser.run(FAULTS) == []


def test_a_printed_picture_is_whole(browser: Browser, folder: Path) -> None:
    opened(browser, folder, page(decoder(24, wide=12)), dark=True)
    browser.media(kind="print", dark=True)
    canvas: Any = browser.run(
        "const c = document.querySelector('.canvas'); return [c.scrollHeight, c.clientHeight]"
    )
    assert canvas[0] <= canvas[1] + 1
    assert (
        browser.run("return getComputedStyle(document.querySelector('.ground')).fill") == "rgb(255, 255, 255)"
    )
    browser.media()


def test_an_svg_alone_is_a_picture(browser: Browser, folder: Path) -> None:
    path = folder / "graph.svg"
    path.write_text(svg(decoder(3)), encoding="utf-8")
    browser.complaints()
    browser.open(path)
    assert browser.run(FAULTS) == []
    assert browser.complaints() == []
