"""A worker process: reads tasks from its standard input, a line of JSON each, and writes a line with what came of each.

It analyzes files of unknown origin and may hang, crash or be killed; the process that started it then starts another.

One worker process beside a thread: a file that hangs, grows or crashes ends that process and nothing else.

Neither concurrent.futures nor loky nor Dask end a single task: a process that dies breaks their pool or takes other tasks
with it, and a thread of Dask cannot be stopped. So a thread, of a local pool or of a Dask worker, has one such process.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from graphflops.scan.jobs import Result
from graphflops.scan.measure import Task, answered

_COLLECTED = 50  # files after which unreachable objects are collected


def main() -> None:
    """Answer until the input ends, which it does also where the process that started this one is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing that is printed here is taken for a reply
    gc.disable()
    decoder = msgspec.json.Decoder(Task)
    for number, line in enumerate(sys.stdin.buffer):
        task = decoder.decode(line)
        found = answered(task)
        if number % _COLLECTED == 0:
            gc.collect()
        replies.write(msgspec.json.encode(replace(found, memory=_memory())) + b"\n")
        replies.flush()


def _memory() -> int:
    try:
        import resource
    except ImportError:
        return 0
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes if sys.platform == "darwin" else kilobytes * 1024


COMMAND = (sys.executable, "-m", "graphflops.scan.worker")
GRACE = 5.0  # seconds beyond the time limit, which the process itself keeps, after which it is ended
_MOST_MEMORY = 180 * 2**20  # bytes; a process that has had more is replaced by a fresh one


class Ended(Exception):
    """The process ended before it replied. late: it was ended because it took too long; else `code` is its exit status."""

    def __init__(self, code: int, *, late: bool) -> None:
        super().__init__(f"exit status {code}")
        self.code = code
        self.late = late


class Isolated:
    """A worker process that is started when it is needed, and again after it ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self, task: Task) -> Result:
        """What the process replies; Ended where it does not."""
        if _closed.is_set():
            raise Ended(0, late=False)
        if self._process is None:
            pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
            self._process = subprocess.Popen(COMMAND, stdin=pipe, stdout=pipe, stderr=nothing)
        process = self._process
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(task.seconds + GRACE, end)
        timer.daemon = True
        timer.start()
        try:
            line = _asked(process, msgspec.json.encode(task) + b"\n")
        finally:
            timer.cancel()
        if not line.endswith(b"\n"):
            self.close()
            raise Ended(process.wait(), late=late.is_set())
        reply = msgspec.json.decode(line, type=Result)
        if reply.memory > _MOST_MEMORY:
            self.close()
        return reply

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    pipe.close()  # type: ignore[union-attr]


def _asked(process: subprocess.Popen[bytes], text: bytes) -> bytes:
    """The line that the process replies; less where it ends."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(text)
        process.stdin.flush()
        return process.stdout.readline()
    except OSError:
        return b""


_of_thread = threading.local()
_every: list[Isolated] = []
_closed = threading.Event()  # no process is started any more


def isolated() -> Isolated:
    """The worker process of this thread."""
    if not hasattr(_of_thread, "process"):
        _of_thread.process = Isolated()
        _every.append(_of_thread.process)
    found: Isolated = _of_thread.process
    return found


@contextlib.contextmanager
def ended_at_exit() -> Iterator[None]:
    """Ends the worker processes of all threads when the body is left."""
    _closed.clear()
    try:
        yield
    finally:
        _closed.set()
        while _every:
            _every.pop().close()


if __name__ == "__main__":
    main()
