"""`graphflops analyze` of several models: a line each, and one that fails keeps no other from being analyzed."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from graphflops import analyze, cli
from graphflops.derived.overview import overview
from graphflops.errors import FileError
from graphflops.report import Report

SAMPLES = Path(__file__).parents[1] / "samples"
CONVNET, DECODER = SAMPLES / "convnet.pt2", SAMPLES / "gqa_transformer.onnx"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.pt2").symlink_to(CONVNET)
    Path("b.onnx").symlink_to(DECODER)
    Path("bad.onnx").write_text("no model")
    analyze(CONVNET).save("saved.json")


def run(*args: str) -> Result:
    return CliRunner().invoke(cli.main, ["analyze", *args], prog_name="graphflops")


def objects(*args: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run(*args, "--format", "json").stdout)["models"]
    return found


def test_each_line_has_the_totals_of_its_model() -> None:
    result = run("a.pt2", "b.onnx", "saved.json")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert [line.split()[0] for line in result.stdout.splitlines()[:4]] == [
        "model",
        "a.pt2",
        "b.onnx",
        "saved.json",
    ]
    report = analyze(CONVNET)
    cost = report.total()
    (line, _, again) = objects("a.pt2", "b.onnx", "saved.json")
    assert line["matrix_flops"] == again["matrix_flops"] == cost.matrix_flops
    assert line["bytes"] == again["bytes"]
    assert line["bytes"] == cost.read_bytes + cost.written_bytes
    assert (line["parameters"], line["peak_bytes"]) == (report.parameters, report.totals.peak_bytes)
    assert (line["calls"], line["unknown"], line["error"]) == (report.coverage.nodes, 0, None)
    assert line["seconds"] >= 0


def test_a_file_that_fails_is_a_line_and_exit_code_1() -> None:
    result = run("none.pt2", "a.pt2", "bad.onnx")
    assert result.exit_code == 1
    assert result.stderr == "graphflops: error: 2 of 3 models failed\n"
    _, none, good, bad, _, *failed = result.stdout.splitlines()
    assert (none, bad) == ("  none.pt2", "  bad.onnx")
    assert "2.261 M" in good
    assert failed[:2] == ["Failed", "  none.pt2: no such file"]
    assert failed[2].startswith("  bad.onnx: is not an ONNX model")
    rows = list(csv.DictReader(io.StringIO(run("none.pt2", "a.pt2", "--format", "csv").stdout)))
    assert [row["error"] for row in rows] == ["no such file", ""]
    assert rows[0]["matrix_flops"] == ""
    assert "no such file" in run("none.pt2", "a.pt2", "--format", "markdown").stdout


def test_sizes_and_training_hold_for_all() -> None:
    (first, second) = objects("b.onnx", "b.onnx", "--dim", "ids[0]=2", "--dim", "ids[1]=8", "--training")
    step = analyze(DECODER, dims={"ids[0]": 2, "ids[1]": 8}, training=True).step()
    assert step is not None
    assert first["matrix_flops"] == second["matrix_flops"] == step.cost.matrix_flops
    assert first["peak_bytes"] == step.peak_bytes


def test_assumed_sizes_are_said_and_open_ones_are_formulas() -> None:
    assert "batch = 1 (assumed), sequence = 64 (assumed): b.onnx" in run("a.pt2", "b.onnx").stdout
    (_, line) = objects("a.pt2", "b.onnx", "--open")
    assert line["matrix_flops"]["value"] is None
    assert "batch*sequence" in line["matrix_flops"]["formula"]


def test_strict_fails_where_any_call_is_unknown() -> None:
    Path("rules.py").write_text("")
    assert run("a.pt2", "b.onnx", "--strict", "--rules", "rules.py").exit_code == 0


@pytest.mark.parametrize(
    "options",
    [("--by", "op"), ("--top", "3"), ("--sweep", "ids[1]=1,2"), ("--price-per-hour", "3"), ("-o", "a.html")],
)
def test_what_is_for_one_model_is_refused(options: tuple[str, ...]) -> None:
    result = run("a.pt2", "b.onnx", *options)
    assert result.exit_code == 2
    assert "several models" in result.stderr


def test_a_call_that_cannot_run_is_the_error_of_its_line() -> None:
    from dataclasses import replace

    from graphflops.report.contradictions import diagnostic

    report = analyze(CONVNET)
    broken = replace(report, diagnostics=(diagnostic("GF118", "conv", "a stride of 0"),))

    def analyzed(model: str) -> Report:
        if model == "c":
            raise FileError("c: is empty")
        return broken if model == "b" else report

    found = overview("abc", analyzed)
    assert [line.error for line in found.lines] == ["", "conv cannot run: a stride of 0", "is empty"]
    assert found.lines[1].cost is not None
    assert repr(found) == "<Overview 3 models, 1 failed>"
    assert "a stride of 0" in found._repr_html_()
