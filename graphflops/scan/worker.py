"""A worker process: reads tasks from its standard input, a line of JSON each, and writes a line with the result of each.

It looks at files of unknown origin, reads them and makes their rows of the tables, and may hang, crash or be killed; the
process that started it then starts another. No import of pyarrow: worker processes need none. docs/design.md says why no
library's pool of processes does.
"""

import contextlib
import gc
import hashlib
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from graphflops.base.files import opened
from graphflops.base.limits import Limits, limited
from graphflops.base.record import replace
from graphflops.cost import REPORTED
from graphflops.dims import Dim
from graphflops.errors import FileError, GraphflopsError, LimitError, shown
from graphflops.loading import analyze
from graphflops.report import HELD, Named, Report, Totals, phases_of
from graphflops.report.contradictions import contradicted, impossible
from graphflops.report.findings import SEVERITIES, Finding
from graphflops.runtime.machine import most_held_bytes
from graphflops.scan.jobs import Binding, Options, Result, fetch, size_of

_LARGEST = 2**63  # beyond what a column of integers holds; such a number stands in the column of formulas
_MESSAGE = 500
_TEXT = 10_000
_INPUTS = 1_000
_AT_ONCE = 2**26  # largest file in bytes that is read as soon as it is looked at
_PART = 2**20
Row = dict[str, Any]


class Task(msgspec.Struct, frozen=True):
    """A step of the work on one file."""

    step: Literal["look", "digest", "analyze"]
    file: bytes  # where it is
    path: str  # what errors call it
    url: str  # what is to be copied there first
    seconds: float  # the limit
    binding: Binding
    options: Options


def answered(task: Task) -> Result:
    """The result of a step; a step that fails, or exceeds the limits of time or memory, has a row with its error."""
    begun, file = time.perf_counter(), os.fsdecode(task.file)
    more: dict[str, list[Row]] = {}
    try:
        with limited(Limits(task.seconds, task.options.memory)):
            if task.step == "analyze":
                report, findings = _analyzed(file, task.binding, task.options)
                more = {name: [*_TABLES[name](report, findings or ())] for name in task.options.rows}
                row = {**_row(report, findings), **state_of(file)}  # its state after it was read
            elif task.step == "look" and task.url:
                row = {"bytes": size_of(task.url)}
            else:
                if task.url:
                    fetch(task.url, file)
                with opened(file) as content:
                    row = state_of(content.fileno())
                    if row["bytes"] <= (math.inf if task.step == "digest" else _AT_ONCE):
                        digest = hashlib.sha256()
                        while part := content.read(_PART):
                            digest.update(part)
                        row["sha256"] = digest.hexdigest()
    except LimitError as error:
        late = "--time-limit" in str(error)
        said = str(error).replace("--time-limit", "--timeout").replace("--memory-limit", "--memory")
        row = failed("timeout" if late else "error", "LimitError", said)
    except (GraphflopsError, OSError, RecursionError, MemoryError) as error:
        text = str(error) or "it does not fit in memory"
        name = shown(task.path)
        text = text.replace(shown(file), name).removeprefix(f"{name}: ")
        row = failed("error", type(error).__name__, text)
    except Exception as error:  # noqa: BLE001 - whatever a file makes fail costs that file only
        row = failed("error", type(error).__name__, f"{error}: a defect of graphflops, please report it")
    if task.step == "analyze":
        row["seconds"] = round(time.perf_counter() - begun, 4)
    return Result(row, more)


# States of a row with figures.
ANALYZED = _OK, _UNKNOWN, _DOUBTED = "ok", "unknown-operators", "contradiction"


def failed(status: str, code: str, message: str) -> Row:
    """The row of a file without figures."""
    return {"status": status, "code": code, "message": shown(message, _MESSAGE)}


def _analyzed(file: str, binding: Binding, options: Options) -> tuple[Report, tuple[Finding, ...] | None]:
    """The report, and of an ONNX file the findings of its audit; None of any other file."""
    sizes: Any = {"dims": binding.dims or None, "inputs": binding.inputs or None}
    findings = report = None
    if file.endswith(".onnx"):
        from graphflops.onnx_audit.audit import audit

        found = audit(file, **sizes)
        findings, report = found.findings, found.report
    if report is None or options.training or options.device:
        report = analyze(file, training=options.training, device=options.device or None, **sizes)
    return report, findings


