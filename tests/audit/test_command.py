"""`graphflops audit` as its users meet it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from onnx import parser

from graphflops.cli import main
from graphflops.onnx_audit.catalogue import checks

HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'


def run(*args: str | os.PathLike[str]) -> Result:
    return CliRunner().invoke(main, ["audit", *map(os.fspath, args)], prog_name="graphflops")


@pytest.fixture
def wasteful(tmp_path: Path) -> Path:
    """A Cast to the same type (a warning), and an input that nothing uses (a note)."""
    path = tmp_path / "model.onnx"
    body = "g (float[2,3] a, float[2] b) => (float[2,3] y) { y = Cast <to = 1> (a) }"
    path.write_bytes(parser.parse_model(HEAD + body).SerializeToString())
    return path


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    path = tmp_path / "broken.onnx"
    body = "g (float[2] a) => (float[2] y) { y = Add(a, gone) }"
    path.write_bytes(parser.parse_model(HEAD + body).SerializeToString())
    return path


def test_the_table_says_what_where_and_what_to_do(wasteful: Path) -> None:
    result = run(wasteful)
    assert result.exit_code == 0
    assert "1 warning, 1 note" in result.stdout
    assert "GF243 does-nothing" in result.stdout
    assert "48 B" in result.stdout  # six floats read, six written
    assert "fix: " in result.stdout


def test_costs_name_the_sizes_that_are_assumed(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    body = "g (float[batch, seq] a) => (float[batch, seq] y) { y = Cast <to = 1> (a) }"
    path.write_bytes(parser.parse_model(HEAD + body).SerializeToString())
    text = run(path).stdout
    assert "costs at batch = 1 (assumed), seq = 64 (assumed)" in text
    assert "costs 512 B" in text  # 64 floats read, 64 written
    assert "costs 8·batch·seq B" in run(path, "--open").stdout


def test_exit_codes(wasteful: Path, broken: Path) -> None:
    assert run(wasteful, "--fail-on", "warning").exit_code == 3
    assert run(wasteful, "--fail-on", "note", "--ignore", "GF243,GF216").exit_code == 0
    assert run(broken).exit_code == 3
    assert run(broken, "--fail-on", "never").exit_code == 0
    assert run(broken, "--select", "GF24").exit_code == 0


def test_json(wasteful: Path, broken: Path) -> None:
    read = json.loads(run(wasteful, broken, "--format", "json").stdout)
    codes = [[finding["code"] for finding in model["findings"]] for model in read["models"]]
    assert codes == [["GF243", "GF216"], ["GF202"]]
    (first, _) = read["models"][0]["findings"]
    assert (first["severity"], first["bytes"], first["op"]) == ("warning", 48, "onnx.Cast.21")


def test_sarif_lists_every_check(wasteful: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.sarif"
    assert run(wasteful, "--output", target).exit_code == 0
    (log,) = json.loads(target.read_text())["runs"]
    assert [rule["id"] for rule in log["tool"]["driver"]["rules"]] == [*checks()]
    assert [result["ruleId"] for result in log["results"]] == ["GF243", "GF216"]


def test_markdown(wasteful: Path) -> None:
    text = run(wasteful, "--format", "markdown").stdout
    assert "GF243" in text
    assert text.count("\n| ") >= 3


def test_a_table_folds_what_repeats(tmp_path: Path) -> None:
    body = "; ".join(f"v{i} = Cast <to = 1> (v{i - 1})" for i in range(1, 10)).replace("; ", "\n")
    proto = parser.parse_model(HEAD + f"g (float[4] v0) => (float[4] v9) {{ {body} }}")
    path = tmp_path / "chain.onnx"
    path.write_bytes(proto.SerializeToString())
    out = run(path, "--select", "GF243").stdout
    assert out.count("GF243 does-nothing") == 5
    assert "4 more of GF243" in out
    assert run(path, "--select", "GF243", "--top", "20").stdout.count("GF243 does-nothing") == 9


@pytest.mark.parametrize("code", [*checks()])
def test_every_check_explains_itself(code: str) -> None:
    out = run("--explain", code).stdout
    check = checks()[code]
    assert out.startswith(f"{code} {check.name} (")
    assert len(check.explanation) > 60
    assert "Fix: " in out
    assert f"{code}  " in run("--explain", "all").stdout


def test_wrong_usage(wasteful: Path, tmp_path: Path) -> None:
    assert run().exit_code == 2
    assert "GF999" in run("--explain", "GF999").stderr
    unknown = run(wasteful, "--select", "GF9")
    assert (unknown.exit_code, unknown.stderr.count("\n")) == (1, 1)
    text = tmp_path / "page.onnx"
    text.write_text("<!DOCTYPE html><html></html>")
    refused = run(text)
    assert (refused.exit_code, refused.stdout, refused.stderr.count("\n")) == (1, "", 1)


def test_what_is_not_onnx() -> None:
    sample = Path(__file__).parents[2] / "samples" / "convnet.pt2"
    refused = run(sample)
    assert refused.exit_code == 1
    assert "not an ONNX model" in refused.stderr


def test_a_check_that_fails_loses_only_itself(monkeypatch):
    from dataclasses import replace

    from graphflops.onnx_audit import catalogue
    from graphflops.onnx_audit.audit import audit as run_audit

    def fails(_: object) -> None:
        raise ZeroDivisionError("nothing")

    known = dict(catalogue.checks())
    code = next(iter(known))
    known[code] = replace(known[code], run=fails)
    before = run_audit("samples/convnet.onnx").findings
    monkeypatch.setattr(catalogue, "checks", lambda: known)
    after = run_audit("samples/convnet.onnx").findings
    failed = [finding for finding in after if "the check itself failed" in finding.message]
    assert [(finding.code, finding.severity) for finding in failed] == [(code, "error")]
    assert {f for f in before if f.code != code} == set(after) - set(failed)
