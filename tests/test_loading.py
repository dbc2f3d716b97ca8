"""The public functions: each takes a path, a graph, a saved report or a report, as the command line does."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import graphflops
from graphflops import analyze, check, compare, load
from graphflops.errors import FileError, OptionError
from graphflops.report import Report

SAMPLES = Path(__file__).parents[1] / "samples"
CONVNET = SAMPLES / "convnet.pt2"
TRANSFORMER = SAMPLES / "gqa_transformer.pt2"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "report.json"
    path.write_bytes(analyze(CONVNET).to_json())
    return path


def test_a_saved_report_is_read_as_it_was_saved(saved: Path) -> None:
    report = analyze(str(saved))
    assert report == analyze(saved) == analyze(report) == Report.from_json(saved.read_bytes())
    assert report.totals == analyze(CONVNET).totals


@pytest.mark.parametrize("options", [{"training": True}, {"model_name": "m"}])
def test_a_saved_report_takes_sizes_only(saved: Path, options: dict[str, object]) -> None:
    with pytest.raises(OptionError, match="is a saved report"):
        analyze(saved, **options)  # type: ignore[arg-type]


def test_json_that_is_no_report(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text("{}")
    with pytest.raises(FileError, match="not a graphflops report"):
        analyze(path)


def test_compare_takes_what_analyze_takes(saved: Path) -> None:
    assert compare(CONVNET, saved).same
    assert compare(load(CONVNET), analyze(str(CONVNET))).same
    found = compare(TRANSFORMER, TRANSFORMER.with_suffix(".onnx"), dims={"ids[1]": 16})
    assert found.export
    assert found.old.origin.path == str(TRANSFORMER)
    report = analyze(TRANSFORMER, dims={"ids[1]": 16})
    flops = found.totals["forward"]["matrix_flops"]
    assert flops.before_value == flops.after_value == report.value(report.total().matrix_flops)


def test_compare_reads_a_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(CONVNET, "net.pt2")
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *command], check=True)
    shutil.copy(TRANSFORMER, "net.pt2")
    found = compare("HEAD:net.pt2", "net.pt2")
    assert (found.old.origin.path, found.new.origin.path) == ("HEAD:net.pt2", "net.pt2")
    assert not found.same


def test_check_takes_limits_or_a_budget_file(tmp_path: Path, saved: Path) -> None:
    report = analyze(CONVNET)
    flops = report.value(report.total().matrix_flops)
    assert not check(CONVNET, {"matrix_flops": flops}).broken
    for model in (CONVNET, saved, report, load(CONVNET)):
        result = check([model], {"matrix_flops": "1 kFLOP"})
        assert result.broken
        assert [finding.code for finding in result.found[0].findings] == ["GF301"]
    budget = tmp_path / "graphflops.toml"
    budget.write_text('models = "*.pt2"\n[[budget]]\nparameters = "1"\n')
    shutil.copy(CONVNET, tmp_path / "net.pt2")
    (model,) = check(budget=budget).found
    assert model.model == str(tmp_path / "net.pt2")
    assert model.findings[0].code == "GF301"


def test_check_compares_with_a_saved_report(saved: Path) -> None:
    grown = {"matrix_flops": "+1 %"}
    assert not check(CONVNET, grown, baseline=str(saved)).broken
    with pytest.raises(OptionError, match="report of one model"):
        check([CONVNET, saved], grown, baseline=str(saved))


def test_a_model_that_cannot_be_analyzed_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "net.pt2").write_bytes(b"no model")
    result = check(tmp_path / "net.pt2", {"matrix_flops": "1 G"})
    assert result.failed
    assert result.found[0].findings[0].code == "GF310"


def test_every_public_name_is_a_function_after_all_modules_were_imported() -> None:
    names = [name for name in graphflops.__all__ if name not in ("__version__", "capture", "validate")]
    assert all(callable(getattr(graphflops, name)) for name in names)
    assert graphflops.audit(SAMPLES / "convnet.onnx").report is not None


def test_only_commands_know_the_command_line() -> None:
    package = Path(graphflops.__file__).parent
    inside = {package / "cli.py", *(package / "commands").iterdir()}
    for path in package.rglob("*.py"):
        if path not in inside:
            text = path.read_text(encoding="utf-8")
            assert "import click" not in text, path
            assert "graphflops.commands" not in text, path
