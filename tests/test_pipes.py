"""A pipe in place of a file, which nobody writes to, is refused in one line: no command waits for it."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from graphflops.cli import main
from graphflops.errors import FileError
from graphflops.runtime.input_plans import stored

SAMPLES = Path(__file__).parents[1] / "samples"
SAID = "is a device or a pipe"
pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a model, a budget and pipes, and an alarm that ends what waits for them."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(SAMPLES / "convnet.pt2", "m.pt2")
    shutil.copy(SAMPLES / "convnet.onnx", "m.onnx")
    for name in ("p.pt2", "p.onnx", "p.json", "p.toml", "p.py", "p.txt", "p.npz"):
        os.mkfifo(name)
    Path("relative.toml").write_text('baseline = "p.json"\n[[budget]]\nmatrix_flops = "+5 %"\n')

    def waited(number: int, frame: object) -> None:
        raise AssertionError("a pipe is waited for")

    before = signal.signal(signal.SIGALRM, waited)
    signal.alarm(30)
    yield tmp_path
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    "command",
    [
        "analyze p.pt2",
        "analyze p.onnx",
        "analyze p.json",
        "analyze m.pt2 --device p.json",
        "analyze m.pt2 --rules p.py",
        "audit p.onnx",
        "audit p.onnx --device h200",
        "check m.pt2 --budget p.toml",
        "check m.pt2 --budget relative.toml",
        "check p.pt2 --budget relative.toml",
        "diff m.pt2 p.pt2",
        "diff p.json m.pt2",
        "fits p.pt2 --device h200",
        "fits m.pt2 --device p.json",
        "rules p.pt2",
        "textconv p.pt2",
        "scan m.pt2 --output t.parquet --bindings p.toml",
        "scan m.pt2 --output t.parquet --device p.json",
    ],
)
def test_no_command_waits_for_a_pipe(command: str, folder: Path) -> None:
    done = CliRunner().invoke(main, command.split())
    assert done.exit_code == (0 if "textconv" in command else 1), done.output  # which git diff shows
    assert SAID in done.output
    assert done.output.count("\n") == 1


def test_inputs_of_a_run_are_no_pipe(folder: Path) -> None:
    with pytest.raises(FileError, match=SAID):
        stored("p.npz", "numpy")


def test_a_pipe_of_the_name_of_the_settings_is_refused(folder: Path) -> None:
    os.mkfifo("graphflops.toml")
    for command in ("check m.pt2", "audit m.onnx"):
        done = CliRunner().invoke(main, command.split())
        assert (done.exit_code, done.stderr) == (
            1,
            "graphflops: error: graphflops.toml: is a device or a pipe, not a file\n",
        )
