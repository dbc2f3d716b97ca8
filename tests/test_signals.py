"""SIGTERM ends a command as an error does: nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = """
import sys, time
from graphflops import cli
from graphflops.versions import revisions
def slow(*_, **__):
    open("ready", "w").close()
    time.sleep(60)
import graphflops.loading, graphflops.comparison.models as models
models.analyze = slow
cli.main(["diff", "HEAD:m.pt2", "m.pt2"])
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM")
def test_temporary_folders_are_removed(tmp_path: Path) -> None:
    sample = Path(__file__).parents[1] / "samples" / "lstm.pt2"
    (tmp_path / "m.pt2").write_bytes(sample.read_bytes())
    (tmp_path / "tmp").mkdir()
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    for command in (("init", "-q"), ("add", "m.pt2"), (*identity, "commit", "-qm", "x")):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    env = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    process = subprocess.Popen([sys.executable, "-c", SCRIPT], cwd=tmp_path, env=env)
    for _ in range(600):
        if (tmp_path / "ready").exists():
            break
        time.sleep(0.1)
    assert [*(tmp_path / "tmp").glob("graphflops-*")]
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 143
    assert [*(tmp_path / "tmp").iterdir()] == []
