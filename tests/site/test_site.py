"""The documentation site: it builds without a warning and without network, and each page opens well in a browser."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest

from tests.render.browser import Browser

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
WIDTHS = (390, 1280)  # of a phone and a desktop


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. Warnings are errors, names that lead nowhere too."""
    pytest.importorskip("sphinx")
    out = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "-n",
        "-d",
        str(out / "cache"),
        "docs",
        str(out / "html"),
    ]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return out / "html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    window = Browser()
    yield window
    window.close()


def pages(site: Path) -> list[Path]:
    """Every page that was written from a text; of the index and search pages Sphinx makes, the search page."""
    return sorted(path for path in site.rglob("*.html") if path.name != "genindex.html")


def test_pages_keep_to_the_width_and_the_console_is_silent(site: Path, browser: Browser) -> None:
    for page in pages(site):
        browser.open(page, width=WIDTHS[0])
        for width in WIDTHS:
            browser.width(width)
            wide = browser.run("return document.documentElement.scrollWidth")
            assert wide <= width, f"{page.relative_to(site)} is {wide} wide in a window of {width}"
        assert not browser.complaints(), page.relative_to(site)


def test_links_lead_to_pages_and_sections(site: Path) -> None:
    anchors = {page: set(re.findall(r'\bid="([^"]+)"', page.read_text("utf-8"))) for page in pages(site)}
    for page in anchors:
        for link in re.findall(r'<a [^>]*href="([^"]+)"', page.read_text("utf-8")):
            if re.match(r"[a-z]+:", link):
                continue
            path, _, section = unquote(link).partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), f"{page.relative_to(site)}: {link}"
            if section and target in anchors:
                assert section in anchors[target], f"{page.relative_to(site)}: {link}"


def test_each_page_has_a_twin_in_markdown(site: Path) -> None:
    listed = re.findall(r"^- \[.+?\]\((.+?)\): .+$", (site / "llms.txt").read_text("utf-8"), re.MULTILINE)
    written = [page for page in pages(site) if page != site / "search.html"]
    assert sorted(listed) == sorted(str(page.relative_to(site).with_suffix(".md")) for page in written)
    for name in listed:
        assert (site / name).read_text("utf-8").startswith("# "), name
    assert "# Ten minutes with graphflops" in (site / "llms-full.txt").read_text("utf-8")


def test_a_search_finds_a_page_from_disk(site: Path, browser: Browser) -> None:
    browser.driver.get((site / "search.html").as_uri() + "?q=liveness")
    browser.driver.implicitly_wait(5)
    assert browser.find("#search-results li a")
