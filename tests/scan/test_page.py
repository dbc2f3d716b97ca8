"""The page of a fleet in a real Chromium: it opens from disk in silence, sorts and filters."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from graphflops.scan import store
from graphflops.scan.page import page
from tests.render.browser import Browser

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def browser() -> Browser:
    window = Browser()
    yield window
    window.close()


def test_sorts_and_filters(tmp_path: Path, browser: Browser) -> None:
    folder = tmp_path / "r.parquet"
    store.prepare(str(folder))
    rows = [
        {"path": f"m{number}.pt2", "binding": "", "status": "ok", "matrix_flops": 10**number}
        for number in range(1, 15)
    ]
    rows.append({"path": EVIL, "binding": "", "status": "error", "message": "no </script><b>model"})
    store.write(str(folder), rows)
    (tmp_path / "fleet.html").write_text(page(str(folder)), encoding="utf-8")
    browser.open(tmp_path / "fleet.html")
    assert browser.complaints() == []
    assert browser.all("tbody tr td:first-child")[:2] == ["m14.pt2", "m13.pt2"]
    assert browser.all("tbody tr td:first-child")[-1] == EVIL  # what has no value comes last
    assert "100.0 T" in browser.all("tbody tr:first-child td")
    browser.find("th:nth-child(3) button").click()
    assert browser.all("tbody tr td:first-child")[:2] == ["m1.pt2", "m2.pt2"]
    browser.type("#filter", "flops>1e12 pt2")
    assert browser.all("tbody tr td:first-child") == ["m13.pt2", "m14.pt2"]
    browser.type("#filter", "error")
    assert browser.text("#count") == "1 of 15 rows"
    assert browser.complaints() == []


def test_a_part_that_is_none_is_named(tmp_path: Path) -> None:
    from graphflops.errors import FileError

    folder = tmp_path / "r.parquet"
    folder.mkdir()
    with zipfile.ZipFile(folder / "part-1.parquet", "w") as file:
        file.writestr("x", "y")
    with pytest.raises(FileError, match="no table of graphflops scan"):
        store.read(str(folder))
