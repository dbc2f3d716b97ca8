"""A sweep over sizes in a page: its table and pictures as text, then in a real browser."""

from __future__ import annotations

import itertools
import math
import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

from graphflops import analyze
from graphflops.base.units import memory, number
from graphflops.derived.resize import Point, Sweep, sweep
from graphflops.render.html.plot import Axis, Curve, plot
from graphflops.render.html.sweep import html, of_sweep, section
from tests.render.reports import HOSTILE, decoder, hostile
from tests.render.test_html import Elements
from tests.render.test_html_page import TRANSFORMER, opened

if TYPE_CHECKING:
    from pathlib import Path

    from tests.render.browser import Browser

SIZES = {"ids[0]": (1, 3), "ids[1]": (128, 512, 2048)}


def picture(*points: tuple[int, int]) -> ET.Element:
    return ET.fromstring(plot("one", "FLOPs", "ids[1]", [Curve("", points)], number))


def places(drawn: ET.Element) -> list[tuple[float, float]]:
    """Where the curve's points are, across and down."""
    (line,) = drawn.iter("polyline")
    return [tuple(map(float, place.split(","))) for place in line.attrib["points"].split()]  # type: ignore[misc]


def point(flops: int | None, **sizes: int) -> Point:
    counts = ("vector_flops", "transcendentals", "masked_flops", "read_bytes", "written_bytes")
    return Point(sizes, {"matrix_flops": flops, **dict.fromkeys(counts, 10), "link_bytes": 0}, 30)


def test_what_grows_with_a_power_is_a_straight_line() -> None:
    places_of = places(picture((16, 256), (64, 4_096), (256, 65_536)))
    (x0, y0), (x1, y1), (x2, y2) = places_of
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2)
    assert x0 < x1 < x2
    assert y0 > y1 > y2


def test_what_hardly_differs_is_drawn_from_nothing() -> None:
    drawn = picture((100, 40), (150, 60), (200, 80))
    (x0, y0), (x1, y1), (x2, y2) = places(drawn)
    assert (x1 - x0, y0 - y1) == pytest.approx((x2 - x1, y1 - y2), abs=0.2)
    assert "0" in [text.text for text in drawn.iter("text")]


@pytest.mark.parametrize(
    "points",
    [
        ((7, 0),),
        ((7, 0), (9, 0)),
        ((0, 5), (1, 5)),
        ((1, 10**400), (2**40, 10**430)),
        ((1, 999), (10, 1_001_000)),
    ],
)
def test_every_point_is_within_the_picture(points: tuple[tuple[int, int], ...]) -> None:
    for x, y in places(picture(*points)):
        assert 0 <= x <= 420
        assert 0 <= y <= 270


def test_labels_of_sizes_do_not_overlap() -> None:
    drawn = picture(*((size, size) for size in range(1, 2_000, 3)))
    across = [
        float(text.attrib["x"]) for text in drawn.iter("text") if text.attrib.get("y") == "242" and text.text
    ]
    assert len(across) > 3
    assert all(later - earlier >= 40 for earlier, later in itertools.pairwise(across))


def test_a_logarithmic_axis_is_exact_at_its_ends() -> None:
    axis = Axis(10, 1_000, True)
    assert [axis.share(value) for value in (10, 1_000)] == [0, 1]
    assert axis.share(100) == pytest.approx(math.log10(100) - 1 - 0.5)


def test_pictures_say_in_words_what_they_show() -> None:
    drawn = ET.fromstring(section([point(2 * 8, n=1), point(2 * 8 * 5, n=5)]))
    pictures = [one for one in drawn.iter("svg") if one.attrib.get("role") == "img"]
    assert [one.findtext("title") for one in pictures] == [
        "FLOPs by n",
        "bytes moved by n",
        "peak memory by n",
    ]
    assert pictures[0].findtext("desc") == "16 at 1, 80 at 5"
    for one in pictures:
        titles = {
            part.attrib["id"] for part in (*one.iter("title"), *one.iter("desc")) if "id" in part.attrib
        }
        assert set(one.attrib["aria-labelledby"].split()) == titles


def test_sizes_without_a_value_leave_gaps() -> None:
    text = section([point(None, n=1), point(80, n=5), point(160, n=9)])
    drawn = ET.fromstring(text)
    assert "give it with --dim" in text
    assert "?" in [cell.text for cell in drawn.iter("td")]
    flops = next(one for one in drawn.iter("svg") if one.findtext("title") == "FLOPs by n")
    assert len(places(flops)) == 2
    assert "FLOPs by n" not in section([point(None, n=1)])


def test_many_curves_and_points_are_cut_and_said_so() -> None:
    text = section([point(i * j, i=i, j=j) for i in range(1, 31) for j in range(1, 41)])
    drawn = ET.fromstring(text)
    flops = next(one for one in drawn.iter("svg") if one.findtext("title") == "FLOPs by j")
    assert len(list(flops.iter("polyline"))) == 7
    assert len(list(drawn.iter("tr"))) == 1 + 200
    assert "23 more curves" in text
    assert "1,200 points" in text


def test_names_from_the_file_are_text() -> None:
    points = sweep(hostile(), {HOSTILE: (2, 4)})
    page = of_sweep(Sweep(hostile(), tuple(points)))
    assert "<b>a|b</b>" not in page
    for active in ("\x1b", "\x9b", "\u202e", "\r", "\x00"):
        assert active not in page
    attributes = {name for _, given in Elements(section(points)).found for name in given}
    assert not any(name.startswith("on") or name == "style" for name in attributes)


def test_a_page_without_a_sweep_has_no_part_for_it() -> None:
    assert 'id="sweep"' not in html(decoder(2))


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_shows_the_points(browser: Browser, tmp_path: Path, dark: bool) -> None:
    report = analyze(TRANSFORMER)
    points = sweep(report, SIZES)
    opened(browser, tmp_path, of_sweep(Sweep(report, tuple(points))), dark=dark)
    rows = browser.run(
        "return [...document.querySelectorAll('#sweep tbody tr')].map(r => [...r.cells].map(c => c.innerText))"
    )
    for row, at in zip(rows, points, strict=True):
        assert row[:2] == [f"{size:,}" for size in at.sizes.values()]
        assert row[2] == number(at.cost["matrix_flops"] or 0)
        assert row[-1] == memory(at.peak_bytes or 0)
    assert browser.all("#sweep figcaption") == ["FLOPs", "bytes moved", "peak memory"]
    assert browser.all("#sweep .legend .key") == ["ids[0] = 1", "ids[0] = 3"]
    order = [*browser.run("return [...document.querySelectorAll('main > section')].map(s => s.id)")]
    assert order.index("sweep") < order.index("modules")
    colours = browser.run(
        "const seen = s => getComputedStyle(document.querySelector(s));"
        "return [seen('.series.s1').stroke, seen('.series.s2').stroke, seen('#sweep .grid text').fill,"
        " seen('html').backgroundColor]"
    )
    assert len(set(colours)) == 4, "curves, words and ground can be told apart"
    assert re.fullmatch(r"rgb\(.*\)", colours[0])
    assert browser.complaints() == []


def test_it_is_there_on_a_telephone(browser: Browser, tmp_path: Path) -> None:
    report = analyze(TRANSFORMER)
    opened(browser, tmp_path, of_sweep(Sweep.of(report, SIZES)), width=360)
    assert browser.run("return document.documentElement.scrollWidth") <= 360
    assert browser.complaints() == []
