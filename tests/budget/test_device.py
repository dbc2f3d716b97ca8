"""Limits of what a program takes on a device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from graphflops import analyze
from graphflops.budget import limits
from graphflops.cli import main
from graphflops.errors import FileError

DECODER = Path(__file__).parents[2] / "samples" / "gqa_transformer.pt2"


def checked(tmp_path: Path, text: str) -> tuple[int, str]:
    (tmp_path / "model.pt2").write_bytes(DECODER.read_bytes())
    budget = tmp_path / "graphflops.toml"
    budget.write_text(f'models = ["model.pt2"]\n[[budget]]\n{text}')
    done = CliRunner().invoke(main, ["check", "--budget", str(budget)])
    return done.exit_code, done.output


def test_a_step_may_take_so_much(tmp_path: Path) -> None:
    report = analyze(DECODER, training=True, device="h200")
    needed = report.value(report.memory_use[-1].device_total or 0)
    limit = 'device = "h200"\ntraining = true\nmax_device_bytes = '
    code, text = checked(tmp_path, f"{limit}{needed}")
    assert code == 0, text
    assert needed is not None
    code, text = checked(tmp_path, f"{limit}{needed - 1}")
    assert code == 3
    assert "max_device_bytes" in text


def test_it_needs_a_device() -> None:
    with pytest.raises(FileError, match=r'max_device_bytes: needs a device: add device = "h200"'):
        limits.given({"max_device_bytes": "80GB"})


def test_an_unknown_device_is_said(tmp_path: Path) -> None:
    code, text = checked(tmp_path, 'device = "h2000"\nmax_device_bytes = "80GB"')
    assert code != 0
    assert "h2000" in text


def test_time_on_a_device(tmp_path: Path) -> None:
    code, text = checked(tmp_path, 'device = "h200"\nmax_seconds = "1 us"')
    assert code == 3
    assert "max_seconds" in text
    assert "1.00 µs" in text
    code, _ = checked(tmp_path, 'device = "h200"\nmax_seconds = "1 s"')
    assert code == 0


def test_time_needs_a_unit() -> None:
    with pytest.raises(FileError, match=r'is no time: write "2.5 ms" or "800 us"'):
        limits.given({"device": "h200", "max_seconds": "3 GB"})


def test_times_are_printed_and_saved_in_seconds(tmp_path: Path) -> None:
    text = 'baseline = "before.json"\nmodels = ["model.pt2"]\n[[budget]]\ndevice = "h200"\nmax_seconds = ["+2 %", "1 us"]\n'
    (tmp_path / "graphflops.toml").write_text(text)
    (tmp_path / "model.pt2").write_bytes(DECODER.read_bytes())
    arguments = ["check", "--budget", str(tmp_path / "graphflops.toml")]
    CliRunner().invoke(main, [*arguments, "--update"])
    time = analyze(DECODER, device="h200").totals.time
    assert time is not None
    ((saved,),) = [
        by_sizes.values()
        for by_sizes in json.loads((tmp_path / "before.json").read_text())["models"].values()
    ]
    assert saved["totals"]["max_seconds"] == pytest.approx(time.seconds, abs=1e-9)
    found = CliRunner().invoke(main, [*arguments, "--format", "json"])
    (model,) = json.loads(found.stdout)["models"]
    relative, absolute = model["limits"]
    assert relative["limit"] == pytest.approx(1.02 * time.seconds, rel=1e-6)
    assert (absolute["measured"], absolute["limit"]) == (pytest.approx(time.seconds, abs=1e-9), 1e-6)
    table = CliRunner().invoke(main, arguments).stdout
    assert f"{1e3 * time.seconds:.2f} ms" in table
    assert "ns" not in table.replace("limits", "")


def test_a_budget_says_how_the_program_runs(tmp_path: Path) -> None:
    eager, graph = (analyze(DECODER, device="h200", execution=way).totals.time for way in ("eager", "graph"))
    assert eager is not None
    assert graph is not None
    limit = f"{round(1e6 * (eager.seconds + graph.seconds) / 2)} us"  # between the two
    given = f'device = "h200"\nmax_seconds = "{limit}"'
    assert checked(tmp_path, given)[0] == 3
    assert checked(tmp_path, f'{given}\nexecution = "graph"')[0] == 0


def test_an_execution_that_does_not_exist_is_one_line() -> None:
    with pytest.raises(FileError, match=r"execution: 'fast' is no execution: write eager, graph or compiled"):
        limits.given({"device": "h200", "execution": "fast"})
