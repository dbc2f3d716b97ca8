"""Man pages: one for the program and one for each command, with examples line by line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from graphflops.cli import COMMANDS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("click_man")
    out = tmp_path_factory.mktemp("man")
    subprocess.run([sys.executable, "docs/site/man_pages.py", str(out)], cwd=ROOT, check=True)
    return out


def test_there_is_a_page_for_each_command(folder: Path) -> None:
    assert {page.name for page in folder.iterdir()} == {
        "graphflops.1",
        *(f"graphflops-{name}.1" for name in COMMANDS),
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_says_what_the_command_is_for(folder: Path, name: str) -> None:
    page = (folder / f"graphflops-{name}.1").read_text("utf-8")
    assert f"graphflops\\-{name} \\- {COMMANDS[name]}\n" in page.replace("\\'", "'")
    examples = page.partition(".SH OPTIONS")[0].count("\ngraphflops ")
    assert examples == 0 or ".nf\n" in page