def _row(report: Report, findings: tuple[Finding, ...] | None) -> Row:
    cover, doubt = report.coverage, contradicted(report)
    row: Row = {
        "status": _DOUBTED if doubt else _UNKNOWN if cover.unknown else _OK,
        "code": "",
        "message": "",
        "format": report.origin.format,
        "producer": shown(report.origin.producer, _TEXT),
        **{name: _number(report, getattr(report, name)) for name in HELD},
        "counted": cover.counted,
        "free": cover.free,
        "unknown": cover.unknown,
        "unknown_ops": [shown(op, 200) for op in sorted(cover.unknown_ops)],
        "attentions": len(report.attentions),
        "attention_flops": _number(report, sum((use.flops for use in report.attentions), 0)),
        "attention_kv_bytes": _number(report, sum((use.kv_bytes for use in report.attentions), 0)),
        "contradiction": shown(doubt, _TEXT),
        "inputs": [_input(report, named) for named in report.inputs[:_INPUTS]],
        "assumed": [f"{shown(name, 200)}={value}" for name, value in report.assumed.items()],
    }
    for phase, totals in phases_of(report).items():
        row |= _totals(report, totals, "" if phase == "forward" else f"{phase}_")
    if problems := impossible(report):
        row |= failed("error", problems[0].code, problems[0].message)
    if findings is not None:
        counts: Counter[str] = Counter(finding.severity for finding in findings)
        row |= {f"audit_{severity}s": counts[severity] for severity in SEVERITIES}
    return {**row, **_on_device(report)}


def _input(report: Report, named: Named) -> str:
    """An input at its sizes, `ids[2, ~16]`: one that follows from an assumption has a ~, one that is not known is a ?."""
    assumed = {name for name, info in report.symbols.items() if info.given_by == "assumption"}
    sizes = [
        ("" if isinstance(size, int) or assumed.isdisjoint(size.symbols) else "~")
        + ("?" if (value := report.value(size)) is None else f"{value}")
        for size in named.type.shape
    ]
    return f"{shown(named.name, 200)}[{', '.join(sizes)}]"


def _totals(report: Report, totals: Totals, prefix: str) -> Row:
    row: Row = {}
    for name in COSTS:
        dim = totals.peak_bytes if name == "peak_bytes" else getattr(totals.cost, name)
        row[f"{prefix}{name}"] = _number(report, dim)
        row[f"{prefix}{name}_formula"] = shown(str(dim), _TEXT)
    return row


def _number(report: Report, dim: Dim | None) -> int | None:
    value = None if dim is None else report.value(dim)
    return None if value is None or abs(value) >= _LARGEST else value


def _on_device(report: Report) -> Row:
    """Time and memory on the device; the memory of the phase that needs most."""
    if not report.device:
        return {}
    row: Row = {"device": report.device}
    time_ = report.step_time or report.totals.time
    if time_ is not None:
        row |= {"time_bound": time_.bound, **{f"time_{name}": getattr(time_, name) for name in TIMES}}
    for name in ("allocated_peak", "reserved_peak"):
        sizes = [_number(report, getattr(use, name)) for use in report.memory_use]
        row[name] = max([size for size in sizes if size is not None], default=None)
    return row


def _calls(report: Report, _: tuple[Finding, ...]) -> Iterator[Row]:
    for row in report.rows:
        names = {name: shown(getattr(row, name), _TEXT) for name in ("node", "op", "module", "source")}
        yield {**names, "state": row.state, **_work(report, row.cost)}


def _modules(report: Report, _: tuple[Finding, ...]) -> Iterator[Row]:
    """Each module with all that is in it; "" is the whole model."""
    from graphflops.budget.measure import Measures

    measures = Measures(report)
    paths = {"": None, **dict.fromkeys(report.modules), **dict.fromkeys(row.module for row in report.rows)}
    for path in paths:
        group, parameters = measures.whole(path)
        yield {
            "module": shown(path, _TEXT),
            "type": shown(report.modules.get(path, ""), _TEXT),
            "calls": group.calls,
            "parameters": _number(report, parameters),
            **_work(report, group.cost),
        }


