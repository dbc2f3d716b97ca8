"""The command line as a process of its own: pipes, terminals, and what it imports."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

import pytest

from graphflops.commands import files
from tests.test_cli import MODEL, ROOT, ok, unknown

__all__ = ["unknown"]  # a fixture
COMMAND = [sys.executable, "-m", "graphflops.cli"]


def process(*args: str, encoding: str = "utf-8", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *args],
        cwd=ROOT,
        capture_output=True,
        encoding=encoding,
        timeout=120,
        check=False,
        env={**os.environ, **env},
    )


def test_a_process() -> None:
    done = process("analyze", MODEL)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ok("analyze", MODEL)
    done = process("analyze", "missing.pt2")
    assert done.returncode == 1
    assert done.stdout == ""
    assert re.fullmatch(r"graphflops: error: missing.pt2: .+\n", done.stderr)


def imported(*args: str) -> set[str]:
    code = (
        "import sys\nfrom graphflops.cli import main\n"
        "try: main(sys.argv[1:])\nfinally: sys.stderr.write(' '.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *args], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(done.stderr.split())


def test_what_is_imported() -> None:
    heavy = {"torch", "networkx", "onnx", "numpy", "sympy", "tqdm", "msgspec", "graphflops.report"}
    assert imported("--help").isdisjoint(heavy)
    heavy.remove("msgspec")  # it makes the records of the options
    assert imported("analyze", "--help").isdisjoint(heavy)
    heavy.remove("graphflops.report")
    assert imported("analyze", MODEL, "--format", "json").isdisjoint(heavy)
    assert imported("analyze", MODEL, "--format", "csv").isdisjoint(heavy)
    assert imported("analyze", MODEL).isdisjoint(heavy)


def test_a_pipe_that_is_closed_early() -> None:
    command = " ".join([*COMMAND, "rules", "--format", "csv"])
    done = subprocess.run(
        f"{command} | head -n 1", shell=True, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout == "operator,rule,file,what is counted\n"


@pytest.mark.parametrize("encoding", ["ascii", "cp1251"])
def test_a_pipe_that_takes_no_unicode(encoding: str) -> None:
    done = process("analyze", MODEL, encoding=encoding, PYTHONIOENCODING=encoding, PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr
    assert "409.6 k*ids[0]*ids[1] + 1,024*ids[0]*ids[1]**2" in done.stdout


def on_terminal(*args: str, columns: int = 100, **env: str) -> str:
    """What a terminal of that width gets to see."""
    main, side = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    environment |= {"TERM": "xterm", "COLUMNS": str(columns), **env}
    with subprocess.Popen(
        [*COMMAND, *args], cwd=ROOT, stdin=side, stdout=side, stderr=side, env=environment
    ) as child:
        os.close(side)
        seen = b""
        while True:
            try:
                part = os.read(main, 65536)
            except OSError:
                break
            if not part:
                break
            seen += part
        child.wait()
    os.close(main)
    return seen.decode().replace("\r\n", "\n")


def test_a_terminal_gets_colours_and_a_pipe_none(unknown: str) -> None:
    assert "\x1b[31m" in on_terminal("analyze", unknown)
    plain = on_terminal("analyze", unknown, NO_COLOR="1")
    assert "\x1b" not in plain
    assert "\x1b" not in on_terminal("analyze", unknown, TERM="dumb")
    assert "\x1b" not in process("analyze", unknown).stdout
    assert on_terminal("analyze", unknown, columns=200, NO_COLOR="1") == process("analyze", unknown).stdout


def test_a_narrow_terminal() -> None:
    narrow = on_terminal("analyze", MODEL, columns=64, NO_COLOR="1")
    assert max(map(len, narrow.splitlines())) <= 64
    assert "aten.scaled_dot_product_attention" in narrow


def test_progress(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with files.Progress() as progress:
        progress(0, 10)
        assert progress.bar is None
        progress.start -= 2
        progress(5, 10)
        assert progress.bar is not None
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    with files.Progress() as progress:
        progress.start -= 2
        progress(5, 10)
        assert progress.bar is None
