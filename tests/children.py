"""Child processes that run programs and fix files begin as copies of one process that has imported what they need.

Importing torch takes longer than what most children do. tests/runtime/test_isolated.py, about children, starts real ones.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from types import SimpleNamespace

import pytest

# What is not installed is left out.
IMPORTED = [
    "torch._dynamo",
    "graphflops.runtime.run",
    "graphflops.runtime.rank",
    "onnxruntime",
    "graphflops.onnx_fix.apply",
]


START = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
CONTEXT = multiprocessing.get_context(START)
if START == "forkserver":
    CONTEXT.set_forkserver_preload(IMPORTED)


class Copy:
    """What `isolated` asks of `subprocess.Popen`. command: `python -c CODE ARGUMENT...`."""

    def __init__(self, command: Sequence[str], **_: int) -> None:
        pipes = [CONTEXT.Pipe(duplex=False) for _ in ("stdout", "stderr")]
        given = (command, dict(os.environ), [writer for _, writer in pipes])
        self.process = CONTEXT.Process(target=_run, args=given)
        self.process.start()
        for _, writer in pipes:
            writer.close()  # the child's are left, so that its end is seen
        self.stdout, self.stderr = (os.fdopen(os.dup(reader.fileno()), "rb") for reader, _ in pipes)

    def wait(self, seconds: float | None = None) -> int:
        self.process.join(seconds)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired("", seconds or 0.0)
        return self.process.exitcode

    def kill(self) -> None:
        self.process.kill()


def _run(command: Sequence[str], environment: dict[str, str], writers: Sequence[Connection]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    for stream, writer in enumerate(writers, start=1):
        os.dup2(writer.fileno(), stream)
    _, _, code, *arguments = command
    sys.argv = ["-c", *arguments]
    exec(code, {"__name__": "__main__"})


def finished(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What `subprocess.run` says of a Python process, of one that began as a copy."""
    command = [sys.executable, "-c", code, *arguments]
    process = Copy(command)
    with ThreadPoolExecutor(2) as pool:
        printed = [pool.submit(stream.read) for stream in (process.stdout, process.stderr)]
        texts = [each.result().decode() for each in printed]
    return subprocess.CompletedProcess(command, process.wait(), *texts)


@pytest.fixture
def copied_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children of the test are copies, where the system has such."""
    if START == "forkserver":
        given = SimpleNamespace(Popen=Copy, TimeoutExpired=subprocess.TimeoutExpired)
        monkeypatch.setattr("graphflops.runtime.isolated.subprocess", given)
