"""The page of a fleet in a real Chromium: it opens from disk in silence, sorts and filters."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("pyarrow")

from graphflops.cli import main
from graphflops.scan import store
from graphflops.scan.views import changes, page, text
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


def test_rows_say_their_sizes_and_mark_what_follows_from_assumed_ones(tmp_path: Path) -> None:
    samples = Path(__file__).parents[2] / "samples"
    models = [str(samples / name) for name in ("gqa_transformer.onnx", "gqa_transformer.pt2")]
    written = tmp_path / "fleet.html"
    result = CliRunner().invoke(main, ["scan", *models, "--output", str(written)])
    assert result.exit_code == 0, result.output
    shown = written.read_text("utf-8")
    data = json.loads(shown.partition('id="data">')[2].partition("</script>")[0])
    heads = [head for head, _ in data["heads"]]
    rows = {row[0].rpartition("/")[2]: row for row in data["rows"]}
    marked = {name: [heads[place] for place in row[len(heads)]] for name, row in rows.items()}
    # An ONNX file has no example, so that both sizes are assumed; a .pt2 has those of its export.
    assert [row[heads.index("inputs")] for row in rows.values()] == ["ids[~1, ~64]", "ids[2, 16]"]
    assert marked == {
        "gqa_transformer.onnx": ["FLOPs", "read", "written", "peak memory"],
        "gqa_transformer.pt2": [],
    }
    assert "Sizes were assumed for 1 row" in shown


def test_what_bindings_cost_is_not_added_up(tmp_path: Path) -> None:
    folder = tmp_path / "r.parquet"
    store.prepare(str(folder))
    row = {"path": "m.pt2", "status": "ok", "parameters": 1}
    one, eight = ({**row, "binding": name, "matrix_flops": n} for name, n in (("one", 10), ("eight", 80)))
    store.write(str(folder), [one, eight])
    assert "eight: 80 FLOPs, 1 parameters, 0 B moved in all; one: 10 FLOPs" in page(str(folder))


def test_changes_between_unlike_sizes_say_so(tmp_path: Path) -> None:
    row = {"path": "m.pt2", "binding": "", "status": "ok"}
    for folder, size in (("old", 1), ("new", 8)):
        store.prepare(str(tmp_path / folder))
        store.write(str(tmp_path / folder), [{**row, "matrix_flops": 10 * size, "inputs": [f"x[{size}, 3]"]}])
    said = text(changes(str(tmp_path / "old"), str(tmp_path / "new")))
    assert "changed, other sizes" in said


def test_a_part_that_is_none_is_named(tmp_path: Path) -> None:
    from graphflops.errors import FileError

    folder = tmp_path / "r.parquet"
    folder.mkdir()
    with zipfile.ZipFile(folder / "part-1.parquet", "w") as file:
        file.writestr("x", "y")
    with pytest.raises(FileError, match="no table of graphflops scan"):
        store.read(str(folder))
