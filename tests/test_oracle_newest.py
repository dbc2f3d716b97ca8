"""What the weekly look at the newest releases compares: here with the release that the tests run on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from tests.oracle import newest_releases
from tests.oracle.recorded_programs import programs, saved

TOTALS = json.loads(newest_releases.RECORDED.read_text())["totals"]


def test_totals_are_those_recorded(tmp_path: Path) -> None:
    """Captured and read back, a program costs what it cost under the releases that were recorded."""
    for name, program in programs().items():
        assert newest_releases.totals(program) == TOTALS[f"{name}.captured"], name
        saved(name, program, tmp_path / "program.pt2")
        assert newest_releases.totals(tmp_path / "program.pt2") == TOTALS[f"{name}.saved"], name


def test_a_reading_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest_releases, "totals", lambda model: 1 // 0)
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(1, 2),))
    assert dict(newest_releases.measured("conv", program, tmp_path))["conv.captured"].startswith(
        "ZeroDivision"
    )
