"""Runs the jobs of a scan, in processes of this machine or on a Dask cluster, and writes what comes of them in parts.

A job runs in a thread, from its file to its row. The file is opened by a worker process alone: a mount that stalls, or a
pipe in place of the file, holds up no thread for longer than the time limit.
"""

import contextlib
import logging
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from queue import Empty, Queue
from types import FrameType
from typing import Any, Literal

from msgspec import Struct

from graphflops.base.record import field
from graphflops.errors import GraphflopsError, OptionError, shown
from graphflops.scan import store
from graphflops.scan.jobs import Job, Result, is_url
from graphflops.scan.worker import Ended, TableName, Task, ended_at_exit, failed, isolated, state_of
from graphflops.tensor import grouped
from graphflops.version import tool

_ATTEMPTS = 2  # a process may also have been killed by someone else
_SLOWEST = 2**24  # bytes a second at which a large file is read: no part of the time limit
_STATE = ("bytes", "modified")
KNOWN = "known"  # status of a row that is to be taken from the table


def scanned(job: Job, known: Collection[str] = ()) -> Result:
    """The row of a job. known: digests of the files whose rows the table has; for these, the row has the status KNOWN."""
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
    more = {name: [{**key, **row} for row in rows] for name, rows in result.more.items()}
    return Result({**result.row, **about}, more)


def _step(step: Literal["look", "digest", "analyze"], file: str, job: Job, size: int = 0) -> Result:
    """A worker process's result for the file, or a row with an error if the process ends twice. size: bytes to be read."""
    seconds = job.options.timeout + size / _SLOWEST
    url = job.path if is_url(job.path) else ""
    task = Task(step, os.fsencode(file), job.name, url, seconds, job.binding, job.options)
    code = 0
    for _ in range(_ATTEMPTS):
        try:
            return isolated()(task)
        except Ended as error:
            if error.late:
                said = f"the file takes more than {seconds:g} s, the --timeout"
                return Result(failed("timeout", "LimitError", said), {})
            code = error.code
    return Result(failed("killed", "Ended", f"the worker process ended with status {code}"), {})


@contextlib.contextmanager
def _place(path: str) -> Iterator[str]:
    """The path of the file; for a URL, the path of a temporary copy."""
    if not is_url(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="graphflops-") as folder:
        yield os.path.join(folder, f"model{os.path.splitext(path)[1]}")


_ROWS = 500  # rows of a part
_SECONDS = 5.0  # after which waiting rows are written as a part
CONNECT, _CLOSE = 30, 2  # seconds to reach a scheduler, and to leave it
_POLL = 1.0  # seconds without a result after which the cluster is checked
_LOST = 3  # times that a cluster may lose the worker of one job
Key = tuple[str, str]  # path and binding

_COLUMNS = ("path", "binding", "sha256", "bytes", "modified", "status", "options", "limits", "version")


class ScanError(GraphflopsError):
    """The scan cannot go on; what was done is written."""


class Summary(Struct):
    """What a scan did: rows by status, and how many were there already."""

    by_status: dict[str, int] = {}
    skipped: int = 0
    interrupted: bool = False

    @property
    def done(self) -> int:
        return self.skipped + sum(self.by_status.values())


class _Table(Struct):
    """The output as it was when the scan began, and the rows that wait to be written."""

    folder: str
    options: str
    limits: str
    # Size and time of change of the file of each row that is still right.
    done: dict[Key, tuple[int, int]] = {}
    known: dict[Key, int] = {}  # by digest and binding, where the row is
    table: Any = None
    waiting: list[Result] = []
    written: float = field(default_factory=time.monotonic)

    def tables(self, job: Job) -> Iterator[tuple[TableName, str]]:
        for name in job.options.rows:
            yield name, further(self.folder, name)  # type: ignore[misc]


def further(folder: str, name: str) -> str:
    """The folder of a further table: `results-calls.parquet` beside `results.parquet`."""
    return f"{folder.removesuffix('.parquet')}-{name}.parquet"


def scan(
    jobs: Sequence[Job], folder: str, *, workers: int = 1, scheduler: str = "", cache: bool = True,
    progress: Callable[[Summary, int], None] = lambda summary, total: None,
) -> Summary:  # fmt: skip
    """Analyzes every job whose row is not in the table yet, and adds the rows to it.

    workers: processes on this machine. scheduler: address of a Dask cluster to run on instead. cache: take rows of the same
    file, version and options from the table. progress: called with what is done, and the number of jobs.

    Raises ScanError if the cluster is lost, FileError if the table cannot be read or written.
    """
    options = jobs[0].options
    table = _opened(folder, options.text, options.limits, jobs, cache=cache)
    todo = [job for job in jobs if not _is_done(job, table)]
    summary = Summary(skipped=len(jobs) - len(todo))
    progress(summary, len(jobs))
    known = frozenset(digest for digest, _ in table.known) if not options.rows else frozenset()
    run = _on_cluster(scheduler, known) if scheduler else _here(workers, known)
    with _finishing(summary), run as (submit, window, check):
        try:
            for result in _windowed(todo, submit, window, summary, check):
                row = dict(result.row)
                if row["status"] == KNOWN:
                    index = table.known.get((row["sha256"], row["binding"]))
                    if index is not None:
                        kept = table.table.slice(index, 1).to_pylist()[0]
                        row = {**kept, **row, "status": kept["status"]}
                row |= {"options": table.options, "limits": table.limits, "version": tool()}
                summary.by_status[row["status"]] = summary.by_status.get(row["status"], 0) + 1
                table.waiting.append(Result(row, result.more))
                if len(table.waiting) >= _ROWS or time.monotonic() - table.written > _SECONDS:
                    _write(table)
                progress(summary, len(jobs))
        finally:
            _write(table)
    _settle(table, jobs)
    return summary


