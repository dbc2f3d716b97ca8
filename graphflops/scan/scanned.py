"""One job from its file to its row; runs in a thread, of this process or of a Dask worker."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from typing import TYPE_CHECKING, Any

from graphflops.errors import FileError, GraphflopsError, shown
from graphflops.scan.isolated import Ended, isolated
from graphflops.scan.jobs import Result, is_url, opened
from graphflops.scan.measure import failed, state_of
from graphflops.scan.worker import Task

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from graphflops.scan.jobs import Job

_ATTEMPTS = 2  # a process may also have been killed by someone else
_CHUNK = 2**20
KNOWN = "known"  # status of a row that is to be taken from the table


def scanned(job: Job, known: Collection[str] = ()) -> Result:
    """The row of a job. known: digests of the files whose rows the table has; of these the row has the status KNOWN."""
    try:
        with _local(job.path) as file:
            state = state_of(file)
            digest = _digest(file)
            about = {"sha256": digest, **state, "path": job.name, "binding": job.binding.text}
            if digest in known:
                return Result({**about, "status": KNOWN}, {})
            result = _analyzed(file, job)
            if state_of(file) != state:
                changed = failed(
                    "error", "Replaced", "the file was replaced while it was read: scan it again"
                )
                return Result({**about, **changed, "sha256": ""}, {})
    except (GraphflopsError, OSError) as error:
        about = {"sha256": "", "path": job.name, "binding": job.binding.text}
        return Result({**about, **failed("error", type(error).__name__, str(error))}, {})
    key = {name: about[name] for name in ("sha256", "path", "binding")}
    return Result(
        {**result.row, **about},
        {name: [{**key, **row} for row in rows] for name, rows in result.more.items()},
    )


def _analyzed(file: str, job: Job) -> Result:
    """What a worker process says of the file; a row of its own where the process ends twice."""
    ended: Ended | None = None
    for _ in range(_ATTEMPTS):
        try:
            reply = isolated()(Task(os.fsencode(file), job.name, job.binding, job.options))
        except Ended as error:
            ended = error
            if error.late:
                break
        else:
            return Result(reply.row, reply.more)
    assert ended is not None
    if ended.late:
        said = f"the analysis takes more than {job.options.timeout:g} s, the --timeout"
        return Result(failed("timeout", "LimitError", said), {})
    return Result(failed("killed", "Ended", f"the worker process ended with status {ended.code}"), {})


@contextlib.contextmanager
def _local(path: str) -> Iterator[str]:
    """The file; of a URL, a copy that is gone afterwards."""
    if not is_url(path):
        yield path
        return
    system, place = opened(path)
    with tempfile.TemporaryDirectory(prefix="graphflops-") as folder:
        file = os.path.join(folder, f"model{os.path.splitext(place)[1]}")
        try:
            with system.open(place, "rb") as source, open(file, "wb") as target:
                shutil.copyfileobj(source, target, _CHUNK)
        except Exception as error:  # noqa: BLE001 - each file system raises what it likes
            raise FileError(f"{shown(path)}: cannot be fetched: {shown(str(error))}") from None
        yield file


def _digest(file: str) -> str:
    digest: Any = hashlib.sha256()
    with open(file, "rb") as opened_:
        while part := opened_.read(_CHUNK):
            digest.update(part)
    text: str = digest.hexdigest()
    return text
