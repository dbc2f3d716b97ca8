"""Tells what became of one input: a report, a refusal in one line, or a defect and where it is."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from click.testing import CliRunner, Result

from graphflops.cli import main
from graphflops.errors import ZERO_WIDTH, GraphflopsError

SECONDS = 5  # of processor time: more is a hang
BYTES = 2**30  # more than the process has
DEFECTS = ("crash", "lines", "hang", "memory")


class Stuck(BaseException):
    """Raised by the timer; no handler of errors on the way catches it."""


class Verdict(NamedTuple):
    """kind: fine, refused, or one of DEFECTS. where: the innermost lines of graphflops, or what was printed."""

    kind: str
    where: str = ""


def run_command(args: Sequence[str], kept: list[Result] | None = None) -> Verdict:
    """What a command does. kept: gets what it printed."""

    def run() -> Verdict:
        with mock.patch.dict(os.environ, {"GRAPHFLOPS_TRACEBACK": "1"}):
            result = CliRunner().invoke(main, [*args])
        if kept is not None:
            kept.append(result)
        error = result.exception
        if isinstance(error, MemoryError) or "does not fit in memory" in result.stderr:
            return Verdict("memory", _where(_root(error)) if error else "")
        if error is not None and not isinstance(error, SystemExit):
            return Verdict("crash", f"{type(error).__name__} {_where(error)}")
        if result.exit_code == 1 and not _is_plain(result.stderr or f"graphflops: {args[0]}"):
            return Verdict("lines", repr(result.stderr[:300]))
        is_text = not {"memory-snapshot", "chakra"}.intersection(args)  # a pickle, and messages of protobuf
        if is_text and any(
            not line.replace(ZERO_WIDTH, "").isprintable() for line in result.output.split("\n")
        ):
            return Verdict("lines", f"{' '.join(args)} printed a control character")
        if "json" in args and result.exit_code == 0 and (wrong := _negative(result.stdout)):
            return Verdict("lines", wrong)
        return Verdict("fine" if result.exit_code in (0, 3) else "refused")

    return limited(run)


def call(function: Callable[[], Any]) -> Verdict:
    """What a function does."""

    def run() -> Verdict:
        try:
            function()
        except (GraphflopsError, ValueError) as error:
            text = str(error)
            is_plain = "\n" not in text and text.isprintable() and len(text) < 3000
            return (
                Verdict("refused")
                if is_plain
                else Verdict("lines", f"{type(error).__name__} {_where(error)}")
            )
        except Exception as error:  # noqa: BLE001 any other error is a defect
            return Verdict("crash", f"{type(error).__name__} {_where(error)}")
        return Verdict("fine")

    return limited(run)


def limited(run: Callable[[], Verdict]) -> Verdict:
    """The verdict, found with so much memory and time."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = signal.signal(signal.SIGPROF, _stuck)
    began = time.process_time()
    resource.setrlimit(resource.RLIMIT_AS, (has + BYTES, hard))
    signal.setitimer(signal.ITIMER_PROF, 2 * SECONDS)
    try:
        verdict = run()
    except Stuck as error:
        return Verdict("hang", _where(error))
    except MemoryError as error:
        return Verdict("memory", _where(error))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    if verdict.kind not in DEFECTS and time.process_time() - began > SECONDS:
        return Verdict("hang", f"more than {SECONDS} seconds")
    return verdict


def _stuck(*_: Any) -> None:
    raise Stuck


def _root(error: BaseException) -> BaseException:
    """The error that was raised first."""
    while error.__context__ is not None:
        error = error.__context__
    return error


def _is_plain(text: str) -> bool:
    """True for lines without control characters, of which the last is the error; warnings may come before it."""
    found = text.splitlines()
    return bool(found) and found[-1].startswith("graphflops: ") and all(map(str.isprintable, found))


def _negative(text: str) -> str:
    """What of a report is a negative number, or none: the first such total or call; "" where there is none."""
    try:
        report = json.loads(text, parse_constant=_refused)
    except ValueError as error:
        return f"JSON: {error}"
    if "totals" not in report:
        return ""
    rows = [("the totals", report["totals"]), *((row["op"], row["cost"]) for row in report.get("rows", ()))]
    times = [("the totals", report["totals"]), *((row["op"], row) for row in report.get("rows", ()))]
    for name, cost in rows:
        for key, number in cost.items():
            value = number.get("value") if isinstance(number, dict) else number
            if isinstance(value, int) and value < 0:
                return f"{name}: a negative {key}"
    for name, row in times:
        if row.get("time") and not 0 <= row["time"]["low"] <= row["time"]["high"]:
            return f"{name}: an impossible time"
    return ""


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _where(error: BaseException) -> str:
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if "/graphflops/" in frame.filename
    ]
    return " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames[-3:]))