def _opened(folder: str, options: str, limits: str, jobs: Sequence[Job], *, cache: bool) -> _Table:
    found = _Table(folder, options, limits)
    for path in (folder, *(path for _, path in found.tables(jobs[0]))):
        store.prepare(path)
    if not cache:
        return found
    found.table = store.read(folder)
    for index, row in enumerate(store.rows_of(found.table.select(_COLUMNS))):
        is_same, _, is_within, digest = _order(found, row)
        if is_same and is_within and digest:
            found.done[row["path"], row["binding"]] = (row["bytes"], row["modified"])
            found.known[digest, row["binding"]] = index
    return found


def _is_done(job: Job, table: _Table) -> bool:
    """True if the table has the row of the file as it is now; a URL is always looked at again."""
    seen = table.done.get((job.name, job.binding.text))
    if seen is None or is_url(job.path):
        return False
    try:
        state = state_of(job.path)
    except GraphflopsError:
        return False
    return (state["bytes"], state["modified"]) == seen


def _write(table: _Table) -> None:
    """Adds what waits as a part; further tables first, since a row in the results says that all of it is done."""
    more = (pair for result in table.waiting for pair in result.more.items())
    for name, rows in grouped((name, row) for name, own in more for row in own).items():
        store.write(further(table.folder, name), rows, name)  # type: ignore[arg-type]
    store.write(table.folder, [result.row for result in table.waiting])
    table.waiting.clear()
    table.written = time.monotonic()


def _settle(table: _Table, jobs: Sequence[Job]) -> None:
    """Removes rows of these jobs that are not of the last analysis, and duplicate rows."""
    wanted = {(job.name, job.binding.text) for job in jobs}
    last: dict[Key, tuple[Any, ...]] = {}
    found = store.read(table.folder, columns=_COLUMNS)
    for row in store.rows_of(found):
        key, order = (row["path"], row["binding"]), _order(table, row)
        if key in wanted:
            last[key] = max(last.get(key, order), order)
    seen: set[Key] = set()

    def keep(row: Mapping[str, Any]) -> bool:
        key = (row["path"], row["binding"])
        if key not in wanted:
            return True
        if _order(table, row) != last[key] or key in seen:
            return False
        seen.add(key)
        return True

    store.keep(table.folder, keep, "results", _COLUMNS)

    def is_current(row: Mapping[str, Any]) -> bool:
        found = last.get((row["path"], row["binding"]))
        return found is None or found[-1] == row["sha256"]

    for name, folder in table.tables(jobs[0]):
        store.keep(folder, is_current, name, ("path", "binding", "sha256"))


def _order(table: _Table, row: Mapping[str, Any]) -> tuple[Any, ...]:
    """A row's key, largest for the last analysis: of this code and these options, of the newest file, within the limits."""
    same = row["options"] == table.options and row["version"] == tool()
    limited = row["status"] not in ("timeout", "killed") or row["limits"] == table.limits
    return same, row["modified"] or 0, limited, row["sha256"]


@contextmanager
def _here(workers: int, known: frozenset[str]) -> Iterator[Any]:
    """Threads of this process, each with a worker process beside it."""
    with ThreadPoolExecutor(workers) as pool, ended_at_exit():
        try:
            yield lambda job: pool.submit(scanned, job, known), 4 * workers, lambda: None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _windowed(
    jobs: Sequence[Job], submit: Callable[[Job], Any], most: int, summary: Summary, check: Callable[[], None]
) -> Iterator[Result]:
    """Results as they come, `most` in flight, none begun after Ctrl-C. check: called each second without a result."""
    waiting = iter(jobs)
    flying: set[Any] = set()
    done: Queue[Any] = Queue()
    while True:
        while not summary.interrupted and len(flying) < most and (job := next(waiting, None)) is not None:
            future = submit(job)
            flying.add(future)
            future.add_done_callback(done.put)
        if not flying:
            return
        try:
            future = done.get(timeout=_POLL)
        except Empty:
            check()
            continue
        flying.discard(future)
        yield future.result()


@contextmanager
def _finishing(summary: Summary) -> Iterator[None]:
    """Ctrl-C ends the scan after what is in flight; a second one ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        if summary.interrupted:
            raise KeyboardInterrupt
        summary.interrupted = True

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _on_cluster(address: str, known: frozenset[str]) -> Iterator[Any]:
    """The workers of a Dask cluster; each of their threads has a worker process of ours beside it."""
    try:
        from distributed import Client
        from distributed.scheduler import KilledWorker
    except ImportError:
        raise OptionError('--scheduler needs Dask: pip install "graphflops[scan]"') from None
    for name in [name for name in logging.root.manager.loggerDict if name.startswith("distributed")]:
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what is lost is said in one line
    try:
        client = Client(address, timeout=CONNECT, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise ScanError(f"{shown(address)}: no scheduler there: {shown(str(error), 200)}") from None
    try:
        shared = client.scatter(known, broadcast=True) if known else known

        def submit(job: Job) -> Any:
            return client.submit(scanned, job, shared, pure=False, retries=_LOST)

        def check() -> None:
            if client.status != "running":
                raise ConnectionError("the scheduler is gone")

        yield submit, max(4 * sum(client.nthreads().values()), 8), check
    except (OSError, TimeoutError, CancelledError, KilledWorker) as error:
        what = type(error).__name__
        raise ScanError(f"{shown(address)}: the cluster is lost ({what}): start the scan again") from None
    finally:
        client.close(timeout=_CLOSE)
