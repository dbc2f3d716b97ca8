"""A process that updates a baseline is ended at any moment: the file is the one before or the one after, never a part."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SAMPLES = Path(__file__).parents[2] / "samples"
# Updates without end, each a copy of another model, so slowly that most moments are within one.
UPDATES = """
import os, shutil, sys, time
from graphflops.cli import main
replace, close = os.replace, os.close
def slow(function):
    def run(*args):
        time.sleep(0.01)
        result = function(*args)
        time.sleep(0.01)
        return result
    return run
os.replace, os.close = slow(replace), slow(close)
while True:
    for name in sys.argv[1:]:
        shutil.copy(name, "m.pt2.new")
        replace("m.pt2.new", "m.pt2")
        main(["check", "--update"], standalone_mode=False)
"""
BUDGET = 'models = ["m.pt2"]\nbaseline = "base.json"\n[[budget]]\npeak_bytes = "+10 %"\n'


def started(folder: Path) -> subprocess.Popen[bytes]:
    models = [str(SAMPLES / name) for name in ("cond.pt2", "lstm.pt2")]
    return subprocess.Popen(
        [sys.executable, "-c", UPDATES, *models],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_file_is_half_written(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "graphflops.toml").write_text(BUDGET)
    chance, baseline, whole = random.Random(13), tmp_path / "base.json", set()
    for name in ("cond.pt2", "lstm.pt2"):
        (tmp_path / "m.pt2").write_bytes((SAMPLES / name).read_bytes())
        subprocess.run([sys.executable, "-m", "graphflops", "check", "--update"], cwd=tmp_path, check=True)
        whole.add(baseline.read_bytes())
    assert len(whole) == 2
    for _ in range(5):
        baseline.unlink()
        process = started(tmp_path)
        while not baseline.exists():
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(chance.random() / 4)
        process.send_signal(number)
        assert process.wait(20) in (-number, 143)  # 143 where SIGTERM meets a command
        assert baseline.read_bytes() in whole
        if number == signal.SIGTERM:
            assert {path.name for path in tmp_path.iterdir()} <= {
                "graphflops.toml",
                "base.json",
                "m.pt2",
                "m.pt2.new",
            }
