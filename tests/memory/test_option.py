"""`--execution` on the command line, in Python and in reports."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import pytest
import torch
from click.testing import CliRunner

import graphflops
from graphflops import cli
from graphflops.errors import OptionError

SAMPLE = Path(__file__).parents[2] / "samples" / "gqa_transformer.pt2"


def test_a_saved_report_says_how_the_program_runs(tmp_path: Path) -> None:
    report = graphflops.analyze(SAMPLE, execution="eager")
    saved = tmp_path / "report.json"
    saved.write_bytes(report.to_json())
    read = graphflops.analyze(saved)
    assert (read.execution, read.totals.peak_bytes) == ("eager", report.totals.peak_bytes)
    with pytest.raises(OptionError):
        graphflops.analyze(saved, execution="eager")


def test_only_memory_depends_on_it() -> None:
    graph, eager = (graphflops.analyze(SAMPLE, training=True, execution=way) for way in ("graph", "eager"))
    assert graph.rows == eager.rows
    assert graph.totals.cost == eager.totals.cost
    assert eager.value(eager.totals.peak_bytes) > graph.value(graph.totals.peak_bytes)


def test_peaks_stay_formulas() -> None:
    report = graphflops.analyze(SAMPLE, execution="eager")
    at = {name: 2 * size for name, size in report.values.items()}
    again = graphflops.analyze(SAMPLE, execution="eager", dims=at)
    assert report.totals.peak_bytes.substitute(at) == again.totals.peak_bytes


def test_the_summary_names_it() -> None:
    shown = CliRunner().invoke(cli.main, ["analyze", os.fspath(SAMPLE), "--execution", "eager"])
    assert shown.exit_code == 0
    assert [line for line in shown.output.splitlines() if "peak memory" in line and "run eagerly" in line]


def test_without_a_device_its_context_is_not_in_the_memory() -> None:
    shown = CliRunner().invoke(cli.main, ["analyze", os.fspath(SAMPLE), "--execution", "compiled"])
    assert [
        line.split()[2:5] for line in shown.output.splitlines() if line.startswith("  device memory  r")
    ] == [["runs", "in", ">="]]


def test_an_execution_that_does_not_exist() -> None:
    with pytest.raises(OptionError, match="execution: no 'fast'; there are graph, compiled, eager"):
        graphflops.analyze(SAMPLE, execution="fast")  # type: ignore[arg-type]


@pytest.mark.parametrize(("loss", "kind"), [("sum", "workspace"), ("given", "gradient")])
def test_the_gradient_of_a_sum_is_one_number(loss: Literal["sum", "given"], kind: str) -> None:
    """`sum(outputs).backward()` repeats one number as each element's gradient; a product writes it out for a moment."""
    program = torch.export.export(torch.nn.Linear(16, 32, bias=False), (torch.randn(64, 16),))
    training = graphflops.Training(optimizer="none", loss=loss)
    report = graphflops.analyze(program, training=training, execution="eager")
    held = [(held.kind, held.bytes) for held in report.memory.held if held.name == "linear"]
    assert sorted(held) == sorted([("value", 4 * 64 * 32), (kind, 4 * 64 * 32)])
