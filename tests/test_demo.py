"""The folder of small models that `graphflops demo` writes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from click.testing import CliRunner

from graphflops.cli import main

if TYPE_CHECKING:
    import pytest

FILES = ["changed.pt2", "decoder.html", "decoder.onnx", "decoder.pt2"]


def test_every_command_that_it_names_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["demo", "first folder"])
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in Path("first folder").iterdir()) == FILES
    commands = [
        line.split("  ")[1] for line in result.output.splitlines() if line.startswith("  graphflops ")
    ]
    assert len(commands) == 5
    for command in commands:
        tried = CliRunner().invoke(main, shlex.split(command)[1:])
        assert tried.exit_code == 0, f"{command}\n{tried.output}"


def test_nothing_is_written_over(tmp_path: Path) -> None:
    mine = tmp_path / "decoder.html"
    mine.write_text("mine")
    result = CliRunner().invoke(main, ["demo", str(tmp_path)])
    assert result.exit_code == 1
    assert "decoder.html: this file exists already: name another folder" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["decoder.html"]
    assert mine.read_text() == "mine"