def _findings(report: Report, findings: tuple[Finding, ...]) -> Iterator[Row]:
    for found in findings:
        named = {name: getattr(found, name) for name in ("code", "name", "severity")}
        texts = {name: shown(getattr(found, name), _TEXT) for name in ("message", "module", "source")}
        costs = {"flops": _number(report, found.flops), "moved_bytes": _number(report, found.bytes)}
        yield {**named, **texts, **costs}


def _work(report: Report, cost: object) -> Row:
    return {name: _number(report, getattr(cost, name)) for name in COSTS if name != "peak_bytes"}


_TABLES = {"calls": _calls, "modules": _modules, "findings": _findings}


def state_of(file: str | int) -> Row:
    """A file's size and time of change, which show whether it was replaced. FileError if it cannot be read."""
    try:
        found = os.stat(file)
    except OSError as error:
        raise FileError(f"{shown(str(file))}: {error.strerror or error}") from None
    return {"bytes": found.st_size, "modified": found.st_mtime_ns}


Kind = Literal["text", "number", "real", "texts"]
TableName = Literal["results", "calls", "modules", "findings"]

COSTS: tuple[str, ...] = (*(quantity.name for quantity in REPORTED), "peak_bytes")
PHASES = ("backward", "optimizer", "step")
TIMES = ("seconds", "low", "high")
KEY: dict[str, Kind] = {"sha256": "text", "path": "text", "binding": "text"}


def _quantities(*prefixes: str) -> dict[str, Kind]:
    """Each cost as a number and as a formula."""
    kinds: tuple[tuple[str, Kind], ...] = (("", "number"), ("_formula", "text"))
    return {f"{prefix}{name}{end}": kind for prefix in prefixes for name in COSTS for end, kind in kinds}


RESULTS: dict[str, Kind] = {
    **KEY, "bytes": "number", **dict.fromkeys(("format", "producer", "status", "code", "message"), "text"),
    **_quantities(""), **dict.fromkeys(HELD, "number"), "counted": "number", "free": "number",
    "unknown": "number", "unknown_ops": "texts", "contradiction": "text", "attentions": "number",
    "attention_flops": "number", "attention_kv_bytes": "number",
    **{f"audit_{severity}s": "number" for severity in SEVERITIES},
    **_quantities(*(f"{phase}_" for phase in PHASES)), "device": "text", "time_bound": "text",
    **{f"time_{name}": "real" for name in TIMES}, "allocated_peak": "number", "reserved_peak": "number",
    "inputs": "texts", "assumed": "texts", "options": "text", "limits": "text", "seconds": "real",
    "modified": "number", "version": "text",
}  # fmt: skip
_WORK: dict[str, Kind] = {quantity.name: "number" for quantity in REPORTED}
TABLES: dict[TableName, dict[str, Kind]] = {
    "results": RESULTS,
    "calls": {**KEY, **dict.fromkeys(("node", "op", "module", "source", "state"), "text"), **_WORK},
    "modules": {**KEY, "module": "text", "type": "text", "calls": "number", "parameters": "number", **_WORK},
    "findings": {
        **KEY, **dict.fromkeys(("code", "name", "severity", "message", "module", "source"), "text"),
        "flops": "number", "moved_bytes": "number",
    },
}  # fmt: skip


_COLLECTED = 50  # files after which unreachable objects are collected


def main() -> None:
    """Answer until the input ends, as it also does when the process that started this one is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing that is printed here is taken for a reply
    gc.disable()
    decoder = msgspec.json.Decoder(Task)
    for number, line in enumerate(sys.stdin.buffer):
        found = answered(decoder.decode(line))
        if number % _COLLECTED == 0:
            gc.collect()
        replies.write(msgspec.json.encode(replace(found, memory=most_held_bytes())) + b"\n")
        replies.flush()


COMMAND = (sys.executable, "-m", "graphflops.scan.worker")
GRACE = 5.0  # seconds beyond the time limit (kept by the process itself) after which it is killed
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
        """The process's reply; raises Ended if there is none."""
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
        line = b""
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(msgspec.json.encode(task) + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:
            pass  # it has ended
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
