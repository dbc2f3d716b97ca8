"""`python -OO` compiles without docstrings: those that are output are the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from graphflops.base.docstrings import docstring

ROOT = Path(__file__).parents[1]


def printed(flags: list[str], *args: str) -> str:
    environment = {**os.environ, "COLUMNS": "100", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *flags, "-m", "graphflops", *args]
    return subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize("args", [["--help"], ["check", "--help"], ["rules"], ["audit", "--explain", "all"]])
def test_the_output_is_the_same_without_docstrings(args: list[str]) -> None:
    assert printed(["-OO"], *args) == printed([], *args)


def test_functions_without_a_docstring() -> None:
    assert docstring(lambda: None) == ""
