"""One job from its file to its row; runs in a thread, of this process or of a Dask worker.

The file is opened by a worker process alone: a mount that stalls, or a pipe in place of the file, holds up no thread for
longer than the time limit.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from typing import TYPE_CHECKING, Any, Literal

from graphflops.scan.isolated import Ended, isolated
from graphflops.scan.jobs import Result, is_url
from graphflops.scan.measure import Task, failed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from graphflops.scan.jobs import Job

_ATTEMPTS = 2  # a process may also have been killed by someone else
_SLOWEST = 2**24  # bytes a second at which a large file is read: no part of the time limit
_STATE = ("bytes", "modified")
KNOWN = "known"  # status of a row that is to be taken from the table


def scanned(job: Job, known: Collection[str] = ()) -> Result:
    """The row of a job. known: digests of the files whose rows the table has; of these the row has the status KNOWN."""
    key: dict[str, Any] = {"sha256": "", "path": job.name, "binding": job.binding.text}
    with _place(job.path) as file:
        about = {**key, **_step("look", file, job).row}
        if "status" not in about and not about["sha256"]:
            about |= _step("digest", file, job, about["bytes"]).row
        if "status" in about:
            return Result({**about, "sha256": ""}, {})
        if about["sha256"] in known:
            return Result({**about, "status": KNOWN}, {})
        result = _step("analyze", file, job)
    if any(result.row.get(name, about[name]) != about[name] for name in _STATE):
        said = "the file was replaced while it was read: scan it again"
        return Result({**about, **failed("error", "Replaced", said), "sha256": ""}, {})
    key["sha256"] = about["sha256"]
    return Result(
        {**result.row, **about},
        {name: [{**key, **row} for row in rows] for name, rows in result.more.items()},
    )


def _step(step: Literal["look", "digest", "analyze"], file: str, job: Job, size: int = 0) -> Result:
    """What a worker process says of the file; a row of its own where the process ends twice. size: bytes to be read."""
    seconds = job.options.timeout + size / _SLOWEST
    url = job.path if is_url(job.path) else ""
    task = Task(step, os.fsencode(file), job.name, url, seconds, job.binding, job.options)
    ended: Ended | None = None
    for _ in range(_ATTEMPTS):
        try:
            reply = isolated()(task)
        except Ended as error:
            ended = error
            if error.late:
                break
        else:
            return Result(reply.row, reply.more)
    assert ended is not None
    if ended.late:
        said = f"the file takes more than {seconds:g} s, the --timeout"
        return Result(failed("timeout", "LimitError", said), {})
    return Result(failed("killed", "Ended", f"the worker process ended with status {ended.code}"), {})


@contextlib.contextmanager
def _place(path: str) -> Iterator[str]:
    """Where the file is; of a URL, where a copy is put that is gone afterwards."""
    if not is_url(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="graphflops-") as folder:
        yield os.path.join(folder, f"model{os.path.splitext(path)[1]}")
