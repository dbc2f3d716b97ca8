"""Limits of what a program takes on a device."""

from __future__ import annotations

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
    needed = analyze(DECODER, training=True, device="h200").memory_use[-1].device_total
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
