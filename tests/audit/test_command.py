"""`graphflops audit` as its users meet it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from onnx import parser

from graphflops.cli import main
from graphflops.onnx_audit.audit import checks
from graphflops.time_audit import rules

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
    assert "512 B (100.0 %)" in text  # 64 floats read, 64 written: all that the model moves
    assert "not known at the sizes left open" in run(path, "--open").stdout


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
    assert [rule["id"] for rule in log["tool"]["driver"]["rules"]] == [*checks(), *rules()]
    assert [result["ruleId"] for result in log["results"]] == ["GF243", "GF216"]


def test_markdown(wasteful: Path) -> None:
    text = run(wasteful, "--format", "markdown").stdout
    assert "GF243" in text
    assert text.count("\n- ") == 2
    assert text.count("Fix: ") == 2


def chain(path: Path, names: list[str]) -> Path:
    """Casts to the same type, one after the other, each in the module of that name."""
    calls = [f"v{i + 1} = Cast <to = 1> (v{i})" for i in range(len(names))]
    proto = parser.parse_model(
        HEAD + f"g (float[4] v0) => (float[4] v{len(names)}) {{ {chr(10).join(calls)} }}"
    )
    for node, name in zip(proto.graph.node, names, strict=True):
        node.name = name
    path.write_bytes(proto.SerializeToString())
    return path


def test_equal_findings_over_layers_are_one_and_a_fix_stands_once(tmp_path: Path) -> None:
    path = chain(tmp_path / "chain.onnx", [f"/layers.{i}/attn/Cast" for i in range(9)])
    out = run(path, "--select", "GF243").stdout
    assert out.count("fix: ") == 1
    assert "GF243 does-nothing  x9  288 B (100.0 %)" in out  # each reads and writes four floats
    assert "layers.0-8.attn (x9): " in out
    assert "9 warnings; together at most 288 B (100.0 %)" in out
    assert (
        len(json.loads(run(path, "--select", "GF243", "--format", "json").stdout)["models"][0]["findings"])
        == 9
    )


def test_places_of_one_code_past_the_most_are_counted(tmp_path: Path) -> None:
    path = chain(tmp_path / "chain.onnx", [f"/{name}/Cast" for name in "abcdefgh"])
    assert "… and 3 more of GF243" in run(path, "--select", "GF243").stdout
    assert "more of" not in run(path, "--select", "GF243", "--top", "20").stdout


def test_statistics_have_a_line_for_each_code(wasteful: Path, broken: Path) -> None:
    lines = run(wasteful, broken, "--statistics").stdout.splitlines()
    assert [line.split()[:4] for line in lines[1:-1]] == [
        ["error", "GF202", "undefined-value", "1"],
        ["warning", "GF243", "does-nothing", "1"],
        ["note", "GF216", "unused-input", "1"],
    ]
    assert run(wasteful, "--statistics", "--format", "json").exit_code == 2


def test_a_file_that_cannot_be_read_does_not_hide_the_others(wasteful: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.onnx"
    bad.write_text("no model")
    result = run(bad, wasteful, tmp_path / "none.onnx", tmp_path / "none.pt2")
    assert result.exit_code == 1
    assert "GF243 does-nothing" in result.stdout
    first, second, third = result.stderr.splitlines()
    assert "bad.onnx: is not an ONNX model" in first
    assert "none.onnx: no such file" in second
    assert "none.pt2: no such file" in third


@pytest.mark.parametrize(
    ("entry", "codes"),
    [
        ('codes = "GF24"', ["GF216"]),
        ('codes = ["GF216", "GF243"]', []),
        ('files = "other/*.onnx"', ["GF243", "GF216"]),
        ('files = "model.onnx"\ncodes = "GF216"', ["GF243"]),
        ('modules = "layers.*"', ["GF243", "GF216"]),
    ],
)
def test_graphflops_toml_ignores_findings(
    wasteful: Path, monkeypatch: pytest.MonkeyPatch, entry: str, codes: list[str]
) -> None:
    (wasteful.parent / "graphflops.toml").write_text(f"[[audit.ignore]]\n{entry}\n")
    (wasteful.parent / "deep").mkdir()
    monkeypatch.chdir(wasteful.parent / "deep")
    (model,) = json.loads(run("../model.onnx", "--format", "json").stdout)["models"]
    assert [finding["code"] for finding in model["findings"]] == codes


def test_findings_in_a_module_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain(tmp_path / "chain.onnx", [f"/layers.{i}/attn/Cast" for i in range(3)])
    (tmp_path / "graphflops.toml").write_text(
        '[[audit.ignore]]\nmodules = "layers.*.attn"\ncodes = "GF243"\n'
    )
    monkeypatch.chdir(tmp_path)
    assert "nothing found" in run("chain.onnx", "--select", "GF243").stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[audit.ignore]]", "audit.ignore[0] ignores nothing"),
        ('[[audit.ignore]]\ncode = "GF2"', "unknown field `code`"),
        ("[audit", "no TOML"),
    ],
)
def test_wrong_settings_are_one_line(
    wasteful: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    (wasteful.parent / "graphflops.toml").write_text(text)
    monkeypatch.chdir(wasteful.parent)
    result = run("model.onnx")
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


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
    assert (unknown.exit_code, "no check has the code 'GF9'" in unknown.stderr) == (2, True)
    assert "a note of `graphflops analyze`" in run("--explain", "GF122").stderr
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

    from graphflops.onnx_audit import audit as module
    from graphflops.onnx_audit.audit import audit as run_audit

    def fails(_: object) -> None:
        raise ZeroDivisionError("nothing")

    known = dict(module.checks())
    code = next(iter(known))
    known[code] = replace(known[code], run=fails)
    before = run_audit("samples/convnet.onnx").findings
    monkeypatch.setattr(module, "checks", lambda: known)
    after = run_audit("samples/convnet.onnx").findings
    failed = [finding for finding in after if "the check itself failed" in finding.message]
    assert [(finding.code, finding.severity) for finding in failed] == [(code, "error")]
    assert {f for f in before if f.code != code} == set(after) - set(failed)


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("y = Conv <group = 0> (a, w)", "GF118"),
        ("y = Conv (a)", "GF118"),
        ("y = Conv <strides = 2.5> (a, w)", "GF118"),
        ("y = Convv (a, w)", "GF206"),
        ("y = foo.Bar (a)", "GF207"),
        ("y = Relu (a) y = Tanh (a)", "GF203"),
    ],
)
def test_one_fact_has_one_code(tmp_path: Path, call: str, code: str) -> None:
    text = f"{HEAD}g (float[1,3,8,8] a, float[4,3,3,3] w) => (float[1,4,6,6] y) {{ {call} }}"
    path = tmp_path / "model.onnx"
    path.write_bytes(parser.parse_model(text).SerializeToString())
    found = json.loads(run(path, "--ignore", "GF216,GF224", "--format", "json").stdout)["models"][0][
        "findings"
    ]
    assert [finding["code"] for finding in found] == [code]
