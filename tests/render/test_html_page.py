"""Pages in a real browser: what is shown, what each control does, and that nothing is asked of any network.

Expected numbers come from analyses at the sizes that the page is set to, printed as the other formats print them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import pytest

from graphflops import analyze
from graphflops.base.units import memory, number
from graphflops.comparison.compare import compared
from graphflops.render import render
from graphflops.render.html.fragment import devices
from graphflops.render.text import operator_name, safe
from graphflops.report import Report
from tests.render.reports import HOSTILE, decoder, hostile, joint, training, unset, with_unknown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.render.browser import Browser

ROOT = Path(__file__).parents[2]
TRANSFORMER = ROOT / "samples" / "gqa_transformer.pt2"
DEVICES = devices()


@pytest.fixture(scope="module")
def sample() -> Report:
    return analyze(TRANSFORMER)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.fixture
def page(browser: Browser, folder: Path, sample: Report) -> Iterator[Browser]:
    """The page of the sample, freshly opened; it must have nothing to complain about at the end of the test."""
    yield opened(browser, folder, sample)
    assert browser.complaints() == []


def opened(
    browser: Browser, folder: Path, report: Report | str, *, width: int = 1280, dark: bool = False
) -> Browser:
    path = folder / "page.html"
    path.write_text(report if isinstance(report, str) else render(report, "html"), encoding="utf-8")
    browser.complaints()
    browser.open(path, width=width, dark=dark)
    return browser


def tiles(browser: Browser) -> dict[str, str]:
    """The figures of the first row by their labels."""
    return dict(zip(browser.all(".tile dt"), browser.all(".tile .figure"), strict=True))


def lines(browser: Browser) -> list[list[str]]:
    """The cells of the table of costs."""
    script = "return [...document.querySelectorAll('#operators tbody tr')].map(r => [...r.cells].map(c => c.innerText))"
    return [*browser.run(script)]


def boxes(browser: Browser) -> dict[str, str]:
    """What each box of the icicle says to a screen reader: name and amount."""
    script = "return [...document.querySelectorAll('.box')].map(b => b.getAttribute('aria-label'))"
    return dict(label.rsplit(": ", 1) for label in browser.run(script))


VARIANTS = {
    "sample": lambda: analyze(TRANSFORMER),
    "training": lambda: analyze(TRANSFORMER, training=True),
    "onnx": lambda: analyze(ROOT / "samples" / "convnet.onnx"),
    "branches": lambda: analyze(ROOT / "samples" / "cond.pt2"),
    "step": lambda: analyze(ROOT / "samples" / "training_step.pt2"),
    "unknown": lambda: with_unknown(decoder(3)),
    "unset": lambda: unset(decoder(3)),
    "joint": lambda: joint(decoder(2)),
    "hostile": lambda: hostile(),
    "diff": lambda: render(compared(decoder(4), with_unknown(decoder(6))), "html"),
    "diff-training": lambda: render(compared(training(decoder(2)), training(decoder(3))), "html"),
    "diff-hostile": lambda: render(compared(decoder(1), hostile()), "html"),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_opens_in_silence(browser: Browser, folder: Path, name: str) -> None:
    """No error on the console, no request to any network, whatever one clicks."""
    opened(browser, folder, VARIANTS[name]())
    assert browser.all("h1")
    assert len(browser.all("section")) >= 4
    for kind in ("label", "th button", ".box", "section button"):
        browser.run(
            "for (const one of [...document.querySelectorAll(arguments[0])].slice(0, 12)) one.click()", kind
        )
    browser.settled()
    assert browser.complaints() == []


def test_shows_what_the_report_says(page: Browser, sample: Report) -> None:
    cost = sample.total()
    assert page.text("h1") == "gqa_transformer.pt2"
    assert tiles(page) == {
        "FLOPs": number(sample.value(cost.matrix_flops) or 0),
        "elementwise": number(sample.value(cost.vector_flops) or 0),
        "bytes moved": memory(sample.value(cost.read_bytes + cost.written_bytes) or 0),
        "peak memory": memory(sample.value(sample.totals.peak_bytes) or 0),
        "parameters": number(sample.parameters),
        "nodes": "85",
    }
    assert page.all(".tile .formula") == []
    page.find("#formulas summary").click()
    assert page.all("#formulas .formula")[0] == "409.6 k·ids[0]·ids[1] + 1,024·ids[0]·ids[1]²"
    assert "at blocks.0 (samples/make.py:78)" in page.text("#formulas .note")
    assert "6.816 M MACs, float32" in page.all(".tile")[0]


def test_sizes_work_everything_out_again(page: Browser, sample: Report) -> None:
    page.type("#size-1", "512")
    long = analyze(TRANSFORMER, dims={"s27": 512})
    cost = long.total()
    assert tiles(page)["FLOPs"] == number(long.value(cost.matrix_flops) or 0)
    assert tiles(page)["bytes moved"] == memory(long.value(cost.read_bytes + cost.written_bytes) or 0)
    assert tiles(page)["peak memory"] == memory(long.value(long.totals.peak_bytes) or 0)
    flops = {
        operator_name(op): number(long.value(cost.matrix_flops) or 0) for op, cost in long.by("op").items()
    }
    page.find("#without-cost").click()
    assert {row[0]: row[2] for row in lines(page)} == flops
    attention = long.by("module", depth=3)["blocks.0.attention"]
    assert boxes(page)["blocks.0-3.attention"] == number(4 * (long.value(attention.matrix_flops) or 0))
    page.find("#sizes button").click()
    page.settled()
    assert page.find("#size-1").get_attribute("value") == "16"
    assert tiles(page)["FLOPs"] == number(sample.value(sample.total().matrix_flops) or 0)


def test_a_size_can_be_dragged_and_is_checked(page: Browser) -> None:
    slider = page.find(".size:nth-child(2) input[type=range]")
    slider.send_keys("")
    page.press("END")
    assert page.find("#size-1").get_attribute("value") == "4096"
    assert tiles(page)["FLOPs"] == number(409_600 * 2 * 4096 + 1024 * 2 * 4096**2)
    page.type("#size-1", "9000")
    assert page.all(".warning") == ["", "outside 2..4,096, for which the program was exported"][1:]
    assert tiles(page)["FLOPs"] == number(409_600 * 2 * 9000 + 1024 * 2 * 9000**2)
    page.type("#size-1", "many")
    assert page.all(".warning") == ["not a number of elements"]
    page.type("#size-1", "")
    assert tiles(page)["FLOPs"] == "?"
    assert "Some size has no value" in page.text("#modules")
    page.type("#size-1", "10" * 9)
    assert tiles(page)["FLOPs"] == number(409_600 * 2 * int("10" * 9) + 1024 * 2 * int("10" * 9) ** 2)


def test_sizes_at_which_the_program_cannot_run_are_said(browser: Browser, folder: Path) -> None:
    graph = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[batch, 4] x) => (float[rows, 16] y) '
        "<int64[2] shape = {-1, 16}> { y = Reshape(x, shape) z = Relu(x) }"
    )
    onnx.save(graph, folder / "reshape.onnx")
    opened(browser, folder, analyze(folder / "reshape.onnx"))
    for size, said in ((8, ""), (6, "the program requires"), (12, "")):
        browser.type("#size-0", str(size))
        assert "".join(browser.all(".warning"))[:20] == said
    assert browser.complaints() == []


def test_sizes_nobody_knows_are_asked_for(browser: Browser, folder: Path) -> None:
    opened(browser, folder, unset(decoder(2)))
    assert tiles(browser)["FLOPs"] == "?"
    browser.type("#size-0", "3")
    browser.type("#size-1", "7")
    report = decoder(2)
    assert tiles(browser)["FLOPs"] == number(report.value(report.total().matrix_flops) or 0)
    assert browser.complaints() == []


def test_the_icicle_is_sized_by_what_one_chooses(page: Browser, sample: Report) -> None:
    whole = sample.by("module", depth=0)[""]
    assert boxes(page)["Transformer"] == number(sample.value(whole.matrix_flops) or 0)
    page.choose("bytes moved")
    assert boxes(page)["Transformer"] == memory(sample.value(whole.read_bytes + whole.written_bytes) or 0)
    page.choose("parameters")
    assert boxes(page)["Transformer"] == number(sample.parameters)
    assert boxes(page)["blocks.0-3.gate"] == number(4 * 64 * 192)
    page.choose("memory at the peak")
    assert boxes(page)["Transformer"] == memory(sample.value(sample.totals.peak_bytes) or 0)
    assert boxes(page)["(inputs)"] == memory(2 * 16 * 8)
    widths = "return [...document.querySelectorAll('.box')].map(b => [b.getAttribute('aria-label'), b.offsetWidth])"
    page.choose("FLOPs")
    shares = {label.split(":")[0]: width for label, width in page.run(widths)}
    assert shares["blocks.0-3"] / shares["Transformer"] == pytest.approx(0.923, abs=0.005)


def test_one_looks_inside_a_module_and_comes_back(page: Browser) -> None:
    page.find(".box[aria-label^='blocks.0-3.attention:']").click()
    assert page.all(".trail") == ["Transformer\n›\nblocks (x4)\n›\nattention"]
    assert "Transformer" not in boxes(page)
    focused = page.run("return document.activeElement.getAttribute('aria-label')")
    assert focused == f"blocks.0-3.attention: {number(3_145_728)}"
    page.driver.find_elements("css selector", ".trail button")[0].click()
    assert "Transformer" in boxes(page)


def test_the_icicle_by_keyboard(page: Browser) -> None:
    at = "return document.activeElement.getAttribute('aria-label')"
    page.find(".box[aria-level='1']").send_keys("")
    page.press("ARROW_DOWN")
    assert page.run(at).startswith("blocks.0-3:")
    page.press("ARROW_RIGHT")
    assert page.run(at).startswith("head:")
    page.press("ARROW_LEFT", "ARROW_DOWN", "ARROW_RIGHT")
    assert page.run(at).startswith("blocks.0-3.gate:")
    assert page.text("#modules .detail strong") == "blocks.0-3.gate"
    page.press("ENTER")
    assert page.all(".trail") == ["Transformer\n›\nblocks (x4)\n›\ngate"]
    page.press("ESCAPE", "ESCAPE")
    assert page.all(".trail") == ["Transformer"]


def test_the_table_is_searched(page: Browser) -> None:
    page.type("#search", "feed_forward")
    assert [row[:2] for row in lines(page)] == [["aten.rms_norm", "4"]]
    assert page.all("#operators [role=status]") == ["1 operator with “feed_forward”"]
    page.type("#search", "no such thing")
    assert lines(page) == []
    page.type("#search", "reshape")  # what costs nothing is found too
    assert [row[0] for row in lines(page)] == ["aten.reshape"]
    page.type("#search", "")
    assert len(lines(page)) == 7
    assert page.text("#without-cost") == "Show 6 operators without cost"
    page.find("#without-cost").click()
    assert len(lines(page)) == 13


def test_the_table_is_sorted(page: Browser, sample: Report) -> None:
    costs = sample.by("op")
    moved = {op: sample.value(cost.read_bytes + cost.written_bytes) or 0 for op, cost in costs.items()}
    page.find("#without-cost").click()
    page.find("[data-column=bytes]").click()
    assert [row[-1] for row in lines(page)] == [memory(size) for size in sorted(moved.values(), reverse=True)]
    assert page.run("return document.querySelector('[aria-sort]').innerText").strip("↓ ") == "bytes"
    page.press("ENTER")
    assert [row[-1] for row in lines(page)] == [memory(size) for size in sorted(moved.values())]
    page.find("[data-column=name]").click()
    assert [row[0] for row in lines(page)] == sorted(map(operator_name, costs))


def test_source_lines_and_calls(page: Browser, sample: Report) -> None:
    page.find("#without-cost").click()
    page.choose("Source lines")
    costs = {line or "(no source line)": cost for line, cost in sample.by("source").items()}
    assert {row[0]: row[2] for row in lines(page)} == {
        line: number(sample.value(cost.matrix_flops) or 0) for line, cost in costs.items()
    }
    page.choose("Calls")
    assert len(lines(page)) == 50
    page.find(".more[type=button]").click()
    assert {row[0] for row in lines(page)} == {row.node for row in sample.rows}
    first = lines(page)[0]
    assert first[:4] == ["linear_24", "aten.linear", "head", "samples/make.py:96"]
    assert first[4] == number(2 * 2 * 16 * 64 * 256)


def test_the_roofline_is_of_the_machine_chosen(page: Browser, sample: Report) -> None:
    """Each call takes at least its bytes at the bandwidth, or its work at the peak, whichever is longer."""
    for index, device in enumerate(DEVICES[:3]):
        least = 0.0
        for row in sample.rows:
            flops, vector, read, written = (
                sample.value(getattr(row.cost, name)) or 0
                for name in ("matrix_flops", "vector_flops", "read_bytes", "written_bytes")
            )
            moved = (read + written) / device["bandwidth"]
            least += max(moved, flops / device["matrix"]["float32"], vector / device["vector"])
        page.run(
            "const s = document.querySelector('#device'); s.value = arguments[0]; s.dispatchEvent(new Event('change'))",
            index,
        )
        shown = re.match(r"At least ([\d.]+) (µs|ns),", page.text(".sentence"))
        assert shown is not None
        assert float(shown[1]) * {"µs": 1e-6, "ns": 1e-9}[shown[2]] == pytest.approx(least, rel=0.005)
        assert device["source"] == page.find("#roofline a").get_attribute("href")


def test_a_point_of_the_roofline_says_what_it_is(page: Browser) -> None:
    point = page.find("circle.point.matrix[aria-label^='aten.scaled_dot']")
    page.run("arguments[0].focus()", point)
    detail = page.text("#roofline .detail")
    assert "aten.scaled_dot_product_attention" in detail
    assert "4 calls" in detail
    assert "524.3 k FLOPs, float32" in detail
    assert "6.4 FLOP/B" in detail, "131,072 FLOPs and 20,480 bytes in each call"


def test_one_walks_along_memory(page: Browser, sample: Report) -> None:
    held, last = sample.memory.held, len(sample.memory.rows) - 1
    for moment in (0, 7, last):
        alive = sum(sample.value(one.bytes) or 0 for one in held if one.first <= moment <= one.last)
        page.run(
            "const s = document.querySelector('#memory input'); s.value = arguments[0]; s.dispatchEvent(new Event('input'))",
            moment,
        )
        assert page.text("#memory .detail strong") == memory(alive)
        assert sample.rows[sample.memory.rows[moment]].node in page.text("#memory .detail")
        assert next(row.split("\t")[-1] for row in page.all(".held tr")) == memory(
            max(sample.value(one.bytes) or 0 for one in held if one.first <= moment <= one.last)
        )
    page.find("#memory button").click()
    assert page.text("#memory .detail strong") == memory(sample.value(sample.totals.peak_bytes) or 0)
    assert page.all("#memory .tag") == ["peak"]
    assert "blocks.0 (samples/make.py:78)" in page.text("#memory .detail")


def test_unknown_is_said_and_is_not_zero(browser: Browser, folder: Path) -> None:
    opened(browser, folder, with_unknown(decoder(3)))
    assert tiles(browser)["FLOPs"].startswith(">= ")
    assert "3 nodes unknown, in no total: my.fused (x2), my.other" in browser.text(".tile .unknown")
    assert [row[2:] for row in lines(browser) if row[0] == "my.fused"] == [
        ["unknown", "", "unknown", "unknown"]
    ]
    assert boxes(browser)["model.Decoder".rpartition(".")[2]].startswith(">= ")


def test_hostile_names_are_text(browser: Browser, folder: Path) -> None:
    opened(browser, folder, hostile())
    assert browser.text("h1") == safe(f"dir/{HOSTILE}".rpartition("/")[2], 80)
    assert browser.run("return document.querySelectorAll('main b, main img, main script').length") == 0
    assert any("<b>a|b</b>" in row[0] for row in lines(browser))
    for active in ("\x1b", "\u202e", "\x9b"):
        assert active not in browser.run("return document.documentElement.outerHTML")
    browser.type("#search", "</script><script>alert(1)</script>")
    assert lines(browser) == []
    assert browser.complaints() == []


def test_the_policy_stops_scripts_and_styles_of_others(
    browser: Browser, folder: Path, sample: Report
) -> None:
    """Even if a name became markup, nothing in it would run."""
    attack = "<img src=x onerror='document.title = 1'><script>document.title = 2</script><p style='color: red'>x</p>"
    text = render(sample, "html").replace("</main>", f"</main>{attack}")
    opened(browser, folder, text)
    assert browser.run("return document.title") == "gqa_transformer.pt2 · graphflops"
    assert browser.all(".tile dt")[0] == "FLOPs", "the page itself still works"
    said = browser.complaints()
    assert len([line for line in said if "Content Security Policy" in line or "violates" in line]) >= 3
    assert not [line for line in said if line.startswith("request")]


def test_without_script_there_are_tables(browser: Browser, folder: Path, sample: Report) -> None:
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        opened(browser, folder, sample)
        shown = browser.find("body").text
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert "13.63 M" in shown
    assert "blocks (x4)" in shown


def test_the_table_of_modules_is_that_of_the_terminal(page: Browser, sample: Report) -> None:
    rows = page.run(
        "return [...document.querySelectorAll('#module-table tbody tr')].map(r => [...r.cells].map(c => c.innerText.trim()))"
    )
    text = render(sample, "table")
    table = text.partition("\n  module ")[2].partition("\n\n")[0].splitlines()[1:]
    assert [" ".join(filter(None, row)) for row in rows] == [" ".join(line.split()) for line in table]
    page.find("#module-table button").click()
    assert len(page.all("#module-table tbody tr")) == 1


def test_typed_sizes_are_in_the_address(page: Browser) -> None:
    first = tiles(page)
    page.type("#size-1", "512")
    typed = tiles(page)
    assert page.run("return decodeURIComponent(location.hash)") == "#ids[1]=512"
    link = page.run("return location.href")
    page.driver.get("about:blank")
    page.driver.get(link)
    page.settled()
    assert tiles(page) == typed
    assert page.find("#size-1").get_attribute("value") == "512"
    page.run("location.hash = '#ids[1]=16'")
    page.settled()
    page.settled()
    assert tiles(page) == first
    page.run("location.hash = '#ids[1]=-1&nonsense=2'")
    page.settled()
    assert tiles(page) == first
    assert page.complaints() == []


def test_the_roofline_is_one_stop_of_the_tab_key(page: Browser) -> None:
    stops = "return document.querySelectorAll('#roofline .point[tabindex=\"0\"]').length"
    assert page.run(stops) == 1
    page.run("document.querySelector('#roofline .point[tabindex=\"0\"]').focus()")
    at = "return document.activeElement.getAttribute('aria-label')"
    first = page.run(at)
    page.press("ARROW_RIGHT")
    assert page.run(at) != first
    page.press("ARROW_LEFT")
    assert page.run(at) == first
    assert page.run(stops) == 1


def test_the_memory_of_a_device_is_stacked(browser: Browser, folder: Path) -> None:
    report = analyze(TRANSFORMER, training=True, device="h200")
    page = opened(browser, folder, report)
    assert page.run("return document.querySelectorAll('#memory path.stack').length") == 6
    assert page.run("return document.querySelectorAll('#memory path.segments').length") == 1
    needed = report.value(report.memory_use[-1].requested_peak) or 0
    assert page.text("#memory .detail strong") == memory(needed)
    assert "the optimizer's step" in page.text("#memory .detail")
    assert page.complaints() == []
