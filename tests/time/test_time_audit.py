"""Findings about time: what makes a program slow on a device, with the time that it costs."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from graphflops import cli
from graphflops.time_audit import SLOW_CHECKS

SAMPLES = Path(__file__).parents[2] / "samples"


def audited(*arguments: str) -> dict[str, object]:
    result = CliRunner().invoke(cli.main, ["audit", *arguments, "--format", "json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def codes(*arguments: str) -> set[str]:
    (model,) = audited(*arguments)["models"]
    return {finding["code"] for finding in model["findings"]}


def test_a_small_program_waits_for_the_cpu() -> None:
    found = codes(str(SAMPLES / "gqa_transformer.pt2"), "--device", "h200")
    assert "GF275" in found


def test_a_graph_does_not_wait_for_the_cpu() -> None:
    found = codes(str(SAMPLES / "gqa_transformer.pt2"), "--device", "h200", "--execution", "graph")
    assert "GF275" not in found


def test_an_onnx_file_has_both_kinds_of_findings() -> None:
    found = codes(str(SAMPLES / "gqa_transformer.onnx"), "--device", "h200", "--dim", "sequence=2048")
    assert {"GF257", "GF271"} <= found  # heads repeated, as bytes; unfused attention, as time


def test_selected_checks_only() -> None:
    found = codes(str(SAMPLES / "gqa_transformer.pt2"), "--device", "h200", "--select", "GF270")
    assert found <= {"GF270"}


def test_each_check_is_explained() -> None:
    for check in SLOW_CHECKS:
        result = CliRunner().invoke(cli.main, ["audit", "--explain", check.code])
        assert check.name in result.stdout
        assert check.fix in result.stdout


def test_an_archive_is_audited_for_a_device() -> None:
    result = CliRunner().invoke(cli.main, ["audit", str(SAMPLES / "gqa_transformer.pt2")])
    assert result.exit_code == 1
    assert "name a device with --device h200" in result.stderr


def test_what_saves_little_is_a_note_and_less_than_a_hundredth_is_not_said() -> None:
    (model,) = audited(
        str(SAMPLES / "gqa_transformer.onnx"),
        "--device",
        "h200",
        "--dim",
        "sequence=2048",
        "--select",
        "GF27",
    )["models"]  # type: ignore[misc]
    found = {one["code"]: (one["severity"], one["seconds"]) for one in model["findings"]}
    assert found["GF271"][0] == "warning"
    assert found["GF273"][0] == "note"
    assert found["GF271"][1] > found["GF273"][1] > 0
    small = codes(str(SAMPLES / "gqa_transformer.onnx"), "--device", "h200", "--dim", "sequence=8192")
    assert "GF273" not in small
